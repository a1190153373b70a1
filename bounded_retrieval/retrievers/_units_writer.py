"""Writes the SQLite file of units that ``units.py`` reads: texts as they arrive, then their ids in order."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.errors import StoreError

# Texts stay in the order they arrived in; the small table ``units`` puts them in the order of their ids.
_SCHEMA = """
PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA temp_store=MEMORY;
CREATE TABLE texts (place INTEGER PRIMARY KEY, fingerprint TEXT, title TEXT, metadata TEXT, text TEXT);
CREATE TABLE units (row INTEGER PRIMARY KEY, unit_id TEXT NOT NULL UNIQUE, place INTEGER NOT NULL);
CREATE TEMP TABLE arrived (place INTEGER PRIMARY KEY, unit_id TEXT NOT NULL);
CREATE TEMP TABLE replaced (row INTEGER PRIMARY KEY);
"""
# SQLite compares the bytes of UTF-8, which is the order of Python's texts.
_ORDER = "INSERT INTO units SELECT row_number() OVER (ORDER BY unit_id) - 1, unit_id, place FROM arrived"
_KEEP_TEXTS = """
INSERT INTO texts SELECT ? + row, fingerprint, title, metadata, text FROM old.units JOIN old.texts USING (place)
WHERE row NOT IN (SELECT row FROM replaced) ORDER BY row
"""
_KEEP_IDS = "INSERT INTO arrived SELECT ? + row, unit_id FROM old.units WHERE row NOT IN (SELECT row FROM replaced)"


class UnitsWriter:
    """Writes units into a new file; a context manager, and the file is whole after `finish`.

    Args:
        path: of the file.

    Raises:
        StoreError: the file exists, or SQLite cannot write it (a full disk, for example); likewise any method.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise StoreError(f"{path}: exists already")
        self._path = path
        self._count = 0
        with self._named(), ExitStack() as opened:
            self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rwc", uri=True, isolation_level=None)
            opened.callback(self._connection.close)
            # A file that was not finished is thrown away, so nothing needs to be rolled back.
            self._connection.executescript(_SCHEMA)
            self._connection.execute("BEGIN")
            opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def add(self, units: Sequence[Unit]) -> None:
        """Write units of ids that were not there before; the n-th of all has place n, from 0."""
        first = self._count
        self._count += len(units)
        texts = [
            (place, unit.fingerprint, unit.title, _packed(unit), unit.text) for place, unit in enumerate(units, first)
        ]
        with self._named():
            self._connection.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?)", texts)
            ids = [(place, unit.unit_id) for place, unit in enumerate(units, first)]
            self._connection.executemany("INSERT INTO arrived VALUES (?, ?)", ids)

    def finish(self, base: Path | None = None, replaced: Iterable[int] = ()) -> NDArray[np.int64]:
        """Put all in order, with the units of another file that are kept.

        Args:
            base: another file of units; the one in row ``r`` gets the place ``r`` behind all that were added.
            replaced: rows of it that are not kept.

        Returns:
            The place of each row, shape (units,).
        """
        with self._named():
            if base is not None:
                self._keep(base, replaced)
            self._connection.execute(_ORDER)
            self._connection.execute("COMMIT")
            places = self._connection.execute("SELECT place FROM units ORDER BY row")
            return np.fromiter((place for (place,) in places), dtype=np.int64)

    def _keep(self, base: Path, replaced: Iterable[int]) -> None:
        execute = self._connection.execute
        self._connection.executemany("INSERT INTO replaced VALUES (?)", ((row,) for row in replaced))
        execute("COMMIT")  # a file is not attached while writing
        execute("ATTACH ? AS old", (f"{base.resolve().as_uri()}?mode=ro&immutable=1",))
        execute("BEGIN")
        for statement in (_KEEP_TEXTS, _KEEP_IDS):
            execute(statement, (self._count,))

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error


def _packed(unit: Unit) -> str:
    return json.dumps(unit.metadata, ensure_ascii=False, separators=(",", ":"))
