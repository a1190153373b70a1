"""The clock, the caller and the recursion limit."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from inventory import HITS, NOTES, PARTS, SlowSearcher, ask, dense, lexical
from langgraph.errors import GraphDrained
from langgraph.runtime import Runtime

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment
from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.errors import RequestError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.coverage import TermCoverage
from bounded_retrieval.testing import FailingSearcher, FixedClock


class SlowAssessor:
    """The reference assessor, taking some seconds of a fixed clock."""

    name: ClassVar[str] = "slow"
    default_threshold: ClassVar[float] = 0.8
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, clock: FixedClock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds

    def assess(self, given: AssessmentInput) -> CoverageAssessment:
        self.clock.advance(self.seconds)
        return TermCoverage().assess(given)


def timed(lexical_s: float, assess_s: float = 0, dense_s: float = 0, deadline_ms: int = 100, found: Any = PARTS) -> Any:
    """A run whose searches and assessments take so many seconds."""
    clock = FixedClock(1000.0)
    return ask(
        SlowSearcher(found, "lexical", clock, lexical_s),
        SlowSearcher(NOTES, "dense", clock, dense_s),
        assessor=SlowAssessor(clock, assess_s),
        clock=clock,
        budget=Budget(deadline_ms=deadline_ms),
    )


def test_a_deadline_of_0_makes_no_call() -> None:
    """A deadline that has passed before the first call keeps it from starting, and the packet is empty."""
    outcome = timed(0, deadline_ms=0)
    assert (outcome.reason, outcome.usage.calls, outcome.ids) == ("deadline_exceeded", 0, [])
    assert outcome.outcomes == ["not_started"]
    assert outcome.trace.searches[0].why_not == "deadline"


def test_a_deadline_passed_during_the_first_call_ends_the_run() -> None:
    """The clock is read again after the call: what it brought is packed and no second call is made."""
    outcome = timed(0.2)
    assert (outcome.reason, outcome.usage.calls, outcome.ids) == ("deadline_exceeded", 1, ["l1", "l2", "l3"])
    assert outcome.trace.searches[0].elapsed_ms == 200


def test_a_deadline_passed_between_the_calls_keeps_the_second_from_starting() -> None:
    """Time taken by the assessment counts: the dense call is decided on but not started, and not charged."""
    outcome = timed(0.06, assess_s=0.06)
    assert (outcome.reason, outcome.usage.calls, outcome.usage.iterations) == ("deadline_exceeded", 1, 1)
    assert outcome.outcomes == ["answered", "not_started"]
    assert outcome.trace.searches[1].why_not == "deadline"
    assert outcome.ids == ["l1", "l2", "l3"]
    assert len(outcome.trace.events) == 6


def test_a_deadline_passed_during_the_second_call_keeps_its_rows() -> None:
    """What the late call brought is packed too."""
    outcome = timed(0.06, dense_s=0.06)
    assert (outcome.reason, outcome.usage.calls) == ("deadline_exceeded", 2)
    assert {"l1", "d1"} <= set(outcome.ids)
    assert outcome.trace.searches[1].elapsed_ms == 120


def test_the_deadline_itself_is_too_late() -> None:
    """A run is over when the deadline is reached, not only when it is passed."""
    assert timed(0.1).reason == "deadline_exceeded"
    assert timed(0.099).reason == "resource_budget_exhausted"


def test_a_passing_test_after_the_deadline_is_not_claimed() -> None:
    """The clock comes before the assessment in the declared order."""
    assert timed(0.2, found=HITS).reason == "deadline_exceeded"
    assert timed(0.05, found=HITS).reason == "proxy_sufficient"


class Caller:
    """Cancels after so many polls and keeps the runtimes it was polled with."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.polled: list[Runtime[Any]] = []

    def __call__(self, runtime: Runtime[Any]) -> bool:
        self.polled.append(runtime)
        return len(self.polled) > self.after


CANCELLED = [
    (0, 0, ["not_started"], []),
    (1, 1, ["answered"], ["l1", "l2", "l3"]),
    (2, 1, ["answered", "not_started"], ["l1", "l2", "l3"]),
    (3, 2, ["answered", "answered"], ["l1", "d1", "l2", "d2"]),
]


