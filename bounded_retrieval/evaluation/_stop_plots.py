"""How runs ended, and what stopping early cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.evaluation._drawing import (
    BLUE,
    FILL,
    GREEN,
    INK,
    LEFT,
    LINE,
    MUTED,
    ORANGE,
    PINK,
    RIGHT,
    SKY,
    WIDTH,
    YELLOW,
    Sheet,
    header_height,
    legend_columns,
    legend_height,
    name_lines,
    nothing_to_draw,
    own_settings,
    shortened,
    text_width,
)
from bounded_retrieval.evaluation.presentation import (
    Report,
    Shown,
    adaptive_policies,
    decimals,
    describe_confidence,
    distinct_policies,
    percent,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

_BAR = 13.5  # points that a bar is high
_EDGE: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.7}
_BELOW = 46.0  # points below the bars, for the axis


@dataclass(frozen=True)
class _Fill:
    """What a piece of a bar stands for, and how it looks."""

    label: str
    colour: str
    hatch: str = ""

    def patch(self) -> Patch:
        from matplotlib.patches import Patch

        return Patch(facecolor=self.colour, hatch=self.hatch, label=self.label, **_EDGE)


# Early stops

_STOPS_TITLE = "What early stops cost"
_CHANGES: Mapping[str, _Fill] = {
    "improved": _Fill("one more call ranks better: the stop did harm", ORANGE, "////"),
    "unchanged": _Fill("the same", FILL),
    "reduced": _Fill("one more call ranks worse", SKY, "\\\\\\"),
}
_HELD = _Fill("already held a relevant unit", GREEN, "---")
_ROW, _GROUP_GAP = 17.2, 13.4
_BARS_RIGHT, _FIGURES_LEFT = 436.0, 448.0


def early_stops(report: Report) -> Figure:
    """Early stops of each adaptive policy: what one more call would have changed, and how many held something."""
    name = shortened(report["collection"]["name"])
    notes = [f"{name}; runs that stopped after the first search, compared afterwards with making the second too"]
    adaptive = adaptive_policies(report)
    with own_settings():
        if not adaptive:
            return nothing_to_draw(_STOPS_TITLE, notes, "No policy of this report decides whether to stop.")
        fills = [*_CHANGES.values(), _HELD]
        top = header_height(notes) + 6
        box_top = top + legend_height([fill.label for fill in fills], 2) + 24
        heights = [_group_height(report["early_stops"][shown.name], shown) for shown in adaptive]
        box_bottom = box_top + sum(heights)
        sheet = Sheet.of(box_bottom + _BELOW)
        sheet.header(_STOPS_TITLE, notes)
        sheet.legend(LEFT, top, [fill.patch() for fill in fills], 2)
        sheet.text(
            _FIGURES_LEFT,
            box_top - 8,
            f"better / same / worse, harm rate [{describe_confidence(report)}]",
            color=MUTED,
        )
        names = max(text_width(line) for shown in adaptive for line in name_lines(shown))
        words = text_width("relevant held")
        axes = _bar_axes(sheet, (LEFT + 5 + names + 16 + words + 6, box_top, _BARS_RIGHT, box_bottom))
        start = box_top
        for shown, height in zip(adaptive, heights, strict=True):
            sheet.lines(LEFT + 5 + names, start + height / 2, name_lines(shown), ha="right")
            _draw_group(sheet, axes, report["early_stops"][shown.name], start + height / 2)
            start += height
        most = max(report["early_stops"][shown.name]["stops"] for shown in adaptive)
        _count_axis(axes, max(1, most), "early stops")
        return sheet.figure


def _group_height(found: Mapping[str, Any], shown: Shown) -> float:
    rows = len(found["cutoffs"]) + 1
    return max(rows * _ROW, len(name_lines(shown)) * LINE) + _GROUP_GAP


def _draw_group(sheet: Sheet, axes: Axes, found: Mapping[str, Any], middle: float) -> None:
    rows = len(found["cutoffs"]) + 1
    places = [middle + (place - (rows - 1) / 2) * _ROW for place in range(rows)]
    edge = axes.get_position().x0 * WIDTH - 6
    for place, (cutoff, each) in zip(places, found["cutoffs"].items(), strict=False):
        sheet.text(edge, place, f"nDCG@{cutoff}", ha="right", color=MUTED)
        sheet.text(_FIGURES_LEFT, place, _figures(each))
        _draw_bar(axes, place, [(each[word], fill) for word, fill in _CHANGES.items()])
    sheet.text(edge, places[-1], "relevant held", ha="right", color=MUTED)
    sheet.text(_FIGURES_LEFT, places[-1], f"{found['held_relevant']:,} of {found['stops']:,} stops")
    _draw_bar(axes, places[-1], [(found["held_relevant"], _HELD)])


def _figures(each: Mapping[str, Any]) -> str:
    counts = " / ".join(f"{each[word]:,}" for word in _CHANGES)
    if each["harm_rate"] is None:
        return counts
    low, high = (decimals(100 * bound, 1) for bound in each["harm_interval"])
    return f"{counts}, {percent(each['harm_rate'])} [{low}, {high}]"


# Stop reasons

_REASONS_TITLE = "How runs ended"
_REASONS: Mapping[str, _Fill] = {
    StopReason.PROXY_SUFFICIENT: _Fill("proxy_sufficient", SKY, "\\\\\\"),
    StopReason.RESOURCE_BUDGET_EXHAUSTED: _Fill("resource_budget_exhausted", YELLOW, "////"),
    StopReason.NO_NEW_EVIDENCE: _Fill("no_new_evidence", PINK, "xxxx"),
    StopReason.POLICY_COMPLETE: _Fill("policy_complete", FILL),
    StopReason.RETRIEVAL_FAILED: _Fill("retrieval_failed", ORANGE, "||||"),
}
_OTHERS = ((GREEN, "---"), (BLUE, "..."), (FILL, "oo"), (YELLOW, "**"))
_REASON_ROW = 24.0
_REASON_BARS = 290.0


def stop_reasons(report: Report) -> Figure:
    """How many queries each stop reason ended, a bar for each policy."""
    name = shortened(report["collection"]["name"])
    notes = [f"{name}; a stop reason never says that the evidence is correct or complete"]
    with own_settings():
        shown_policies = distinct_policies(report)
        fills = _reason_fills(report)
        labels = [fill.label for fill in fills.values()]
        columns = legend_columns(labels, RIGHT - 100 - LEFT)
        top = header_height(notes) + 6
        box_top = top + legend_height(labels, columns) + 10
        heights = [max(_REASON_ROW, len(name_lines(shown)) * LINE + 12) for shown in shown_policies]
        box_bottom = box_top + sum(heights)
        sheet = Sheet.of(box_bottom + _BELOW)
        sheet.header(_REASONS_TITLE, notes)
        sheet.legend(LEFT, top, [fill.patch() for fill in fills.values()], columns)
        names = max(text_width(line) for shown in shown_policies for line in name_lines(shown))
        left = LEFT + 17 + names + 9
        axes = _bar_axes(sheet, (left, box_top, min(left + _REASON_BARS, RIGHT - 160), box_bottom))
        most = max(report["policies"][shown.name]["queries"] for shown in shown_policies)
        _count_axis(axes, most, "queries")
        start = box_top
        for shown, height in zip(shown_policies, heights, strict=True):
            sheet.lines(left - 9, start + height / 2, name_lines(shown), ha="right")
            counts = report["policies"][shown.name]["stop_reasons"]
            _draw_reasons(
                sheet, axes, [(counts.get(reason, 0), fill) for reason, fill in fills.items()], start + height / 2
            )
            start += height
        return sheet.figure


def _reason_fills(report: Report) -> dict[str, _Fill]:
    found = {reason for policy in report["policies"].values() for reason in policy["stop_reasons"]}
    known = {str(reason): fill for reason, fill in _REASONS.items() if reason in found}
    others = sorted(found - known.keys())
    looks = (_OTHERS[place % len(_OTHERS)] for place in range(len(others)))
    return known | {reason: _Fill(shortened(reason), *look) for reason, look in zip(others, looks, strict=True)}


def _draw_reasons(sheet: Sheet, axes: Axes, counts: Sequence[tuple[int, _Fill]], middle: float) -> None:
    _draw_bar(axes, middle, counts)
    box = axes.get_position()
    in_points = box.width * WIDTH / axes.get_xlim()[1]
    start, beside = 0, []
    for count, fill in counts:
        text = f"{count:,}"
        if count * in_points >= text_width(text) + 6:
            where = (box.x0 * WIDTH + (start + count / 2) * in_points, middle)
            white = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.2}
            sheet.text(*where, text, ha="center", bbox=white)
        elif count:
            beside.append(f"{fill.label} {text}")
        start += count
    sheet.text(box.x1 * WIDTH + 12, middle, ", ".join(beside))


# Bars


def _bar_axes(sheet: Sheet, box: tuple[float, float, float, float]) -> Axes:
    """Axes whose upright scale is the sheet's: points from its top."""
    axes = sheet.axes(*box)
    axes.set_ylim(box[3], box[1])
    axes.set_yticks([])
    axes.grid(axis="x")
    return axes


def _count_axis(axes: Axes, most: int, label: str) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_xlim(0, most * 1.01)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel(label)


def _draw_bar(axes: Axes, middle: float, pieces: Sequence[tuple[int, _Fill]]) -> None:
    start = 0
    for count, fill in pieces:
        if count:
            axes.barh(middle, count, _BAR, left=start, color=fill.colour, hatch=fill.hatch, **_EDGE)
        start += count
