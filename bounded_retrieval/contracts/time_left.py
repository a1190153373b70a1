"""How much of a run's deadline is left, for whatever makes a call that may hang.

A node declares it around everything it calls; a searcher over a network asks `seconds_left` and gives its client no
longer than that. It is passed on to the threads and tasks that a call is made in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

_UNTIL: ContextVar[float | None] = ContextVar("bounded_retrieval_until", default=None)


def time_left(seconds: float | None) -> AbstractContextManager[None]:
    """Declare how many seconds are left for what is called inside; never more than was declared around it.

    Args:
        seconds: none leaves what was declared around it.
    """
    return nullcontext() if seconds is None else _until(time.monotonic() + seconds)


@contextmanager
def _until(end: float) -> Iterator[None]:
    outer = _UNTIL.get()
    token = _UNTIL.set(end if outer is None else min(end, outer))
    try:
        yield
    finally:
        _UNTIL.reset(token)


@contextmanager
def unhurried() -> Iterator[None]:
    """Let what is called inside take its own time: what was found is rechecked also when the deadline has passed."""
    token = _UNTIL.set(None)
    try:
        yield
    finally:
        _UNTIL.reset(token)


def seconds_left() -> float | None:
    """Seconds until the deadline, 0 or more; none where there is no deadline."""
    until = _UNTIL.get()
    return None if until is None else max(0.0, until - time.monotonic())
