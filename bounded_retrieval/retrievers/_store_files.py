"""The layout of an index directory, and the steps that make a new generation of it appear at once.

::

    DIR/manifest.json                     which generation counts; replaced in one step
    DIR/index.lock                        held by the one writer
    DIR/generations/NNNNNN/lexical/       see ``_bm25_files.py``
    DIR/generations/NNNNNN/dense/         a Chroma store
    DIR/generations/NNNNNN/relationships.jsonl    the declared relationships, where any were given
    DIR/generations/NNNNNN.partial/       being written, or left by a writer that was killed
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Literal

import filelock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bounded_retrieval.errors import StoreBusyError, StoreCorruptError, StoreError, StoreMissingError, StoreVersionError

MANIFEST, LOCK, GENERATIONS = "manifest.json", "index.lock", "generations"
LEXICAL, DENSE = "lexical", "dense"
RELATIONSHIPS = "relationships.jsonl"
INDEX_FORMAT: Literal[1] = 1
INDEX_KIND: Literal["bounded-retrieval index"] = "bounded-retrieval index"

_PARTIAL = ".partial"
_CHROMA = "chroma.sqlite3"
_CHROMA_STORED = "index_metadata.pickle"
_GENERATION = re.compile(r"\d{6}")
_FILE = rf"(?:{re.escape(RELATIONSHIPS)}|(?:{LEXICAL}|{DENSE})(?:/\w[\w.-]*){{1,2}})"


class Manifest(BaseModel):
    """What ``manifest.json`` holds; no clock values.

    Attributes:
        embedding, dimensions: identity of the embedding of the dense channel, and the length of its vectors.
        k1, b: the constants of BM25.
        generation: name of the folder that counts.
        files: size in bytes of every file of the generation that no reader ever writes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["bounded-retrieval index"] = INDEX_KIND
    format: Literal[1] = INDEX_FORMAT
    package_version: str
    tokenizer: str
    embedding: str
    dimensions: int = Field(ge=1)
    k1: float
    b: float
    units: int = Field(ge=1)
    generation: str = Field(pattern=rf"^{_GENERATION.pattern}$")
    files: dict[Annotated[str, Field(pattern=f"^{_FILE}$")], int]


def read_manifest(root: Path) -> Manifest:
    """Read and check ``manifest.json``.

    Raises:
        StoreMissingError: there is none.
        StoreVersionError: it is of another format.
        StoreCorruptError: it is damaged, or not the manifest of an index.
    """
    path = root / MANIFEST
    try:
        held = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = f"bounded-retrieval index PATH --to {root}"
        raise StoreMissingError(f"{root}: no index there; make one with: {hint}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise StoreCorruptError(f"{path}: cannot be read ({error})") from error
    if not isinstance(held, dict) or held.get("kind") != INDEX_KIND:
        raise StoreCorruptError(f"{path}: not the manifest of an index")
    found = held.get("format")
    if isinstance(found, int) and found != INDEX_FORMAT:
        raise StoreVersionError(f"{path}: format {found}; this version reads {INDEX_FORMAT}")
    try:
        return Manifest.model_validate(held)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise StoreCorruptError(f"{path}: damaged (field {place})") from error


def generation_folder(root: Path, manifest: Manifest) -> Path:
    """The folder of the generation that counts, its files' sizes checked.

    Raises:
        StoreCorruptError: it is missing, a symbolic link, or a file in it is missing or of another size.
    """
    folder = root / GENERATIONS / manifest.generation
    for path in (root / GENERATIONS, folder):
        if path.is_symlink() or not path.is_dir():
            raise StoreCorruptError(f"{path}: not a folder")
    for name, size in manifest.files.items():
        try:
            found = (folder / name).stat().st_size
        except OSError as error:
            raise StoreCorruptError(f"{folder / name}: {error.strerror or error}") from error
        if found != size:
            raise StoreCorruptError(f"{folder / name}: {found} bytes, expected {size}")
    return folder


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
    names = {path.name for path in root.iterdir()}
    foreign = sorted(names - {LOCK, GENERATIONS, MANIFEST, MANIFEST + _PARTIAL})
    if MANIFEST not in names and GENERATIONS in names and LOCK not in names:
        # Every writer of ours leaves its lock file, however it ended.
        foreign = [*foreign, GENERATIONS]
    if MANIFEST not in names and not foreign and GENERATIONS in names:
        inside = [path.name for path in (root / GENERATIONS).iterdir()]
        foreign = sorted(name for name in inside if not _GENERATION.fullmatch(name.removesuffix(_PARTIAL)))
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
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout as error:
        raise StoreBusyError(f"{root}: another process is writing this index") from error
    except OSError as error:
        raise StoreError(f"{root}: cannot be written ({error.strerror or error})") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def new_generation(root: Path) -> Iterator[Path]:
    """An empty folder for the next generation; it is gone again after an error."""
    folder = root / GENERATIONS
    folder.mkdir(exist_ok=True)
    used = [path.name.removesuffix(_PARTIAL) for path in folder.iterdir()]
    last = max((int(name) for name in used if _GENERATION.fullmatch(name)), default=0)
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
    target.mkdir()
    if not (source / _CHROMA).is_file():
        raise StoreCorruptError(f"{source / _CHROMA}: missing")
    try:
        with (
            closing(sqlite3.connect(source / _CHROMA)) as old,
            closing(sqlite3.connect(target / _CHROMA)) as new,
        ):
            old.backup(new)
    except sqlite3.OperationalError as error:
        raise StoreError(f"{target / _CHROMA}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StoreCorruptError(f"{source / _CHROMA}: {error}") from error
    for path in source.iterdir():
        if path.is_dir():
            shutil.copytree(path, target / path.name)


def file_sizes(folder: Path) -> dict[str, int]:
    """Size of every file of a generation that readers never write.

    Left out are Chroma's SQLite files, and its vector files until it has really stored vectors in them: below its
    threshold every reader makes them anew from SQLite.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_rewritten(path)]
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    return {name: size for name, size in sizes.items() if re.fullmatch(_FILE, name)}


def _is_rewritten(path: Path) -> bool:
    is_unstored = path.suffix == ".bin" and not (path.parent / _CHROMA_STORED).exists()
    return path.name.startswith(_CHROMA) or is_unstored


def publish(root: Path, partial: Path, manifest: Manifest) -> None:
    """Make a finished generation the one that counts: after this, or not at all, whatever happens during it."""
    for path in [*partial.rglob("*"), partial]:
        _sync(path)
    partial.rename(partial.with_name(manifest.generation))
    _sync(root / GENERATIONS)
    draft = root / (MANIFEST + _PARTIAL)
    draft.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    _sync(draft)
    draft.replace(root / MANIFEST)
    _sync(root)


def sweep(root: Path, *, keep: set[str]) -> None:
    """Delete generations that no longer count, and what killed writers left."""
    for path in (root / GENERATIONS).iterdir():
        is_generation = _GENERATION.fullmatch(path.name.removesuffix(_PARTIAL)) is not None
        if is_generation and path.name not in keep and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
