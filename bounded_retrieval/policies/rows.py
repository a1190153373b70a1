"""Read a searcher's answer: which rows count, which units are new, which may be read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from bounded_retrieval.contracts.candidate import Candidate, Channel, Unit, read_unit
from bounded_retrieval.contracts.unchecked import replaced


@dataclass(frozen=True, kw_only=True)
class Rows:
    """An answer cut to what was asked for: valid rows in order, and counts of the others."""

    valid: tuple[Candidate, ...]
    charged: int
    cut: int
    invalid: int


def read_rows(answer: Any, channel: Channel, most: int) -> tuple[list[Candidate | None], int]:
    """The first ``most`` rows of an answer, none in place of what is no candidate; and how many rows were left out.

    Raises:
        TypeError: the answer is not a list of rows at all.
    """
    if not isinstance(answer, Sequence) or isinstance(answer, (str, bytes)):
        raise TypeError(f"a searcher returns a list of Candidate, not {type(answer).__name__}")
    kept = list(islice(answer, most))
    return [_checked(row, channel) for row in kept], max(0, len(answer) - len(kept))


def _checked(row: Any, channel: Channel) -> Candidate | None:
    """A row with its fields checked again: pydantic has ways to make a candidate without that."""
    if not isinstance(row, Candidate):
        return None
    try:
        return Candidate(unit_id=row.unit_id, channel=channel, rank=row.rank, score=row.score, unit=row.unit)
    except Exception:  # noqa: BLE001 - a row that cannot even be read is no candidate
        return None


def cut_rows(rows: Sequence[Candidate | None], asked: int, cut: int) -> Rows:
    """Cut rows to those asked for; ``cut`` is how many more the searcher returned than it was asked for."""
    kept = rows[:asked]
    valid = tuple(row for row in kept if row is not None)
    return Rows(valid=valid, charged=len(kept), cut=cut, invalid=len(kept) - len(valid))


@dataclass(kw_only=True)
class Reading:
    """Works through one answer's rows in order and decides which units may be read.

    Attributes:
        known: units read by earlier searches, by id.
        reads_left: how many further distinct units may be read.
        private: metadata fields that are not kept.
        merged: ids whose text is that of a unit seen under another id, which their rows then name.
    """

    known: Mapping[str, Unit]
    reads_left: int
    private: Collection[str] = ()
    fresh: dict[str, Unit] = field(default_factory=dict)
    rows: list[Candidate] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    duplicates: int = 0
    unread: int = 0

    def wanted(self, rows: Sequence[Candidate]) -> list[str]:
        """Ids in rank order that bring no text of their own and may still be read."""
        distinct = dict.fromkeys(row.unit_id for row in rows if row.unit_id not in self.known)
        with_text = {row.unit_id for row in rows if row.unit is not None}
        return [unit_id for unit_id in list(distinct)[: self.reads_left] if unit_id not in with_text]

    def take(self, rows: Sequence[Candidate], fetched: Mapping[str, Any]) -> None:
        """Read the rows' units, merging those whose text was already seen under another id."""
        seen: set[str] = set()
        aliases = {unit.fingerprint: unit.unit_id for unit in self.known.values()}
        for row in rows:
            unit_id = self._identify(row, fetched, aliases)
            if unit_id in seen:
                self.duplicates += 1
                continue
            seen.add(unit_id)
            self.rows.append(replaced(row, unit_id=unit_id, rank=len(seen), unit=None))

    def _identify(self, row: Candidate, fetched: Mapping[str, Any], aliases: dict[str, str]) -> str:
        if row.unit_id in self.known or row.unit_id in self.fresh:
            return row.unit_id
        unit = read_unit(row.unit if row.unit is not None else fetched.get(row.unit_id), row.unit_id, self.private)
        if unit is None:
            self.unread += 1
            return row.unit_id
        alias = aliases.get(unit.fingerprint)
        if alias is not None:
            self.merged.append(row.unit_id)
            return alias
        if self.reads_left < 1:
            self.unread += 1
            return row.unit_id
        self.reads_left -= 1
        self.fresh[unit.unit_id] = unit
        aliases[unit.fingerprint] = unit.unit_id
        return unit.unit_id
