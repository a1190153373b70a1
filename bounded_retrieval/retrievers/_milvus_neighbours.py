"""Which units are most like each: a third collection, one row a unit, found as in the embedded index and read by key.

Keys are digests of unit ids: a condition can name them whatever stands in an id, and none is that of the mark which
says that neighbours are known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from bounded_retrieval.retrievers import _milvus_rows as rows
from bounded_retrieval.retrievers._bm25_index import ROUNDING, SCORE_DECIMALS, SUPPORTED
from bounded_retrieval.retrievers._facets import facet
from bounded_retrieval.retrievers._finding_neighbours import find_neighbours
from bounded_retrieval.retrievers._leading import leading
from bounded_retrieval.retrievers._milvus_client import MilvusConnection
from bounded_retrieval.retrievers._milvus_collection import BATCH, UnitCollection, create_units, recorded
from bounded_retrieval.retrievers._milvus_statistics import Scores, TermStatistics, all_rows
from bounded_retrieval.retrievers._neighbours import NEIGHBOURS, NOBODY, supported, with_unsupported
from bounded_retrieval.retrievers._neighbours import Scores as Totals
from bounded_retrieval.retrievers._server_units import within_deadline
from bounded_retrieval.retrievers._vectors import Vectors

_KNOWN = "#known"  # no digest has that sign
_KEY_CHARS = 32
_NAMED = 100  # keys in one condition; milvus-lite compares each of them with each row
_POINT = [1.0, 0.0]  # a collection has to have vectors

Likeness = Mapping[str, float]
"""A unit's neighbours by id, most like first, with their cosines."""


