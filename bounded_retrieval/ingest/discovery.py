"""Which files are to be read, in which order and under which name.

A file's *source* is its path relative to the folder that was given, or its name if the file itself was given; always
with forward slashes and never absolute. When several folders are given, their sources begin with the folder's name. Two
files with the same source are refused, since the ids of their units would mix.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.errors import SourceError, quoted
from bounded_retrieval.ingest.decoding import cannot_read

SkipReporter = Callable[[Path, str], None]
"""Told of each file that is not read, and why."""

READABLE_SUFFIXES = (".jsonl", ".md", ".markdown", ".txt", ".html", ".htm", ".pdf")

RELATIONSHIPS = "relationships.jsonl"
"""A file of this name holds declared relationships and is never read as documents."""

_NOT_DOCUMENTS = "holds declared relationships, not documents"
_CORPUS = "corpus.jsonl"
_BEIR_FILES = frozenset({_CORPUS, "queries.jsonl"})


@dataclass(frozen=True)
class SourceFile:
    """A file to read: where it is, its source name, and the given path that it was found under."""

    path: Path
    source: str
    root: Path


def find_files(paths: Iterable[Path | str], on_skip: SkipReporter) -> list[SourceFile]:
    """List the files of the given paths, those of a folder sorted by their relative path.

    In a folder that holds a BEIR collection (``corpus.jsonl`` and ``queries.jsonl``) the corpus is the only JSON
    Lines file that is read: the others hold requests and their answers. A file named ``relationships.jsonl`` is never
    read, here or elsewhere; see `find_relationships`.

    Hidden files and folders and index directories are passed over. Symbolic links inside a folder are not followed: a
    target inside the folder is read in its own place, and one outside was not asked for. A file reached twice is
    read once.

    Raises:
        SourceError: a path does not exist, a given file has an unknown suffix, a folder holds nothing readable, or
            two files have the same source.
    """
    roots = _distinct_roots(paths)
    named = sum(root.is_dir() for root in roots) > 1
    found: dict[str, SourceFile] = {}
    places: dict[Path, SourceFile] = {}
    for root in roots:
        for file in _files_under(root, on_skip, named=named):
            place = file.path.resolve()
            if place in places:
                on_skip(file.path, f"already read as {places[place].source}")
                continue
            if file.source in found:
                raise SourceError(f"{file.path}: same source {file.source!r} as {found[file.source].path}")
            found[file.source] = places[place] = file
    return list(found.values())


def find_sources(paths: Iterable[Path | str]) -> list[str]:
    """The sources of the files that are cut into parts, all but JSON Lines, whether any part holds text or not.

    Raises:
        SourceError: as `find_files`.
    """
    return [file.source for file in find_files(paths, lambda *_: None) if file.path.suffix.lower() != ".jsonl"]


def find_relationships(paths: Iterable[Path | str]) -> list[Path]:
    """List the files named ``relationships.jsonl`` in the given folders and all below them, each once.

    Hidden files and folders, index directories and symbolic links are passed over, as in `find_files`.

    Raises:
        SourceError: a path does not exist, or a folder cannot be read.
    """
    found: dict[Path, Path] = {}
    for root in filter(Path.is_dir, _distinct_roots(paths)):
        for here, names in _walk(root):
            path = here / RELATIONSHIPS
            if RELATIONSHIPS in names and not path.is_symlink() and path.is_file():
                found.setdefault(path.resolve(), path)
    return list(found.values())


def _distinct_roots(paths: Iterable[Path | str]) -> list[Path]:
    given = _as_paths(paths)
    if not given:
        raise SourceError("paths: at least one file or folder is needed")
    roots: dict[Path, Path] = {}
    for path in given:
        if not _exists(path):
            raise SourceError(f"{path}: does not exist")
        roots.setdefault(path.resolve(), path)
    return list(roots.values())


def _as_paths(paths: Any) -> list[Path]:
    is_one = isinstance(paths, (str, bytes, os.PathLike)) or not hasattr(paths, "__iter__")
    return [_as_path(path) for path in ([paths] if is_one else paths)]


def _as_path(path: Any) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise SourceError(f"paths: expected files and folders (got {quoted(path)})") from None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a name too long, a parent folder that may not be entered
        raise cannot_read(path, error) from error


def _files_under(root: Path, on_skip: SkipReporter, *, named: bool) -> Iterator[SourceFile]:
    if not root.is_dir():
        _check_given_file(root)
        yield SourceFile(root, clean_text(root.name), root)
        return
    prefix = PurePosixPath(root.resolve().name if named else "")
    relative = sorted(_readable_files(root, on_skip), key=PurePosixPath.as_posix)
    if not relative:
        raise SourceError(f"{root}: nothing readable in this folder (readable: {' '.join(READABLE_SUFFIXES)})")
    for name in relative:
        yield SourceFile(root / name, clean_text((prefix / name).as_posix()), root)


def _is_index(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and (folder / "generations").is_dir()


def _check_given_file(path: Path) -> None:
    if path.suffix.lower() not in READABLE_SUFFIXES:
        kind = f"unknown suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise SourceError(f"{path}: {kind} (readable: {' '.join(READABLE_SUFFIXES)})")
    if not path.is_file():
        raise SourceError(f"{path}: not a regular file")
    if path.name == RELATIONSHIPS:
        raise SourceError(f"{path}: {_NOT_DOCUMENTS}")


def _readable_files(root: Path, on_skip: SkipReporter) -> Iterator[PurePosixPath]:
    for here, names in _walk(root):
        for name in names:
            path = here / name
            if reason := _why_not_readable(path, in_collection=_BEIR_FILES.issubset(names)):
                on_skip(path, reason)
            else:
                yield PurePosixPath(path.relative_to(root).as_posix())


def _walk(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Each folder to be read and the names of what it holds, linked folders among them, in order."""
    for folder, folders, names in os.walk(root, onerror=_raise_unreadable):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in links and not _is_index(here / name)
        )
        yield here, sorted(name for name in [*names, *links] if not name.startswith("."))


def _why_not_readable(path: Path, *, in_collection: bool) -> str | None:
    if path.is_symlink():
        return "symbolic link (not followed)"
    if path.suffix.lower() not in READABLE_SUFFIXES:
        return f"unknown suffix {path.suffix!r}" if path.suffix else "no suffix"
    if not stat.S_ISREG(path.lstat().st_mode):
        return "not a regular file"
    if path.name == RELATIONSHIPS:
        return _NOT_DOCUMENTS
    if in_collection and path.suffix.lower() == ".jsonl" and path.name != _CORPUS:
        return f"not the corpus of this collection (only {_CORPUS} is)"
    return None


def _raise_unreadable(error: OSError) -> NoReturn:
    raise cannot_read(Path(error.filename), error) from error
