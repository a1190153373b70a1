"""Ranking quality against dense calls: every policy, and every adaptive one at all of its thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

from bounded_retrieval.evaluation._drawing import (
    BLUE,
    GREEN,
    INK,
    LINE,
    MUTED,
    ORANGE,
    PINK,
    RIGHT,
    SKY,
    YELLOW,
    Scale,
    Sheet,
    header_height,
    legend_columns,
    legend_height,
    name_lines,
    own_settings,
    plain,
    shortened,
    spread,
    text_width,
)
from bounded_retrieval.evaluation.presentation import (
    Report,
    Shown,
    adaptive_policies,
    decimals,
    describe_confidence,
    distinct_policies,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_TITLE = "Ranking quality against dense calls"
_BOX_LEFT, _LEAST_HEIGHT = 52.0, 290.0
_STEP = 6.3  # points between two policies with equal calls
_GAP = 23.0  # points between a column of labels and the nearest policy
_HALF = 0.5  # policies with fewer calls than this have their labels on the left
_SOLID, _DASHED = (0, ()), (0, (4.5, 2.2))
_MARKERS = "^vp*<>hPDH"
_GREYS = (MUTED, "#9b9b9b", INK)


@dataclass(frozen=True, kw_only=True)
class _Look:
    colour: str
    marker: str
    dashes: tuple[int, tuple[float, ...]] = _SOLID


@dataclass(frozen=True, kw_only=True)
class _Point:
    """One policy: dense calls for each query, mean and interval, and where in points its marker stands."""

    shown: Shown
    look: _Look
    calls: float
    mean: float
    low: float
    high: float
    place: float = 0.0

    @property
    def lines(self) -> list[str]:
        first, *others = name_lines(self.shown)
        return [f"{first}  {decimals(self.mean)}", *others]

    @property
    def is_left(self) -> bool:
        return self.calls < _HALF

    @property
    def room(self) -> float:
        return len(self.lines) * LINE + 6


@dataclass(frozen=True, kw_only=True)
class _Band:
    """Floor and ceiling between the same two arms."""

    random: list[Any]
    oracle: list[Any]
    rule: str

    def is_like(self, other: _Band) -> bool:
        return (self.random, self.oracle) == (other.random, other.oracle)


def policy_quality(report: Report, *, scope: str = "mean over queries") -> Figure:
    """Mean nDCG@4 of each policy with its interval, against its dense calls; curves over all thresholds.

    Args:
        report: needs ``collection``, ``settings``, ``policies``, ``early_stops`` and ``curves`` only.
        scope: what the means are over, for the label of the upright axis.
    """
    with own_settings():
        looks = _looks(report)
        points = [_point(report, shown, looks[shown.name]) for shown in distinct_policies(report)]
        bands = _bands(report)
        handles = [*_curve_handles(report, looks), *_band_handles(bands)]
        labels = [str(handle.get_label()) for handle in handles]
        across, points = _place(points)
        notes = _notes(report, points, across)
        columns = legend_columns(labels, RIGHT - _BOX_LEFT) if len(labels) > 1 else 1
        top = header_height(notes) + 9
        box_top = top + (legend_height(labels, columns) + 8 if labels else 0)
        box_bottom = box_top + max(_LEAST_HEIGHT, *(_room(points, is_left) for is_left in (True, False)))
        sheet = Sheet.of(box_bottom + 46)
        sheet.header(_TITLE, notes)
        if labels:
            sheet.legend(_BOX_LEFT + 4, top, handles, columns)
        up = Scale(*_limits(report, points), box_bottom, box_top)
        axes = sheet.axes(_BOX_LEFT, box_top, RIGHT, box_bottom)
        _set_up(axes, across, up, f"nDCG@4, {scope}")
        _draw_curves(axes, report, looks, bands)
        _draw_points(axes, points, across)
        _draw_labels(axes, points, across, up)
        return sheet.figure


def _looks(report: Report) -> dict[str, _Look]:
    adaptive = [shown.name for shown in adaptive_policies(report)]
    colours = (ORANGE, GREEN, PINK, SKY)
    looks = {
        name: _Look(
            colour=colours[place % len(colours)], marker=marker, dashes=_DASHED if place >= len(colours) else _SOLID
        )
        for place, (name, marker) in enumerate(zip(adaptive, cycle(_MARKERS), strict=False))
    }
    return {name: looks.get(name) or _look_of(name) for name in report["policies"]}


def _look_of(name: str) -> _Look:
    if name.startswith("fixed_lexical"):
        return _Look(colour=BLUE, marker="o")
    if name.startswith("fixed_dense"):
        return _Look(colour=YELLOW, marker="s")
    if name.startswith("always_continue"):
        return _Look(colour="#000000", marker="D")
    return _Look(colour=MUTED, marker="X")


def _point(report: Report, shown: Shown, look: _Look) -> _Point:
    policy = report["policies"][shown.name]
    low, high = policy["intervals"]["ndcg@4"]
    calls = policy["dense_calls"] / policy["queries"]
    return _Point(shown=shown, look=look, calls=calls, mean=policy["ndcg@4"], low=low, high=high)


def _bands(report: Report) -> list[_Band]:
    bands: list[_Band] = []
    for name, curve in report["curves"].items():
        policy = report["policies"][name]
        rule = f"{policy.get('ranking', '')} {policy.get('depth', '')}".strip()
        band = _Band(random=curve["random"], oracle=curve["oracle"], rule=rule)
        if not any(band.is_like(other) for other in bands):
            bands.append(band)
    return bands


def _curve_handles(report: Report, looks: dict[str, _Look]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], **_line_of(looks[shown.name]), label=plain(f"{shortened(shown.name, 30)} at every threshold"))
        for shown in adaptive_policies(report)
        if shown.name in report["curves"]
    ]


def _line_of(look: _Look) -> dict[str, Any]:
    return {"color": look.colour, "linestyle": look.dashes, "linewidth": 1.6}


def _band_handles(bands: Sequence[_Band]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    handles = []
    for place, band in enumerate(bands):
        of = f", {shortened(band.rule, 30)}" if len(bands) > 1 else ""
        oracle, random = _band_lines(place)
        handles.append(Line2D([], [], **oracle, label=plain(f"oracle: goes on where it pays (ceiling){of}")))
        handles.append(Line2D([], [], **random, label=plain(f"stopping at random (floor){of}")))
    return handles


def _band_lines(place: int) -> tuple[dict[str, Any], dict[str, Any]]:
    common = {"color": _GREYS[place % len(_GREYS)], "linewidth": 1.2}
    return {**common, "linestyle": "--"}, {**common, "linestyle": ":"}


def _place(points: Sequence[_Point]) -> tuple[Scale, list[_Point]]:
    """The axis of the calls, with room for the labels on both sides, and the points a little apart on it."""
    left, right = (_side_width(points, is_left) for is_left in (True, False))
    across = Scale(0, 1, _BOX_LEFT + 6 + left, RIGHT - 4 - right)
    order = sorted(points, key=lambda point: (point.calls, point.mean))
    wanted = [across.points(point.calls) for point in order]
    places = spread(wanted, [_STEP] * len(order), across.start - left, across.end + right)
    return across, [replace(point, place=place) for point, place in zip(order, places, strict=True)]


def _side_width(points: Sequence[_Point], is_left: bool) -> float:
    side = [point for point in points if point.is_left == is_left]
    labels = max((text_width(line) for point in side for line in point.lines), default=0.0)
    end = 0.0 if is_left else 1.0
    crowd = sum(abs(point.calls - end) < 0.02 for point in side)  # noqa: PLR2004 - as near as a step or so
    return labels + _GAP + max(0, crowd - 2) * _STEP / 2


def _room(points: Sequence[_Point], is_left: bool) -> float:
    return sum(point.room for point in points if point.is_left == is_left) + 12


def _notes(report: Report, points: Sequence[_Point], across: Scale) -> list[str]:
    queries = max((policy["queries"] for policy in report["policies"].values()), default=0)
    name = shortened(report["collection"]["name"])
    notes = [f"{name}, {queries:,} queries; bars: {describe_confidence(report)} bootstrap intervals"]
    if any(abs(across.points(point.calls) - point.place) > 1 for point in points):
        notes.append(
            "policies with equal or nearly equal calls stand a little apart, so that their intervals can be seen"
        )
    return notes


def _limits(report: Report, points: Sequence[_Point]) -> tuple[float, float]:
    found = [value for point in points for value in (point.low, point.mean, point.high)]
    for curve in report["curves"].values():
        found += [point["ndcg@4"] for point in curve["points"]]
        found += [value for part in ("random", "oracle") for _, value in curve[part]]
    low, high = min(found, default=0.0), max(found, default=1.0)
    margin = max((high - low) * 0.04, 0.005)
    return low - margin, high + margin


def _set_up(axes: Axes, across: Scale, up: Scale, label: str) -> None:
    axes.set_xlim(across.value(_BOX_LEFT), across.value(RIGHT))
    axes.set_ylim(up.low, up.high)
    axes.grid(axis="y")
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.spines["bottom"].set_bounds(0, 1)
    axes.set_xlabel("dense calls per query")
    axes.xaxis.set_label_coords((across.points(0.5) - _BOX_LEFT) / (RIGHT - _BOX_LEFT), -20 / (up.start - up.end))
    axes.set_ylabel(label)


def _draw_curves(axes: Axes, report: Report, looks: dict[str, _Look], bands: Sequence[_Band]) -> None:
    queries = {name: report["policies"][name]["queries"] for name in report["curves"]}
    total = max(queries.values(), default=1)
    for place, band in enumerate(bands):
        oracle, random = _band_lines(place)
        for points, how in ((band.oracle, oracle), (band.random, random)):
            axes.plot([made / total for made, _ in points], [value for _, value in points], **how, zorder=2)
    for shown in adaptive_policies(report):
        if shown.name in report["curves"]:
            points = report["curves"][shown.name]["points"]
            calls = [point["dense_calls"] / queries[shown.name] for point in points]
            axes.plot(calls, [point["ndcg@4"] for point in points], **_line_of(looks[shown.name]), zorder=3)


def _draw_points(axes: Axes, points: Sequence[_Point], across: Scale) -> None:
    for point in points:
        at = across.value(point.place)
        axes.plot([at, at], [point.low, point.high], color=point.look.colour, linewidth=1.1, alpha=0.85, zorder=4)
        axes.plot(
            [at],
            [point.mean],
            marker=point.look.marker,
            markersize=9 if point.look.marker == "*" else 7,
            color=point.look.colour,
            markeredgecolor="white",
            markeredgewidth=0.8,
            zorder=6,
        )


def _draw_labels(axes: Axes, points: Sequence[_Point], across: Scale, up: Scale) -> None:
    for is_left in (True, False):
        side = sorted((point for point in points if point.is_left == is_left), key=lambda point: -point.mean)
        edge = across.start - _side_width(points, True) + _widest(side) if is_left else RIGHT - 4 - _widest(side)
        wanted = [up.points(point.mean) for point in side]
        middles = spread(wanted, [point.room for point in side], up.end, up.start)
        for point, middle in zip(side, middles, strict=True):
            _draw_label(axes, point, (edge, middle), across, up)


def _widest(side: Sequence[_Point]) -> float:
    return max((text_width(line) for point in side for line in point.lines), default=0.0)


def _draw_label(axes: Axes, point: _Point, where: tuple[float, float], across: Scale, up: Scale) -> None:
    edge, middle = where
    ends = [across.value(edge + (2 if point.is_left else -2)), across.value(point.place)]
    axes.plot(ends, [up.value(middle), point.mean], color=point.look.colour, linewidth=0.7, alpha=0.7, zorder=2.5)
    for place, line in enumerate(point.lines):
        axes.text(
            across.value(edge),
            up.value(middle + (place - (len(point.lines) - 1) / 2) * LINE),
            plain(line),
            ha="right" if point.is_left else "left",
            va="center",
            parse_math=False,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            zorder=7,
        )
