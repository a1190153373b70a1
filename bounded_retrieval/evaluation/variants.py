"""What an experiment compares: a policy with its assessor, fusion, threshold and depths, under a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.ports import Assessor
from bounded_retrieval.contracts.request import PolicyName
from bounded_retrieval.errors import RequestError
from bounded_retrieval.graph.bounded import BoundedGraph, create_bounded_retrieval
from bounded_retrieval.policies.fusion import Fusion
from bounded_retrieval.policies.registry import (
    ASSESSORS,
    DEFAULT_ASSESSOR,
    DEFAULT_FUSION,
    FUSIONS,
    REFERENCE_FIRST_HOP_ROWS,
    assessor_named,
    default_first_hop_rows,
    fusion_named,
)

FIXED = ("fixed_lexical", "fixed_dense")
"""Policies that make one declared search."""

_NAME = re.compile(
    r"(?P<policy>[a-z_]+)(?::(?P<rows>\d{1,3})_rows|:(?P<part>[a-z_]+))?(?:@(?P<threshold>[0-9.]{1,8}))?"
)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One policy as an experiment runs it.

    Attributes:
        name: what it is called in the results.
        policy: who decides after the first search.
        assessor: an assessor or the name of one; it decides in the adaptive policy only.
        fusion: a fusion or the name of one.
        first_hop_rows: rows that the lexical call asks for.
        threshold: what coverage is compared with; none takes the assessor's own.
        most_rows: lowers ``max_rows`` for this variant; none takes the experiment's.
        is_reference: built by ``preset="reference"``, which compares words as they stand.
    """

    name: str
    policy: PolicyName
    assessor: str | Assessor = "term_coverage"
    fusion: str | Fusion = "rrf"
    first_hop_rows: int = REFERENCE_FIRST_HOP_ROWS
    threshold: float | None = None
    most_rows: int | None = None
    is_reference: bool = False

    def build(self, lexical: Any, dense: Any, units: Any, budget: Budget) -> BoundedGraph:
        """The graph that a user of this variant would build."""
        limits = budget.model_copy(update={"max_rows": self.rows_of(budget)})
        if self.is_reference:
            return create_bounded_retrieval(lexical, dense, units=units, preset="reference", budget=limits)
        return create_bounded_retrieval(
            lexical,
            dense,
            units=units,
            policy=self.policy,
            assessor=self.made_assessor(),
            fusion=self.made_fusion(),
            threshold=self.threshold,
            first_hop_rows=self.first_hop_rows,
            budget=limits,
        )

    def made_assessor(self) -> Assessor:
        """The assessor itself."""
        return assessor_named(self.assessor) if isinstance(self.assessor, str) else self.assessor

    def made_fusion(self) -> Fusion:
        """The fusion itself."""
        return fusion_named(self.fusion) if isinstance(self.fusion, str) else self.fusion

    def rows_of(self, budget: Budget) -> int:
        """The most rows that a run may return."""
        return budget.max_rows if self.most_rows is None else min(self.most_rows, budget.max_rows)

    def unnamed(self) -> Variant:
        """The variant as far as it decides anything, its parts made: two that are equal in this run alike."""
        unnamed = replace(self, name="", assessor=self.made_assessor(), fusion=self.made_fusion())
        if self.policy != "adaptive":
            unnamed = replace(unnamed, assessor="term_coverage", threshold=None)
        elif self.threshold is None:
            unnamed = replace(unnamed, threshold=self.made_assessor().default_threshold)
        return replace(unnamed, first_hop_rows=REFERENCE_FIRST_HOP_ROWS) if self.policy in FIXED else unnamed

    def is_like(self, other: Variant, budget: Budget) -> bool:
        """Whether two variants run alike under these limits, whatever they are called."""
        ours, theirs = (replace(variant.unnamed(), most_rows=variant.rows_of(budget)) for variant in (self, other))
        return ours == theirs

    def stop_arm(self) -> Variant:
        """What an adaptive variant gives where it stops after its first search."""
        rows = self.first_hop_rows
        return Variant(name=f"fixed_lexical:{rows}_rows", policy="fixed_lexical", first_hop_rows=rows, most_rows=rows)

    def continue_arm(self) -> Variant:
        """What an adaptive variant gives where it makes both searches."""
        fusion = self.made_fusion().name
        name = "always_continue"
        if (fusion, self.first_hop_rows) != ("rrf", REFERENCE_FIRST_HOP_ROWS):
            name = f"always_continue:{fusion}"
            if self.first_hop_rows != OWN_ROWS:
                name = f"{name}:{self.first_hop_rows}_rows"
        undecided = replace(self, assessor="term_coverage", threshold=None, is_reference=False)
        return replace(undecided, name=name, policy="always_continue")

    def describe(self, budget: Budget) -> dict[str, str]:
        """Candidate depth, actions and ranking rule, in words: policies share allowances, but not these."""
        rows, first = self.rows_of(budget), self.first_hop_rows
        fusion = self.made_fusion()
        if self.policy in FIXED:
            channel = self.policy.removeprefix("fixed_")
            return {"depth": str(rows), "actions": f"{channel} search", "ranking": f"by {channel} score"}
        condition = ""
        if self.policy == "adaptive":
            assessor = self.made_assessor()
            threshold = assessor.default_threshold if self.threshold is None else self.threshold
            condition = f" unless {assessor.name} reaches {threshold:g}"
        return {
            "depth": f"{min(first, rows)} + {max(0, rows - first)}",
            "actions": f"lexical search, then dense search{condition}",
            "ranking": fusion.name,
        }


