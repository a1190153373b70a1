"""The dense channel over a collection of a Chroma server (``chroma run``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from pydantic import ValidationError

from bounded_retrieval.contracts.time_left import unhurried
from bounded_retrieval.errors import ConfigurationError, StoreError, StoreMissingError
from bounded_retrieval.retrievers._chroma_store import first_line, parameters, recorded_embedding
from bounded_retrieval.retrievers._pgvector_pool import without
from bounded_retrieval.retrievers._server_units import TIMEOUT_MS, checked_text, checked_timeout, within_deadline
from bounded_retrieval.retrievers.chroma import ChromaSearcher
from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

_SECONDS: ContextVar[float] = ContextVar("bounded_retrieval_chroma_seconds", default=TIMEOUT_MS / 1000)


class ChromaServerSearcher(ChromaSearcher):
    """A `ChromaSearcher` over a collection that a server holds; make one with `connect`.

    It searches, scores, filters and adds as that one does. Chroma's own client waits without end; here a call ends
    after the time limit (a search or score after what a run's deadline leaves, if that is less), counted anew for each
    part of an answer that arrives. After a restart of the server the next call connects again. Open it after a fork: a
    forked process is refused.

    Args:
        collection: of a server.
        embedding: embeds queries, and documents in `add`.
        id_key: metadata field that `add` takes unit ids from, before ``Document.id``.
        server: what errors call it.
        seconds: the time limit of a call.
    """

    def __init__(
        self,
        collection: Collection,
        embedding: Embeddings,
        *,
        id_key: str | None = None,
        server: str = "Chroma server",
        seconds: float = TIMEOUT_MS / 1000,
    ) -> None:
        super().__init__(collection, embedding, id_key=id_key)
        self._where = f"{server}, collection {collection.name!r}"
        self._seconds = seconds
        self._secrets: list[str] = []

    @classmethod
    def connect(  # noqa: PLR0913 - all but two are keyword-only
        cls,
        host: str,
        port: int = 8000,
        *,
        embedding: Embeddings | None = None,
        collection_name: str = "units",
        create: bool = False,
        timeout_ms: float = TIMEOUT_MS,
        id_key: str | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> ChromaServerSearcher:
        """Open a collection, or with ``create`` make it if it is not there.

        Args:
            host: of the server.
            port: of the server.
            embedding: the one that made the vectors; by default the built-in one that the collection records, and
                MiniLM for one that is made.
            collection_name: the collection's name.
            create: whether to make it.
            timeout_ms: longest that a call may take; see the class.
            id_key: see the class.
            client: more settings of Chroma: ``chroma_server_ssl_enabled``, ``chroma_server_headers`` and so on.

        Raises:
            StoreMissingError: the collection is not there.
            EmbeddingMismatchError: it was built with another embedding, or with one that is not built in and none is
                given.
            StoreError: the server is not there, took too long or refused.
            ConfigurationError: an argument is not valid.
        """
        checked_text("collection_name", collection_name)
        seconds, server = checked_timeout(timeout_ms), f"Chroma at {_without_user(checked_text('host', host))}:{port}"
        secrets = _secrets(host, client or {})
        with ExitStack() as opened:
            with _explained(f"{server}, collection {collection_name!r}", seconds, secrets):
                collections = _Collections(opened, host, port, client or {})
                if create:
                    collection = collections.made(collection_name, embedding or MiniLMEmbeddings())
                else:
                    collection = collections.found(collection_name)
            chosen = recorded_embedding(collection) if embedding is None else embedding
            searcher = cls(collection, chosen, id_key=id_key, server=server, seconds=seconds)
            searcher._secrets = secrets
            searcher._own(opened.pop_all())
        return searcher

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """Current units by id; an id that is not there is left out. A recheck may still be made after a deadline."""
        with unhurried():
            return super().fetch(unit_ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    @contextmanager
    def _explained(self, dimensions: int | None = None) -> Iterator[None]:
        with _explained(self._where, within_deadline(self._seconds), self._secrets), super()._explained(dimensions):
            yield


class _Collections:
    """A client of a server; leaving ``opened`` ends it. It connects at the first call."""

    def __init__(self, opened: ExitStack, host: str, port: int, settings: Mapping[str, Any]) -> None:
        from chromadb.api import ServerAPI
        from chromadb.config import Settings, System

        given: dict[str, Any] = {
            "chroma_api_impl": "chromadb.api.fastapi.FastAPI",
            "chroma_server_host": host,
            "chroma_server_http_port": port,
            "anonymized_telemetry": False,
        }
        # Not HttpClient: all of one address would share what is set here, and it calls the server before that.
        system = System(Settings(**(given | dict(settings))))
        server: Any = system.instance(ServerAPI)  # type: ignore[type-abstract]  # Chroma picks it
        self._server = server
        session: Any = self._server._session  # noqa: SLF001 - Chroma has no other way to its time limits
        session.event_hooks["request"].append(_limit)
        opened.callback(session.close)
        system.start()
        opened.callback(system.stop)

    def found(self, name: str) -> Collection:
        """The collection of a name."""
        return self._of(self._server.get_collection(name))

    def made(self, name: str, embedding: Embeddings) -> Collection:
        """The collection of a name, made if it is not there."""
        return self._of(self._server.get_or_create_collection(name, **parameters(embedding)))

    def _of(self, model: Any) -> Collection:
        from chromadb.api.models.Collection import Collection

        return Collection(client=self._server, model=model, embedding_function=None)


def _limit(request: Any) -> None:
    """Give a request its time limit; called before each is sent, in the thread that sends it."""
    seconds = _SECONDS.get()
    request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), seconds)


def _without_user(host: str) -> str:
    scheme, _, rest = host.rpartition("://") if "://" in host else ("", "", host)
    place = rest.rpartition("@")[2]
    return f"{scheme}://{place}" if scheme else place


def _secrets(host: str, settings: Mapping[str, Any]) -> list[str]:
    """What no message may repeat: the address's user and password, the headers' values and what signs in."""
    user = host.rpartition("://")[2].rpartition("@")[0]
    headers = settings.get("chroma_server_headers")
    signing = [value for name, value in settings.items() if "auth" in name and "provider" not in name]
    values = [user, *re.split("[:/@]", user), *signing]
    values += headers.values() if isinstance(headers, Mapping) else [headers]
    words = [str(value).strip() for value in values if value]
    # Errors show some as Python writes them; of a header like "Bearer x" the x is the secret.
    return [part for word in words for part in (word, repr(word)[1:-1], *word.split())]


@contextmanager
def _explained(where: str, seconds: float, secrets: Sequence[str]) -> Iterator[None]:
    """Give requests their time limit, and put what goes wrong in this package's words."""
    import httpx
    from chromadb.errors import ChromaError, NotFoundError

    def said(error: BaseException) -> str:
        return without(first_line(error), secrets)

    token = _SECONDS.set(seconds)
    try:
        yield
    except httpx.TimeoutException as error:
        raise StoreError(f"{where}: no answer within {seconds * 1000:.0f} ms") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise StoreError(f"{where}: no Chroma server answers there ({said(error)})") from error
    except (ChromaError, StoreError) as error:
        cause = error.__cause__ if isinstance(error, StoreError) else error
        if isinstance(cause, NotFoundError):
            raise StoreMissingError(f"{where}: not there ({said(cause)})") from cause
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{where}: refused by the server ({said(error)})") from error
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        raise ConfigurationError(f"{where}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
    except ValueError as error:
        raise ConfigurationError(f"{where}: {said(error)}") from error
    finally:
        _SECONDS.reset(token)
