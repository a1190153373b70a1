"""Calls that may hang: how long they are waited for, how many may be left behind, and what they never hold up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
from inventory import QUERY, Outcome, lexical

from bounded_retrieval.contracts.eligibility import EligibilityView
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.nodes.time_limits import MAX_HANGING, TimeLimit

MARK: ContextVar[str] = ContextVar("MARK", default="unset")
BEAT_S = 0.01
PROCESS = """
import sys, threading
from langchain_core.documents import Document
from bounded_retrieval import BM25Searcher, create_bounded_retrieval

def resolver(runtime):
    threading.Event().wait()

searcher = BM25Searcher.from_documents([Document(id="u", page_content="The battery.")])
graph = create_bounded_retrieval(searcher, eligibility=resolver, eligibility_timeout_ms=50).compile()
result = {call}
print(result["stop_reason"], result["packet"]["notes"])
"""


class Gate:
    """Something to hang at; it counts who came and who went."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.came = 0
        self.went = 0
        self._lock = threading.Lock()

    def wait(self, *_: Any) -> str:
        """Hang until the gate is opened."""
        with self._lock:
            self.came += 1
        self.event.wait(10)
        with self._lock:
            self.went += 1
        return "late"


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is opened when the test ends."""
    made = Gate()
    yield made
    made.event.set()


def limited(limit: TimeLimit, function: Callable[[], Any], *, awaited: bool) -> Any:
    """One limited call, through ``run`` or ``arun``."""
    return asyncio.run(limit.arun(function)) if awaited else limit.run(function)


def fill(limit: TimeLimit, gate: Gate, calls: int) -> None:
    """Leave so many calls hanging at the gate."""

    def hang(_: int) -> None:
        with pytest.raises(TimeoutError):
            limit.run(gate.wait)

    with ThreadPoolExecutor(calls) as pool:
        list(pool.map(hang, range(calls)))


def until(holds: Callable[[], bool]) -> bool:
    """Wait for something to hold, for a second at most."""
    for _ in range(100):
        if holds():
            return True
        time.sleep(BEAT_S)
    return holds()


def returning(answer: Any) -> Callable[[], Any]:
    """A function without arguments that returns this."""
    return lambda: answer


both_ways = pytest.mark.parametrize("awaited", [False, True], ids=["run", "arun"])


@both_ways
def test_an_answer_in_time_is_given(awaited: bool) -> None:
    """Whatever the answer is, none included."""
    limit = TimeLimit(5)
    assert limited(limit, returning("answer"), awaited=awaited) == "answer"
    assert limited(limit, returning(None), awaited=awaited) is None


@both_ways
@pytest.mark.parametrize("kind", [RuntimeError, TimeoutError, CancelledError, AssertionError])
def test_an_error_in_time_is_raised(kind: type[Exception], awaited: bool) -> None:
    """A function's own error, also its own ``TimeoutError``, comes through as it is and nothing counts as hanging."""
    limit = TimeLimit(5)
    error = kind("its own")

    def fail() -> None:
        raise error

    for _ in range(MAX_HANGING + 1):
        with pytest.raises(kind, match="its own") as caught:
            limited(limit, fail, awaited=awaited)
        assert caught.value is error


@both_ways
def test_a_call_that_hangs_is_given_up(gate: Gate, awaited: bool) -> None:
    """After the limit, not much later, in one line that names it."""
    started = time.perf_counter()
    with pytest.raises(TimeoutError) as caught:
        limited(TimeLimit(0.05), gate.wait, awaited=awaited)
    assert 0.04 < time.perf_counter() - started < 2
    assert str(caught.value) == "took longer than 50 ms"


def test_what_ends_a_process_passes_through() -> None:
    """An interrupt in the call's thread reaches whoever waits for it."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TimeLimit(5).run(interrupt)


@both_ways
def test_context_variables_go_with_the_call_and_do_not_come_back(awaited: bool) -> None:
    """The thread sees a copy of the caller's context."""

    def read_and_set() -> str:
        seen = MARK.get()
        MARK.set("changed in the thread")
        return seen

    token = MARK.set("mine")
    try:
        assert limited(TimeLimit(5), read_and_set, awaited=awaited) == "mine"
        assert MARK.get() == "mine"
    finally:
        MARK.reset(token)


