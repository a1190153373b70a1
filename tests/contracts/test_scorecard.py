from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bounded_retrieval.contracts.scorecard import FactorPoints, ScorecardTable, shipped_scorecard

TABLE: dict[str, Any] = {
    "factors": [
        {"name": "phrases", "edges": [0.25, 0.5], "points": [10, 60]},
        {"name": "coverage", "edges": [1.0], "points": [40]},
    ],
    "thresholds": {"default": 0.5},
    "provenance": {"command": "none"},
}


def changed(*path: Any, value: Any) -> dict[str, Any]:
    """A good table with one thing changed."""
    table = json.loads(json.dumps(TABLE))
    place = table
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return table


BAD = {
    "a sign that there is not": (changed("factors", 0, "name", value="luck"), "factors.0.name"),
    "a sign twice": (changed("factors", 1, "name", value="phrases"), "a sign is there twice (phrases, phrases)"),
    "no sign": (changed("factors", value=[]), "factors"),
    "no edge": (changed("factors", 0, "edges", value=[]), "factors.0.edges"),
    "more points than edges": (changed("factors", 0, "points", value=[1, 2, 3]), "phrases: 2 edges and 3 points"),
    "points that fall": (changed("factors", 0, "points", value=[60, 10]), "phrases: edges rise and points never fall"),
    "edges that fall": (changed("factors", 0, "edges", value=[0.5, 0.25]), "phrases: edges rise and points never fall"),
    "an edge twice": (changed("factors", 0, "edges", value=[0.5, 0.5]), "phrases: edges rise and points never fall"),
    "an edge at 0": (changed("factors", 0, "edges", value=[0.0, 0.5]), "factors.0.edges.0"),
    "a share above 1": (changed("factors", 0, "edges", value=[0.5, 1.5]), "phrases: edges are shares of at most 1"),
    "too many terms": (
        changed("factors", 0, value={"name": "terms", "edges": [1001], "points": [1]}),
        "terms: edges are counts of at most 1000 (got 1001)",
    ),
    "too great a length": (
        changed("factors", 0, value={"name": "length", "edges": [100, 1_000_001], "points": [1, 2]}),
        "length: edges are counts of at most 1000000 (got 1000001)",
    ),
    "an endless edge": (changed("factors", 0, "edges", value=[0.5, float("inf")]), "factors.0.edges.1"),
    "negative points": (changed("factors", 0, "points", value=[-1, 2]), "factors.0.points.0"),
    "half a point": (changed("factors", 0, "points", value=[0.5, 2]), "factors.0.points.0"),
    "a threshold above 1": (changed("thresholds", "default", value=1.1), "thresholds.default"),
    "a field too many": (changed("note", value="x"), "note"),
    "no provenance": ({name: part for name, part in TABLE.items() if name != "provenance"}, "provenance"),
    "another format": (changed("format", value="bounded-retrieval-scorecard-2"), "format"),
}


def test_a_good_table() -> None:
    """The table that the bad ones are made of is read, and says what the most points are."""
    assert ScorecardTable.model_validate(TABLE).most == 100


@pytest.mark.parametrize("case", BAD)
def test_a_bad_table_is_refused(case: str) -> None:
    """What cannot be added up, falls, or is out of bounds is refused, and the field is named."""
    table, expected = BAD[case]
    with pytest.raises(ValidationError, match=re.escape(expected)):
        ScorecardTable.model_validate(table)


@pytest.mark.parametrize(("value", "points"), [(0.0, 0), (0.2499, 0), (0.25, 10), (0.4999, 10), (0.5, 60), (1.0, 60)])
def test_points_are_those_of_the_highest_edge_reached(value: float, points: int) -> None:
    """An edge is reached at its own value; below the first one there are none, beyond the last one its own."""
    assert FactorPoints(name="phrases", edges=(0.25, 0.5), points=(10, 60)).of(value) == points


edges = st.lists(st.integers(1, 100), min_size=1, max_size=6, unique=True).map(
    lambda found: tuple(edge / 100 for edge in sorted(found))
)
share = st.floats(0, 1)


@given(edges, st.data(), share, share)
def test_a_better_sign_is_never_worth_less(edges: tuple[float, ...], data: Any, first: float, second: float) -> None:
    """Whatever table passes, more of a sign never gives fewer points, and never more than the last edge's."""
    points = data.draw(st.lists(st.integers(0, 99), min_size=len(edges), max_size=len(edges)).map(sorted))
    factor = FactorPoints(name="lead", edges=edges, points=tuple(points))
    low, high = sorted((first, second))
    assert 0 <= factor.of(low) <= factor.of(high) <= factor.points[-1]


def test_the_shipped_table_can_be_read_and_says_where_it_comes_from() -> None:
    """It has all four signs, about a hundred points, the three settings in order, and its provenance."""
    table = shipped_scorecard()
    assert {factor.name for factor in table.factors} == {"phrases", "lead", "terms", "length"}
    assert 95 <= table.most <= 105
    assert 0 < table.thresholds["economy"] < table.thresholds["default"] < table.thresholds["quality"] <= 1
    assert {"command", "collections", "seed", "target", "versions"} <= table.provenance.keys()
    assert all(each["fingerprint"] and each["slices"] for each in table.provenance["collections"])


def test_the_shipped_table_is_what_its_file_says() -> None:
    """Nothing is added or lost in reading, so that what a person reads is what decides."""
    text = resources.files("bounded_retrieval").joinpath("data/scorecard.json").read_text(encoding="utf-8")
    assert shipped_scorecard().model_dump(mode="json") == json.loads(text)


def test_a_table_does_not_change() -> None:
    """A table is frozen: one process's scorecards all add up alike."""
    with pytest.raises(ValidationError):
        shipped_scorecard().thresholds = {}  # type: ignore[misc]
