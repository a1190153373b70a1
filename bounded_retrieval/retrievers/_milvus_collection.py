"""One Milvus collection of units: how it is made, what it records, and what is read from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.filters import Filter
from bounded_retrieval.contracts.time_left import time_left
from bounded_retrieval.errors import EmbeddingMismatchError, StoreVersionError
from bounded_retrieval.policies.tokenize import INDEX_TERMS_NAME
from bounded_retrieval.retrievers import _milvus_rows as rows
from bounded_retrieval.retrievers._milvus_client import MilvusConnection
from bounded_retrieval.retrievers._server_units import storable_ids, until, within_deadline
from bounded_retrieval.retrievers._vectors import embed_units
from bounded_retrieval.retrievers.embeddings import builtin_embedding, embedding_identity

BATCH = 500
"""Units written, or read by id, in one call."""

_VECTORS = ("sparse", "vector")  # fields that have an index
_EMBEDDING, _TERMS = "bounded_retrieval.embedding", "bounded_retrieval.terms"
_TERMS_NAME = f"{INDEX_TERMS_NAME}, format {rows.TERMS_FORMAT}"


_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Search:
    """What Milvus is asked for.

    Attributes:
        field: the field that it ranks by.
        data: the query's vector or text.
        passing: a condition, or `True`.
        fields: what is wanted of each unit besides `rows.UNIT_FIELDS`.
        parameters: of the index.
    """

    field: str
    data: Any
    passing: str | bool
    fields: list[str]
    parameters: dict[str, Any]


class UnitCollection:
    """Reads one collection; errors are those of `MilvusConnection.call`."""

    def __init__(self, connection: MilvusConnection) -> None:
        self.connection = connection

    @property
    def search_seconds(self) -> float:
        """What a search may take: no longer than a run's deadline leaves."""
        return within_deadline(self.connection.timeout)

    def one_limit(self) -> AbstractContextManager[None]:
        """All searches made inside take no longer together than one may."""
        return time_left(self.connection.timeout)

    def ranked(self, search: Search, limit: int) -> list[tuple[str, dict[str, Any]]]:
        """Ids and fields of the first units, in Milvus' order."""
        (hits,) = self.connection.on_collection(
            "search",
            self.search_seconds,
            data=[search.data],
            anns_field=search.field,
            limit=limit,
            filter=search.passing if isinstance(search.passing, str) else "",
            output_fields=[*rows.UNIT_FIELDS, *search.fields],
            search_params=search.parameters,
        )
        return [(hit["id"], hit["entity"]) for hit in hits]

    def rows(self, unit_ids: Sequence[str], fields: list[str], limit: float | None = None) -> dict[str, Any]:
        """Fields of the units that exist, by id, in the order asked for; ``limit`` in seconds, for all of them."""
        found: dict[str, Any] = {}
        left = self.connection.timeout if limit is None else limit
        end = time.monotonic() + left
        for start in range(0, len(unit_ids), BATCH):
            condition = rows.one_of(unit_ids[start : start + BATCH])
            for row in self.connection.on_collection("query", left, filter=condition, output_fields=fields):
                found[row["id"]] = row
            left = until(end)
        return {unit_id: found[unit_id] for unit_id in unit_ids if unit_id in found}

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The units that exist now, by id; a recheck may still be made when a run's time is over."""
        found = self.rows(storable_ids(unit_ids), rows.UNIT_FIELDS)
        return {unit_id: rows.document_of(unit_id, row) for unit_id, row in found.items()}

    def count(self) -> int:
        """How many units there are."""
        (answer,) = self.connection.on_collection("query", filter="", output_fields=["count(*)"])
        return int(answer["count(*)"])


