"""Vectors made by a build, kept in one file until it is published, so that the next one need not make them again.

The file is a JSON line and records of equal length: digest of what was embedded, CRC-32 of the vector, vector. Records
are only ever appended; those from the first one on that is not whole are cut off when the file is opened.
"""

from __future__ import annotations

import json
import zlib
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.errors import StoreCorruptError
from bounded_retrieval.retrievers._regular_files import open_regular
from bounded_retrieval.retrievers._vectors import Rows, Vectors

DIGEST_BYTES = 16

_KIND = "bounded-retrieval vectors"
_MAX_HEADER_BYTES = 4_096
_MAX_DIMENSIONS = 1_000_000
_PART = 4_096  # records looked at at a time


class VectorCache:
    """The records of the file, and new ones after them; a context manager. `remove` deletes the file.

    Args:
        path: of the file, which may be missing, damaged, or that of another embedding: then it is begun anew.
        embedding: identity of the one that makes the vectors.
        dimensions: that a vector must have, where that is known.

    Raises:
        OSError: it cannot be written; likewise any method.
    """

    def __init__(self, path: Path, embedding: str, dimensions: int | None = None) -> None:
        self._path = path
        self._embedding = embedding
        self._wanted = dimensions
        self._record: np.dtype[Any] | None = None
        self._start = 0
        self._digests = np.zeros((0, 2), dtype=np.uint64)
        self._file: Any = None
        with suppress(StoreCorruptError):
            self._read()
        self.count = len(self._digests)
        """Records in the file."""
        if self._record is None:
            path.unlink(missing_ok=True)
        else:
            self._file = path.open("r+b")
            self._file.truncate(self._start + self.count * self._record.itemsize)
            self._file.seek(0, 2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            # What a full disk did not take is still waiting to be written; the first error is the one to tell of.
            with suppress(OSError) if error is not None else nullcontext():
                self._file.close()

    @property
    def dimensions(self) -> int | None:
        """Length of a vector; None before there is one."""
        return None if self._record is None else int(self._record["vector"].shape[0])

    def find(self, digests: NDArray[np.uint8]) -> Rows:
        """The record of each digest, shape (digests, 16), that was there when the file was opened; else -1."""
        wanted = np.ascontiguousarray(digests).view(np.uint64).reshape(-1, 2)
        if not len(self._digests) or not len(wanted):
            return np.full(len(wanted), -1, dtype=np.int64)
        order = np.argsort(self._digests[:, 0], kind="stable")
        places = np.searchsorted(self._digests[order, 0], wanted[:, 0])
        found = order[np.minimum(places, len(order) - 1)]
        is_same: NDArray[np.bool_] = (self._digests[found] == wanted).all(axis=1)
        return np.where(is_same, found, -1)

    def append(self, digests: NDArray[np.uint8], vectors: Vectors) -> Rows:
        """Write vectors under their digests; returns their records."""
        if self._record is None:
            self._begin(vectors.shape[1])
        records = np.zeros(len(vectors), dtype=self._record)
        records["digest"], records["vector"] = digests, vectors
        records["crc"] = [zlib.crc32(vector.tobytes()) for vector in records["vector"]]
        self._file.write(records.tobytes())
        self._file.flush()  # what the system has, a killed process leaves behind
        self.count += len(vectors)
        return np.arange(self.count - len(vectors), self.count)

    def vectors(self, records: Rows) -> Vectors:
        """Vectors of records, shape (records, dimensions)."""
        # Mapped anew each time, so that what was read does not stay in memory.
        record: Any = self._record
        held = np.memmap(self._path, dtype=record, mode="r", offset=self._start, shape=(self.count,))
        found: Vectors = held["vector"][records]
        return found

    def remove(self) -> None:
        """Delete the file."""
        self.__exit__(None, None, None)
        self._path.unlink(missing_ok=True)

    def _begin(self, dimensions: int) -> None:
        header = {"kind": _KIND, "embedding": self._embedding, "dimensions": dimensions}
        line = json.dumps(header).encode() + b"\n"
        self._record, self._start = _record_of(dimensions), len(line)
        self._file = self._path.open("xb")
        self._file.write(line)

    def _read(self) -> None:
        with open_regular(self._path) as file:
            line = file.readline(_MAX_HEADER_BYTES)
            dimensions = _dimensions_in(line, self._embedding)
            if dimensions is None or self._wanted not in (None, dimensions):
                return
            record = _record_of(dimensions)
            parts = []
            while data := file.read(_PART * record.itemsize):
                whole = np.frombuffer(data, dtype=record, count=len(data) // record.itemsize)
                sound = _sound(whole)
                parts.append(whole["digest"][:sound].copy().view(np.uint64).reshape(-1, 2))
                if sound < _PART:
                    break
        if parts and len(parts[0]):
            self._record, self._start = record, len(line)
            self._digests = np.concatenate(parts)


def _record_of(dimensions: int) -> np.dtype[Any]:
    return np.dtype([("digest", np.uint8, (DIGEST_BYTES,)), ("crc", "<u4"), ("vector", "<f4", (dimensions,))])


def _dimensions_in(line: bytes, embedding: str) -> int | None:
    try:
        held = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(held, dict) or (held.get("kind"), held.get("embedding")) != (_KIND, embedding):
        return None
    dimensions = held.get("dimensions")
    is_number = type(dimensions) is int and 1 <= dimensions <= _MAX_DIMENSIONS
    return dimensions if is_number and line.endswith(b"\n") else None


def _sound(records: NDArray[Any]) -> int:
    """How many records there are before the first that is not the one that was written."""
    vectors = records["vector"]
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1))
    for number, (crc, vector) in enumerate(zip(records["crc"].tolist(), vectors, strict=True)):
        is_vector = lengths[number] == 0 or abs(lengths[number] - 1) < 1e-3  # noqa: PLR2004 - as float32 has it
        if not is_vector or zlib.crc32(vector.tobytes()) != crc:
            return number
    return len(records)
