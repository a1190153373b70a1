"""State and parts of the recursive chain: JSON-native, so that any checkpointer can store it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, Protocol

from langchain_core.documents import Document
from langgraph.channels import EphemeralValue
from langgraph.managed import RemainingSteps
from pydantic import Field
from typing_extensions import TypedDict

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.chain import ChainLimits, ChainUsage, OnStop
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import Interruption
from bounded_retrieval.graph.context import Cancelled, Parts
from bounded_retrieval.graph.state import Json, Query
from bounded_retrieval.nodes.time_limits import TimeLimit
from bounded_retrieval.policies.chaining import ChainRules

STEPS_OF_A_HOP = 6
"""Supersteps that one more hop needs: plan, search, the three checks, and the end."""

LOG = logging.getLogger("bounded_retrieval.chain")
"""Ids and counts of each hop, at level INFO; never a text."""

ChainRequestField = Annotated[
    Json, Field(description="Optional ChainRequest fields: query_id, limits."), EphemeralValue(dict)
]


class ChainInput(TypedDict):
    """What a caller gives."""

    query: Query
    request: NotRequired[ChainRequestField]


class ChainOutput(TypedDict, total=False):
    """What a caller gets; ``chain`` holds the query, the limits, the usage and the notes."""

    stop_reason: str
    resolved: bool
    unresolved: list[str]
    trail: list[Json]
    documents: list[Document]
    chain: Json


class ChainState(TypedDict, total=False):
    """Everything between input and output.

    ``settings`` holds the question, its id and the limits; ``plan`` the planner's latest `NextQuery` (none where it
    failed); ``planning`` the tokens of planning that belong to no hop yet; ``checks`` what was checked since the latest
    hop; ``stopped`` the rule that fired, or an empty string; ``units`` and ``sources`` what was found, by unit id.
    """

    query: Query
    request: ChainRequestField
    settings: Json
    plan: Json | None
    planning: int
    checks: list[Json]
    stopped: str
    units: dict[str, Json]
    sources: dict[str, str]
    notes: list[str]
    view: Json
    elapsed_ms: float
    stop_reason: str
    resolved: bool
    unresolved: list[str]
    trail: list[Json]
    documents: list[Document]
    chain: Json
    remaining_steps: RemainingSteps


@dataclass(frozen=True, kw_only=True)
class HopFound:
    """What one hop's search found.

    Attributes:
        units: by unit id, best first.
        sources: by unit id, which channel of the recheck's parts vouches for it.
        usage: what the search spent.
        failed: no permitted attempt answered.
        interruption: what ended the search from outside.
    """

    units: Mapping[str, Unit]
    sources: Mapping[str, str]
    usage: ChainUsage
    failed: bool = False
    stop_reason: StopReason | None = None
    missing_terms: tuple[str, ...] = ()
    interruption: Interruption | None = None
    notes: tuple[str, ...] = ()


class HopSearch(Protocol):
    """Makes one hop's search. Optional besides: ``asearch``.

    ``charges_itself`` says that a search cut off by a kill is not made again when it is resumed.
    """

    charges_itself: bool

    def search(self, query: str, max_calls: int, deadline_ms: int | None) -> HopFound:
        """Search with at most ``max_calls`` retrieval calls and, where it can, within so many milliseconds."""
        ...


@dataclass(frozen=True, kw_only=True)
class ChainParts:
    """Collaborators of one chain. They hold no request's state.

    Attributes:
        search: makes one hop's search.
        recheck: the parts by which units are checked again at the end.
        spans: an OpenTelemetry tracer, where the application wants a span for each hop.
        time_limit: makes the calls that a deadline may cut off.
    """

    search: HopSearch
    planner: Any
    reader: Any
    sufficiency: Any | None
    rules: ChainRules
    limits: ChainLimits
    on_stop: OnStop
    clarifier: Any | None
    recheck: Parts
    cancelled: Cancelled | None
    clock: Callable[[], float]
    spans: Any | None
    time_limit: TimeLimit

    def report(self, record: dict[str, Any]) -> None:
        """Hand a protected record to the application's sink, and to nobody else."""
        self.recheck.report(record)


def in_a_log(query_id: str) -> str:
    """A caller's id on one line, without anything that could pass for another line."""
    return query_id.encode("unicode_escape").decode("ascii")


def has_room_for_a_hop(state: ChainState) -> bool:
    """Whether the caller's recursion limit leaves room for one more hop; LangGraph wants one step to spare."""
    return state.get("remaining_steps", STEPS_OF_A_HOP + 1) > STEPS_OF_A_HOP
