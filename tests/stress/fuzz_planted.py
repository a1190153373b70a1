"""Faults planted on purpose, to see that they are found."""

from __future__ import annotations

from unittest.mock import patch

import fuzz_values

from bounded_retrieval.contracts.request import PathRequest
from bounded_retrieval.errors import RequestError


def path(data: bytes) -> None:
    """Writing a path loses the case of its letters."""
    with patch.object(PathRequest, "__str__", lambda self: " > ".join((self.start, *self.relations)).lower()):
        fuzz_values.path(data)


def foreign_error(_data: bytes) -> None:
    """A reader lets an error through that is not the package's."""
    with fuzz_values.refusing():
        raise ZeroDivisionError


def long_message(data: bytes) -> None:
    """An error's message repeats what it was given."""
    with fuzz_values.refusing():
        raise RequestError(data.decode())


def every_pair(data: bytes) -> None:
    """A reader compares each line with every other one."""
    lines = data.splitlines()
    for one in lines:
        for other in lines:
            assert one == other