class UnitNeighbours:
    """Reads and writes them; nothing is kept. Any number of threads may read; one writer at a time, in all processes.

    Errors are those of `MilvusConnection.call`.
    """

    def __init__(self, connection: MilvusConnection) -> None:
        self._units = connection
        self._near = connection.of(f"{connection.collection}_neighbours")

    def create(self) -> None:
        """Make the collection, if it is not there."""
        from pymilvus import DataType

        schema, indexes = self._near.schema(), self._near.indexes()
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=_KEY_CHARS)
        listed = {"datatype": DataType.ARRAY, "max_capacity": NEIGHBOURS}
        schema.add_field("near", element_type=DataType.VARCHAR, max_length=rows.ID_BYTES, **listed)
        schema.add_field("near_keys", element_type=DataType.VARCHAR, max_length=_KEY_CHARS, **listed)
        schema.add_field("likeness", element_type=DataType.FLOAT, **listed)
        schema.add_field("point", DataType.FLOAT_VECTOR, dim=len(_POINT))
        indexes.add_index("point", index_type="FLAT", metric_type="L2")
        self._near.make(schema, indexes)

    def drop(self) -> None:
        """Delete the collection."""
        self._near.on_collection("drop_collection")

    def of(self, unit_ids: Iterable[str]) -> dict[str, Likeness] | None:
        """The neighbours of those of some units that have a row; None where nobody's are known."""
        found: dict[str, Likeness] = {}
        ids = {_key(unit_id): unit_id for unit_id in unit_ids}
        wanted, is_known = [_KNOWN, *ids], False
        for start in range(0, len(wanted), BATCH):
            for row in self._read(wanted[start : start + BATCH]):
                if row["id"] == _KNOWN:
                    is_known = True
                else:
                    found[ids[row["id"]]] = dict(zip(row["near"], row["likeness"], strict=True))
            if not is_known:
                return None
        return found

    def work_out(self) -> None:
        """Find the neighbours of all units by their vectors, and write them down; rows of units that are gone leave.

        All vectors are held in memory meanwhile, at first twice, at 4 bytes a dimension. A search under way finds each
        unit's old neighbours or its new ones.
        """
        ids, vectors = self._vectors()
        found = find_neighbours(vectors)
        held = {row["id"] for batch in all_rows(self._near, ["id"]) for row in batch}
        for start in range(0, len(ids), BATCH):
            part = range(start, min(start + BATCH, len(ids)))
            self._put(_row(ids, unit, found.rows[unit], found.likeness[unit]) for unit in part)
        self._delete(list(held - {_KNOWN, *map(_key, ids)}))
        # Last: until then a collection that had none ranks as if it had none.
        self._put([{"id": _KNOWN, "near": [], "near_keys": [], "likeness": [], "point": _POINT}])

    def forget(self, unit_ids: Iterable[str]) -> None:
        """Delete some units' rows, and take those units from the rows of all others."""
        gone = list(map(_key, unit_ids))
        leaving = set(gone)
        self._delete(gone)
        for start in range(0, len(gone), _NAMED):
            named = gone[start : start + _NAMED]
            condition = f"array_contains_any(near_keys, [{', '.join(map(_quoted, named))}])"
            for batch in all_rows(self._near, ["near", "near_keys", "likeness"], condition):
                self._put(_without(row, leaving) for row in batch)

    def _vectors(self) -> tuple[list[str], Vectors]:
        """Ids, ascending, and the vectors beside them."""
        ids: list[str] = []
        parts: list[Vectors] = [np.zeros((0, 1), dtype=np.float32)]
        for batch in all_rows(self._units, ["id", "vector"]):
            ids += [row["id"] for row in batch]
            parts.append(np.asarray([row["vector"] for row in batch], dtype=np.float32))
        order = sorted(range(len(ids)), key=ids.__getitem__)
        vectors = np.concatenate(parts[1:] or parts)
        return [ids[row] for row in order], vectors[order]

    def _read(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        limit = within_deadline(self._near.timeout)
        return list(self._near.on_collection("get", limit, ids=keys, output_fields=["near", "likeness"]))

    def _put(self, data: Iterable[dict[str, Any]]) -> None:
        self._near.on_collection("upsert", data=list(data))

    def _delete(self, keys: list[str]) -> None:
        for start in range(0, len(keys), BATCH):
            self._near.on_collection("delete", ids=keys[start : start + BATCH])


def create(connection: MilvusConnection, embedding: Embeddings) -> None:
    """Make a collection of units, after those beside it, or what is lacking of them."""
    create_units(connection, embedding, partial(_make_beside, connection, is_new=True))


def opened(connection: MilvusConnection, embedding: Embeddings | None) -> Embeddings:
    """What `recorded` gives; collections beside that of the units are made where they are not there."""
    chosen = recorded(connection, embedding)
    _make_beside(connection, is_new=False)
    return chosen


def _make_beside(connection: MilvusConnection, *, is_new: bool) -> None:
    UnitNeighbours(connection).create()
    TermStatistics(connection, 0).create(is_new=is_new)


class SupportedScores:
    """Scores of units with the support of their neighbours, as in the embedded index.

    Args:
        units: where the terms of neighbours are read.
        neighbours: who is whose.
    """

    def __init__(self, units: UnitCollection, neighbours: UnitNeighbours) -> None:
        self._units = units
        self._neighbours = neighbours

    def of(self, scores: Scores, terms: Mapping[str, str]) -> dict[str, float]:
        """Rounded scores of units by id, given their encoded terms; their own where nobody's neighbours are known.

        Raises:
            StoreError: the server is not there, took too long or refused.
        """
        own = {unit_id: scores.gains(held) for unit_id, held in terms.items()}
        found = self._supported(scores, own)
        return _rounded(list(own), _summed(own) if found is None else found)

    def best(self, scores: Scores, terms: Mapping[str, str], k: int) -> dict[str, float]:
        """The same of the ``k`` best, and of others, as in the embedded index."""
        own = {unit_id: scores.gains(held) for unit_id, held in terms.items()}
        ids, sums = np.array(list(own), dtype=object), _summed(own)
        near = leading(sums, SUPPORTED, slack=ROUNDING, above=0.0)
        kept = leading(sums, max(k, SUPPORTED), slack=ROUNDING, above=0.0)
        found = self._supported(scores, {unit_id: own[unit_id] for unit_id in ids[near]})
        if found is None:
            return _rounded(list(ids[kept]), sums[kept])
        return _rounded(list(ids[kept]), with_unsupported(sums[kept], np.isin(kept, near), found))

    def _supported(self, scores: Scores, own: Mapping[str, Sequence[float]]) -> Totals | None:
        """Scores of units given what each term adds to them; None where nobody's neighbours are known."""
        near = self._neighbours.of(own) if scores.terms and own else None
        if near is None:
            return None
        others = sorted({other for like in near.values() for other in like} - own.keys())
        found = self._units.rows(others, ["terms"], self._units.search_seconds)
        known = {**own, **{unit_id: scores.gains(row["terms"]) for unit_id, row in found.items()}}
        given = np.zeros((len(scores.terms), len(own), NEIGHBOURS))
        likeness = np.zeros(given.shape[1:], dtype=np.float32)
        for place, unit_id in enumerate(own):
            for column, (other, like) in enumerate(near.get(unit_id, {}).items()):
                given[:, place, column], likeness[place, column] = known.get(other, 0.0), like
        return supported(np.array(list(own.values())).T, given, likeness)


def _summed(gains: Mapping[str, Sequence[float]]) -> Totals:
    return np.array([sum(each) for each in gains.values()], dtype=np.float64)


def _rounded(ids: list[str], scores: Totals) -> dict[str, float]:
    return dict(zip(ids, np.round(scores, SCORE_DECIMALS).tolist(), strict=True))


def _key(unit_id: str) -> str:
    return facet("unit", unit_id)


def _quoted(key: str) -> str:
    return f'"{key}"'


def _row(ids: Sequence[str], unit: int, near: Any, likeness: Any) -> dict[str, Any]:
    others = [ids[row] for row in near if row != NOBODY]
    return {
        "id": _key(ids[unit]),
        "near": others,
        "near_keys": [_key(other) for other in others],
        "likeness": likeness[: len(others)].tolist(),
        "point": _POINT,
    }


def _without(row: Mapping[str, Any], gone: Collection[str]) -> dict[str, Any]:
    stay = [place for place, key in enumerate(row["near_keys"]) if key not in gone]
    listed = {field: [row[field][place] for place in stay] for field in ("near", "near_keys", "likeness")}
    return {"id": row["id"], **listed, "point": _POINT}
