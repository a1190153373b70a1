"""How scores, contributions, weights and factors are shown: terminal, notebook, statistics."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from rich.console import Console

from bounded_retrieval.console import render_packet, render_trace
from bounded_retrieval.contracts.assessment import QueryWeights
from bounded_retrieval.contracts.budget import Budget, Usage
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.html import MAX_TERM_ROWS, trace_to_html
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.trace import DecisionTrace, Scored, UnitsScored
from bounded_retrieval.contracts.wording import NO_SCORES, describe_cost, describe_event, describe_weight
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.statistics import read_runs

DOCUMENTS = [
    Document(id="<b>pump</b>", page_content="A cold pump."),
    Document(id="seal", page_content="The seal of it."),
]


class Words:
    """A lexical searcher that returns the pump, weighs and scores."""

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002
        return [Candidate(unit_id=DOCUMENTS[0].id, channel="lexical", rank=1, score=2.0, unit=DOCUMENTS[0])]

    def score(self, query: str, unit_ids: Any) -> Any:  # noqa: ARG002
        return dict.fromkeys(unit_ids, 0.5)

    def weigh(self, query: str, words: Any) -> Any:  # noqa: ARG002
        return QueryWeights(terms=dict.fromkeys(words, 1.25), holding={"pump": 1, "cold": 1200}, attainable=4.0)


class Meanings:
    """A dense searcher that returns the seal, and scores or fails to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002
        return [Candidate(unit_id="seal", channel="dense", rank=1, score=0.75, unit=DOCUMENTS[1])]

    def score(self, query: str, unit_ids: Any) -> Any:  # noqa: ARG002
        if self.fails:
            raise ConnectionError("down")
        return dict.fromkeys(unit_ids, 0.25)


def run(*, fails: bool = False, **options: Any) -> dict[str, Any]:
    """One run that goes on, at the defaults."""
    graph = create_bounded_retrieval(Words(), Meanings(fails=fails), policy="always_continue", **options).compile()
    result: dict[str, Any] = graph.invoke({"query": "cold pump seals"})
    return result


def printed(what: Any) -> str:
    """What a wide terminal shows, as one line."""
    console = Console(file=io.StringIO(), width=2_000)
    console.print(what)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def tables(markup: str) -> dict[str, list[list[str]]]:
    """Cells of each captioned table, row by row, without markup."""

    def plain(cell: str) -> str:
        return re.sub(r"<.*?>", "", re.sub(r"<br>", " ", cell)).strip()

    found = {}
    for table in re.findall(r"<table>.*?</table>", markup, re.DOTALL):
        caption = plain("".join(re.findall(r"<caption>(.*?)</caption>", table, re.DOTALL)))
        rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
        found[caption] = [[plain(cell) for cell in row] for row in cells]
    return found


def test_a_terminal_shows_what_each_channel_added() -> None:
    """Beside rank and score stands the fused score as the sum of its parts, and the cost names the look-ups."""
    text = printed(render_packet("q", EvidencePacket.from_result(run())))
    assert "dense rank 1 (0.750) | fused 0.4825 = lexical 0.0425 + dense 0.4400" in text
    assert "lexical rank 1 (2.000) | fused 0.1700 = lexical 0.1700 + dense 0.0000" in text
    assert "2 scores looked up" in text
    assert "scores" not in describe_cost(Budget(), Usage(calls=1))


def test_a_terminal_shows_the_scores_and_the_weights() -> None:
    """The trace names what was looked up, the weight of each term, the points of each factor, and what ranked."""
    text = printed(render_trace(DecisionTrace.from_result(run())))
    for expected in (
        "scores looked up, lexical: seal 0.500; dense: <b>pump</b> 0.250; highest possible lexical score: 4.000",
        "weights: cold 1.250 (in 1,200 units), pump 1.250 (in 1 unit), seals 1.250",
        "1 of 2 neighbouring pairs within 3 words (cold pump), 50% by weight:",
        "ranked by score_fusion; packed seal, <b>pump</b>",
    ):
        assert expected in text


def test_a_fallback_says_why() -> None:
    """The note, the event and the ranking say that ranks decided, and why."""
    result = run(fails=True)
    packet, trace = (
        printed(each)
        for each in (
            render_packet("q", EvidencePacket.from_result(result)),
            render_trace(DecisionTrace.from_result(result)),
        )
    )
    assert "not every score for the fusion could be had, or was a finite number: ranks decided the order" in packet
    assert "no scores (a searcher failed to score them), so ranks decide" in trace
    assert "ranked by rrf; packed" in trace


