"""What a run of the bounded graph should have done, worked out from the log of what its parts answered.

Written from the tables of the documentation (the order of the stop reasons, the limits, the view, the recheck); nothing
of the package decides here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from faults_cases import Case
from faults_inventory import holds_the_query
from faults_kinds import FAILED, Held, Row
from faults_world import Entry

from bounded_retrieval.contracts.budget import Budget

STEPS_OF_TWO_SEARCHES = 7
REFERENCE_ROWS = 3
REFERENCE_THRESHOLD = 0.8
ACCESS_LOST = ("failed", "changed")


class OutOfStepError(Exception):
    """The run called something that the documentation does not have it call, or left such a call out."""


@dataclass
class Cursor:
    """Reads a log from its beginning."""

    log: Sequence[Entry]
    at: int = 0

    def peek(self) -> str:
        """The next call's port; blank at the end."""
        return self.log[self.at].port if self.at < len(self.log) else ""

    def take(self, port: str) -> Entry:
        """The next call, which is one of this port."""
        if self.peek() != port:
            raise OutOfStepError(f"call {self.at}: {port} expected, {self.peek() or 'nothing'} made")
        self.at += 1
        return self.log[self.at - 1]


@dataclass
class Attempt:
    """One search as it should be recorded."""

    outcome: str
    stop: str | None = None
    new: int = 0