class OverUnits:
    """What both channels of a `MilvusStore` have of the collection that they search."""

    _units: UnitCollection

    def pushes_down(self, filter: Filter | None) -> bool:
        """Whether Milvus itself decides the whole filter, so that it returns no row that does not pass.

        Raises:
            RequestError: the filter is not part of the filter language.
        """
        return rows.narrowed(filter).exact

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The units that exist now, by id."""
        return self._units.fetch(unit_ids)

    def __len__(self) -> int:
        return self._units.count()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._units.connection.name})"


def within_one_limit(method: _Method) -> _Method:
    """A method of `OverUnits` whose calls take no longer together than one may."""

    @wraps(method)
    def limited(self: OverUnits, *args: Any, **options: Any) -> Any:
        with self._units.one_limit():
            return method(self, *args, **options)

    return cast("_Method", limited)


def create_units(connection: MilvusConnection, embedding: Embeddings, beside: Callable[[], None]) -> None:
    """Make the collection, its indexes, if they are not there, and record in it what made the vectors and the terms.

    Args:
        connection: to it.
        embedding: what makes the vectors.
        beside: makes the collections beside it, which are there before it is.
    """
    there = connection.call("has_collection", connection.collection)
    if there and len(connection.call("list_indexes", connection.collection)) >= len(_VECTORS):
        return
    schema, indexes = _schema(connection, embed_units(embedding, ["dimensions"]).shape[1]), connection.indexes()
    bm25 = {"bm25_k1": rows.K1, "bm25_b": rows.B}
    indexes.add_index("sparse", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params=bm25)
    indexes.add_index("vector", index_type="HNSW", metric_type="IP", params={"M": 32, "efConstruction": 200})
    if connection.lacks(schema, indexes):
        beside()
        connection.make(schema, indexes, properties={_EMBEDDING: embedding_identity(embedding), _TERMS: _TERMS_NAME})


def _schema(connection: MilvusConnection, dimensions: int) -> Any:
    from pymilvus import DataType, Function, FunctionType

    schema = connection.schema()
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=rows.ID_BYTES)
    schema.add_field("text", DataType.VARCHAR, max_length=rows.TEXT_BYTES)
    words = {"enable_analyzer": True, "enable_match": True, "analyzer_params": {"tokenizer": "standard"}}
    schema.add_field("terms", DataType.VARCHAR, max_length=rows.TEXT_BYTES, **words)
    schema.add_field("length", DataType.INT32)
    schema.add_field("metadata", DataType.JSON)
    listed = {"element_type": DataType.VARCHAR, "max_capacity": rows.FACETS, "max_length": 32}
    schema.add_field("facets", DataType.ARRAY, **listed)
    schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimensions)
    schema.add_function(
        Function(
            name="bm25", function_type=FunctionType.BM25, input_field_names=["terms"], output_field_names=["sparse"]
        )
    )
    return schema


def recorded(connection: MilvusConnection, embedding: Embeddings | None) -> Embeddings:
    """The embedding given, or the built-in one that the collection records.

    Raises:
        StoreVersionError: its terms are those of another version of this package.
        EmbeddingMismatchError: another embedding made its vectors.
    """
    described = connection.on_collection("describe_collection")
    properties = described.get("properties", {})
    made_by, terms = properties.get(_EMBEDDING), properties.get(_TERMS)
    if terms != _TERMS_NAME:
        raise StoreVersionError(f"{connection.name}: holds terms {terms!r}, expected {_TERMS_NAME!r}; make it anew")
    chosen = builtin_embedding(str(made_by)) if embedding is None else embedding
    if chosen is None:
        raise EmbeddingMismatchError(f"{connection.name}: give its embedding (it records {made_by!r})")
    if embedding_identity(chosen) != made_by:
        raise EmbeddingMismatchError(
            f"{connection.name}: built with embedding {made_by!r} (got {embedding_identity(chosen)!r})"
        )
    (dimensions,) = [field["params"]["dim"] for field in described["fields"] if field["name"] == "vector"]
    _check_dimensions(connection, chosen, int(dimensions))
    return chosen


def _check_dimensions(connection: MilvusConnection, embedding: Embeddings, dimensions: int) -> None:
    known = getattr(embedding, "dimensions", None)
    given = known if isinstance(known, int) else int(np.size(embed_units(embedding, ["dimensions"])))
    if given != dimensions:
        raise EmbeddingMismatchError(
            f"{connection.name}: holds vectors of {dimensions} dimensions, "
            f"embedding {embedding_identity(embedding)} gives {given}"
        )
