"""Run the cases of many seeds, and count what they showed and what was wrong."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from faults_cases import KINDS, Case, Cell, make_case
from faults_chain_cases import make_chain_case
from faults_chain_checks import chain_violations
from faults_chain_world import ChainWorld
from faults_checks import violations
from faults_inventory import Backends
from faults_run import Loops, run_case
from faults_world import World

QUESTION = "Who keeps what, and where?"
SHOWN_AT_MOST = 20


@dataclass
class Tally:
    """What came of a sweep.

    Attributes:
        wrong: seed, whether over the real backends, and what was wrong with that run.
        kinds: runs by kind of fault; ``shown`` those in which the fault came up, by cell.
        combinations: runs by cell, way and policy.
        waited: runs in which a call hung for real.
    """

    runs: int = 0
    real: int = 0
    wrong: list[tuple[int, bool, str]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    shown: Counter[Any] = field(default_factory=Counter)
    combinations: Counter[Any] = field(default_factory=Counter)
    waited: int = 0

    def add(self, case: Case, world: World, found: Iterable[str]) -> None:
        """Count one run."""
        self.runs += 1
        self.real += case.real
        self.wrong += [(case.seed, case.real, text) for text in found]
        self.kinds[case.cell.kind] += 1
        self.shown[case.cell] += world.shown > 0
        self.combinations[case.cell, case.way, case.policy] += 1
        self.waited += world.entered.is_set()

    def line(self, name: str) -> str:
        """The figures on one line."""
        by_kind = ", ".join(f"{kind} {self.kinds[kind]:,}" for kind in KINDS)
        shown = sum(self.shown.values()) / max(1, self.runs)
        return (
            f"{name}: {self.runs:,} runs ({self.real:,} over BM25 and Chroma), {len(self.wrong)} violations; "
            f"by fault: {by_kind}; the fault came up in {shown:.0%}; {self.waited:,} hung for real"
        )

    def report(self) -> str:
        """What was wrong, each with the seed that shows it again."""
        lines = [f"seed {seed}{' (real)' if real else ''}: {text}" for seed, real, text in self.wrong[:SHOWN_AT_MOST]]
        return "\n".join([f"{len(self.wrong)} violations", *lines])

    def never_shown(self, cells: Iterable[Cell]) -> list[Cell]:
        """Cells whose fault came up in no run."""
        return [cell for cell in cells if not self.shown[cell]]


def run_bounded(case: Case, loops: Loops, backends: Backends | None = None) -> tuple[World, list[str]]:
    """One run of the bounded graph, and what was wrong with it."""
    world = World(case, backends)
    outcome = run_case(world, world.graph().compile(), {"query": case.query}, loops)
    return world, violations(world, outcome)


def run_chain(case: Any, loops: Loops, backends: Backends | None = None) -> tuple[World, list[str]]:
    """One run of the chain, and what was wrong with it."""
    world = ChainWorld(case, backends)
    outcome = run_case(world, world.chain().compile(), {"query": QUESTION}, loops)
    return world, chain_violations(world, outcome)


def sweep(seeds: Iterable[int], tally: Tally, *, chain: bool, backends: Backends | None = None) -> None:
    """Run the cases of these seeds, over the real backends where there are any."""
    make, run = (make_chain_case, run_chain) if chain else (make_case, run_bounded)
    loops = Loops()
    try:
        for seed in seeds:
            case = make(seed, real=backends is not None)
            world, found = run(case, loops, backends)
            tally.add(case, world, found)
    finally:
        loops.close()


def threads_left(before: Iterable[threading.Thread]) -> Iterator[str]:
    """Names of threads that are there now and were not before."""
    known = set(before)
    return (thread.name for thread in threading.enumerate() if thread not in known)
