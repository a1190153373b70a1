"""Work that may crash, hang or take all memory, done in a process of its own.

The process that calls `in_a_child` must not have used Chroma: a forked process could not use it then.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HANG_S = 120.0
"""A child that takes longer is ended and reported as hung; most take a tenth of a second."""

MOST_BYTES = 16 * 2**30
"""Address space of a child; a header that claims 2**60 rows asks for more."""


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        value: what the work returned, as JSON knows it; none if it did not return.
        why: why it did not: ``signal 6``, ``hang``, or the error that the work raised.
        rss: most bytes that it had in memory at one time.
    """

    value: Any
    why: str
    rss: int


def in_a_child(work: Callable[[], Any], errors: Path, hang_s: float) -> Ended:
    """Do the work in a forked process, whose standard error goes to a file; ended after so many seconds."""
    told, to_tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        _child(work, to_tell, errors)
    os.close(to_tell)
    text, hung = _follow(told, child, hang_s)
    _, status, usage = os.wait4(child, 0)
    code, rss = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
    if hung:
        return Ended(None, "hang", rss)
    if code < 0:
        return Ended(None, f"signal {-code}", rss)
    held = json.loads(text) if text else {"error": f"exit code {code} and no answer"}
    return Ended(held.get("value"), held.get("error", ""), rss)


def _follow(told: int, child: int, hang_s: float) -> tuple[bytes, bool]:
    """What a child tells until it ends, and whether it had to be ended."""
    text, until = b"", time.monotonic() + hang_s
    with os.fdopen(told, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            part = pipe.read(65_536)
            if not part:
                return text, False
            text += part
    os.kill(child, signal.SIGKILL)
    return text, True


def _child(work: Callable[[], Any], to_tell: int, errors: Path) -> None:
    try:
        descriptor = os.open(errors, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            told = {"value": work()}
        except BaseException as error:  # noqa: BLE001 - also what is no Exception; it is the child's last word
            told = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(to_tell, "wb") as pipe:
            pipe.write(json.dumps(told).encode())
    finally:
        os._exit(0)
