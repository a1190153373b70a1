"""Cases of the fault matrix for the recursive chain."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from faults_cases import CELLS, KINDS, Case, Cell, make_case, mostly
from faults_inventory import QUERIES

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.chain import ChainLimits
from bounded_retrieval.policies.chaining import ChainRules

_OF_PARTS: dict[str, Sequence[str]] = {
    "plan": tuple(kind for kind in KINDS if kind != "unknown_ids"),
    "read": KINDS,
    "sufficient": tuple(kind for kind in KINDS if kind not in {"too_many", "too_few", "duplicates", "unknown_ids"}),
}
_PARTS = tuple(Cell(port, kind) for port, kinds in _OF_PARTS.items() for kind in kinds)
_HOP = tuple(Cell("hop", kind) for kind in KINDS if kind != "bad_scores")
_FETCH = tuple(cell for cell in CELLS if cell.port == "fetch")

FUNCTION_CELLS = (*_PARTS, *_HOP, *_FETCH)
"""Of a chain over a function that returns documents."""

BOUNDED_CELLS = (*CELLS, *_PARTS)
"""Of a chain over the bounded graph."""

AMPLE = {"max_units": 16, "max_chars": 100_000}
"""Limits of a hop's packet that everything found fits, so that what a hop found is what its packet holds."""


@dataclass(frozen=True, kw_only=True)
class ChainCase(Case):
    """One chain to run.

    Attributes:
        over: ``function`` or ``bounded``: what makes a hop's search.
        queries: what an honest planner asks at each hop.
        answers: which form each hop's honest sub-answer has.
        passes_at: at which call an honest sufficiency test passes; 0 for never, none where there is no test.
        tokens: tokens that each part states.
    """

    over: str
    limits: ChainLimits
    rules: ChainRules
    queries: tuple[str, ...]
    answers: tuple[int, ...]
    passes_at: int | None
    tokens: int
    on_stop: Any


def make_chain_case(seed: int, *, real: bool = False) -> ChainCase:
    """The case of a seed: even ones are over a function, odd ones over the bounded graph."""
    over = "bounded" if seed % 2 else "function"
    base = make_case(seed // 2, real=real, among=BOUNDED_CELLS if seed % 2 else FUNCTION_CELLS)
    chooser = random.Random(~seed * 2 + real)
    given: dict[str, Any] = {each.name: getattr(base, each.name) for each in fields(base)}
    given["budget"] = base.budget.model_copy(update=AMPLE)
    if base.cell.kind == "escapes" or base.cell.port in _OF_PARTS:
        given["budget"] = Budget(**AMPLE)
    given["view"] = base.view if over == "bounded" else "none"
    needs_test = any(fault.cell.port == "sufficient" for fault in base.faults)
    return ChainCase(
        **given | {"seed": seed, "recursion_limit": 100, "cancel_after": mostly(chooser, [None], 0, 2, 3, 5, 8)},
        over=over,
        limits=_limits(chooser, base.cell),
        rules=ChainRules(novelty=chooser.random() < 0.8, min_new_share=mostly(chooser, [0.0], 0.5)),
        queries=tuple(chooser.sample(QUERIES, chooser.randint(1, 4))),
        answers=tuple(chooser.randrange(32) for _ in range(8)),
        passes_at=chooser.choice((0, 0, 1, 2)) if needs_test or chooser.random() < 0.4 else None,
        tokens=mostly(chooser, [0], 3),
        on_stop=mostly(chooser, ["partial"], "clarify", "fail"),
    )


def _limits(chooser: random.Random, cell: Cell) -> ChainLimits:
    deadlines = (97, 197) if cell.kind == "hangs" else (None,)
    return ChainLimits(
        max_hops=chooser.choice((1, 2, 2, 3)),
        max_calls=mostly(chooser, [16, 4], 3, 2, 1, 0),
        max_units=mostly(chooser, [16, 8], 2, 1, 0),
        max_chars=mostly(chooser, [8000], 400, 90, 0),
        max_tokens=mostly(chooser, [None], 1, 5, 9),
        deadline_ms=mostly(chooser, deadlines, None, 0, 37, 97),
    )