@both_ways
def test_the_call_after_the_last_that_may_hang_is_not_made(gate: Gate, awaited: bool) -> None:
    """With as many hanging as may, a further call fails at once without being made; once they are back it works."""
    limit = TimeLimit(0.25)
    fill(limit, gate, MAX_HANGING)
    assert gate.came == MAX_HANGING
    made: list[str] = []
    started = time.perf_counter()
    with pytest.raises(TimeoutError, match=f"not called: {MAX_HANGING} earlier calls still hang"):
        limited(limit, lambda: made.append("made"), awaited=awaited)
    assert time.perf_counter() - started < 0.2
    assert made == []
    gate.event.set()
    assert until(lambda: gate.went == MAX_HANGING and limit._hanging == 0)
    assert limited(limit, returning("again"), awaited=awaited) == "again"


def test_one_that_comes_back_makes_room_for_one(gate: Gate) -> None:
    """The count follows each call that ends, however late."""
    limit = TimeLimit(0.1)
    fill(limit, gate, MAX_HANGING - 1)
    other = Gate()
    fill(limit, other, 1)
    with pytest.raises(TimeoutError, match="not called"):
        limit.run(returning("x"))
    other.event.set()
    assert until(lambda: limit._hanging == MAX_HANGING - 1)
    assert limit.run(returning("x")) == "x"


def test_limits_do_not_share_their_count(gate: Gate) -> None:
    """Each graph has its own allowance."""
    fill(TimeLimit(0.1), gate, MAX_HANGING)
    assert TimeLimit(5).run(returning("x")) == "x"


async def test_many_calls_at_once_that_answer_are_all_made() -> None:
    """Calls under way are not calls that hang: more of them at once than may hang all answer."""
    limit = TimeLimit(5)
    answers = await asyncio.gather(*(limit.arun(returning(number)) for number in range(3 * MAX_HANGING)))
    assert answers == list(range(3 * MAX_HANGING))


def test_calls_left_behind_by_a_cancellation_are_bounded_too(gate: Gate) -> None:
    """A caller that is cancelled while its call hangs leaves a thread like one that was given up."""
    limit = TimeLimit(5)

    async def begin_and_cancel() -> None:
        for _ in range(MAX_HANGING + 20):
            task = asyncio.create_task(limit.arun(gate.wait))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises((asyncio.CancelledError, TimeoutError)):
                await task

    asyncio.run(begin_and_cancel())
    time.sleep(0.05)
    assert gate.came <= MAX_HANGING


async def test_an_awaitable_in_time_is_given() -> None:
    """Its answer, or its own error."""
    limit = TimeLimit(5)

    async def fail() -> None:
        raise TimeoutError("its own")

    assert await limit.wait_for(asyncio.sleep(0, "answer")) == "answer"
    with pytest.raises(TimeoutError, match="its own"):
        await limit.wait_for(fail())


async def test_an_awaitable_that_hangs_is_cancelled() -> None:
    """After the limit, and it is told so."""
    told: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    with pytest.raises(TimeoutError, match="took longer than 20 ms"):
        await TimeLimit(0.02).wait_for(hang())
    await asyncio.sleep(0)
    assert told == ["cancelled"]


