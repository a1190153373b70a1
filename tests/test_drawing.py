"""The drawings in the documentation, and the script that makes them."""

from __future__ import annotations

import re
import runpy
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = ("bounded-graph", "recursive-graph")

Point = tuple[float, float]
Box = tuple[float, float, float, float]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The names of the script that draws."""
    return runpy.run_path(str(DOCS / "draw_graph.py"))


def _drawn(path: Path) -> set[str]:
    return set(re.findall(r'<g id="((?:node|edge)\.[^"]+)"', path.read_text(encoding="utf-8")))


def _lines(path: Path) -> dict[str, list[Point]]:
    """Points along every node's rim and every edge, by id; the first path of a group is its line."""
    found: dict[str, list[Point]] = {}
    for group in ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}g"):
        if group.get("id", "").startswith(("node.", "edge.")):
            found[group.get("id", "")] = _points(group[0].get("d", ""))
    return found


def _points(outline: str) -> list[Point]:
    corners = [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", outline)]
    steps = [number / 50 for number in range(51)]
    return [(x1 + (x2 - x1) * t, y1 + (y2 - y1) * t) for (x1, y1), (x2, y2) in pairwise(corners) for t in steps]


def _box(rim: list[Point], inwards: float = 0.0) -> Box:
    xs, ys = [x for x, _ in rim], [y for _, y in rim]
    return min(xs) + inwards, min(ys) + inwards, max(xs) - inwards, max(ys) - inwards


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _labels(path: Path) -> list[tuple[str, Box]]:
    """The words on the edges and the room that each takes, at half an em a letter."""
    texts = ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    shown = [(text.text or "", float(text.get("x", "")), float(text.get("y", "")), text) for text in texts]
    return [
        (word, (x - 2.3 * len(word), y - 7, x + 2.3 * len(word), y + 2))
        for word, x, y, text in shown
        if "#ea580c" in text.get("style", "")
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_drawing_is_that_of_the_graph(script: dict[str, Any], name: str, tmp_path: Path) -> None:
    """Every node and edge with its label stands in the file, as the command would draw it now."""
    script["main"]([str(tmp_path)])
    expected = script["identities"](script["DRAWINGS"][name]())
    assert _drawn(tmp_path / f"{name}.svg") == expected
    assert _drawn(DOCS / f"{name}.svg") == expected, "run: make drawing"


def test_both_graphs_are_drawn(script: dict[str, Any]) -> None:
    """The controller with its one way back, and the chain with every way to its end."""
    assert tuple(script["DRAWINGS"]) == NAMES
    drawn = {name: _drawn(DOCS / f"{name}.svg") for name in NAMES}
    assert "edge.assess_coverage.dense_search.continue" in drawn["bounded-graph"]
    assert "edge.check_limits.plan_hop.next" in drawn["recursive-graph"]
    assert sum(name.endswith(".finish_chain.stop") for name in drawn["recursive-graph"]) == 4


def test_the_same_graph_gives_the_same_file(script: dict[str, Any], tmp_path: Path) -> None:
    """No date, no chance: drawing twice gives equal bytes, and PNG works too."""
    for folder, ending in (("one", "svg"), ("two", "svg"), ("three", "png")):
        (tmp_path / folder).mkdir()
        script["main"]([str(tmp_path / folder), ending])
    for name in NAMES:
        assert (tmp_path / f"one/{name}.svg").read_bytes() == (tmp_path / f"two/{name}.svg").read_bytes()
        assert (tmp_path / f"three/{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", NAMES)
def test_every_node_has_a_place_of_its_own(script: dict[str, Any], name: str) -> None:
    """Each node is in one layer, and no two share a place."""
    graph = script["DRAWINGS"][name]()
    places = script["arrange"](script["layers"](graph))
    assert set(places) == set(graph.nodes)
    assert len(set(places.values())) == len(places)


@pytest.mark.parametrize("name", NAMES)
def test_no_arrow_runs_through_a_box(name: str) -> None:
    """A line touches the boxes at its ends and no other, and its inside not even there."""
    lines = _lines(DOCS / f"{name}.svg")
    boxes = {key: _box(rim, inwards=1) for key, rim in lines.items() if key.startswith("node.")}
    for key, points in lines.items():
        if key.startswith("edge."):
            hit = {node for x, y in points for node, box in boxes.items() if _meet((x, y, x, y), box)}
            assert hit == set(), key


@pytest.mark.parametrize("name", NAMES)
def test_no_label_stands_on_a_box_or_on_another(name: str) -> None:
    """Words on edges have room of their own."""
    boxes = [_box(rim) for key, rim in _lines(DOCS / f"{name}.svg").items() if key.startswith("node.")]
    labels = _labels(DOCS / f"{name}.svg")
    assert len(labels) == sum(key.count(".") == 3 for key in _drawn(DOCS / f"{name}.svg"))
    for number, (word, room) in enumerate(labels):
        others = [other for _, other in labels[number + 1 :]]
        assert [other for other in (*boxes, *others) if _meet(room, other)] == [], word


def test_ways_beside_a_column_do_not_cross(script: dict[str, Any]) -> None:
    """Onward edges are nested on the right, the one that leads back is on the left."""
    graph = script["chain"]()
    lanes = script["lanes"](graph, script["arrange"](script["layers"](graph)))
    turns = {key: (corners[1][0], corners[2][1]) for key, corners in lanes.items()}
    assert turns.pop("edge.check_limits.plan_hop.next")[0] < 0
    order = [f"edge.{name}.finish_chain.stop" for name in ("check_sufficiency", "check_novelty", "plan_hop")]
    assert sorted(turns, key=lambda key: turns[key][0]) == order
    assert sorted(turns, key=lambda key: -turns[key][1]) == order
