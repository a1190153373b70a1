"""What LangGraph itself costs for the controller's graph: the same nodes, edges and channels, and nothing to do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import StateGraph


class Repeated(Runnable[Any, Any]):
    """A node that gives back, one after the other, what the real one once gave."""

    def __init__(self, name: str, updates: Sequence[Mapping[str, Any]]) -> None:
        self.name = name
        self._updates = itertools.cycle(updates)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: ARG002 - LangChain's signature
        """The next of them."""
        return next(self._updates)


def emptied(builder: StateGraph[Any, Any, Any, Any], query: str) -> Callable[[str], Any]:
    """Run a graph once, then compile it with nodes that repeat what its nodes gave; the edges decide as ever.

    Args:
        builder: the graph; its nodes are replaced.
        query: what it is asked that once.
    """
    updates: dict[str, list[Mapping[str, Any]]] = {}
    for step in builder.compile().stream({"query": query}, stream_mode="updates"):
        for name, update in step.items():
            updates.setdefault(name, []).append(update)
    for name, given in updates.items():
        builder.nodes[name] = replace(builder.nodes[name], runnable=Repeated(name, given))
    compiled = builder.compile()
    return lambda query: compiled.invoke({"query": query})
