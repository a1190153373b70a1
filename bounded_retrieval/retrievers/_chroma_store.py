"""Open and create Chroma collections, in memory or in a directory, without telemetry or a default embedding."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings

from bounded_retrieval.errors import (
    ConfigurationError,
    EmbeddingMismatchError,
    StoreCorruptError,
    StoreError,
    StoreMissingError,
)
from bounded_retrieval.retrievers._chroma_file import CHROMA, check_structure
from bounded_retrieval.retrievers._private_copy import is_writable, private_copy
from bounded_retrieval.retrievers._sharing import OwnProcess
from bounded_retrieval.retrievers.embeddings import builtin_embedding, embedding_identity

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

EMBEDDING_FIELD = "embedding_id"
"""Field of a collection's own metadata that records which embedding made its vectors."""

# Chroma's defaults found .57 of the ten nearest of 10,000 random vectors (.98 of clustered ones), these .99 (1.00).
_HNSW = {"space": "cosine", "ef_construction": 200, "ef_search": 400, "max_neighbors": 32}


# Chroma counts a path's clients in a table of the process, and does not guard it.
_OPENING = threading.Lock()

# The process that started Chroma, once one has. Some of Chroma's threads are the process's and are never started again,
# so a child forked from it cannot use Chroma at all, not even with a client of its own.
_STARTED: list[OwnProcess] = []


class _UnwritableError(StoreError):
    """Chroma may not write to a store's folder, or its disk is full."""


def memory_collection(opened: ExitStack, name: str, embedding: Embeddings) -> Collection:
    """A new collection in memory, apart from every other one; leaving ``opened`` drops it.

    Raises:
        ConfigurationError: the name is not one that Chroma takes, or (`ForkedError`) this process was forked from one
            that has used Chroma.
    """
    _start()
    from chromadb.api import ServerAPI
    from chromadb.api.models.Collection import Collection
    from chromadb.config import Settings, System

    # Chroma's EphemeralClient shares one system in a process: names would collide, and a second client with other
    # settings (telemetry on, as by default) would be refused.
    system = System(Settings(anonymized_telemetry=False, is_persistent=False))
    server = system.instance(ServerAPI)  # type: ignore[type-abstract]  # Chroma picks the implementation
    system.start()
    opened.callback(system.stop)
    with _creating(name):
        model = server.create_collection(name, **parameters(embedding))
    return Collection(client=server, model=model, embedding_function=None)


def create_collection(opened: ExitStack, path: Path, name: str, embedding: Embeddings) -> Collection:
    """The collection in a directory, created where it is missing; leaving ``opened`` releases the files.

    Raises:
        StoreCorruptError: the directory holds a store that cannot be read.
        ConfigurationError: the name is not one that Chroma takes, or this process has the directory open with
            other settings, or (`ForkedError`) was forked from one that has used Chroma.
    """
    client = _client(opened, path)
    with _creating(name):
        collection: Collection = client.get_or_create_collection(name, embedding_function=None, **parameters(embedding))
    return collection


def open_collection(opened: ExitStack, path: Path, name: str, *, read_only: bool = False) -> Collection:
    """The collection that is in a directory; leaving ``opened`` releases the files.

    With ``read_only``, where the directory may not be written or its disk is full, it is that of a private copy.

    Raises:
        StoreMissingError: there is no store in the directory, or no such collection in it.
        StoreCorruptError: the store cannot be read.
        StoreError: Chroma may not write to it, and it is not ``read_only`` or no copy can be made.
        ConfigurationError: this process has the directory open with other settings, or (`ForkedError`) was forked
            from one that has used Chroma.
    """
    # Chroma would create a missing store.
    if not (path / CHROMA).is_file():
        raise StoreMissingError(f"{path}: no Chroma store there")
    if read_only and not is_writable(path):
        path = private_copy(opened, path)
    try:
        return _open_collection(opened, path, name)
    except _UnwritableError:
        if not read_only:
            raise
    return _open_collection(opened, private_copy(opened, path), name)


