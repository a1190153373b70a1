"""Node ``check_novelty``: did the hop answer in time, and did it find anything new."""

from __future__ import annotations

from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.trace import Interruption
from bounded_retrieval.graph.chain_state import ChainParts, ChainState
from bounded_retrieval.nodes.hops import enter
from bounded_retrieval.nodes.running import Body
from bounded_retrieval.policies.chaining import check_found
from bounded_retrieval.policies.stopping import INTERRUPTED


def check_novelty(state: ChainState, runtime: Runtime[Any], parts: ChainParts) -> Body:
    """Check the latest hop: cancelled, deadline, failed, nothing new. No planner or reader has a say in it."""
    chain = yield from enter(state, runtime, parts)
    if chain.forgotten or not chain.trail:
        return chain.forgotten
    if state["stopped"] and state["stopped"] not in INTERRUPTED:
        return {}
    interrupted: Interruption | None = state["stopped"] or None  # type: ignore[assignment]
    return chain.checked(check_found(chain.trail[-1], interrupted, parts.rules))
