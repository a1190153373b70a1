"""The drawing in the documentation, and the script that makes it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The names of the script that draws."""
    return runpy.run_path(str(DOCS / "draw_graph.py"))


def _drawn(path: Path) -> set[str]:
    return set(re.findall(r'<g id="((?:node|edge)\.[^"]+)"', path.read_text(encoding="utf-8")))


def test_the_committed_drawing_is_that_of_the_graph(script: dict[str, Any], tmp_path: Path) -> None:
    """Every node and edge with its label stands in ``docs/bounded-graph.svg``, as the command would draw it now."""
    script["main"]([str(tmp_path / "now.svg")])
    expected = script["identities"](script["controller"]())
    assert _drawn(tmp_path / "now.svg") == expected
    assert _drawn(DOCS / "bounded-graph.svg") == expected, "run: make drawing"
    assert "edge.assess_coverage.dense_search.continue" in expected


def test_the_same_graph_gives_the_same_file(script: dict[str, Any], tmp_path: Path) -> None:
    """No date, no chance: drawing twice gives equal bytes, and PNG works too."""
    for name in ("one.svg", "two.svg", "three.png"):
        script["main"]([str(tmp_path / name)])
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "three.png").read_bytes().startswith(b"\x89PNG")


def test_every_node_has_a_place_of_its_own(script: dict[str, Any]) -> None:
    """Each node is in one layer, and no two share a place."""
    graph = script["controller"]()
    places = script["arrange"](script["layers"](graph))
    assert set(places) == set(graph.nodes)
    assert len(set(places.values())) == len(places)