@pytest.mark.parametrize("options", [{"policy": "fixed_lexical"}, {"policy": "fixed_dense"}])
def test_a_single_list_needs_no_word_on_its_order(options: Any) -> None:
    """Where one channel was asked, its own order stands, and no fusion is named in the packing."""
    graph = create_bounded_retrieval(Words(), Meanings(), **options).compile()
    trace = DecisionTrace.from_result(graph.invoke({"query": "pump"}))
    assert "ranked by" not in describe_event(trace.events[-1])
    assert describe_event(trace.events[-1]).startswith("packed ")


def test_every_reason_for_having_no_scores_has_words() -> None:
    """Each reason of the event's description is explained, and an unknown one is shown as it is."""
    for reason, words in [*NO_SCORES.items(), ("other", "other")]:
        event = UnitsScored(scores={}, why_not=reason, usage=Usage())
        assert describe_event(event) == f"no scores ({words}), so ranks decide"
    assert "nothing looked up" in describe_event(UnitsScored(scores={}, usage=Usage()))
    assert describe_event(UnitsScored(scores={"dense": ()}, usage=Usage())) == "scores looked up, dense: nothing"


def test_a_weight_is_shown_with_how_many_units_hold_its_word() -> None:
    """Where the count is not known it is left out, and a word without a weight shows nothing."""
    weights = QueryWeights(terms={"a": 2.0, "b": 0.5}, holding={"a": 0}, attainable=1.0)
    assert [describe_weight(term, weights) for term in "abc"] == ["2.000 (in 0 units)", "0.500", ""]


def test_a_notebook_shows_what_each_channel_added() -> None:
    """Each channel's cell has the contribution too, also where the channel did not return the unit."""
    packet = EvidencePacket.from_result(run())
    found = tables(packet._repr_html_())
    rows = found["evidence, best first"]
    assert rows[1][2:5] == ["not returned adds 0.0425", "rank 1 score 0.750 adds 0.4400", "0.4825"]
    assert ["scores looked up", "2", "\u2013", "\u2013", "observed units, for the fusion; no rows"] in found[""]


def test_a_notebook_shows_factors_weights_and_scores() -> None:
    """A decision has a table of its factors and each term's weight; the scores have one of their own, all escaped."""
    trace = DecisionTrace.from_result(run())
    markup = trace._repr_html_()
    found = tables(markup)
    factors = trace.decisions[0].assessment.factors  # type: ignore[union-attr]
    assert found["added up by scorecard"] == [
        ["factor", "value", "points", "says"],
        *([each.name, f"{each.value:.3f}", f"{each.points:g}", each.text] for each in factors),
    ]
    matched = found["matched: \u2713 the unit holds it, \u2013 it does not"]
    assert [row[:3] for row in matched[:4]] == [
        ["looked for", "kind", "weight"],
        ["cold", "term", "1.250 (in 1,200 units)"],
        ["pump", "term", "1.250 (in 1 unit)"],
        ["seals", "term", "1.250"],
    ]
    assert len({len(row) for row in matched}) == 1
    assert found["scores looked up at step 6"][1:] == [
        ["lexical", "seal", "0.500"],
        ["dense", "&lt;b&gt;pump&lt;/b&gt;", "0.250"],
    ]
    assert "<b>pump</b>" not in markup


def test_a_notebook_says_why_there_are_no_scores() -> None:
    """A failed look-up has its reason, code and words, in place of the table."""
    found = tables(DecisionTrace.from_result(run(fails=True))._repr_html_())
    assert found["scores looked up at step 6"] == [
        ["no scores, so ranks decide", "failed: a searcher failed to score them"]
    ]


def test_a_long_table_of_scores_is_cut_and_says_so() -> None:
    """A run of hundreds of rows gives a table of bounded size."""
    scores = tuple(Scored(unit_id=f"u{number}", score=0.5) for number in range(MAX_TERM_ROWS + 7))
    markup = trace_to_html(DecisionTrace(events=(UnitsScored(scores={"dense": scores}, usage=Usage()),)))
    assert len(tables(markup)["scores looked up at step 1"]) == MAX_TERM_ROWS + 1
    assert "7 more scores not shown" in markup


def test_statistics_read_runs_with_scores(tmp_path: Path) -> None:
    """A trace or an output with looked-up scores is counted like any other, and its note with it."""
    results = [{**run(fails=fails), "documents": []} for fails in (False, True)]
    path = tmp_path / "runs.jsonl"
    values = [results[0], results[1]["trace"], results[1]["packet"]]
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values), encoding="utf-8")
    runs = list(read_runs(path))
    assert [(run.calls, run.dense_calls, run.hops) for run in runs] == [(2, 1, 2)] * 3
    assert ["fused_by_rank" in run.notes for run in runs] == [False, True, True]
