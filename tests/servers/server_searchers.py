"""The three backends as the tests use them: how a searcher over some documents is made, each in a place of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from started_servers import Chroma, MilvusLite, PgVector, Server

from bounded_retrieval.retrievers.chroma_server import ChromaServerSearcher
from bounded_retrieval.retrievers.milvus import MilvusStore
from bounded_retrieval.retrievers.pgvector import PgVectorSearcher

_NUMBERS = count()


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One backend.

    Attributes:
        fixture: the server's fixture.
        connect: opens a place by name, or makes it: ``(server, name, embedding, create, **options)``.
    """

    fixture: str
    connect: Callable[..., Any]


def _milvus(server: MilvusLite, name: str, embedding: Embeddings | None, create: bool, **options: Any) -> MilvusStore:
    make: Any = MilvusStore.create if create else MilvusStore.open
    return make(server.uri, embedding, collection=name, **options)


def _pgvector(
    server: PgVector, name: str, embedding: Embeddings | None, create: bool, **options: Any
) -> PgVectorSearcher:
    make: Any = PgVectorSearcher.create if create else PgVectorSearcher.open
    return make(server.url, embedding, table=name, **options)


def _chroma(
    server: Chroma, name: str, embedding: Embeddings | None, create: bool, **options: Any
) -> ChromaServerSearcher:
    place = {"collection_name": name, "embedding": embedding, "create": create}
    return ChromaServerSearcher.connect("127.0.0.1", server.port, **place, **options)


BACKENDS = {
    "milvus": Backend(fixture="milvus", connect=_milvus),
    "pgvector": Backend(fixture="pgvector", connect=_pgvector),
    "chroma": Backend(fixture="chroma", connect=_chroma),
}


def new_name() -> str:
    """A name that no other test has."""
    return f"units{next(_NUMBERS)}"


def filled(name: str, server: Server, documents: Iterable[Document], embedding: Embeddings) -> Any:
    """A backend's store over these documents."""
    store = BACKENDS[name].connect(server, new_name(), embedding, create=True)
    store.add(documents)
    return store


def dense_of(store: Any) -> Any:
    """The dense searcher of a store."""
    return getattr(store, "dense", store)
