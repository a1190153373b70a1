"""Cases of the fault matrix: plain data, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from faults_inventory import QUERIES, inventory

from bounded_retrieval.contracts.budget import Budget

POLICIES = ("adaptive", "always_continue", "fixed_lexical", "fixed_dense", "reference")
"""The policies, and the preset."""

WAYS = ("sync", "thread", "async")
"""Synchronous parts under ``invoke``, the same under ``ainvoke``, and parts that can only be awaited."""

VIEWS = ("none", "none", "filter", "allowed", "both")

KINDS = (
    "raises",
    "hangs",
    "too_many",
    "too_few",
    "duplicates",
    "unknown_ids",
    "wrong_types",
    "bad_scores",
    "changes",
    "slow",
    "dies_midway",
    "escapes",
)

_EVERYWHERE = ("raises", "hangs", "wrong_types", "slow", "dies_midway", "escapes")
_OF_PORTS: dict[str, Sequence[str]] = {
    "lexical.search": KINDS,
    "dense.search": KINDS,
    "fetch": tuple(kind for kind in KINDS if kind != "bad_scores"),
    "lexical.score": (*_EVERYWHERE, "too_many", "too_few", "unknown_ids", "bad_scores", "changes"),
    "dense.score": (*_EVERYWHERE, "too_many", "too_few", "unknown_ids", "bad_scores", "changes"),
    "lexical.weigh": (*_EVERYWHERE, "too_many", "too_few", "unknown_ids", "bad_scores"),
    "resolver": (*_EVERYWHERE, "changes"),
    "allowed": (*_EVERYWHERE, "too_many", "too_few", "unknown_ids", "changes"),
    "assess": (*_EVERYWHERE, "bad_scores"),
}


class Cell(NamedTuple):
    """A port of the graph and the kind of fault that it shows."""

    port: str
    kind: str


CELLS = tuple(Cell(port, kind) for port, kinds in _OF_PORTS.items() for kind in kinds)

AMPLE_SHARE = {"dense.search": 0.6, "lexical.score": 0.8, "dense.score": 0.8}
"""Share of a port's runs that nothing but the fault ends early, since its calls come late in a run."""

WAITING_SHARE = 0.25
"""Share of the hanging calls that wait for real; the others move the run's clock."""

HANG_SECONDS, SLOW_SECONDS = 5.0, 0.02
"""By how much the runs' own clock moves; no deadline falls on a multiple of the second."""

GUARDED_PORTS = frozenset({"resolver", "allowed"})


