"""The dense channel by exact search: every vector is compared with the query's. No server, no graph, no library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.candidate import Candidate, Channel, searchable_text
from bounded_retrieval.contracts.filters import Filter
from bounded_retrieval.errors import (
    ConfigurationError,
    EmbeddingMismatchError,
    RequestError,
    SourceError,
    StoreCorruptError,
    StoreError,
    quoted,
)
from bounded_retrieval.retrievers._bm25_masks import Mask, cached_masks
from bounded_retrieval.retrievers._excluding import Excluding
from bounded_retrieval.retrievers._finding_neighbours import find_neighbours
from bounded_retrieval.retrievers._neighbours import Neighbours
from bounded_retrieval.retrievers._vectors import (
    Rows,
    Vectors,
    cosines,
    embed_units,
    nearest,
    read_vectors,
    unit_length,
)
from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings, check_embeds, embedding_identity
from bounded_retrieval.retrievers.query_vectors import QueryVectors
from bounded_retrieval.retrievers.units import MemoryUnits, RowUnits, as_path

Progress = Callable[[int, int], None]
"""Called after each batch with the units done and the units in all."""

EXACT_LIMIT = 100_000
"""Most units that are searched exactly where nothing else is asked for; beyond, a graph is faster."""

_BATCH = 64


class ExactSearcher(Excluding):
    """Searches units by comparing every vector with the query's; also gives units by id and scores observed ones.

    Make one with `from_documents` or `open`. Scores are cosine similarities (-1 to 1, six decimals); a zero vector has
    no direction and scores 0. Rows are ordered by score, equal scores by unit id. A filter applies before ranking, and
    the fewer units pass the less a search costs. A search reads 4 bytes for each unit and dimension: .4 ms for 10,000
    units of 384 dimensions, where a graph (`ChromaSearcher`) is slower up to some tens of thousands of units and misses
    some of the nearest.

    Any number of threads may search, and a forked process goes on with it; no lock is held during a search.

    Args:
        units: where texts and metadata stand.
        vectors: float32, shape (units, dimensions): one of length 1, or the zero vector, for each row of ``units``.
        embedding: the one that made them; embeds queries.
        mask: which units pass a filter, shape (units,); by default worked out from the units' metadata.
        source: what damaged vectors are told of.

    Raises:
        SourceError: there are not as many vectors as units.
        ConfigurationError: the embedding is none, or the units are.
    """

    channel: Channel = "dense"

    def __init__(
        self,
        units: RowUnits,
        vectors: Vectors,
        embedding: Embeddings,
        *,
        mask: Callable[[Filter], Mask] | None = None,
        source: str = "dense searcher",
    ) -> None:
        check_embeds(embedding)
        if not isinstance(units, RowUnits):
            raise ConfigurationError(f"units: expected the rows' units, as MemoryUnits (got {quoted(units)})")
        if len(units) != len(vectors):
            raise SourceError(f"{source}: {len(vectors)} vectors for {len(units)} units")
        self._units = units
        self._vectors: Vectors | None = vectors
        self._queries = QueryVectors(embedding)
        self._mask = cached_masks(units.metadata, len(units)) if mask is None else mask
        self._source = source

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        embedding: Embeddings | None = None,
        *,
        id_key: str | None = None,
        progress: Progress | None = None,
    ) -> ExactSearcher:
        """Embed documents and hold them, with their vectors, in memory.

        The id is the ``id_key`` field, else ``Document.id``, else a hash of the text. Title (``metadata["title"]``) and
        text are embedded together. Of several documents with one id and one text the first counts.

        Args:
            documents: read once.
            embedding: by default MiniLM, which comes with the package.
            id_key: metadata field to take unit ids from.
            progress: called after each batch of 64 units.

        Raises:
            SourceError: a text is blank, or one id stands for two texts.
            ConfigurationError: the embedding is none, or did not give vectors of equal length and finite numbers.
        """
        embedding = MiniLMEmbeddings() if embedding is None else embedding
        check_embeds(embedding)
        if progress is not None and not callable(progress):
            raise ConfigurationError(f"progress: expected a function (got {quoted(progress)})")
        units = MemoryUnits(documents, id_key=id_key)
        texts = (searchable_text(unit.title, unit.text) for unit in units.units())
        parts: list[Vectors] = []
        done = 0
        while batch := list(islice(texts, _BATCH)):
            parts.append(embed_units(embedding, batch))
            done += len(batch)
            if progress is not None:
                progress(done, len(units))
        vectors = np.concatenate(parts) if parts else np.zeros((0, 1), dtype=np.float32)
        return cls(units, vectors, embedding)

    @classmethod
    def open(
        cls,
        path: str | Path,
        units: RowUnits,
        embedding: Embeddings,
        dimensions: int,
        *,
        mask: Callable[[Filter], Mask] | None = None,
    ) -> ExactSearcher:
        """Open a file of vectors (``dense/vectors.npy`` of an index), which is mapped and checked as it is read.

        Args:
            path: an array that ``numpy.save`` wrote, as the class describes it.
            units: those that its rows stand for.
            embedding: the one that made the vectors.
            dimensions: length of a vector.
            mask: see the class.

        Raises:
            StoreError: ``path`` is no path.
            StoreCorruptError: the file is missing or damaged, or holds vectors of another length or number.
        """
        vectors = read_vectors(as_path("path", path), len(units), dimensions)
        return cls(units, vectors, embedding, mask=mask, source=str(path))

    @property
    def embedding(self) -> Embeddings:
        """What embeds queries."""
        return self._queries.embedding

    def neighbours(self) -> Neighbours:
        """Which units are most like each; takes seconds for tens of thousands of units."""
        return find_neighbours(self._live())

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return int(self._live().shape[1])

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Return at most ``k`` candidates with their units, best first.

        Raises:
            RequestError: the filter is not part of the filter language, the query is no text or ``k`` no whole number.
            EmbeddingMismatchError: the query's vector has another number of dimensions than the stored ones.
            StoreCorruptError: a file that the answer is read from is damaged.
        """
        if not isinstance(k, int) and not hasattr(k, "__index__"):
            raise RequestError(f"k: expected a whole number (got {quoted(k)})")
        rows = self.passing(filter)
        vectors = self._live()
        if k <= 0 or not (len(vectors) if rows is None else len(rows)):
            return []
        return self._candidates(nearest(vectors, self.vector(query), k, rows, self._source))

    def ranked(self, query: str, unit_ids: Sequence[str]) -> list[Candidate]:
        """The units of these ids, as far as they exist, as a search among them would give them."""
        rows = np.array(sorted(self._units.rows_of(unit_ids).values()), dtype=np.int64)
        if not len(rows):
            return []
        return self._candidates(nearest(self._live(), self.vector(query), len(rows), rows, self._source))

    def passing(self, filter: Filter | None) -> Rows | None:
        """The rows that pass a filter, ascending; None where all do.

        Raises:
            RequestError: the filter is not part of the filter language.
        """
        if not filter:
            return None
        mask = self._mask(filter)
        return None if mask.all() else np.flatnonzero(mask)

    def pushes_down(self, filter: Filter | None) -> bool:  # noqa: ARG002  # the same for every filter
        """Whether the searcher itself decides the whole filter, so that it returns no row that does not pass: yes."""
        return True

    def score(
        self,
        query: str,
        unit_ids: Sequence[str],
        filter: Filter | None = None,  # noqa: ARG002 - a cosine depends on no other unit
    ) -> dict[str, float]:
        """Cosine similarity of the query with each of these units that exists; reads no other vector."""
        rows = self._units.rows_of(unit_ids)
        if not rows:
            return {}
        at = np.array(list(rows.values()), dtype=np.int64)
        return dict(zip(rows, cosines(self._live(), self.vector(query), at, self._source).tolist(), strict=True))

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The units that exist, by id."""
        return self._units.fetch(unit_ids)

    def ids(self) -> list[str]:
        """All unit ids, ascending."""
        return self._units.ids()

    def __len__(self) -> int:
        return len(self._units)

    def __repr__(self) -> str:
        held = "closed" if self._vectors is None else f"{len(self)} units, {embedding_identity(self.embedding)}"
        return f"{type(self).__name__}({held})"

    def forget_queries(self) -> None:
        """Let go of the vectors of recent queries, so that the next search embeds its query again."""
        self._queries.forget()

    def close(self) -> None:
        """Let go of the vectors; searches under way end first. The units are closed by whoever opened them."""
        self._vectors = None

    def _live(self) -> Vectors:
        vectors = self._vectors
        if vectors is None:
            raise StoreError("dense searcher: closed")
        return vectors

    def vector(self, query: str) -> Vectors:
        """The query's vector at length 1, float32, shape (dimensions,).

        Raises:
            RequestError: the query is no text.
            EmbeddingMismatchError: it has another number of dimensions than the stored ones.
        """
        if not isinstance(query, str):
            raise RequestError(f"query: expected text (got {quoted(query)})")
        given = self._queries.vector(query)
        if len(given) != self.dimensions:
            raise EmbeddingMismatchError(
                f"{self._source}: holds vectors of {self.dimensions} dimensions, "
                f"embedding {embedding_identity(self.embedding)} gives {len(given)}"
            )
        vector: Vectors = unit_length(given[np.newaxis])[0]
        return vector

    def _candidates(self, best: Sequence[tuple[int, float]]) -> list[Candidate]:
        unit_ids = self._units.unit_ids_at([row for row, _ in best])
        units = self._units.fetch(unit_ids)
        if len(units) < len(unit_ids):
            raise StoreCorruptError(f"{self._units!r}: a unit has no text")
        return [
            Candidate(unit_id=unit_id, channel=self.channel, rank=rank, score=score, unit=units[unit_id])
            for rank, (unit_id, (_, score)) in enumerate(zip(unit_ids, best, strict=True), 1)
        ]
