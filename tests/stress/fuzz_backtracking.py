"""How much work a regular expression can make for each character of any text: a proof, or a text that shows more.

Python's matcher tries one way after another and remembers nothing. Its work at one position of the text is the number
of ways (runs) in which the pattern can have got there, from wherever an attempt began. Two bounds prove it linear:

- ``runs``: in how many ways one attempt can stand at one position. All texts are read at once, class of characters by
  class of characters, each time with the number of runs that end in each place of the pattern. If only finitely many
  such counts ever arise, the largest is the bound.
- ``waiting``: for methods that try every position of a text, how many attempts can reach one position in vain, that is
  after the end of what they match, if anything. The next attempt begins there, so what they match is read once. An
  attempt is followed as the ordered list of the places it has got to, first choice first; an attempt that is sure to
  match has not failed, and choices behind a sure match are never tried.

The work for each character is then at most ``runs * (1 + waiting)`` steps, each of a fixed size. Where a count grows
beyond `MAX_COUNT`, the text that makes it grow is the witness.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fuzz_automaton import ACCEPT, START, Automaton, automaton_of

MAX_COUNT = 100
"""Most runs, and most waiting attempts, that still count as proved."""

MAX_STATES = 30_000
"""Most different counts that are looked at."""

ANCHORED = frozenset({"match", "fullmatch"})
"""Methods that try one position only."""

# A class of characters and, by place of the pattern in ascending order, the number of runs that end there.
_Counts = tuple[int, tuple[tuple[int, int], ...]]
# Places in order of preference, each with whether it is sure that the matcher can be there.
_Attempt = tuple[tuple[int, bool], ...]
# A class of characters and how many attempts stand at each list of places.
_Waiting = tuple[int, tuple[tuple[_Attempt, int], ...]]


@dataclass(frozen=True)
class Proof:
    """The most runs of one attempt at one position, and the most attempts that can reach one in vain."""

    runs: int
    waiting: int

    @property
    def work(self) -> int:
        """Most steps for each character."""
        return self.runs * (1 + self.waiting)


class SuperLinearError(Exception):
    """The work for a character has no bound that could be proved; says why, with the text that showed it."""


def prove(pattern: re.Pattern[Any], *, scanning: bool) -> Proof:
    """Bound the work of a pattern.

    Args:
        pattern: what is matched.
        scanning: whether every position of a text may be tried, as by ``search`` and ``sub``.

    Raises:
        SuperLinearError: the counts grow beyond what counts as proved.
        UnprovableError: the pattern holds what is not understood.
    """
    automaton = automaton_of(pattern)
    before = range(automaton.outside + 1) if scanning else [automaton.outside]
    starts = [(each, ((START, 1),)) for each in before]
    runs = _largest(starts, lambda state: _more_runs(automaton, state), automaton, "runs of one attempt")
    if not scanning:
        return Proof(runs, 0)
    left_over = _left_over(automaton)
    begin: _Waiting = (automaton.outside, ())
    waiting = _largest([begin], lambda state: _more_waiting(automaton, left_over, state), automaton, "attempts in vain")
    return Proof(runs, waiting)


def _largest(
    starts: Iterable[tuple[int, Any]],
    onward: Callable[[Any], Iterator[tuple[int, Any]]],
    automaton: Automaton,
    counted: str,
) -> int:
    """The largest sum of counts in any state that can be reached."""
    came_from: dict[Any, Any] = dict.fromkeys(starts)
    waiting, largest = list(came_from), 0
    for state in waiting:
        for following in onward(state):
            if following in came_from:
                continue
            came_from[following] = state
            waiting.append(following)
            largest = max(largest, sum(count for _, count in following[1]))
            if largest > MAX_COUNT:
                raise SuperLinearError(f"{largest} {counted} after {_witness(automaton, came_from, following)!r}")
            if len(came_from) > MAX_STATES:
                raise SuperLinearError(f"more than {MAX_STATES} different counts of {counted}")
    return largest


def _witness(automaton: Automaton, came_from: dict[Any, Any], state: Any) -> str:
    text = ""
    while came_from[state] is not None:
        text, state = automaton.samples[state[0]] + text, came_from[state]
    return text


def _more_runs(automaton: Automaton, state: _Counts) -> Iterator[_Counts]:
    """What one more character of each class makes of the counts of runs."""
    before, counts = state
    for after in range(automaton.outside):
        found: dict[int, int] = {}
        for place, count in counts:
            for edge in automaton.edges[place]:
                if edge.may[before, after] and after in automaton.takes[edge.target]:
                    found[edge.target] = found.get(edge.target, 0) + count
        if found:
            yield after, tuple(sorted(found.items()))


def _more_waiting(automaton: Automaton, left_over: _LeftOver, state: _Waiting) -> Iterator[_Waiting]:
    """What one more character of each class makes of the attempts that are in vain."""
    before, counts = state
    for after in range(automaton.outside):
        found: dict[_Attempt, int] = {}
        for attempt, count in [*counts, (((START, True),), 1)]:
            step = _step(automaton, attempt, before, after)
            if step.places and not step.matched:
                found[step.places] = found.get(step.places, 0) + count
        for attempt in left_over.get((before, after), ()):
            found[attempt] = found.get(attempt, 0) + 1
        yield after, tuple(sorted(found.items()))


@dataclass(frozen=True)
class _Step:
    """An attempt after one more character.

    Attributes:
        places: where it can be now.
        matched: whether it was sure to match before that character.
        ends: for each match that there may have been, the places that were preferred to it.
    """

    places: _Attempt
    matched: bool
    ends: tuple[_Attempt, ...]


def _step(automaton: Automaton, attempt: _Attempt, before: int, after: int) -> _Step:
    places: dict[tuple[int, bool], None] = {}
    ends: list[_Attempt] = []
    for place, sure in attempt:
        for edge in automaton.edges[place]:
            if not edge.may[before, after]:
                continue
            still = sure and bool(edge.must[before, after])
            if edge.target == ACCEPT:
                ends.append(tuple(places))
                if still:
                    return _Step(tuple(places), True, tuple(ends))
            elif after in automaton.takes[edge.target]:
                places[edge.target, still] = None
    return _Step(tuple(places), False, tuple(ends))


_LeftOver = dict[tuple[int, int], set[_Attempt]]


def _left_over(automaton: Automaton) -> _LeftOver:
    """By the last character of a match and the one after it: where preferred choices may still be going on."""
    found: _LeftOver = {}
    known: dict[tuple[int, _Attempt], None] = {
        (before, ((START, True),)): None for before in range(automaton.outside + 1)
    }
    waiting = list(known)
    for before, attempt in waiting:
        for after in range(automaton.outside):
            step = _step(automaton, attempt, before, after)
            ends = {end for end in step.ends if end}
            found.setdefault((before, after), set()).update(ends)
            for places in {step.places, *ends}:
                if places and (after, places) not in known:
                    known[after, places] = None
                    waiting.append((after, places))
        if len(known) > MAX_STATES:
            raise SuperLinearError(f"more than {MAX_STATES} different lists of places")
    return found
