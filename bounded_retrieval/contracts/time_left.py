"""How much of a run's deadline is left, for whatever makes a call that may hang.

A node declares it around everything it calls; a searcher over a network asks `seconds_left` and gives its client no
longer than that. It is passed on to the threads and tasks that a call is made in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_UNTIL: ContextVar[float | None] = ContextVar("bounded_retrieval_until", default=None)


@contextmanager
def time_left(seconds: float | None) -> Iterator[None]:
    """Declare how many seconds are left for what is called inside; never more than was declared around it.

    Args:
        seconds: none leaves what was declared around it.
    """
    ends = [] if seconds is None else [time.monotonic() + seconds]
    outer = _UNTIL.get()
    token = _UNTIL.set(min([*ends, *([] if outer is None else [outer])], default=None))
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
