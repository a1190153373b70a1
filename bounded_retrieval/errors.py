"""The errors of this package.

::

    BoundedRetrievalError
    ├── RequestError (ValueError)        a request, context or setting is not valid
    ├── ConfigurationError (ValueError)  a graph was built from parts that cannot work together
    │   └── ForkedError                  a part was opened before this process was forked
    ├── AsyncOnlyError (TypeError)       a synchronous call met an object that is async only
    ├── SourceError (ValueError)         a file to be read is not what it should be
    ├── StoreError                       an index directory cannot be used
    │   ├── StoreMissingError            there is no index there
    │   ├── StoreVersionError            written by a format that this version does not read
    │   ├── StoreCorruptError            half-written or damaged
    │   ├── StoreBusyError               another process is writing it
    │   └── EmbeddingMismatchError       built with another embedding
    ├── RetrievalFailedError             no permitted attempt answered (carries the packet)
    └── ChainStoppedError                a chain ended unresolved under on_stop="fail" (carries the result)

Each message is one line and names the field or file, the limit and the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

    from bounded_retrieval.contracts.chain import UnresolvedChain
    from bounded_retrieval.contracts.packet import EvidencePacket

MAX_PROBLEMS = 5
"""Most problems of one value that its error names."""

MAX_PROBLEM_CHARS = 200
"""Most characters in which a problem is put, without its place and the value."""


_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class BoundedRetrievalError(Exception):
    """Base of every error raised by this package."""

    def __init__(self, message: str) -> None:
        # A file's name may hold any character; the message stays one line.
        super().__init__(_BREAKS.sub(lambda found: found[0].encode("unicode_escape").decode(), message))


class RequestError(BoundedRetrievalError, ValueError):
    """A request, a runtime context or a setting is not valid."""

    @classmethod
    def from_validation(cls, error: ValidationError, where: str) -> RequestError:
        """Turn a pydantic error into one line: ``where.field: what is wrong (got value)``."""
        return cls("; ".join(_problem_lines(error, where)))


class ConfigurationError(BoundedRetrievalError, ValueError):
    """A graph was built from parts that cannot work together."""


class ForkedError(ConfigurationError):
    """A part was opened before this process was forked from another, and does not survive that.

    It ends a run instead of counting as a failed call: every further call would fail in the same way.
    """


class AsyncOnlyError(BoundedRetrievalError, TypeError):
    """A synchronous call (``invoke``) met an object that only works asynchronously."""


class SourceError(BoundedRetrievalError, ValueError):
    """A file to be read is not what it should be; names the file and, where it has one, the line."""


class StoreError(BoundedRetrievalError):
    """An index directory cannot be used; names the directory."""


class StoreMissingError(StoreError):
    """There is no index in the directory."""


class StoreVersionError(StoreError):
    """The index was written in a format that this version does not read."""


class StoreCorruptError(StoreError):
    """The index is half-written or damaged."""


class StoreBusyError(StoreError):
    """Another process is writing the index."""


class EmbeddingMismatchError(StoreError):
    """The index was built with another embedding than the one given."""


class RetrievalFailedError(BoundedRetrievalError):
    """No permitted retrieval attempt answered.

    Attributes:
        packet: the (empty) evidence packet of the run, with its usage and notes.
    """

    def __init__(self, message: str, packet: EvidencePacket) -> None:
        super().__init__(message)
        self.packet = packet

    def __reduce__(self) -> tuple[type[RetrievalFailedError], tuple[str, EvidencePacket]]:
        return type(self), (str(self), self.packet)


class ChainStoppedError(BoundedRetrievalError):
    """A recursive chain ended unresolved, and the builder said ``on_stop="fail"``.

    Attributes:
        result: how it ended, with the whole trail.
    """

    def __init__(self, result: UnresolvedChain) -> None:
        super().__init__(
            f"{result.stop_reason.value}: the chain ended unresolved (hops: {len(result.trail)}); "
            f"open: {quoted('; '.join(result.unresolved))}"
        )
        self.result = result

    def __reduce__(self) -> tuple[type[ChainStoppedError], tuple[UnresolvedChain]]:
        return type(self), (self.result,)


def quoted(value: object, limit: int = 60) -> str:
    """A value as an error quotes it: at most ``limit`` characters, printable, on one line."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value that cannot be shown must not hide the message about it
        text = f"<{type(value).__name__}>"
    return one_line(text, limit)


def one_line(text: str, limit: int) -> str:
    """At most ``limit`` characters of a text, those that cannot be printed as blanks."""
    cut = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return cut if cut.isprintable() else "".join(char if char.isprintable() else " " for char in cut)


def field_path(location: Sequence[str | int]) -> str:
    """Where in a value a field stands, in one printable line."""
    return ".".join(map(_field_name, location))


def _problem_lines(error: ValidationError, where: str) -> Iterator[str]:
    """The first problems, and how many more there are: a large file can have any number of them."""
    for problem in error.errors(include_url=False, include_context=False)[:MAX_PROBLEMS]:
        place = field_path(problem["loc"])
        path = f"{where}.{place}" if place else where
        # It may quote the value that it is about.
        message = one_line(problem["msg"].removeprefix("Value error, "), MAX_PROBLEM_CHARS)
        if problem["type"] == "extra_forbidden":
            message = "unknown field"
        if problem["type"] == "value_error":
            yield f"{path}: {message}"
        else:
            yield f"{path}: {message} (got {quoted(problem['input'])})"
    if error.error_count() > MAX_PROBLEMS:
        yield f"and {error.error_count() - MAX_PROBLEMS} more"


def _field_name(part: str | int) -> str:
    # A caller's own key may be anything.
    return part if isinstance(part, str) and part.isidentifier() and len(part) <= 60 else quoted(part)  # noqa: PLR2004
