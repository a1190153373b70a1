"""The dense part of a new generation: the old Chroma store, copied, with what changed put right."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.candidate import Unit, searchable_text
from bounded_retrieval.errors import StoreCorruptError, StoreError
from bounded_retrieval.retrievers import _chroma_store
from bounded_retrieval.retrievers._bm25_files import UNITS
from bounded_retrieval.retrievers._store_files import (
    DENSE,
    INDEX_FORMAT,
    LEXICAL,
    Manifest,
    copy_chroma,
    generation_folder,
)
from bounded_retrieval.retrievers._store_verify import verified_folder
from bounded_retrieval.retrievers.chroma import ChromaSearcher
from bounded_retrieval.retrievers.embeddings import embedding_identity
from bounded_retrieval.retrievers.units import SqliteUnits

Progress = Callable[[str, int, int | None], None]
"""Called with a stage (``read``, ``embed``, ``lexical``, ``publish``), units done, and units in all where known."""

COLLECTION = "units"
BATCH = 64


@dataclass(frozen=True, kw_only=True)
class IndexReport:
    """What one build did.

    Attributes:
        units: units in the index now; the sum of ``added``, ``changed`` and ``unchanged``.
        added, removed: units that were not in the index before, and units that are no more.
        changed: units with another title, text or metadata.
        embedded: units that were embedded; a unit of which only metadata changed keeps its vector.
        relationships: declared relationships in the index now.
        relationships_dropped: whether the index had some before, and none were given this time.
    """

    units: int
    added: int
    changed: int
    removed: int
    unchanged: int
    embedded: int
    relationships: int = 0
    relationships_dropped: bool = False


@dataclass(frozen=True)
class Marks:
    """What tells whether a unit changed: digests of its searchable text and of its metadata."""

    text: bytes
    metadata: bytes

    @classmethod
    def of(cls, unit: Unit) -> Marks:
        """The marks of a unit."""
        parts = (searchable_text(unit.title, unit.text), json.dumps(unit.metadata, sort_keys=True))
        return cls(*(hashlib.sha256(part.encode()).digest()[:16] for part in parts))


@dataclass(frozen=True)
class PreviousGeneration:
    """The marks of the units of the generation that counts, and its Chroma store."""

    marks: Mapping[str, Marks] = field(default_factory=dict)
    dense: Path | None = None

    @classmethod
    def read(cls, root: Path, manifest: Manifest | None) -> PreviousGeneration:
        """Read everything once. A damaged generation counts as none: then everything is embedded again."""
        if manifest is None:
            return cls()
        try:
            # What is taken over gets new digests, so it has to agree with the old ones, where there are any.
            find = verified_folder if manifest.format == INDEX_FORMAT else generation_folder
            folder = find(root, manifest)
            units = SqliteUnits(folder / LEXICAL / UNITS)
            marks = {unit.unit_id: Marks.of(unit) for unit in units.units()}
            units.close()
        except StoreError:
            return cls()
        return cls(marks, folder / DENSE)


class DenseWriter:
    """Takes every unit of the new generation, and embeds and stores those that changed.

    Attributes:
        seen: ids of the units taken.
    """

    def __init__(
        self, path: Path, collection: Any, marks: Mapping[str, Marks], embedding: Embeddings, progress: Progress
    ) -> None:
        self.seen: set[str] = set()
        self._added = self._changed = self._removed = self._unchanged = 0
        self._path = path
        self._collection = collection
        self._embedding = _RememberedEmbeddings(embedding)
        self._searcher = ChromaSearcher(collection, self._embedding)
        self._marks = marks
        self._progress = progress
        self._batch: list[Unit] = []
        self._kept_ids: list[str] = []

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, old: PreviousGeneration, embedding: Embeddings, progress: Progress
    ) -> Iterator[DenseWriter]:
        """Start from a copy of the old store, or from nothing; the store is closed at the end."""
        with ExitStack() as opened:
            collection = _copied_collection(opened, path, old, embedding)
            marks = old.marks
            if collection is None:
                collection = _chroma_store.create_collection(opened, path, COLLECTION, embedding)
                marks = {}
            yield cls(path, collection, marks, embedding, progress)

    def take(self, unit: Unit) -> None:
        """Take the next unit; ids must not repeat."""
        self.seen.add(unit.unit_id)
        old, new = self._marks.get(unit.unit_id), Marks.of(unit)
        if old == new:
            self._unchanged += 1
            return
        if old is None:
            self._added += 1
        else:
            self._changed += 1
            if old.text == new.text:
                self._kept_ids.append(unit.unit_id)
        self._batch.append(unit)
        if len(self._batch) == BATCH:
            self._store_batch()

    def finish(self) -> int:
        """Store the rest, delete the units that were not taken, and return the vectors' number of dimensions.

        Raises:
            StoreCorruptError: the store does not hold the units taken.
        """
        self._store_batch()
        gone = sorted(self._marks.keys() - self.seen)
        with self._storing():
            self._searcher.remove(gone)
        self._removed = len(gone)
        if len(self._searcher) != len(self.seen):
            raise StoreCorruptError(f"dense store: holds {len(self._searcher)} units, expected {len(self.seen)}")
        with self._storing():
            return len(self._collection.get(limit=1, include=["embeddings"])["embeddings"][0])

    def report(self) -> IndexReport:
        """What was done; complete after `finish`."""
        return IndexReport(
            units=len(self.seen),
            added=self._added,
            changed=self._changed,
            removed=self._removed,
            unchanged=self._unchanged,
            embedded=self._embedding.count,
        )

    def _store_batch(self) -> None:
        if self._kept_ids:
            with self._storing():
                kept = self._collection.get(ids=self._kept_ids, include=["embeddings"])
            vectors = dict(zip(kept["ids"], kept["embeddings"], strict=True))
            for unit in self._batch:
                if unit.unit_id in vectors:
                    text = searchable_text(unit.title, unit.text)
                    self._embedding.remembered[text] = [float(value) for value in vectors[unit.unit_id]]
        with self._storing():
            self._searcher.add([unit.to_document() for unit in self._batch])
        if self._batch:
            self._progress("embed", self._embedding.count, None)
        self._batch, self._kept_ids, self._embedding.remembered = [], [], {}

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Name the folder, and how much room it has: of a full disk Chroma says little."""
        from chromadb.errors import ChromaError

        try:
            yield
        except (ChromaError, StoreError) as error:
            if isinstance(error, StoreError) and type(error) is not StoreError:
                raise
            problem, free = _chroma_store.first_line(error), shutil.disk_usage(self._path).free
            raise StoreError(
                f"{self._path}: cannot be written ({problem}; {free:,} bytes are free on its disk)"
            ) from error


