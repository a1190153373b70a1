"""Unit sources: where the current text of a unit is read, in memory or from one SQLite file.

Units are kept in ascending order of their id; a unit's *row* is its position in that order, from 0. Ids follow one
rule everywhere: the ``id_key`` metadata field if one is named and set, else ``Document.id``, else
`content_id` of the text. Two documents with one id and the same text are one unit (the first one is kept).
"""

from __future__ import annotations

import heapq
import json
import os
import sqlite3
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.normalise import clean_text, fingerprint
from bounded_retrieval.errors import (
    ConfigurationError,
    SourceError,
    StoreCorruptError,
    StoreError,
    StoreMissingError,
    one_line,
    quoted,
)
from bounded_retrieval.retrievers._units_writer import UnitsWriter

_UNITS_PER_WRITE = 256

_IDS_PER_QUERY = 900
"""SQLite takes at least 999 variables in one statement."""

_QUOTED = 120  # characters of a message of SQLite's, which may quote the file

_IDS = "SELECT row, unit_id FROM units ORDER BY row"
_METADATA = "SELECT row, unit_id, title, metadata FROM units JOIN texts USING (place) ORDER BY row"
_TEXTS = "SELECT row, unit_id, fingerprint, title, metadata, text FROM units JOIN texts USING (place) ORDER BY row"
_TEXTS_OF = (
    "SELECT unit_id, fingerprint, title, metadata, text FROM units LEFT JOIN texts USING (place) WHERE unit_id IN"
)

# By the last row alone, in the time that one row takes: what is missing before it is found when it is read.
_CHECK = """
SELECT (SELECT max(row) + 1 FROM units), (SELECT count(*) FROM (SELECT 1 FROM texts LIMIT 1)), page_count * page_size
FROM pragma_page_count, pragma_page_size
"""


def as_path(name: str, given: Any) -> Path:
    """A caller's path.

    Raises:
        StoreError: it is something else, or holds a NUL; names the parameter.
    """
    if isinstance(given, (str, os.PathLike)) and "\0" not in str(given):
        return Path(given)
    raise StoreError(f"{name}: expected a path (got {quoted(given)})")


def as_documents(given: Any) -> Iterable[Any]:
    """A caller's documents, each still to be checked; raises SourceError for what cannot be gone through."""
    if not hasattr(given, "__iter__"):
        raise SourceError(f"documents: expected langchain Documents (got {quoted(given)})")
    return given  # type: ignore[no-any-return]


def read_units(documents: Iterable[Document], id_key: str | None = None) -> Iterator[Unit]:
    """Turn documents into units, one by one: cleaned, each with its id, repeats left out.

    Args:
        documents: read once; they are not changed.
        id_key: metadata field that holds the id; a document without it takes the next rule (see the module).

    Raises:
        SourceError: a text is blank, or one id stands for two texts.
        ConfigurationError: ``id_key`` is no text.
    """
    if id_key is not None and not isinstance(id_key, str):
        raise ConfigurationError(f"id_key: expected the name of a metadata field (got {quoted(id_key)})")
    fingerprints: dict[str, bytes] = {}  # some 200 bytes for each unit, with its id
    for position, document in enumerate(as_documents(documents), 1):
        if not isinstance(document, Document):
            raise SourceError(f"document {position}: expected a langchain Document (got {type(document).__name__})")
        own_id = document.metadata.get(id_key) if id_key else None
        unit = Unit.from_document(document, None if own_id is None else str(own_id))
        if not unit.text.strip():
            raise SourceError(f"unit {quoted(unit.unit_id)} (document {position}): its text is blank")
        own = bytes.fromhex(unit.fingerprint)
        known = fingerprints.setdefault(unit.unit_id, own)
        if known is own:
            yield unit
        elif known != own:
            raise SourceError(f"unit {quoted(unit.unit_id)} (document {position}): the same id stands for two texts")


class _IdRows:
    """Ids in ascending order, held in memory."""

    def __init__(self, ids: list[str]) -> None:
        self._ids = ids
        self._rows = {unit_id: row for row, unit_id in enumerate(ids)}

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> list[str]:
        """All ids, ascending."""
        return list(self._ids)

    def unit_ids_at(self, rows: Sequence[int]) -> list[str]:
        """The ids at the given rows, in that order."""
        return [self._ids[row] for row in rows]

    def rows_of(self, unit_ids: Sequence[str]) -> dict[str, int]:
        """The row of each id that exists."""
        return {unit_id: self._rows[unit_id] for unit_id in unit_ids if unit_id in self._rows}


