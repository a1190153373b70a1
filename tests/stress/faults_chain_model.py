"""What a chain should have done, worked out from the log of what its parts answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from faults_chain_cases import ChainCase
from faults_chain_kinds import Answered
from faults_inventory import STOP_WORDS
from faults_kinds import FAILED, Held
from faults_model import Cursor, Model, OutOfStepError
from faults_world import Entry

ENDED = ("cancelled", "deadline_exceeded")
RESOLVING = ("sufficient", "no_next_query")
COUNTED = ("calls", "dense_calls", "rows", "reads", "tokens")


@dataclass
class HopModel:
    """One hop as it should stand in the trail."""

    query: str
    failed: bool
    units: list[str]
    new: int
    answer: Answered | None = None


@dataclass
class ChainModel:
    """Follows a log through one chain.

    Attributes:
        texts: text of each unit found, by id; ``survivors`` those that the last recheck left.
        leaves_open: whether the latest plan says that something stays open.
        stop: the stop reason, once there is one.
    """

    case: ChainCase
    cursor: Cursor
    trail: list[HopModel] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    ever_found: set[str] = field(default_factory=set)
    survivors: set[str] = field(default_factory=set)
    usage: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    leaves_open: bool = False
    forgotten: bool = False
    stop: str = ""
    seen_under: str | None = None
    current_view: str | None = None
    clock: float = 0.0

    def run(self) -> ChainModel:
        """Follow the whole chain."""
        query = self.plan()
        while not self.stop:
            self.hop(query or "")
            if not self.stop:
                self.check_sufficiency()
            if not self.stop:
                self.check_limits()
            if not self.stop:
                query = self.plan()
        self.finish()
        return self

    def take(self, port: str) -> Entry:
        """The next call, and the time at which it came back."""
        entry = self.cursor.take(port)
        self.clock = entry.clock
        return entry

    def enter(self) -> bool:
        """Begin a node; whether it goes on, with what was found still to be shown."""
        if not self.case.guarded:
            return True
        view = self.take("resolver").truth
        self.current_view = view
        if view != FAILED and self.seen_under in {None, view}:
            return True
        self.forgotten, self.stop = True, "retrieval_failed"
        self.trail, self.texts, self.usage = [], {}, dict.fromkeys(COUNTED, 0)
        return False

    def poll(self) -> str:
        """The stop reason that the caller or the clock gives; blank for none."""
        if self.take("poll").truth:
            return "cancelled"
        deadline = self.case.limits.deadline_ms
        return "deadline_exceeded" if deadline is not None and self.clock * 1000 >= deadline else ""

    def plan(self) -> str | None:
        """Ask for the next query, unless something forbids it."""
        if not self.enter():
            return None
        self.stop = self.poll() or self.spent()
        if self.stop:
            return None
        said = self.take("plan").truth
        failed = said == FAILED
        query = None if failed else said.query
        self.leaves_open = not failed and said.leaves_open
        self.usage["tokens"] += 0 if failed else said.tokens
        self.stop = (
            self.poll()
            or ("retrieval_failed" if failed else "")
            or ("repeated_query" if query is not None and self.repeats(query) else "")
            or self.tokens_spent()
            or ("no_next_query" if query is None else "")
        )
        return query

    def repeats(self, query: str) -> bool:
        """Whether a query has the words of an earlier one."""
        return any(_words(query) == _words(hop.query) for hop in self.trail)

    def tokens_spent(self) -> str:
        """The stop reason where no token is left of those that were stated."""
        most, spent = self.case.limits.max_tokens, self.usage["tokens"]
        return "token_budget_exhausted" if most is not None and 0 < spent >= most else ""

    def spent(self) -> str:
        """The stop reason where another hop may not be planned."""
        limits = self.case.limits
        if len(self.trail) >= limits.max_hops:
            return "depth_cap"
        calls = "resource_budget_exhausted" if self.usage["calls"] >= limits.max_calls else ""
        return self.tokens_spent() or calls

    def hop(self, query: str) -> None:
        """Search, read, and see whether anything new was found."""
        if not self.enter():
            self.enter()
            return
        self.seen_under = self.current_view if self.case.guarded else None
        found, ended = self.bounded(query) if self.case.over == "bounded" else self.function()
        units = {} if found is None else found
        new = len(units.keys() - self.texts.keys())
        hop = HopModel(query, found is None or ended == "failed", list(units), new)
        if units:
            said = self.take("read").truth
            hop.answer = None if said == FAILED else said
            self.usage["tokens"] += 0 if hop.answer is None else hop.answer.tokens
        self.trail.append(hop)
        self.ever_found |= units.keys()
        self.texts = units | self.texts
        stopped = self.poll()
        if not stopped or ended == "cancelled":
            stopped = ended if ended in ENDED else stopped
        if self.enter():
            self.stop = stopped or self.found_nothing(hop)

    def found_nothing(self, hop: HopModel) -> str:
        """The stop reason of a hop that failed or found nothing new."""
        if hop.failed:
            return "retrieval_failed"
        share = self.case.rules.min_new_share * len(hop.units)
        is_new = hop.new >= 1 and hop.new >= share
        return "no_new_evidence" if self.case.rules.novelty and not is_new else ""

    def function(self) -> tuple[dict[str, str] | None, str]:
        """A hop's search by a function of the query."""
        rows = self.take("hop").truth
        self.usage["calls"] += 1
        if rows == FAILED:
            return None, "failed"
        found: dict[str, str] = {}
        for row in rows:
            if row.held.text.strip():
                found.setdefault(row.unit_id, row.held.text)
        self.usage["rows"] += len(rows)
        self.usage["reads"] += len(found)
        return found, ""

    def bounded(self, query: str) -> tuple[dict[str, str] | None, str]:
        """A hop's search by the bounded graph, within what the chain has left; how it ended."""
        case, limits = self.case, self.case.limits
        left = {"max_calls": min(case.budget.max_calls, limits.max_calls - self.usage["calls"])}
        deadlines = [case.budget.deadline_ms] if case.budget.deadline_ms is not None else []
        if limits.deadline_ms is not None:
            deadlines.append(max(0, int(limits.deadline_ms - self.clock * 1000)))
        budget = case.budget.model_copy(update={**left, **({"deadline_ms": min(deadlines)} if deadlines else {})})
        model = Model(case, self.cursor, budget, query, started=self.clock).run()
        self.clock = self.cursor.log[self.cursor.at - 1].clock
        self.ever_found |= model.ever_read
        spent = (model.calls, model.dense_calls, model.rows, len(model.read))
        for name, count in zip(("calls", "dense_calls", "rows", "reads"), spent, strict=True):
            self.usage[name] += count
        ended = "failed" if model.reason == "retrieval_failed" else model.reason
        return {unit: model.read[unit] for unit in model.read if unit in model.survivors}, ended

    def check_sufficiency(self) -> None:
        """Ask the test, where there is one."""
        if not self.enter() or self.case.passes_at is None:
            return
        said = self.take("sufficient").truth
        passed, tokens = (False, 0) if said == FAILED else said
        self.usage["tokens"] += tokens
        self.stop = self.poll() or ("sufficient" if passed else "")

    def check_limits(self) -> None:
        """Look at what is left."""
        if self.enter():
            self.stop = self.spent()

    def finish(self) -> None:
        """Read every unit once more, and ask the view once more."""
        self.enter()
        if not self.texts:
            return
        unchecked, current = self.read_again()
        if not self.case.guarded:
            allowed: Any = set(self.texts)
        elif self.case.view == "filter":
            allowed = {unit for unit, held in current.items() if held.level == "open"}
        else:
            allowed = self.take("allowed").truth
        self.survivors = set() if allowed == FAILED else (current.keys() | unchecked) & allowed

    def read_again(self) -> tuple[set[str], dict[str, Held]]:
        """Units that nobody vouches for, and the current documents of those whose text is still the same."""
        if not (self.case.apart or (self.case.fetches and self.case.over == "bounded")):
            return set(self.texts), {}
        current: dict[str, Held] = {}
        asked: list[str] = []
        while self.cursor.peek() == "fetch":
            entry = self.take("fetch")
            asked += entry.asked[0]
            known = {} if entry.truth == FAILED else entry.truth
            same = {unit: known[unit] for unit in entry.asked[0] if unit in known}
            current |= {unit: held for unit, held in same.items() if held.text == self.texts.get(unit)}
        if sorted(asked) != sorted(self.texts):
            raise OutOfStepError(f"{sorted(asked)} were read again, not {sorted(self.texts)}")
        return set(), current

    @property
    def lost(self) -> list[int]:
        """Positions of the hops whose sub-answer may have come from a unit that was dropped."""
        dropped = self.texts.keys() - self.survivors
        answers = [(at, hop) for at, hop in enumerate(self.trail) if hop.answer is not None]
        return [at for at, hop in answers if hop.answer and set(_origin(hop)) & dropped]

    @property
    def resolved(self) -> bool:
        """Whether the chain ended by itself and nothing stayed open."""
        if self.stop not in RESOLVING or not self.trail or self.lost or self.leaves_open:
            return False
        return self.stop == "sufficient" or all(hop.answer is not None for hop in self.trail)


def _origin(hop: HopModel) -> Sequence[str]:
    named = [] if hop.answer is None else [unit for unit in hop.answer.unit_ids if unit in hop.units]
    return named or hop.units


def _words(query: str) -> frozenset[str]:
    return frozenset(query.lower().strip(" ?").split()) - STOP_WORDS


def follow_chain(case: ChainCase, log: Sequence[Entry]) -> ChainModel:
    """Follow the log of a whole chain.

    Raises:
        OutOfStepError: a call was made that should not have been, or one that should have been was not.
    """
    model = ChainModel(case, Cursor(log)).run()
    if model.cursor.peek():
        raise OutOfStepError(f"call {model.cursor.at}: {model.cursor.peek()} made after the end")
    return model
