"""The automaton that Python's backtracking matcher walks for a regular expression, in the matcher's own order.

The pattern is taken apart by the standard library's own parser, and what a character class holds is asked of the
matcher itself, so that flags and Unicode are as they are at run time. Each place in the pattern that takes a character
has a list of what can come next, first choice first; zero-width parts stand on these edges as conditions on the
character before and the character after.

Where a condition cannot be put that way (a look-around of more than one character, a backreference), the edge may be
taken and is never relied on: the automaton then makes more runs than the matcher, never fewer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from re import _compiler, _parser
from typing import Any, NamedTuple

import numpy as np

MAX_NODES = 4_000
"""Largest automaton; bounded repetitions are written out."""

MAX_REFERENCE = 64
"""Longest text that a backreference may repeat, in characters."""

START, ACCEPT, DEAD = 0, 1, 2
"""Nodes of every automaton: before the first character, the end of a match, the end of a look-ahead."""

_CHARS = "".join(map(chr, range(0x110000)))
_BYTES = bytes(range(256))
_SINGLE = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN"})
_LOOPS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})

Spans = tuple[tuple[int, int], ...]
"""Characters as ranges of code points, the end of each exclusive."""

_FOUND: dict[tuple[str, str, int, bool], Spans] = {}


class UnprovableError(Exception):
    """The pattern uses something that is not understood here, or is too large."""


class Edge(NamedTuple):
    """What can come next: a node, where the edge may be taken, and where it is sure to be.

    Both are arrays of shape (characters + 1, characters + 1) over the character before and the one after, by class;
    the last place stands for the start and the end of the text.
    """

    target: int
    may: np.ndarray
    must: np.ndarray


@dataclass(frozen=True)
class Automaton:
    """``edges`` by node, ``takes`` the classes of characters that each node takes, and a character of each class."""

    edges: Sequence[Sequence[Edge]]
    takes: Sequence[frozenset[int]]
    samples: Sequence[str]

    @property
    def outside(self) -> int:
        """What stands for the start and the end of the text, among the classes of characters."""
        return len(self.samples)


@dataclass(frozen=True)
class _Condition:
    """A zero-width part: where it may hold and where it is sure to, given spans for the characters beside it."""

    make: Callable[[_Classes], tuple[np.ndarray, np.ndarray]]


@dataclass
class _Node:
    """``spans`` where it takes a character; else zero-width, with its ways on in order and maybe a condition.

    The end of a round of an endless loop knows the way to ``leave`` it, and its beginning the end that it ``enters``.
    """

    spans: Spans | None = None
    ways: list[int] = field(default_factory=list)
    leave: int | None = None
    enters: int | None = None
    condition: _Condition | None = None


def automaton_of(pattern: re.Pattern[Any]) -> Automaton:
    """The automaton of a compiled pattern.

    Raises:
        UnprovableError: the pattern is too large, or holds what is not understood.
    """
    builder = _Builder(isinstance(pattern.pattern, bytes))
    parsed = _parser.parse(pattern.pattern, pattern.flags)
    builder.collect_groups(parsed, pattern.flags)
    builder.nodes[START].ways.append(builder.sequence(parsed, ACCEPT, pattern.flags))
    return builder.finish()


class _Classes:
    """The coarsest division of all characters that every set in a pattern is made of."""

    def __init__(self, sets: Sequence[Spans], size: int) -> None:
        bounds = sorted({0, size, *(bound for spans in sets for span in spans for bound in span)})
        starts = np.array(bounds[:-1])
        rows = np.zeros((len(sets) + 1, len(starts)), dtype=np.bool_)
        for row, spans in zip(rows, sets, strict=False):
            for first, end in spans:
                row[np.searchsorted(starts, first) : np.searchsorted(starts, end)] = True
        _, places, which = np.unique(rows, axis=1, return_index=True, return_inverse=True)
        self.samples = [chr(starts[place]) for place in places]
        which = which.reshape(-1)
        self._classes = {spans: frozenset(which[row].tolist()) for spans, row in zip(sets, rows, strict=False)}

    def of(self, spans: Spans) -> frozenset[int]:
        """The classes that a set is made of."""
        return self._classes[spans]

    def flags(self, spans: Spans, *, outside: bool) -> np.ndarray:
        """Shape (classes + 1,): which classes are in a set, and whether the edge of the text counts as one."""
        held = np.zeros(len(self.samples) + 1, dtype=np.bool_)
        held[list(self.of(spans))] = True
        held[-1] = outside
        return held


class _Builder:
    """Builds from the end of the pattern to its start, since each part must know what follows it."""

    def __init__(self, is_bytes: bool) -> None:
        self.nodes = [_Node(), _Node(), _Node()]
        self._is_bytes = is_bytes
        self._groups: dict[int, tuple[Any, int]] = {}
        self._sets: dict[Spans, None] = {}

    def collect_groups(self, parsed: Any, flags: int) -> None:
        """Remember what each group holds, for backreferences."""
        for name, argument in _items(parsed):
            if name == "SUBPATTERN":
                group, added, removed, inner = argument
                self._groups[group] = inner, _compiler._combine_flags(flags, added, removed)
            for inner, own in _inner(name, argument, flags):
                self.collect_groups(inner, own)

    def sequence(self, parsed: Any, then: int, flags: int) -> int:
        """The first node of a sequence that goes on to ``then``."""
        for name, argument in reversed(list(_items(parsed))):
            then = self._part(name, argument, then, flags)
        return then

    def finish(self) -> Automaton:
        """Divide the characters into classes and draw the edges."""
        classes = _Classes(list(self._sets), 256 if self._is_bytes else 0x110000)
        all_true = np.ones((len(classes.samples) + 1,) * 2, dtype=np.bool_)
        edges = [
            []
            if number in (ACCEPT, DEAD) or (number != START and node.spans is None)
            else list(self._edges(node.ways, classes, all_true))
            for number, node in enumerate(self.nodes)
        ]
        takes = [frozenset() if node.spans is None else classes.of(node.spans) for node in self.nodes]
        return Automaton(edges, takes, classes.samples)

    def _edges(self, ways: Sequence[int], classes: _Classes, all_true: np.ndarray) -> Iterator[Edge]:
        stack = [(way, all_true, all_true, frozenset[int]()) for way in reversed(ways)]
        while stack:
            number, may, must, loops = stack.pop()
            node = self.nodes[number]
            if node.spans is not None or number == ACCEPT:
                yield Edge(number, may, must)
                continue
            if node.condition is not None:
                more_may, more_must = node.condition.make(classes)
                may, must = may & more_may, must & more_must
            onward = node.ways
            if node.leave is not None:
                # After a round that took no character the matcher makes no further one.
                onward = [node.leave] if number in loops else onward
                loops = loops | {number}
            elif node.enters is not None:
                loops = loops | {node.enters}
            stack += [(way, may, must, loops) for way in reversed(onward)]
            if len(stack) > MAX_NODES:
                raise UnprovableError("too many ways to take no character")

    def _part(self, name: str, argument: Any, then: int, flags: int) -> int:
        if name in _SINGLE:
            return self._add(_Node(spans=self._spans(name, argument, flags), ways=[then]))
        if name in _LOOPS:
            return self._repeat(name, argument, then, flags)
        parts: dict[str, Callable[[], int]] = {
            "BRANCH": lambda: self._add(_Node(ways=[self.sequence(way, then, flags) for way in argument[1]])),
            "SUBPATTERN": lambda: self.sequence(
                argument[3], then, _compiler._combine_flags(flags, argument[1], argument[2])
            ),
            "ATOMIC_GROUP": lambda: self.sequence(argument, self._unsure(then), flags),
            "GROUPREF": lambda: self._reference(argument, then),
            "ASSERT": lambda: self._look(argument, then, flags, wanted=True),
            "ASSERT_NOT": lambda: self._look(argument, then, flags, wanted=False),
            "AT": lambda: self._add(_Node(ways=[then], condition=self._place(str(argument), flags))),
        }
        if name not in parts:
            raise UnprovableError(f"{name} is not understood")
        return parts[name]()

    def _repeat(self, name: str, argument: Any, then: int, flags: int) -> int:
        least, most, body = argument
        lazy, possessive = name == "MIN_REPEAT", name == "POSSESSIVE_REPEAT"
        endless, single = most == _parser.MAXREPEAT, _only_single(body)
        if possessive and endless and single:
            # It gives nothing back: it is left only where it cannot go on.
            then = self._add(_Node(ways=[then], condition=self._beside(single, flags, after=True, wanted=False)))
        elif possessive:
            then = self._unsure(then)
        leave = then
        if endless:
            again = self._add(_Node(leave=leave))
            first = self.sequence(body, again, flags)
            self.nodes[again].ways = [leave, first] if lazy else [first, leave]
            then = self._add(_Node(ways=self.nodes[again].ways, enters=again))
        for _ in range(0 if endless else most - least):
            first = self.sequence(body, then, flags)
            then = self._add(_Node(ways=[leave, first] if lazy else [first, leave]))
        for _ in range(least):
            then = self.sequence(body, then, flags)
        return then

    def _reference(self, group: int, then: int) -> int:
        inner, flags = self._groups[group]
        if inner.getwidth()[1] > MAX_REFERENCE:
            raise UnprovableError(f"a backreference to more than {MAX_REFERENCE} characters")
        return self._unsure(self.sequence(inner, then, flags))

    def _look(self, argument: Any, then: int, flags: int, *, wanted: bool) -> int:
        direction, body = argument
        if single := _only_single(body):
            condition = self._beside(single, flags, after=direction > 0, wanted=wanted)
            return self._add(_Node(ways=[then], condition=condition))
        after = self._unsure(then)
        if direction < 0:  # of fixed width, so a fixed number of steps
            return after
        return self._add(_Node(ways=[self.sequence(body, DEAD, flags), after]))

    def _beside(self, single: tuple[str, Any], flags: int, *, after: bool, wanted: bool) -> _Condition:
        spans = self._spans(*single, flags)

        def make(classes: _Classes) -> tuple[np.ndarray, np.ndarray]:
            held = classes.flags(spans, outside=False)
            held = held if wanted else ~held
            grid = np.broadcast_to(held if after else held[:, None], (len(held), len(held)))
            return grid, grid

        return _Condition(make)

    def _place(self, place: str, flags: int) -> _Condition:
        lines = bool(flags & re.MULTILINE)
        line_feed = self._spans("LITERAL", 10, flags)
        word = self._spans("IN", [(_parser.CATEGORY, _parser.CATEGORY_WORD)], flags)

        def make(classes: _Classes) -> tuple[np.ndarray, np.ndarray]:
            edge = np.zeros(len(classes.samples) + 1, dtype=np.bool_)
            edge[-1] = True
            at_line = classes.flags(line_feed, outside=True)
            in_word = classes.flags(word, outside=False)
            size = (len(edge), len(edge))
            if place in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
                held = at_line if lines and place == "AT_BEGINNING" else edge
                may = must = np.broadcast_to(held[:, None], size)
            elif place in ("AT_END", "AT_END_STRING"):
                may = np.broadcast_to(edge if place == "AT_END_STRING" else at_line, size)
                must = may if lines or place == "AT_END_STRING" else np.broadcast_to(edge, size)
            elif place == "AT_BOUNDARY":
                may = must = in_word[:, None] != in_word[None, :]
            else:
                raise UnprovableError(f"{place} is not understood")
            return may, must

        return _Condition(make)

    def _unsure(self, then: int) -> int:
        def make(classes: _Classes) -> tuple[np.ndarray, np.ndarray]:
            grid = np.ones((len(classes.samples) + 1,) * 2, dtype=np.bool_)
            return grid, ~grid

        return self._add(_Node(ways=[then], condition=_Condition(make)))

    def _spans(self, name: str, argument: Any, flags: int) -> Spans:
        spans = _find_spans(name, argument, flags, is_bytes=self._is_bytes)
        self._sets[spans] = None
        return spans

    def _add(self, node: _Node) -> int:
        if len(self.nodes) >= MAX_NODES:
            raise UnprovableError(f"more than {MAX_NODES} parts")
        self.nodes.append(node)
        return len(self.nodes) - 1


def _find_spans(name: str, argument: Any, flags: int, *, is_bytes: bool) -> Spans:
    """The characters that one part takes, as the matcher itself finds them."""
    key = name, repr(argument), flags, is_bytes
    if key not in _FOUND:
        state = _parser.State()
        state.flags = flags
        one = _parser.SubPattern(state, [(getattr(_parser, name), argument)])
        run = _parser.SubPattern(state, [(_parser.MAX_REPEAT, (1, _parser.MAXREPEAT, one))])
        found = _compiler.compile(run, flags).finditer(_BYTES if is_bytes else _CHARS)
        _FOUND[key] = tuple(match.span() for match in found)
    return _FOUND[key]


def _items(parsed: Any) -> Iterator[tuple[str, Any]]:
    return ((str(operation), argument) for operation, argument in parsed)


def _inner(name: str, argument: Any, flags: int) -> Iterator[tuple[Any, int]]:
    """The patterns inside a part, each with its flags."""
    if name in _LOOPS:
        yield argument[2], flags
    elif name == "BRANCH":
        yield from ((way, flags) for way in argument[1])
    elif name == "SUBPATTERN":
        yield argument[3], _compiler._combine_flags(flags, argument[1], argument[2])
    elif name in ("ASSERT", "ASSERT_NOT"):
        yield argument[1], flags
    elif name == "ATOMIC_GROUP":
        yield argument, flags


def _only_single(body: Any) -> tuple[str, Any] | None:
    """The one part of a body that takes exactly one character, if it is that."""
    items = list(_items(body))
    return items[0] if len(items) == 1 and items[0][0] in _SINGLE else None
