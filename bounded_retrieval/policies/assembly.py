"""Assemble the packet from what the recheck left, and take what it dropped out of the trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType

from bounded_retrieval.contracts.assessment import Observation, QueryTerms
from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Candidate, Channel, Unit
from bounded_retrieval.contracts.eligibility import ViewStamp
from bounded_retrieval.contracts.packet import ChannelResult, EvidenceItem, EvidencePacket, PathStep, Resolution
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.stop import PROVISIONAL, StopReason
from bounded_retrieval.contracts.trace import (
    CoverageAssessed,
    EvidencePacked,
    PathAttempted,
    Ranked,
    SearchAttempted,
    TraceEvent,
    UnitsScored,
)
from bounded_retrieval.contracts.unchecked import replaced
from bounded_retrieval.policies.coverage import missing_from
from bounded_retrieval.policies.fusion import Fusion, Scores, by_channel, fuse_found
from bounded_retrieval.policies.packing import Packing, pack


@dataclass(frozen=True, kw_only=True)
class Recheck:
    """What the recheck found: ids of units no longer as they were seen, notes about the check itself, and its view."""

    dropped: frozenset[str]
    notes: tuple[str, ...] = ()
    view: ViewStamp | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a run found by the time it ended, in the order in which it was first seen."""

    units: Mapping[str, Unit]
    candidates: Sequence[Candidate]
    observations: Sequence[Observation]

    def rankings(self, dropped: Collection[str]) -> dict[Channel, list[Candidate]]:
        """Each channel's ranking of the units that the recheck left."""
        return by_channel([c for c in self.candidates if c.unit_id in self.units and c.unit_id not in dropped])


def assemble(  # noqa: PLR0913 - the five inputs of the last step stand side by side on purpose
    settings: RunSettings,
    found: Found,
    usage: Usage,
    stop_reason: StopReason,
    *,
    recheck: Recheck,
    fusion: Fusion,
    notes: Sequence[str],
    scores: Scores | None = None,
    on_failure: Callable[[Exception], None] = lambda _: None,
) -> tuple[EvidencePacket, EvidencePacked]:
    """Fuse the candidates that survived the recheck, pack whole units, and state what was done.

    ``on_failure`` is told what the fusion raised.
    """
    fused = fuse_found(fusion, found.rankings(recheck.dropped), scores, on_failure)
    ranking = fused.ranking
    lengths = {unit.unit_id: len(found.units[unit.unit_id].text) for unit in ranking}
    packing = pack(list(lengths), lengths, settings.limits.max_units, settings.limits.max_chars)
    packed = frozenset(packing.unit_ids)
    query_terms = QueryTerms(terms=settings.terms, identifiers=settings.identifiers)
    return state_end(
        settings,
        usage,
        stop_reason,
        items=tuple(
            item_of(found.units[unit.unit_id], unit.channels, unit.score, unit.contributions)
            for unit in ranking
            if unit.unit_id in packed
        ),
        fused_by=fused.by,
        packing=packing,
        ranking=tuple(Ranked(unit_id=unit.unit_id, fused_score=unit.score) for unit in ranking),
        missing=missing_from(query_terms, tuple(o for o in found.observations if o.unit_id in packed)),
        recheck=recheck,
        notes=tuple(dict.fromkeys((*notes, *fused.notes))),
    )


