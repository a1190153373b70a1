"""Write files so that each is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from bounded_retrieval.contracts.regular_file import check_regular
from bounded_retrieval.errors import SourceError


def check_folder(folder: str | Path) -> None:
    """Make sure that files can be written to a folder, before anything costly is done for them; creates nothing.

    Raises:
        SourceError: it, or what it would be created in, is a file or cannot be written to; names it.
    """
    place = Path(folder)
    with _one_line(place):
        while not place.exists() and not place.is_symlink() and place != place.parent:
            place = place.parent
        _check_directory(place)
    if not os.access(place, os.W_OK | os.X_OK):
        raise SourceError(f"{place}: cannot be written to")


def check_file(path: Path, option: str) -> None:
    """Make sure that a file can be written, before anything costly is done for it; creates nothing.

    Args:
        path: the file; its folder must be there.
        option: who names the file, for errors.

    Raises:
        SourceError: it is a folder or another thing than a file, or its folder is missing or cannot be written to.
    """
    with _one_line(path):
        if path.is_dir():
            raise SourceError(f"{path}: a directory; {option} takes the file to write")
        if not path.parent.is_dir():
            raise SourceError(f"{path.parent}: no such directory, for {option}")
    check_regular(path)
    check_folder(path.parent)


def write_bytes(folder: str | Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files into a folder, which is created if need be; each is written beside its place, then moved there.

    Args:
        folder: where to.
        files: contents by file name.

    Returns:
        The files, in the order given.

    Raises:
        SourceError: the folder is a file, or something in it cannot be written; names it.
    """
    here = Path(folder)
    with _one_line(here):
        if here.exists() or here.is_symlink():
            _check_directory(here)
        here.mkdir(parents=True, exist_ok=True)
    return [_write(here / name, content) for name, content in files.items()]


def _write(path: Path, content: bytes) -> Path:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with _one_line(path):
        try:
            beside.write_bytes(content)
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    return path


def _check_directory(place: Path) -> None:
    if not place.is_dir():
        raise SourceError(f"{place}: not a folder; a folder to write to is expected")


@contextlib.contextmanager
def _one_line(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(f"{place}: cannot be written ({error.strerror or type(error).__name__})") from None
