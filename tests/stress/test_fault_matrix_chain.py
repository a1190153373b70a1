"""Every fault of every part of the recursive chain, over a function and over the bounded graph: the invariants hold."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from faults_cases import WAYS
from faults_chain_cases import BOUNDED_CELLS, FUNCTION_CELLS
from faults_inventory import Backends, open_backends
from faults_sweep import Tally, sweep, threads_left
from scale import is_full, scaled

RUNS, REAL_RUNS = scaled(360, 18_000), scaled(40, 2_000)


@pytest.fixture(scope="module")
def backends() -> Iterator[Backends]:
    """The real searchers."""
    opened = open_backends()
    yield opened
    opened.close()


def test_the_invariants_of_the_chain_hold_under_every_fault(backends: Backends) -> None:
    """No fault of a planner, a reader, a test, a search or any part inside one breaks an invariant of the chain."""
    before, tally = threading.enumerate(), Tally()
    sweep(range(RUNS), tally, chain=True)
    sweep(range(REAL_RUNS), tally, chain=True, backends=backends)
    print(tally.line("recursive chain"))
    assert not tally.wrong, tally.report()
    cells = {*BOUNDED_CELLS, *FUNCTION_CELLS}
    assert {cell for cell, _, _ in tally.combinations} == cells
    if is_full():
        assert tally.never_shown(cells) == []
        assert {(cell, way) for cell, way, _ in tally.combinations} == {(cell, way) for cell in cells for way in WAYS}
    assert list(threads_left(before)) == []
