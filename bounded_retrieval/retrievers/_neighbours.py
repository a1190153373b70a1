"""Which units resemble each unit most, worked out once when an index is built, and how far they support its score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.errors import StoreCorruptError
from bounded_retrieval.retrievers._arrays import read_array

NEIGHBOURS = 4
"""How many are kept of each unit."""

SUPPORT = 0.2
"""Share of a unit's score that its neighbours give: of ``likeness * score``, the highest."""

LENT = 0.3
"""Share of what a word adds to a neighbour's score, times the likeness, that a unit gets which lacks the word."""

NEIGHBOUR_FILES: dict[str, np.dtype[Any]] = {"neighbours.npy": np.dtype(np.int32), "likeness.npy": np.dtype(np.float32)}
NOBODY = -1

Scores = NDArray[np.float64]
Gains = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The units most like each unit, most like first.

    Attributes:
        rows: int32, shape (units, `NEIGHBOURS`): their rows; `NOBODY` where there are fewer.
        likeness: float32, same shape: cosine with each, above 0 and at most 1; 0 beside `NOBODY`.
        source: the folder that both are mapped from, where they are.
    """

    rows: NDArray[np.int32]
    likeness: NDArray[np.float32]
    source: Path | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Neighbours and likenesses of some units, shapes (rows, `NEIGHBOURS`).

        Raises:
            StoreCorruptError: what stands in the files cannot be that.
        """
        near, likeness = self.rows[rows], self.likeness[rows]
        if self.source is not None and near.size:
            if not NOBODY <= near.min() <= near.max() < len(self):
                raise StoreCorruptError(f"{self.source}/neighbours.npy: a row is none of 0 to {len(self) - 1}")
            if not 0 <= likeness.min() <= likeness.max() <= 1:  # nor is it where one is not a number
                raise StoreCorruptError(f"{self.source}/likeness.npy: a value is not from 0 to 1")
        return near, likeness

    def moved(self, new_rows: NDArray[np.int64], units: int) -> Neighbours:
        """The same of another set of units.

        Args:
            new_rows: where each unit stands there, by its row here; `NOBODY` for one that is gone or has another text,
                which then has no neighbours and is nobody's.
            units: how many there are; those that no row leads to have none.
        """
        rows = np.full((units, self.rows.shape[1]), NOBODY, dtype=np.int32)
        likeness = np.zeros(rows.shape, dtype=np.float32)
        stay = np.flatnonzero(new_rows != NOBODY)
        old, like = self.of(stay)
        found = np.where(old == NOBODY, NOBODY, new_rows[old])
        rows[new_rows[stay]] = found
        likeness[new_rows[stay]] = np.where(found == NOBODY, 0, like)
        return Neighbours(rows=rows, likeness=likeness)


def supported(own: Gains, near: Gains, likeness: NDArray[np.float32]) -> Scores:
    """Scores of units with the support of their neighbours, shape (units,).

    A neighbour supports a unit as far as they are alike, since who resembles a unit is likely to be about the same in
    other words: for a word of the query that the unit lacks it lends what the word adds to its own score, and then it
    gives of its whole score. Of several neighbours the one counts that has most to lend, or to give.

    Args:
        own: what each term of the query adds to the units' scores, shape (terms, units).
        near: what it adds to the neighbours', 0 in place of `NOBODY`, shape (terms, units, `NEIGHBOURS`).
        likeness: shape (units, `NEIGHBOURS`).
    """
    lent = LENT * (near * likeness).max(axis=2, initial=0.0)
    given = (added_up(near) * likeness).max(axis=1, initial=0.0)
    found: Scores = (1 - SUPPORT) * added_up(np.where(own > 0, own, lent)) + SUPPORT * given
    return found


def with_unsupported(own: Scores, is_supported: NDArray[np.bool_], found: Scores) -> Scores:
    """Scores of units of which only those that hold most of the query had their neighbours looked at.

    The others get nothing from theirs. Each holds less than any of those by its own words, so it scores no more than
    they do: how many units are asked for changes nothing in which come first.

    Args:
        own: what the units score by themselves, shape (units,).
        is_supported: which of them had, same shape.
        found: scores of these with support, in the same order.
    """
    scores: Scores = (1 - SUPPORT) * own
    scores[is_supported] = found
    return scores


def added_up(gains: Gains) -> Scores:
    """Scores from what each term adds to them (the first dimension), term after term as a search adds them up."""
    scores: Scores = np.zeros(gains.shape[1:])
    for gain in gains:
        scores += gain
    return scores


def read_neighbours(folder: Path, units: int) -> Neighbours:
    """Map the two files.

    Raises:
        StoreCorruptError: one is missing, or not of so many units.
    """
    found = [read_array(folder / name, dtype, NEIGHBOURS) for name, dtype in NEIGHBOUR_FILES.items()]
    for name, values in zip(NEIGHBOUR_FILES, found, strict=True):
        if len(values) != units:
            raise StoreCorruptError(f"{folder / name}: {len(values)} units, expected {units}")
    return Neighbours(rows=found[0], likeness=found[1], source=folder)
