"""Pack whole units into a packet's two limits: units and characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bounded_retrieval.contracts.packet import SEPARATOR
from bounded_retrieval.contracts.trace import Skipped


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Which units were packed in order, how many characters they take with separators, and what was skipped."""

    unit_ids: tuple[str, ...]
    chars: int
    skipped: tuple[Skipped, ...]


def pack(ranking: Sequence[str], lengths: Mapping[str, int], max_units: int, max_chars: int) -> Packing:
    """Take units in rank order while whole units fit; a unit is never cut.

    A unit that does not fit the characters left is skipped and the next is tried; separators count.
    """
    packed: list[str] = []
    skipped: list[Skipped] = []
    chars = 0
    for unit_id in ranking:
        length = lengths[unit_id]
        grown = chars + length + (len(SEPARATOR) if packed else 0)
        if length > max_chars:
            skipped.append(Skipped(unit_id=unit_id, chars=length, limit="fits_alone"))
        elif len(packed) >= max_units:
            skipped.append(Skipped(unit_id=unit_id, chars=length, limit="max_units"))
        elif grown > max_chars:
            skipped.append(Skipped(unit_id=unit_id, chars=length, limit="max_chars"))
        else:
            packed.append(unit_id)
            chars = grown
    return Packing(unit_ids=tuple(packed), chars=chars, skipped=tuple(skipped))
