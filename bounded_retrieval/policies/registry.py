"""The assessors and fusions of this package by name, and which of them a builder takes unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from bounded_retrieval.contracts.ports import Assessor
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.policies.coverage import TermCoverage
from bounded_retrieval.policies.fusion import Fusion, ReciprocalRankFusion, ScoreFusion
from bounded_retrieval.policies.weighted import IdfCoverage, Scorecard

_Part = TypeVar("_Part")

ASSESSORS: Mapping[str, Callable[[], Assessor]] = {
    "term_coverage": TermCoverage,
    "idf_coverage": IdfCoverage,
    "scorecard": Scorecard,
}
"""Assessors by the name that stands in the trace, each at its own defaults."""

FUSIONS: Mapping[str, Callable[[], Fusion]] = {"rrf": ReciprocalRankFusion, "score_fusion": ScoreFusion}
"""Fusions by the name that stands in the trace, each at its own defaults."""

REFERENCE_FIRST_HOP_ROWS = 3
"""Rows of the reference preset's lexical call."""

DEFAULT_ASSESSOR = "scorecard"
DEFAULT_FUSION = "score_fusion"


def default_first_hop_rows(max_rows: int) -> int:
    """Rows of the lexical call beside the default assessor and fusion: two thirds of what a run may return, 4 of 6.

    A run that stops after it then fills a packet, and the dense call still has rows to add.
    """
    return max(1, max_rows * 2 // 3)


def reference_first_hop_rows(max_rows: int) -> int:
    """Rows of the lexical call beside term coverage and reciprocal ranks: 3, or half of a larger allowance."""
    return max(REFERENCE_FIRST_HOP_ROWS, max_rows // 2)


def assessor_named(name: str) -> Assessor:
    """A new assessor of that name.

    Raises:
        ConfigurationError: there is none of that name.
    """
    return _named("assessor", ASSESSORS, name)


def fusion_named(name: str) -> Fusion:
    """A new fusion of that name.

    Raises:
        ConfigurationError: there is none of that name.
    """
    return _named("fusion", FUSIONS, name)


def _named(kind: str, known: Mapping[str, Callable[[], _Part]], name: str) -> _Part:
    if name not in known:
        raise ConfigurationError(f"{kind}: unknown name {name!r}; there are {', '.join(known)}")
    return known[name]()
