"""Node ``check_limits``: may another hop start."""

from __future__ import annotations

from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.graph.chain_state import ChainParts, ChainState, has_room_for_a_hop
from bounded_retrieval.nodes.hops import enter
from bounded_retrieval.nodes.running import Body
from bounded_retrieval.policies.chaining import check_limits_left


def check_limits(state: ChainState, runtime: Runtime[Any], parts: ChainParts) -> Body:
    """Check depth, tokens, calls and the caller's recursion limit before anything more is planned."""
    chain = yield from enter(state, runtime, parts)
    if chain.forgotten:
        return chain.forgotten
    steps_suffice = has_room_for_a_hop(state)
    return chain.checked(check_limits_left(chain.trail, chain.usage, chain.limits, steps_suffice=steps_suffice))
