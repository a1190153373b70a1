"""The dense channel over PostgreSQL with the extension pgvector (0.8 or later)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.candidate import Candidate, Channel, Unit, searchable_text
from bounded_retrieval.contracts.filters import Filter, compile_filter
from bounded_retrieval.errors import EmbeddingMismatchError, StoreMissingError, StoreVersionError
from bounded_retrieval.retrievers import _pgvector_sql as sql
from bounded_retrieval.retrievers._excluding import Excluding
from bounded_retrieval.retrievers._pgvector_pool import Connections
from bounded_retrieval.retrievers._server_units import (
    SLACK,
    TIMEOUT_MS,
    Progress,
    Row,
    batches,
    best_rows,
    candidates,
    checked_timeout,
    cosines_of,
    storable_ids,
    within_deadline,
)
from bounded_retrieval.retrievers._vectors import Vectors, embed_units, unit_length
from bounded_retrieval.retrievers.embeddings import builtin_embedding, embedding_identity
from bounded_retrieval.retrievers.query_vectors import QueryVectors

EXACT_UNITS = 10_000
"""Up to so many units a table has no index of its vectors: every search compares all that pass."""

_BATCH = 500
_COUNTED_ANEW = 1_000  # units after which PostgreSQL is told to look how many there are; it plans searches by that
_SETTINGS = {"hnsw.ef_search": "400", "hnsw.iterative_scan": "strict_order"}
_EXACTLY = {"enable_indexscan": "off"}


class PgVectorSearcher(Excluding):
    """Searches one table of units by vectors; also gives units by id and scores observed ones.

    Make one with `open` or `create`. Scores are cosine similarities (-1 to 1, six decimals), computed from the stored
    vectors, which have length 1. Rows are ordered by score, equal scores by unit id. Up to `EXACT_UNITS` units every
    search is exact; above, an HNSW index finds the nearest, and a filter that leaves it too few is searched exactly.
    Every filter is decided by the server, save orderings by numbers of 2**53 and more.

    Any number of threads may search, each over a connection of its own, and a forked process opens its own. A
    connection that was lost is replaced, so that a restart of the server is survived. At most 16 calls are made at one
    time, others wait within their time limit; four connections are kept while nobody uses them.

    Args:
        connections: to the server.
        table: its name, of one that `create` made.
        embedding: the one that made its vectors.
        id_key: metadata field that `add` takes unit ids from, before ``Document.id``.
    """

    channel: Channel = "dense"

    def __init__(
        self, connections: Connections, table: str, embedding: Embeddings, *, id_key: str | None = None
    ) -> None:
        self._connections = connections
        self._table = table
        self._queries = QueryVectors(embedding)
        self._id_key = id_key

    @classmethod
    def open(
        cls,
        url: str,
        embedding: Embeddings | None = None,
        *,
        table: str = "units",
        timeout_ms: float = TIMEOUT_MS,
        id_key: str | None = None,
    ) -> PgVectorSearcher:
        """Open a table that is there; without an embedding, with the built-in one that it records.

        Args:
            url: as libpq takes it, as in ``postgresql://user@127.0.0.1:5432/database``.
            embedding: the one that made the vectors.
            table: its name: letters, digits and underscores.
            timeout_ms: longest that a call may take; searches and scores never take longer than a run's deadline
                leaves.
            id_key: see the class.

        Raises:
            StoreMissingError: the table is not there.
            StoreVersionError: it is none that this version made.
            EmbeddingMismatchError: another embedding made its vectors.
            StoreError: the server is not there, took too long or refused.
            ConfigurationError: psycopg is not installed, or an argument is not valid.
        """
        connections = Connections(url, checked_timeout(timeout_ms))
        checked = sql.checked_table(table)
        return cls(connections, checked, _recorded(connections, checked, embedding), id_key=id_key)

    @classmethod
    def create(
        cls,
        url: str,
        embedding: Embeddings,
        *,
        table: str = "units",
        timeout_ms: float = TIMEOUT_MS,
        id_key: str | None = None,
    ) -> PgVectorSearcher:
        """Open a table, made first if it is not there, with the extension; arguments and errors are those of `open`."""
        connections = Connections(url, checked_timeout(timeout_ms))
        checked = sql.checked_table(table)
        if _described(connections, checked) is None:
            _create(connections, checked, embedding)
        return cls(connections, checked, _recorded(connections, checked, embedding), id_key=id_key)

    @property
    def embedding(self) -> Embeddings:
        """What embeds queries and documents."""
        return self._queries.embedding

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Return at most ``k`` candidates with their units, best first.

        Raises:
            RequestError: the filter is not part of the filter language.
            StoreError: the server is not there, took too long or refused.
        """
        accepts, condition = compile_filter(filter), sql.Condition(filter)
        if k <= 0 or condition.narrowing.text is False:
            return []
        vector = self._vector(query)

        def ask(limit: int) -> list[Row]:
            found = self._nearest(vector, limit, condition)
            scores = cosines_of(vector, [sql.vector_of(row[3]) for row in found], self._name)
            pairs = zip(found, scores, strict=True)
            return [Row(unit=sql.document_of(*row[:3]), unit_id=row[0], score=score) for row, score in pairs]

        best = best_rows(ask, k, k + SLACK, accepts, is_settled=condition.narrowing.exact)
        return candidates(best, self.channel)

    @property
    def _name(self) -> str:
        return f"{self._connections.name}, table {self._table!r}"

    def _vector(self, query: str) -> Vectors:
        vector: Vectors = unit_length(self._queries.vector(query)[np.newaxis])[0]
        return vector

    def _nearest(self, vector: Any, limit: int, condition: sql.Condition) -> list[Any]:
        statement = sql.NEAREST.format(table=self._table, condition=condition.sql)
        parameters = {"vector": sql.vector_text(vector), "limit": limit, **condition.parameters}
        seconds = within_deadline(self._connections.timeout)

        def read(connection: Any) -> list[Any]:
            _set(connection, _SETTINGS | {"statement_timeout": f"{max(1, int(seconds * 1000))}"})
            found: list[Any] = connection.execute(statement, parameters).fetchall()
            # A walk along the index ends after so many units, removed ones among them, whatever it has found by then.
            if len(found) < limit and connection.execute(sql.IS_INDEXED.format(table=self._table)).fetchone()[0]:
                _set(connection, _EXACTLY)
                found = connection.execute(statement, parameters).fetchall()
            return found

        found: list[Any] = self._connections.run(read, seconds)
        return found

    def score(
        self,
        query: str,
        unit_ids: Sequence[str],
        filter: Filter | None = None,  # noqa: ARG002 - a cosine depends on no other unit
    ) -> dict[str, float]:
        """Cosine similarity of the query with each of these units that exists; reads no other.

        Raises:
            StoreError: the server is not there, took too long or refused.
        """
        found = self._by_id("vector_send(embedding)", unit_ids, within_deadline(self._connections.timeout))
        if not found:
            return {}
        scores = cosines_of(self._vector(query), [sql.vector_of(sent) for sent, *_ in found.values()], self._name)
        return dict(zip(found, scores, strict=True))

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The units that exist now, by id; a recheck may still be made when a run's time is over."""
        found = self._by_id("text, written", unit_ids)
        return {unit_id: sql.document_of(unit_id, *row) for unit_id, row in found.items()}

    def _by_id(self, columns: str, unit_ids: Sequence[str], limit: float | None = None) -> dict[str, Any]:
        wanted = storable_ids(unit_ids)
        statement = f'SELECT id, {columns} FROM "{self._table}" WHERE id = ANY(%s)'  # noqa: S608 - a checked name
        read = self._connections.run(lambda connection: connection.execute(statement, [wanted]).fetchall(), limit)
        found = {row[0]: row[1:] for row in read}
        return {unit_id: found[unit_id] for unit_id in wanted if unit_id in found}

    def pushes_down(self, filter: Filter | None) -> bool:
        """Whether PostgreSQL itself decides the whole filter, so that it returns no row that does not pass.

        Raises:
            RequestError: the filter is not part of the filter language.
        """
        return sql.Condition(filter).narrowing.exact

    def add(self, documents: Iterable[Document], progress: Progress | None = None) -> None:
        """Embed and store documents, read as they are needed; a unit whose id is already there is replaced.

        The id is the ``id_key`` field, else ``Document.id``, else a hash of the text. Units are stored in batches of
        500, each whole or not at all; those before an error stay, and adding the same documents again completes the
        work. Above `EXACT_UNITS` the index of the vectors is made at the end.

        Raises:
            SourceError: a text is blank, an id is too long, or one id stands for two texts.
            StoreError: the server is not there, took too long or refused.
        """
        stored = 0
        for batch in batches(documents, self._id_key, _BATCH, progress):
            self._store(batch)
            stored += len(batch)
        if not self.index() and stored >= _COUNTED_ANEW:
            self._connections.run(lambda connection: connection.execute(f'ANALYZE "{self._table}"'))

    def _store(self, batch: list[Unit]) -> None:
        vectors = embed_units(self.embedding, [searchable_text(unit.title, unit.text) for unit in batch])
        rows = [sql.row_of(unit, vector) for unit, vector in zip(batch, vectors, strict=True)]

        def write(connection: Any) -> None:
            connection.execute(sql.ARRIVING.format(table=self._table))
            with connection.cursor() as cursor, cursor.copy(sql.COPY) as copy:
                for row in rows:
                    copy.write_row(row)
            connection.execute(sql.UPSERT.format(table=self._table))

        self._connections.run(write)

    def index(self, *, seconds: float = 86_400) -> bool:
        """Index the vectors, if there are more than `EXACT_UNITS` of at most 2,000 dimensions; say whether they are.

        Args:
            seconds: longest that it may take; searches go on meanwhile, and additions wait.

        Raises:
            StoreError: the server is not there, took too long or refused.
        """
        described = _described(self._connections, self._table)
        if described is None:
            raise StoreMissingError(f"{self._connections.name}: no table {self._table!r} there")
        _, dimensions, is_indexed = described
        units = len(self)
        if not is_indexed and dimensions <= sql.INDEXED_DIMENSIONS and units > EXACT_UNITS:
            index = sql.INDEX.format(table=self._table)
            statements = f'{sql.room_for(units, dimensions)}; {index}; ANALYZE "{self._table}"'

            def make(connection: Any) -> None:
                connection.execute(sql.ALONE, [f"index {self._table}"])
                connection.execute(statements)

            self._connections.run(make, seconds)
            return True
        return is_indexed

    def remove(self, unit_ids: Iterable[str]) -> None:
        """Delete units; ids that are not there are passed over."""
        statement = sql.REMOVE.format(table=self._table)
        wanted = storable_ids(unit_ids)
        self._connections.run(lambda connection: connection.execute(statement, [wanted]))

    def ids(self) -> list[str]:
        """Every unit id, sorted."""
        statement = f'SELECT id FROM "{self._table}" ORDER BY id'  # noqa: S608 - a checked name
        return [row[0] for row in self._connections.run(lambda connection: connection.execute(statement).fetchall())]

    def __len__(self) -> int:
        statement = f'SELECT count(*) FROM "{self._table}"'  # noqa: S608 - a checked name
        return int(self._connections.run(lambda connection: connection.execute(statement).fetchone())[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name}, {embedding_identity(self.embedding)})"

    def drop(self) -> None:
        """Delete the table and everything in it."""
        self._connections.run(lambda connection: connection.execute(f'DROP TABLE IF EXISTS "{self._table}"'))

    def close(self) -> None:
        """Close the connections. May be repeated."""
        self._connections.close()