def _open_collection(opened: ExitStack, path: Path, name: str) -> Collection:
    _start()
    with _OPENING:
        # Closing the file here would take away a lock that Chroma's own SQLite holds on it while it is opening it.
        check_structure(path, "quick_check")
    client = _client(opened, path)
    from chromadb.errors import ChromaError, NotFoundError

    try:
        with panics_named(str(path)):
            collection: Collection = client.get_collection(name, embedding_function=None)
    except NotFoundError as error:
        raise StoreMissingError(f"{path}: no collection {name!r} there") from error
    except ChromaError as error:
        raise StoreCorruptError(f"{path}: cannot be opened ({first_line(error)})") from error
    return collection


def recorded_embedding(collection: Collection) -> Embeddings:
    """The built-in embedding that made a collection's vectors.

    Raises:
        EmbeddingMismatchError: it records none, or one that is not built in.
    """
    recorded = (collection.metadata or {}).get(EMBEDDING_FIELD)
    embedding = builtin_embedding(str(recorded))
    if embedding is None:
        raise EmbeddingMismatchError(f"collection {collection.name!r}: give its embedding (it records {recorded!r})")
    return embedding


def check_recorded(collection: Collection, embedding: Embeddings) -> None:
    """Refuse an embedding other than the recorded one; a collection that records none takes any.

    Raises:
        EmbeddingMismatchError: names both.
    """
    recorded, given = (collection.metadata or {}).get(EMBEDDING_FIELD), embedding_identity(embedding)
    if recorded not in (None, given):
        name = collection.name
        raise EmbeddingMismatchError(f"collection {name!r}: built with embedding {recorded!r} (got {given!r})")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def panics_named(what: str) -> Iterator[None]:
    """Turn a panic of Chroma's native part, which is not even an `Exception`, into an error about ``what``.

    Raises:
        StoreCorruptError: says what it panicked about.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise StoreCorruptError(f"{what}: cannot be read ({first_line(error)})") from error


def _start() -> None:
    if not _STARTED:
        _STARTED.append(OwnProcess("Chroma"))
    _STARTED[0].check()


def _client(opened: ExitStack, path: Path) -> Any:
    _start()
    import chromadb
    from chromadb.config import Settings

    client: Any
    try:
        with _OPENING, panics_named(str(path)):
            client = chromadb.PersistentClient(str(path.resolve()), Settings(anonymized_telemetry=False))
    except ValueError as error:
        raise ConfigurationError(f"{path}: cannot be opened ({first_line(error)})") from error
    except StoreCorruptError:
        _forget(path)
        raise
    except Exception as error:  # Chroma's own errors, and what its half-started parts raise on a damaged file
        _forget(path)
        problem = first_line(error)
        if "readonly" in problem or "disk is full" in problem:
            raise _UnwritableError(
                f"{path}: Chroma writes to its folder even to read it, and may not ({problem})"
            ) from error
        raise StoreCorruptError(f"{path}: cannot be opened ({problem})") from error
    opened.callback(_close, client)
    return client


def _forget(path: Path) -> None:
    # Chroma keeps the half-started system of a path and would hand it to the next client.
    from chromadb.api.shared_system_client import SharedSystemClient

    with _OPENING:
        getattr(SharedSystemClient, "_identifier_to_system", {}).pop(str(path.resolve()), None)


def _close(client: Any) -> None:
    with _OPENING:
        client.close()


def parameters(embedding: Embeddings) -> dict[str, Any]:
    """What a new collection for an embedding is made with."""
    return {"configuration": {"hnsw": dict(_HNSW)}, "metadata": {EMBEDDING_FIELD: embedding_identity(embedding)}}


@contextmanager
def _creating(name: str) -> Iterator[None]:
    from chromadb.errors import ChromaError

    try:
        yield
    except (ChromaError, ValueError) as error:
        raise ConfigurationError(f"collection_name {name!r}: {first_line(error)}") from error
