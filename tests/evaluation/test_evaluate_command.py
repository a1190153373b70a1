from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_world import BASIC, HITS, QUERIES, Place, one_line, query_text, scripted, unit_id, write_beir

from bounded_retrieval.policies.registry import ASSESSORS, FUSIONS
from bounded_retrieval.retrievers import embeddings
from bounded_retrieval.retrievers.store import open_index

PROMISED = {"ndcg@4", "recall@4", "queries", "calls", "dense_calls", "rows", "reads", "stop_reasons"}
NAMED = {"fixed_lexical", "fixed_dense", "always_continue", "reference", "adaptive"}
WHOLE = "expected a whole number of at most 18 digits"
FULL = ["--policies", "fixed_lexical,fixed_dense,reference", "--live", "1", "--resamples", "100"]


def embeds_nothing(*_: Any) -> None:
    """Stands for a model that must not be asked."""
    raise AssertionError("a unit was embedded")


def test_json_has_every_policy_and_figure_of_the_contract_and_nothing_else(run: Any, place: Place) -> None:
    """By default all policies; no query and no text of a unit."""
    code, out, err = run("evaluate", place.folder, "--live", "0", "--resamples", "100", "--json")
    assert code == 0
    report = json.loads(out)
    assert report["policies"].keys() >= NAMED
    assert {f"always_continue:{name}" for name in FUSIONS} <= report["policies"].keys()
    assert {f"adaptive:{name}" for name in ASSESSORS} <= report["policies"].keys()
    for found in report["policies"].values():
        assert found.keys() >= PROMISED
        assert found["queries"] == sum(found["stop_reasons"].values()) == QUERIES
    assert report["collection"]["name"] == "manuals"
    assert report["collection"]["survey"]["judged"] == QUERIES
    assert query_text(1) not in out + err
    assert report["policies"]["reference"]["stop_reasons"]["proxy_sufficient"] == 20
    assert report["policies"]["reference"]["dense_calls"] == 10


