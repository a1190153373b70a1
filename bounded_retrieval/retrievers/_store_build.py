"""The stages in which a new generation is written: read, embed, order words and vectors, neighbours, the graph."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from pathlib import Path

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from bounded_retrieval.contracts.candidate import Unit, searchable_text
from bounded_retrieval.contracts.normalise import source_of_part
from bounded_retrieval.errors import EmbeddingMismatchError, SourceError
from bounded_retrieval.retrievers._arrays import ArrayWriter
from bounded_retrieval.retrievers._bm25_files import (
    UNITS,
    Header,
    write_neighbours,
    write_postings,
    write_vocabulary_and_header,
)
from bounded_retrieval.retrievers._bm25_index import BM25Settings
from bounded_retrieval.retrievers._finding_neighbours import find_neighbours
from bounded_retrieval.retrievers._neighbours import NOBODY, Neighbours
from bounded_retrieval.retrievers._store_dense import Changes, write_graph
from bounded_retrieval.retrievers._store_files import VECTOR_CACHE, writing
from bounded_retrieval.retrievers._store_manifest import CHROMA_FOLDER, DENSE, LEXICAL, MARKS, DenseKind
from bounded_retrieval.retrievers._store_previous import MARK_BYTES, PreviousGeneration, marks_of
from bounded_retrieval.retrievers._token_spool import TokenSpool
from bounded_retrieval.retrievers._units_writer import UnitsWriter
from bounded_retrieval.retrievers._vector_cache import VectorCache
from bounded_retrieval.retrievers._vectors import VECTORS, Rows, embed_units, read_vectors
from bounded_retrieval.retrievers.embeddings import embedding_identity
from bounded_retrieval.retrievers.units import SqliteUnits, read_units

Progress = Callable[[str, int, int | None], None]
"""Called with a stage, units done, and units in all where known.

