# ruff: noqa: INP001, T201 - a script, which says what it wrote
"""Draw both compiled graphs beside this script, without a network or a browser.

``bounded-graph.svg`` is the controller, ``recursive-graph.svg`` the chain. Run it with ``make drawing``, or
``python docs/draw_graph.py [FOLDER [svg | png]]``. Nodes, edges and their labels are those of ``graph.get_graph()``,
what Studio draws too; the line below a node's name is the first line of its module. Every node and edge stands in the
SVG as a group whose id names it, so that a test can tell whether the file is current.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from langchain_core.runnables.graph import Edge, Graph
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Outline

from bounded_retrieval import create_bounded_retrieval, create_recursive_retrieval
from bounded_retrieval.testing import ScriptedSearcher

DOCS = Path(__file__).parent

# Inches; a row of the drawing is a layer of the graph, from the start down.
BOX, PILL, COLUMN, GAP, MARGIN = (2.4, 0.72), (0.9, 0.34), 2.9, 0.72, 0.25
# An edge that would run through a box goes beside its column: lanes apart, arrow heads apart, radius of a corner.
LANE, APART, CORNER = 0.42, 0.2, 0.12
INK, FAINT = "#1f2937", "#64748b"
STEP, DECISION, END = ("#eef2ff", "#6366f1"), ("#fff7ed", "#ea580c"), ("#f1f5f9", "#94a3b8")

Place = tuple[float, float]


def controller() -> Graph:
    """The graph of the controller with both channels; no searcher is called."""
    lexical, dense = ScriptedSearcher([], "lexical"), ScriptedSearcher([], "dense")
    return create_bounded_retrieval(lexical, dense).compile(name="bounded_retrieval").get_graph()


def chain() -> Graph:
    """The graph of the recursive chain; no search is made and no planner asked."""
    return create_recursive_retrieval(lambda _: [], lambda *_: None).compile(name="recursive_retrieval").get_graph()


DRAWINGS = {"bounded-graph": controller, "recursive-graph": chain}


def identities(graph: Graph) -> set[str]:
    """The ids under which every node and edge of a graph stands in its drawing."""
    return {f"node.{name}" for name in graph.nodes} | {_edge_id(edge) for edge in graph.edges}


def layers(graph: Graph) -> list[list[str]]:
    """Nodes by the most edges from the start (none that leads back), in the graph's own order within a layer."""
    onward = [edge for edge in graph.edges if not leads_back(graph, edge)]
    depth = dict.fromkeys(graph.nodes, 0)
    for _ in graph.nodes:
        for edge in onward:
            depth[edge.target] = max(depth[edge.target], depth[edge.source] + 1)
    return [[name for name in graph.nodes if depth[name] == row] for row in range(max(depth.values()) + 1)]


def leads_back(graph: Graph, edge: Edge) -> bool:
    """Whether an edge closes a loop: its target is nearer to the start, and its source can be reached from there."""
    fewest = _fewest_edges(graph)
    return fewest[edge.target] < fewest[edge.source] and edge.source in _reached(graph, edge.target)


def _reached(graph: Graph, start: str) -> set[str]:
    found = {start}
    for _ in graph.nodes:
        found |= {edge.target for edge in graph.edges if edge.source in found}
    return found


def _fewest_edges(graph: Graph) -> dict[str, int]:
    found, row = {"__start__": 0}, ["__start__"]
    while row:
        row = [edge.target for edge in graph.edges if edge.source in row and edge.target not in found]
        found |= dict.fromkeys(row, max(found.values()) + 1)
    return found


def arrange(rows: list[list[str]]) -> dict[str, Place]:
    """The middle of each node's box, in inches; rows are centred on 0 and go down from 0."""
    places: dict[str, Place] = {}
    y = 0.0
    for row, below in zip(rows, [*rows[1:], []], strict=True):
        height = max(_size(name)[1] for name in row)
        y -= height / 2
        places |= {name: ((column - (len(row) - 1) / 2) * COLUMN, y) for column, name in enumerate(row)}
        has_end = any(_size(name) == PILL for name in [*row, *below])
        y -= height / 2 + (GAP / 2 if has_end else GAP)
    return places


