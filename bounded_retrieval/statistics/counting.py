"""Runs to figures: how many ended how, what they cost, and how many each rule counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from bounded_retrieval.statistics.reading import Kind, Run
from bounded_retrieval.statistics.rules import LEAST_RUNS, RULES, Rule

Report = dict[str, Any]

GOOD_END: dict[Kind, str] = {"bounded": "provisional", "chain": "resolved"}
"""How a run that ended well is called, by kind."""

AMOUNTS: dict[Kind, dict[str, str]] = {
    "bounded": {"calls": "calls", "dense_calls": "dense calls", "hops": "searches"},
    "chain": {"calls": "calls", "dense_calls": "dense calls", "hops": "hops", "tokens": "tokens"},
}
"""What is added up of the runs of a kind: the field of `Run`, and its name for a person."""


class RunStatistics:
    """Counts of runs, kept apart for bounded runs and for chains; no run itself is kept."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._tallies = {kind: _Tally(kind) for kind in GOOD_END}
        for run in runs:
            self.add(run)

    def add(self, run: Run) -> None:
        """Count one more run."""
        self._tallies[run.kind].add(run)

    def report(self) -> Report:
        """Everything counted and what is suggested, JSON-native; the order of the runs makes no difference."""
        kinds: Report = {kind: tally.report() for kind, tally in self._tallies.items()}
        return {**kinds, "least_runs": LEAST_RUNS, "rules": [self._tallies[rule.kind].judge(rule) for rule in RULES]}


class _Tally:
    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._runs = 0
        self._ended_well = 0
        self._rules: Counter[str] = Counter()
        self._stop_reasons: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()
        self._amounts: dict[str, Counter[int]] = {name: Counter() for name in AMOUNTS[kind]}
        self._new_units: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def add(self, run: Run) -> None:
        self._runs += 1
        self._ended_well += run.ended_well
        self._stop_reasons[run.stop_reason.value] += 1
        self._notes.update(run.notes)
        self._rules.update(rule.name for rule in RULES if rule.kind == run.kind and rule.applies_to(run))
        for name, counter in self._amounts.items():
            counter[getattr(run, name)] += 1
        for number, units in enumerate(run.new_units, 1):
            self._new_units[number][units] += 1

    def report(self) -> Report:
        return {
            "runs": self._runs,
            GOOD_END[self._kind]: self._of_runs(self._ended_well),
            "stop_reasons": self._by_count(self._stop_reasons),
            **{name: _spread(counter) for name, counter in self._amounts.items()},
            "new_units": [
                {"hop": number, "runs": counter.total(), **_spread(counter), "none": counter[0]}
                for number, counter in self._new_units.items()
            ],
            "notes": self._by_count(self._notes),
        }

    def judge(self, rule: Rule) -> Report:
        count = self._rules[rule.name]
        return {
            "kind": rule.kind,
            "rule": rule.name,
            "counts": rule.counts,
            "count": count,
            "runs": self._runs,
            "share": self._of_runs(count)["share"],
            "threshold": rule.percent / 100,
            "suggested": rule.fires(count, self._runs),
            "suggestion": rule.suggestion,
        }

    def _by_count(self, counter: Counter[str]) -> Report:
        ordered = sorted(counter.items(), key=lambda pair: (-pair[1], pair[0]))
        return {name: self._of_runs(count) for name, count in ordered}

    def _of_runs(self, count: int) -> Report:
        return {"count": count, "share": round(count / self._runs, 4) if self._runs else None}


def _spread(counter: Counter[int]) -> Report:
    return {
        "total": sum(value * count for value, count in counter.items()),
        "median": _percentile(counter, 50),
        "p90": _percentile(counter, 90),
        "most": max(counter, default=None),
    }


def _percentile(counter: Counter[int], percent: int) -> int | None:
    """The smallest value that at least so many percent of the values do not exceed: always one that occurred."""
    left = -(-percent * counter.total() // 100)
    for value in sorted(counter):
        left -= counter[value]
        if left <= 0:
            return value
    return None
