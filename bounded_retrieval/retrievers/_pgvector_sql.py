"""How a unit stands in a PostgreSQL table, the statements that read and write it, and filters in SQL.

Values are passed as parameters; what is written into a statement is a table's name, in quotes, and digests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from numpy.typing import NDArray

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.filters import Filter
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.errors import ConfigurationError, SourceError, quoted
from bounded_retrieval.retrievers._facets import EXACT_INTEGER, OPEN, Language, Narrowing, facets_of, narrow

ID_BYTES = 2_000
"""Longest id: PostgreSQL indexes no text that is much longer."""

INDEXED_DIMENSIONS = 2_000
"""Most dimensions of vectors that pgvector indexes; above, every search is exact."""

INLINE_DIMENSIONS = 1_500
"""Up to so many, vectors stand in the table's own pages; beside them, an exact search fetches each by itself."""

FORMAT = 1
"""Changes whenever what stands in a table changes; a table's comment records it."""

_NAME_CHARS = 48
_SIGNS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}

CREATE = """
CREATE TABLE IF NOT EXISTS "{table}" (
  id text COLLATE "C" PRIMARY KEY,
  text text NOT NULL,
  metadata jsonb NOT NULL,
  written text NOT NULL,
  facets text[] NOT NULL,
  embedding vector({dimensions}) NOT NULL
);
CREATE INDEX IF NOT EXISTS "{table}_facets" ON "{table}" USING gin (facets);
"""

INLINE = 'ALTER TABLE "{table}" ALTER COLUMN embedding SET STORAGE PLAIN'

INDEX = (
    'CREATE INDEX IF NOT EXISTS "{table}_embedding" ON "{table}" USING hnsw (embedding vector_ip_ops) '
    "WITH (m = 32, ef_construction = 200)"
)

_GRAPH_BYTES = 4_000  # of a unit's place in a graph with m = 32

INDEX_MEMORY = 2**30
"""Most bytes that making the index may take of the server's memory, where its own setting allows less."""

# With the usual 64 MB the graph of 100,000 units does not fit, and takes many times as long. Workers would keep it in
# shared memory, of which a container has little.
ROOM = """
SELECT set_config('maintenance_work_mem', '{kilobytes}kB', true),
  set_config('max_parallel_maintenance_workers', '0', true)
WHERE pg_size_bytes(current_setting('maintenance_work_mem')) < {kilobytes} * 1024
"""

# No table has a hyphen in its name.
ARRIVING = 'CREATE TEMPORARY TABLE "arriving-units" (LIKE "{table}") ON COMMIT DROP'
COPY = 'COPY "arriving-units" (id, text, metadata, written, facets, embedding) FROM STDIN'
# Whoever changes several units locks them in one order: two that wait for each other would be a deadlock.
UPSERT = """
INSERT INTO "{table}" SELECT * FROM "arriving-units" ORDER BY id
ON CONFLICT (id) DO UPDATE SET text = excluded.text, metadata = excluded.metadata, written = excluded.written,
  facets = excluded.facets, embedding = excluded.embedding
"""

REMOVE = """
WITH held AS (SELECT id FROM "{table}" WHERE id = ANY(%s) ORDER BY id FOR UPDATE)
DELETE FROM "{table}" USING held WHERE "{table}".id = held.id
"""

ALONE = "SELECT pg_advisory_xact_lock(hashtextextended('bounded_retrieval ' || %s, 0))"
"""Wait until nobody else does what is so named; until the end of the transaction. IF NOT EXISTS is no lock."""

NEAREST = """
SELECT id, text, written, vector_send(embedding) FROM "{table}" WHERE {condition}
ORDER BY embedding <#> %(vector)s::vector LIMIT %(limit)s
"""

IS_INDEXED = """
SELECT to_regclass('"{table}_embedding"') IS NOT NULL
"""

DESCRIBE = """
SELECT obj_description(c.oid, 'pg_class'),
  (SELECT atttypmod FROM pg_attribute WHERE attrelid = c.oid AND attname = 'embedding'),
  EXISTS (SELECT FROM pg_index JOIN pg_class i ON i.oid = indexrelid WHERE indrelid = c.oid AND i.relname = %(index)s)
FROM pg_class c WHERE c.oid = to_regclass('"' || %(table)s || '"')
"""


