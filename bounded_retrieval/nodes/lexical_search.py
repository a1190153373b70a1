"""Node ``lexical_search``: the first search of the text route."""

from __future__ import annotations

from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState
from bounded_retrieval.nodes.running import Body
from bounded_retrieval.nodes.searching import search_channel


def lexical_search(state: BoundedState, runtime: Runtime[Any], parts: Parts) -> Body:
    """Ask the lexical searcher for ``first_hop_rows`` rows (all of ``max_rows`` under ``fixed_lexical``)."""
    return (yield from search_channel("lexical", state, runtime, parts))
