"""Conditional edges: they read the recorded decision and the remaining budget, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from langchain_core.runnables import Runnable, RunnableConfig

from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.graph.state import BoundedState, has_room_to_continue
from bounded_retrieval.policies.stopping import refuse_search


class Edge(Runnable[BoundedState, str]):
    """A conditional edge's function that is no run of its own where nobody listens to the graph's runs.

    LangGraph makes a run with callbacks of every such function, which costs several times what the function does. Where
    a callback handler listens, it is shown that run as ever.
    """

    def __init__(self, label: Callable[[BoundedState], str], traced: Runnable[BoundedState, Any]) -> None:
        self.name = label.__name__
        self._label = label
        self._traced = traced

    def invoke(self, input: BoundedState, config: RunnableConfig | None = None, **options: Any) -> Any:
        """The label of the edge to take."""
        return self._traced.invoke(input, config, **options) if _is_heard(config) else self._label(input)

    async def ainvoke(self, input: BoundedState, config: RunnableConfig | None = None, **options: Any) -> Any:
        """The same."""
        return await self._traced.ainvoke(input, config, **options) if _is_heard(config) else self._label(input)


def _is_heard(config: RunnableConfig | None) -> bool:
    callbacks = (config or {}).get("callbacks")
    return bool(getattr(callbacks, "handlers", callbacks))


def route_after_inspect(state: BoundedState) -> Literal["lexical_search", "dense_search", "follow_path"]:
    """A path takes the structured route; the text route begins lexically, except under ``fixed_dense``."""
    action: Literal["lexical_search", "dense_search", "follow_path"] = state["decision"]["action"]
    return action


def route_after_assess(state: BoundedState) -> Literal["dense_search", "recheck_and_pack"]:
    """Continue only where the decision says so, the budget still allows it and the recursion limit has room."""
    if state["decision"]["action"] != "dense_search":
        return "recheck_and_pack"
    settings = RunSettings.model_validate(state["settings"])
    refusal = refuse_search("dense", settings, Usage.model_validate(state["usage"]))
    return "dense_search" if refusal is None and has_room_to_continue(state) else "recheck_and_pack"
