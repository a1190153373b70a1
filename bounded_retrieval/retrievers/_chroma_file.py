"""Chroma's own SQLite file, read without Chroma: whether it is sound, and a digest of what it holds."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from bounded_retrieval.errors import StoreCorruptError, StoreError, one_line
from bounded_retrieval.retrievers._regular_files import regular_size

CHROMA = "chroma.sqlite3"
"""Its name in the folder of a store."""

# What Chroma answers from. Its readers add a row to ``acquire_write`` whenever they open the store; ``migrations`` and
# the tables of its full-text search, which this package never asks, say nothing of a unit.
_TABLES = (
    "collections",
    "collection_metadata",
    "segments",
    "segment_metadata",
    "embeddings",
    "embedding_metadata",
    "embedding_metadata_array",
    "embeddings_queue",
    "max_seq_id",
)
# The file may be as it should be; it is the moment, or the folder, that is not.
_NOT_NOW = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_PERM,
    }
)
_LOCKED_SECONDS = 60
_QUOTED = 120  # characters of a message of SQLite's, which may quote the file


def check_structure(folder: Path, pragma: Literal["quick_check", "integrity_check"]) -> None:
    """Let SQLite look whether the file is sound; Chroma ends the process over some that are not.

    Raises:
        StoreCorruptError: it is not, or missing.
        StoreError: it cannot be read now.
    """
    with _connected(folder / CHROMA) as connection:
        (found,) = connection.execute(f"PRAGMA {pragma}(1)").fetchone()
    if found != b"ok":
        raise StoreCorruptError(f"{folder / CHROMA}: damaged ({one_line(found.decode(errors='replace'), _QUOTED)})")


def content_digest(folder: Path) -> str:
    """SHA-256 of what the file holds of units, in hexadecimal; opening the store does not change it.

    Raises:
        StoreCorruptError, StoreError: as `check_structure`.
    """
    digest = hashlib.sha256()
    with _connected(folder / CHROMA) as connection:
        query = "SELECT tbl_name, type, name, sql FROM sqlite_master ORDER BY 1, 2, 3"
        schema = [row for row in connection.execute(query) if row[0].decode(errors="replace") in _TABLES]
        digest.update(repr(schema).encode())
        present = {name for _, kind, name, _ in schema if kind == b"table"}
        for table in _TABLES:
            if table.encode() in present:
                for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid"):  # noqa: S608  # a name from above
                    digest.update(repr(row).encode())
    return digest.hexdigest()


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that gives every text as bytes, whatever they are."""
    regular_size(path)
    # Where the folder may be written, ``rw`` undoes what a killed reader left half done.
    uri = f"{path.resolve().as_uri()}?mode=rw"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=_LOCKED_SECONDS)) as connection:
            connection.text_factory = bytes
            yield connection
    except UnicodeDecodeError as error:  # SQLite's message quotes the file
        raise StoreCorruptError(f"{path}: damaged (its schema is no text)") from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_NOW:
            raise StoreError(f"{path}: cannot be read now ({one_line(str(error), _QUOTED)})") from error
        raise StoreCorruptError(f"{path}: damaged ({one_line(str(error), _QUOTED)})") from error
