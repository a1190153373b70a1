"""Exact cosine similarity over a matrix of vectors, in memory or mapped from ``vectors.npy``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from bounded_retrieval.errors import StoreCorruptError
from bounded_retrieval.retrievers._arrays import read_array
from bounded_retrieval.retrievers._leading import leading
from bounded_retrieval.retrievers.query_vectors import as_matrix

VECTORS = "vectors.npy"
"""float32, shape (units, dimensions): a vector of length 1, or the zero vector, for each unit, by row."""

DECIMALS = 6
"""Cosines are rounded to this many decimals."""

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]

_PART = 8_192  # rows computed with at a time
_MARGIN = 1e-4  # above what float32 can be wrong by, and half of what is rounded off
_LENGTH_ERROR = 1e-3


def unit_length(matrix: Vectors) -> Vectors:
    """Each row at length 1; a zero vector stays as it is. Shape as given."""
    wide = matrix.astype(np.float64)
    # Divided by the largest number first: squares of very large or small ones are none that float64 can hold.
    wide /= _or_one(np.abs(wide).max(axis=1, keepdims=True, initial=0))
    return (wide / _or_one(np.linalg.norm(wide, axis=1, keepdims=True))).astype(np.float32)


def embed_units(embedding: Embeddings, texts: Sequence[str]) -> Vectors:
    """Vectors of texts at length 1, shape (texts, dimensions).

    Raises:
        ConfigurationError: as `as_matrix`.
    """
    return unit_length(as_matrix(embedding, embedding.embed_documents(list(texts)), len(texts)))


def read_vectors(path: Path, units: int, dimensions: int) -> Vectors:
    """Map the file; what stands in it is looked at when it is used.

    Raises:
        StoreCorruptError: it is missing, or not of this shape.
    """
    vectors = read_array(path, np.dtype(np.float32), dimensions)
    if len(vectors) != units:
        raise StoreCorruptError(f"{path}: {len(vectors)} vectors, expected {units}")
    return vectors


def nearest(vectors: Vectors, query: Vectors, k: int, rows: Rows | None, source: str) -> list[tuple[int, float]]:
    """The best ``k`` rows with their cosines, best first, equal ones by row.

    Args:
        vectors: shape (units, dimensions).
        query: shape (dimensions,), at length 1.
        k: 1 or more.
        rows: ascending; only these are looked at. None for all.
        source: what damage is told of.

    Raises:
        StoreCorruptError: a vector is none.
    """
    rough = _rough(vectors, query, rows)
    if (
        rough.size and not -1 - _LENGTH_ERROR <= rough.min() <= rough.max() <= 1 + _LENGTH_ERROR
    ):  # nor is it where one is not a number
        raise StoreCorruptError(f"{source}: a vector is not of length 1")
    kept = leading(rough, k, slack=_MARGIN)
    best = kept if rows is None else rows[kept]
    scores = cosines(vectors, query, best, source)
    order = np.argsort(-scores, kind="stable")[:k]
    return list(zip(best[order].tolist(), scores[order].tolist(), strict=True))


def cosines(vectors: Vectors, query: Vectors, rows: Rows, source: str) -> NDArray[np.float64]:
    """Cosines of the vectors at ``rows`` with the query, rounded; each depends on no other row. Shape (rows,).

    Raises:
        StoreCorruptError: a vector is none.
    """
    scores = np.zeros(len(rows))
    wide = query.astype(np.float64)
    for start in range(0, len(rows), _PART):
        part = slice(start, start + _PART)
        held = vectors[rows[part]].astype(np.float64)
        lengths = np.sqrt(np.square(held).sum(axis=1))
        if not ((lengths == 0) | (np.abs(lengths - 1) <= _LENGTH_ERROR)).all():
            raise StoreCorruptError(f"{source}: a vector is not of length 1")
        scores[part] = (held * wide).sum(axis=1) / _or_one(lengths)
    rounded: NDArray[np.float64] = np.round(scores, DECIMALS) + 0.0  # no -0.0
    return rounded


def _rough(vectors: Vectors, query: Vectors, rows: Rows | None) -> Vectors:
    """Cosines as float32 has them.

    Row by row: a product with the whole matrix would go through the threads of the linear algebra library, which on a
    busy machine wait for each other (24 ms in place of .4 at 10,000 rows).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        if rows is None or 2 * len(rows) > len(vectors):  # gathering rows costs as much as reading twice as many
            whole: Vectors = np.vecdot(vectors, query)
            return whole if rows is None else whole[rows]
        found = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), _PART):
            part = slice(start, start + _PART)
            found[part] = np.vecdot(vectors[rows[part]], query)
    return found


def _or_one(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(lengths > 0, lengths, 1.0)
