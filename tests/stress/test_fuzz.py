"""What users bring is read or refused: no other error, no property broken, no time that grows faster than the input."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fuzz_planted
import pytest
from bs4 import BeautifulSoup
from fuzz_choices import TEXTS
from fuzz_growth import lines_of
from fuzz_targets import TARGETS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scale import is_full, scaled

from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.errors import MAX_PROBLEMS, RequestError
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.ingest.outline import MAX_HEADING_CHARS
from bounded_retrieval.ingest.splitting import check_chunk_chars
from bounded_retrieval.ingest.unended import write_out_unended
from bounded_retrieval.policies.settings import read_request

HERE = Path(__file__).parent
PARALLEL = 2

EXAMPLES = scaled(20, 500)
FUZZ_SECONDS = 45
FUZZ_RUNS = 1_000
MEGABYTE = 1_000_000
LIMIT = 60
"""Seconds after which an input counts as one that hangs; a quiet machine takes a few of them at most."""

SHORT_SIZE = 40_000
SHORT_SHAPES = ("accents", "identifiers", "comments", "json nesting", "numbered cells")
WRAPPED_EVERY = 12
"""Of the shapes inside other text, so many as one in this number are read at these sizes."""

GROWING = 4
MOST_GROWTH = 5.5
"""Four times the input may take this many times the time or work; quadratic time is 16 times."""

LINE_SIZE = 1_000
EVERY = scaled(10, 1)
"""Of the shapes, so many as one in this number are counted; the first one differs from target to target."""

LEAST_LINES = 2_000
"""Work below this is the reader's own, whatever the input."""

LEAST_SECONDS = 0.4
"""Times below this say nothing about growth."""

NO_SEARCH = (
    '{"events": [{"event": "request_inspected", "query": "q", "query_id": "q", "policy": "adaptive", "threshold": 0.8, '
    '"terms": [], "identifiers": [], "channels": ["lexical"], "limits": {}, "first_hop_rows": 3, "assessor": "a", '
    '"fusion": "rrf", "tokenizer": "t", "next_action": "lexical_search"}, {"event": "coverage_assessed", '
    '"observations": [], "assessment": null, "usage": {}, "remaining": {}, "steps_suffice": true, "legal_actions": [], '
    '"action": "dense_search", "stop_reason": null}, {"event": "evidence_packed", "dropped": 0, "ranking": [], '
    '"packed": [], "skipped": [], "chars": 0, "stop_reason": "cancelled", "missing_terms": [], "notes": [], "usage": {}}]}'
)
"""A trace with a decision before any search."""

FOUND = [
    ("html", b"<![<![<![x"),
    ("html", b"<![unknown[a>b"),
    ("html", b"<a " * 6_000),
    ("html", b"<!-- a >" * 6_000),
    ("html", b"<![CDATA[ a >" * 4_000),
    ("html", b"<h1>" + b"<p>a" * 4_000),
    ("html", b"<header>" * 4_000 + b"<h2>a</h2>b"),
    ("html", b"<g>" * 4_000 + b"<svg><title>a</title></svg>" * 400 + b"b"),
    ("html", b"<title>" + b"a " * 20_000 + b"</title>" + b"numbered " * 4_000),
    ("markdown", b"# " + b"a " * 20_000 + b"\n\n" + b"words " * 4_000),
    ("markdown", b"<\xc4\xb0script>\n# a\n"),
    ("markdown", "<scr\u0131pt>\n# a\n".encode()),
    ("sgml", b"<DOC><DOCNO>1</DOCNO>" + b"<!--" * 10_000 + b"</DOC>"),
    ("sgml", b"<DOC><DOCNO>1</DOCNO>" + b"<TEXT>" * 10_000 + b"</DOC>"),
    ("queries", b"<top></top>" * 4_000),
    ("csv", b"query,unit_id," + b"".join(b"c%d," % number for number in range(10_000))),
    ("csv", b"query,unit_id" + b"".join(b",c%d" % number for number in range(2_000)) + b"\na,1" * 4_000),
    ("traces", NO_SEARCH.encode()),
    ("traces", NO_SEARCH.replace("0.8", "NaN").encode()),
    (
        "traces",
        NO_SEARCH.replace(
            '"coverage_assessed"', '"search_attempted", "returned": [{"unit_id": "a", "rank": 0}]'
        ).encode(),
    ),
    ("runs", b'\x00\x00[{"events": [], "a\\nb": 1}]'),
    (
        "calibration",
        b'{"format": "bounded-retrieval-calibration-1", ' + b", ".join(b'"k%d": 1' % n for n in range(10_000)) + b"}",
    ),
    ("request", b'{"query": "a", ' + b", ".join(b'"k%d": 1' % n for n in range(10_000)) + b"}"),
]

HAS_ATHERIS = importlib.util.find_spec("atheris") is not None
needs_atheris = pytest.mark.skipif(not HAS_ATHERIS, reason="atheris has no package for this platform")
full_only = pytest.mark.skipif(not is_full(), reason="part of the full form (make stress)")