def _set(connection: Any, settings: dict[str, str]) -> None:
    # Until the end of the transaction.
    calls = ", ".join("set_config(%s, %s, true)" for _ in settings)
    connection.execute(f"SELECT {calls}", [word for pair in settings.items() for word in pair])


def _described(connections: Connections, table: str) -> tuple[str, int, bool] | None:
    """A table's comment, its vectors' dimensions, and whether they are indexed; none where it is not there."""
    return connections.run(lambda connection: _described_over(connection, table))


def _described_over(connection: Any, table: str) -> tuple[str, int, bool] | None:
    parameters = {"table": table, "index": f"{table}_embedding"}
    found = connection.execute(sql.DESCRIBE, parameters).fetchone()
    return None if found is None else (found[0] or "", int(found[1] or 0), bool(found[2]))


def _create(connections: Connections, table: str, embedding: Embeddings) -> None:
    dimensions = embed_units(embedding, ["dimensions"]).shape[1]
    recorded = json.dumps({"bounded_retrieval": sql.FORMAT, "embedding": embedding_identity(embedding)})

    def make(connection: Any) -> None:
        connection.execute(sql.ALONE, ["create"])
        if _described_over(connection, table) is not None:
            return
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(sql.CREATE.format(table=table, dimensions=dimensions))
        if dimensions <= sql.INLINE_DIMENSIONS:
            connection.execute(sql.INLINE.format(table=table))
        comment = connection.execute("SELECT quote_literal(%s)", [recorded]).fetchone()[0]
        connection.execute(f'COMMENT ON TABLE "{table}" IS {comment}')

    connections.run(make)


