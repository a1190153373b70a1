"""Node ``recheck_and_pack``: check every unit against its current text, fuse, pack, say why the run ended."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any, cast

from langchain_core.documents import Document
from langgraph.runtime import Runtime
from pydantic import TypeAdapter

from bounded_retrieval.contracts.assessment import Observation, QueryWeights
from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Unit, row_from_state
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.ports import Searcher
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import EvidencePacked, PathAttempted, SearchAttempted, TraceEvent, UnitsScored
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState, Json
from bounded_retrieval.nodes.assess_coverage import searches_in
from bounded_retrieval.nodes.clock import Stopwatch
from bounded_retrieval.nodes.eligibility import Access, eligible_ids, forget, open_access
from bounded_retrieval.nodes.running import Body, Call, can_fetch, method_call, settings_of
from bounded_retrieval.nodes.scoring import score_observed
from bounded_retrieval.policies.assembly import Found, Recheck, assemble, notes_of, redact
from bounded_retrieval.policies.fusion import scores_in
from bounded_retrieval.policies.paths import assemble_path
from bounded_retrieval.policies.stopping import INTERRUPTED

_EVENTS: TypeAdapter[tuple[TraceEvent, ...]] = TypeAdapter(tuple[TraceEvent, ...])


def recheck_and_pack(state: BoundedState, runtime: Runtime[Any], parts: Parts) -> Body:
    """End the run in a packet. A unit that is gone, changed or no longer to be seen by the caller is dropped.

    A check that cannot be made (the source or the view raises, hangs or answers with something else) drops what it
    should have vouched for. Without any source the text in state is used, and the packet says so. What was seen under
    another view is discarded first.
    """
    watch = Stopwatch(state, parts)
    settings = settings_of(state, parts)
    access = yield from open_access(state, runtime, parts, settings.query_id)
    if access.note:
        state = cast("BoundedState", state | forget(state, access.note))
    units = units_in(state["units"], access)
    recheck = yield from recheck_units(units, state["sources"], access, settings.query_id, parts)
    decisions = [event for event in state["events"] if event["event"] == "coverage_assessed"]
    found = _found(state, units, decisions)
    rankings = found.rankings(recheck.dropped)
    usage = Usage.model_validate(state["usage"])
    weights = _weights(decisions)
    scored = yield from score_observed(rankings, weights, usage, settings, access, runtime, parts, watch)
    packet, packed = _assemble(state, settings, found, scored, recheck, parts)
    added = (scored, packed) if scored else (packed,)
    for event in added:
        runtime.stream_writer(event.model_dump(mode="json"))
    return {
        "packet": packet.model_dump(mode="json"),
        "documents": packet.to_documents(),
        "stop_reason": packet.stop_reason.value,
        "trace": {
            "events": [
                *_redacted(state["events"], recheck.dropped),
                *(event.model_dump(mode="json") for event in added),
            ]
        },
        # Units that were dropped should not stay in the thread's latest state.
        "units": {},
        "sources": {},
        "candidates": [],
        "events": [],
    }


def units_in(held: Mapping[str, Any], access: Access) -> dict[str, Unit]:
    """The units in state, without the fields that the view in force keeps private."""
    return {unit_id: Unit.recalled(unit).without(access.private) for unit_id, unit in held.items()}


def _found(state: BoundedState, units: Mapping[str, Unit], decisions: Sequence[Json]) -> Found:
    observations = decisions[-1]["observations"] if decisions else ()
    return Found(
        units=units,
        candidates=[row_from_state(candidate) for candidate in state["candidates"]],
        observations=tuple(Observation.model_validate(observation) for observation in observations),
    )


def _weights(decisions: Sequence[Json]) -> QueryWeights | None:
    known = decisions[0]["weights"] if decisions else None
    return None if known is None else QueryWeights.model_validate(known)


def _redacted(events: Sequence[Json], dropped: Collection[str]) -> list[Json]:
    """The events as the trace holds them: as they are, unless something has to be taken out."""
    if not dropped:
        return list(events)
    return [event.model_dump(mode="json") for event in redact(_EVENTS.validate_python(events), dropped)]


def _assemble(  # noqa: PLR0913, PLR0917 - what a node has at hand stands side by side
    state: BoundedState,
    settings: RunSettings,
    found: Found,
    scored: UnitsScored | None,
    recheck: Recheck,
    parts: Parts,
) -> tuple[EvidencePacket, EvidencePacked]:
    usage = Usage.model_validate(state["usage"]) if scored is None else scored.usage
    searches = searches_in(state["events"])
    notes = (*notes_of(searches, found.units, scored), *state["notes"])
    followed = next((event for event in state["events"] if event["event"] == "path_attempted"), None)
    if followed is not None:
        attempt = PathAttempted.model_validate(followed)
        return assemble_path(settings, attempt, found.units, usage, recheck=recheck, notes=notes)
    # The edge packs without a stop reason only when the budget left no room for the search decided on.
    decided = state["decision"].get("stop_reason") or StopReason.RESOURCE_BUDGET_EXHAUSTED
    stop_reason = INTERRUPTED["view_changed"] if _was_forgotten(searches) else StopReason(decided)
    scores = scores_in(found.rankings(recheck.dropped), scored, len(settings.terms))
    failure = {"event": "fusion_failed", "query_id": settings.query_id}
    return assemble(
        settings,
        found,
        usage,
        stop_reason,
        recheck=recheck,
        fusion=parts.fusion,
        notes=notes,
        scores=scores,
        on_failure=lambda error: parts.report({**failure, "error": error}),
    )


def _was_forgotten(searches: Sequence[SearchAttempted]) -> bool:
    return bool(searches) and searches[-1].interruption == "view_changed"


def recheck_units(
    units: Mapping[str, Unit], sources: Mapping[str, str], access: Access, query_id: str, parts: Parts
) -> Generator[Call, Any, Recheck]:
    """Read every unit's current document and ask the view about all of them at once; report what must be dropped."""
    reasons, current, notes = yield from _read_again(units, sources, query_id, parts)
    allowed = (yield from eligible_ids(access, list(units), current, parts, query_id)) if units else frozenset()
    if allowed is None:
        notes.append("recheck_failed")
    reasons = {unit_id: "denied" for unit_id in units if unit_id not in (allowed or ())} | reasons
    stamp = {} if access.stamp is None else access.stamp.model_dump()
    if reasons:
        notes.append("dropped_at_recheck")
        record = {"event": "dropped_at_recheck", "query_id": query_id, "unit_ids": sorted(reasons)}
        parts.report({**record, "reasons": reasons, **stamp})
    if parts.is_guarded:
        record = {"event": "rechecked", "query_id": query_id, "checked_at": _now(), **stamp}
        parts.report({**record, "kept": sorted(units.keys() - reasons.keys())})
    return Recheck(dropped=frozenset(reasons), notes=tuple(dict.fromkeys(notes)), view=access.stamp)


