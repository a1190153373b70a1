"""The compliance suite over real servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.documents import Document
from server_searchers import filled

from bounded_retrieval.testing.compliance import SearcherCompliance


class OverAServer(SearcherCompliance):
    backend = ""

    @pytest.fixture(autouse=True)
    def _server(self, request: pytest.FixtureRequest, embedding: Any) -> Any:
        self.server = request.getfixturevalue(self.backend)
        self.embedding = embedding
        self.stores: list[Any] = []
        yield
        for store in self.stores:
            store.close()

    def build(self, documents: Sequence[Document]) -> Any:
        store = filled(self.backend, self.server, documents, self.embedding)
        self.stores.append(store)
        return getattr(store, self.channel, store)


class TestMilvusLexical(OverAServer):
    backend = "milvus"
    channel = "lexical"


class TestMilvusDense(OverAServer):
    backend = "milvus"
    channel = "dense"


class TestPgVector(OverAServer):
    backend = "pgvector"
    channel = "dense"


class TestChromaServer(OverAServer):
    backend = "chroma"
    channel = "dense"