@pytest.mark.parametrize(("polls", "calls", "outcomes", "ids"), CANCELLED)
def test_the_caller_is_polled_before_and_after_each_call(
    polls: int, calls: int, outcomes: list[str], ids: list[str]
) -> None:
    """Cancelling at any of the four polls ends the run there, and what was found is packed."""
    caller = Caller(polls)
    outcome = ask(lexical(), dense(), cancelled=caller)
    assert (outcome.reason, outcome.usage.calls, outcome.outcomes, outcome.ids) == ("cancelled", calls, outcomes, ids)
    assert len(caller.polled) == polls + 1
    assert all(isinstance(runtime, Runtime) for runtime in caller.polled)


def test_a_caller_that_never_cancels_is_polled_four_times() -> None:
    """Two calls give four polls and change nothing."""
    caller = Caller(99)
    assert ask(lexical(), dense(), cancelled=caller).reason == "resource_budget_exhausted"
    assert len(caller.polled) == 4


def test_the_caller_comes_before_the_clock() -> None:
    """When both ended the run, the caller's word is the reason."""
    assert ask(lexical(), dense(), cancelled=Caller(0), budget=Budget(deadline_ms=0)).reason == "cancelled"


def test_cancelled_sees_the_runtime_context() -> None:
    """The callback can read the context of the run it is asked about."""
    caller = Caller(99)
    ask(lexical(HITS), dense(), cancelled=caller, context={"threshold": 0.5})
    assert caller.polled[0].context.threshold == 0.5


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_recursion_limit_below_one_search_is_refused(limit: int) -> None:
    """Where not even one search and a packet fit, the error names the limit, before anything is searched."""
    words = lexical()
    with pytest.raises(RequestError, match=rf"recursion_limit: a run needs at least 5 \(got {limit}\)"):
        ask(words, dense(), limit=limit)
    assert words.calls == []


@pytest.mark.parametrize("limit", [5, 6])
def test_a_recursion_limit_without_room_for_the_dense_hop_packs(limit: int) -> None:
    """With room for one search only, its evidence is packed and the trace says what was in the way."""
    outcome = ask(lexical(), dense(), limit=limit)
    assert (outcome.reason, outcome.usage.calls, outcome.ids) == ("resource_budget_exhausted", 1, ["l1", "l2", "l3"])
    assert outcome.trace.decisions[0].legal_actions[1].why_not == "recursion_limit"
    assert not outcome.trace.decisions[0].steps_suffice


@pytest.mark.parametrize("limit", [7, 8, 10_007])
def test_a_recursion_limit_of_7_is_enough(limit: int) -> None:
    """Six supersteps and the one that LangGraph wants to spare are all that a run can take."""
    outcome = ask(lexical(), dense(), limit=limit)
    assert outcome.usage.calls == 2
    assert len(outcome.trace.events) == 6


@pytest.mark.parametrize("limit", [5, 6, 7])
def test_a_run_that_stops_early_needs_no_more(limit: int) -> None:
    """A first answer that passes gives the same packet under the smallest limit as under a large one."""
    assert ask(lexical(HITS), dense(), limit=limit).packet == ask(lexical(HITS), dense()).packet


@pytest.mark.parametrize(("limit", "calls"), [(5, 1), (6, 1), (7, 2)])
def test_the_limit_counts_from_a_second_invocation_too(limit: int, calls: int) -> None:
    """On a thread that has run before, the same limit leaves the same room."""
    from langgraph.checkpoint.memory import InMemorySaver

    graph = create_bounded_retrieval(lexical(), dense()).compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "one"}, "recursion_limit": limit}
    for _ in range(2):
        assert graph.invoke({"query": "battery exchange guide"}, config)["packet"]["usage"]["calls"] == calls


def test_langgraphs_own_drain_is_not_caught() -> None:
    """A drain that surfaces inside a searcher is not taken for a failed search."""
    with pytest.raises(GraphDrained):
        ask(FailingSearcher(GraphDrained("shutting down")), dense())
