"""Read files of an index that may be damaged or none at all: nothing is followed, waited for or read without end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from bounded_retrieval.errors import StoreCorruptError

# A pipe without a writer would keep a plain open() waiting.
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def regular_size(path: Path) -> int:
    """Size in bytes of a regular file, which is not opened.

    Raises:
        StoreCorruptError: it is missing, or a folder, a link, a pipe or a device.
    """
    with _named(path):
        found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise StoreCorruptError(f"{path}: not a regular file")
    return found.st_size


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        StoreCorruptError: as `regular_size`, or it may not be read.
    """
    regular_size(path)
    with _named(path):
        return os.fdopen(os.open(path, _FLAGS), "rb")


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Read a whole file of at most ``max_bytes`` bytes.

    Raises:
        StoreCorruptError: as `open_regular`, or the file is longer.
    """
    size = regular_size(path)
    if size > max_bytes:
        raise StoreCorruptError(f"{path}: {size} bytes, at most {max_bytes}")
    with open_regular(path) as file, _named(path):
        return file.read(size)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal.

    Raises:
        StoreCorruptError: as `open_regular`.
    """
    with open_regular(path) as file, _named(path):
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_folder(source: Path, target: Path) -> None:
    """Copy the files below a folder into one that exists, without their modes, which may forbid writing.

    A file that goes away meanwhile, such as the journal of another process, is left out.

    Raises:
        OSError: something cannot be read or written.
    """
    for here, folders, names in os.walk(source):
        into = target / Path(here).relative_to(source)
        for folder in folders:
            (into / folder).mkdir()
        for name in names:
            with suppress(FileNotFoundError):
                shutil.copyfile(Path(here, name), into / name, follow_symlinks=False)


def read_json(path: Path, max_bytes: int) -> Any:
    """Read a JSON file in which no field stands twice and every number is finite.

    Raises:
        StoreCorruptError: as `read_regular`, or it is no such JSON.
    """
    data = read_regular(path, max_bytes)
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_distinct, parse_constant=_refuse)
    except RecursionError as error:
        raise StoreCorruptError(f"{path}: not JSON (nested too deeply)") from error
    except ValueError as error:
        raise StoreCorruptError(f"{path}: not JSON ({error})") from error


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreCorruptError(f"{path}: {error.strerror or error}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) < len(pairs):
        raise ValueError("a field stands there twice")
    return held


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
