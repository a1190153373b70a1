"""The parts of one run: honest ones behind a layer that shows the case's faults and logs every call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from faults_cases import GUARDED_PORTS, HANG_SECONDS, SLOW_SECONDS, Case, Fault
from faults_inventory import OPEN_FILTER, Backends, Listed, inventory
from faults_kinds import (
    ERRORS,
    ESCAPES,
    FAILED,
    SECRET,
    Shape,
    rows_shape,
    shape_allowed,
    shape_assessment,
    shape_rows,
    shape_scores,
    shape_units,
    shape_view,
    shape_weights,
    units_shape,
)
from langchain_core.documents import Document

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment
from bounded_retrieval.contracts.eligibility import EligibilityView
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.registry import assessor_named
from bounded_retrieval.testing import FixedClock

WAIT_MS = 60
"""Time limit of the view in runs in which it hangs for real."""

NO_WAIT_MS = 60_000
PATIENCE_S = 30.0
"""How long a hanging call waits before it gives up by itself; every run ends it long before."""

Shaper = Callable[[Fault, Any], Shape]


@dataclass
class Entry:
    """One call of a part: what it was asked, what its answer was worth, and the run's clock when it came back."""

    port: str
    asked: Any
    truth: Any = FAILED
    clock: float = 0.0


