"""Every fault of every part of the bounded graph, under every policy, way and a small budget: the invariants hold."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from faults_cases import CELLS, POLICIES, WAYS
from faults_inventory import Backends, inventory, open_backends
from faults_sweep import Tally, sweep, threads_left
from scale import is_full, scaled

from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.testing import ScriptedSearcher

RUNS, REAL_RUNS = scaled(1_440, 72_000), scaled(160, 8_000)


@pytest.fixture(scope="module")
def backends() -> Iterator[Backends]:
    """The real searchers."""
    opened = open_backends()
    yield opened
    opened.close()


def test_the_invariants_hold_under_every_fault(backends: Backends) -> None:
    """No fault of a searcher, a scorer, a view, a unit source or an assessor breaks an invariant, and no thread is left."""
    before, tally = threading.enumerate(), Tally()
    sweep(range(RUNS), tally, chain=False)
    sweep(range(REAL_RUNS), tally, chain=False, backends=backends)
    print(tally.line("bounded graph"))
    assert not tally.wrong, tally.report()
    assert tally.never_shown(CELLS) == []
    assert {cell for cell, _, _ in tally.combinations} == set(CELLS)
    if is_full():
        assert len(tally.combinations) == len(CELLS) * len(WAYS) * len(POLICIES)
    assert list(threads_left(before)) == []


class Stuck(ScriptedSearcher):
    """Hangs until it is let go, or gives up after some milliseconds of the real clock."""

    def __init__(self, documents: Any, channel: Any, seconds: float) -> None:
        super().__init__(documents, channel)
        self.seconds = seconds
        self.entered, self.release = threading.Event(), threading.Event()

    def search(self, query: str, k: int, filter: Any = None) -> Any:
        self.entered.set()
        self.release.wait(self.seconds)
        return super().search(query, k, filter)


def _stuck_graph(channel: str, seconds: float, **options: Any) -> tuple[Any, Stuck, ScriptedSearcher]:
    held = [document for document in inventory().values() if document.page_content]
    other = "dense" if channel == "lexical" else "lexical"
    stuck, well = Stuck(held, channel, seconds), ScriptedSearcher(held[2:], other)  # type: ignore[arg-type]
    searchers = {channel: stuck, other: well}
    return create_bounded_retrieval(**searchers, policy="always_continue", **options).compile(), stuck, well


@pytest.mark.parametrize("channel", ["lexical", "dense"])
def test_a_search_that_hangs_past_the_real_deadline(channel: str) -> None:
    """On the real clock too, a search that comes back late ends the run, charged, with what was found packed."""
    graph, stuck, well = _stuck_graph(channel, 0.05, budget={"deadline_ms": 40})
    packet = EvidencePacket.from_result(graph.invoke({"query": "battery"}))
    assert packet.stop_reason == "deadline_exceeded"
    assert packet.usage.calls == len(stuck.calls) + len(well.calls)
    # On a busy machine the deadline may have passed before the search that hangs, or before the first.
    assert len(packet.items) == {0: 0, 1: 3, 2: 4}[packet.usage.calls]


@pytest.mark.parametrize("channel", ["lexical", "dense"])
def test_a_caller_who_cancels_while_a_search_hangs(channel: str) -> None:
    """A synchronous run that its caller cancels from another thread ends, once the call is back, with what was found."""
    gone = threading.Event()
    graph, stuck, well = _stuck_graph(channel, 30.0, cancelled=lambda _runtime: gone.is_set())

    def cancel() -> None:
        stuck.entered.wait(30)
        gone.set()
        stuck.release.set()

    caller = threading.Thread(target=cancel)
    caller.start()
    packet = EvidencePacket.from_result(graph.invoke({"query": "battery"}))
    caller.join()
    assert packet.stop_reason == "cancelled"
    assert packet.usage.calls == len(stuck.calls) + len(well.calls) == (1 if channel == "lexical" else 2)
    assert len(packet.items) == (3 if channel == "lexical" else 4)
