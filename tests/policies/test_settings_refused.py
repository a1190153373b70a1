"""Settings of assessors and of the reader that are not valid are refused where they are given, in one line."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bounded_retrieval import ExtractiveReader, IdfCoverage, Scorecard, TermCoverage
from bounded_retrieval.errors import ConfigurationError, RequestError

BOUNDS = [
    (5, "Input should be less than or equal to 1 .got 5."),
    (-0.1, "Input should be greater than or equal to 0 .got -0.1."),
    ("x", "Input should be a valid number .got 'x'."),
    (None, "Input should be a valid number .got None."),
    (True, "Input should be a valid number .got True."),
    (math.nan, "Input should be a finite number .got nan."),
]


@pytest.mark.parametrize("assessor", [TermCoverage, IdfCoverage])
@pytest.mark.parametrize(("threshold", "message"), BOUNDS)
def test_a_default_threshold_is_a_number_from_0_to_1(assessor: Any, threshold: Any, message: str) -> None:
    """The assessor refuses it itself, made or changed, instead of the graph that it is given to."""
    pattern = rf"^{assessor.name}\.default_threshold: {message}$"
    with pytest.raises(RequestError, match=pattern):
        assessor(default_threshold=threshold)
    with pytest.raises(RequestError, match=pattern):
        replace(assessor(), default_threshold=threshold)


@pytest.mark.parametrize("assessor", [TermCoverage, IdfCoverage])
@pytest.mark.parametrize("threshold", [0, 1, 0.5, np.float64(0.5)])
def test_the_bounds_themselves_are_taken(assessor: Any, threshold: Any) -> None:
    """A threshold within the bounds is kept as it was given."""
    assert assessor(default_threshold=threshold).default_threshold == threshold


@pytest.mark.parametrize("setting", [[], {}, 5, None], ids=repr)
def test_a_setting_of_the_scorecard_is_a_name(setting: Any) -> None:
    """What cannot be looked up is as unknown as any other name."""
    with pytest.raises(ConfigurationError, match=r"^setting: one of default, economy, quality \(got .+\)$"):
        Scorecard(setting=setting)


def test_a_table_of_the_scorecard_is_a_table() -> None:
    """Anything else is refused before a threshold is looked for in it."""
    with pytest.raises(ConfigurationError, match=r"^table: expected a ScorecardTable \(got 5\)$"):
        Scorecard(table=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("threshold", ["x", None, True, math.nan, [8]], ids=repr)
def test_the_readers_threshold_is_a_number(threshold: Any) -> None:
    """A reader that could compare no score with it is not made."""
    with pytest.raises(ConfigurationError, match=r"^threshold: expected a number \(got .+\)$"):
        ExtractiveReader(threshold=threshold)


@pytest.mark.parametrize("threshold", [-100, 0, 7, 8.5, np.float64(8), np.int64(8), math.inf])
def test_any_number_is_a_threshold_of_the_reader(threshold: Any) -> None:
    """Also one that every score reaches, or none."""
    assert ExtractiveReader(threshold=threshold).threshold == threshold
