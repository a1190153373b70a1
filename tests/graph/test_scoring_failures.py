"""Scores that cannot be had: ranks decide then, the packet says so, the diagnostics are told, and nothing leaks."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from inventory import QUERY, Outcome, documents
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver
from scored import DENSE, LEXICAL, Scoring, dense, fused, lexical

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Candidate, Unit
from bounded_retrieval.contracts.trace import EvidencePacked
from bounded_retrieval.errors import AsyncOnlyError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.fusion import ReciprocalRankFusion, ScoreFusion
from bounded_retrieval.policies.replay import replay
from bounded_retrieval.testing import FixedClock

RAW = "raw-error-7f3"
MODES = ["values", "updates", "custom", "checkpoints", "tasks", "debug"]

both_ways = pytest.mark.parametrize("awaited", [False, True], ids=["invoke", "ainvoke"])


class Answering(Scoring):
    """Scores by a function of what it would have answered."""

    def __init__(self, channel: str, scores: dict[str, float], answer: Callable[[dict[str, float]], Any]) -> None:
        super().__init__(channel, scores)
        self.answer = answer

    def score(self, query: str, unit_ids: Any, *narrowed: Any) -> Any:
        return self.answer(super().score(query, unit_ids, *narrowed))


def raising(error: BaseException) -> Callable[[Any], Any]:
    """An answer that is an error."""

    def answer(_: Any) -> Any:
        raise error

    return answer


def with_value(value: Any) -> Callable[[dict[str, float]], Any]:
    """An answer whose every score is this."""
    return lambda found: dict.fromkeys(found, value)


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "an error": raising(ConnectionError(RAW)),
    "a timeout": raising(TimeoutError(RAW)),
    "StopIteration": raising(StopIteration(RAW)),
    "nothing": lambda _: None,
    "a list": lambda found: list(found.values()),
    "pairs": lambda found: list(found.items()),
    "a number": lambda _: 0.5,
    "not a number": with_value(float("nan")),
    "infinity": with_value(float("-inf")),
    "text": with_value(RAW),
    "no value": with_value(None),
    "a list for each": with_value([0.5]),
    "too large a number": with_value(10**400),
}


def run(*searchers: Any, awaited: bool = False, **options: Any) -> Outcome:
    """One run with score fusion over both channels, through ``invoke`` or ``ainvoke``."""
    settings: dict[str, Any] = {"policy": "always_continue", "fusion": ScoreFusion(), "first_hop_rows": 3}
    graph = create_bounded_retrieval(*searchers, **(settings | options)).compile()
    given: Any = {"query": QUERY}
    return Outcome(asyncio.run(graph.ainvoke(given)) if awaited else graph.invoke(given))


def fused_by(outcome: Outcome) -> str:
    """The fusion that made a run's ranking."""
    last = outcome.trace.events[-1]
    assert isinstance(last, EvidencePacked)
    return last.fused_by


def check_ranked(outcome: Outcome, why_not: str, scored_units: int) -> None:
    """The run ended as one with reciprocal ranks from the start, except for what says that it fell back."""
    by_rank = fused(lexical(), dense(), fusion=ReciprocalRankFusion())
    assert outcome.ids == by_rank.ids
    assert [item.contributions for item in outcome.packet.items] == [i.contributions for i in by_rank.packet.items]
    assert (outcome.reason, outcome.packet.resolution) == (by_rank.reason, by_rank.packet.resolution)
    assert outcome.notes == ("fused_by_rank",)
    assert outcome.usage == by_rank.usage.model_copy(update={"scored_units": scored_units})
    assert outcome.trace.scored is not None
    assert (outcome.trace.scored.why_not, outcome.trace.scored.scores) == (why_not, {})
    assert fused_by(outcome) == "rrf"


@both_ways
@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_that_is_no_scores_leaves_it_to_the_ranks(case: str, awaited: bool) -> None:
    """Whatever a searcher raises or returns in place of finite numbers, the run ends in the packet of the ranks."""
    records: list[dict[str, Any]] = []
    meanings = Answering("dense", DENSE, ANSWERS[case])
    outcome = run(lexical(), meanings, awaited=awaited, diagnostics=records.append)
    check_ranked(outcome, "failed", 2)
    (record,) = records
    assert (record["event"], record["channel"]) == ("score_failed", "dense")
    assert (record["query_id"], isinstance(record["error"], Exception)) == (outcome.packet.query_id, True)


@both_ways
def test_a_failure_of_the_first_channel_ends_the_scoring(awaited: bool) -> None:
    """The dense store is not read for scores that would not be used, and only what was asked for is counted."""
    meanings = dense()
    records: list[dict[str, Any]] = []
    words = Answering("lexical", LEXICAL, raising(ConnectionError(RAW)))
    outcome = run(words, meanings, awaited=awaited, diagnostics=records.append)
    check_ranked(outcome, "failed", 1)
    assert meanings.asked == []
    assert [record["channel"] for record in records] == ["lexical"]


