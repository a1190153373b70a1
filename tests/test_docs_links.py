"""Links, paths and figures in the documents: what they point to is there, and what they state is what the code has."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from documented import NOTEBOOKS, PAGES, ROOT

from bounded_retrieval import Budget, ChainLimits, ExtractiveReader, Scorecard, StopReason
from bounded_retrieval.contracts.chain import MAX_HOP_QUERY_CHARS
from bounded_retrieval.contracts.eligibility import ELIGIBILITY_TIMEOUT_MS, OVERFETCH_CAP
from bounded_retrieval.contracts.filters import MAX_FILTER_DEPTH
from bounded_retrieval.contracts.request import MAX_PATH_HOPS, MAX_QUERY_CHARS
from bounded_retrieval.graph.studio import StudioContext
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.nodes import time_limits
from bounded_retrieval.retrievers import _chroma_filter, chroma, embeddings
from bounded_retrieval.statistics import LEAST_RUNS

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.(?:py|md|jsonl|json|svg|html|ipynb|toml)\b")
ELSEWHERE = {"base_configs/ircot_codex_hotpotqa.json", "report/report.html"}
"""A file of another project, named where a page says what was read, and one that a command writes."""


def text_of(page: Path) -> str:
    """A page as Markdown; of a notebook, its cells of text."""
    if page.suffix == ".md":
        return page.read_text(encoding="utf-8")
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE):
        plain = LINK.sub(lambda link: link[0].partition("]")[0].lstrip("!["), heading)
        kept = "".join(char for char in plain.lower() if char in " -_" or unicodedata.category(char)[0] in "LN")
        slug = kept.replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


def links() -> Iterator[tuple[Path, str]]:
    """Every link of every page that does not lead out of the project."""
    for page in [*PAGES, *NOTEBOOKS]:
        for target in LINK.findall(FENCE.sub("", text_of(page))):
            if not re.match(r"[a-z]+:", target):
                yield page, target


LINKS = sorted(set(links()))


@pytest.mark.parametrize(("page", "target"), LINKS, ids=[f"{page.name}: {target}" for page, target in LINKS])
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    """To a file or folder of the project, and to a heading where it names one."""
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    assert file.exists()
    assert file.is_relative_to(ROOT)
    assert not anchor or anchor in anchors(file)


def test_every_document_is_linked_from_the_readme() -> None:
    """A reader who starts there finds each page."""
    linked = {(page.parent / target.partition("#")[0]).resolve() for page, target in LINKS if page.name == "README.md"}
    assert {page for page in (ROOT / "docs").glob("*.md") if page not in linked} == set()


def named_files() -> Iterator[tuple[str, str]]:
    """Paths of files that pages name in code font."""
    for page in PAGES:
        for span in SPAN.findall(FENCE.sub("", text_of(page))):
            for path in PATH.findall(span):
                yield page.name, path


def test_files_that_pages_name_are_there() -> None:
    """From the repository's root, from the package or from the page's own folder."""
    roots = (ROOT, ROOT / "bounded_retrieval", ROOT / "docs", ROOT / "benchmarks", ROOT / "tests")
    missing = {(page, path) for page, path in named_files() if not any((root / path).exists() for root in roots)}
    assert {each for each in missing if each[1] not in ELSEWHERE} == set()


def rows(page: str, first: str) -> dict[str, list[str]]:
    """The rows of the table whose first column has this heading, by the code in their first cell."""
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text.partition(f"\n| {first} |")[2].partition("\n\n")[0]
    found: dict[str, list[str]] = {}
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found |= dict.fromkeys(SPAN.findall(cells[0]), cells[1:])
    return found


def number(text: str) -> int | None:
    """A figure of a table; none for the word."""
    return None if text == "none" else int(text.replace(",", ""))


def ceiling(model: type[Budget | ChainLimits], name: str) -> int:
    """The largest value that a limit takes."""
    return next(int(bound.le) for bound in model.model_fields[name].metadata if hasattr(bound, "le"))


def test_the_readmes_limits_are_those_of_the_code() -> None:
    """Each limit of a run with its default and its ceiling, and no other."""
    told = {name: (number(cells[0]), number(cells[1])) for name, cells in rows("README.md", "limit").items()}
    assert told == {name: (field.default, ceiling(Budget, name)) for name, field in Budget.model_fields.items()}


def test_the_limits_of_a_chain_are_those_of_the_code() -> None:
    """The page shows the constructor with every limit and its default."""
    shown = ", ".join(f"{name}={field.default}" for name, field in ChainLimits.model_fields.items())
    page = " ".join((ROOT / "docs" / "recursive-chain.md").read_text(encoding="utf-8").split())
    assert f"`ChainLimits({shown})`" in page
    assert f"`max_hops` has a ceiling of {ceiling(ChainLimits, 'max_hops')}" in page


def test_the_fields_of_studio_are_those_of_the_served_graph() -> None:
    """Each field of the context with the default that applies there, and its bounds."""
    told = rows("docs/studio.md", "field")
    budget = Budget.model_fields
    assert {name for name in told if not name.startswith("budget.")} == set(StudioContext.model_fields) - {"budget"}
    assert {name.removeprefix("budget.") for name in told if name.startswith("budget.")} == set(budget)
    for name, field in budget.items():
        default, bounds = told[f"budget.{name}"]
        assert number(default) == field.default
        least = next(int(bound.ge) for bound in field.metadata if hasattr(bound, "ge"))
        most = ceiling(Budget, name) if field.default is None else field.default
        assert bounds == f"{least} to {most:,}".replace("4,000", "4000")
    assert float(told["threshold"][0]) == Scorecard().default_threshold


def test_the_default_threshold_is_stated_alike() -> None:
    """The README gives the one that the shipped scorecard has."""
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    stated = re.search(r"compares their share with the threshold \((\.\d+)\)", page)
    assert stated is not None
    assert float(stated[1]) == Scorecard().default_threshold


STATED = {
    "tokens that the embedding reads": ("README.md", r"reads the first (\d+) tokens of a unit", embeddings.MAX_TOKENS),
    "a resolver's time": (
        "docs/security.md",
        r"may take `eligibility_timeout_ms` \(([\d,]+)\)",
        ELIGIBILITY_TIMEOUT_MS,
    ),
    "hanging calls": ("docs/security.md", r"When (\d+) calls were given up and still hang", time_limits.MAX_HANGING),
    "rows to take from": ("docs/security.md", r"is asked once for (\d+) rows instead of 3", OVERFETCH_CAP),
    "rows of Chroma": ("docs/security.md", r"the rows that come back, up to ([\d,]+) of them", chroma.OVERFETCH_CAP),
    "values of a list": ("docs/security.md", r"lists of over (\d+) values", _chroma_filter.MAX_VALUES),
    "a planner's query": ("docs/stop-reasons.md", r"too long \(([\d,]+) characters\)", MAX_HOP_QUERY_CHARS),
    "runs for a suggestion": ("docs/recursive-chain.md", r"never from fewer than (\d+) runs", LEAST_RUNS),
    "the reader's threshold": ("docs/recursive-chain.md", r"below `threshold` \((\d+);", ExtractiveReader().threshold),
    "the longest query": ("docs/security.md", r"A query holds at most ([\d,]+) characters", MAX_QUERY_CHARS),
    "a path's hops": ("docs/security.md", r"a path (\d+) hops", MAX_PATH_HOPS),
    "a filter's levels": ("docs/security.md", r"a filter (\d+) levels", MAX_FILTER_DEPTH),
}
"""Figures in sentences: the page, the words around the figure, and the constant that it is."""


@pytest.mark.parametrize(("page", "words", "value"), STATED.values(), ids=STATED)
def test_a_figure_in_a_sentence_is_that_of_the_code(page: str, words: str, value: float) -> None:
    """A constant that changes is noticed where it is told."""
    stated = re.search(words, " ".join((ROOT / page).read_text(encoding="utf-8").split()))
    assert stated is not None
    assert number(stated[1]) == value


def test_the_shipped_collection_has_the_size_that_is_stated() -> None:
    """Units, requests and judged queries."""
    folder = ROOT / "bounded_retrieval" / "data" / "device_support"
    units = len(list(read_documents([folder / "corpus.jsonl"])))
    requests = len((folder / "queries.jsonl").read_text(encoding="utf-8").splitlines())
    stated = re.search(r"(\d+) units, (\d+) requests", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert stated is not None
    assert (int(stated[1]), int(stated[2])) == (units, requests)


def test_the_tables_of_stop_reasons_say_what_the_code_says() -> None:
    """Every value in one of the two tables, with its meaning in the same words."""
    text = (ROOT / "docs" / "stop-reasons.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE))
    assert told.keys() == {reason.value for reason in StopReason}
    for reason in StopReason:
        assert told[reason.value].lower() == reason.meaning.lower().removesuffix(".")


def test_notebooks_and_examples_are_counted_right() -> None:
    """The changelog says how many there are."""
    numbers = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    text = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split()).lower()
    examples = len(list((ROOT / "examples").glob("*.py")))
    assert f"{numbers[len(NOTEBOOKS)]} notebooks, {numbers[examples]} examples" in text
