"""Calls to a Milvus server: one client, a time limit for each call, errors in this package's words, nothing logged."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from bounded_retrieval.errors import ConfigurationError, StoreError, StoreMissingError, one_line, quoted
from bounded_retrieval.retrievers._server_units import checked_text, until
from bounded_retrieval.retrievers._sharing import OwnProcess

_MISSING = 100
"""Milvus' error code of a collection that does not exist."""

_UNLOADED = ("collection not loaded", "not been loaded", "in state 'released'")
"""What Milvus says of a collection that it has to load first; milvus-lite loads none when it starts."""

_THERE = ("already exist", "File exists")
"""What Milvus and milvus-lite say of a collection or an index that another process has made meanwhile."""

_LONGEST = 200
_MAKING_SECONDS = 0.05  # between two looks at a collection that somebody else is making
_NAME_CHARS = 200
_NAME = re.compile(rf"[A-Za-z_]\w{{0,{_NAME_CHARS - 1}}}", re.ASCII)
_ADDRESS = re.compile(r"(?:https?|tcp|unix):/?/[^/\s].*")

# A new channel then tries at once: gRPC's channels to one address otherwise share how long they wait after failures, up
# to two minutes.
_CHANNEL = {"grpc.use_local_subchannel_pool": 1, "grpc.max_reconnect_backoff_ms": 1_000}

_CALLING: ContextVar[bool] = ContextVar("bounded_retrieval_milvus_calling", default=False)


