"""Replay a run from its trace: decide, fuse and pack again from what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bounded_retrieval.contracts.assessment import Observation
from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Candidate, Unit
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import (
    CoverageAssessed,
    DecisionTrace,
    EvidencePacked,
    PathAttempted,
    SearchAttempted,
)
from bounded_retrieval.errors import RequestError
from bounded_retrieval.policies.assembly import Found, Recheck, assemble
from bounded_retrieval.policies.fusion import Fusion, scores_in
from bounded_retrieval.policies.paths import assemble_path
from bounded_retrieval.policies.registry import fusion_named
from bounded_retrieval.policies.stopping import INTERRUPTED, decide


def replay(trace: DecisionTrace, units: Mapping[str, Unit], fusion: Fusion | None = None) -> EvidencePacket:
    """Make the packet again from a returned trace, redacted or not, without any search.

    Every recorded decision is taken again by the same code and must come out as recorded.

    Args:
        trace: a whole trace, from ``request_inspected`` to ``evidence_packed``.
        units: the texts of the units that survived the recheck (a trace holds none), by id.
        fusion: the run's fusion; by default the package's own of the name that the trace states.

    Raises:
        RequestError: the trace is not whole, names another fusion, or a decision or the ranking comes out differently.
        ConfigurationError: no fusion was given, and the package has none of the trace's name.
    """
    request, packed = trace.events[0] if trace.events else None, trace.events[-1] if trace.events else None
    if not isinstance(request, RunSettings) or not isinstance(packed, EvidencePacked):
        raise RequestError("trace: not whole; it runs from request_inspected to evidence_packed")
    fusion = fusion_named(request.fusion) if fusion is None else fusion
    if request.fusion != fusion.name:
        raise RequestError(f"trace: was fused by {request.fusion}, not {fusion.name}")
    notes = tuple(note for note in packed.notes if note != "unit_too_long")
    if trace.path is not None:
        return _replay_path(request, trace.path, units, packed.dropped, notes)
    stop_reason, usage = _replay_decisions(request, trace)
    observations = trace.decisions[-1].observations if trace.decisions else ()
    found = Found(units=units, candidates=_candidates(trace.searches, observations), observations=observations)
    packet, made = assemble(
        request,
        found,
        usage if trace.scored is None else trace.scored.usage,
        stop_reason,
        recheck=Recheck(dropped=frozenset()),
        fusion=fusion,
        notes=notes,
        scores=scores_in(found.rankings(frozenset()), trace.scored, len(request.terms)),
    )
    ranked = {unit.unit_id for unit in packed.ranking}
    if ranked <= units.keys() and made.ranking != packed.ranking:
        raise RequestError(f"trace: its ranking was made by {request.fusion} at other settings")
    return packet


def _replay_path(
    request: RunSettings, attempt: PathAttempted, units: Mapping[str, Unit], dropped: int, notes: tuple[str, ...]
) -> EvidencePacket:
    # Hops whose source was dropped are gone from the trace, and with them the path.
    if dropped and attempt.outcome == "followed":
        attempt = attempt.model_copy(update={"outcome": "unresolved"})
    recheck = Recheck(dropped=frozenset())
    packet, _ = assemble_path(request, attempt, units, attempt.usage, recheck=recheck, notes=notes)
    return packet


def _replay_decisions(settings: RunSettings, trace: DecisionTrace) -> tuple[StopReason, Usage]:
    searches: list[SearchAttempted] = []
    stop_reason, usage = StopReason.RESOURCE_BUDGET_EXHAUSTED, Usage()
    if not trace.decisions and trace.searches and trace.searches[-1].interruption is not None:
        return INTERRUPTED[trace.searches[-1].interruption], usage  # discarded at the recheck, before any decision
    for event in trace.events:
        if isinstance(event, SearchAttempted):
            searches.append(event)
        elif isinstance(event, CoverageAssessed):
            if not searches:
                raise RequestError("trace: not whole; a decision comes before any search")
            usage = event.usage
            decision = decide(settings, searches, event.assessment, usage, steps_suffice=event.steps_suffice)
            if (decision.action, decision.stop_reason) != (event.action, event.stop_reason):
                raise RequestError(
                    f"trace: decision {len(searches)} was {event.action} ({event.stop_reason}) "
                    f"but replays as {decision.action} ({decision.stop_reason})"
                )
            stop_reason = decision.stop_reason or stop_reason
    return stop_reason, usage


def _candidates(searches: Sequence[SearchAttempted], observations: Sequence[Observation]) -> list[Candidate]:
    observed = {observation.unit_id for observation in observations}
    return [
        Candidate(unit_id=row.unit_id, channel=search.channel, rank=row.rank, score=row.score)
        for search in searches
        for row in search.returned
        if row.unit_id in observed
    ]
