"""The layout of an index directory, and the steps that make a new generation of it appear at once.

::

    DIR/manifest.json                     which generation counts; replaced in one step
    DIR/index.lock                        held by the one writer
    DIR/vectors.partial                   vectors of a build that did not end, see ``_vector_cache.py``
    DIR/generations/NNNNNN/lexical/       see ``_bm25_files.py``; marks.npy tells what changed since the last build
    DIR/generations/NNNNNN/dense/         vectors.npy
    DIR/generations/NNNNNN/dense/chroma/  a Chroma store over the same vectors, in an index of the kind ``chroma``
    DIR/generations/NNNNNN/relationships.jsonl    the declared relationships, where any were given
    DIR/generations/NNNNNN.partial/       being written, or left by a writer that was killed
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import filelock

from bounded_retrieval.errors import StoreBusyError, StoreCorruptError, StoreError
from bounded_retrieval.retrievers._chroma_file import CHROMA
from bounded_retrieval.retrievers._regular_files import copy_folder, digest_of, regular_size
from bounded_retrieval.retrievers._store_manifest import (
    CHROMA_FILES,
    DENSE,
    FILE,
    GENERATION,
    LEXICAL,
    MANIFEST,
    READ_PIECEMEAL,
    Manifest,
    exists,
    read_manifest,
)

LOCK, GENERATIONS = "index.lock", "generations"
VECTOR_CACHE = "vectors.partial"

_PARTIAL = ".partial"
_CHROMA_STORED = "index_metadata.pickle"
_LAST_GENERATION = 999_999_999


def generation_folder(root: Path, manifest: Manifest) -> Path:
    """The folder of the generation that counts: nothing but files and folders, of the sizes that they had when written.

    Files that an index reads whole when it is opened are compared with their digests too.

    Raises:
        StoreCorruptError: it is missing, or something in it is missing, damaged, or a link, pipe or device.
    """
    folder = root / GENERATIONS / manifest.generation
    for path in (root / GENERATIONS, folder, folder / LEXICAL, folder / DENSE):
        if path.is_symlink() or not path.is_dir():
            raise StoreCorruptError(f"{path}: not a folder")
    _check_kinds(folder / DENSE, manifest)
    if manifest.chroma is not None:
        regular_size(folder / manifest.chroma / CHROMA)  # none of the files below, since readers write to it
    for name, size in manifest.files.items():
        found = regular_size(folder / name)
        if found != size:
            raise StoreCorruptError(f"{folder / name}: {found} bytes, expected {size}")
    read_now = {name: digest for name, digest in manifest.digests.items() if name not in READ_PIECEMEAL}
    check_digests(folder, {name: digest for name, digest in read_now.items() if not name.startswith(CHROMA_FILES)})
    return folder


def check_chroma(root: Path, manifest: Manifest) -> None:
    """Compare the files of the Chroma store with their digests: its native part ends the process over some.

    Raises:
        StoreCorruptError: names what is missing, damaged or of another kind.
    """
    folder = root / GENERATIONS / manifest.generation
    _check_kinds(folder / DENSE, manifest)
    own = {name: digest for name, digest in manifest.digests.items() if name.startswith(CHROMA_FILES)}
    check_digests(folder, own)


def check_digests(folder: Path, digests: dict[str, str]) -> None:
    """Compare files of a generation with their digests.

    Raises:
        StoreCorruptError: names the first file whose content is another one.
    """
    for name, digest in digests.items():
        if digest_of(folder / name) != digest:
            raise StoreCorruptError(f"{folder / name}: damaged (its SHA-256 is not the one that the manifest names)")


def _check_kinds(dense: Path, manifest: Manifest) -> None:
    """Chroma opens whatever stands in its folder: refuse what would hold it up, lead elsewhere, or was not written."""
    for here, folders, names in os.walk(dense):
        for path in (Path(here, name) for name in [*folders, *names]):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # the journal of another reader
                continue
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                raise StoreCorruptError(f"{path}: not a regular file")
            if path.name == _CHROMA_STORED and path.relative_to(dense.parent).as_posix() not in manifest.files:
                raise StoreCorruptError(f"{path}: no file of this index")


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Name the directory where writing it fails, on a full disk for example."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{root}: cannot be written ({error.strerror or error})") from error


def check_own(root: Path) -> None:
    """Refuse a directory that holds anything but an index, so that nothing foreign is ever deleted.

    Raises:
        StoreError: names what is there.
    """
    if not root.exists():
        return
    if not root.is_dir():
        raise StoreError(f"{root}: not a directory")
    if (root / GENERATIONS).is_symlink():
        raise StoreError(f"{root / GENERATIONS}: a symbolic link")
    with writing(root):
        _refuse_foreign(root)


def _refuse_foreign(root: Path) -> None:
    names = {path.name for path in root.iterdir()}
    foreign = sorted(names - {LOCK, GENERATIONS, VECTOR_CACHE, MANIFEST, MANIFEST + _PARTIAL})
    if MANIFEST not in names and GENERATIONS in names and LOCK not in names:
        # Every writer of ours leaves its lock file, however it ended.
        foreign = [*foreign, GENERATIONS]
    if MANIFEST not in names and not foreign and GENERATIONS in names:
        inside = [path.name for path in (root / GENERATIONS).iterdir()]
        foreign = sorted(name for name in inside if not GENERATION.fullmatch(name.removesuffix(_PARTIAL)))
    if MANIFEST not in names and foreign:
        raise StoreError(f"{root}: holds {foreign[0]!r} and is no index; give an empty or a new directory")


@contextmanager
def write_lock(root: Path) -> Iterator[None]:
    """Be the only writer of a directory, made if needed; a writer that is killed holds it no longer.

    Raises:
        StoreBusyError: at once, if there is another writer.
        StoreError: the directory cannot be made or written.
    """
    lock = filelock.FileLock(root / LOCK, timeout=0)
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        if exists(root / LOCK):
            regular_size(root / LOCK)  # or the lock would be taken of whatever a link leads to
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise StoreBusyError(f"{root}: another process is writing this index") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def new_generation(root: Path) -> Iterator[Path]:
    """An empty folder for the next generation; it is gone again after an error.

    Raises:
        StoreError: it cannot be made.
    """
    folder = root / GENERATIONS
    with writing(root):
        folder.mkdir(exist_ok=True)
        used = [path.name.removesuffix(_PARTIAL) for path in folder.iterdir()]
        last = max((int(name) for name in used if GENERATION.fullmatch(name)), default=0)
        if last >= _LAST_GENERATION:
            raise StoreError(f"{folder}: no number is left after {last}; delete {root} to build it anew")
        partial = folder / f"{last + 1:06}{_PARTIAL}"
        partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def generation_name(partial: Path) -> str:
    """The name that a folder being written will have."""
    return partial.name.removesuffix(_PARTIAL)


def copy_chroma(source: Path, target: Path) -> None:
    """Copy a Chroma store that other processes may have open for reading.

    Readers write to its SQLite file (Chroma does so on opening), so that file is copied by SQLite itself.

    Raises:
        StoreCorruptError: the store is missing or damaged.
        StoreError: the copy cannot be written.
    """
    with writing(target):
        target.mkdir()
    regular_size(source / CHROMA)
    try:
        with (
            closing(sqlite3.connect(source / CHROMA)) as old,
            closing(sqlite3.connect(target / CHROMA)) as new,
        ):
            old.backup(new)
    except sqlite3.OperationalError as error:
        raise StoreError(f"{target / CHROMA}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StoreCorruptError(f"{source / CHROMA}: {error}") from error
    with writing(target):
        for path in source.iterdir():
            if path.is_dir():
                (target / path.name).mkdir()
                copy_folder(path, target / path.name)


def file_sizes(folder: Path) -> dict[str, int]:
    """Size of every file of a generation that readers never write.

    Left out are Chroma's SQLite files, and its vector files until it has really stored vectors in them: below its
    threshold every reader makes them anew from SQLite.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_rewritten(path)]
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    return {name: size for name, size in sizes.items() if re.fullmatch(FILE, name)}


