"""Running time of an invocation, and what may interrupt it."""

from __future__ import annotations

from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.trace import Interruption
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState


class Stopwatch:
    """Adds a node's running time to that of the nodes before it.

    Time between nodes is not counted, so an invocation that was paused or resumed is charged only for running.
    """

    def __init__(self, state: BoundedState, parts: Parts) -> None:
        self._before_ms = state.get("elapsed_ms", 0.0)
        self._clock = parts.clock
        self._started = parts.clock()

    def elapsed_ms(self) -> float:
        """Running time so far, in milliseconds."""
        return self._before_ms + (self._clock() - self._started) * 1000


def interruption(runtime: Runtime[Any], parts: Parts, limits: Budget, watch: Stopwatch) -> Interruption | None:
    """Ask the caller, then the clock, whether the run ends here."""
    if parts.cancelled is not None and parts.cancelled(runtime):
        return "cancelled"
    if limits.deadline_ms is not None and watch.elapsed_ms() >= limits.deadline_ms:
        return "deadline"
    return None