def test_units_that_were_not_asked_about_are_passed_over() -> None:
    """An answer with more than was asked for is read for what was, and a number of another kind is a number."""
    meanings = Answering("dense", DENSE, lambda found: found | {"zz": float("nan"), "b": 77.0})
    outcome = run(lexical(), meanings)
    assert outcome.packet == fused(lexical(), dense()).packet
    assert outcome.trace.scored == fused(lexical(), dense()).trace.scored


@both_ways
def test_a_fallback_is_replayed(awaited: bool) -> None:
    """The trace says that ranks decided, and the packet is made again so."""
    words, meanings = lexical(), Answering("dense", DENSE, raising(ConnectionError(RAW)))
    outcome = run(words, meanings, awaited=awaited)
    units = {unit_id: Unit.from_document(each) for unit_id, each in words.held.items()}
    assert replay(outcome.trace, units) == outcome.packet


@pytest.mark.parametrize("case", ["an error", "text", "not a number"])
def test_a_failure_leaks_nothing(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """No raw error and no raw answer stands in any stream mode, checkpoint, packet, trace or log line."""
    meanings = Answering("dense", DENSE, ANSWERS[case])
    builder = create_bounded_retrieval(lexical(), meanings, policy="always_continue", fusion=ScoreFusion())
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}
    with caplog.at_level(logging.DEBUG):
        chunks = list(graph.stream({"query": QUERY}, config, stream_mode=MODES))
    text = repr([chunks, list(graph.get_state_history(config)), caplog.text])
    assert "fused_by_rank" in text
    assert RAW not in text
    assert re.search(r"\bnan\b", text) is None


# Only awaited


class Awaited(Scoring):
    """A searcher whose scores can only be awaited."""

    score = None  # type: ignore[assignment]

    async def ascore(self, query: str, unit_ids: Any, *narrowed: Any) -> Any:
        await asyncio.sleep(0)
        return Scoring.score(self, query, unit_ids, *narrowed)


class Coroutine(Scoring):
    """A searcher whose ``score`` is a coroutine function."""

    async def score(self, query: str, unit_ids: Any, *narrowed: Any) -> Any:
        await asyncio.sleep(0)
        return super().score(query, unit_ids, *narrowed)


class Later(Scoring):
    """A searcher whose ``score`` looks synchronous and returns an awaitable."""

    def score(self, query: str, unit_ids: Any, *narrowed: Any) -> Any:
        async def later() -> Any:
            return found

        found = super().score(query, unit_ids, *narrowed)
        return later()


only_awaited = pytest.mark.parametrize("kind", [Awaited, Coroutine, Later])


@only_awaited
def test_scores_that_can_only_be_awaited_are_had_under_ainvoke(kind: Any) -> None:
    """Awaited, they are scores like any others."""
    outcome = run(kind("lexical", LEXICAL), kind("dense", DENSE), awaited=True)
    assert outcome.packet == fused(lexical(), dense()).packet


@only_awaited
def test_scores_that_can_only_be_awaited_are_a_failure_under_invoke(kind: Any) -> None:
    """The run can do without them, so it ends in a packet and not in an error; the diagnostics say what to do."""
    records: list[dict[str, Any]] = []
    outcome = run(lexical(), kind("dense", DENSE), diagnostics=records.append)
    check_ranked(outcome, "failed", 2)
    assert isinstance(records[0]["error"], AsyncOnlyError)
    assert "use ainvoke" in str(records[0]["error"])


def test_a_second_method_for_awaiting_is_used_where_it_is_there() -> None:
    """``ascore`` beside ``score`` is awaited under ainvoke and left alone under invoke."""

    class Both(Scoring):
        awaited = 0

        async def ascore(self, *args: Any) -> Any:
            self.awaited += 1
            return super().score(*args)

    for way, expected in ((True, 1), (False, 0)):
        meanings = Both("dense", DENSE)
        assert run(lexical(), meanings, awaited=way).packet == fused(lexical(), dense()).packet
        assert meanings.awaited == expected


def test_a_task_that_is_cancelled_while_scores_are_awaited_is_cancelled() -> None:
    """Cancellation is no failed score: it passes through."""
    started: list[bool] = []

    class Hanging(Scoring):
        async def score(self, *_: Any) -> Any:
            started.append(True)
            await asyncio.Event().wait()

    async def cut() -> None:
        builder = create_bounded_retrieval(
            lexical(), Hanging("dense", DENSE), policy="always_continue", fusion=ScoreFusion()
        )
        task = asyncio.create_task(builder.compile().ainvoke({"query": QUERY}))
        while not started:  # noqa: ASYNC110 - the graph gives no event to wait for
            await asyncio.sleep(0.001)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cut())


# Ended first


