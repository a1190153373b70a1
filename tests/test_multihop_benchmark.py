from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "multihop.py"
COLLECTION = "musique_train100"
QUESTIONS = 5


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, collection_path: Callable[[str], Path]) -> Path:
    """The JSON file of one short run, beside its Markdown; skipped where the collection is not there."""
    source = collection_path(COLLECTION)
    folder = tmp_path_factory.mktemp("multihop")
    collections = folder / "collections"
    collections.mkdir()
    (collections / COLLECTION).symlink_to(source, target_is_directory=True)
    options = {"--collections": collections, "--cache": folder / "cache", "--json": folder / "figures.json"}
    named = [part for option in options.items() for part in map(str, option)]
    command = [sys.executable, str(SCRIPT), "--limit", str(QUESTIONS), *named]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.rstrip("\n") == (folder / "figures.md").read_text(encoding="utf-8").rstrip("\n")
    return folder / "figures.json"


@pytest.fixture(scope="module")
def figures(written: Path) -> dict[str, Any]:
    """What the run wrote of the collection."""
    report = json.loads(written.read_text(encoding="utf-8"))
    assert report["settings"]["limit"] == QUESTIONS
    assert list(report["collections"]) == [COLLECTION]
    return report["collections"][COLLECTION]


def _by_system(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["system"]: row for row in figures["recall"]}


def test_every_system_has_recall_at_both_sizes_and_its_cost(figures: dict[str, Any]) -> None:
    """Shares lie between 0 and 1, more of one ranking finds no less, an interval holds its mean, and calls are counted."""
    assert figures["questions"] == QUESTIONS == sum(figures["by_hops"].values())
    rows = _by_system(figures)
    assert {"lexical", "dense", "lexical + dense, fused", "controller, adaptive", "chain: template, gold"} <= set(rows)
    for row in rows.values():
        assert 0 <= row["recall_4"] <= 1
        assert 0 <= row["recall_8"] <= 1
        # An adaptive run with more rows may decide otherwise, and so find less.
        assert row["recall_4"] <= row["recall_8"] or row["system"] not in {"lexical", "dense", "lexical + dense, fused"}
        assert row["all_found_4"] <= row["recall_4"]
        assert row["units_4"] <= 4
        assert row["units_8"] <= 8
        assert row["calls"] >= row["hops"] >= 1
        for k in (4, 8):
            if row[f"over_baseline_{k}"] is not None:
                mean, low, high = row[f"over_baseline_{k}"]
                assert low <= mean <= high
    assert rows["lexical"]["calls"] == 1
    assert rows["lexical + dense, fused"]["calls"] == 2


def test_a_chain_with_annotated_sub_answers_finds_no_less_than_one_lexical_search(figures: dict[str, Any]) -> None:
    """The oracle's chain looks for each passage by its own sub-question, so that one search cannot be ahead of it."""
    rows = _by_system(figures)
    for k in ("recall_4", "recall_8"):
        assert rows["chain: template, gold"][k] >= rows["lexical"][k]


def test_reliability_has_each_hop_and_the_product(figures: dict[str, Any]) -> None:
    """Hops are counted as the questions have them; a right sub-answer was given, and a right chain ends right."""
    longest = max(map(int, figures["by_hops"]))
    hops = figures["hop_reliability"]
    assert [(row["reader"], row["hop"]) for row in hops] == [
        (reader, hop) for reader in ("8", "7", "none") for hop in range(1, longest + 1)
    ]
    for row in hops:
        assert row["right"] <= row["answered"]
        assert row["reached_with_all_right"] <= row["questions"] <= QUESTIONS
        if row["reader"] == "none":
            assert row["answered"] == 1
    for row in figures["chain_reliability"]:
        assert len(row["right_by_hop"]) == row["hops"]
        assert row["chains_all_right"] <= row["final_right"]


def test_every_rule_is_switched_off_in_turn(figures: dict[str, Any]) -> None:
    """Each chain has a row for every setting; all of its questions ended for a reason, and rules never add calls."""
    assert "template, reader 8" in figures["stop_rules"]
    for rows in figures["stop_rules"].values():
        by_rule = {row["rules"]: row for row in rows}
        assert {"all rules", "novelty off", "repeated off", "depth 8", "all off, depth 8"} <= set(by_rule)
        assert all(sum(row["stop_reasons"].values()) == QUESTIONS for row in rows)
        assert by_rule["all rules"]["calls"] <= by_rule["all off, depth 8"]["calls"]
        assert by_rule["all rules"]["over_all_rules"] == [0, 0, 0]


def test_the_figures_name_no_path_of_the_machine(written: Path) -> None:
    """Neither file says where it was made."""
    for file in (written, written.with_suffix(".md")):
        assert str(written.parent) not in file.read_text(encoding="utf-8")
        assert str(SCRIPT.parents[1]) not in file.read_text(encoding="utf-8")
