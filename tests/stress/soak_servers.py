"""Servers that can be stopped and started again on the same port: Chroma, and PostgreSQL with a pool of connections."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from postgres_server import _binaries
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool
from waiting import START_S, free_port, wait_until


class Outages:
    """When which server was down, as pairs of times; the last one's end is infinite while it lasts."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []
        self._up = threading.Event()
        self._up.set()

    def begin(self) -> None:
        """From now on requests may fail."""
        self._up.clear()
        self.times.append((time.monotonic(), float("inf")))

    def end(self) -> None:
        """From now on they may not."""
        self.times[-1] = (self.times[-1][0], time.monotonic())
        self._up.set()

    def touched(self, started: float, ended: float) -> bool:
        """Whether the server was down at some time between these two."""
        return any(begin <= ended and started <= end for begin, end in self.times)

    def wait_for_end(self) -> None:
        """Wait until the server is up."""
        if not self._up.wait(START_S):
            raise TimeoutError(f"the server was not up again after {START_S:.0f} s")

    async def await_end(self) -> None:
        """Wait until the server is up, and leave the event loop free."""
        while not self._up.is_set():  # noqa: ASYNC110 - what ends an outage is another thread
            await asyncio.sleep(0.05)


class ChromaServer:
    """``chroma run`` over a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.outages = Outages()
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        program = Path(sys.executable).with_name("chroma")
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "run", "--path", self._directory / "data", "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env=os.environ | {"ANONYMIZED_TELEMETRY": "False"},
            )
        wait_until(self._answers, "chroma run")

    def stop(self) -> None:
        """End it at once, whatever it is doing."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def restart(self, pause_s: float) -> None:
        """Stop it, leave it down for a while, and start it again."""
        self.outages.begin()
        self.stop()
        time.sleep(pause_s)
        self.start()
        self.outages.end()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v2/heartbeat", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


class PostgresServer:
    """A PostgreSQL server in a directory of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self.outages = Outages()
        self.url = f"postgresql://tests@127.0.0.1:{self.port}/postgres"
        # Not pytest's temporary folder: the server's user may not enter it.
        self._root = Path(tempfile.mkdtemp(prefix="bounded-retrieval-soak-"))
        # initdb and the server refuse to run as root.
        self._as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._as_user:
            shutil.chown(self._root, "postgres")
        self._run("initdb", "-D", self._root / "data", "-U", "tests", "--auth=trust", "--no-sync")

    @staticmethod
    def is_installed() -> bool:
        """Whether there is a PostgreSQL to start."""
        return _binaries() is not None

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = f"-p {self.port} -k {self._root} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._control("-w", "-t", str(int(START_S)), "-l", self._root / "log", "-o", options, "start")

    def stop(self) -> None:
        """End it at once, whatever it is doing."""
        self._control("-m", "immediate", "stop")

    def restart(self, pause_s: float, is_reached: Callable[[], bool]) -> None:
        """Stop it, leave it down for a while, start it again, and wait until the pools have connections again."""
        self.outages.begin()
        self.stop()
        time.sleep(pause_s)
        self.start()
        wait_until(is_reached, "the pool of connections")
        self.outages.end()

    def remove(self) -> None:
        """Delete its files; it must be stopped."""
        shutil.rmtree(self._root)

    def _control(self, *arguments: str | Path) -> None:
        self._run("pg_ctl", "-D", self._root / "data", *arguments)

    def _run(self, program: str, *arguments: str | Path) -> None:
        folder = _binaries()
        assert folder is not None
        command = [*self._as_user, folder / program, *arguments]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


POOLED: dict[str, Any] = {
    "kwargs": {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
    "min_size": 1,
    "max_size": 1,
    "timeout": 10.0,
    "open": False,
}
"""How the checkpointers' pools of connections are made: a checkpointer makes one call at a time, and a caller gets the
connection within 10 seconds or an error."""


def has_connection(pool: ConnectionPool) -> bool:
    """Whether a pool can give a connection that works."""
    try:
        with pool.connection(timeout=1) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True
