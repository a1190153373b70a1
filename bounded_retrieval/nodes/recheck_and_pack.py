"""Node ``recheck_and_pack``: check every unit against its current text, fuse, pack, say why the run ended."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langgraph.runtime import Runtime

from bounded_retrieval.contracts.assessment import Observation
from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Candidate, Unit
from bounded_retrieval.contracts.normalise import fingerprint
from bounded_retrieval.contracts.ports import Searcher
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import CoverageAssessed, DecisionTrace, SearchAttempted, TraceEvent
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState
from bounded_retrieval.nodes.assess_coverage import EVENTS
from bounded_retrieval.nodes.running import Body, Call, can_fetch, method_call
from bounded_retrieval.policies.assembly import Found, Recheck, assemble, notes_of, redact


def recheck_and_pack(state: BoundedState, runtime: Runtime[Any], parts: Parts) -> Body:
    """End the run in a packet. A unit that is gone or whose text changed since it was seen is dropped.

    A recheck that cannot be made (the source raises or answers with something else) drops what it should have
    vouched for. Without any source the text in state is used, and the packet says so.
    """
    settings = RunSettings.model_validate(state["settings"])
    units = {unit_id: Unit.model_validate(unit) for unit_id, unit in state["units"].items()}
    events = EVENTS.validate_python(state["events"])
    recheck = yield from _recheck(units, state["sources"], settings, parts)
    searches = [event for event in events if isinstance(event, SearchAttempted)]
    found = Found(
        units=units,
        candidates=[Candidate.model_validate(candidate) for candidate in state["candidates"]],
        observations=_latest_observations(events),
    )
    packet, packed = assemble(
        settings,
        found,
        Usage.model_validate(state["usage"]),
        # The edge packs without a stop reason only when the budget left no room for the search decided on.
        StopReason(state["decision"].get("stop_reason") or StopReason.RESOURCE_BUDGET_EXHAUSTED),
        recheck=recheck,
        fusion=parts.fusion,
        notes=(*notes_of(searches, units), *state["notes"]),
    )
    runtime.stream_writer(packed.model_dump(mode="json"))
    trace = DecisionTrace(events=(*redact(events, recheck.dropped), packed))
    return {
        "packet": packet.model_dump(mode="json"),
        "documents": packet.to_documents(),
        "stop_reason": packet.stop_reason.value,
        "trace": trace.model_dump(mode="json"),
    }


def _recheck(
    units: Mapping[str, Unit], sources: Mapping[str, str], settings: RunSettings, parts: Parts
) -> Generator[Call, Any, Recheck]:
    dropped: set[str] = set()
    notes: list[str] = []
    for source, unit_ids in _vouchers(units, sources, parts):
        if source is None:
            notes.append("text_not_rechecked")
            continue
        current = yield from _current(source, unit_ids, settings, parts)
        if current is None:
            notes.append("recheck_failed")
        dropped.update(unit_id for unit_id in unit_ids if not _is_unchanged(units[unit_id], current or {}))
    if dropped:
        notes.append("dropped_at_recheck")
        parts.report({"event": "dropped_at_recheck", "query_id": settings.query_id, "unit_ids": sorted(dropped)})
    return Recheck(dropped=frozenset(dropped), notes=tuple(dict.fromkeys(notes)))


def _vouchers(
    units: Mapping[str, Unit], sources: Mapping[str, str], parts: Parts
) -> list[tuple[object | None, list[str]]]:
    """Group units by who can give their current text: the unit source, else the searcher that first returned them."""
    if not units:
        return []
    if parts.units is not None:
        return [(parts.units, list(units))]
    grouped: dict[str | None, list[str]] = {}
    for unit_id in units:
        channel = sources[unit_id]
        grouped.setdefault(channel if _vouches_for(parts.searcher(channel), unit_id) else None, []).append(unit_id)
    return [(None if channel is None else parts.searcher(channel), unit_ids) for channel, unit_ids in grouped.items()]


def _vouches_for(searcher: Searcher | None, unit_id: str) -> bool:
    if not can_fetch(searcher):
        return False
    asked = getattr(searcher, "vouches_for", None)
    return asked is None or bool(asked(unit_id))


def _current(
    source: object, unit_ids: Sequence[str], settings: RunSettings, parts: Parts
) -> Generator[Call, Any, Mapping[str, Any] | None]:
    try:
        answer = yield method_call(source, "fetch", unit_ids)
    except Exception as error:  # noqa: BLE001 - a check that cannot be made is a check not passed
        parts.report({"event": "recheck_failed", "query_id": settings.query_id, "error": error})
        return None
    return answer if isinstance(answer, Mapping) else None


def _is_unchanged(seen: Unit, current: Mapping[str, Any]) -> bool:
    document = current.get(seen.unit_id)
    return isinstance(document, Document) and fingerprint(document.page_content) == seen.fingerprint


def _latest_observations(events: Sequence[TraceEvent]) -> tuple[Observation, ...]:
    decisions = [event for event in events if isinstance(event, CoverageAssessed)]
    return decisions[-1].observations if decisions else ()
