"""Warnings that are ignored for a moment, by one thread at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

# The filters are the process's: of two threads that put back what they found, one would put back the other's.
_LOCK = Lock()


@contextmanager
def ignoring(*categories: type[Warning], message: str = "") -> Iterator[None]:
    """Ignore warnings of these categories whose text begins like ``message``, a regular expression."""
    with _LOCK, warnings.catch_warnings():
        for category in categories:
            warnings.filterwarnings("ignore", message, category)
        yield