def _is_rewritten(path: Path) -> bool:
    is_unstored = path.suffix == ".bin" and not (path.parent / _CHROMA_STORED).exists()
    return path.name.startswith(CHROMA) or is_unstored


def publish(root: Path, partial: Path, manifest: Manifest) -> None:
    """Make a finished generation the one that counts: after this, or not at all, whatever happens during it.

    Raises:
        StoreError: the disk is full, for example; what was written is gone then.
    """
    whole, draft = partial.with_name(manifest.generation), root / (MANIFEST + _PARTIAL)
    try:
        with writing(root):
            for path in [*partial.rglob("*"), partial]:
                _sync(path)
            _write_anew(draft, manifest.model_dump_json(indent=2) + "\n")
            partial.rename(whole)
            _sync(root / GENERATIONS)
            draft.replace(root / MANIFEST)
        # It counts now. If this fails and the power does too, the old one may count again, which is whole as well.
        with suppress(OSError):
            _sync(root)
    except BaseException:
        if not _counts(root, manifest):
            with suppress(OSError):
                draft.unlink()
            shutil.rmtree(whole, ignore_errors=True)
        raise


def _write_anew(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)  # what a killed writer left, or a link that would lead elsewhere
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _counts(root: Path, manifest: Manifest) -> bool:
    with suppress(StoreError):
        return read_manifest(root).generation == manifest.generation
    return False


def sweep(root: Path, *, keep: set[str]) -> None:
    """Delete generations that no longer count, and what killed writers left."""
    for path in (root / GENERATIONS).iterdir():
        is_generation = GENERATION.fullmatch(path.name.removesuffix(_PARTIAL)) is not None
        if is_generation and path.name not in keep and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def sweep_unfinished(root: Path, current: str | None) -> None:
    """Delete what killed writers left, or it would pile up until a build succeeds: no reader ever has it open.

    What stays is the generation that counts and the one that it replaced, which readers may have open.
    """
    if not (root / GENERATIONS).is_dir():
        return
    names = (path.name for path in (root / GENERATIONS).iterdir() if GENERATION.fullmatch(path.name))
    finished = sorted((name for name in names if current is not None and int(name) <= int(current)), key=int)
    sweep(root, keep=set(finished[-2:]))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
