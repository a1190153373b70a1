"""Compare what a killed and resumed run says of itself with the log of what was really done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, combinations
from typing import Any

import crash_runs

SHAPING = ("shape", "policy", "max_calls", "query")
"""The fields of a case that its output depends on."""


@dataclass
class Seen:
    """What the log says of all processes of a case.

    Attributes:
        starts: how often each search was really begun.
        cut: the searches inside which the process was killed.
        lost: those and the ones whose answer may have been lost: killed after the charge could have been saved and
            before the next node could start.
        kills, inside: kills, and how many of them were inside a search.
    """

    starts: Counter[str] = field(default_factory=Counter)
    cut: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    kills: int = 0
    inside: int = 0

    @classmethod
    def of(cls, events: Iterable[Mapping[str, Any]]) -> Seen:
        """Read a log."""
        seen = cls()
        pending = begun = None
        for event in events:
            kind, key = event["event"], event.get("key")
            if kind == "node":
                pending, begun = key, None
            elif kind == "start":
                seen.starts[key] += 1
                pending = begun = key
            elif kind == "end":
                begun = None
            else:
                if kind == "killed":
                    seen._kill(pending, begun)
                pending = begun = None
        return seen

    def _kill(self, pending: str | None, begun: str | None) -> None:
        self.kills += 1
        self.lost |= {key for key in (pending, begun) if key is not None}
        if begun is not None:
            self.inside += 1
            self.cut.add(begun)


@cache
def _expected(shaping: str, fails: frozenset[str]) -> tuple[str, list[str]]:
    output, calls = crash_runs.reference(json.loads(shaping), fails)
    return json.dumps(output, sort_keys=True), calls


def expected(case: Mapping[str, Any], fails: frozenset[str]) -> tuple[str, list[str]]:
    """The output, as JSON, of a run of the case in which these searches fail, and the searches that it makes."""
    return _expected(json.dumps({name: case[name] for name in SHAPING}), fails)


def violations(case: Mapping[str, Any], seen: Seen, output: Mapping[str, Any]) -> list[str]:
    """What a run broke: ``lost charge``, ``extra call`` and ``wrong packet``, each once at most."""
    found = []
    usage = (output.get("chain") or output["packet"])["usage"]
    made = seen.starts.total()
    if usage["calls"] < made:
        found.append("lost charge")
    if made > case["max_calls"] or usage["calls"] > case["max_calls"] or max(seen.starts.values(), default=0) > 1:
        found.append("extra call")
    if failed(case, seen, output) is None:
        found.append("wrong packet")
    return found


def failed(case: Mapping[str, Any], seen: Seen, output: Mapping[str, Any]) -> frozenset[str] | None:
    """The searches that count as failed in the output; none where no run in which some of them fail ends so."""
    text = json.dumps(output, sort_keys=True)
    return next((fails for fails in _possible(seen) if text == expected(case, fails)[0]), None)


def _possible(seen: Seen) -> Iterator[frozenset[str]]:
    """The sets of searches that may count as failed: those cut off, with any of those whose answer may be lost."""
    unsure = sorted(seen.lost - seen.cut)
    for more in chain.from_iterable(combinations(unsure, size) for size in range(len(unsure) + 1)):
        yield frozenset(seen.cut) | frozenset(more)
