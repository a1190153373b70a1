"""Replay a run from its trace: decide, fuse and pack again from what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langchain_core.documents import Document

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
from bounded_retrieval.errors import RequestError, quoted
from bounded_retrieval.policies.assembly import Found, Recheck, assemble
from bounded_retrieval.policies.fusion import Fusion, scores_in
from bounded_retrieval.policies.paths import assemble_path
from bounded_retrieval.policies.registry import fusion_named
from bounded_retrieval.policies.stopping import INTERRUPTED, decide


def replay(trace: DecisionTrace, units: Mapping[str, Unit | Document], fusion: Fusion | None = None) -> EvidencePacket:
    """Make the packet again from a returned trace, redacted or not, without any search.

    Every recorded decision is taken again by the same code and must come out as recorded.

    Args:
        trace: a whole trace, from ``request_inspected`` to ``evidence_packed``.
        units: what survived the recheck, by id, as a unit source's ``fetch`` gives it; a trace holds no texts.
        fusion: the run's fusion; by default the package's own of the name that the trace states.

    Raises:
        RequestError: the trace is not whole or names another fusion, a unit is missing or has another length, or a
            decision, the ranking or what is packed comes out differently.
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
        texts = _read(units, packed)
        return _unchanged(packed, _replay_path(request, trace.path, texts, packed.dropped, notes))
    stop_reason, usage = _replay_decisions(request, trace)
    texts = _read(units, packed)
    observations = trace.decisions[-1].observations if trace.decisions else ()
    _check_lengths(texts, observations)
    found = Found(units=texts, candidates=_candidates(trace.searches, observations), observations=observations)
    made = assemble(
        request,
        found,
        usage if trace.scored is None else trace.scored.usage,
        stop_reason,
        recheck=Recheck(dropped=frozenset()),
        fusion=fusion,
        notes=notes,
        scores=scores_in(found.rankings(frozenset()), trace.scored, len(request.terms)),
    )
    if made[1].ranking != packed.ranking:
        raise RequestError(f"trace: its ranking was made by {request.fusion} at other settings")
    return _unchanged(packed, made)


def _read(units: Mapping[str, Unit | Document], packed: EvidencePacked) -> dict[str, Unit]:
    wanted = dict.fromkeys([*(unit.unit_id for unit in packed.ranking), *packed.packed])
    missing = [unit_id for unit_id in wanted if unit_id not in units]
    if missing:
        raise RequestError(f"units: {len(missing)} of {len(wanted)} are missing, the first {quoted(missing[0])}")
    return {
        unit_id: unit if isinstance(unit, Unit) else Unit.from_document(unit, unit_id)
        for unit_id, unit in units.items()
    }


def _check_lengths(units: Mapping[str, Unit], observations: Sequence[Observation]) -> None:
    for seen in observations:
        unit = units.get(seen.unit_id)
        if unit is not None and len(unit.text) != seen.chars:
            raise RequestError(f"units: {quoted(seen.unit_id)} had {seen.chars} characters (got {len(unit.text)})")


def _unchanged(packed: EvidencePacked, made: tuple[EvidencePacket, EvidencePacked]) -> EvidencePacket:
    packet, again = made
    for name in ("packed", "skipped", "chars", "stop_reason"):
        then, now = getattr(packed, name), getattr(again, name)
        if then != now:
            raise RequestError(f"trace: {name} was {quoted(then)} but replays as {quoted(now)}")
    return packet


def _replay_path(
    request: RunSettings, attempt: PathAttempted, units: Mapping[str, Unit], dropped: int, notes: tuple[str, ...]
) -> tuple[EvidencePacket, EvidencePacked]:
    # Hops whose source was dropped are gone from the trace, and with them the path.
    if dropped and attempt.outcome == "followed":
        attempt = attempt.model_copy(update={"outcome": "unresolved"})
    recheck = Recheck(dropped=frozenset())
    return assemble_path(request, attempt, units, attempt.usage, recheck=recheck, notes=notes)


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