class _RememberedEmbeddings(Embeddings):
    """Gives vectors already known for their text and lets the wrapped embedding make the others."""

    def __init__(self, embedding: Embeddings) -> None:
        self.embedding_id = embedding_identity(embedding)
        self.remembered: dict[str, list[float]] = {}
        self.count = 0
        self._embedding = embedding

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        new = [text for text in texts if text not in self.remembered]
        self.count += len(new)
        made = iter(self._embedding.embed_documents(new) if new else [])
        # A vector too few stands out as an empty one, which the searcher refuses by the embedding's name.
        return [self.remembered[text] if text in self.remembered else next(made, []) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self._embedding.embed_query(text)


def _copied_collection(opened: ExitStack, path: Path, old: PreviousGeneration, embedding: Embeddings) -> Any | None:
    """The old store's collection in a copy of it; none if there is no old store, or it does not hold its units."""
    if old.dense is None:
        return None
    with suppress(StoreCorruptError):
        copy_chroma(old.dense, path)
        with ExitStack() as copied, suppress(StoreError):
            collection = _chroma_store.open_collection(copied, path, COLLECTION)
            if ChromaSearcher(collection, embedding).ids() == sorted(old.marks):
                opened.push(copied.pop_all())
                return collection
    shutil.rmtree(path)
    return None
