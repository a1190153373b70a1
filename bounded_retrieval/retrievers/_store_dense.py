"""The Chroma store of a large index: a graph over the vectors, brought up to date from the old one's."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from bounded_retrieval.errors import StoreCorruptError, StoreError, StoreMissingError
from bounded_retrieval.retrievers import _chroma_store
from bounded_retrieval.retrievers._accelerated import AcceleratedSearcher
from bounded_retrieval.retrievers._chroma_filter import pack_metadata
from bounded_retrieval.retrievers._store_files import check_chroma, copy_chroma, generation_folder
from bounded_retrieval.retrievers._store_manifest import Manifest, read_manifest
from bounded_retrieval.retrievers._store_previous import COLLECTION
from bounded_retrieval.retrievers._vectors import Rows, read_vectors
from bounded_retrieval.retrievers.chroma import ChromaSearcher
from bounded_retrieval.retrievers.exact import ExactSearcher
from bounded_retrieval.retrievers.units import SqliteUnits

_BATCH = 1_000


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What the store has to hold, and what of it the old one does not.

    Attributes:
        old: the old store, where there is one.
        changed: rows of the new index that are new or changed.
        removed: ids of units of the old one that are gone.
        units: the file of the new units.
        vectors: the file of their vectors.
        dimensions: length of a vector.
    """

    old: Path | None
    changed: Rows
    removed: list[str]
    units: Path
    vectors: Path
    dimensions: int


def write_graph(
    changes: Changes, path: Path, embedding: Embeddings, progress: Callable[[str, int, int | None], None]
) -> None:
    """Write a store of the ids, vectors and metadata of the units; texts are not in it.

    Raises:
        StoreError: it cannot be written.
    """
    with ExitStack() as opened:
        units = opened.enter_context(closing(SqliteUnits(changes.units)))
        collection = _copied(opened, path, changes.old)
        rows = changes.changed if collection is not None else np.arange(len(units))
        with _named(path):
            if collection is None:
                collection = _chroma_store.create_collection(opened, path, COLLECTION, embedding)
            for start in range(0, len(changes.removed) if changes.old else 0, _BATCH):
                _delete(collection, changes.removed[start : start + _BATCH])
            for start in range(0, len(rows), _BATCH):
                _store(collection, units, changes, rows[start : start + _BATCH])
                progress("dense", min(start + _BATCH, len(rows)), len(rows))
            held = collection.count()
        if held != len(units):
            raise StoreCorruptError(f"{path}: holds {held} units, expected {len(units)}")


def _store(collection: Any, units: SqliteUnits, changes: Changes, rows: Rows) -> None:
    ids = units.unit_ids_at(rows.tolist())
    documents = units.fetch(ids)
    packed = [pack_metadata(documents[unit_id].metadata) for unit_id in ids]
    vectors = read_vectors(changes.vectors, len(units), changes.dimensions)[rows]
    _delete(collection, ids)  # Chroma merges new metadata into old
    collection.upsert(ids=ids, embeddings=vectors, metadatas=packed)


def _delete(collection: Any, ids: list[str]) -> None:
    held = collection.get(ids=ids, include=[])["ids"]
    if held:
        collection.delete(ids=held)


def _copied(opened: ExitStack, path: Path, old: Path | None) -> Any | None:
    """The old store's collection in a copy of it; none if there is no old store, or it cannot be used."""
    if old is None:
        return None
    with suppress(StoreCorruptError):
        copy_chroma(old, path)
        return _chroma_store.open_collection(opened, path, COLLECTION)
    shutil.rmtree(path)
    return None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the folder, and how much room it has: of a full disk Chroma says little."""
    from chromadb.errors import ChromaError

    try:
        yield
    except ChromaError as error:
        problem, free = _chroma_store.first_line(error), shutil.disk_usage(path.parent).free
        raise StoreError(f"{path}: cannot be written ({problem}; {free:,} bytes are free on its disk)") from error


def accelerated(exact: ExactSearcher, root: Path, manifest: Manifest, limit: int) -> AcceleratedSearcher:
    """The dense searcher of an index with a graph, which is opened when it is first searched."""

    def open_graph(embedding: Embeddings) -> ChromaSearcher:
        try:
            return _open_graph(root, manifest, embedding)
        except StoreError as error:
            # Once it is open, its files may be deleted.
            if read_manifest(root) == manifest:
                raise
            raise StoreError(f"{root}: the index was replaced since it was opened; open it again") from error

    return AcceleratedSearcher(exact, open_graph, limit)


def _open_graph(root: Path, manifest: Manifest, embedding: Embeddings) -> ChromaSearcher:
    check_chroma(root, manifest)
    store = generation_folder(root, manifest) / str(manifest.chroma)
    try:
        graph = ChromaSearcher.open(store, embedding, collection_name=COLLECTION, read_only=True)
    except StoreMissingError as error:
        raise StoreCorruptError(str(error)) from error
    held = len(graph)
    if held != manifest.units:
        graph.close()
        raise StoreCorruptError(f"{store}: {held} units, expected {manifest.units}")
    return graph
