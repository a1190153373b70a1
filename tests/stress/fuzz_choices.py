"""Decisions read from bytes, so that a fuzzer's input can stand for text, JSON values and edits of a document."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, TypeVar

_Item = TypeVar("_Item")

MAX_EDITS = 4
MAX_DEPTH = 4

NUMBERS: Sequence[Any] = (
    0, 1, -1, 2, 0.5, 1.0, -0.0, 1e308, 5e-324, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS: Sequence[str] = (
    "", " ", "a", "HX-200", "\x00", "\ud800", "\u2011", "\u0130", "\u00df", "\ufb01", "e\u0301", "\u0301" * 40, "\u6771\u4eac", "\n",
    "\r\n", "\u2028", "\x1b[31m", "<b>", "2026-01-01", "2026-01-01T00:00:00Z", "$eq", "x" * 600, "nan", "true", ">", "->",
)  # fmt: skip


class Choices:
    """The same bytes always decide the same; once they are used up every decision is the first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, bound: int) -> int:
        """A number from 0, below ``bound`` (at most 256)."""
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1] % bound

    def pick(self, items: Sequence[_Item]) -> _Item:
        """One of at most 256 items."""
        return items[self.below(len(items))]

    def rest(self) -> bytes:
        """What no decision has used."""
        found = self._data[self._at :]
        self._at = len(self._data)
        return found

    def text(self) -> str:
        """A text that is known to make trouble, or one of a few bytes as they are."""
        if self.below(3):
            return self.pick(TEXTS)
        size = self.below(12)
        found = self._data[self._at : self._at + size]
        self._at += size
        return text_of(found)

    def scalar(self) -> Any:
        """A text, a number, true or false."""
        kind = self.below(4)
        if kind == 0:
            return self.text()
        return self.pick(NUMBERS) if kind == 1 else self.below(256) if kind == 2 else self.below(2) == 1

    def value(self, depth: int = 0) -> Any:
        """Any JSON value, and the numbers that JSON proper lacks."""
        kind = self.below(6 if depth < MAX_DEPTH else 4)
        if kind == 5:
            return {self.text(): self.value(depth + 1) for _ in range(self.below(3))}
        if kind == 4:
            return [self.value(depth + 1) for _ in range(self.below(3))]
        return None if kind == 3 else self.scalar()


def text_of(data: bytes) -> str:
    """Bytes as text, with lone surrogates for those that are no UTF-8."""
    return data.decode("utf-8", errors="surrogateescape")


def edited(document: Any, choices: Choices) -> Any:
    """A copy of a JSON document with up to `MAX_EDITS` of its parts replaced, left out, repeated or renamed."""
    document = copy.deepcopy(document)
    for _ in range(choices.below(MAX_EDITS + 1)):
        holder, key = _place_in(document, choices)
        if holder is None:
            return choices.value()
        _edit(holder, key, choices)
    return document


def to_json(document: Any) -> bytes:
    """JSON text; lone surrogates are escaped."""
    return json.dumps(document).encode()


def _place_in(document: Any, choices: Choices) -> tuple[Any, Any]:
    """A part of a document as what holds it and its key or place there; nothing where the whole is meant."""
    holder, key, part = None, None, document
    while isinstance(part, (dict, list)) and part and (holder is None or choices.below(4)):
        holder, key = part, choices.pick(list(part) if isinstance(part, dict) else range(min(len(part), 256)))
        part = part[key]
    return holder, key


def _edit(holder: Any, key: Any, choices: Choices) -> None:
    kind = choices.below(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[choices.text()] = holder.pop(key)
    elif kind == 1:
        holder.insert(key, copy.deepcopy(holder[key]))
    elif kind == 2:
        other = choices.pick(list(holder) if isinstance(holder, dict) else range(min(len(holder), 256)))
        holder[key] = copy.deepcopy(holder[other])
    elif kind == 3:
        holder[key] = choices.scalar()
    else:
        holder[key] = choices.value()
