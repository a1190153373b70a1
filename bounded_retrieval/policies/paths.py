"""The structured route: choose each hop among declared relationships, and assemble the packet of a path.

A relationship counts where its source unit can be shown: it exists, the caller may see it, and its text is the one for
which the relationship was declared. One that does not count and one that was never declared are the same thing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.packet import EvidencePacket, PathStep
from bounded_retrieval.contracts.relationships import EntityName, Relationship
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import EvidencePacked, PathAttempted, PathOutcome, Ranked
from bounded_retrieval.errors import RequestError
from bounded_retrieval.policies.assembly import Recheck, item_of, state_end, steps_before
from bounded_retrieval.policies.packing import Packing, pack
from bounded_retrieval.policies.stopping import INTERRUPTED

_REASONS: Mapping[PathOutcome, StopReason] = {
    "followed": StopReason.PATH_FOLLOWED,
    "unresolved": StopReason.PATH_UNRESOLVED,
    "ambiguous": StopReason.AMBIGUOUS_REQUEST,
    "failed": StopReason.RETRIEVAL_FAILED,
    "not_started": StopReason.RESOURCE_BUDGET_EXHAUSTED,
}

_NOTHING = Packing(unit_ids=(), chars=0, skipped=())


def check_hops(settings: RunSettings) -> None:
    """Refuse a path whose hops, each reading its source unit, exceed the reads allowed.

    Raises:
        RequestError: names the limit and the value.
    """
    hops = 0 if settings.path is None else len(settings.path.relations)
    if hops > settings.limits.max_reads:
        raise RequestError(f"path.relations: at most max_reads {settings.limits.max_reads} hops (got {hops})")


def find_start(names: Sequence[EntityName], shown: Mapping[str, Unit]) -> list[str]:
    """The entities that go by the start's name, among sources that can be shown."""
    return sorted({name.entity_id for name in names if name.source_unit in shown})


def find_hops(relationships: Sequence[Relationship], shown: Mapping[str, Unit]) -> list[Relationship]:
    """The relationships that count, one for each object: the first by the id of its source unit.

    An entity exists where a source that can be shown mentions it; names that only hidden units declare change nothing.
    ``shown`` holds the source units that can be shown, by id.
    """
    counting: dict[str, Relationship] = {}
    for relationship in sorted(relationships, key=lambda each: each.source_unit):
        unit = shown.get(relationship.source_unit)
        if unit is not None and relationship.source_fingerprint in (None, unit.fingerprint):
            counting.setdefault(relationship.object, relationship)
    return [counting[entity_id] for entity_id in sorted(counting)]


def assemble_path(  # noqa: PLR0913 - the inputs of the last step stand side by side on purpose
    settings: RunSettings,
    attempt: PathAttempted,
    units: Mapping[str, Unit],
    usage: Usage,
    *,
    recheck: Recheck,
    notes: Sequence[str],
) -> tuple[EvidencePacket, EvidencePacked]:
    """Pack the source units of a followed path in its order, if the whole path survived the recheck and fits.

    A path that does not fit, or was interrupted, is not claimed; whole units of it that fit are packed. Of a path that
    could not be followed nothing is packed.
    """
    steps = steps_before(attempt.steps, recheck.dropped)
    stop_reason = _REASONS[attempt.outcome] if attempt.interruption is None else INTERRUPTED[attempt.interruption]
    if stop_reason is StopReason.PATH_FOLLOWED and len(steps) < len(attempt.steps):
        stop_reason = StopReason.PATH_UNRESOLVED
    order = [unit_id for unit_id in dict.fromkeys(step.source_unit for step in steps) if unit_id in units]
    lengths = {unit_id: len(units[unit_id].text) for unit_id in order}
    packing = pack(order, lengths, settings.limits.max_units, settings.limits.max_chars)
    if stop_reason is StopReason.PATH_FOLLOWED and packing.skipped:
        stop_reason = StopReason.RESOURCE_BUDGET_EXHAUSTED
    if stop_reason in (StopReason.PATH_UNRESOLVED, StopReason.AMBIGUOUS_REQUEST, StopReason.RETRIEVAL_FAILED):
        packing, order = _NOTHING, []
    relations = () if settings.path is None else settings.path.relations
    claimed = steps if stop_reason is not StopReason.RESOURCE_BUDGET_EXHAUSTED else _packed(steps, packing)
    return state_end(
        settings,
        usage,
        stop_reason,
        items=tuple(item_of(units[unit_id], {}, 0.0) for unit_id in packing.unit_ids),
        packing=packing,
        ranking=tuple(Ranked(unit_id=unit_id, fused_score=0.0) for unit_id in order),
        missing=relations[len(claimed) :],
        recheck=recheck,
        notes=notes,
        path=steps if stop_reason is StopReason.PATH_FOLLOWED else (),
    )


def _packed(steps: Sequence[PathStep], packing: Packing) -> tuple[PathStep, ...]:
    return tuple(takewhile(lambda step: step.source_unit in packing.unit_ids, steps))
