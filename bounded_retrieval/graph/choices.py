"""Settle who decides and who ranks: what was given, a preset, a calibration, or the package's own defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.calibration import Calibration
from bounded_retrieval.contracts.candidate import Channel
from bounded_retrieval.contracts.ports import Assessor
from bounded_retrieval.errors import ConfigurationError, RequestError
from bounded_retrieval.nodes.running import has_method
from bounded_retrieval.policies.coverage import TermCoverage
from bounded_retrieval.policies.fusion import Fusion, ReciprocalRankFusion
from bounded_retrieval.policies.registry import (
    DEFAULT_ASSESSOR,
    DEFAULT_FUSION,
    REFERENCE_FIRST_HOP_ROWS,
    assessor_named,
    default_first_hop_rows,
    fusion_named,
    reference_first_hop_rows,
)
from bounded_retrieval.policies.settings import DepthRule


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a builder was given of the five things that a preset or a calibration settles; none where left open."""

    assessor: Any = None
    fusion: Any = None
    threshold: float | None = None
    first_hop_rows: int | None = None
    budget: Any = None


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The same, settled; a threshold or a budget may still be open.

    Attributes:
        first_hop_rows: a number, or how it follows from a run's ``max_rows``.
    """

    assessor: Assessor
    fusion: Fusion
    threshold: float | None
    first_hop_rows: int | DepthRule
    budget: Any


def settle(
    given: Choices,
    preset: str | None,
    calibration: Calibration | str | Path | None,
    searchers: Mapping[Channel, object],
) -> Settled:
    """Settle a builder's choices.

    The scorecard and the fusion of scores are the defaults over a lexical searcher that can weigh a query's terms and
    two searchers that can score what the other one found. Over any others, the parts of the reference preset are.

    Raises:
        ConfigurationError: a preset or a calibration contradicts what was given, or does not fit this version.
        RequestError: a budget beside a calibration is out of bounds.
        SourceError: the calibration's file cannot be read.
    """
    if preset is not None and calibration is not None:
        raise ConfigurationError("preset, calibration: give one or the other")
    if calibration is not None:
        return _calibrated(given, _read(calibration))
    if preset is None:
        return _by_ability(given, searchers)
    if preset != "reference":
        raise ConfigurationError(f"preset: unknown preset {preset!r}; there is 'reference'")
    _refuse_beside("preset: 'reference'", given, first_hop_rows=REFERENCE_FIRST_HOP_ROWS)
    return Settled(
        assessor=TermCoverage(default_threshold=0.8),
        fusion=ReciprocalRankFusion(k=60),
        threshold=None,
        first_hop_rows=REFERENCE_FIRST_HOP_ROWS,
        budget=given.budget,
    )


def _by_ability(given: Choices, searchers: Mapping[Channel, object]) -> Settled:
    lexical, dense = searchers.get("lexical"), searchers.get("dense")
    weighs = has_method(lexical, "weigh")
    # A channel that is missing has nothing to be scored; the other one's order stands then.
    scores = all(searcher is None or has_method(searcher, "score") for searcher in (lexical, dense))
    is_able = weighs and scores
    assessor = assessor_named(DEFAULT_ASSESSOR if weighs else "term_coverage")
    fusion = fusion_named(DEFAULT_FUSION if is_able else "rrf")
    rows = default_first_hop_rows if is_able else reference_first_hop_rows
    return Settled(
        assessor=assessor if given.assessor is None else given.assessor,
        fusion=fusion if given.fusion is None else given.fusion,
        threshold=given.threshold,
        first_hop_rows=rows if given.first_hop_rows is None else given.first_hop_rows,
        budget=given.budget,
    )


def _refuse_beside(what: str, given: Choices, *, first_hop_rows: int) -> None:
    fixed = {"assessor": given.assessor, "fusion": given.fusion, "threshold": given.threshold}
    named = [name for name, value in fixed.items() if value is not None]
    if given.first_hop_rows not in (None, first_hop_rows):
        named.append("first_hop_rows")
    if named:
        raise ConfigurationError(f"{what} fixes {', '.join(named)}; leave out one or the other")


def _read(calibration: Calibration | str | Path) -> Calibration:
    if isinstance(calibration, (str, Path)):
        return Calibration.from_file(calibration)
    if not isinstance(calibration, Calibration):
        kind = type(calibration).__name__
        raise ConfigurationError(f"calibration: expected a Calibration or the path of one (got {kind})")
    return calibration


def _calibrated(given: Choices, calibration: Calibration) -> Settled:
    _refuse_beside("calibration:", given, first_hop_rows=calibration.first_hop_rows)
    assessor = assessor_named(calibration.assessor)
    if dict(assessor.settings) != calibration.assessor_settings:
        raise ConfigurationError(f"calibration: was made with another {calibration.assessor}; calibrate again")
    return Settled(
        assessor=assessor,
        fusion=fusion_named(calibration.fusion),
        threshold=calibration.threshold,
        first_hop_rows=calibration.first_hop_rows,
        budget=calibration.limits if given.budget is None else _same_limits(given.budget, calibration.limits),
    )


def _same_limits(given: Any, certified: Budget) -> Any:
    """The given budget, whose limits must be those of the certificate, save the deadline."""
    try:
        budget = Budget.model_validate(given) if isinstance(given, dict) else given
    except ValidationError as error:
        raise RequestError.from_validation(error, "budget") from None
    if isinstance(budget, Budget):
        for name, value in certified.model_dump(exclude={"deadline_ms"}).items():
            if getattr(budget, name) != value:
                raise ConfigurationError(
                    f"budget: {name}={getattr(budget, name)}, but the calibration was certified at {value}"
                )
    return budget
