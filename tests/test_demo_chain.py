from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from bounded_retrieval import ChainResult, ExtractiveReader, TemplatePlanner, create_recursive_retrieval
from bounded_retrieval.console import make_console
from bounded_retrieval.demo import CHAIN_QUESTION, CHAIN_TEMPLATES, SHIPPED, render_chain, run_demo

BOX = "╭"


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of the narrowest usual width."""
    monkeypatch.setenv("COLUMNS", "80")


def _end(documents: list[Document], templates: tuple[str, ...] = CHAIN_TEMPLATES, **limits: int) -> ChainResult:
    """A chain over always the same documents, as the demonstration would be given it."""
    planner, reader = TemplatePlanner(templates), ExtractiveReader(threshold=7)
    graph = create_recursive_retrieval(lambda _: documents, planner, reader).compile()
    return ChainResult.from_result(graph.invoke({"query": CHAIN_QUESTION, "request": {"limits": limits}}))


def _shown(result: ChainResult, capsys: pytest.CaptureFixture[str]) -> list[str]:
    make_console().print(render_chain(CHAIN_QUESTION, result))
    return capsys.readouterr().out.splitlines()


def _in_line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).replace("│", " ").split())


def test_the_shipped_tour_ends_with_a_path_and_a_chain(capsys: pytest.CaptureFixture[str]) -> None:
    """After the four requests come each followed relation with its source, then every hop, in eighty columns."""
    run_demo(None, [])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    boxes = [number for number, line in enumerate(lines) if line.startswith(BOX)]
    assert len(boxes) == len(SHIPPED) + 2
    path = _in_line(lines[boxes[-2] : boxes[-1]])
    assert "query HX-200 > maintained by > led by > managed by (declared relationships" in path
    assert "stopped path_followed (provisional)" in path
    assert re.findall(r"--> (\S+) \(source: (\S+)\)", path) == [
        ("team:field-repair", "contact-hx-200"),
        ("role:repair-lead", "contact-field-repair"),
        ("role:head-of-service", "contact-service"),
    ]
    chain = lines[boxes[-1] : lines.index(next(line for line in lines if line.startswith("what came of each")))]
    assert chain[1].startswith("│ RESOLVED (sufficient): ")
    assert CHAIN_QUESTION in _in_line(chain)
    assert re.findall(r"^ +\d  .*?  +(\S+) +(\d of \d) +(\w+) *$", "\n".join(chain), re.MULTILINE) == [
        ("BP-7", "4 of 4", "none"),
        ("CB-5D", "3 of 4", "none"),
        ("five", "3 of 4", "sufficient"),
    ]


def test_the_summary_holds_the_path_and_the_chain(capsys: pytest.CaptureFixture[str]) -> None:
    """Both have a row beside the four requests: why they ended, their searches, and what is missing."""
    run_demo(None, [])
    summary = capsys.readouterr().out.partition("what came of each request")[2]
    ends = re.findall(r"  ([a-z_]+) +(\d+ \(\d dense\)) +(\S+) +\d+ *$", summary, re.MULTILINE)
    assert len(ends) == len(SHIPPED) + 2
    assert ends[-2:] == [("path_followed", "0 (0 dense)", "-"), ("sufficient", "4 (1 dense)", "-")]


@pytest.mark.parametrize("queries", [[], ["How often is the filter changed?"]])
def test_a_users_folder_is_asked_without_path_and_chain(
    queries: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is known of the shipped collection is not asked of another."""
    (tmp_path / "pump.md").write_text("# Pump\n\nThe filter is changed once a year.\n", encoding="utf-8")
    run_demo(tmp_path, queries)
    out = capsys.readouterr().out
    assert "The filter is changed once a year." in out
    assert all(word not in out for word in ("RESOLVED", "KR-7B", "HX-200", "path_"))


def test_the_users_own_queries_replace_the_tour(capsys: pytest.CaptureFixture[str]) -> None:
    """Over the shipped collection too, own requests are the only ones made."""
    run_demo(None, ["How do I pair the HX-210 probe?"])
    out = capsys.readouterr().out
    assert out.count(BOX) == 1
    assert "RESOLVED" not in out


def test_a_chain_that_ran_out_says_so_first(capsys: pytest.CaptureFixture[str]) -> None:
    """The outcome is read from the result: the first line names the rule and what is open, the row the rule."""
    documents = [Document("The KR-7B has the BP-7 battery pack.", id="a", metadata={"title": "KR-7B"})]
    lines = _shown(_end(documents, max_hops=1), capsys)
    assert lines[1].startswith("│ UNRESOLVED (depth_cap): still open: ")
    assert re.search(r"BP-7 +1 of 1 +depth_cap", "\n".join(lines))


def test_a_hop_without_a_sub_answer_has_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing found is shown as nothing, and the query as what stays open."""
    lines = _shown(_end([]), capsys)
    assert lines[1].startswith("│ UNRESOLVED (no_new_evidence): still open: Which battery pack")
    assert re.search(r" - +0 of 0 +no_new_evidence", "\n".join(lines))


def test_what_a_chain_found_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters and markup in sub-answers and queries are shown as text."""

    def read(_: str, __: Any) -> str:
        return "BP\x1b[2J [red]7[/red] :tada:"

    documents = [Document("text", id="a")]
    graph = create_recursive_retrieval(lambda _: documents, TemplatePlanner(["Which?", "And #1?"]), read).compile()
    lines = _shown(ChainResult.from_result(graph.invoke({"query": "Which?"})), capsys)
    assert "\x1b" not in "".join(lines)
    assert "[red]7[/red] :tada:" in _in_line(lines)


def test_notes_of_a_chain_are_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """A failed search is noted as in a packet."""

    def fail(_: str) -> list[Document]:
        raise OSError

    graph = create_recursive_retrieval(fail, TemplatePlanner(CHAIN_TEMPLATES)).compile()
    lines = _shown(ChainResult.from_result(graph.invoke({"query": CHAIN_QUESTION})), capsys)
    assert "note a hop's search failed" in _in_line(lines)


def test_a_chain_without_a_hop_has_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    """A planner that names nothing gives an unresolved chain and an empty trail, not a crash."""
    graph = create_recursive_retrieval(lambda _: [], lambda *_: None).compile()
    lines = _shown(ChainResult.from_result(graph.invoke({"query": CHAIN_QUESTION})), capsys)
    assert lines[1].startswith("│ UNRESOLVED (no_next_query): ")
    assert "no hop was made" in _in_line(lines)
