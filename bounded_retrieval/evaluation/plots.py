"""The pictures of a report: each takes the report and gives a matplotlib figure; no window, no user settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bounded_retrieval.evaluation._drawing import Kind, check_matplotlib, rendered
from bounded_retrieval.evaluation._gain_plot import coverage_against_gain
from bounded_retrieval.evaluation._quality_plot import policy_quality
from bounded_retrieval.evaluation._stop_plots import early_stops, stop_reasons
from bounded_retrieval.evaluation.presentation import Report
from bounded_retrieval.evaluation.writing import write_bytes

__all__ = [
    "PICTURES",
    "captions",
    "check_matplotlib",
    "coverage_against_gain",
    "draw_plots",
    "early_stops",
    "policy_quality",
    "render_plots",
    "stop_reasons",
]

KINDS: tuple[Kind, ...] = ("png", "svg")

_PLOTS: dict[str, Callable[[Report], Any]] = {
    "policy_quality": policy_quality,
    "early_stops": early_stops,
    "stop_reasons": stop_reasons,
    "coverage_against_gain": coverage_against_gain,
}
_CAPTIONS = {
    "policy_quality": """
        Ranking quality against dense calls: mean nDCG@4 of each policy with its bootstrap interval, and the curve of
        each adaptive policy over all thresholds, between stopping at random (floor) and the oracle (ceiling). The
        oracle chooses between the same two rankings as the policy; one that ranks otherwise may stand above it.
    """,
    "early_stops": """
        Early stops of each adaptive policy at k = 3 and k = 4: how many one more call would have ranked better, the
        same or worse, and how many already held a relevant unit.
    """,
    "stop_reasons": "Stop reasons of each policy: stacked bars of how many queries each reason ended.",
    "coverage_against_gain": """
        Coverage at the first decision against the nDCG@4 that one more call gains, query by query, with the threshold;
        below, mean gains of bins of queries with bootstrap intervals.
    """,
}

PICTURES = tuple(_PLOTS)
"""Names of the pictures, in the order in which a report shows them."""


def captions() -> dict[str, str]:
    """What each picture shows, in words that also stand for it where it cannot be seen."""
    return {name: " ".join(_CAPTIONS[name].split()) for name in PICTURES}


def render_plots(report: Report) -> dict[str, dict[Kind, bytes]]:
    """Every picture by name, as the bytes of a PNG and an SVG file; the same for the same report.

    Raises:
        ConfigurationError: matplotlib is not installed; names the extra.
    """
    check_matplotlib()
    figures = {name: draw(report) for name, draw in _PLOTS.items()}
    return {name: {kind: rendered(figure, kind) for kind in KINDS} for name, figure in figures.items()}


def draw_plots(report: Report, folder: str | Path) -> dict[str, list[Path]]:
    """Write every picture into a folder, which is created if need be: paths by the picture's name.

    Raises:
        ConfigurationError: matplotlib is not installed; names the extra.
        SourceError: the folder cannot be written to.
    """
    return {
        name: write_bytes(folder, {f"{name}.{kind}": content for kind, content in files.items()})
        for name, files in render_plots(report).items()
    }
