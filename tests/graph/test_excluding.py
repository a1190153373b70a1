"""The second search asks for units that are not there yet, where the fusion learns nothing from seeing them twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from inventory import QUERY, Outcome
from scored import DENSE, LEXICAL, Scoring, fused, lexical
from scored import dense as plain_dense

from bounded_retrieval import MetadataView, ReciprocalRankFusion, ScoreFusion, create_bounded_retrieval
from bounded_retrieval.contracts.candidate import Candidate, leave_out


class Excluding(Scoring):
    """A scoring searcher that can leave units out, and remembers which and under what filter."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.left_out: list[tuple[int, list[str], Any]] = []

    def search_excluding(self, query: str, k: int, unit_ids: Sequence[str], filter: Any = None) -> list[Candidate]:
        self.left_out.append((k, list(unit_ids), filter))
        return leave_out(super().search(query, len(DENSE), filter), unit_ids, k)


class Awaited(Excluding):
    """The same, asynchronous as well."""

    async def asearch_excluding(self, query: str, k: int, unit_ids: Sequence[str], filter: Any = None) -> Any:
        await asyncio.sleep(0)
        return self.search_excluding(query, k, unit_ids, filter)


class Wordless(Scoring):
    """A lexical searcher that cannot score."""

    score = None  # type: ignore[assignment]  # a method that is not there


class Broken(Excluding):
    """One whose second kind of search fails."""

    def search_excluding(self, *_: Any) -> Any:
        raise ConnectionError("down")


def dense(kind: type[Excluding] = Excluding) -> Excluding:
    """The dense searcher over the shared scores: e, c, b, a."""
    return kind("dense", DENSE)


def test_no_row_is_spent_on_a_unit_that_is_there() -> None:
    """Lexical a, b, c; of dense e, c, b, a only e is new, and the trace says how many were left out."""
    meanings = dense()
    outcome = fused(lexical(), meanings)
    assert meanings.left_out == [(3, ["a", "b", "c"], None)]
    _, second = outcome.trace.searches
    assert (second.requested, second.excluded, second.new_units) == (3, 3, 1)
    assert [(row.unit_id, row.rank) for row in second.returned] == [("e", 1)]
    assert outcome.usage.rows == 4


def test_the_scores_are_those_of_a_plain_search() -> None:
    """Of units that both ways return, every contribution is the same."""
    there = fused(lexical(), plain_dense()).packet.items
    left_out = fused(lexical(), dense()).packet.items
    assert {item.unit_id: item.contributions for item in left_out} == {
        item.unit_id: item.contributions for item in there
    }


@pytest.mark.parametrize("kind", [Excluding, Awaited])
def test_asynchronous_runs_do_the_same(kind: type[Excluding]) -> None:
    """In a thread, or by the method of that name with an a before it."""
    graph = create_bounded_retrieval(lexical(), dense(kind), policy="always_continue", first_hop_rows=3).compile()
    awaited = Outcome(asyncio.run(graph.ainvoke({"query": QUERY})))
    assert awaited.trace == Outcome(graph.invoke({"query": QUERY})).trace


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (lexical(), {"fusion": ReciprocalRankFusion()}),
        (Wordless("lexical", LEXICAL), {}),
        (lexical(), {"policy": "fixed_dense"}),
    ],
    ids=["ranks", "lexical scores nothing", "first search"],
)
def test_where_ranks_decide_or_nothing_is_there_a_search_is_a_search(words: Any, options: dict[str, Any]) -> None:
    """A unit that both channels return counts for more by its ranks, so it may come back."""
    meanings = dense()
    outcome = fused(words, meanings, **options)
    assert (meanings.left_out, meanings.searches) == ([], 1)
    assert [search.excluded for search in outcome.trace.searches] == [0] * len(outcome.trace.searches)


def test_a_searcher_that_holds_nothing_else_brings_no_new_evidence() -> None:
    """The answer is empty, the call stays charged, and the run says so."""
    meanings = dense()
    del meanings.held["e"]
    outcome = fused(lexical(), meanings)
    assert (outcome.reason, outcome.usage.calls, outcome.usage.rows) == ("no_new_evidence", 2, 3)


def test_a_failing_one_is_a_failed_search() -> None:
    """It is charged, not made again in another way, and what the lexical search found is packed."""
    meanings = dense(Broken)
    outcome = fused(lexical(), meanings)
    assert (outcome.usage.calls, meanings.searches, outcome.ids) == (2, 0, ["a", "b", "c"])
    assert "channel_failed" in outcome.notes


def test_a_view_narrows_it_like_any_search() -> None:
    """The caller's filter goes along, and rows of units that may not be seen do not count."""
    words, meanings = lexical(), dense()
    for searcher in (words, meanings):
        for unit_id, unit in searcher.held.items():
            unit.metadata["tenant"] = "b" if unit_id == "e" else "a"
    view = MetadataView(groups=None, valid_from=None, valid_until=None)
    settings: dict[str, Any] = {"policy": "always_continue", "fusion": ScoreFusion(), "first_hop_rows": 4}
    graph = create_bounded_retrieval(words, meanings, units=words, eligibility=view, **settings).compile()
    outcome = Outcome(graph.invoke({"query": QUERY}, context={"tenant": "a"}))
    (asked,) = meanings.left_out
    assert asked[1:] == (["a", "b", "c", "d"], {"$and": [{"tenant": {"$in": ["a"]}}]})
    assert '"e"' not in outcome.trace.to_json()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (lambda searcher, query, k, _ids, _filter: Scoring.search(searcher, query, k), ("answered", 6, 1, 0)),
        (lambda searcher, query, _k, _ids, _filter: Scoring.search(searcher, query, 9), ("answered", 6, 1, 1)),
        (lambda *_: None, ("failed", 3, 0, 0)),
        (lambda *_: "rows", ("failed", 3, 0, 0)),
        (lambda _searcher, _query, _k: [], ("failed", 3, 0, 0)),
    ],
    ids=["what was to be left out", "too many", "nothing", "no rows", "another signature"],
)
def test_one_that_does_not_do_as_asked_breaks_no_limit(answer: Any, found: tuple[Any, ...]) -> None:
    """Rows are cut and counted as ever, a unit that was there is not new again, and what is no answer has failed."""
    kind = type("Odd", (Excluding,), {"search_excluding": answer})
    outcome = fused(lexical(), dense(kind))
    second = outcome.trace.searches[1]
    assert (second.outcome, outcome.usage.rows, second.new_units, second.cut) == found
    assert outcome.ids == (["c", "e", "a", "b"] if second.new_units else ["a", "b", "c"])
    assert (outcome.usage.calls, outcome.usage.dense_calls) == (2, 1)
