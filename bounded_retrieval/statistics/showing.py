"""Figures for a person: tables in a terminal, plain lines elsewhere, and a picture."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bounded_retrieval.contracts.wording import NOTES, printable
from bounded_retrieval.errors import ConfigurationError, RequestError
from bounded_retrieval.evaluation.writing import check_file, write_bytes
from bounded_retrieval.statistics.counting import AMOUNTS, GOOD_END, Report
from bounded_retrieval.statistics.reading import Kind
from bounded_retrieval.statistics.rules import LEAST_RUNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES = (".svg", ".png")
"""What a picture's name may end in."""

_TITLES: dict[Kind, str] = {"bounded": "bounded runs", "chain": "chains"}
_HOPS: dict[Kind, str] = {"bounded": "search", "chain": "hop"}
_COLOURS: dict[Kind, str] = {"bounded": "#4c78a8", "chain": "#54a24b"}
_SPREAD = {"in all": "total", "median": "median", "90 %": "p90", "most": "most"}
_NUMBERS = frozenset({"runs", "share", *_SPREAD, "runs without", "rests on", "from"})


@dataclass(frozen=True)
class _Section:
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    after: str = ""

    @property
    def heading(self) -> str:
        return self.title if self.rows else f"{self.title}: none"

    def is_right(self, place: int) -> bool:
        return place > 0 and self.columns[place] in _NUMBERS


def render_statistics(report: Report, console: Console) -> RenderableType:
    """The report for a person: tables in a terminal, plain lines elsewhere."""
    sections = [section for kind in _TITLES if report[kind]["runs"] for section in _of_kind(kind, report[kind])]
    sections.append(_suggestions(report))
    return Group(*(_table(section) if console.is_terminal else Text(_plain(section)) for section in sections))


def _of_kind(kind: Kind, counted: Report) -> Iterator[_Section]:
    title, hop, good = _TITLES[kind], _HOPS[kind], counted[GOOD_END[kind]]
    heading = f"{title}: {counted['runs']:,}, {GOOD_END[kind]}: {good['count']:,} ({good['share']:.1%})"
    ends = [(name, *_count(each)) for name, each in counted["stop_reasons"].items()]
    yield _Section(heading, ("stop reason", "runs", "share"), ends)
    costs = [(word, *_spread(counted[name])) for name, word in AMOUNTS[kind].items()]
    yield _Section(f"{title}: cost of a run", ("counted", *_SPREAD), costs)
    found = [
        (f"{each['hop']}", f"{each['runs']:,}", *_spread(each), f"{each['none']:,}") for each in counted["new_units"]
    ]
    yield _Section(f"{title}: new units of each {hop}", (hop, "runs", *_SPREAD, "runs without"), found)
    notes = [
        (printable(" ".join(name.split())), *_count(each), NOTES.get(name, ""))
        for name, each in counted["notes"].items()
    ]
    yield _Section(f"{title}: notes", ("note", "runs", "share", "says"), notes)


def _count(each: Report) -> tuple[str, str]:
    return f"{each['count']:,}", f"{each['share']:.1%}"


def _spread(spread: Report) -> tuple[str, ...]:
    return tuple(f"{spread[name]:,}" for name in _SPREAD.values())


def _suggestions(report: Report) -> _Section:
    rows, unmet = [], []
    for rule in report["rules"]:
        name, basis, least = f"{rule['kind']} {rule['rule']}", _basis(rule), f"{rule['threshold']:.0%}"
        if rule["suggested"]:
            advice = f"{rule['counts']}: {rule['suggestion']}"
            rows.append((name, f"{basis} ({rule['share']:.1%})", least, advice))
        elif rule["runs"] >= LEAST_RUNS:
            unmet.append(f"{name} {basis} (from {least})")
    after = [f"below their thresholds: {', '.join(unmet)}"] if unmet else []
    few = [title for kind, title in _TITLES.items() if 0 < report[kind]["runs"] < LEAST_RUNS]
    after += [f"{title}: nothing is suggested on fewer than {LEAST_RUNS} runs" for title in few]
    return _Section("suggestions", ("rule", "rests on", "from", "suggestion"), rows, "\n".join(after))


def _basis(counted: Report) -> str:
    return f"{counted['count']:,} of {counted['runs']:,}"


def _table(section: _Section) -> RenderableType:
    table = Table(title=Text(section.title, style="bold"), title_justify="left")
    for place, column in enumerate(section.columns):
        right = section.is_right(place)
        table.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=column in _NUMBERS)
    for row in section.rows:
        table.add_row(*map(Text, row))
    shown = table if section.rows else Text(section.heading, style="bold")
    return Group(shown, *([Text(section.after)] if section.after else []), Text())


def _plain(section: _Section) -> str:
    rows = [section.columns, *section.rows] if section.rows else []
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if section.is_right(place) else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([section.heading, *(f"  {line}" for line in lines), *filter(None, [section.after]), ""])


def check_picture(path: Path) -> None:
    """Make sure that a picture can be drawn under this name before anything is read.

    Raises:
        RequestError: the name ends neither in .svg nor in .png.
        ConfigurationError: matplotlib is not installed; names the extra.
        SourceError: the file cannot be written there.
    """
    if path.suffix.lower() not in PICTURES:
        raise RequestError(f"--plot {path}: expected a name that ends in {' or '.join(PICTURES)}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        message = '--plot: matplotlib is not installed; run pip install "bounded-retrieval[plots]"'
        raise ConfigurationError(message) from error
    check_file(path, "--plot")


def draw_stop_reasons(report: Report, path: Path) -> None:
    """Draw how the runs ended, bounded runs and chains apart; the same report gives the same file.

    Raises:
        RequestError: the name ends neither in .svg nor in .png.
        ConfigurationError: matplotlib is not installed.
        SourceError: the file cannot be written.
    """
    check_picture(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    kinds = [kind for kind in _TITLES if report[kind]["runs"]]
    bars = [len(report[kind]["stop_reasons"]) for kind in kinds]
    # A fixed salt and no date: the same counts give the same file.
    with mpl.rc_context({"svg.hashsalt": "stop-reasons", "svg.fonttype": "none", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(8, sum(bars) * 0.35 + len(bars) * 0.9), facecolor="white", layout="constrained")
        rows = figure.subplots(len(kinds), 1, squeeze=False, height_ratios=bars)
        for kind, axes in zip(kinds, rows[:, 0], strict=True):
            _draw_bars(axes, kind, report[kind])
        is_svg = path.suffix.lower() == ".svg"
        metadata = {"Date": None, "Creator": None} if is_svg else {"Software": None}
        drawn = io.BytesIO()
        figure.savefig(drawn, format=path.suffix.lower().removeprefix("."), metadata=metadata, dpi=150)
    write_bytes(path.parent, {path.name: drawn.getvalue()})


def _draw_bars(axes: Axes, kind: Kind, counted: Report) -> None:
    stops = counted["stop_reasons"]
    bars = axes.barh(list(stops), [each["share"] * 100 for each in stops.values()], color=_COLOURS[kind])
    axes.bar_label(bars, labels=[_basis({**counted, **each}) for each in stops.values()], padding=3)
    axes.invert_yaxis()
    axes.set_xlim(0, 115)
    axes.set_xticks(range(0, 101, 20))
    axes.set_title(f"{_TITLES[kind]}: percent by stop reason", loc="left", fontsize=10)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