def lanes(graph: Graph, places: dict[str, Place]) -> dict[str, list[Place]]:
    """The corners of every edge that skips a row within its column, by the edge's id.

    Onward edges run on the right, those that lead back on the left; a longer one runs outside a shorter one and ends
    beyond it, so that none crosses another.
    """
    corners: dict[str, list[Place]] = {}
    for side in (1, -1):
        beside = [e for e in graph.edges if _skips_a_row(places, e) and leads_back(graph, e) == (side < 0)]
        beside.sort(key=lambda edge: abs(places[edge.source][1] - places[edge.target][1]))
        for number, edge in enumerate(beside):
            (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
            y2 -= side * APART * (number - (len(beside) - 1) / 2)
            lane = side * (BOX[0] / 2 + LANE * (number + 1)) + x1
            ends = (x1 + side * _size(edge.source)[0] / 2, y1), (x2 + side * _size(edge.target)[0] / 2, y2)
            corners[_edge_id(edge)] = [ends[0], (lane, y1), (lane, y2), ends[1]]
    return corners


def draw(graph: Graph, target: Path) -> None:
    """Write the drawing; the ending of the file's name says whether as SVG or PNG."""
    places = arrange(layers(graph))
    beside = lanes(graph, places)
    # A fixed salt and no date: the same graph gives the same file.
    settings = {"svg.hashsalt": "bounded-graph", "svg.fonttype": "none", "font.family": "DejaVu Sans"}
    with mpl.rc_context(settings):
        axes = _canvas(places, beside)
        decisions = {edge.source for edge in graph.edges if edge.conditional}
        boxes = {name: _draw_node(axes, graph, name, place, decisions) for name, place in places.items()}
        for edge in graph.edges:
            if _edge_id(edge) in beside:
                _draw_beside(axes, edge, beside[_edge_id(edge)])
            else:
                _draw_between(axes, edge, places, boxes, is_paired=_has_reverse(graph, edge))
        _draw_legend(axes)
        metadata = {"Date": None, "Creator": None} if target.suffix == ".svg" else {"Software": None}
        axes.figure.savefig(target, metadata=metadata, dpi=150)


def _skips_a_row(places: dict[str, Place], edge: Edge) -> bool:
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    return x1 == x2 and abs(y2 - y1) > 1.5 * (BOX[1] + GAP)


def _size(name: str) -> tuple[float, float]:
    return PILL if name.startswith("__") else BOX


def _canvas(places: dict[str, Place], beside: dict[str, list[Place]]) -> Axes:
    turns = [x for corners in beside.values() for x, _ in corners]
    left = min([*turns, *(x - BOX[0] / 2 for x, _ in places.values())]) - MARGIN
    right = max([*turns, *(x + BOX[0] / 2 for x, _ in places.values())]) + MARGIN
    bottom = min(y - _size(name)[1] / 2 for name, (_, y) in places.items()) - MARGIN
    axes = Figure(figsize=(right - left, MARGIN - bottom), facecolor="white").add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, MARGIN)
    return axes


def _draw_node(axes: Axes, graph: Graph, name: str, place: Place, decisions: set[str]) -> FancyBboxPatch:
    is_end = name.startswith("__")
    face, rim = END if is_end else DECISION if name in decisions else STEP
    width, height = _size(name)
    x, y = place
    box = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle=f"round,pad=0,rounding_size={height / 2 if is_end else 0.1}",
        facecolor=face,
        edgecolor=rim,
        linewidth=1.3,
        gid=f"node.{name}",
        zorder=3,
    )
    axes.add_patch(box)
    told = textwrap.wrap(_about(graph.nodes[name].data), 44)
    top = y + 0.075 * len(told)
    weight = "normal" if is_end else "bold"
    axes.text(x, top, name.strip("_"), ha="center", va="center", size=9.5, weight=weight, color=INK, zorder=4)
    for number, line in enumerate(told, 1):
        axes.text(x, top - 0.03 - 0.155 * number, line, ha="center", va="center", size=7, color=FAINT, zorder=4)
    return box


