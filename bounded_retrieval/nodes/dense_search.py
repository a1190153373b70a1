"""Node ``dense_search``: the one further search, with exactly the same query text."""

from __future__ import annotations

from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState
from bounded_retrieval.nodes.running import Body
from bounded_retrieval.nodes.searching import search_channel


def dense_search(state: BoundedState, runtime: Runtime[Any], parts: Parts) -> Body:
    """Ask the dense searcher for the rows that are left (all of ``max_rows`` under ``fixed_dense``)."""
    return (yield from search_channel("dense", state, runtime, parts))
