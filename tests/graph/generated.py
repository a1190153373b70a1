"""Generated searchers, budgets and policies, and the invariants that every run over them must keep."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from langchain_core.documents import Document

from bounded_retrieval.contracts.budget import MAX_ITERATIONS, Budget
from bounded_retrieval.contracts.candidate import Candidate, Unit
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.replay import replay
from bounded_retrieval.testing.fakes import FixedClock

QUERY = "replace the HX-200 battery"
POLICIES = ("adaptive", "always_continue", "fixed_lexical", "fixed_dense")
TEXTS = (
    "Replace the HX-200 battery with the small screwdriver.",
    "The HX-2000 has no battery.",
    "Parcels are replaced when the courier broke them.",
    "battery",
    "",
    "x" * 300,
    "Replace the HX-200 battery. " * 40,
)


@dataclass
class GeneratedSearcher:
    """Answers as it was told to, counts its calls and moves the clock while it works."""

    channel: str
    rows: list[Any]
    fails: bool
    seconds: float
    clock: FixedClock
    brings_units: bool
    vouches: str
    calls: int = 0
    fetches: int = 0

    def search(self, query: str, k: int, filter: Any = None) -> Any:  # noqa: ARG002
        assert query == QUERY
        self.calls += 1
        self.clock.advance(self.seconds)
        if self.fails:
            raise ConnectionError("down")
        return [self._row(row, rank) for rank, row in enumerate(self.rows, 1)]

    def fetch(self, unit_ids: list[str]) -> Any:
        if self.vouches == "fails":
            raise OSError("unreadable")
        if self.vouches == "gone":
            return {}
        held = {f"u{text}": TEXTS[text] for text in range(len(TEXTS))} | {
            f"w{text}": TEXTS[text] for text in range(len(TEXTS))
        }
        self.fetches += 1
        is_first_reading = self.fetches == 1 and not self.brings_units
        changed = "!" if self.vouches == "changed" and not is_first_reading else ""
        return {unit_id: Document(page_content=held[unit_id] + changed) for unit_id in unit_ids if unit_id in held}

    def _row(self, row: Any, rank: int) -> Any:
        if isinstance(row, str):
            return row
        prefix, text, score = row
        unit = Document(id=f"{prefix}{text}", page_content=TEXTS[text]) if self.brings_units else None
        return Candidate(unit_id=f"{prefix}{text}", channel=self.channel, rank=rank, score=score, unit=unit)


@dataclass
class World:
    """One generated case."""

    lexical: GeneratedSearcher
    dense: GeneratedSearcher
    clock: FixedClock
    budget: Budget
    policy: str
    threshold: float
    first_hop_rows: int
    cancel_after: int | None
    polls: int = 0

    def graph(self) -> Any:
        builder = create_bounded_retrieval(
            self.lexical,
            self.dense,
            policy=self.policy,
            threshold=self.threshold,
            budget=self.budget,
            first_hop_rows=self.first_hop_rows,
            cancelled=self._cancelled,
            clock=self.clock,
        )
        return builder.compile()

    def restart(self) -> None:
        self.polls = self.lexical.calls = self.dense.calls = self.lexical.fetches = self.dense.fetches = 0
        self.clock.now = 0.0

    def _cancelled(self, _runtime: Any) -> bool:
        self.polls += 1
        return self.cancel_after is not None and self.polls > self.cancel_after


def mostly(usual: list[Any], *others: Any) -> st.SearchStrategy[Any]:
    """Draw one of the usual values four times out of five."""
    return st.sampled_from([*usual * (4 * max(1, len(others))), *list(others) * len(usual)])


row = st.tuples(
    st.sampled_from("uuuw"), st.integers(0, len(TEXTS) - 1), mostly([0.5, None], float("nan"), -3.0, float("inf"))
)
rows = st.one_of(
    st.lists(row, min_size=1, max_size=9),
    st.lists(row, min_size=3, max_size=9),
    st.lists(st.one_of(row, st.just("not a candidate")), max_size=9),
)


@st.composite
def worlds(draw: Any) -> World:
    """Empty, failing, slow, duplicate, oversized, wrong-typed answers; small budgets; every policy."""
    clock = FixedClock()
    searchers = [
        GeneratedSearcher(
            channel=channel,
            rows=draw(rows),
            fails=draw(mostly([False], True)),
            seconds=draw(st.sampled_from([0.0, 0.01, 0.2])),
            clock=clock,
            brings_units=draw(mostly([True], False)),
            vouches=draw(mostly(["same"], "gone", "changed", "fails")),
        )
        for channel in ("lexical", "dense")
    ]
    return World(
        lexical=searchers[0],
        dense=searchers[1],
        clock=clock,
        budget=Budget(
            max_calls=draw(mostly([2], 1, 0)),
            max_iterations=draw(mostly([2], 1, 0)),
            max_rows=draw(mostly([8, 6, 4], 2, 0)),
            max_reads=draw(mostly([8, 6, 3], 1, 2, 0)),
            max_units=draw(mostly([4, 5], 1, 0)),
            max_chars=draw(mostly([4000, 400], 60, 10, 0)),
            deadline_ms=draw(mostly([None], 0, 100, 300)),
        ),
        policy=draw(st.sampled_from(POLICIES)),
        threshold=draw(st.sampled_from([0.0, 0.5, 0.8, 1.0])),
        first_hop_rows=draw(st.integers(1, 4)),
        cancel_after=draw(mostly([None], 0, 1, 2, 3)),
    )


def run(world: World) -> tuple[dict[str, Any], int]:
    """One run; returns its output and the number of supersteps."""
    world.restart()
    result: dict[str, Any] = {}
    steps = 0
    for update in world.graph().stream({"query": QUERY}, {"recursion_limit": 25}, stream_mode="updates"):
        steps += 1
        for values in update.values():
            result |= values
    return {key: result[key] for key in ("packet", "documents", "stop_reason", "trace")}, steps


def check(world: World) -> None:
    """Run once and check every invariant of a single run."""
    result, steps = run(world)
    packet = EvidencePacket.from_result(result)
    trace = DecisionTrace.from_result(result)
    check_steps(trace, steps)
    check_limits(world, packet)
    check_stop_reason(world, packet, trace)
    check_evidence(world, packet, trace)
    check_replay(packet, trace)


def check_steps(trace: DecisionTrace, steps: int) -> None:
    """One event a superstep, at most six of them, at most two decisions."""
    assert steps == len(trace.events)
    assert steps <= 6
    assert len(trace.decisions) <= MAX_ITERATIONS


def check_limits(world: World, packet: EvidencePacket) -> None:
    """Usage is within every limit, and calls are those that the searchers counted."""
    usage, limits = packet.usage, world.budget
    assert packet.limits == limits
    assert usage.calls == world.lexical.calls + world.dense.calls <= limits.max_calls
    assert usage.dense_calls == world.dense.calls
    assert usage.iterations <= limits.max_iterations
    assert usage.rows <= limits.max_rows
    assert usage.reads <= limits.max_reads
    assert usage.units == len(packet.items) <= limits.max_units
    assert usage.chars == len(packet.text) <= limits.max_chars


def check_stop_reason(world: World, packet: EvidencePacket, trace: DecisionTrace) -> None:
    """The stop reason, derived here once more from the outcomes in the declared order."""
    searches, last = trace.searches, trace.searches[-1]
    outcomes = Counter(search.outcome for search in searches)
    assessment = trace.decisions[-1].assessment
    if last.interruption is not None:
        expected = {"cancelled": StopReason.CANCELLED, "deadline": StopReason.DEADLINE_EXCEEDED}[last.interruption]
    elif last.outcome == "answered" and len(searches) == 2 and last.new_units == 0:
        expected = StopReason.NO_NEW_EVIDENCE
    elif last.outcome == "answered" and world.policy == "adaptive" and assessment is not None and assessment.sufficient:
        expected = StopReason.PROXY_SUFFICIENT
    elif last.outcome == "answered" and world.policy.startswith("fixed"):
        expected = StopReason.POLICY_COMPLETE
    elif outcomes["failed"] and not outcomes["answered"]:
        expected = StopReason.RETRIEVAL_FAILED
    else:
        expected = StopReason.RESOURCE_BUDGET_EXHAUSTED
    assert packet.stop_reason is expected
    is_whole = "dropped_at_recheck" not in packet.notes
    assert (packet.resolution == "provisional") == (expected is StopReason.PROXY_SUFFICIENT and is_whole)
    assert ("channel_failed" in packet.notes) == bool(outcomes["failed"])


def check_evidence(world: World, packet: EvidencePacket, trace: DecisionTrace) -> None:
    """Units are whole, distinct, vouched for, and not lost when the run ended for lack of allowance."""
    texts = [item.text for item in packet.items]
    assert len({item.unit_id for item in packet.items}) == len(texts) == len(set(texts))
    assert all(text in TEXTS and text.strip() for text in texts)
    vouchers = {search.channel: getattr(world, search.channel).vouches for search in trace.searches}
    if all(vouches == "same" for vouches in vouchers.values()):
        fitting = [observation for observation in trace.decisions[-1].observations if observation.fits]
        assert bool(texts) == bool(fitting and world.budget.max_units)
    if all(vouches != "same" for vouches in vouchers.values()):
        assert not texts


def check_replay(packet: EvidencePacket, trace: DecisionTrace) -> None:
    """The packet comes out of the returned trace again."""
    units = {}
    for observation in trace.decisions[-1].observations:
        text = TEXTS[int(observation.unit_id[1:])]
        units[observation.unit_id] = Unit.from_document(Document(id=observation.unit_id, page_content=text))
    assert replay(DecisionTrace.model_validate_json(trace.to_json()), units) == packet
