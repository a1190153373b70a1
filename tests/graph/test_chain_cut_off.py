"""Planners, readers, sufficiency tests and clarifiers that hang: under a deadline they are waited for no longer than it lasts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chain_inventory import QUESTION, aask, ask, build, endless, given, says

from bounded_retrieval.contracts.chain import ChainLimits
from bounded_retrieval.policies.planners import TemplatePlanner

LIMITS = ChainLimits(deadline_ms=300)
FAILED = {"planner": "planner_failed", "reader": "reader_failed", "sufficiency": "sufficiency_failed"}
PARTS = sorted(FAILED)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Something to hang at, opened when the test ends."""
    event = threading.Event()
    yield event
    event.set()


def hanging(gate: threading.Event, *, is_async: bool) -> Callable[..., Any]:
    """A part that hangs: in its thread, or on the event loop."""

    async def wait_for_ever(*_: Any) -> Any:
        await asyncio.Event().wait()

    return wait_for_ever if is_async else lambda *_: gate.wait() and None


def options(part: str, hangs: Callable[..., Any]) -> dict[str, Any]:
    """A chain of which that one part hangs."""
    usual: dict[str, Any] = {"planner": endless, "reader": says, "sufficiency": None}
    return usual | {part: hangs, "limits": LIMITS}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("is_async", "awaited"), [(False, False), (False, True), (True, True)])
def test_a_part_that_hangs_is_cut_off_at_the_deadline(
    gate: threading.Event, part: str, is_async: bool, awaited: bool
) -> None:
    """The part has failed, the chain ends at its deadline, and what was found until then is packed."""
    result = (aask if awaited else ask)(None, **options(part, hanging(gate, is_async=is_async)))
    assert result.stop_reason == "deadline_exceeded"
    assert FAILED[part] in result.notes
    assert [hop.unit_ids for hop in result.trail] == ([] if part == "planner" else [("u1",)])


@pytest.mark.parametrize(("is_async", "awaited"), [(False, False), (False, True), (True, True)])
def test_a_clarifier_that_hangs_gives_way_to_the_plain_question(
    gate: threading.Event, is_async: bool, awaited: bool
) -> None:
    """It is waited for no longer than the deadline leaves, and the chain asks back in plain words."""
    hangs = hanging(gate, is_async=is_async)
    limits = ChainLimits(max_hops=1, deadline_ms=300)
    options: dict[str, Any] = {"planner": endless, "reader": says, "on_stop": "clarify", "limits": limits}
    result = (aask if awaited else ask)(None, **options, clarifier=hangs)
    assert result.stop_reason == "depth_cap"
    assert result.clarification == f"What more can you say about this: {result.unresolved[0]}"


def test_after_the_deadline_no_clarifier_is_asked(gate: threading.Event) -> None:
    """A chain that ended by its deadline has no time left for a model to word the question."""
    asked: list[Any] = []
    given_up = options("planner", hanging(gate, is_async=False)) | {"on_stop": "clarify"}
    result = ask(None, **given_up, clarifier=lambda *given: asked.append(given))
    assert (result.stop_reason, asked) == ("deadline_exceeded", [])
    assert result.clarification == f"What more can you say about this: {result.unresolved[0]}"


class Unfinished:
    """A planner that always has another query; what remains is said by a function."""

    def __init__(self, remaining: Callable[..., Any]) -> None:
        self.remaining = remaining
        self.plan = endless


@pytest.mark.parametrize(("is_async", "awaited"), [(False, False), (False, True), (True, True)])
def test_a_planner_that_hangs_over_what_remains_leaves_the_question_open(
    gate: threading.Event, is_async: bool, awaited: bool
) -> None:
    """It is waited for no longer than the deadline leaves."""
    planner = Unfinished(hanging(gate, is_async=is_async))
    limits = ChainLimits(max_hops=1, deadline_ms=300)
    result = (aask if awaited else ask)(None, planner, limits=limits)
    assert (result.stop_reason, result.unresolved) == ("depth_cap", (QUESTION,))


def test_after_the_deadline_nobody_is_asked_what_remains(gate: threading.Event) -> None:
    """But declared templates, which only have to be read: they stay open."""
    asked: list[Any] = []
    late = {"reader": hanging(gate, is_async=False), "limits": LIMITS}
    result = ask(None, Unfinished(lambda *_: asked.append(1)), **late)
    assert (result.stop_reason, result.unresolved[-1], asked) == ("deadline_exceeded", QUESTION, [])
    templates = TemplatePlanner(["Who keeps the key?", "Where does #1 live?"])
    assert "Where does #1 live?" in ask(None, templates, **late).unresolved


def test_what_remains_may_be_said_asynchronously() -> None:
    """It is awaited under ainvoke; under invoke nobody can wait for it, and the question itself is open."""

    async def the_rest(*_: Any) -> list[str]:
        return ["the rest"]

    one_hop = ChainLimits(max_hops=1)
    assert "the rest" in aask(None, Unfinished(the_rest), limits=one_hop).unresolved
    assert ask(None, Unfinished(the_rest), limits=one_hop).unresolved == (QUESTION,)


def test_what_remains_may_be_one_text() -> None:
    """A text is one open part, and not as many as it has letters."""
    result = ask(None, Unfinished(lambda *_: "the rest"), limits=ChainLimits(max_hops=1))
    assert "the rest" in result.unresolved
    assert "t" not in result.unresolved


@pytest.mark.parametrize("part", PARTS)
def test_without_a_deadline_parts_run_in_the_callers_thread(part: str) -> None:
    """No thread is made for a call that nothing limits; under a deadline there is one for each."""
    threads: list[threading.Thread] = []

    def noting(*_: Any) -> Any:
        threads.append(threading.current_thread())
        return False if part == "sufficiency" else None

    chosen = options(part, noting)
    ask(None, **{**chosen, "limits": ChainLimits(max_hops=1)})
    assert threads == [threading.current_thread()]
    ask(None, **{**chosen, "limits": ChainLimits(max_hops=1, deadline_ms=600_000)})
    assert threading.current_thread() not in threads[1:]
    assert len(threads) == 2


def test_a_cancelled_chain_leaves_a_hanging_planner_behind(gate: threading.Event) -> None:
    """Cancelling an ainvoke whose planner hangs in a thread ends it with CancelledError, deadline or not."""
    came = threading.Event()

    def hang(*_: Any) -> None:
        came.set()
        gate.wait()

    async def cancel() -> None:
        graph = build(None, hang, limits=ChainLimits(deadline_ms=600_000))
        run = asyncio.create_task(graph.ainvoke(given()))
        await asyncio.to_thread(came.wait)
        run.cancel()
        await run

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