The stages are ``read``, ``embed``, ``lexical``, ``neighbours``, ``dense`` and ``publish``.
"""

_BATCH = 64
_PART = 16_384  # rows of vectors moved at a time
_NEW = -1  # in place of an old row


@dataclass(frozen=True, kw_only=True)
class IndexReport:
    """What one build did.

    Attributes:
        units: units in the index now; the sum of ``added``, ``changed`` and ``unchanged``.
        added, removed: units that were not in the index before, and units that are no more.
        changed: units with another title, text or metadata.
        embedded: units that were embedded; a unit of which only metadata changed keeps its vector, and one that a
            build embedded that then did not end is not embedded again.
        dense: how the dense channel is searched: ``exact`` or ``chroma``.
        replaced_sources: of ``whole_sources``, those that the index held an earlier text of.
        relationships: declared relationships in the index now.
        relationships_dropped: whether the index had some before, and none were given this time.
    """

    units: int
    added: int
    changed: int
    removed: int
    unchanged: int
    embedded: int
    dense: DenseKind = "exact"
    replaced_sources: tuple[str, ...] = ()
    relationships: int = 0
    relationships_dropped: bool = False


class GenerationBuild:
    """One build; the stages are called in the order in which they stand here.

    Args:
        root: of the index.
        partial: folder of the new generation.
        old: what is taken over from; none for nothing.
        embedding: makes the vectors.
        keep: whether units of the old generation stay that are not given again.
        whole_sources: of these, parts that are not given again go nevertheless: they are of an earlier text.
        progress: told of each stage.
    """

    def __init__(  # noqa: PLR0913  # all keyword-only
        self,
        *,
        root: Path,
        partial: Path,
        old: PreviousGeneration | None,
        embedding: Embeddings,
        keep: bool,
        whole_sources: Collection[str],
        progress: Progress,
    ) -> None:
        self._root, self._partial, self._work = root, partial, partial / "work"
        self._old, self._keep = old, keep and old is not None
        self._embedding = embedding
        self._progress = progress
        with writing(root):
            self._work.mkdir(exist_ok=True)
            self._spool = TokenSpool(self._work, None if old is None else old.corpus)
        self._marks = bytearray()
        self._old_rows = array("q")  # of each unit that arrived: whose text it is, or _NEW
        self._is_changed = array("b")
        self._seen = np.zeros(0 if old is None else len(old.units), dtype=np.bool_)
        self._gone = np.zeros_like(self._seen)  # which units of the old generation are not in this one
        self._whole_sources = frozenset(whole_sources)
        self._replaced_sources: tuple[str, ...] = ()
        self._records = np.zeros(0, dtype=np.int64)
        self._embedded = 0
        self.dimensions = 0 if old is None else old.dimensions

    def close(self) -> None:
        """Let go of files, however far it came."""
        self._spool.close()

    def read(self, documents: Iterable[Document]) -> None:
        """Take the units in: their texts, their terms, and what tells whether they changed.

        Raises:
            SourceError: a document is not usable, or there is no unit in the end.
            StoreError: something cannot be written; likewise every other stage.
        """
        total = length_hint(documents) or None
        with writing(self._root):
            (self._partial / LEXICAL).mkdir()
            (self._partial / DENSE).mkdir()
        units = read_units(documents)
        with UnitsWriter(self._units_file) as writer:
            self._take_all(units, writer, total)
            self._gone = self._superseded() if self._keep else ~self._seen
            # Terms of another tokenizer cannot be kept: then the old units are read like those given.
            if self._keep and self._old is not None and self._old.corpus is None:
                taken = self._seen | self._gone
                self._take_all(
                    (unit for row, unit in enumerate(self._old.units.units()) if not taken[row]), writer, None
                )
            replaced = np.flatnonzero(self._seen | self._gone).tolist()
            if not self._is_changed and not self._keep:
                raise SourceError(f"{self._root}: no units to index; to drop an index, delete that directory")
            base = self._old.units_file if self._keep and self._old is not None else None
            self._places = writer.finish(base, replaced)
        self._old_row_of = self._rows_taken_over()

    def embed(self) -> None:
        """Make the vectors of texts that are new; those made before are kept whatever happens.

        Raises:
            ConfigurationError: the embedding did not give vectors of equal length and finite numbers.
            EmbeddingMismatchError: it gives vectors of another length than the ones taken over.
        """
        new = np.flatnonzero(np.array(self._old_rows, dtype=np.int64) == _NEW)
        self._records = np.full(len(self._old_rows), -1, dtype=np.int64)
        if not len(new):
            return
        with writing(self._root):
            known = None if self._old is None else self._old.dimensions
            self._cache = VectorCache(self._root / VECTOR_CACHE, embedding_identity(self._embedding), known)
        with self._cache as cache:
            digests = self._given_marks()[:, :MARK_BYTES]
            self._records[new] = cache.find(digests[new])
            wanted = new[self._records[new] < 0]
            with ExitStack() as opened:
                texts = SqliteUnits(self._units_file)
                opened.callback(texts.close)
                for start in range(0, len(wanted), _BATCH):
                    self._embed(texts, wanted[start : start + _BATCH], digests)
                    self._progress("embed", self._embedded, len(wanted))
            self.dimensions = cache.dimensions or 0

    def order_words(self) -> None:
        """Write the lexical files."""
        folder, settings = self._partial / LEXICAL, BM25Settings()
        self._progress("lexical", 0, self.units)
        with writing(self._root):
            old_rows = self._old_row_of if self._spool.has_base else np.full(self.units, _NEW)
            files = folder / "token_ids.npy", folder / "offsets.npy"
            corpus = self._spool.write(*files, self._places, old_rows)
            write_postings(folder, corpus, settings)
            write_vocabulary_and_header(folder, corpus.vocabulary, Header.of(settings, self.units, neighbours=True))
            with ArrayWriter(folder / MARKS, np.dtype(np.uint8)) as file:
                for rows in self._parts():
                    file.append(self._marks_at(rows).reshape(-1))
        self._progress("lexical", self.units, self.units)

    def order_vectors(self) -> None:
        """Write the vectors by row."""
        with writing(self._root), ArrayWriter(self._vectors_file, np.dtype(np.float32), self.dimensions) as file:
            for rows in self._parts():
                made = np.empty((len(rows), self.dimensions), dtype=np.float32)
                old = self._old_row_of[rows]
                if self._old is not None and (old != _NEW).any():
                    made[old != _NEW] = self._old.vectors(old[old != _NEW])
                if (old == _NEW).any():
                    made[old == _NEW] = self._cache.vectors(self._records[self._places[rows[old == _NEW]]])
                file.append(made)

    def find_neighbours(self) -> None:
        """Write which units are most like each."""
        self._progress("neighbours", 0, self.units)
        vectors = read_vectors(self._vectors_file, self.units, self.dimensions)
        found = find_neighbours(
            vectors, lambda done: self._progress("neighbours", done, self.units), known=self._neighbours_taken_over()
        )
        with writing(self._root):
            write_neighbours(self._partial / LEXICAL, found)

    def draw_graph(self, kind: DenseKind) -> None:
        """Write the Chroma store of an index of that kind."""
        self.kind = kind
        self._progress("dense", 0, self.units)
        if kind == "exact":
            self._progress("dense", self.units, self.units)
            return
        arrived = np.array(self._is_changed, dtype=np.bool_)
        is_given = self._places < len(arrived)
        changed = np.flatnonzero(is_given)[arrived[self._places[is_given]]]
        changes = Changes(
            old=None if self._old is None else self._old.chroma,
            changed=changed,
            removed=self._removed_ids(),
            units=self._units_file,
            vectors=self._vectors_file,
            dimensions=self.dimensions,
        )
        write_graph(changes, self._partial / DENSE / CHROMA_FOLDER, self._embedding, self._progress)

    def clean_up(self) -> None:
        """Delete what was only needed to get here."""
        shutil.rmtree(self._work)

    def report(self) -> IndexReport:
        """What was done."""
        given, changed = len(self._is_changed), int(np.count_nonzero(np.array(self._is_changed)))
        seen = int(np.count_nonzero(self._seen))
        added = given - seen
        return IndexReport(
            units=self.units,
            added=added,
            changed=changed - added,
            removed=int(np.count_nonzero(self._gone)),
            unchanged=self.units - changed,
            embedded=self._embedded,
            dense=self.kind,
            replaced_sources=self._replaced_sources,
        )

    @property
    def units(self) -> int:
        """Units of the new generation; known after `read`."""
        return len(self._places)

    @property
    def _units_file(self) -> Path:
        return self._partial / LEXICAL / UNITS

    @property
    def _vectors_file(self) -> Path:
        return self._partial / DENSE / VECTORS

    def _take_all(self, units: Iterator[Unit], writer: UnitsWriter, total: int | None) -> None:
        while batch := list(islice(units, _BATCH)):
            with writing(self._root):
                self._take(batch, writer)
            if len(batch) == _BATCH:
                self._progress("read", len(self._is_changed), total)

    def _take(self, batch: list[Unit], writer: UnitsWriter) -> None:
        known = {} if self._old is None else self._old.units.rows_of([unit.unit_id for unit in batch])
        for unit in batch:
            marks, row = marks_of(unit), known.get(unit.unit_id, _NEW)
            old_marks = b"" if self._old is None or row == _NEW else self._old.marks[row].tobytes()
            if row != _NEW:
                self._seen[row] = True
            is_same_text = old_marks[:MARK_BYTES] == marks[:MARK_BYTES]
            self._old_rows.append(row if is_same_text else _NEW)
            self._is_changed.append(old_marks != marks)
            self._marks += marks
            if is_same_text and self._spool.has_base:
                self._spool.skip()
            else:
                self._spool.add(unit)
        writer.add(batch)

    def _superseded(self) -> NDArray[np.bool_]:
        """Which old units are parts of a source of which all were given, and are none of these."""
        gone = np.zeros_like(self._seen)
        if self._old is None or not self._whole_sources:
            return gone
        rows = {
            unit_id: row
            for row, unit_id in enumerate(self._old.units.ids())
            if not self._seen[row] and source_of_part(unit_id) in self._whole_sources
        }
        # Others may name their units so.
        parts = {
            unit_id: source_of_part(unit_id)
            for unit_id, unit in self._old.units.fetch(list(rows)).items()
            if unit.metadata.get("source") == source_of_part(unit_id)
        }
        gone[[rows[unit_id] for unit_id in parts]] = True
        self._replaced_sources = tuple(sorted(source for source in set(parts.values()) if source is not None))
        return gone

    def _embed(self, texts: SqliteUnits, places: Rows, digests: NDArray[np.uint8]) -> None:
        held = texts.at_places(places.tolist())
        vectors = embed_units(self._embedding, [searchable_text(title, text) for title, text in held])
        for known in (self._cache.dimensions, None if self._old is None else self._old.dimensions):
            if known not in (None, vectors.shape[1]):
                name = embedding_identity(self._embedding)
                raise EmbeddingMismatchError(
                    f"{self._root}: holds vectors of {known} dimensions, embedding {name} gives {vectors.shape[1]}"
                )
        with writing(self._root):
            self._records[places] = self._cache.append(digests[places], vectors)
        self._embedded += len(places)

    def _rows_taken_over(self) -> Rows:
        """Of each new row the old one whose text it has, or _NEW."""
        given = np.array(self._old_rows, dtype=np.int64)
        is_given = self._places < len(given)
        rows = self._places - len(given)
        rows[is_given] = given[self._places[is_given]]
        return rows

    def _neighbours_taken_over(self) -> Neighbours | None:
        if self._old is None or self._old.neighbours is None:
            return None
        new_rows = np.full(len(self._old.units), NOBODY, dtype=np.int64)
        taken = np.flatnonzero(self._old_row_of != _NEW)
        new_rows[self._old_row_of[taken]] = taken
        return self._old.neighbours.moved(new_rows, self.units)

    def _given_marks(self) -> NDArray[np.uint8]:
        return np.frombuffer(bytes(self._marks), dtype=np.uint8).reshape(-1, 2 * MARK_BYTES)

    def _marks_at(self, rows: Rows) -> NDArray[np.uint8]:
        given, places = self._given_marks(), self._places[rows]
        found = np.empty((len(rows), 2 * MARK_BYTES), dtype=np.uint8)
        is_given = places < len(given)
        found[is_given] = given[places[is_given]]
        if self._old is not None and not is_given.all():
            found[~is_given] = self._old.marks[places[~is_given] - len(given)]
        return found

    def _removed_ids(self) -> list[str]:
        return [] if self._old is None else self._old.units.unit_ids_at(np.flatnonzero(self._gone).tolist())

    def _parts(self) -> Iterable[Rows]:
        return (np.arange(start, min(start + _PART, self.units)) for start in range(0, self.units, _PART))