@dataclass
class Model:
    """Follows a log through one run and counts what should have been counted.

    Attributes:
        read: text of each unit read, by id; empty once the run had to forget what it saw.
        ever_read: every unit read, whatever became of it.
        survivors: units that the recheck left.
        ranked: each channel's units with their scores.
        twins: ids of rows that stand for a unit read under another id.
        scored: units whose score was looked up.
    """

    case: Case
    cursor: Cursor
    limits: Budget
    query: str
    started: float = 0.0
    steps_suffice: bool = True
    read: dict[str, str] = field(default_factory=dict)
    ever_read: set[str] = field(default_factory=set)
    source: dict[str, str] = field(default_factory=dict)
    survivors: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)
    ranked: dict[str, dict[str, float | None]] = field(default_factory=dict)
    twins: list[str] = field(default_factory=list)
    scored: list[str] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    calls: int = 0
    dense_calls: int = 0
    iterations: int = 0
    rows: int = 0
    forgotten: bool = False
    reason: str = ""
    seen_under: str | None = None
    current_view: str | None = None

    @property
    def fixed(self) -> bool:
        return self.case.policy.startswith("fixed")

    def run(self) -> Model:
        """Follow the whole run."""
        order = {"fixed_dense": ("dense",), "fixed_lexical": ("lexical",)}.get(self.case.policy, ("lexical", "dense"))
        for channel in order:
            self.search(channel)
            passes = self.assess()
            self.reason = self.decide(passes=passes)
            if self.reason:
                break
        self.recheck()
        return self

    def access(self) -> str:
        """Whether the view in force lets the run go on: open, failed, or changed since something was seen."""
        if not self.case.guarded:
            return "open"
        view = self.cursor.take("resolver").truth
        if view == FAILED:
            return "failed"
        if self.seen_under is not None and view != self.seen_under:
            return "changed"
        self.current_view = view
        return "open"

    def forget(self) -> None:
        """Nothing was seen and nothing spent."""
        self.forgotten = True
        self.read, self.source, self.returned = {}, {}, set()
        self.calls = self.dense_calls = self.iterations = self.rows = 0
        self.attempts = [Attempt("not_started", "view_changed")]

    def poll(self) -> str | None:
        """What the caller, and then the clock, say."""
        entry = self.cursor.take("poll")
        if entry.truth:
            return "cancelled"
        elapsed = (entry.clock - self.started) * 1000
        deadline = self.limits.deadline_ms
        return "deadline" if deadline is not None and elapsed >= deadline else None

    def search(self, channel: str) -> None:
        """One search: looked at from outside before and after, charged before it is made."""
        access = self.access()
        if access in ACCESS_LOST and self.seen_under is not None:
            self.forget()
            return
        stop = self.poll()
        if stop or self.refused(channel):
            self.attempts.append(Attempt("not_started", stop))
            return
        self.calls += 1
        self.dense_calls += channel == "dense"
        asked = self.share(channel)
        new = None
        if access == "open":
            self.seen_under = self.current_view if self.case.guarded else None
            new = self.answered(channel, asked)
        self.attempts.append(Attempt("failed" if new is None else "answered", self.poll(), new or 0))

    def share(self, channel: str) -> int:
        """How many rows a search may ask for."""
        first = REFERENCE_ROWS if self.case.policy == "reference" else self.case.first_hop_rows
        most = self.limits.max_rows
        share = most if self.fixed else first if channel == "lexical" else most - first
        return max(0, min(share, most - self.rows))

    def refused(self, channel: str) -> bool:
        """Whether a search may not start."""
        spent = (
            self.calls >= self.limits.max_calls,
            self.iterations >= self.limits.max_iterations,
            len(self.read) >= self.limits.max_reads,
            self.share(channel) < 1,
        )
        return channel not in self.case.channels or any(spent)

    def answered(self, channel: str, asked: int) -> int | None:
        """Make the call; how many new units it returned, or none where it failed."""
        entry = self.cursor.take(f"{channel}.search")
        most = entry.asked[1]
        if most < asked or (most != asked and not self.case.guarded):
            raise OutOfStepError(f"{channel} was asked for {most} rows, not {asked}")
        left_out = list(entry.asked[2]) if len(entry.asked) > len(("query", "k", "filter")) else []
        if left_out != self.there_already(channel):
            raise OutOfStepError(f"{channel} left out {left_out}, not {self.there_already(channel)}")
        rows = entry.truth
        if rows == FAILED:
            return None
        rows = rows[:most]
        if self.case.guarded:
            rows = self.eligible([row for row in rows if row is not None])
            if rows is None:
                return None
        kept = rows[:asked]
        self.rows += len(kept)
        names = self.take_in(channel, [row for row in kept if row is not None])
        new = len([name for name in names if name not in self.returned])
        self.returned.update(names)
        return new

    def there_already(self, channel: str) -> list[str]:
        """What a dense search that follows a lexical one leaves out, where both channels' scores are added up."""
        case = self.case
        adds_up = case.scores and case.weighs and len(case.channels) > 1 and case.policy != "reference"
        if channel != "dense" or not case.excludes or not adds_up or not self.ranked.get("lexical"):
            return []
        return list(dict.fromkeys([*self.ranked["lexical"], *self.twins]))

    def eligible(self, rows: list[Row]) -> list[Row] | None:
        """The rows of units that the caller may see; none where the view could not say."""
        if self.case.apart:
            rows = [row._replace(held=None) for row in rows]
        distinct = list(dict.fromkeys(row.unit_id for row in rows))
        documents: dict[str, Held] = {}
        for row in rows:
            if row.held is not None:
                documents.setdefault(row.unit_id, row.held)
        if self.case.view == "filter":
            documents |= self.fetch([unit for unit in distinct if unit not in documents])
            allowed = {unit for unit, held in documents.items() if held.level == "open"}
        else:
            allowed = self.cursor.take("allowed").truth
            if allowed == FAILED:
                return None
        return [row for row in rows if row.unit_id in allowed]

    def fetch(self, units: list[str]) -> dict[str, Held]:
        """Read units' documents; one by one in a guarded run in which they could not be read together."""
        if not units or not (self.case.apart or self.case.fetches):
            return {}
        found = self.cursor.take("fetch").truth
        if found != FAILED:
            return dict(found)
        single = [self.fetch([unit]) for unit in units] if self.case.guarded and len(units) > 1 else []
        return {unit: held for each in single for unit, held in each.items()}

    def take_in(self, channel: str, rows: list[Row]) -> list[str]:
        """Read the rows' units as far as reads are left; the distinct units that they stand for."""
        distinct = list(dict.fromkeys(row.unit_id for row in rows if row.unit_id not in self.read))
        bring = {row.unit_id for row in rows if row.held is not None}
        left = self.limits.max_reads - len(self.read)
        fetched = self.fetch([unit for unit in distinct[:left] if unit not in bring])
        ranked = self.ranked.setdefault(channel, {})
        names = [self.identify(channel, row, fetched) for row in rows]
        for name, row in zip(names, rows, strict=True):
            ranked.setdefault(name, row.score)
        return list(dict.fromkeys(names))

    def identify(self, channel: str, row: Row, fetched: dict[str, Held]) -> str:
        """The unit that a row stands for: the one whose text was read before, where it is the same."""
        held = row.held if row.held is not None else fetched.get(row.unit_id)
        if row.unit_id in self.read or held is None or not held.readable or not (held.text or "").strip():
            return row.unit_id
        twin = next((unit for unit, text in self.read.items() if text == held.text), None)
        if twin is not None:
            self.twins.append(row.unit_id)
            return twin
        if len(self.read) < self.limits.max_reads:
            self.read[row.unit_id] = held.text or ""
            self.ever_read.add(row.unit_id)
            self.source[row.unit_id] = channel
        return row.unit_id

    def assess(self) -> bool:
        """Whether the assessor's test was passed."""
        if self.access() in ACCESS_LOST:
            self.forget()
        self.iterations += self.attempts[-1].outcome != "not_started"
        self.weigh()
        if self.case.policy == "reference":
            fitting = [text for text in self.read.values() if len(text) <= self.limits.max_chars]
            return holds_the_query(self.query, fitting, REFERENCE_THRESHOLD)
        return self.cursor.take("assess").truth is True

    def decide(self, *, passes: bool) -> str:
        """The stop reason by the declared order; blank where the run goes on."""
        last, outcomes = self.attempts[-1], {attempt.outcome for attempt in self.attempts}
        adaptive = self.case.policy in {"adaptive", "reference"}
        rules = (
            ("cancelled", last.stop == "cancelled"),
            ("deadline_exceeded", last.stop == "deadline"),
            ("retrieval_failed", last.stop == "view_changed"),
            ("no_new_evidence", len(self.attempts) > 1 and last.outcome == "answered" and last.new == 0),
            ("proxy_sufficient", last.outcome == "answered" and adaptive and passes),
            ("policy_complete", last.outcome == "answered" and self.fixed),
            ("", self.may_go_on()),
            ("retrieval_failed", "failed" in outcomes and "answered" not in outcomes),
        )
        return next((reason for reason, holds in rules if holds), "resource_budget_exhausted")

    def may_go_on(self) -> bool:
        """Whether a dense search remains."""
        return not (self.fixed or len(self.attempts) > 1 or self.refused("dense") or not self.steps_suffice)

    def recheck(self) -> None:
        """Read every unit once more, and ask the view once more."""
        if self.access() in ACCESS_LOST:
            self.forget()
        if self.forgotten:
            self.reason = "retrieval_failed"
        if not self.read:
            return
        unchecked, current = self.read_again()
        if not self.case.guarded:
            allowed: Any = set(self.read)
        elif self.case.view == "filter":
            allowed = {unit for unit, held in current.items() if held.level == "open"}
        else:
            allowed = self.cursor.take("allowed").truth
        self.survivors = set() if allowed == FAILED else (current.keys() | unchecked) & allowed
        self.score()

    def score(self) -> None:
        """Look up scores, where both channels found something, every row has a score, and both searchers score."""
        case = self.case
        if case.policy == "reference" or not (case.scores and case.weighs and len(case.channels) > 1):
            return
        ranked = {
            channel: {unit: score for unit, score in self.ranked.get(channel, {}).items() if unit in self.survivors}
            for channel in ("lexical", "dense")
        }
        scores = [score for found in ranked.values() for score in found.values()]
        if not all(ranked.values()) or None in scores:
            return
        for channel, found in ranked.items():
            units = [unit for other in ranked.values() for unit in other if unit not in found]
            if not units:
                continue
            if self.poll():
                return
            entry = self.cursor.take(f"{channel}.score")
            if entry.asked[1] != units:
                raise OutOfStepError(f"{channel} scored {entry.asked[1]}, not {units}")
            self.scored += units
            if entry.truth == FAILED:
                return
        self.weigh()

    def weigh(self) -> None:
        """Words may be weighed, once the lexical search has answered; nothing but an assessment follows from it."""
        if self.cursor.peek() == "lexical.weigh":
            self.cursor.take("lexical.weigh")

    def read_again(self) -> tuple[set[str], dict[str, Held]]:
        """Units that nobody vouches for, and the current documents of those whose text is still the same."""
        if not (self.case.apart or self.case.fetches):
            return set(self.read), {}
        groups = [list(self.read)]
        if not self.case.apart:
            sources = dict.fromkeys(self.source[unit] for unit in self.read)
            groups = [[unit for unit in self.read if self.source[unit] == source] for source in sources]
        current: dict[str, Held] = {}
        for units in groups:
            found = self.cursor.take("fetch").truth
            known = {} if found == FAILED else found
            current |= {unit: known[unit] for unit in units if unit in known and known[unit].text == self.read[unit]}
        return set(), current


def follow(case: Case, log: Sequence[Entry]) -> Model:
    """Follow the log of a whole run of the bounded graph.

    Raises:
        OutOfStepError: a call was made that should not have been, or one that should have been was not.
    """
    cursor = Cursor(log)
    steps_suffice = case.recursion_limit >= STEPS_OF_TWO_SEARCHES
    model = Model(case, cursor, case.budget, case.query, steps_suffice=steps_suffice).run()
    if cursor.peek():
        raise OutOfStepError(f"call {cursor.at}: {cursor.peek()} made after the end")
    return model
