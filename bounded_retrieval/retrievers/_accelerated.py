"""The dense channel of a large index: a graph over the vectors where that is faster, exact search where it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.candidate import Candidate, Channel
from bounded_retrieval.contracts.filters import Filter
from bounded_retrieval.retrievers._chroma_filter import decides_whole
from bounded_retrieval.retrievers._excluding import Excluding
from bounded_retrieval.retrievers._sharing import PerProcess
from bounded_retrieval.retrievers.chroma import ChromaSearcher
from bounded_retrieval.retrievers.embeddings import embedding_identity
from bounded_retrieval.retrievers.exact import ExactSearcher


class AcceleratedSearcher(Excluding):
    """Searches a Chroma store beside an `ExactSearcher` over the same vectors.

    The store finds candidates, the vectors score them. Searched exactly, without the store, is under a filter that
    leaves at most ``limit`` units or that Chroma's own filters do not express. The store is opened at the first search
    that needs it.

    Args:
        exact: units and vectors.
        open_graph: opens the store; gets the embedding to open it with.
        limit: most units that are searched exactly.
    """

    channel: Channel = "dense"

    def __init__(self, exact: ExactSearcher, open_graph: Callable[[Embeddings], ChromaSearcher], limit: int) -> None:
        self._exact = exact
        self._limit = limit
        shared = _SharedQueries(exact)
        self._graph = PerProcess(lambda: open_graph(shared))

    @property
    def embedding(self) -> Embeddings:
        """What embeds queries."""
        return self._exact.embedding

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return self._exact.dimensions

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Return at most ``k`` candidates with their units, best first.

        Raises:
            RequestError: the filter is not part of the filter language.
            EmbeddingMismatchError: the query's vector has another number of dimensions than the stored ones.
            StoreError: the store, or a file that the answer is read from, is damaged.
            ForkedError: the store was opened before this process was forked.
        """
        rows = self._exact.passing(filter)
        is_few = rows is not None and (len(rows) <= self._limit or not decides_whole(filter))
        if is_few or k <= 0:
            return self._exact.search(query, k, filter)
        self._exact.vector(query)  # where it cannot be had, the store need not be opened
        found = self._graph.get().search(query, k, None if rows is None else filter)
        return self._exact.ranked(query, [row.unit_id for row in found])

    def pushes_down(self, filter: Filter | None) -> bool:
        """Whether the searcher itself decides the whole filter, so that it returns no row that does not pass: yes."""
        return self._exact.pushes_down(filter)

    def score(self, query: str, unit_ids: Sequence[str], filter: Filter | None = None) -> dict[str, float]:
        """Cosine similarity of the query with each of these units that exists; reads no other vector."""
        return self._exact.score(query, unit_ids, filter)

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The units that exist, by id."""
        return self._exact.fetch(unit_ids)

    def ids(self) -> list[str]:
        """All unit ids, ascending."""
        return self._exact.ids()

    def __len__(self) -> int:
        return len(self._exact)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._exact!r}, chroma for more than {self._limit:,} units)"

    def forget_queries(self) -> None:
        """Let go of the vectors of recent queries, so that the next search embeds its query again."""
        self._exact.forget_queries()
        graph = self._graph.made()
        if graph is not None:
            graph.forget_queries()

    def close(self) -> None:
        """Let go of the vectors, and of the store if this process opened it. May be repeated."""
        self._exact.close()
        graph = self._graph.made()
        if graph is not None:
            graph.close()


class _SharedQueries(Embeddings):
    """Gives the store the vectors that the exact searcher has made already."""

    def __init__(self, exact: ExactSearcher) -> None:
        self.embedding_id = embedding_identity(exact.embedding)
        self._exact = exact

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._exact.embedding.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        vector: list[float] = self._exact.vector(text).tolist()
        return vector