class MilvusConnection:
    """A client of one server and one of its collections.

    Any number of threads may call. gRPC does not survive a fork, so a forked process is refused. After a restart of the
    server the client connects again by itself.

    Raises:
        ConfigurationError: pymilvus is not installed, or cannot make anything of the address.
        StoreError: no server answers there.
    """

    def __init__(self, uri: str, collection: str, timeout: float, options: Mapping[str, Any]) -> None:
        if not _ADDRESS.fullmatch(checked_text("uri", uri)):
            raise ConfigurationError(
                f"uri: expected an address as in http://127.0.0.1:19530 (got {quoted(_shown(uri))})"
            )
        if not _NAME.fullmatch(checked_text("collection", collection)):
            raise ConfigurationError(
                f"collection: expected at most {_NAME_CHARS} letters, digits and underscores (got {quoted(collection)})"
            )
        self.collection = collection
        self.name = f"{_shown(uri)}, collection {collection!r}"
        self.timeout = timeout
        self._uri = uri
        self._process = OwnProcess("Milvus client")
        self._open: list[Any] = []  # the client, shared with other collections, until it is closed
        client_class = _client_class()
        with self._explained(timeout):
            self._open.append(client_class(uri=uri, timeout=timeout, **{"grpc_options": _CHANNEL, **options}))

    def call(self, method: str, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """Call a method of the client.

        Raises:
            StoreMissingError: the collection is not there.
            StoreError: the server is not there, took too long, or refused.
            ForkedError: the client was made before this process was forked.
        """
        client, limit = self._live(), self.timeout if timeout is None else timeout
        with self._explained(limit):
            return getattr(client, method)(*args, timeout=limit, **options)

    def on_collection(self, method: str, timeout: float | None = None, **options: Any) -> Any:
        """Call a method on the collection; one that the server has not loaded since it was started is loaded first."""
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        try:
            return self.call(method, self.collection, timeout=timeout, **options)
        except StoreError as error:
            if not any(words in str(error) for words in _UNLOADED):
                raise
        self.call("load_collection", self.collection, timeout=until(end))
        return self.call(method, self.collection, timeout=until(end), **options)

    def make(self, schema: Any, indexes: Any, **options: Any) -> bool:
        """Make the collection and its indexes, or what is lacking of them; whether anything was.

        Raises:
            ConfigurationError: a collection of that name holds something else.
        """
        end = time.monotonic() + self.timeout
        while True:
            try:
                if not self.lacks(schema, indexes):
                    return False
                self._unless_there("create_collection", schema=schema, consistency_level="Strong", **options)
                self._unless_there("create_index", index_params=indexes)
                self.call("load_collection", self.collection)
            except StoreMissingError:
                # Somebody else is making it: the server says that it exists before it is there.
                if time.monotonic() > end:
                    raise
                time.sleep(_MAKING_SECONDS)
            else:
                return True

    def lacks(self, schema: Any, indexes: Any) -> bool:
        """Whether the collection or one of its indexes is not there.

        Raises:
            ConfigurationError: a collection of that name holds something else.
        """
        try:
            described = self.call("describe_collection", self.collection)
        except StoreMissingError:
            return True
        if {field["name"] for field in described["fields"]} != {field.name for field in schema.fields}:
            raise ConfigurationError(f"{self.name}: is there already and holds something else; choose another name")
        return len(self.call("list_indexes", self.collection)) < len(indexes)

    def _unless_there(self, method: str, **options: Any) -> None:
        try:
            self.call(method, self.collection, **options)
        except StoreError as error:
            if not any(words in str(error) for words in _THERE):
                raise

    def first_rows(self, fields: list[str], condition: str, limit: int) -> list[dict[str, Any]]:
        """Fields of the first rows that meet a condition, in the order of their keys, keys included."""
        options: dict[str, Any] = {"batch_size": limit, "limit": limit, "output_fields": fields, "filter": condition}
        iterator = self.on_collection("query_iterator", **options)
        try:
            with self._explained(self.timeout):
                return list(iterator.next())
        finally:
            iterator.close()

    def of(self, collection: str) -> MilvusConnection:
        """The same client for another collection."""
        other = object.__new__(MilvusConnection)
        other.__dict__.update(self.__dict__)
        other.collection = collection
        other.name = f"{_shown(self._uri)}, collection {collection!r}"
        return other

    def schema(self) -> Any:
        """An empty schema to add fields to."""
        return self._live().create_schema(auto_id=False, enable_dynamic_field=False)

    def indexes(self) -> Any:
        """Empty parameters to add indexes to."""
        return self._live().prepare_index_params()

    def close(self) -> None:
        """Let go of the connection; in a forked process nothing is done. May be repeated."""
        while self._open and self._process.is_own():
            with _quiet():
                self._open.pop().close()

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close it if what is done inside fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _live(self) -> Any:
        self._process.check()
        if not self._open:
            raise StoreError(f"{self.name}: closed")
        return self._open[0]

    @contextmanager
    def _explained(self, limit: float) -> Iterator[None]:
        import grpc
        from pymilvus.exceptions import MilvusException

        try:
            with _quiet():
                yield
        except (MilvusException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            raise self._in_our_words(error, limit) from error

    def _in_our_words(self, error: Exception, limit: float) -> StoreError:
        import grpc

        code = getattr(error, "code", None)
        problem = one_line(_hidden(self._uri, _first_line(error)), _LONGEST)
        status = code() if callable(code) else code
        if status == grpc.StatusCode.DEADLINE_EXCEEDED or "DEADLINE_EXCEEDED" in problem:
            return StoreError(f"{self.name}: no answer within {math.ceil(round(limit * 1000, 3))} ms")
        if status == grpc.StatusCode.UNAVAILABLE or "connecting to server" in problem or "UNAVAILABLE" in problem:
            return StoreError(f"{self.name}: no Milvus server answers there ({problem})")
        if status == _MISSING or "can't find collection" in problem or "collection not found" in problem:
            return StoreMissingError(f"{self.name}: not there; make it with MilvusStore.create ({problem})")
        return StoreError(f"{self.name}: refused by the server ({problem})")


def _client_class() -> Any:
    try:
        with _quiet():
            from pymilvus import MilvusClient
    except ImportError as error:
        raise ConfigurationError(
            "Milvus: the package pymilvus is not installed; pip install bounded-retrieval[milvus]"
        ) from error
    return MilvusClient


def _first_line(error: BaseException) -> str:
    details = getattr(error, "details", None)
    text = details() if callable(details) else getattr(error, "message", "") or error
    lines = str(text).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _shown(uri: str) -> str:
    """An address without user and password."""
    secret = _secret_of(uri)
    return uri if secret is None else uri.replace(f"{secret}@", "", 1)


def _hidden(uri: str, text: str) -> str:
    """A text without the user and the password of an address."""
    secret = _secret_of(uri)
    return text.replace(f"{secret}@", "").replace(secret, "...") if secret else text


def _secret_of(uri: str) -> str | None:
    """User and password of an address, what stands before the last ``@`` and after the scheme; none without that."""
    before, at, _ = uri.rpartition("@")
    _, scheme, secret = before.partition(":/")
    return None if not at else secret.lstrip("/") if scheme else before


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep pymilvus from writing errors, with tracebacks and what was asked, to where the application logs.

    What they say is raised. Records of other calls, made by the application itself, are left alone.
    """
    token = _CALLING.set(True)
    try:
        yield
    finally:
        _CALLING.reset(token)
        for handler in logging.getLogger("pymilvus").handlers:
            if _not_ours not in handler.filters:
                handler.addFilter(_not_ours)


def _not_ours(record: logging.LogRecord) -> bool:  # noqa: ARG001 - whose record it is depends on the call alone
    return not _CALLING.get()
