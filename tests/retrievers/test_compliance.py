from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from chromadb.config import Settings
from langchain_chroma import Chroma
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from bounded_retrieval import BM25Searcher, ChromaSearcher, ExactSearcher
from bounded_retrieval.retrievers.embeddings import load_embedding
from bounded_retrieval.retrievers.langchain import as_searcher
from bounded_retrieval.testing.compliance import SearcherCompliance

EMBEDDING = load_embedding()


class TestBM25S(SearcherCompliance):
    channel = "lexical"

    def build(self, documents: Sequence[Document]) -> Any:
        return BM25Searcher.from_documents(documents)


class TestRankBM25(SearcherCompliance):
    channel = "lexical"

    def build(self, documents: Sequence[Document]) -> Any:
        return BM25Searcher.from_documents(documents, backend="rank_bm25")


class TestChroma(SearcherCompliance):
    channel = "dense"

    def build(self, documents: Sequence[Document]) -> Any:
        return ChromaSearcher.from_documents(documents, EMBEDDING)


class TestExact(SearcherCompliance):
    channel = "dense"

    def build(self, documents: Sequence[Document]) -> Any:
        return ExactSearcher.from_documents(documents, EMBEDDING)


class TestInMemoryVectorStore(SearcherCompliance):
    channel = "dense"

    def build(self, documents: Sequence[Document]) -> Any:
        return as_searcher(InMemoryVectorStore.from_documents(list(documents), EMBEDDING), "dense")


class TestLangChainChroma(SearcherCompliance):
    channel = "dense"

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        # In memory, Chroma shares one system with every other client of the process.
        self.folder = str(tmp_path)

    def build(self, documents: Sequence[Document]) -> Any:
        settings = Settings(anonymized_telemetry=False, is_persistent=True, persist_directory=self.folder)
        store = Chroma("units", EMBEDDING, client_settings=settings, collection_metadata={"hnsw:space": "cosine"})
        store.add_documents(list(documents))
        return as_searcher(store, "dense")


class TestBM25Retriever(SearcherCompliance):
    channel = "lexical"
    has_scores: ClassVar[bool] = False

    def build(self, documents: Sequence[Document]) -> Any:
        from langchain_community.retrievers import BM25Retriever

        from bounded_retrieval.policies.tokenize import tokenize

        return as_searcher(BM25Retriever.from_documents(list(documents), preprocess_func=tokenize), "lexical")


def test_the_suite_notices_a_searcher_that_ignores_its_filter() -> None:
    """A searcher that drops the filter fails the suite."""

    class Careless:
        def __init__(self, documents: Sequence[Document]) -> None:
            self._inner = BM25Searcher.from_documents(documents)

        def search(self, query: str, k: int, filter: Any = None) -> Any:  # noqa: ARG002
            return self._inner.search(query, k)

    suite = SearcherCompliance()
    careless = Careless(list(__import__("bounded_retrieval.testing.compliance", fromlist=["DOCUMENTS"]).DOCUMENTS))
    with pytest.raises(AssertionError):
        suite.test_filter_holds(careless.search)
    with pytest.raises(TypeError, match="build"):
        suite.build([])
