"""The dense channel on an embedded Chroma collection: no server, no network, no telemetry."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.candidate import Candidate, Channel, Unit, searchable_text
from bounded_retrieval.contracts.filters import Filter, Predicate, compile_filter
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.time_left import seconds_left
from bounded_retrieval.errors import ConfigurationError, EmbeddingMismatchError, StoreError, quoted
from bounded_retrieval.retrievers import _chroma_store
from bounded_retrieval.retrievers._chroma_filter import compile_where, decides_whole, pack_metadata, unpack_metadata
from bounded_retrieval.retrievers._excluding import Excluding
from bounded_retrieval.retrievers._sharing import OwnProcess, ReadersAndWriter
from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings, embedding_identity
from bounded_retrieval.retrievers.query_vectors import QueryVectors, as_matrix
from bounded_retrieval.retrievers.units import as_path, read_units

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

Progress = Callable[[int, int], None]
"""Called after each batch with the units done and the units in all."""

OVERFETCH_CAP = 1_000
"""Most rows read from Chroma for one search (``k`` and its slack, if more) when a filter drops rows that came back."""

_SLACK = 8  # rows beyond k, so that equal scores at the cut are told apart by id
_ADD_BATCH = 64
_ID_BATCH = 1_000


class _Row(NamedTuple):
    unit_id: str
    score: float
    unit: Document


class ChromaSearcher(Excluding):
    """Searches one Chroma collection by vectors; also gives units by id and scores observed ones.

    Scores are cosine similarities (-1 to 1, six decimals), computed from the stored vectors. Rows are ordered by score,
    equal scores by unit id. A filter is pushed down as far as Chroma's own filters go and enforced on the rows
    that come back; where it drops some, more rows are read, up to `OVERFETCH_CAP`. Equality with text, booleans and
    whole numbers, lists of up to 500 of them and orderings by a whole number are pushed down whole. Orderings of
    text, negated orderings, ``$exists``, fractions and longer lists are not: units that pass one but stand behind the
    first 1,000 are not found. `pushes_down` tells which it is.

    Any number of threads may search; one that adds or removes waits for them, and they for it, so that no search sees
    64 units or fewer added, or any number removed, in part; a search and a score wait no longer than a run's
    deadline leaves. Chroma does not survive a fork: every call in a forked process raises `ForkedError`, and so does
    opening another store there.

    Args:
        collection: an existing collection whose vectors were made by ``embedding``. One that another program made may
            use any distance; the nearest rows are then found by that distance and scored by cosine.
        embedding: embeds queries, and documents in `add`.
        id_key: metadata field that `add` takes unit ids from, before ``Document.id``.

    Raises:
        EmbeddingMismatchError: the collection records that another embedding made its vectors.
        ConfigurationError: the collection is none, or the embedding.
    """

    channel: Channel = "dense"

    def __init__(self, collection: Collection, embedding: Embeddings, *, id_key: str | None = None) -> None:
        if not hasattr(collection, "query"):
            raise ConfigurationError(f"collection: expected a Chroma collection (got {quoted(collection)})")
        _chroma_store.check_recorded(collection, embedding)
        self._queries = QueryVectors(embedding)
        self._id_key = id_key
        self._collection: Any = collection
        self._release: Callable[[], object] | None = None
        self._use = ReadersAndWriter()
        self._process = OwnProcess("dense searcher")
        self._read_only = False

    @classmethod
    def from_documents(  # noqa: PLR0913  # all but two are keyword-only
        cls,
        documents: Iterable[Document],
        embedding: Embeddings | None = None,
        *,
        path: str | PathLike[str] | None = None,
        collection_name: str = "units",
        id_key: str | None = None,
        progress: Progress | None = None,
    ) -> ChromaSearcher:
        """Embed documents into a new collection, or into the one that is already at ``path``.

        Args:
            documents: the units; see `add`.
            embedding: by default MiniLM, which comes with the package.
            path: directory of the store; none keeps the collection in memory, apart from every other one.
            collection_name: name of the collection.
            id_key: metadata field to take unit ids from.
            progress: called after each batch of 64 units.

        Raises:
            SourceError: a text is blank, or one id stands for two texts.
            EmbeddingMismatchError: the collection at ``path`` was built with another embedding.
            StoreError: the store at ``path`` cannot be used.
        """
        embedding = MiniLMEmbeddings() if embedding is None else embedding
        with ExitStack() as opened:
            if path is None:
                collection = _chroma_store.memory_collection(opened, collection_name, embedding)
            else:
                collection = _chroma_store.create_collection(opened, as_path("path", path), collection_name, embedding)
            searcher = cls(collection, embedding, id_key=id_key)
            searcher.add(documents, progress)
            searcher._own(opened.pop_all())
        return searcher

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        embedding: Embeddings | None = None,
        *,
        collection_name: str = "units",
        id_key: str | None = None,
        read_only: bool = False,
    ) -> ChromaSearcher:
        """Open the collection in a directory; without an embedding, the built-in one that it records.

        Chroma writes to the directory even to read it. With ``read_only``, `add` and `remove` are refused, and where
        the directory may not be written, a private copy in the temporary folder is opened in its place.

        Raises:
            StoreMissingError: there is no such store or collection.
            StoreCorruptError: the store cannot be read.
            StoreError: the directory may not be written, and no copy was allowed or can be made.
            EmbeddingMismatchError: the collection was built with another embedding, or with one that is not built in
                and none is given.
        """
        with ExitStack() as opened:
            collection = _chroma_store.open_collection(
                opened, as_path("path", path), collection_name, read_only=read_only
            )
            if embedding is None:
                embedding = _chroma_store.recorded_embedding(collection)
            searcher = cls(collection, embedding, id_key=id_key)
            searcher._read_only = read_only
            searcher._own(opened.pop_all())
        return searcher

    @property
    def embedding(self) -> Embeddings:
        """What embeds queries and documents; another one must give the same vectors."""
        return self._queries.embedding

    @embedding.setter
    def embedding(self, embedding: Embeddings) -> None:
        self._queries = QueryVectors(embedding)

    def _own(self, opened: ExitStack) -> None:
        self._release = weakref.finalize(self, self._process.closing(opened))

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Return at most ``k`` candidates with their units, best first.

        Raises:
            RequestError: the filter is not part of the filter language.
            EmbeddingMismatchError: the query's vector has another number of dimensions than the stored ones.
            StoreError: the store cannot be read.
            ForkedError: it was opened before this process was forked.
        """
        accepts, where = compile_filter(filter), compile_where(filter)
        # Not `len(self) == 0`: Chroma counts by reading every row, and answers an empty collection with no rows.
        if k <= 0 or where is False:
            return []
        self._process.check()  # before the embedding is at work in vain
        vector = self._queries.vector(query)
        with self._use.reading(seconds_left()):
            best = self._best(vector, k, where if isinstance(where, dict) else None, accepts)
        return [
            Candidate(unit_id=row.unit_id, channel=self.channel, rank=rank, score=row.score, unit=row.unit)
            for rank, row in enumerate(best, 1)
        ]

    def _best(self, vector: Any, k: int, where: Mapping[str, Any] | None, accepts: Predicate) -> list[_Row]:
        asked, cap = k + _SLACK, max(OVERFETCH_CAP, k + _SLACK)
        while True:
            rows = self._nearest(vector, asked, where)
            accepted = (row for row in rows if accepts(row.unit.metadata))
            kept = sorted(accepted, key=lambda row: (-row.score, row.unit_id))
            if len(rows) < asked or asked == cap or _is_settled(kept, rows, k):
                return kept[:k]
            asked = min(4 * asked, cap)

    def pushes_down(self, filter: Filter | None) -> bool:
        """Whether Chroma itself decides the whole filter, so that it returns no row that does not pass.

        Raises:
            RequestError: the filter is not part of the filter language.
        """
        return decides_whole(filter)

    def score(
        self,
        query: str,
        unit_ids: Sequence[str],
        filter: Filter | None = None,  # noqa: ARG002 - a cosine depends on no other unit
    ) -> dict[str, float]:
        """Cosine similarity of the query with each of these units that the collection holds; reads no other."""
        with self._use.reading(seconds_left()):
            found = [(answer["ids"], answer["embeddings"]) for answer in self._get(unit_ids, "embeddings")]
        if not any(ids for ids, _ in found):
            return {}
        vector = self._queries.vector(query)
        self._check_dimensions(len(vector))
        return {
            unit_id: score
            for ids, vectors in found
            for unit_id, score in zip(ids, _cosines(vector, vectors), strict=True)
        }

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """Current units by id, their metadata with its original types; an id that is not there is left out."""
        with self._use.reading():
            answers = list(self._get(unit_ids, "documents", "metadatas"))
        return {
            unit_id: Document(id=unit_id, page_content=text or "", metadata=unpack_metadata(metadata))
            for answer in answers
            for unit_id, text, metadata in zip(answer["ids"], answer["documents"], answer["metadatas"], strict=True)
        }

    def add(self, documents: Iterable[Document], progress: Progress | None = None) -> None:
        """Embed and store documents; a unit whose id is already there is replaced.

        The id is the ``id_key`` field, else ``Document.id``, else a hash of the text. Title (``metadata["title"]``)
        and text are embedded together. Of several documents with one id and one text the first is stored.

        Raises:
            SourceError: a text is blank, or one id stands for two texts among ``documents``; nothing is stored then.
            EmbeddingMismatchError: the vectors have another number of dimensions than the stored ones.
            StoreError: the searcher was opened read-only.
        """
        self._check_writable()
        units = list(read_units(documents, self._id_key))
        for start in range(0, len(units), _ADD_BATCH):
            batch = units[start : start + _ADD_BATCH]
            self._store(batch)
            if progress is not None:
                progress(start + len(batch), len(units))

    def _store(self, batch: list[Unit]) -> None:
        texts = [searchable_text(unit.title, unit.text) for unit in batch]
        vectors = as_matrix(self.embedding, self.embedding.embed_documents(texts), len(batch))
        ids = [unit.unit_id for unit in batch]
        packed = [pack_metadata(unit.to_document().metadata) for unit in batch]
        collection = self._live()
        with self._use.writing(), self._explained(vectors.shape[1]):
            _drop_old_fields(collection, ids, packed)
            collection.upsert(ids=ids, embeddings=vectors, documents=[unit.text for unit in batch], metadatas=packed)

    def forget_queries(self) -> None:
        """Let go of the vectors of recent queries, so that the next search embeds its query again."""
        self._queries.forget()

    def remove(self, unit_ids: Iterable[str]) -> None:
        """Delete units; ids that are not there are passed over.

        Raises:
            StoreError: the searcher was opened read-only.
        """
        self._check_writable()
        with self._use.writing():
            for answer in self._get(unit_ids):
                if answer["ids"]:
                    with self._explained():
                        self._live().delete(ids=answer["ids"])

    def ids(self) -> list[str]:
        """Every unit id, sorted."""
        with self._use.reading(), self._explained():
            return sorted(self._live().get(include=[])["ids"])

    def __len__(self) -> int:
        with self._use.reading(), self._explained():
            return int(self._live().count())

    def __repr__(self) -> str:
        held = "closed" if self._collection is None else f"{len(self)} units, {embedding_identity(self.embedding)}"
        return f"{type(self).__name__}({held})"

    def close(self) -> None:
        """Release the store's files and threads; a collection given to the constructor stays open. May be repeated.

        Chroma lets go of its last file some milliseconds later. In a forked process nothing is released.
        """
        self._collection = None
        if self._release is not None:
            self._release()

    def _check_writable(self) -> None:
        if self._read_only:
            raise StoreError("dense searcher: opened read-only; an index is changed by building it again")

    def _live(self) -> Any:
        self._process.check()
        if self._collection is None:
            raise StoreError("dense searcher: closed")
        return self._collection

    def _get(self, unit_ids: Iterable[str], *include: str) -> Iterator[Mapping[str, Any]]:
        # Chroma refuses empty and repeated ids and cannot encode lone surrogates; no stored id has those.
        wanted = iter([unit_id for unit_id in dict.fromkeys(unit_ids) if unit_id and clean_text(unit_id) == unit_id])
        while batch := list(islice(wanted, _ID_BATCH)):
            with self._explained():
                answer = self._live().get(ids=batch, include=list(include))
            yield answer

    def _nearest(self, vector: Any, asked: int, where: Mapping[str, Any] | None) -> list[_Row]:
        with self._explained(len(vector)):
            answer = self._live().query(
                query_embeddings=[vector],
                n_results=asked,
                where=where,
                include=["documents", "metadatas", "embeddings"],
            )
        ids, texts, metadatas, vectors = (answer[key][0] for key in ("ids", "documents", "metadatas", "embeddings"))
        return [
            _Row(unit_id, score, Document(id=unit_id, page_content=text or "", metadata=unpack_metadata(metadata)))
            for unit_id, text, metadata, score in zip(ids, texts, metadatas, _cosines(vector, vectors), strict=True)
        ]

    @contextmanager
    def _explained(self, dimensions: int | None = None) -> Iterator[None]:
        """Turn Chroma's errors into this package's; ``dimensions`` of the vectors that were sent."""
        from chromadb.errors import ChromaError

        try:
            with _chroma_store.panics_named("dense searcher"):
                yield
        except Exception as error:
            name = self._live().name  # closed meanwhile by another thread, whatever Chroma makes of that
            if not isinstance(error, ChromaError):
                raise
            if dimensions is not None:
                self._check_dimensions(dimensions)
            raise StoreError(f"collection {name!r}: {_chroma_store.first_line(error)}") from error

    def _check_dimensions(self, given: int) -> None:
        with self._explained():
            stored = self._live().get(limit=1, include=["embeddings"])["embeddings"]
        if len(stored) and len(stored[0]) != given:
            raise EmbeddingMismatchError(
                f"collection {self._live().name!r}: holds vectors of {len(stored[0])} dimensions, "
                f"embedding {embedding_identity(self.embedding)} gives {given}"
            )


def _cosines(vector: Any, vectors: Any) -> list[float]:
    if len(vectors) == 0:
        return []
    query, rows = np.asarray(vector, dtype=np.float64), np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
    # A zero vector has no direction; its similarity counts as 0.
    cosines = rows @ query / np.where(lengths > 0, lengths, 1.0)
    return [round(float(cosine), 6) for cosine in cosines]


def _is_settled(kept: list[_Row], rows: list[_Row], k: int) -> bool:
    """Whether no row that was not read could belong among the first k: the k-th beats the worst row that was read."""
    return len(kept) >= k and kept[k - 1].score > min(row.score for row in rows)


def _drop_old_fields(collection: Any, ids: list[str], packed: list[dict[str, Any]]) -> None:
    """Mark fields of the units being replaced for removal: Chroma merges new metadata into old."""
    old = collection.get(ids=ids, include=["metadatas"])
    new = dict(zip(ids, packed, strict=True))
    for unit_id, metadata in zip(old["ids"], old["metadatas"], strict=True):
        for key in metadata or {}:
            new[unit_id].setdefault(key, None)
