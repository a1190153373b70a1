"""A server that has imported everything and forks a fresh process for each job, which it kills where the job says.

So a process costs milliseconds, and none inherits a thread, a connection or an open store. Jobs and what became of
them are JSON, one a line. A job names its ``log``, which all processes of one case append to and no checkpoint holds,
and may hold a ``kill``: ``{"mark": letter, "count": n, "after": seconds}``, so long after the n-th such mark.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

HANG_S = 300.0
"""A process that takes longer than this is ended and reported as hung."""

Tell = Callable[[str], None]
Work = Callable[[dict[str, Any], Tell], Any]


def append(log: str, event: str, **facts: Any) -> None:
    """Append an event to a log in one write, which is whole whatever happens to this process."""
    descriptor = os.open(log, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(descriptor, json.dumps({"event": event, **facts}).encode() + b"\n")
    finally:
        os.close(descriptor)


def read_log(log: str | Path) -> list[dict[str, Any]]:
    """The events of a log in their order."""
    path = Path(log)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class ForkServer:
    """Runs a worker module that calls `serve`, and hands it one job at a time.

    Args:
        worker: the module's file.
        environment: variables besides the present ones.
    """

    def __init__(self, worker: Path, environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(worker)],
            # NumPy's own threads would not live on in a forked process.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """What became of a job: ``killed``, ``code``, ``seconds`` since its first mark, ``output`` and ``stderr``.

        A process that was not killed must have ended well, and none may have printed anything.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the server ended with {self._process.wait()}"
        outcome: dict[str, Any] = json.loads(answer)
        assert outcome["killed"] or outcome["code"] == 0, f"{job} ended with {outcome['code']}\n{outcome['stderr']}"
        assert outcome["stderr"] == "", f"{job} printed\n{outcome['stderr']}"
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(work: Work) -> None:
    """Answer jobs from standard input until it ends; each is worked in a process of its own."""
    assert threading.active_count() == 1, "a forked process would lack the other threads"
    # Spares the forked processes copies of all that their garbage collector would otherwise touch.
    gc.freeze()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_in_a_fork(work, json.loads(line))) + "\n")
        sys.stdout.flush()


def _in_a_fork(work: Work, job: dict[str, Any]) -> dict[str, Any]:
    result, errors = Path(job["log"] + ".result"), Path(job["log"] + ".stderr")
    result.unlink(missing_ok=True)
    marks, to_mark = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(marks)
        _child(work, job, to_mark, result, errors)
    os.close(to_mark)
    with os.fdopen(marks, "rb", buffering=0) as pipe:
        begun = _follow(child, pipe.fileno(), job.get("kill"))
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - begun
    code = os.waitstatus_to_exitcode(status)
    killed = code == -signal.SIGKILL
    append(job["log"], "killed" if killed else "ended")
    output = json.loads(result.read_text()) if code == 0 else None
    stderr = errors.read_text()
    return {"killed": killed, "code": code, "seconds": seconds, "output": output, "stderr": stderr}


def _child(work: Work, job: dict[str, Any], to_mark: int, result: Path, errors: Path) -> None:
    """Work a job and leave, without running anything that belongs to the server."""
    code = 1
    try:
        descriptor = os.open(errors, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        output = work(job, lambda mark: _mark(to_mark, mark))
        result.write_text(json.dumps(output))
        code = 0
    except BaseException:  # noqa: BLE001 - it is the process's last word
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _mark(to_mark: int, mark: str) -> None:
    os.write(to_mark, mark.encode())


def _follow(child: int, marks: int, kill: dict[str, Any] | None) -> float:
    """Follow a process to its end or its kill; when it gave its first mark."""
    begun, seen, hang = time.monotonic(), "", time.monotonic() + HANG_S
    due: float | None = None
    while True:
        now = time.monotonic()
        if now >= min(hang, due or hang):
            os.kill(child, signal.SIGKILL)
            if now >= hang:
                raise TimeoutError(f"a process took longer than {HANG_S} s")
            return begun
        if not select.select([marks], [], [], min(hang, due or hang) - now)[0]:
            continue
        given = os.read(marks, 64).decode()
        if not given:
            return begun
        begun = begun if seen else time.monotonic()
        seen += given
        if kill is not None and due is None and seen.count(kill["mark"]) >= kill["count"]:
            due = time.monotonic() + kill["after"]
