"""A plain backtracking matcher that counts its steps: another way to the figures that the proofs speak of.

It follows the parsed pattern itself and knows no automaton. It understands letters, classes, groups, choices, greedy
and lazy repetitions, look-aheads and the end of the text, which is what the generated patterns are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from re import _parser
from typing import Any


class StepCounter:
    """Matches one pattern and counts each character that it looks at.

    Args:
        pattern: a regular expression.
        limit: most steps; more raise `OverflowError`.
    """

    def __init__(self, pattern: str, limit: int = 50_000) -> None:
        self._parsed = _parser.parse(pattern)
        self._limit = limit
        self.steps = 0

    def match(self, text: str, start: int = 0) -> int | None:
        """Where a match that begins at ``start`` ends, or none."""
        return next(self._sequence(list(self._parsed), text, start), None)

    def find_all(self, text: str) -> list[tuple[int, int]]:
        """The matches of ``finditer``, empty ones left out."""
        found, at = [], 0
        while at <= len(text):
            end = self.match(text, at)
            if end is not None and end > at:
                found.append((at, end))
            at = end if end is not None and end > at else at + 1
        return found

    def _sequence(self, items: list[Any], text: str, at: int) -> Iterator[int]:
        if not items:
            yield at
            return
        for end in self._part(str(items[0][0]), items[0][1], text, at):
            yield from self._sequence(items[1:], text, end)

    def _part(self, name: str, argument: Any, text: str, at: int) -> Iterator[int]:
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, body = argument
            yield from self._repeat(list(body), text, at, (least, most), lazy=name == "MIN_REPEAT")
        elif name == "BRANCH":
            for way in argument[1]:
                yield from self._sequence(list(way), text, at)
        elif name == "SUBPATTERN":
            yield from self._sequence(list(argument[3]), text, at)
        elif name in ("ASSERT", "ASSERT_NOT"):
            held = next(self._sequence(list(argument[1]), text, at), None) is not None
            yield from [at] if held == (name == "ASSERT") else []
        elif name == "AT":
            yield from [at] if at == len(text) else []
        elif self._takes(name, argument, text, at):
            yield at + 1

    def _repeat(self, body: list[Any], text: str, at: int, rounds: tuple[int, int], *, lazy: bool) -> Iterator[int]:
        least, most = rounds

        def more() -> Iterator[int]:
            for end in self._sequence(body, text, at) if most else ():
                if end > at or least > 0:
                    yield from self._repeat(body, text, end, (max(0, least - 1), most - 1), lazy=lazy)
                else:  # after a round that took no character there is no further one
                    yield end

        def leave() -> Iterator[int]:
            yield from [at] if least == 0 else []

        for way in (leave, more) if lazy else (more, leave):
            yield from way()

    def _takes(self, name: str, argument: Any, text: str, at: int) -> bool:
        self.steps += 1
        if self.steps > self._limit:
            raise OverflowError(f"more than {self._limit} steps")
        if at >= len(text):
            return False
        tests: dict[str, Callable[[], bool]] = {
            "LITERAL": lambda: ord(text[at]) == argument,
            "NOT_LITERAL": lambda: ord(text[at]) != argument,
            "ANY": lambda: text[at] != "\n",
            "IN": lambda: any(ord(text[at]) == code for _, code in argument),
        }
        return tests[name]()