OWN_ROWS = default_first_hop_rows(Budget().max_rows)
"""Rows of the lexical call beside the package's own assessor and fusion, at the reference limits."""

REFERENCE = Variant(name="reference", policy="adaptive", threshold=0.8, is_reference=True)
"""Term coverage at .8, reciprocal rank fusion, 3 + 3 rows: what ``preset="reference"`` builds."""

ALWAYS = Variant(name="always_continue", policy="always_continue")
"""Both searches always, reciprocal rank fusion, 3 + 3 rows."""

_OWN = Variant(
    name="adaptive", policy="adaptive", assessor=DEFAULT_ASSESSOR, fusion=DEFAULT_FUSION, first_hop_rows=OWN_ROWS
)


def default_variants(budget: Budget | None = None) -> tuple[Variant, ...]:
    """Side by side: the fixed policies, every fusion without a stop, the reference, every assessor."""
    names = ["fixed_lexical", "fixed_dense", "fixed_lexical:3_rows", "fixed_dense:3_rows", "always_continue"]
    names += [f"always_continue:{fusion}" for fusion in FUSIONS]
    names += ["reference", "adaptive", *(f"adaptive:{assessor}" for assessor in ASSESSORS)]
    return read_variants(names, budget)


def read_variants(names: Iterable[str], budget: Budget | None = None) -> tuple[Variant, ...]:
    """Variants by name, each once; the package's own depths follow from the limits, as a builder's do.

    A name is ``fixed_lexical``, ``fixed_dense`` (with ``:N_rows`` for fewer rows than allowed), ``always_continue``
    (RRF, 3 + 3 rows), ``always_continue:FUSION``, ``reference``, ``adaptive`` or ``adaptive:ASSESSOR`` (the package's
    own fusion and depths); adaptive ones may end in ``@THRESHOLD``.

    Raises:
        RequestError: no such name.
        ConfigurationError: no such assessor or fusion.
    """
    own = _OWN if budget is None else replace(_OWN, first_hop_rows=default_first_hop_rows(budget.max_rows))
    return tuple(_read(name, own) for name in dict.fromkeys(names))


def _read(name: str, own: Variant) -> Variant:
    match = _NAME.fullmatch(name)
    policy, part, rows, threshold = match.group("policy", "part", "rows", "threshold") if match else (None,) * 4
    if policy in FIXED and part is None and threshold is None:
        channel: PolicyName = "fixed_lexical" if policy == "fixed_lexical" else "fixed_dense"
        return Variant(name=name, policy=channel, most_rows=None if rows is None else _positive(rows, name))
    if rows is None and policy == "adaptive":
        bar = None if threshold is None else _fraction(threshold, name)
        return replace(own, name=name, assessor=_known(part, assessor_named) or DEFAULT_ASSESSOR, threshold=bar)
    if rows is None and threshold is None and policy == "always_continue":
        fusion = _known(part, fusion_named)
        return ALWAYS if fusion is None else replace(own, name=name, policy="always_continue", fusion=fusion)
    if name == "reference":
        return REFERENCE
    raise _unknown(name)


def _known(name: str | None, find: Callable[[str], object]) -> str | None:
    if name is not None:
        find(name)
    return name


def _positive(text: str, name: str) -> int:
    if int(text) < 1:
        raise RequestError(f"policies: {name!r} asks for no row; at least 1")
    return int(text)


def _fraction(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise RequestError(f"policies: {name!r} has a threshold that is not from 0 to 1")
    return value


def _unknown(name: str) -> RequestError:
    return RequestError(
        f"policies: unknown policy {name[:60]!r}; there are fixed_lexical, fixed_dense, always_continue[:FUSION], "
        "reference, adaptive[:ASSESSOR][@THRESHOLD]"
    )