@both_ways
@pytest.mark.parametrize(("polls", "scored_units"), [(4, 0), (5, 1)])
def test_a_run_that_is_cancelled_before_the_scores_does_without(awaited: bool, polls: int, scored_units: int) -> None:
    """What was found is packed by rank; the stop reason is the one decided before."""
    asked = iter(range(100))
    outcome = run(lexical(), dense(), awaited=awaited, cancelled=lambda _: next(asked) >= polls)
    check_ranked(outcome, "cancelled", scored_units)


@both_ways
@pytest.mark.parametrize("late", ["before", "between"])
def test_a_deadline_that_passes_before_the_scores_leaves_it_to_the_ranks(awaited: bool, late: str) -> None:
    """A clock that runs out while units are read again, or between the channels, ends the scoring and not the packet."""
    clock = FixedClock()

    class Slow(Scoring):
        def fetch(self, unit_ids: Any) -> Any:
            clock.advance(1.0 if late == "before" else 0.0)
            return super().fetch(unit_ids)

        def score(self, *args: Any) -> Any:
            clock.advance(1.0)
            return super().score(*args)

    words, meanings = Slow("lexical", LEXICAL), dense()
    outcome = run(words, meanings, awaited=awaited, clock=clock, budget=Budget(deadline_ms=900))
    assert (outcome.reason, outcome.notes, fused_by(outcome)) == (
        "resource_budget_exhausted",
        ("fused_by_rank",),
        "rrf",
    )
    assert outcome.trace.scored is not None
    assert outcome.trace.scored.why_not == "deadline"
    assert meanings.asked == []
    assert outcome.ids == fused(lexical(), dense(), fusion=ReciprocalRankFusion()).ids


@pytest.mark.parametrize("reason", ["cancelled", "deadline_exceeded"])
def test_a_run_that_ended_after_the_dense_search_looks_up_nothing(reason: str) -> None:
    """A run that was ended by the time the dense search came back does not go on with look-ups."""
    clock, polls = FixedClock(), iter(range(100))

    class Slow(Scoring):
        def search(self, *args: Any) -> Any:
            clock.advance(0.0 if reason == "cancelled" else 1.0)
            return super().search(*args)

    words, meanings = lexical(), Slow("dense", DENSE)
    cancelled = (lambda _: next(polls) >= 3) if reason == "cancelled" else None
    outcome = run(words, meanings, clock=clock, cancelled=cancelled, budget=Budget(deadline_ms=900))
    assert (outcome.reason, words.asked, meanings.asked) == (reason, [], [])
    assert "fused_by_rank" in outcome.notes


# Searchers that give none


class Words(BaseRetriever):
    """A LangChain retriever, which has no scores."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:  # noqa: ARG002
        return documents(a="The battery.", b="Its cover.")


def test_a_plain_vector_store_leaves_it_to_the_ranks() -> None:
    """A store may return distances and scores nothing on demand, so a fusion of scores, asked for, falls back."""
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents(documents(c="Charging.", d="The battery again."))
    records: list[Any] = []
    words = lexical()
    outcome = run(words, store, diagnostics=records.append)
    assert (outcome.notes, fused_by(outcome), outcome.usage.scored_units) == (("fused_by_rank",), "rrf", 0)
    assert outcome.trace.scored is not None
    assert outcome.trace.scored.why_not == "no_scores"
    assert (words.asked, records) == ([], [])


class Mute:
    """A searcher without ``score`` over one that has it."""

    def __init__(self, inner: Scoring) -> None:
        self.search, self.fetch, self.asked = inner.search, inner.fetch, inner.asked


@pytest.mark.parametrize("channel", ["lexical", "dense"])
def test_a_searcher_that_cannot_score_leaves_it_to_the_ranks(channel: str) -> None:
    """One channel without ``score`` is enough; the other one is not asked then, nor is anything counted."""
    searchers = {"lexical": lexical(), "dense": dense()}
    searchers[channel] = Mute(searchers[channel])
    check_ranked(run(*searchers.values()), "no_scores", 0)
    assert [searcher.asked for searcher in searchers.values()] == [[], []]


def test_rows_without_scores_leave_it_to_the_ranks() -> None:
    """Scores on demand are of no use beside rows that have none, or whose score is no number."""

    class Silent(Scoring):
        def search(self, *args: Any) -> list[Candidate]:
            return [row.model_copy(update={"score": None}) for row in super().search(*args)]

    meanings = Silent("dense", DENSE)
    outcome = run(lexical(), meanings)
    assert (outcome.notes, fused_by(outcome), meanings.asked) == (("fused_by_rank",), "rrf", [])


def test_a_retriever_beside_a_searcher_leaves_it_to_the_ranks() -> None:
    """A LangChain retriever has no scores either."""
    outcome = run(Words(), dense())
    assert ("fused_by_rank" in outcome.notes, fused_by(outcome)) == (True, "rrf")
