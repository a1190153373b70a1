"""State of the bounded graph: JSON-native, so that any checkpointer can store it.

Input channels are ephemeral: they hold what this invocation was given, never what an earlier one on the same thread
left. Every private channel is reset by ``inspect_request``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NotRequired

from langchain_core.documents import Document
from langgraph.channels import EphemeralValue
from langgraph.managed import RemainingSteps
from pydantic import Field
from typing_extensions import TypedDict

from bounded_retrieval.errors import ConfigurationError

Json = dict[str, Any]

STEPS_TO_CONTINUE = 3
"""Supersteps that one more search needs: dense_search, assess_coverage, recheck_and_pack."""

Query = Annotated[
    str, Field(description="What to find evidence for: 1 to 20,000 characters, not blank."), EphemeralValue(str)
]
Request = Annotated[
    Json,
    Field(description="Optional RetrievalRequest fields: policy, threshold, budget, first_hop_rows, query_id, path."),
    EphemeralValue(dict),
]


class BoundedInput(TypedDict):
    """What a caller gives."""

    query: Query
    request: NotRequired[Request]


class BoundedOutput(TypedDict, total=False):
    """What a caller gets: the packet as a dict, its documents, the stop reason and the decision trace."""

    packet: Json
    documents: list[Document]
    stop_reason: str
    trace: Json


class BoundedState(TypedDict, total=False):
    """Everything between input and output.

    ``settings``, ``usage``, ``units``, ``candidates`` and ``events`` are dumps of the contracts' models of those
    names; ``sources`` says which channel first returned a unit, under any of its ids; ``decision`` holds the latest
    decision's ``action`` and ``stop_reason``; ``view`` the id and version of the view under which something was seen;
    ``elapsed_ms`` is the running time of the nodes so far. What was seen is gone from the state once the packet is
    made.
    """

    query: Query
    request: Request
    settings: Json
    usage: Json
    units: dict[str, Json]
    sources: dict[str, str]
    candidates: list[Json]
    events: list[Json]
    decision: Json
    notes: list[str]
    view: Json
    elapsed_ms: float
    packet: Json
    documents: list[Document]
    stop_reason: str
    trace: Json
    remaining_steps: RemainingSteps


Update = dict[str, Any]
"""A partial state, as a node returns it."""


def has_room_to_continue(state: BoundedState) -> bool:
    """Whether the caller's recursion limit leaves room for one more search; LangGraph wants one step to spare."""
    return state.get("remaining_steps", STEPS_TO_CONTINUE + 1) > STEPS_TO_CONTINUE


def narrowed(output: type[Any], keys: Sequence[str] | None) -> type[Any]:
    """An output schema with only these of its keys; all of them for none.

    Raises:
        ConfigurationError: a key that it does not have, or no key.
    """
    if keys is None:
        return output
    known = output.__annotations__
    if not keys or set(keys) - known.keys():
        raise ConfigurationError(f"output_keys: choose from {', '.join(known)} (got {list(keys)})")
    return TypedDict(output.__name__, {key: known[key] for key in keys}, total=False)  # type: ignore[operator, no-any-return]
