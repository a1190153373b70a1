"""The same graph under ``invoke`` and ``ainvoke``, and what only one of them can do."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from inventory import HITS, PARTS, QUERY, Outcome, dense, lexical
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import NodeCancelledError
from langgraph.types import Command, interrupt

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment
from bounded_retrieval.errors import AsyncOnlyError, BoundedRetrievalError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.coverage import TermCoverage
from bounded_retrieval.testing import FailingSearcher, ScriptedSearcher

Setting: contextvars.ContextVar[str] = contextvars.ContextVar("setting", default="unset")


class AsyncOnly:
    """Has ``asearch`` and ``afetch`` and nothing synchronous."""

    def __init__(self, found: ScriptedSearcher) -> None:
        self.inner = found

    async def asearch(self, query: str, k: int, filter: Any = None) -> Any:
        await asyncio.sleep(0)
        return self.inner.search(query, k, filter)

    async def afetch(self, unit_ids: Any) -> Any:
        return self.inner.fetch(unit_ids)


class AsyncDef:
    """Has ``search`` and ``fetch``, both ``async def``."""

    def __init__(self, found: ScriptedSearcher) -> None:
        self.inner = found

    async def search(self, query: str, k: int, filter: Any = None) -> Any:
        return self.inner.search(query, k, filter)

    async def fetch(self, unit_ids: Any) -> Any:
        return self.inner.fetch(unit_ids)


class Awaitable(AsyncDef):
    """A plain function that returns something to be awaited."""

    def search(self, query: str, k: int, filter: Any = None) -> Any:
        return super().search(query, k, filter)


class AsyncAssessor(TermCoverage):
    is_pure = False

    async def assess(self, given: AssessmentInput) -> CoverageAssessment:
        return super().assess(given)


def build(*searchers: Any, **options: Any) -> Any:
    """A compiled graph."""
    return create_bounded_retrieval(*searchers, **options).compile()


def run_async(graph: Any, **extra: Any) -> Outcome:
    """The outcome of one ``ainvoke``."""
    return Outcome(asyncio.run(graph.ainvoke({"query": QUERY}, **extra)))


@pytest.mark.parametrize("kind", [AsyncOnly, AsyncDef, Awaitable])
def test_async_only_searchers_work_under_ainvoke_alone(kind: Any) -> None:
    """``ainvoke`` gives the packet a synchronous searcher gives; ``invoke`` names the object and says to use ``ainvoke``."""
    graph = build(kind(lexical()), kind(dense()))
    assert run_async(graph).packet == run_async(build(lexical(), dense())).packet
    with pytest.raises(AsyncOnlyError, match=rf"{kind.__name__}\.search: .*use ainvoke") as caught:
        graph.invoke({"query": QUERY})
    assert isinstance(caught.value, BoundedRetrievalError)


def test_an_async_dense_searcher_is_met_only_when_it_is_needed() -> None:
    """Under ``invoke`` an async-only dense searcher does no harm to a run that stops before it."""
    assert Outcome(build(lexical(HITS), AsyncOnly(dense())).invoke({"query": QUERY})).ids == ["hit"]


def test_async_assessors_and_unit_sources_work_under_ainvoke_alone() -> None:
    """Assessor and unit source may be async; under ``invoke`` they give the same clear error."""
    assert run_async(build(lexical(HITS), assessor=AsyncAssessor())).reason == "proxy_sufficient"
    assert run_async(build(lexical(HITS), units=AsyncDef(lexical(HITS)))).ids == ["hit"]
    with pytest.raises(AsyncOnlyError, match=r"AsyncAssessor\.assess"):
        build(lexical(HITS), assessor=AsyncAssessor()).invoke({"query": QUERY})
    with pytest.raises(AsyncOnlyError, match=r"AsyncDef\.fetch"):
        build(lexical(HITS), units=AsyncDef(lexical(HITS))).invoke({"query": QUERY})


def test_sync_and_async_give_the_same_packet_and_trace() -> None:
    """One decision code serves both manners."""
    graph = build(lexical(), FailingSearcher())
    there, here = run_async(graph), Outcome(graph.invoke({"query": QUERY}))
    assert (there.packet, there.trace.to_json()) == (here.packet, here.trace.to_json())


class Observant(ScriptedSearcher):
    """Notes the thread and the context variable it was searched under."""

    def search(self, query: str, k: int, filter: Any = None) -> Any:
        self.seen = (threading.current_thread(), Setting.get())
        return super().search(query, k, filter)


def test_blocking_searchers_leave_the_event_loop_free() -> None:
    """Under ``ainvoke`` a synchronous searcher runs in another thread, with the caller's context variables."""
    words = Observant(HITS, "lexical")
    Setting.set("mine")
    run_async(build(words))
    assert words.seen[0] is not threading.current_thread()
    assert words.seen[1] == "mine"


