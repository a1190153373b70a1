"""What the pictures have in common: a sheet measured in points, one look for all, and the same bytes every time.

matplotlib is imported inside functions: it is an extra, and reports can be had without it.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.evaluation.presentation import Shown, one_line

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["png", "svg"]

WIDTH = 648.0
"""Of every sheet, in points: 9 inches."""

LEFT = 13.0
"""Left edge of titles and legends, in points."""

RIGHT = 636.0

INK, MUTED, GRID, FILL = "#222222", "#5f5f5f", "#e4e4e4", "#cfcfcf"
ORANGE, GREEN, PINK, SKY, BLUE, YELLOW = "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#0072b2", "#e69f00"
"""Okabe and Ito's colours, which most colour-blind readers tell apart; a marker or a hatch says the same again."""

BODY, HEADING = 8.5, 12.0
LINE = 9.6
"""From one line of a label to the next, in points."""

MOST_CHARS, MOST_LINES = 36, 4
_FAMILY = "DejaVu Sans"  # comes with matplotlib
_LEGEND_ROW = 13.0
_DPI = 150

_OWN: dict[Any, Any] = {
    "font.family": _FAMILY,
    "font.size": BODY,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "bounded-retrieval",
    "svg.fonttype": "path",
}


def check_matplotlib() -> None:
    """Make sure that pictures can be drawn.

    Raises:
        ConfigurationError: matplotlib is not installed; names the extra.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        message = 'plots: matplotlib is not installed; run pip install "bounded-retrieval[plots]"'
        raise ConfigurationError(message) from error


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """Draw with the settings of this module, whatever the user's are; those are back afterwards."""
    check_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_OWN)
        yield


def rendered(figure: Figure, kind: Kind) -> bytes:
    """A figure as a file, without a date; equal figures give equal bytes."""
    target = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with own_settings():
        figure.savefig(target, format=kind, dpi=_DPI, metadata=metadata)
    return target.getvalue()


@dataclass(frozen=True)
class Sheet:
    """A figure on which places are given in points from its upper left corner."""

    figure: Figure
    height: float

    @classmethod
    def of(cls, height: float) -> Sheet:
        """A white sheet of `WIDTH` and so many points in height."""
        from matplotlib.figure import Figure

        return cls(Figure(figsize=(WIDTH / 72, height / 72), facecolor="white"), height)

    def axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Axes in this box."""
        size = ((right - left) / WIDTH, (bottom - top) / self.height)
        return self.figure.add_axes((left / WIDTH, 1 - bottom / self.height, *size))

    def text(self, left: float, middle: float, text: str, **how: Any) -> None:
        """One line, from the left or as `how` has it, vertically centred."""
        where = (left / WIDTH, 1 - middle / self.height)
        self.figure.text(*where, plain(text), **{"va": "center", "parse_math": False, **how})

    def lines(self, left: float, middle: float, lines: Sequence[str], **how: Any) -> None:
        """Lines below each other, centred together."""
        for place, line in enumerate(lines):
            self.text(left, middle + (place - (len(lines) - 1) / 2) * LINE, line, **how)

    def header(self, title: str, notes: Sequence[str]) -> None:
        """The title and the lines below it; `header_height` says how much room they take."""
        self.text(LEFT, 15, title, fontsize=HEADING, fontweight="bold")
        for place, note in enumerate(notes):
            self.text(LEFT, 35 + 11.5 * place, note, color=MUTED)

    def legend(self, left: float, top: float, handles: Sequence[Artist], columns: int) -> None:
        """A legend whose upper left corner is here."""
        legend = self.figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(left / WIDTH, 1 - top / self.height),
            ncols=columns,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            handlelength=2.6,
            columnspacing=2,
            labelspacing=0.5,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)


def header_height(notes: Sequence[str]) -> float:
    """Points that a title and its notes take."""
    return 42 + 11.5 * (len(notes) - 1)


def legend_columns(labels: Sequence[str], width: float) -> int:
    """The most columns in which a legend with these labels is no wider than so many points."""
    fitting = (columns for columns in range(len(labels), 1, -1) if _legend_width(labels, columns) <= width)
    return next(fitting, 1)


def legend_height(labels: Sequence[str], columns: int) -> float:
    """Points that the rows of a legend take."""
    return _LEGEND_ROW * -(-len(labels) // columns)


def _legend_width(labels: Sequence[str], columns: int) -> float:
    # matplotlib fills column by column; the first ones are longer by one where the labels do not come out even.
    rows, longer = divmod(len(labels), columns)
    lengths = [rows + (place < longer) for place in range(columns)]
    starts = [sum(lengths[:place]) for place in range(columns)]
    groups = [labels[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    return sum(max(map(text_width, group)) for group in groups) + columns * 29 + (columns - 1) * 17


@dataclass(frozen=True)
class Scale:
    """A linear axis: data from `low` to `high` at points from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def points(self, value: float) -> float:
        """Where a value is."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def value(self, points: float) -> float:
        """What is at a place."""
        return self.low + (points - self.start) / (self.end - self.start) * (self.high - self.low)


def spread(places: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Move things along a line just so far that none overlaps another; their order is kept.

    Args:
        places: where their middles should be, ascending.
        sizes: how much room each needs.
        low: nothing reaches below this, if all have room.
        high: likewise, above this.
    """
    if not places:
        return []
    steps = [(one + two) / 2 for one, two in pairwise(sizes)]
    offsets = np.concatenate([[0.0], np.cumsum(steps)])
    level = _ascending([place - offset for place, offset in zip(places, offsets, strict=True)])
    most = high - sizes[-1] / 2 - offsets[-1]
    bounded = np.maximum(np.minimum(level, most), low + sizes[0] / 2)
    return [float(value) for value in bounded + offsets]


def _ascending(values: Sequence[float]) -> list[float]:
    """The nearest ascending values in the sense of least squares: neighbours out of order meet in their mean."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            other, count = pools.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]


def name_lines(shown: Shown) -> list[str]:
    """A label with every name of a policy, a line for each; past `MOST_LINES` their number."""
    first, *others = (shortened(name) for name in shown.names)
    if len(others) >= MOST_LINES:
        others = [*others[: MOST_LINES - 2], f"{len(others) - MOST_LINES + 2} more"]
    return [first, *(f"= {name}" for name in others)]


def shortened(text: str, most: int = MOST_CHARS) -> str:
    """One line of at most so many characters."""
    line = one_line(text)
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}\u2026"


def plain(text: str) -> str:
    """Text in characters that the font has; a question mark stands for each other one."""
    held = _characters()
    return "".join(character if ord(character) in held else "?" for character in text)


@cache
def _characters() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(_FAMILY)).get_charmap())


@cache
def text_width(text: str, size: float = BODY, weight: str = "normal") -> float:
    """Points that a line takes in the sheets' font."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(family=_FAMILY, size=size, weight=weight)
    width, _, _ = TextToPath().get_text_width_height_descent(plain(text), font, ismath=False)
    return float(width)


def nothing_to_draw(title: str, notes: Sequence[str], why: str) -> Figure:
    """A picture that says why there is none."""
    sheet = Sheet.of(header_height(notes) + 40)
    sheet.header(title, notes)
    sheet.text(LEFT, header_height(notes) + 16, why)
    return sheet.figure