@pytest.fixture(scope="module")
def written(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that two reports were written to, the first of them with pictures."""
    from bounded_retrieval.cli import main

    folder = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place.cache))
        assert main(["evaluate", str(place.folder), *FULL, "--out", str(folder / "new" / "report")]) == 0
        assert main(["evaluate", str(place.folder), *FULL, "--out", str(folder / "bare"), "--no-plots"]) == 0
    return folder


def test_out_writes_all_forms_of_the_report(written: Path) -> None:
    """JSON, Markdown, pictures and one HTML page; the folder is made."""
    folder = written / "new" / "report"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"report.json", "timings.json", "report.md", "report.html"} <= names
    assert any(name.startswith("plots/") and name.endswith(".png") for name in names)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert len(report["queries"]) == QUERIES
    assert query_text(1) in (folder / "report.html").read_text(encoding="utf-8")
    assert unit_id("r", 1) in report["units"]
    assert (report["live_check"]["queries"], report["live_check"]["different"]) == (1, [])
    timings = json.loads((folder / "timings.json").read_text(encoding="utf-8"))
    assert timings["latency_ms"]["reference"]["runs"] == 1


def test_two_evaluations_write_the_same_report(written: Path) -> None:
    """To the byte, wall-clock figures apart; without pictures where none are wanted."""
    one, other = written / "new" / "report", written / "bare"
    assert (one / "report.json").read_bytes() == (other / "report.json").read_bytes()
    assert not (other / "plots").exists()


def test_for_a_person_there_is_a_table(run: Any, place: Place) -> None:
    """Policies side by side, with what each does and what its stops cost."""
    code, out, err = run("evaluate", place.folder, *FULL, "--live", "0")
    assert code == 0
    assert "manuals" in out
    assert f"{QUERIES} queries" in out
    for name in ("fixed_lexical", "fixed_dense", "reference", "always_continue"):
        assert name in out
    assert "stopped after the first search in 20 of 30 queries" in out
    assert "Traceback" not in out + err


def test_the_index_is_kept_and_a_second_evaluation_embeds_no_unit(
    run: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is indexed again."""
    before = {path: path.stat().st_mtime_ns for path in place.index.rglob("manifest.json")}
    monkeypatch.setattr(embeddings.MiniLMEmbeddings, "embed_documents", embeds_nothing)
    code, out, err = run("evaluate", place.folder, *BASIC, "--json")
    assert (code, json.loads(out)["policies"]["fixed_dense"]["queries"]) == (0, QUERIES)
    assert "indexing" not in err
    assert {path: path.stat().st_mtime_ns for path in place.index.rglob("manifest.json")} == before


def test_another_text_of_a_unit_is_another_index(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the kept one of a collection that only has the same name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_beir(tmp_path / "manuals", scripted([HITS])["collection"])
    assert run("evaluate", folder, *BASIC, "--json")[0] == 0
    corpus = folder / "corpus.jsonl"
    corpus.write_text(corpus.read_text(encoding="utf-8").replace("filling", "stuffing"), encoding="utf-8")
    code, _, err = run("evaluate", folder, *BASIC, "--json")
    assert code == 0
    assert "indexing the collection once" in err
    kept = sorted((tmp_path / "cache" / "bounded-retrieval" / "collections").iterdir())
    assert len(kept) == 2
    texts = set()
    for each in kept:
        with open_index(each) as index:
            texts |= {document.page_content.split()[-2] for document in index.units.fetch([unit_id("r", 0)]).values()}
    assert texts == {"filling", "stuffing"}


def test_a_kept_index_of_an_older_version_is_built_again(
    run: Any, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its place, with the vectors that it has."""
    shutil.copytree(place.cache, tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (manifest,) = (tmp_path / "cache").rglob("manifest.json")
    older = json.loads(manifest.read_text(encoding="utf-8"))
    older["tokenizer"] = "older"
    manifest.write_text(json.dumps(older), encoding="utf-8")
    monkeypatch.setattr(embeddings.MiniLMEmbeddings, "embed_documents", embeds_nothing)
    code, out, err = run("evaluate", place.folder, *BASIC, "--json")
    assert (code, json.loads(out)["policies"]["fixed_dense"]["queries"]) == (0, QUERIES)
    assert "indexing the collection once" in err


def test_a_table_of_ones_own_needs_an_index(run: Any, place: Place, tmp_path: Path) -> None:
    """And then no documents: two queries over the kept index."""
    table = tmp_path / "mine.csv"
    rows = [f"{query_text(number)},{unit_id('r', number)}" for number in (1, 2)]
    table.write_text("\n".join(["query,relevant_ids", *rows]), encoding="utf-8")
    code, out, _ = run("evaluate", table, "--index", place.index, *BASIC, "--json")
    assert code == 0
    assert json.loads(out)["policies"]["fixed_dense"]["queries"] == 2
    code, out, err = run("evaluate", table, *BASIC, "--json")
    assert (code, out) == (2, "")
    assert "mine: holds no documents; give --index DIR" in one_line(err)


def test_an_index_of_other_units_is_refused(run: Any, place: Place, tmp_path: Path) -> None:
    """None of the units judged relevant is in it."""
    table = tmp_path / "mine.csv"
    table.write_text(f"query,relevant_ids\n{query_text(1)},elsewhere\n", encoding="utf-8")
    code, out, err = run("evaluate", table, "--index", place.index, *BASIC)
    assert (code, out) == (2, "")
    assert "the index holds none of the 1 units judged relevant" in one_line(err)


def test_limits_hold_for_every_policy(run: Any, place: Place) -> None:
    """One call, and two rows: nothing goes on, whatever it is called."""
    limits = ["--limit", "max_rows=2", "--limit", "max_calls=1"]
    code, out, _ = run("evaluate", place.folder, *FULL, *limits, "--live", "0", "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["settings"]["limits"]["max_rows"], report["settings"]["limits"]["max_calls"]) == (2, 1)
    for name, found in report["policies"].items():
        assert found["rows"] <= 2 * QUERIES
        assert found["calls"] == QUERIES
        assert found["dense_calls"] == (QUERIES if name == "fixed_dense" else 0)


@pytest.mark.parametrize("command", [["evaluate"], ["calibrate"]])
def test_the_help_says_that_a_limit_may_be_raised(run: Any, command: list[str]) -> None:
    """An experiment sets its limits; only a question may do no more than lower them."""
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert "set a limit of every run, as in --limit max_rows=8" in " ".join(out.split())
    assert "lower a limit" in " ".join(run("ask", "--help")[1].split())


def test_a_limit_may_be_raised(run: Any, place: Place) -> None:
    """Above what a run has by default."""
    code, out, _ = run("evaluate", place.folder, *BASIC, "--limit", "max_rows=8", "--json")
    assert (code, json.loads(out)["settings"]["limits"]["max_rows"]) == (0, 8)


def test_policies_are_those_that_were_named_and_their_arms(run: Any, place: Place) -> None:
    """With blanks between them, and a threshold."""
    policies = "fixed_dense, adaptive:term_coverage@0.3"
    code, out, _ = run("evaluate", place.folder, "--policies", policies, "--live", "0", "--resamples", "100", "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found["policies"])[:2] == ["fixed_dense", "adaptive:term_coverage@0.3"]
    assert set(found["policies"]) == {
        "fixed_dense",
        "adaptive:term_coverage@0.3",
        *found["arms"]["adaptive:term_coverage@0.3"].values(),
    }
    assert "from 0" not in found["policies"]["adaptive:term_coverage@0.3"]["actions"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--policies", "adaptiv"], "policies: unknown policy 'adaptiv'"),
        (["--policies", "adaptive:best"], "assessor: unknown name 'best'"),
        (["--policies", "adaptive@2"], "policies: 'adaptive@2' has a threshold that is not from 0 to 1"),
        (["--limit", "max_rows=1000"], "--limit.max_rows: Input should be less than or equal to 200 (got 1000)"),
        (["--limit", "max_rows=-1"], "--limit.max_rows: Input should be greater than or equal to 0 (got -1)"),
        (["--limit", f"max_rows={'9' * 19}"], f"--limit max_rows: {WHOLE} (got '{'9' * 19}')"),
        (["--limit", "max_rows=4.5"], f"--limit max_rows: {WHOLE} (got '4.5')"),
        (["--policies", ""], "--policies: at least one name is expected (got '')"),
        (["--policies", " ,"], "--policies: at least one name is expected (got ' ,')"),
        (["--limit", "rows=4"], "rows"),
        (["--limit", "max_rows"], "--limit: expected NAME=N"),
        (["--limit", "deadline_ms=1000"], "deadline_ms: an experiment has none (got 1000)"),
        (["--resamples", "10"], "resamples: 100 to 1,000,000 (got 10)"),
        (["--resamples", "many"], "--resamples"),
        (["--confidence", "1"], "confidence: above .5 and below 1 (got 1.0)"),
        (["--live", "-1"], "live: 0 or more (got -1)"),
        (["--seed", "-1"], "seed: 0 or more (got -1)"),
        (["--slice", "final"], "slice: needs the calibration that drew it (--calibration FILE)"),
        (["--calibration", "gone.json"], "gone.json: cannot be read (No such file or directory)"),
        (["--split", "train"], "train"),
        (["--index", "gone"], "gone"),
        (["--queries", "gone.jsonl"], "gone.jsonl"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_exit_code_2(
    *, run: Any, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    """And nothing is printed or written."""
    monkeypatch.chdir(tmp_path)
    code, out, err = run("evaluate", place.folder, *arguments, "--out", tmp_path / "report", "--no-plots")
    assert (code, out) == (2, "")
    assert named in one_line(err)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to_is_said_before_anything_is_run(
    run: Any, place: Place, tmp_path: Path
) -> None:
    """A file where the folder should be."""
    (tmp_path / "report").write_text("mine", encoding="utf-8")
    code, out, err = run("evaluate", place.folder, *BASIC, "--out", tmp_path / "report", "--no-plots")
    assert (code, out) == (2, "")
    assert "report: not a folder" in one_line(err)
    assert "searching" not in err
    assert (tmp_path / "report").read_text(encoding="utf-8") == "mine"


def test_pictures_that_cannot_be_written_are_said_before_anything_is_run(
    run: Any, place: Place, tmp_path: Path
) -> None:
    """A file where their folder should be."""
    (tmp_path / "plots").write_text("mine", encoding="utf-8")
    code, out, err = run("evaluate", place.folder, *BASIC, "--out", tmp_path)
    assert (code, out) == (2, "")
    assert "plots: not a folder; a folder to write to is expected" in one_line(err)
    assert "searching" not in err


LABELS = "(missing: queries and qrels; on the command line: --queries and --qrels)"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("faq.md", f"faq.md: a file of documents needs queries and qrels beside it, each a file {LABELS}"),
        (
            "handbook",
            "handbook: no judgements (a file named *qrels*) there; name the file as qrels (on the command line: --qrels)",
        ),
    ],
)
def test_labels_that_are_missing_are_named_for_the_command_line_and_for_python(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    """The parameter's name is no option, so both are told."""
    monkeypatch.chdir(tmp_path)
    Path("faq.md").write_text("# Pumps", encoding="utf-8")
    Path("handbook").mkdir()
    Path("handbook/pumps.md").write_text("# Pumps", encoding="utf-8")
    code, out, err = run("evaluate", name)
    assert (code, out, one_line(err)) == (2, "", f"bounded-retrieval: {message}")


@pytest.mark.parametrize("collection", ["gone", "corpus.txt"])
def test_what_is_no_collection_is_refused(run: Any, tmp_path: Path, collection: str) -> None:
    """With its name."""
    (tmp_path / "corpus.txt").write_text("text", encoding="utf-8")
    code, out, err = run("evaluate", tmp_path / collection, *BASIC)
    assert (code, out) == (2, "")
    assert collection in one_line(err)