class MemoryUnits(_IdRows):
    """Units in a dictionary.

    Args:
        documents: the units; `read_units` says how they are read and what is refused.
        id_key: metadata field that holds the id.
    """

    def __init__(self, documents: Iterable[Document] = (), *, id_key: str | None = None) -> None:
        self._hold(read_units(documents, id_key))

    @classmethod
    def from_units(cls, units: Iterable[Unit]) -> MemoryUnits:
        """Hold units already read, of distinct ids."""
        source = cls()
        source._hold(units)
        return source

    def _hold(self, units: Iterable[Unit]) -> None:
        self._units = {unit.unit_id: unit for unit in sorted(units, key=attrgetter("unit_id"))}
        super().__init__(list(self._units))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} units)"

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The units that exist, by id, in the order asked for."""
        return {unit_id: self._units[unit_id].to_document() for unit_id in unit_ids if unit_id in self._units}

    def metadata(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each unit's id and metadata (``title`` included), by row."""
        return ((unit.unit_id, _metadata_of(unit)) for unit in self._units.values())

    def units(self) -> Iterator[Unit]:
        """Each unit, by row."""
        return iter(self._units.values())

    def edited(self, changed: Mapping[str, Unit], removed: Collection[str]) -> MemoryUnits:
        """Other units: without ``removed``, then with ``changed`` added or put in place of their id."""
        kept = {unit_id: unit for unit_id, unit in self._units.items() if unit_id not in removed}
        return MemoryUnits.from_units({**kept, **changed}.values())

    def close(self) -> None:
        """Nothing is held open."""