@dataclass
class World:
    """A case built, for one run only.

    Attributes:
        log: every call of every part, in order.
        shelf: the units as they are now.
        closed: units that the caller may not see now; ``hidden`` those that could not be seen at any moment.
        shown: how often the case's faults were shown.
        escaped: what a part raised that nothing may catch.
        entered: set when a call hangs for real; ``release`` ends it.
        reported: what the diagnostics received.
    """

    case: Case
    backends: Backends | None = None
    log: list[Entry] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    shown: int = 0
    escaped: BaseException | None = None
    clock: FixedClock = field(default_factory=FixedClock)
    entered: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    reported: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        held = inventory() if self.backends is None else self.backends.documents
        self.shelf: dict[str, Document] = dict(held)
        self.closed = {unit for unit, document in held.items() if document.metadata["level"] == "closed"}
        self.hidden = frozenset(self.closed) if self.case.guarded else frozenset()

    def graph(self) -> Any:
        """The bounded graph over this world, not compiled."""
        case = self.case
        parts = {channel: self.searcher(channel) for channel in case.channels}
        options: dict[str, Any] = {"preset": "reference"} if case.policy == "reference" else {}
        if case.policy != "reference":
            options = {"policy": case.policy, "threshold": case.threshold, "assessor": self._assessor()}
            options["first_hop_rows"] = case.first_hop_rows
        return create_bounded_retrieval(
            parts.get("lexical"),
            parts.get("dense"),
            units=self.source("fetch", self._from_shelf) if case.apart else None,
            budget=case.budget,
            eligibility=self._resolver() if case.guarded else None,
            eligibility_timeout_ms=WAIT_MS if case.waits and not case.cancels else NO_WAIT_MS,
            diagnostics=self.reported.append,
            cancelled=self._cancelled,
            clock=self.clock,
            context_schema=None,
            **options,
        )

    def reply(self, port: str, asked: Any, honest: Callable[[], Shape], shape: Shaper) -> Any:
        """Log a call and answer it: honestly, or with the fault that the port shows now."""
        self.counts[port] = call = self.counts.get(port, 0) + 1
        entry = Entry(port, asked, FAILED, self.clock())
        self.log.append(entry)
        fault = self.case.fault_at(port, call)
        if fault is not None:
            self.shown += 1
            self._misbehave(fault)
        answer = honest()
        if fault is not None and fault.cell.kind not in {"slow", "hangs"}:
            answer = shape(fault, answer.answer)
        entry.truth, entry.clock = answer.truth, self.clock()
        return answer.answer

    def _misbehave(self, fault: Fault) -> None:
        kind = fault.cell.kind
        if kind == "raises":
            error = ERRORS[fault.variant % len(ERRORS)]()
            raise error
        if kind == "escapes":
            self.escaped = ESCAPES[fault.variant % len(ESCAPES)]()
            raise self.escaped
        if kind == "slow":
            self.clock.advance(SLOW_SECONDS)
        if kind == "hangs":
            self.clock.advance(HANG_SECONDS)
            self.hang(fault)

    def hang(self, fault: Fault) -> None:
        """Wait for real, or else give up as a client with a time-out of its own does, where the graph has a limit."""
        if self.case.waits:
            self.entered.set()
            self.release.wait(PATIENCE_S)
        if self.case.waits or fault.cell.port in GUARDED_PORTS:
            raise TimeoutError(SECRET)

    def method(self, port: str, honest: Callable[..., Shape], shape: Callable[..., Shape]) -> Callable[..., Any]:
        """A method for a part: plain, or one that has to be awaited."""

        def call(*args: Any, **named: Any) -> Any:
            asked = (*args, *named.values())
            return self.reply(port, asked, partial(honest, *asked), partial(shape, asked))

        async def awaited(*args: Any, **named: Any) -> Any:
            await asyncio.sleep(0)
            fault = self.case.fault_at(port, self.counts.get(port, 0) + 1)
            if fault is not None and fault.cell.kind == "hangs" and self.case.waits:
                self.counts[port] = self.counts.get(port, 0) + 1
                self.shown += 1
                self.log.append(Entry(port, args, FAILED, self.clock()))
                self.entered.set()
                await asyncio.get_running_loop().create_future()
            return call(*args, **named)

        return awaited if self.case.way == "async" else call

    def named(self, name: str) -> str:
        """A method's name, with an ``a`` before it where it has to be awaited and half of the time."""
        return f"a{name}" if self.case.way == "async" and self.case.seed % 2 else name

    def searcher(self, channel: str) -> Any:
        """One channel: the real one or a listed one, behind the faults."""
        case, part = self.case, SimpleNamespace()
        base = self._base(channel)
        if case.filters or case.real:
            part.pushes_down = lambda _filter: True
        setattr(part, self.named("search"), self._search(channel, base.search))
        if case.excludes and channel == "dense":
            setattr(part, self.named("search_excluding"), self._search(channel, base.search_excluding))
        if case.scores:
            scored = self.method(f"{channel}.score", _plain(base.score), _scores)
            setattr(part, self.named("score"), scored)
        if case.weighs and channel == "lexical":
            setattr(part, self.named("weigh"), self.method("lexical.weigh", _plain(base.weigh), _weights))
        if case.fetches:
            setattr(part, self.named("fetch"), self._fetch("fetch", base.fetch))
        return part

    def source(self, port: str, fetch: Callable[[Sequence[str]], Any]) -> Any:
        """A unit source behind the faults."""
        return SimpleNamespace(**{self.named("fetch"): self._fetch(port, fetch)})

    def _base(self, channel: str) -> Any:
        if self.backends is not None:
            return getattr(self.backends, channel)
        order = self.case.orders[channel == "dense"]
        return Listed(channel, order, self.shelf, brings=self.case.brings, filters=self.case.filters)

    def _search(self, channel: str, search: Callable[..., Any]) -> Callable[..., Any]:
        def honest(*asked: Any) -> Shape:
            return rows_shape(search(*asked))

        def shape(asked: Any, fault: Fault, rows: Any) -> Shape:
            return shape_rows(fault.cell.kind, fault.variant, rows, asked[1])

        return self.method(f"{channel}.search", honest, shape)

    def _fetch(self, port: str, fetch: Callable[[Sequence[str]], Any]) -> Callable[..., Any]:
        def honest(unit_ids: Sequence[str]) -> Shape:
            return units_shape(fetch(unit_ids))

        def shape(_asked: Any, fault: Fault, found: Any) -> Shape:
            return shape_units(fault.cell.kind, fault.variant, found, self.shelf)

        return self.method(port, honest, shape)

    def _from_shelf(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        return {unit: self.shelf[unit] for unit in unit_ids if unit in self.shelf}

    def _assessor(self) -> Any:
        inner = assessor_named(self.case.assessor)

        def honest(given: AssessmentInput) -> Shape:
            said = inner.assess(given)
            return Shape(said, said.sufficient)

        def shape(_asked: Any, fault: Fault, said: CoverageAssessment) -> Shape:
            return shape_assessment(fault.cell.kind, fault.variant, said)

        part = SimpleNamespace(name=inner.name, default_threshold=inner.default_threshold, settings=inner.settings)
        part.is_pure = self.case.way != "async" and not self.case.threaded and not self.case.waits
        part.needs_weights = self.case.assessor == "scorecard"
        setattr(part, self.named("assess"), self.method("assess", honest, shape))
        return part

    def _resolver(self) -> Any:
        resolve = self.method("resolver", self._view, _view)
        # A call that may hang or block has a thread and a time limit; a pure one has neither.
        if self.case.way != "async" and not self.case.threaded and not self.case.waits:
            resolve.is_pure = True  # type: ignore[attr-defined]
        return resolve

    def _view(self, _runtime: Any) -> Shape:
        if self.counts["resolver"] == self.case.moment:
            for unit in self.shelf.keys() & set(self.case.lost):
                self.closed.add(unit)
                kept = {**self.shelf[unit].metadata, "level": "closed"}
                self.shelf[unit] = self.shelf[unit].model_copy(update={"metadata": kept})
        view = EligibilityView(
            view_id="ann",
            version="1",
            allowed=None if self.case.view == "filter" else self.method("allowed", self._allowed, _allowed),
            search_filter=None if self.case.view == "allowed" else OPEN_FILTER,
        )
        return Shape(view, view.view_id)

    def _allowed(self, unit_ids: Sequence[str]) -> Shape:
        found = {unit for unit in unit_ids if unit not in self.closed}
        return Shape(set(found), found)

    def _cancelled(self, _runtime: Any) -> bool:
        self.counts["poll"] = polls = self.counts.get("poll", 0) + 1
        says = self.case.cancel_after is not None and polls > self.case.cancel_after
        self.log.append(Entry("poll", None, says, self.clock()))
        return says


def _plain(method: Callable[..., Any]) -> Callable[..., Shape]:
    return lambda *args: Shape(method(*args), None)


def _scores(_asked: Any, fault: Fault, scores: Any) -> Shape:
    return shape_scores(fault.cell.kind, fault.variant, scores)


def _weights(_asked: Any, fault: Fault, weights: Any) -> Shape:
    return shape_weights(fault.cell.kind, fault.variant, weights)


def _view(_asked: Any, fault: Fault, view: Any) -> Shape:
    return shape_view(fault.cell.kind, fault.variant, view)


def _allowed(asked: Any, fault: Fault, allowed: Any) -> Shape:
    return shape_allowed(fault.cell.kind, fault.variant, allowed, len(asked[0]))