class Careless(ScriptedSearcher):
    """Calls ``next`` on nothing, as careless code does."""

    def search(self, query: str, k: int, filter: Any = None) -> Any:  # noqa: ARG002
        return [next(iter(()))]


def test_a_stray_stop_iteration_is_a_failed_call() -> None:
    """``StopIteration`` from a searcher neither ends a node early nor leaves ``ainvoke`` waiting for ever."""
    graph = build(Careless([], "lexical"), dense())
    assert Outcome(graph.invoke({"query": QUERY})).outcomes == ["failed", "answered"]

    async def in_time() -> Outcome:
        return Outcome(await asyncio.wait_for(graph.ainvoke({"query": QUERY}), 10))

    assert asyncio.run(in_time()).outcomes == ["failed", "answered"]


class Hanging:
    """Never answers."""

    def __init__(self) -> None:
        self.started = asyncio.Event()

    async def search(self, query: str, k: int, filter: Any = None) -> Any:  # noqa: ARG002
        self.started.set()
        await asyncio.Event().wait()


async def test_cancelling_the_task_reaches_the_caller() -> None:
    """A cancelled ``ainvoke`` raises ``CancelledError``; it is not taken for a failed search."""
    hanging = Hanging()
    task = asyncio.create_task(build(hanging, dense()).ainvoke({"query": QUERY}))
    await hanging.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Cancelling:
    async def search(self, *_: Any) -> Any:
        raise asyncio.CancelledError


async def test_a_cancellation_raised_inside_a_searcher_is_not_swallowed() -> None:
    """``CancelledError`` from below is not taken for a failed search; LangGraph reports it as its own error."""
    with pytest.raises(NodeCancelledError, match="lexical_search") as caught:
        await build(Cancelling(), dense()).ainvoke({"query": QUERY})
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


class Asking(ScriptedSearcher):
    """Asks a person before it answers."""

    answers: tuple[str, ...] | list[str] = ()

    def search(self, query: str, k: int, filter: Any = None) -> Any:
        self.answers = [*self.answers, interrupt("may I search?")]
        return super().search(query, k, filter)


def ask_a_person(asynchronous: bool) -> tuple[dict[str, Any], Outcome, Asking]:
    """Output of the paused run, outcome of the resumed one, and the searcher that asked."""
    words = Asking(PARTS, "lexical")
    graph = create_bounded_retrieval(words, dense()).compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "one"}}

    def step(given: Any) -> dict[str, Any]:
        return asyncio.run(graph.ainvoke(given, config)) if asynchronous else graph.invoke(given, config)

    paused = step({"query": QUERY, "request": {"budget": {"max_rows": 5}}})
    return paused, Outcome(step(Command(resume="yes"))), words


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_interrupt_inside_a_searcher_pauses_the_graph(asynchronous: bool) -> None:
    """A ``GraphInterrupt`` propagates instead of counting as a failed search, and the run can be resumed to a packet."""
    paused, resumed, _ = ask_a_person(asynchronous)
    assert [pause.value for pause in paused["__interrupt__"]] == ["may I search?"]
    assert not paused["stop_reason"]
    assert (resumed.usage.calls, resumed.packet.limits.max_rows) == (2, 5)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_resumed_search_goes_on(asynchronous: bool) -> None:
    """After the answer the paused search is made, with one call charged for it."""
    _, resumed, words = ask_a_person(asynchronous)
    assert resumed.outcomes == ["answered", "answered"]
    assert words.answers == ["yes"]
