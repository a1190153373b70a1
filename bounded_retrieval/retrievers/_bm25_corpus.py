"""The tokenised corpus behind a lexical index: every unit's terms as integer ids."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.contracts.candidate import Unit, searchable_text
from bounded_retrieval.errors import StoreCorruptError
from bounded_retrieval.policies.tokenize import index_terms

_PART_TOKENS = 4_000_000


@dataclass(frozen=True, kw_only=True)
class TokenCorpus:
    """Terms of all units by row: unit ``r`` holds the term ids ``flat[offsets[r] : offsets[r + 1]]``.

    Attributes:
        vocabulary: id of each term, from 0 without gaps; every term occurs in some unit.
        flat: int32, shape (terms of all units,).
        offsets: int64, shape (units + 1,), ascending from 0.
        source: the file that ``flat`` is mapped from, where it is.
    """

    vocabulary: Mapping[str, int]
    flat: NDArray[np.int32]
    offsets: NDArray[np.int64]
    source: Path | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[list[int]]:
        return (self.flat[self.offsets[row] : self.offsets[row + 1]].tolist() for row in range(len(self)))

    def check(self) -> None:
        """Look whether each term id is one of the vocabulary's.

        Raises:
            StoreCorruptError: names the file.
        """
        if self.source and self.flat.size and not 0 <= self.flat.min() <= self.flat.max() < len(self.vocabulary):
            raise StoreCorruptError(f"{self.source}: a term id is none of 0 to {len(self.vocabulary) - 1}")

    def take(self, rows: NDArray[np.int64]) -> TokenCorpus:
        """The given rows in the given order; terms that none of them holds leave the vocabulary."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return _without_unused(self.vocabulary, gathered(self.flat, self.offsets[:-1][rows], lengths), offsets)


class CorpusBuilder:
    """Tokenises units one by one, in any order, and keeps nothing of them but term ids and unit ids.

    Args:
        base: a corpus that the new one starts from; its texts are not tokenised again.
        base_ids: unit ids of its rows.

    Raises:
        StoreCorruptError: the base is mapped from a damaged file.
    """

    def __init__(self, base: TokenCorpus | None = None, base_ids: Sequence[str] = ()) -> None:
        if base is not None:
            base.check()
        self._base = base
        self._ids = list(base_ids)
        self._vocabulary = dict(base.vocabulary) if base else {}
        self._flat = array("i")
        self._lengths = array("q")

    def add(self, unit: Unit) -> None:
        """Add a unit; with an id already there, it takes that unit's place."""
        terms = terms_of(unit)
        vocabulary = self._vocabulary
        self._flat.extend(vocabulary.setdefault(term, len(vocabulary)) for term in terms)
        self._lengths.append(len(terms))
        self._ids.append(unit.unit_id)

    def build(self, unit_ids: Sequence[str]) -> TokenCorpus:
        """The corpus of the given units, in the order given (ascending, for an index)."""
        flat = np.array(self._flat, dtype=np.int32)
        lengths = np.array(self._lengths, dtype=np.int64)
        if self._base is not None:
            flat = np.concatenate([self._base.flat, flat])
            lengths = np.concatenate([np.diff(self._base.offsets), lengths])
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = {unit_id: place for place, unit_id in enumerate(self._ids)}
        rows = np.array([places[unit_id] for unit_id in unit_ids], dtype=np.int64)
        return TokenCorpus(vocabulary=self._vocabulary, flat=flat, offsets=offsets).take(rows)


def terms_of(unit: Unit) -> list[str]:
    """The terms that a unit is indexed by, as often as they count."""
    # A title says in a few words what the text is about; counting it twice ranks better on every collection tried.
    return index_terms(searchable_text(unit.title, unit.text)) + index_terms(unit.title)


def row_parts(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of rows that hold some four million terms each, or a single row that holds more."""
    first, rows = 0, len(offsets) - 1
    while first < rows:
        end = int(np.searchsorted(offsets, offsets[first] + _PART_TOKENS, side="right")) - 1
        end = min(max(end, first + 1), rows)
        yield first, end
        first = end


def gathered(flat: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """The spans of an array that begin at ``starts``, one after the other."""
    begin = np.cumsum(lengths) - lengths
    shifts = np.repeat(starts - begin, lengths)
    return flat[shifts + np.arange(len(shifts))]


def _without_unused(vocabulary: Mapping[str, int], flat: NDArray[np.int32], offsets: NDArray[np.int64]) -> TokenCorpus:
    used = np.bincount(flat, minlength=len(vocabulary)) > 0
    if not used.all():
        renumbered = np.cumsum(used, dtype=np.int32) - 1
        flat = renumbered[flat]
        vocabulary = {term: int(renumbered[term_id]) for term, term_id in vocabulary.items() if used[term_id]}
    return TokenCorpus(vocabulary=vocabulary, flat=flat, offsets=offsets)