class Fault(NamedTuple):
    """A cell, from which call of the port on it shows, whether at that call only, and which form of the kind it takes."""

    cell: Cell
    begins: int
    once: bool
    variant: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run to make.

    Attributes:
        faults: the fault that the case is for, and sometimes another one.
        waits: hanging calls wait for real: until their time limit, or (``cancels``) until the caller's task is cancelled.
        apart: the units are read from a source of their own, not from the searchers.
        moment: at which call of the resolver some units stop being for the caller's eyes; none for never.
        cancel_after: after how many questions the caller says that it has ended the run; none for never.
    """

    seed: int
    faults: tuple[Fault, ...]
    policy: str
    way: str
    real: bool
    waits: bool
    cancels: bool
    query: str
    budget: Budget
    threshold: float
    first_hop_rows: int
    recursion_limit: int
    channels: tuple[str, ...]
    orders: tuple[tuple[tuple[str, float | None], ...], ...]
    brings: bool
    filters: bool
    fetches: bool
    scores: bool
    weighs: bool
    apart: bool
    view: str
    threaded: bool
    moment: int | None
    lost: tuple[str, ...]
    assessor: str
    cancel_after: int | None
    streams: bool

    @property
    def guarded(self) -> bool:
        """Whether a resolver says who may see what."""
        return self.view != "none"

    @property
    def excludes(self) -> bool:
        """Whether the dense searcher can leave out units that are there already."""
        return self.seed % 3 > 0

    @property
    def cell(self) -> Cell:
        """What the case is for."""
        return self.faults[0].cell

    def fault_at(self, port: str, call: int) -> Fault | None:
        """The fault that a port shows at its n-th call."""
        for fault in self.faults:
            is_now = call == fault.begins if fault.once else call >= fault.begins
            if fault.cell.port == port and is_now:
                return fault
        return None


def mostly(chooser: random.Random, usual: Sequence[Any], *others: Any) -> Any:
    """One of the usual values nine times out of ten, else another one."""
    return chooser.choice(usual) if not others or chooser.random() < 0.9 else chooser.choice(others)


def _budget(chooser: random.Random, cell: Cell, *, is_ample: bool) -> Budget:
    deadlines = (97, 197) if cell.kind == "hangs" else (None,)
    if is_ample:
        return Budget(max_rows=8, max_reads=8, deadline_ms=chooser.choice(deadlines))
    return Budget(
        max_calls=mostly(chooser, [2, 2, 2], 1, 0),
        max_iterations=mostly(chooser, [2, 2, 2], 1, 0),
        max_rows=mostly(chooser, [8, 6, 4], 2, 1, 0),
        max_reads=mostly(chooser, [8, 6, 3], 2, 1, 0),
        max_units=mostly(chooser, [4, 3], 2, 1, 0),
        max_chars=mostly(chooser, [4000], 400, 90, 60, 0),
        deadline_ms=mostly(chooser, deadlines, None, 0, 17, 97),
    )


def _order(chooser: random.Random, *, scores: bool) -> tuple[tuple[str, float | None], ...]:
    units = sorted(inventory())
    chosen = chooser.sample(units, chooser.randint(3, len(units)))
    has_scores = scores or chooser.random() < 0.9
    return tuple((unit, round(9 - at * 0.5, 3) if has_scores else None) for at, unit in enumerate(chosen))


def _fault(chooser: random.Random, cell: Cell) -> Fault:
    begins = mostly(chooser, [1], 2, 3) if cell.port in {"fetch", *GUARDED_PORTS, "assess"} else 1
    return Fault(cell, begins, chooser.random() < 0.3, chooser.randrange(64))


def _view(chooser: random.Random, cells: Sequence[Cell]) -> str:
    ports = {cell.port for cell in cells}
    if "allowed" in ports:
        return chooser.choice(("allowed", "both"))
    return chooser.choice(VIEWS[2:]) if "resolver" in ports else chooser.choice(VIEWS)


def _waits(chooser: random.Random, cell: Cell, way: str) -> bool:
    # Under `invoke` nothing ends a call that has no time limit of its own.
    if way == "sync":
        return cell.port in GUARDED_PORTS and chooser.random() < WAITING_SHARE / 2
    return chooser.random() < WAITING_SHARE


def make_case(seed: int, *, real: bool = False, among: Sequence[Cell] = CELLS) -> Case:
    """The case of a seed. Seeds that follow each other go through all cells, then all ways, then all policies."""
    chooser = random.Random(seed * 2 + real)
    cell = among[seed % len(among)]
    way = WAYS[seed // len(among) % len(WAYS)]
    policy = POLICIES[seed // len(among) // len(WAYS) % len(POLICIES)]
    cells = [cell]
    if chooser.random() < 0.2:
        cells.append(chooser.choice([other for other in among if other.kind not in {"escapes", "hangs"}]))
    view = _view(chooser, cells)
    needed = {each.port.partition(".")[0] for each in cells} & {"lexical", "dense"}
    channels = mostly(chooser, [("lexical", "dense")], ("lexical",), ("dense",)) if not real else ("lexical", "dense")
    if needed - set(channels) or {"fixed_dense": "dense"}.get(policy, "lexical") not in channels:
        channels = ("lexical", "dense")
    scores = cell.port.endswith("score")
    is_ample = chooser.random() < AMPLE_SHARE.get(cell.port, 0.2)
    waits = cell.kind == "hangs" and _waits(chooser, cell, way)
    return Case(
        seed=seed,
        faults=tuple(_fault(chooser, each) for each in cells),
        policy=policy,
        way=way,
        real=real,
        waits=waits,
        cancels=waits and way != "sync" and (cell.port not in GUARDED_PORTS or chooser.random() < 0.7),
        query=chooser.choice(QUERIES),
        budget=_budget(chooser, cell, is_ample=is_ample),
        threshold=1.0 if is_ample else chooser.choice([0.0, 0.28, 0.5, 0.8, 1.0]),
        first_hop_rows=chooser.randint(1, 5),
        recursion_limit=chooser.choice([7, 25]) if is_ample else mostly(chooser, [7, 7, 25], 5, 6),
        channels=channels,
        orders=(_order(chooser, scores=scores), _order(chooser, scores=scores)),
        brings=chooser.random() < 0.7,
        filters=chooser.random() < 0.5,
        fetches=chooser.random() < 0.8,
        scores=chooser.random() < 0.85 or scores,
        weighs=chooser.random() < 0.85 or scores or cell.port.endswith("weigh"),
        apart=chooser.random() < 0.6 or cell.port == "fetch",
        view=view,
        threaded=chooser.random() < 0.1,
        moment=chooser.randint(1, 5) if view != "none" and chooser.random() < 0.3 else None,
        lost=tuple(chooser.sample(sorted(inventory()), 4)),
        assessor=chooser.choice(("term_coverage", "scorecard")) if cell.port != "lexical.weigh" else "scorecard",
        cancel_after=None if is_ample else mostly(chooser, [None], 0, 1, 2, 3),
        streams=chooser.random() < (0.5 if view != "none" else 0.15),
    )