def checked_table(name: str) -> str:
    """A table's name in small letters.

    Raises:
        ConfigurationError: it holds anything but letters, digits and underscores, or is too long.
    """
    if not (isinstance(name, str) and name.isascii() and name.isidentifier() and len(name) <= _NAME_CHARS):
        raise ConfigurationError(
            f"table: expected at most {_NAME_CHARS} letters, digits and underscores (got {quoted(name)})"
        )
    return name.lower()


def row_of(unit: Unit, vector: NDArray[np.float32]) -> tuple[Any, ...]:
    """What is stored of a unit, for `COPY`.

    Raises:
        SourceError: its id is longer than PostgreSQL indexes.
    """
    if len(unit.unit_id.encode()) > ID_BYTES:
        size = len(unit.unit_id.encode())
        raise SourceError(
            f"unit {quoted(unit.unit_id)}: its id: PostgreSQL holds at most {ID_BYTES} bytes (got {size})"
        )
    metadata = unit.to_document().metadata
    # Read from jsonb, 1e300 would be a whole number of 301 digits; what was written is kept beside it.
    written = json.dumps(metadata)
    return unit.unit_id, unit.text, written, written, facets_of(metadata), vector_text(vector)


def document_of(unit_id: str, text: str, written: str) -> Document:
    """A unit out of a row."""
    return Document(id=unit_id, page_content=text, metadata=json.loads(written))


def vector_text(vector: NDArray[np.float32]) -> str:
    """A vector as pgvector reads it; nine digits tell every float32 apart."""
    return f"[{','.join(format(number, '.9g') for number in vector.tolist())}]"


def vector_of(sent: bytes) -> NDArray[np.float32]:
    """A vector as pgvector sends it: two numbers of two bytes, then float32."""
    return np.frombuffer(sent, dtype=">f4", offset=4).astype(np.float32)


class Condition:
    """A filter in SQL, with its parameters.

    Attributes:
        narrowing: the condition.
        parameters: what it names.

    Raises:
        RequestError: names the operator, field or value that is not part of the filter language.
    """

    def __init__(self, filter: Filter | None) -> None:
        self.parameters: dict[str, Any] = {}
        self.narrowing: Narrowing = narrow(filter, Language(held=_held, ordered=self._ordered, most=100_000))

    @property
    def sql(self) -> str:
        """The condition; ``true`` where it cannot narrow anything."""
        text = self.narrowing.text
        return text if isinstance(text, str) else str(text).lower()

    def _ordered(self, field: str, name: str, bound: Any) -> Narrowing:
        key = f"p{len(self.parameters)}"
        value = f"metadata->>%({key})s"
        if isinstance(bound, str):
            if clean_text(bound) != bound:
                return OPEN
            # In this collation texts are ordered by their characters' codes, as in Python.
            test = f'({value}) COLLATE "C" {_SIGNS[name]} %({key}v)s'
        elif -EXACT_INTEGER < bound < EXACT_INTEGER:
            test = f"({value})::numeric {_SIGNS[name]} %({key}v)s::numeric"
        else:
            return OPEN
        self.parameters |= {key: _plain(clean_text(field)), f"{key}v": _plain(bound)}
        # Which of several conditions is looked at first is PostgreSQL's choice, except in a CASE.
        kind = "string" if isinstance(bound, str) else "number"
        return Narrowing(
            f"(CASE WHEN jsonb_typeof(metadata->%({key})s) = '{kind}' THEN {test} ELSE false END)", exact=True
        )


def _plain(value: str | float) -> str:
    # Subclasses (numpy's numbers, enumerations) write themselves in other ways.
    if isinstance(value, str):
        return str.__str__(value)
    return int.__repr__(value) if isinstance(value, int) else float.__repr__(value)


def _held(facets: Sequence[str]) -> str:
    return f"(facets && '{{{','.join(facets)}}}'::text[])"


def room_for(units: int, dimensions: int) -> str:
    """A statement that gives the rest of the transaction the memory to index so many vectors in."""
    needed = units * (4 * dimensions + _GRAPH_BYTES)
    return ROOM.format(kilobytes=min(needed, INDEX_MEMORY) // 1024)
