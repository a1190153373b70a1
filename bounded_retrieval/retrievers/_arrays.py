"""NumPy files of an index: mapped, never evaluated, and of exactly the size that their header says."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.errors import StoreCorruptError
from bounded_retrieval.retrievers._regular_files import open_regular, regular_size

_MAX_HEADER = 1_024
# What np.save writes before an array of one or two dimensions. Matched, so that no header is evaluated or allocated by.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00.."
    rb"\{'descr': '([<>|=]\w{1,4})', 'fortran_order': False, 'shape': \(([0-9]{1,18}),(?: ([0-9]{1,9}))?\), \} *\n",
    re.DOTALL,
)


def read_array(path: Path, dtype: np.dtype[Any], columns: int | None = None) -> NDArray[Any]:
    """Map a file of exactly the bytes that its header and so many values of the type take.

    Args:
        path: the file.
        dtype: what it must hold.
        columns: of an array of two dimensions; none for one of one dimension.

    Raises:
        StoreCorruptError: it is no such file, or cannot be mapped.
    """
    size = regular_size(path)
    with open_regular(path) as file:
        header = _HEADER.match(file.read(_MAX_HEADER))
        if header is None or header[1].decode() != dtype.str or (columns is None) != (header[3] is None):
            raise StoreCorruptError(f"{path}: not a {'one' if columns is None else 'two'}-dimensional array of {dtype}")
        shape = (int(header[2]),) if columns is None else (int(header[2]), int(header[3]))
        if columns not in (None, shape[-1]):
            raise StoreCorruptError(f"{path}: rows of {shape[-1]} values, expected {columns}")
        if header.end() + int(np.prod(shape, dtype=object)) * dtype.itemsize != size:
            raise StoreCorruptError(f"{path}: {size} bytes, which are not {header[2].decode()} values of {dtype}")
        try:
            return np.asarray(np.memmap(file, dtype=dtype, mode="r", offset=header.end(), shape=shape))
        except (OSError, ValueError) as error:
            raise StoreCorruptError(f"{path}: cannot be mapped ({error})") from error


class ArrayWriter:
    """Writes an array to a new file part by part; a context manager. What `read_array` reads.

    Args:
        path: of the file, which must not exist.
        dtype: of the values.
        columns: of an array of two dimensions; none for one of one dimension.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], columns: int | None = None) -> None:
        self._file = path.open("xb")
        self._dtype = dtype
        self._columns = columns
        self._length = 0
        self._write_header()

    def append(self, values: NDArray[Any]) -> None:
        """Write values, or rows, after those before.

        Raises:
            OSError: the disk is full, for example.
        """
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self._length += len(values)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        with suppress(OSError):  # what a full disk did not take is still waiting to be written
            self._file.close()

    def close(self) -> None:
        """Finish the file; may be repeated."""
        if self._file.closed:
            return
        with self._file:
            self._file.seek(0)
            self._write_header()  # as long as the first one: NumPy leaves room for any length

    def _write_header(self) -> None:
        shape = (self._length,) if self._columns is None else (self._length, self._columns)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
