"""A ready sink for protected records: one JSON line each, in a file that only its owner can read."""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import stat
import traceback
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Self

from bounded_retrieval.contracts.normalise import clean_metadata, clean_text
from bounded_retrieval.errors import ConfigurationError, quoted

OWNER_ONLY = stat.S_IRUSR | stat.S_IWUSR
"""Mode 0600."""


class JsonlDiagnostics:
    """Appends each protected record to a file as one line of JSON; give it as ``diagnostics=``.

    A record has ``at`` (ISO 8601, UTC), ``event``, ``query_id`` and what belongs to the event: ids of units that were
    left out and why, the view's id and version, an error's type, message and traceback. The file is made with mode
    0600; one that exists is set to it, and must be a regular file of the user who runs this, not a link. Threads and
    processes may write to one file. A context manager.

    Args:
        path: the file; its folder must exist.

    Raises:
        ConfigurationError: the file cannot be opened like that; names it.
    """

    def __init__(self, path: str | Path) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigurationError(f"path: expected a path (got {quoted(path)})")
        self.path = Path(path)
        self._lock = Lock()
        self._file: int | None = None
        try:
            # Without following a link, which somebody else may have put there, or waiting for a pipe's reader.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            self._file = os.open(self.path, flags, OWNER_ONLY)
            self._check(os.fstat(self._file))
            os.fchmod(self._file, OWNER_ONLY)
        except OSError as error:
            self.close()
            what = "is a link, which is not followed" if error.errno == errno.ELOOP else error.strerror or error
            raise ConfigurationError(f"{self.path}: {what}") from None

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Write one record.

        Raises:
            ValueError: the sink is closed.
            OSError: the disk is full, for example.
        """
        at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": at, **_to_json(record)}, ensure_ascii=False)
        with self._lock:
            if self._file is None:
                raise ValueError(f"{self.path}: closed")
            _write_all(self._file, f"{line}\n".encode())

    def close(self) -> None:
        """Close the file; may be repeated."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "not a regular file")
        if found.st_nlink > 1:
            raise OSError(0, "has another name too (a hard link)")
        if found.st_uid != os.geteuid():
            raise OSError(0, "belongs to another user")


def _to_json(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        clean_text(str(name)): _describe(value)
        if isinstance(value, BaseException)
        else clean_metadata({"": value})[0][""]
        for name, value in record.items()
    }


def _describe(error: BaseException) -> dict[str, str]:
    lines = traceback.format_exception(error)
    message = clean_metadata({"": error})[0][""]  # which also writes down one that cannot be printed
    return {"type": type(error).__name__, "message": message, "traceback": clean_text("".join(lines))}


def _write_all(file: int, line: bytes) -> None:
    while line:
        line = line[os.write(file, line) :]
