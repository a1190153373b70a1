"""Connections to one PostgreSQL server, with time limits that hold also where the server hangs."""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Event, Thread, Timer
from typing import Any, TypeVar

from bounded_retrieval.errors import ConfigurationError, StoreError, StoreMissingError, one_line

Result = TypeVar("Result")

_LONGEST = 200
_SCHEME = "postgresql://"


class Connections:
    """Idle connections by process, taken by a call and given back; threads never share one at one time.

    A connection that turns out to be lost before anything was done over it is thrown away with all other idle ones, and
    the work is done over a new one. A forked process opens its own.

    Args:
        url: as libpq takes it: ``postgresql://user@host:port/database`` or ``host=... dbname=...``.
        timeout: seconds that a call may take, connecting included.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.timeout = timeout
        self._psycopg = _psycopg()
        self._idle: dict[int, deque[Any]] = {}
        weakref.finalize(self, _close_idle, self._idle)
        self._closed = False
        try:
            self._options = self._psycopg.conninfo.conninfo_to_dict(url)
        except self._psycopg.Error as error:
            raise ConfigurationError(f"url: no address of a PostgreSQL server ({_first_line(error)})") from error
        shown = {name: str(self._options.get(name, "")) for name in ("host", "port", "dbname")}
        # Never with the password.
        self.name = f"{_SCHEME}{shown['host']}:{shown['port'] or 5432}/{shown['dbname']}"

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
            connection, is_fresh = self._take(seconds)
            timer = Timer(max(0.001, end - time.monotonic()), _hang_up, (connection, expired))
            timer.daemon = True
            timer.start()
            try:
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
            raise _StaleError(f"{self.name}: the connection was lost ({_first_line(error)})") from error

    def _take(self, seconds: float) -> tuple[Any, bool]:
        if self._closed:
            raise StoreError(f"{self.name}: closed")
        idle = self._idle.setdefault(os.getpid(), deque())
        with suppress(IndexError):
            return idle.pop(), False
        return self._connect(seconds), True

    def _connect(self, seconds: float) -> Any:
        # In a thread: libpq counts whole seconds, two or more.
        future: Future[Any] = Future()
        options = {"connect_timeout": max(2, round(seconds)), "application_name": "bounded-retrieval", **self._options}

        def connect() -> None:
            try:
                future.set_result(self._psycopg.connect(**options, autocommit=True, prepare_threshold=None))
            except BaseException as error:  # noqa: BLE001 - whoever waits is told
                future.set_exception(error)

        Thread(target=connect, name="bounded-retrieval-connect", daemon=True).start()
        try:
            return future.result(seconds)
        except TimeoutError as error:
            future.add_done_callback(_close_late)
            raise StoreError(f"{self.name}: no answer within {seconds * 1000:.0f} ms") from error

    def _give_back(self, connection: Any) -> None:
        if connection.closed or connection.broken or self._closed:
            connection.close()
        else:
            self._idle.setdefault(os.getpid(), deque()).append(connection)

    def _forget(self) -> None:
        _close_idle(self._idle)

    @contextmanager
    def _explained(self, seconds: float, expired: Event) -> Iterator[None]:
        errors = self._psycopg.errors
        try:
            yield
        except (errors.UndefinedTable, errors.UndefinedObject, errors.UndefinedFunction) as error:
            raise StoreMissingError(f"{self.name}: not there ({_first_line(error)})") from error
        except self._psycopg.Error as error:
            if expired.is_set() or isinstance(error, (errors.QueryCanceled, errors.ConnectionTimeout)):
                raise StoreError(f"{self.name}: no answer within {seconds * 1000:.0f} ms") from error
            kind = "no PostgreSQL server answers there" if _is_lost(error) else "refused by the server"
            raise StoreError(f"{self.name}: {kind} ({_first_line(error)})") from error
        except StoreError as error:
            if expired.is_set():
                raise StoreError(f"{self.name}: no answer within {seconds * 1000:.0f} ms") from error
            raise


def _close_late(made: Future[Any]) -> None:
    if made.exception() is None:
        made.result().close()


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


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return one_line(lines[0], _LONGEST) if lines else type(error).__name__
