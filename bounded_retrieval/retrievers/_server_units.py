"""What the adapters of servers share: time limits, batches of units, rows that come back and their order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Real
from typing import Any

import numpy as np
from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Candidate, Channel, Unit
from bounded_retrieval.contracts.filters import Predicate
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.time_left import seconds_left
from bounded_retrieval.errors import ConfigurationError, EmbeddingMismatchError, quoted
from bounded_retrieval.retrievers._vectors import Vectors, cosines
from bounded_retrieval.retrievers.units import read_units

OVERFETCH_CAP = 1_000
"""Most rows asked of a server for one search (``k`` and its slack, if more) when a filter drops rows that came back."""

TIMEOUT_MS = 10_000
"""How long a call may take by default."""

SLACK = 8
"""Rows beyond ``k``, so that equal scores at the cut are told apart by id."""

LARGEST_TIMEOUT_MS = 600_000

Progress = Callable[[int, int], None]
"""Called after each batch with the units done and the units in all, or those done again where nobody knows."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A unit that came back, with its score."""

    unit: Document
    unit_id: str
    score: float


def checked_timeout(timeout_ms: float) -> float:
    """The time limit in seconds.

    Raises:
        ConfigurationError: it is none.
    """
    is_number = isinstance(timeout_ms, Real) and not isinstance(timeout_ms, bool)
    if not (is_number and math.isfinite(timeout_ms) and 0 < timeout_ms <= LARGEST_TIMEOUT_MS):
        raise ConfigurationError(f"timeout_ms: expected above 0 and at most {LARGEST_TIMEOUT_MS} (got {timeout_ms!r})")
    return timeout_ms / 1000


def checked_text(name: str, given: Any) -> str:
    """A text that a caller gave.

    Raises:
        ConfigurationError: it is something else; names the parameter.
    """
    if not isinstance(given, str):
        raise ConfigurationError(f"{name}: expected text (got {quoted(given)})")
    return given


def within_deadline(timeout: float) -> float:
    """Seconds that a call may take: its own limit, or what is left of the run's deadline where that is less."""
    left = seconds_left()
    # A call that was begun in time is made; a limit of 0 means none to some clients.
    return timeout if left is None else max(0.001, min(timeout, left))


def until(end: float) -> float:
    """Seconds that the next of several calls may take which have to end by a time, as `time.monotonic` tells it."""
    return max(0.001, end - time.monotonic())


def batches(
    documents: Iterable[Document], id_key: str | None, size: int, progress: Progress | None
) -> Iterator[list[Unit]]:
    """Units of documents, read as they are asked for; ``progress`` is told when the next batch is.

    Raises:
        SourceError: a text is blank, or one id stands for two texts.
    """
    total = len(documents) if isinstance(documents, Sequence) else 0
    units = read_units(documents, id_key)
    done = 0
    while batch := list(islice(units, size)):
        yield batch
        done += len(batch)
        if progress is not None:
            progress(done, max(done, total))


def storable_ids(unit_ids: Iterable[str]) -> list[str]:
    """Distinct ids that can exist."""
    return [unit_id for unit_id in dict.fromkeys(unit_ids) if unit_id and clean_text(unit_id) == unit_id]


def cosines_of(query: Vectors, vectors: Sequence[Any], source: str) -> list[float]:
    """Cosine similarity of a query's vector with each stored one, as the embedded index has it: to six decimals.

    Raises:
        EmbeddingMismatchError: they have another number of dimensions.
        StoreCorruptError: a stored vector is not of length 1.
    """
    if not len(vectors):
        return []
    matrix = np.asarray(vectors, dtype=np.float32)
    if matrix.shape[1] != len(query):
        raise EmbeddingMismatchError(
            f"{source}: holds vectors of {matrix.shape[1]} dimensions, the embedding gives {len(query)}"
        )
    scores: list[float] = cosines(matrix, query, np.arange(len(matrix)), source).tolist()
    return scores


def best_rows(
    ask: Callable[[int], list[Row]], k: int, first: int, accepts: Predicate, *, is_settled: bool = True
) -> list[Row]:
    """The best ``k`` rows that pass, by score and then id; more are asked for while some of those that came do not.

    Args:
        ask: gives at most so many rows, those that the server ranks first.
        k: how many are wanted.
        first: how many to ask for at first.
        accepts: what a unit's metadata has to pass.
        is_settled: whether the server lets through nothing but what passes.
    """
    asked, cap = first, max(OVERFETCH_CAP, first)
    while True:
        rows = ask(asked)
        kept = [row for row in rows if accepts(row.unit.metadata)]
        if is_settled or len(rows) < asked or asked == cap or len(kept) >= first:
            return sorted(kept, key=lambda row: (-row.score, row.unit_id))[:k]
        asked = min(4 * asked, cap)


def candidates(rows: Iterable[Row], channel: Channel) -> list[Candidate]:
    """Rows in their order as candidates."""
    return [
        Candidate(unit_id=row.unit_id, channel=channel, rank=rank, score=row.score, unit=row.unit)
        for rank, row in enumerate(rows, 1)
    ]
