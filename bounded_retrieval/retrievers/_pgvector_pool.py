"""Connections to one PostgreSQL server, with time limits that hold also where the server hangs."""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Semaphore, Thread, Timer
from typing import Any, TypeVar

from bounded_retrieval.errors import ConfigurationError, StoreError, StoreMissingError, one_line
from bounded_retrieval.retrievers._server_units import checked_text

Result = TypeVar("Result")

_LONGEST = 200
_SCHEME = "postgresql://"
_SECRETS = ("user", "password", "sslpassword")
_EXPECTED = (
    f"expected {_SCHEME}user:password@host:port/database, where @ / ? and : in a user or password are written as "
    "%40 %2F %3F and %3A, or host=... dbname=..."
)

MOST_CALLS = 16
"""Most calls that one searcher makes of a server at one time; each has a connection, and others wait."""

MOST_IDLE = 4
"""Most connections that are kept for the next calls."""


class Connections:
    """Idle connections by process, taken by a call and given back; threads never share one at one time.

    A connection that turns out to be lost before anything was done over it is thrown away with all other idle ones, and
    the work is done over a new one. A forked process opens its own. Of one process `MOST_CALLS` calls are made at one
    time; those that come then wait, for as long as they may take. `MOST_IDLE` connections at most are kept idle.

    Args:
        url: as libpq takes it: ``postgresql://user@host:port/database`` or ``host=... dbname=...``.
        timeout: seconds that a call may take, connecting included.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.timeout = timeout
        self._psycopg = _psycopg()
        self._idle: dict[int, deque[Any]] = {}
        weakref.finalize(self, _close_idle, self._idle)
        self._places: dict[int, Semaphore] = {}
        self._closed = False
        self._options = self._parsed(url)
        self._secrets = [str(self._options[name]) for name in _SECRETS if self._options.get(name)]
        shown = {name: str(self._options.get(name, "")) for name in ("host", "port", "dbname")}
        # Never with the password.
        self.name = f"{_SCHEME}{shown['host']}:{shown['port'] or 5432}/{shown['dbname']}"

    def _parsed(self, url: str) -> dict[str, Any]:
        # What libpq says of an address repeats parts of it, among them what it did not see to be a password.
        with suppress(self._psycopg.Error, UnicodeError):
            options: dict[str, Any] = self._psycopg.conninfo.conninfo_to_dict(checked_text("url", url))
            if not _is_misread(url, options):
                return options
        raise ConfigurationError(f"url: no address of a PostgreSQL server ({_EXPECTED})")

    def run(self, work: Callable[[Any], Result], limit: float | None = None) -> Result:
        """Do some work over a connection, in a transaction that is committed at its end.

        Should the server have been started anew since the connection was last used, the work is done over another one.

        Args:
            work: given the connection.
            limit: seconds that all of it may take.

        Raises:
            StoreMissingError: a table or the extension is not there.
            StoreError: the server is not there, took too long or refused.
        """
        seconds = self.timeout if limit is None else limit
        try:
            return self._run(work, seconds)
        except _StaleError:
            self._forget()
            return self._run(work, seconds)

    def _run(self, work: Callable[[Any], Result], seconds: float) -> Result:
        expired, end = Event(), time.monotonic() + seconds
        with self._explained(seconds, expired):
            connection, is_fresh = self._take(seconds, end)
            timer = Timer(max(0.001, end - time.monotonic()), _hang_up, (connection, expired))
            timer.daemon = True
            try:
                timer.start()
                self._begin(connection, is_fresh)
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(self._psycopg.Error):
                    connection.execute("ROLLBACK")
                raise
            finally:
                timer.cancel()
                self._give_back(connection)
        return result

    def close(self) -> None:
        """Close idle connections; those in use are closed when they are given back."""
        self._closed = True
        self._forget()

    def _begin(self, connection: Any, is_fresh: bool) -> None:
        try:
            connection.execute("BEGIN")
        except self._psycopg.OperationalError as error:
            if is_fresh:
                raise
            raise _StaleError(f"{self.name}: the connection was lost ({self._said(error)})") from error

    def _take(self, seconds: float, end: float) -> tuple[Any, bool]:
        if self._closed:
            raise StoreError(f"{self.name}: closed")
        if not self._place().acquire(timeout=seconds):
            raise self._late(seconds)
        with suppress(IndexError):
            return self._idle.setdefault(os.getpid(), deque()).pop(), False
        return self._connect(seconds, end), True

    def _place(self) -> Semaphore:
        return self._places.setdefault(os.getpid(), Semaphore(MOST_CALLS))

    def _late(self, seconds: float) -> StoreError:
        return StoreError(f"{self.name}: no answer within {seconds * 1000:.0f} ms")

    def _connect(self, seconds: float, end: float) -> Any:
        # In a thread: libpq counts whole seconds, two or more.
        future: Future[Any] = Future()
        options = {"connect_timeout": max(2, round(seconds)), "application_name": "bounded-retrieval", **self._options}

        def connect() -> None:
            try:
                future.set_result(self._psycopg.connect(**options, autocommit=True, prepare_threshold=None))
            except BaseException as error:  # noqa: BLE001 - whoever waits is told
                future.set_exception(error)

        try:
            Thread(target=connect, name="bounded-retrieval-connect", daemon=True).start()
        except RuntimeError as error:
            future.set_exception(error)
        try:
            return future.result(max(0.0, end - time.monotonic()))
        except BaseException as error:
            # What comes late keeps its place until then.
            future.add_done_callback(partial(_abandon, self._place()))
            if isinstance(error, TimeoutError):
                raise self._late(seconds) from error
            raise

    def _give_back(self, connection: Any) -> None:
        idle = self._idle.setdefault(os.getpid(), deque())
        try:
            if connection.closed or connection.broken or self._closed:
                connection.close()
            else:
                idle.append(connection)
            while len(idle) > MOST_IDLE:
                with suppress(IndexError):  # another thread may take the last one
                    idle.popleft().close()
        finally:
            self._place().release()

    def _said(self, error: BaseException) -> str:
        return _first_line(without(str(error), self._secrets)) or type(error).__name__

    def _forget(self) -> None:
        _close_idle(self._idle)

    @contextmanager
    def _explained(self, seconds: float, expired: Event) -> Iterator[None]:
        errors = self._psycopg.errors
        try:
            yield
        except (errors.UndefinedTable, errors.UndefinedObject, errors.UndefinedFunction) as error:
            raise StoreMissingError(f"{self.name}: not there ({self._said(error)})") from error
        except self._psycopg.Error as error:
            if expired.is_set() or isinstance(error, (errors.QueryCanceled, errors.ConnectionTimeout)):
                raise self._late(seconds) from error
            kind = "no PostgreSQL server answers there" if _is_lost(error) else "refused by the server"
            raise StoreError(f"{self.name}: {kind} ({self._said(error)})") from error
        except StoreError as error:
            if expired.is_set():
                raise self._late(seconds) from error
            raise


def _abandon(place: Semaphore, made: Future[Any]) -> None:
    try:
        if made.exception() is None:
            made.result().close()
    finally:
        place.release()


def _is_misread(url: str, options: Mapping[str, Any]) -> bool:
    """Whether libpq takes what looks like a part of a user or password for a host, a port or a database."""
    ports = str(options.get("port", "")).split(",")
    if not all(port.isdecimal() or not port for port in ports):
        return True
    if any("://" in str(options.get(name, "")) for name in ("host", "dbname")):
        return True
    scheme, _, rest = url.partition("://")
    place, _, path = rest.partition("?")[0].partition("/")
    return scheme in ("postgresql", "postgres") and (place.count("@") > 1 or "@" in path)


def without(text: str, secrets: Iterable[str]) -> str:
    """A text with each of these words as ``***``; inside of another word one is left."""
    for secret in sorted({secret for secret in secrets if secret.strip()}, key=len, reverse=True):
        text = _masked(text, secret)
    return text


def _masked(text: str, secret: str) -> str:
    parts: list[str] = []
    start = 0
    while (at := text.find(secret, start)) >= 0:
        end = at + len(secret)
        is_inside = _is_one_word(text[at - 1 : at], secret[0]) or _is_one_word(secret[-1], text[end : end + 1])
        parts += [text[start:at], secret[0] if is_inside else "***"]
        start = at + 1 if is_inside else end
    return "".join([*parts, text[start:]])


def _is_one_word(left: str, right: str) -> bool:
    return all(char.isalnum() or char == "_" for char in left + right) and bool(left and right)


def _close_idle(connections: Mapping[int, deque[Any]]) -> None:
    idle = connections.get(os.getpid(), deque())
    with suppress(IndexError):  # another thread may take the last one
        while True:
            idle.pop().close()


class _StaleError(StoreError):
    """An idle connection turned out to be lost before anything was done over it."""


def _hang_up(connection: Any, expired: Event) -> None:
    """End the wait for a server that does not answer: whoever waits is told that the connection was closed."""
    expired.set()
    # A connection that is closed meanwhile has no number any more.
    with suppress(OSError, _psycopg().Error), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def _is_lost(error: Exception) -> bool:
    # Errors that the server sent have a code.
    return getattr(error, "sqlstate", None) is None or str(getattr(error, "sqlstate", "")).startswith(("08", "57"))


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise ConfigurationError(
            "PostgreSQL: the package psycopg is not installed; pip install bounded-retrieval[pgvector]"
        ) from error
    return psycopg


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return one_line(lines[0], _LONGEST) if lines else ""