def state_end(  # noqa: PLR0913 - everything that a packet and its event state stands side by side on purpose
    settings: RunSettings,
    usage: Usage,
    stop_reason: StopReason,
    *,
    items: tuple[EvidenceItem, ...],
    packing: Packing,
    ranking: tuple[Ranked, ...],
    missing: tuple[str, ...],
    recheck: Recheck,
    notes: Sequence[str],
    path: tuple[PathStep, ...] = (),
    fused_by: str = "",
) -> tuple[EvidencePacket, EvidencePacked]:
    """State the end of a run twice: as the packet and as the last event of the trace."""
    all_notes = (*notes, *recheck.notes)
    if any(skip.limit == "fits_alone" for skip in packing.skipped):
        all_notes = (*all_notes, "unit_too_long")
    final_usage = replaced(usage, units=len(packing.unit_ids), chars=packing.chars)
    packet = EvidencePacket(
        query_id=settings.query_id,
        items=items,
        stop_reason=stop_reason,
        resolution=_resolution(stop_reason, all_notes),
        path=path,
        missing_terms=missing,
        limits=settings.limits,
        usage=final_usage,
        notes=all_notes,
    )
    event = EvidencePacked(
        dropped=len(recheck.dropped),
        fused_by=fused_by,
        ranking=ranking,
        packed=packing.unit_ids,
        skipped=packing.skipped,
        chars=packing.chars,
        stop_reason=stop_reason,
        missing_terms=missing,
        notes=all_notes,
        view=recheck.view,
        usage=final_usage,
    )
    return packet, event


def item_of(
    unit: Unit,
    channels: Mapping[Channel, ChannelResult],
    fused_score: float,
    contributions: Mapping[Channel, float] = MappingProxyType({}),
) -> EvidenceItem:
    """A unit as the packet holds it, with where each channel placed it and what each added to its score."""
    return EvidenceItem(
        unit_id=unit.unit_id,
        fingerprint=unit.fingerprint,
        title=unit.title,
        text=unit.text,
        metadata=unit.metadata,
        channels=dict(channels),
        fused_score=fused_score,
        contributions=dict(contributions),
    )


def redact(events: Sequence[TraceEvent], dropped: Collection[str]) -> tuple[TraceEvent, ...]:
    """Replace every mention of a dropped unit by a count; what a decision needs stays."""
    return tuple(_redact_event(event, frozenset(dropped)) for event in events) if dropped else tuple(events)


def steps_before(steps: Sequence[PathStep], dropped: Collection[str]) -> tuple[PathStep, ...]:
    """The hops before the first one whose source was dropped."""
    return tuple(takewhile(lambda step: step.source_unit not in dropped, steps))


def notes_of(
    searches: Sequence[SearchAttempted], units: Mapping[str, Unit], scored: UnitsScored | None = None
) -> tuple[str, ...]:
    """Notes that follow from the searches and from the scoring, in a fixed order."""
    stated = {
        "channel_failed": any(search.outcome == "failed" for search in searches),
        "rows_cut": any(search.cut for search in searches),
        "invalid_rows": any(search.invalid for search in searches),
        "units_unread": any(search.unread for search in searches),
        "metadata_converted": any(unit.metadata_converted for unit in units.values()),
        "fused_by_rank": scored is not None and scored.why_not is not None,
    }
    return tuple(note for note, holds in stated.items() if holds)


def _resolution(stop_reason: StopReason, notes: Sequence[str]) -> Resolution:
    # The test was passed by what was seen; where some of that is gone, nothing says that the rest would pass.
    is_whole = "dropped_at_recheck" not in notes
    return "provisional" if stop_reason in PROVISIONAL and is_whole else "unresolved"


def _redact_event(event: TraceEvent, dropped: frozenset[str]) -> TraceEvent:
    if isinstance(event, SearchAttempted):
        kept = tuple(reference for reference in event.returned if reference.unit_id not in dropped)
        return event.model_copy(update={"returned": kept, "dropped": len(event.returned) - len(kept)})
    if isinstance(event, PathAttempted):
        return event.model_copy(update={"steps": steps_before(event.steps, dropped)})
    if isinstance(event, CoverageAssessed):
        observations = tuple(o for o in event.observations if o.unit_id not in dropped)
        assessment = event.assessment
        if assessment is not None and assessment.best_unit_id in dropped:
            assessment = assessment.model_copy(update={"best_unit_id": None})
        return event.model_copy(
            update={
                "observations": observations,
                "dropped_observations": len(event.observations) - len(observations),
                "assessment": assessment,
            }
        )
    return event