def _read_again(
    units: Mapping[str, Unit], sources: Mapping[str, str], query_id: str, parts: Parts
) -> Generator[Call, Any, tuple[dict[str, str], dict[str, Any], list[str]]]:
    """Read the units' current documents: why some must be dropped, the documents, and notes about the reading."""
    reasons: dict[str, str] = {}
    found: dict[str, Any] = {}
    notes: list[str] = []
    for source, unit_ids in _vouchers(units, sources, parts):
        if source is None:
            notes.append("text_not_rechecked")
            continue
        current = yield from _current(source, unit_ids, query_id, parts)
        if current is None:
            notes.append("recheck_failed")
        for unit_id in unit_ids:
            document = (current or {}).get(unit_id)
            if document is None:
                reasons[unit_id] = "unread" if current is None else "gone"
            elif not _is_unchanged(units[unit_id], document):
                reasons[unit_id] = "changed"
            else:
                found[unit_id] = document
    return reasons, found, notes


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


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
    try:
        return asked is None or bool(asked(unit_id))
    except Exception:  # noqa: BLE001 - it is asked for the unit then, and what it does not give is dropped
        return True


def _current(
    source: object, unit_ids: Sequence[str], query_id: str, parts: Parts
) -> Generator[Call, Any, Mapping[str, Any] | None]:
    try:
        answer = yield method_call(source, "fetch", unit_ids, detached=parts.is_guarded)
        return dict(answer) if isinstance(answer, Mapping) else None
    except Exception as error:  # noqa: BLE001 - a check that cannot be made is a check not passed
        parts.report({"event": "recheck_failed", "query_id": query_id, "error": error})
        return None


def _is_unchanged(seen: Unit, document: Any) -> bool:
    # The text itself is compared, not the fingerprint that state holds: whoever can write state could write that.
    text = getattr(document, "page_content", None) if isinstance(document, Document) else None
    return isinstance(text, str) and clean_text(text) == seen.text
