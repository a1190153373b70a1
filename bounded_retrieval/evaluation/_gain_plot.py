"""Coverage at the first decision against what one more call gains: whether the assessor sees where going on pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bounded_retrieval.evaluation._drawing import (
    BLUE,
    LEFT,
    MUTED,
    ORANGE,
    PINK,
    RIGHT,
    WIDTH,
    Sheet,
    header_height,
    legend_columns,
    legend_height,
    nothing_to_draw,
    own_settings,
    shortened,
    text_width,
)
from bounded_retrieval.evaluation.bootstrap import Interval, mean_interval
from bounded_retrieval.evaluation.presentation import (
    Report,
    Shown,
    adaptive_policies,
    arms_of,
    describe_confidence,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

MOST_BINS = 8
LEAST_IN_BIN = 10
"""Queries of a bin, as far as equal coverages allow; fewer say nothing."""

_TITLE = "Coverage at the first decision against the gain of one more call"
_RESAMPLES = 2_000  # of a bin's mean; a picture shows no more
_PANEL, _CLOUD, _GAP, _BINS = 400.0, 224.0, 14.0, 96.0
_AXES_LEFT = 56.0
_TITLE_SIZE = 9.5
_SMALLEST, _AREA = 16.0, 14.0  # square points of a mark for one query, and for each further one
_LARGEST = 900.0
_EQUAL = 1e-9


@dataclass(frozen=True)
class _Seen:
    """One query: coverage at the first decision, what going on gains in nDCG@4, and whether the policy stopped."""

    coverage: float
    gain: float
    stopped: bool

    @property
    def mark(self) -> tuple[float, float, int, bool]:
        return round(self.coverage, 2), round(self.gain, 2), self.sign, self.stopped

    @property
    def sign(self) -> int:
        return (self.gain > _EQUAL) - (self.gain < -_EQUAL)


def coverage_against_gain(report: Report) -> Figure:
    """Each query's coverage against the nDCG@4 that one more call gains, a panel for each adaptive policy."""
    notes = [
        f"{shortened(report['collection']['name'])}; above: a mark's area counts queries; filled: the policy stopped",
        f"below: mean gain in bins of about equally many queries, {describe_confidence(report)} bootstrap intervals",
    ]
    adaptive = [shown for shown in adaptive_policies(report) if _seen(report, shown)]
    with own_settings():
        if not adaptive:
            return nothing_to_draw(_TITLE, notes[:1], "No policy of this report decided anything about a query.")
        handles = _handles()
        labels = [str(handle.get_label()) for handle in handles]
        columns = legend_columns(labels, RIGHT - LEFT)
        top = header_height(notes) + 5
        panels_top = top + legend_height(labels, columns) + 22
        wide = 1 if len(adaptive) == 1 else 2
        sheet = Sheet.of(panels_top + _PANEL * -(-len(adaptive) // wide) - 16)
        sheet.header(_TITLE, notes)
        sheet.legend(LEFT, top, handles, columns)
        step = WIDTH / wide
        for place, shown in enumerate(adaptive):
            row, column = divmod(place, wide)
            left = _AXES_LEFT + column * step
            right = (column + 1) * step - 14
            _draw_panel(sheet, report, shown, (left, panels_top + row * _PANEL, right))
        return sheet.figure


def _seen(report: Report, shown: Shown) -> list[_Seen]:
    stop, go_on = arms_of(report, shown.name)
    found = []
    for query in report["queries"]:
        runs = query["runs"]
        decision = runs[shown.name]["decision"]
        if decision is not None:
            gain = runs[go_on]["ndcg@4"] - runs[stop]["ndcg@4"]
            found.append(_Seen(decision["coverage"], gain, runs[shown.name]["stopped_early"]))
    return found


def _threshold(report: Report, shown: Shown) -> float:
    decisions = (query["runs"][shown.name]["decision"] for query in report["queries"])
    return next(float(decision["threshold"]) for decision in decisions if decision is not None)


_MARKS: dict[int, tuple[str, str, str]] = {
    1: ("^", ORANGE, "one more call ranks better"),
    0: ("o", MUTED, "the same"),
    -1: ("v", BLUE, "one more call ranks worse"),
}


def _handles() -> list[Line2D]:
    from matplotlib.lines import Line2D

    hollow: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "white", "markersize": 6}
    marks = [
        Line2D([], [], marker=marker, color=colour, label=label, **hollow) for marker, colour, label in _MARKS.values()
    ]
    filled = Line2D([], [], marker="o", color=MUTED, linestyle="none", markersize=6, label="filled: stopped")
    return [*marks, filled, Line2D([], [], marker="D", color=PINK, markersize=5, label="mean of a bin")]


def _draw_panel(sheet: Sheet, report: Report, shown: Shown, where: tuple[float, float, float]) -> None:
    left, top, right = where
    seen, threshold = _seen(report, shown), _threshold(report, shown)
    sheet.text(left, top - 9, _fitting(shown.label, right - left), fontsize=_TITLE_SIZE, fontweight="bold")
    cloud = sheet.axes(left, top, right, top + _CLOUD)
    bins = sheet.axes(left, top + _CLOUD + _GAP, right, top + _CLOUD + _GAP + _BINS)
    for axes in (cloud, bins):
        axes.set_xlim(-0.04, 1.04)
        axes.grid(axis="y")
        axes.axhline(0, color=MUTED, linewidth=0.9, zorder=1.5)
        axes.axvspan(threshold, 1.04, color="#eeeeee", zorder=0)
        axes.axvline(threshold, color="#000000", linewidth=1.0, linestyle="--", zorder=2)
    _draw_cloud(cloud, seen)
    cloud.tick_params(labelbottom=False)
    cloud.set_ylabel("nDCG@4 gained")
    is_right = threshold > 0.5  # noqa: PLR2004 - on the side that has room
    cloud.annotate(
        f"threshold {threshold:g}",
        (threshold, 0),
        (-4 if is_right else 4, 4),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if is_right else "left",
        color=MUTED,
    )
    _draw_bins(bins, _binned(seen), report)
    bins.set_ylabel("mean gain")
    bins.set_xlabel("coverage at the first decision")


def _fitting(text: str, width: float) -> str:
    most = len(text)
    while most > 1 and text_width(shortened(text, most), _TITLE_SIZE, "bold") > width:
        most -= 1
    return shortened(text, most)


def _draw_cloud(axes: Axes, seen: Sequence[_Seen]) -> None:
    counts = Counter(each.mark for each in seen)
    scale = min(1.0, (_LARGEST - _SMALLEST) / (_AREA * max(1, max(counts.values()) - 1)))
    # Large marks first, so that small ones stay visible.
    for (coverage, gain, sign, stopped), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        marker, colour, _ = _MARKS[sign]
        axes.scatter(
            [coverage],
            [gain],
            s=_SMALLEST + _AREA * scale * (count - 1),
            marker=marker,
            facecolor=colour if stopped else "white",
            edgecolor=colour,
            linewidth=0.9,
            alpha=0.85,
            zorder=3,
            clip_on=False,
        )
    reach = 1.15 * max([0.1, *(abs(gain) for _, gain, _, _ in counts)])
    axes.set_ylim(-reach, reach)


def _binned(seen: Sequence[_Seen]) -> list[list[_Seen]]:
    """Bins of about equally many queries, by coverage; queries with equal coverage stay together."""
    size = max(LEAST_IN_BIN, -(-len(seen) // MOST_BINS))
    bins: list[list[_Seen]] = [[]]
    for each in sorted(seen, key=lambda each: each.coverage):
        if len(bins[-1]) >= size and each.coverage > bins[-1][-1].coverage:
            bins.append([])
        bins[-1].append(each)
    if len(bins) > 1 and len(bins[-1]) < size / 2:
        last = bins.pop()
        bins[-1].extend(last)
    return bins


def _draw_bins(axes: Axes, bins: Sequence[Sequence[_Seen]], report: Report) -> None:
    for members in bins:
        found = _mean_gain(members, report["settings"])
        at = sum(each.coverage for each in members) / len(members)
        axes.plot([at, at], [found.low, found.high], color=PINK, linewidth=2, zorder=3)
        axes.plot([at], [found.mean], marker="D", markersize=6, color=PINK, markeredgecolor="white", zorder=4)
    axes.margins(y=0.12)


def _mean_gain(members: Sequence[_Seen], settings: dict[str, Any]) -> Interval:
    return mean_interval(
        [each.gain for each in members],
        resamples=min(settings["resamples"], _RESAMPLES),
        seed=settings["seed"],
        confidence=settings["confidence"],
    )
