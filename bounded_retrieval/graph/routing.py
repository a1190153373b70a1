"""Conditional edges: they read the recorded decision and the remaining budget, nothing else."""

from __future__ import annotations

from typing import Literal

from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.graph.state import BoundedState, has_room_to_continue
from bounded_retrieval.policies.stopping import refuse_search


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
