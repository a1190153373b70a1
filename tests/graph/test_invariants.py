from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError

sys.path.insert(0, str(Path(__file__).parent))
import generated

from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.errors import RequestError
from bounded_retrieval.nodes import assess_coverage, inspect_request, recheck_and_pack, searching
from bounded_retrieval.policies import assembly, rows, stopping

EXAMPLES = 150
quick = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

# A seeded bug only has to be found; making the case small would take most of the time.
seeded = settings(quick, database=None, phases=(Phase.generate,), report_multiple_bugs=False)


@quick
@given(generated.worlds())
def test_every_run_keeps_the_invariants(world: generated.World) -> None:
    """Whatever the retrievers do: at most 6 supersteps, usage within limits, one right stop reason, a replayable trace."""
    generated.check(world)


@settings(quick, max_examples=60)
@given(generated.worlds())
def test_the_same_run_twice_is_the_same_to_the_byte(world: generated.World) -> None:
    """Equal requests over equal answers give equal packets and equal trace bytes, synchronously and asynchronously."""
    first, _ = generated.run(world)
    second, _ = generated.run(world)
    world.restart()
    third = asyncio.run(world.graph().ainvoke({"query": generated.QUERY}))
    assert first == second == third


@settings(quick, max_examples=40)
@given(generated.worlds(), st.lists(st.sampled_from(generated.POLICIES), min_size=10, max_size=10))
def test_ten_requests_on_one_thread_equal_ten_on_fresh_threads(world: generated.World, policies: list[str]) -> None:
    """Nothing of a request is left for the next one on the same thread."""
    check_threads(world, policies)


def check_threads(world: generated.World, policies: list[str]) -> None:
    """Each policy's request on one checkpointed thread gives what it gives on its own."""
    world.cancel_after = None
    graph = world.graph()
    checkpointed = graph.copy(update={"checkpointer": InMemorySaver()})
    for policy in policies:
        request = {"query": generated.QUERY, "request": {"policy": policy}}
        world.restart()
        fresh = graph.invoke(request)
        world.restart()
        assert checkpointed.invoke(request, {"configurable": {"thread_id": "one"}}) == fresh
    world.restart()
    bare = graph.invoke({"query": generated.QUERY})
    world.restart()
    assert checkpointed.invoke({"query": generated.QUERY}, {"configurable": {"thread_id": "one"}}) == bare


def _bug_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision and the edge always go on."""
    go_on = stopping.Decision(action="dense_search", stop_reason=None, legal_actions=())
    monkeypatch.setattr(assess_coverage, "decide", lambda *_, **__: go_on)
    monkeypatch.setattr("bounded_retrieval.graph.bounded.route_after_assess", lambda _state: "dense_search")


def _bug_uncharged_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed call is not charged."""
    describe = searching._describe

    def forgiving(search: Any, answer: Any, stopped: Any) -> Any:
        event = describe(search, answer, stopped)
        usage = event.usage.model_copy(update={"calls": max(0, event.usage.calls - 1)})
        return event.model_copy(update={"usage": usage}) if event.outcome == "failed" else event

    monkeypatch.setattr(searching, "_describe", forgiving)


def _bug_unchecked_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls, iterations and reads are not checked before spending."""
    monkeypatch.setattr(searching, "refuse_search", lambda *_: None)


def _bug_uncut_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A searcher that returns too many rows is not cut."""
    read, cut = rows.read_rows, rows.cut_rows
    monkeypatch.setattr(searching, "read_rows", lambda answer, channel, asked: read(answer, channel, asked + 9))
    monkeypatch.setattr(searching, "cut_rows", lambda found, asked, more: cut(found, asked + 9, more))


def _bug_unlimited_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are not limited."""
    reading = rows.Reading
    monkeypatch.setattr(
        searching, "Reading", lambda known, reads_left, **_: reading(known=known, reads_left=reads_left + 9)
    )


def _bug_wrong_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running out of allowance is called sufficient."""
    monkeypatch.setattr(stopping, "_spent", lambda _searches: StopReason.PROXY_SUFFICIENT)


def _bug_packing_over_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing forgets its limits."""
    pack = assembly.pack
    monkeypatch.setattr(assembly, "pack", lambda ranking, lengths, _units, _chars: pack(ranking, lengths, 50, 200_000))


def _bug_no_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recheck lets everything pass."""
    read_again = recheck_and_pack._read_again

    def lenient(*args: Any) -> Any:
        _, found, notes = yield from read_again(*args)
        return {}, found, notes

    monkeypatch.setattr(recheck_and_pack, "_read_again", lenient)


def _bug_lost_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends for lack of allowance throws away what it found."""
    original = recheck_and_pack.Found
    monkeypatch.setattr(
        recheck_and_pack,
        "Found",
        lambda units, observations, **_: original(units=units, candidates=[], observations=observations),
    )


def _bug_duplicates_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text under two ids is two units."""
    from_document = rows.Unit.from_document

    def by_id(document: Any, unit_id: str | None = None, private: Any = ()) -> Any:
        unit = from_document(document, unit_id, private)
        return unit.model_copy(update={"fingerprint": f"of {unit.unit_id}"})

    monkeypatch.setattr(rows.Unit, "from_document", by_id)
    monkeypatch.setattr(recheck_and_pack, "_is_unchanged", lambda _seen, _current: True)


VIOLATIONS = (AssertionError, GraphRecursionError, RequestError)
"""A broken invariant, an endless run, or a trace that does not replay."""

BUGS = [
    _bug_endless,
    _bug_uncharged_failure,
    _bug_unchecked_limits,
    _bug_uncut_rows,
    _bug_unlimited_reads,
    _bug_wrong_reason,
    _bug_packing_over_limit,
    _bug_no_recheck,
    _bug_lost_evidence,
    _bug_duplicates_kept,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.removeprefix("_bug_"))
def test_each_invariant_bites(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one bug seeded, the invariants fail on some generated case."""
    bug(monkeypatch)

    @settings(seeded, max_examples=EXAMPLES * 4)
    @given(generated.worlds())
    def look(world: generated.World) -> None:
        generated.check(world)

    with pytest.raises(VIOLATIONS):
        look()


def test_the_thread_invariant_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one private channel not reset, a second request on the same thread differs."""
    reset = inspect_request._reset

    def forgetful(run_settings: Any) -> dict[str, Any]:
        return {key: value for key, value in reset(run_settings).items() if key != "candidates"}

    monkeypatch.setattr(inspect_request, "_reset", forgetful)

    @seeded
    @given(generated.worlds())
    def look(world: generated.World) -> None:
        check_threads(world, ["adaptive"] * 2)

    with pytest.raises((AssertionError, KeyError)):
        look()


def test_the_repeat_invariant_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an order that depends on the run, the same run twice differs."""
    turn = iter(range(10**9))
    fuse = assembly.by_channel

    def turning(candidates: Any) -> Any:
        flip = next(turn) % 2
        return {
            name: [row.model_copy(update={"rank": len(found) + 1 - row.rank}) for row in found] if flip else found
            for name, found in fuse(candidates).items()
        }

    monkeypatch.setattr(assembly, "by_channel", turning)

    @seeded
    @given(generated.worlds())
    def look(world: generated.World) -> None:
        assert generated.run(world)[0] == generated.run(world)[0]

    with pytest.raises(AssertionError):
        look()
