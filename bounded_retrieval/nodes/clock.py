"""Running time of an invocation, and what may interrupt it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.chain import ChainLimits
from bounded_retrieval.contracts.trace import Interruption
from bounded_retrieval.graph.context import Cancelled


class Timed(Protocol):
    """Parts of a graph that tell the time and whether the caller has ended the run."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds from any fixed point."""
        ...

    @property
    def cancelled(self) -> Cancelled | None:
        """Asked with the runtime; true ends the run."""
        ...


class Stopwatch:
    """Adds a node's running time to that of the nodes before it.

    Time between nodes is not counted, so an invocation that was paused or resumed is charged only for running.
    """

    def __init__(self, state: Mapping[str, Any], parts: Timed) -> None:
        self._before_ms: float = state.get("elapsed_ms", 0.0)
        self._clock = parts.clock
        self._started = parts.clock()

    def elapsed_ms(self) -> float:
        """Running time so far, in milliseconds."""
        return self._before_ms + (self._clock() - self._started) * 1000


def interruption(
    runtime: Runtime[Any], parts: Timed, limits: Budget | ChainLimits, watch: Stopwatch
) -> Interruption | None:
    """Ask the caller, then the clock, whether the run ends here."""
    if parts.cancelled is not None and parts.cancelled(runtime):
        return "cancelled"
    if limits.deadline_ms is not None and watch.elapsed_ms() >= limits.deadline_ms:
        return "deadline"
    return None