async def test_cancelling_the_caller_cancels_the_awaitable() -> None:
    """A cancellation passes through and is not taken for a denial."""
    told: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    task = asyncio.create_task(TimeLimit(5).wait_for(hang()))
    await asyncio.sleep(BEAT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert told == ["cancelled"]


async def test_an_answer_that_a_busy_loop_finds_late_counts() -> None:
    """What was answered in time is given although the event loop was busy past the limit."""

    async def busy() -> None:
        time.sleep(0.1)  # noqa: ASYNC251 - a loop held up on purpose

    call = asyncio.create_task(TimeLimit(0.05).arun(returning("answer")))
    await asyncio.gather(busy(), call)
    assert call.result() == "answer"


# In a graph


def build(resolver: Any, milliseconds: int = 5_000) -> Any:
    """A graph over a few parts with this resolver."""
    builder = create_bounded_retrieval(lexical(), eligibility=resolver, eligibility_timeout_ms=milliseconds)
    return builder.compile()


def slow_allowed(gate: Gate) -> Any:
    """A resolver whose view hangs."""
    view = EligibilityView(view_id="v", version="1", allowed=gate.wait)
    return lambda _: view


async def lateness(work: Awaitable[Any]) -> tuple[float, Any]:
    """By how many seconds the latest beat of a heartbeat was late while the work ran, and what the work gave."""
    late: list[float] = [0.0]

    async def beat() -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(BEAT_S)
            late.append(time.perf_counter() - started - BEAT_S)

    heart = asyncio.create_task(beat())
    try:
        answer = await work
    finally:
        heart.cancel()
    return max(late), answer


@pytest.mark.parametrize("where", ["resolver", "allowed"])
async def test_a_hanging_rule_does_not_hold_up_the_event_loop(where: str, gate: Gate) -> None:
    """Under ``ainvoke`` a heartbeat goes on while a rule hangs."""
    graph = build(gate.wait if where == "resolver" else slow_allowed(gate), 250)
    late, result = await lateness(graph.ainvoke({"query": QUERY}))
    assert late < 0.2
    assert gate.came >= 1
    assert (Outcome(result).ids, Outcome(result).reason) == ([], "retrieval_failed")


@pytest.mark.parametrize("where", ["resolver", "allowed", "coroutine"])
async def test_a_cancellation_passes_through_a_hanging_rule(where: str, gate: Gate) -> None:
    """Cancelling ``ainvoke`` ends it at once; it is not taken for a resolver that failed."""
    reached = asyncio.Event()

    async def coroutine(_: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    rules = {"resolver": gate.wait, "allowed": slow_allowed(gate), "coroutine": coroutine}
    task = asyncio.create_task(build(rules[where]).ainvoke({"query": QUERY}))
    for _ in range(100):
        await asyncio.sleep(BEAT_S)
        if gate.came or reached.is_set():
            break
    started = time.perf_counter()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.perf_counter() - started < 1


async def test_an_asynchronous_rule_that_hangs_has_denied() -> None:
    """A coroutine that never ends is waited for as long as a function and no longer."""

    async def hang(_: Any) -> Any:
        await asyncio.Event().wait()

    outcome = Outcome(await build(hang, 20).ainvoke({"query": QUERY}))
    assert (outcome.ids, outcome.reason, outcome.notes) == ([], "retrieval_failed", ("eligibility_failed",))


def test_a_graph_with_too_many_hanging_calls_denies_at_once_and_recovers(gate: Gate) -> None:
    """While as many calls hang as may, a run ends empty without waiting; when they are back the graph works again."""
    view = EligibilityView(view_id="v", version="1", allowed=set)
    records: list[dict[str, Any]] = []

    def resolver(_: Any) -> EligibilityView:
        gate.wait()
        return view

    builder = create_bounded_retrieval(
        lexical(), eligibility=resolver, eligibility_timeout_ms=200, diagnostics=records.append
    )
    graph = builder.compile()

    async def crowd() -> None:
        await asyncio.gather(*(graph.ainvoke({"query": QUERY}) for _ in range(MAX_HANGING)))

    asyncio.run(crowd())
    came = gate.came
    assert came >= MAX_HANGING
    started = time.perf_counter()
    denied = Outcome(graph.invoke({"query": QUERY}))
    assert time.perf_counter() - started < 0.19
    assert (denied.ids, denied.notes, gate.came) == ([], ("eligibility_failed",), came)
    assert "not called" in str(records[-2]["error"])
    gate.event.set()
    assert until(lambda: gate.went == came)
    assert Outcome(graph.invoke({"query": QUERY})).ids


@pytest.mark.parametrize(
    "call",
    [
        "graph.invoke({'query': 'the battery'})",
        "__import__('asyncio').run(graph.ainvoke({'query': 'the battery'}))",
    ],
    ids=["invoke", "ainvoke"],
)
def test_a_process_with_a_hanging_rule_still_ends(call: str) -> None:
    """A thread that was left behind does not keep the interpreter from ending, and nothing is printed about it."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS.replace("{call}", call)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("retrieval_failed ['eligibility_failed']\n", "", 0)


def test_a_late_error_of_a_call_left_behind_is_told_to_nobody(gate: Gate, capfd: pytest.CaptureFixture[str]) -> None:
    """What a call raises after it was given up is neither raised nor printed."""

    def fail_late() -> None:
        gate.wait()
        raise RuntimeError("too late")

    limit = TimeLimit(0.02)
    for awaited in (False, True):
        with pytest.raises(TimeoutError):
            limited(limit, fail_late, awaited=awaited)
    gate.event.set()
    assert until(lambda: limit._hanging == 0)
    assert capfd.readouterr() == ("", "")