def _about(node: Any) -> str:
    function = getattr(node, "_function", None)
    opening = (inspect.getdoc(inspect.getmodule(function)) or "").partition("\n")[0] if function else ""
    return opening.partition(": ")[2].rstrip(".")


def _draw_between(
    axes: Axes, edge: Edge, places: dict[str, Place], boxes: dict[str, FancyBboxPatch], *, is_paired: bool
) -> None:
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    # An edge past another row of boxes goes round it.
    is_long = abs(y2 - y1) > 1.5 * (BOX[1] + GAP)
    bend = 0.25 if is_paired else -0.25 if is_long else 0.0
    arrow = FancyArrowPatch(
        (x1, y1),
        (x2, y2),
        patchA=boxes[edge.source],
        patchB=boxes[edge.target],
        connectionstyle=f"arc3,rad={bend}",
        shrinkA=1,
        shrinkB=1,
        **_style(edge),
    )
    axes.add_patch(arrow)
    _label(axes, edge, _between(edge, places, bend))


def _draw_beside(axes: Axes, edge: Edge, corners: list[Place]) -> None:
    start, first, second, end = corners
    sign = -1 if second[1] < first[1] else 1
    side = 1 if first[0] > start[0] else -1
    turn, rise = side * CORNER, sign * CORNER
    points = [start, (first[0] - turn, first[1]), first, (first[0], first[1] + rise)]
    points += [(second[0], second[1] - rise), second, (second[0] - turn, second[1]), (end[0] + side * 0.02, end[1])]
    line, curve = Outline.LINETO, Outline.CURVE3
    codes = [Outline.MOVETO, line, curve, curve, line, curve, curve, line]
    axes.add_patch(FancyArrowPatch(path=Outline(points, codes), **_style(edge)))
    _label(axes, edge, (first[0], first[1] + sign * (BOX[1] + GAP) / 2))


def _style(edge: Edge) -> dict[str, Any]:
    return {
        "arrowstyle": "-|>,head_length=5,head_width=2.6",
        "linestyle": (0, (4, 2.5)) if edge.conditional else "solid",
        "color": DECISION[1] if edge.conditional else INK,
        "linewidth": 1.2,
        "gid": _edge_id(edge),
        "zorder": 2,
    }


def _label(axes: Axes, edge: Edge, place: Place) -> None:
    if edge.data:
        halo = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.text(*place, str(edge.data), ha="center", va="center", size=8, color=DECISION[1], bbox=halo, zorder=5)


def _between(edge: Edge, places: dict[str, Place], bend: float) -> Place:
    # Half-way between the two boxes; beside a curve, on its outer side.
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    down = 1 if y2 < y1 else -1
    middle = (y1 + y2 + down * (_size(edge.target)[1] - _size(edge.source)[1]) / 2) / 2
    part = (middle - y1) / (y2 - y1)
    return x1 + part * (x2 - x1) + 2.0 * bend * (y2 - y1), middle


def _draw_legend(axes: Axes) -> None:
    shown = [
        Line2D([], [], color=INK, linewidth=1.2, label="always"),
        Line2D([], [], color=DECISION[1], linewidth=1.2, linestyle=(0, (4, 2.5)), label="decided at run time"),
    ]
    axes.legend(handles=shown, loc="lower left", frameon=False, fontsize=7.5, labelcolor=FAINT, handlelength=2.6)


def _has_reverse(graph: Graph, edge: Edge) -> bool:
    return any((other.source, other.target) == (edge.target, edge.source) for other in graph.edges)


def _edge_id(edge: Edge) -> str:
    return ".".join(["edge", edge.source, edge.target, *([str(edge.data)] if edge.data else [])])


def main(arguments: Sequence[str]) -> None:
    """Draw both graphs into the folder named, or beside this script."""
    folder, ending = (*arguments, *(str(DOCS), "svg")[len(arguments) :])
    for name, graph in DRAWINGS.items():
        target = Path(folder) / f"{name}.{ending}"
        draw(graph(), target)
        print(f"wrote {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