def inputs(name: str) -> st.SearchStrategy[bytes]:
    """Any bytes, and texts of the target's own words and of characters that make trouble."""
    pieces = st.one_of(st.sampled_from([*TARGETS[name].words, *TEXTS]), st.text(st.characters(codec=None), max_size=6))
    texts = st.lists(pieces, max_size=30).map(lambda found: "".join(found).encode("utf-8", "surrogatepass"))
    begins = st.sampled_from([*TARGETS[name].begins, b""])
    changed = st.builds(lambda begin, at, more: begin[:at] + more + begin[at:], begins, st.integers(0, 99), texts)
    return st.one_of(st.binary(max_size=200), texts, changed)


@pytest.mark.parametrize("name", TARGETS)
def test_generated_input_is_read_or_refused(name):
    """Each target holds for bytes, words and edits that hypothesis makes."""
    run = TARGETS[name].load()
    for begin in TARGETS[name].begins:
        run(begin)

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(inputs(name))
    def holds(data):
        run(data)

    holds()


@pytest.mark.parametrize(("name", "data"), FOUND, ids=range(len(FOUND)))
def test_what_was_once_found_is_read_or_refused(name, data):
    """Inputs that once ended in another error, or that took time out of all proportion."""
    TARGETS[name].load()(data)


@needs_atheris
def test_a_fuzzer_guided_by_coverage_finds_nothing(tmp_path):
    """In the short form all targets share some runs; in the full form each has most of a minute."""
    names = list(TARGETS) if is_full() else [",".join(TARGETS)]
    limits = [f"-max_total_time={FUZZ_SECONDS}"] if is_full() else [f"-runs={FUZZ_RUNS}"]
    with ThreadPoolExecutor(PARALLEL) as pool:
        done = list(pool.map(lambda name: _fuzz(name, tmp_path, *limits), names))
    for name, ended in zip(names, done, strict=True):
        found = re.search(r"stat::number_of_executed_units:\s*(\d+)", ended.stderr)
        executions = int(found[1]) if found else 0
        print(f"fuzz {name}: {executions:,} executions, crashes {int(ended.returncode != 0)}")
        assert ended.returncode == 0, f"{name}: {ended.stdout[-3_000:]}\n{ended.stderr[-3_000:]}"
        assert executions >= scaled(FUZZ_RUNS, 1)


@needs_atheris
def test_a_planted_fault_is_found_by_the_fuzzer(tmp_path):
    """A path that is written in another way than it is read ends the fuzzer with the input that shows it."""
    ended = _fuzz("planted", tmp_path, "-runs=200000")
    assert ended.returncode != 0
    assert "AssertionError" in ended.stdout + ended.stderr
    assert list(tmp_path.glob("planted.found*"))


def test_what_has_no_end_in_a_page_is_read_as_text():
    """What stands behind it is read as if it were not there; what has an end is what it always was."""
    page = "<!-- a --> <![CDATA[b]]> <![if c]> <p>d</p> <!-- e <![CDATA[ f <![endif g <![x] h <b>i</b> <j k"
    written = write_out_unended(page)
    assert BeautifulSoup(written, "html.parser").get_text().split() == (
        ["b", "d", "<!--", "e", "<![CDATA[", "f", "<![endif", "g", "<![x]", "h", "i", "<j", "k"]
    )
    assert written.startswith("<!-- a --> <![CDATA[b]]> <![if c]> <p>d</p> &lt;!-- e")


def test_a_heading_too_long_to_be_repeated_is_text(tmp_path):
    """Its words are in the units once, and are neither title nor section."""
    long = "word " * MAX_HEADING_CHARS
    pages = {"a.md": f"# {long}\n\nb", "b.md": f"{long}\n===\n\nb", "c.html": f"<title>{long}</title><h1>{long}</h1>b"}
    for name, page in pages.items():
        (tmp_path / name).write_text(page)
        units = list(read_documents([tmp_path / name], chunk_chars=900))
        assert {unit.metadata["title"] for unit in units} == {name[0]}
        assert not any("section" in unit.metadata for unit in units)
        assert "word" in " ".join(unit.page_content for unit in units)


def test_a_heading_is_its_words_without_comments_and_links_to_itself(tmp_path):
    """Also where it stands inside a link of that kind."""
    page = tmp_path / "a.html"
    page.write_text(
        "<div class=anchor><h2>Replace <!-- x --><b>it</b><a class=headerlink>#</a><svg>y</svg></h2></div>b"
    )
    (unit,) = read_documents([page])
    assert unit.metadata["section"] == "Replace it"


def test_an_error_names_the_first_problems_and_counts_the_others():
    """However many there are, and whatever the fields are called."""
    with pytest.raises(RequestError) as caught:
        read_request("a", {f"k{number}\n": number for number in range(1_000)})
    assert str(caught.value).count("unknown field") == MAX_PROBLEMS
    assert str(caught.value).endswith("; and 995 more")