def _recorded(connections: Connections, table: str, embedding: Embeddings | None) -> Embeddings:
    name = f"{connections.name}, table {table!r}"
    described = _described(connections, table)
    if described is None:
        raise StoreMissingError(f"{name}: not there; make it with PgVectorSearcher.create")
    comment, dimensions, _ = described
    made_by = _made_by(comment, name)
    chosen = builtin_embedding(made_by) if embedding is None else embedding
    if chosen is None:
        raise EmbeddingMismatchError(f"{name}: give its embedding (it records {made_by!r})")
    if embedding_identity(chosen) != made_by:
        raise EmbeddingMismatchError(f"{name}: built with embedding {made_by!r} (got {embedding_identity(chosen)!r})")
    given = embed_units(chosen, ["dimensions"]).shape[1]
    if given != dimensions:
        raise EmbeddingMismatchError(
            f"{name}: holds vectors of {dimensions} dimensions, embedding {made_by} gives {given}"
        )
    return chosen


def _made_by(comment: str, name: str) -> str:
    try:
        recorded = json.loads(comment)
        if recorded["bounded_retrieval"] == sql.FORMAT:
            return str(recorded["embedding"])
    except (ValueError, TypeError, KeyError):
        pass
    raise StoreVersionError(f"{name}: its comment does not say that this version made it")
