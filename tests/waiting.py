"""Ports of this machine, and waiting for servers on them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

START_S = 120.0
"""How long a server may take to answer after it was started, on a machine however busy."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def wait_until(holds: Callable[[], bool], name: str) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: names what did not come.
    """
    end = time.monotonic() + START_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"{name}: no answer for {START_S:.0f} s")
        time.sleep(0.05)