@pytest.mark.parametrize("value", [10**5_000, "a" * 10_000, ["b\n"] * 10_000], ids=["number", "text", "list"])
def test_an_error_quotes_a_value_of_any_size(value):
    """A whole number that Python refuses to write is no other error."""
    for asked in ({"$and": {"a": value}}, {"a": {"$exists": value}}, {"a": {"$x": value}}, {"$or": value}):
        with pytest.raises(RequestError) as caught:
            compile_filter(asked)
        assert len(str(caught.value)) < 300
    with pytest.raises(RequestError):
        read_request("a", {"query": value})
    with pytest.raises(RequestError):
        check_chunk_chars(value)


def test_a_planted_fault_is_found_without_a_fuzzer():
    """Hypothesis finds it too, and an error that is not the package's, and one whose message nobody can read."""
    with pytest.raises(AssertionError):
        fuzz_planted.path(b"A > led by")
    with pytest.raises(ZeroDivisionError):
        fuzz_planted.foreign_error(b"")
    with pytest.raises(AssertionError, match="9000 characters in 1 lines"):
        fuzz_planted.long_message(b"a" * 9_000)


@pytest.mark.parametrize("name", TARGETS)
def test_work_grows_with_the_input(name):
    """Four times the input runs at most five times the lines of Python, whatever it is made of."""
    target = TARGETS[name]
    run = target.load()
    shapes = [shape for shape, _ in target.large(1)][list(TARGETS).index(name) % EVERY :: EVERY]
    size = LINE_SIZE
    # A step, as where a heading is too long to be one, comes once; what grows too fast does so at every size.
    for _ in range(2):
        small, large = dict(target.large(size)), dict(target.large(GROWING * size))
        for data in (*target.begins, *(small[shape] for shape in shapes)):
            run(data)
        lines = {shape: (lines_of(run, small[shape]), lines_of(run, large[shape])) for shape in shapes}
        shapes = [shape for shape, (few, many) in lines.items() if many > MOST_GROWTH * few + LEAST_LINES]
        size *= GROWING
    assert not [(shape, *lines[shape]) for shape in shapes]


def test_quadratic_work_is_seen():
    """Counting lines tells a reader that looks at every pair of lines."""
    small, large = (lines_of(fuzz_planted.every_pair, b"a\n" * size) for size in (100, 400))
    assert large > 2 * MOST_GROWTH * small > LEAST_LINES


def test_large_inputs_end(tmp_path):
    """Some shapes of a size that no reader is surprised by are read or refused by every target."""
    seconds = _large(tmp_path, [",".join(TARGETS)], SHORT_SIZE, *SHORT_SHAPES)
    assert len(seconds) >= len(TARGETS) * len(SHORT_SHAPES)


@full_only
def test_megabytes_end_in_time_that_grows_with_them(tmp_path):
    """Every shape of a megabyte is read or refused; four times the input takes nowhere near sixteen times the time."""
    small, large = (_large(tmp_path, list(TARGETS), size) for size in (MEGABYTE // GROWING, MEGABYTE))
    longest = max(large, key=lambda each: large[each])
    growth = {
        shape: seconds / max(small[shape], LEAST_SECONDS / GROWING)
        for shape, seconds in large.items()
        if seconds > LEAST_SECONDS
    }
    steepest = max(growth, key=lambda each: growth[each])
    print(
        f"large inputs: {len(large)} of {MEGABYTE:,} bytes read or refused, the longest in {large[longest]:.1f} s "
        f"({longest}); four times the input takes at most {growth[steepest]:.1f} times the time ({steepest})"
    )
    assert growth[steepest] < 2 * MOST_GROWTH


def _fuzz(name: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    corpus = folder / f"{name.partition(',')[0]}.corpus"
    corpus.mkdir()
    (folder / name.partition(",")[0]).mkdir()
    command = [
        sys.executable,
        "fuzz_run.py",
        name,
        str(corpus),
        f"-artifact_prefix={folder / name.partition(',')[0]}.found-",
    ]
    fixed = ["-seed=1", "-print_final_stats=1", "-timeout=300", "-rss_limit_mb=4096", "-max_len=2000", "-verbosity=0"]
    return _python([*command, *fixed, *options], folder / name.partition(",")[0])


def _large(folder: Path, names: list[str], size: int, *wanted: str) -> dict[str, float]:
    """Seconds of every large input, by target and shape."""
    found: dict[str, float] = {}
    folders = [folder / f"{size}-{number}" for number in range(len(names))]

    def run(name: str, own: Path) -> subprocess.CompletedProcess[str]:
        own.mkdir()
        return _python([sys.executable, "fuzz_large.py", name, str(size), str(LIMIT), str(WRAPPED_EVERY), *wanted], own)

    with ThreadPoolExecutor(PARALLEL) as pool:
        for ended in pool.map(run, names, folders):
            lines = [json.loads(line) for line in ended.stdout.splitlines()]
            assert ended.returncode == 0, f"{lines[-1] if lines else ''} {ended.stderr[-3_000:]}"
            found.update({line["shape"]: line["seconds"] for line in lines if "seconds" in line})
    return found


def _python(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HERE), "BOUNDED_RETRIEVAL_FUZZ_FOLDER": str(folder)}
    return subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