class SqliteUnits:
    """Units in one SQLite file written by `write_units`; the file is never written again.

    Threads never share a connection at one time: each call takes an idle one or opens another. A file that was
    deleted meanwhile goes on answering through the connections that are open. A forked process opens its own. A text is
    compared with its fingerprint whenever it is read.

    Raises:
        StoreMissingError: there is no such file.
        StoreCorruptError: it is damaged, or not such a file; also raised when a later read finds so.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        # By process: SQLite's connections must not be used, nor closed, in a forked child.
        self._connections: dict[int, deque[sqlite3.Connection]] = {}
        self._closed = False
        self._count: int
        if not self.path.is_file():
            raise StoreMissingError(f"{self.path}: no such file")
        with ExitStack() as opened:
            opened.callback(self.close)
            with self._connection() as connection:
                count, texts, size = connection.execute(_CHECK).fetchone()
            self._count = count or 0
            if (bool(texts), size) != (bool(self._count), self.path.stat().st_size):
                raise StoreCorruptError(f"{self.path}: not whole ({self._count} units, {size} bytes)")
            opened.pop_all()

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {len(self)} units)"

    def ids(self) -> list[str]:
        """All ids, ascending."""
        return [unit_id for (unit_id,) in self._by_row(_IDS)]

    def at_places(self, places: Sequence[int]) -> list[tuple[str, str]]:
        """Title and text of the units that arrived at these places, ascending."""
        rows = self._many("SELECT place, title, text FROM texts WHERE place IN", [int(place) for place in places])
        return [(title, text) for _, title, text in sorted(rows)]

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The units that exist, by id, in the order asked for."""
        rows = map(self._checked, self._many(_TEXTS_OF, _storable(unit_ids)))
        found = {
            unit_id: Document(id=unit_id, page_content=text, metadata=self._decoded(metadata, title))
            for unit_id, _, title, metadata, text in rows
        }
        return {unit_id: found[unit_id] for unit_id in unit_ids if unit_id in found}

    def unit_ids_at(self, rows: Sequence[int]) -> list[str]:
        """The ids at the given rows, in that order."""
        found = dict(self._many("SELECT row, unit_id FROM units WHERE row IN", [int(row) for row in rows]))
        if not all(isinstance(found.get(row), str) for row in rows):
            raise StoreCorruptError(f"{self.path}: a row has no id")
        return [found[row] for row in rows]

    def rows_of(self, unit_ids: Sequence[str]) -> dict[str, int]:
        """The row of each id that exists."""
        found = dict(self._many("SELECT unit_id, row FROM units WHERE unit_id IN", _storable(unit_ids)))
        if not all(row in range(self._count) for row in found.values()):
            raise StoreCorruptError(f"{self.path}: the row of an id is none of 0 to {self._count - 1}")
        return found

    def metadata(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each unit's id and metadata (``title`` included), by row."""
        rows = self._by_row(_METADATA)
        return ((unit_id, self._decoded(metadata, title)) for unit_id, title, metadata in rows)

    def units(self) -> Iterator[Unit]:
        """Each unit, by row."""
        for unit_id, digest, title, metadata, text in map(self._checked, self._by_row(_TEXTS)):
            held = self._decoded(metadata)
            yield Unit(unit_id=unit_id, fingerprint=digest, title=title, text=text, metadata=held)

    def edited(self, changed: Mapping[str, Unit], removed: Collection[str]) -> EditedUnits:
        """Other units, the changed ones held in memory above this file."""
        return EditedUnits(self, {}, self.ids()).edited(changed, removed)

    def close(self) -> None:
        """Close the connections; reads still running end first."""
        self._closed = True
        idle = self._idle
        with suppress(IndexError):  # another thread may take the last one
            while True:
                idle.pop().close()

    @property
    def _idle(self) -> deque[sqlite3.Connection]:
        return self._connections.setdefault(os.getpid(), deque())

    def _by_row(self, query: str) -> Iterator[tuple[str, ...]]:
        """What a query gives of every unit, without its row; a unit left out would move all that follow it."""
        row, last = -1, ""
        with self._connection() as connection:
            for row, (held, *values) in enumerate(connection.execute(query)):
                if held != row or not all(isinstance(value, str) for value in values) or (row and values[0] <= last):
                    raise StoreCorruptError(f"{self.path}: row {row} is damaged")
                last = values[0]
                yield tuple(values)
        if row + 1 != self._count:
            raise StoreCorruptError(f"{self.path}: {row + 1} units, expected {self._count}")

    def _many(self, query: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        with self._connection() as connection:
            for start in range(0, len(values), _IDS_PER_QUERY):
                part = values[start : start + _IDS_PER_QUERY]
                yield from connection.execute(f"{query} ({','.join('?' * len(part))})", part)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if self._closed:
            raise StoreError(f"{self.path}: closed")
        idle = self._idle
        try:
            connection = idle.pop() if idle else self._connect()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        except UnicodeDecodeError as error:  # SQLite's message quotes the file
            raise StoreCorruptError(f"{self.path}: damaged (its schema is no text)") from error
        except sqlite3.Error as error:
            raise StoreCorruptError(f"{self.path}: {one_line(str(error), _QUOTED)}") from error
        finally:
            idle.append(connection)
            if self._closed:
                self.close()

    def _connect(self) -> sqlite3.Connection:
        # ``immutable`` spares the locks of a file that nobody writes, and lets read-only disks serve it.
        uri = f"{self.path.resolve().as_uri()}?mode=ro&immutable=1"
        try:
            return sqlite3.connect(uri, uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}; was the index replaced? then open it again") from error

    def _checked(self, row: tuple[Any, ...]) -> tuple[str, ...]:
        """An id, fingerprint, title, metadata and text, whose text is the one that was written."""
        if not all(isinstance(value, str) for value in row) or fingerprint(row[-1]) != row[1]:
            raise StoreCorruptError(f"{self.path}: a text is not the one that was written")
        return row

    def _decoded(self, text: str, title: str = "") -> dict[str, Any]:
        try:
            held = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StoreCorruptError(f"{self.path}: metadata is not JSON ({error})") from error
        if not isinstance(held, dict):
            raise StoreCorruptError(f"{self.path}: metadata is no JSON object")
        return {"title": title, **held} if title else held


class EditedUnits(_IdRows):
    """Units of a file with changes held in memory above it; made by ``SqliteUnits.edited``."""

    def __init__(self, base: SqliteUnits, changed: Mapping[str, Unit], ids: list[str]) -> None:
        super().__init__(ids)
        self._base = base
        self._changed = MemoryUnits.from_units(changed.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._base!r}, {len(self._changed)} changed, {len(self)} units)"

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The units that exist, by id, in the order asked for."""
        held = [unit_id for unit_id in unit_ids if unit_id in self._rows]
        changed = self._changed.fetch(held)
        found = {**self._base.fetch([unit_id for unit_id in held if unit_id not in changed]), **changed}
        return {unit_id: found[unit_id] for unit_id in held}

    def metadata(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each unit's id and metadata (``title`` included), by row."""
        kept = (pair for pair in self._base.metadata() if self._is_unchanged(pair[0]))
        return heapq.merge(kept, self._changed.metadata(), key=itemgetter(0))

    def units(self) -> Iterator[Unit]:
        """Each unit, by row."""
        kept = (unit for unit in self._base.units() if self._is_unchanged(unit.unit_id))
        return heapq.merge(kept, self._changed.units(), key=attrgetter("unit_id"))

    def edited(self, changed: Mapping[str, Unit], removed: Collection[str]) -> EditedUnits:
        """Other units: without ``removed``, then with ``changed`` added or put in place of their id."""
        ids = sorted({unit_id for unit_id in self._ids if unit_id not in removed} | changed.keys())
        memory = {unit.unit_id: unit for unit in self._changed.units() if unit.unit_id not in removed}
        return EditedUnits(self._base, {**memory, **changed}, ids)

    def close(self) -> None:
        """Close the file underneath."""
        self._base.close()

    def _is_unchanged(self, unit_id: str) -> bool:
        return unit_id in self._rows and not self._changed.rows_of([unit_id])


RowUnits = MemoryUnits | SqliteUnits | EditedUnits
"""What a lexical index reads its units from."""


def write_units(path: str | Path, units: Iterable[Unit]) -> int:
    """Stream units (distinct ids, any order) into a new SQLite file.

    Returns:
        How many there were.

    Raises:
        StoreError: the file exists, or SQLite cannot write it (a full disk, for example).
    """
    with UnitsWriter(Path(path)) as writer:
        waiting = iter(units)
        while batch := list(islice(waiting, _UNITS_PER_WRITE)):
            writer.add(batch)
        return len(writer.finish())


def _metadata_of(unit: Unit) -> dict[str, Any]:
    return {"title": unit.title, **unit.metadata} if unit.title else unit.metadata


def _storable(unit_ids: Sequence[str]) -> list[str]:
    """Ids that can exist: stored ids are cleaned, and SQLite cannot even be asked for others."""
    return [unit_id for unit_id in unit_ids if clean_text(unit_id) == unit_id]
