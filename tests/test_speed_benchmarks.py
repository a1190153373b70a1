"""The speed benchmarks run, and report what they say they measure; how fast anything is, no test decides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from bounded_retrieval import BM25Searcher, create_bounded_retrieval

ROOT = Path(__file__).resolve().parents[1]
RUNS = {"stop", "continue", "reference stop", "reference continue"}
CALLS = {"calls of stop", "calls of continue"}
SHARES = {"empty stop", "empty continue", "plain stop"}
OWN = RUNS | CALLS | SHARES | {"lexical", "lexical+dense", "4 nodes", "6 nodes"}
OTHERS = {"ensemble", "llama-index", "haystack"}
UNITS = 200
BENCH = ROOT / "build" / "bench" / "bin" / "python"  # where `make bench` has been used


def run(script: str, *options: object, python: str = sys.executable) -> tuple[dict[str, Any], str]:
    """What one run of a benchmark wrote, and printed."""
    out = next(Path(str(option)) for option in options if str(option).endswith(".json"))
    command = [python, str(ROOT / "benchmarks" / script), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=out.parent)
    assert done.returncode == 0, done.stderr
    assert f"written: {out}" in done.stdout
    return json.loads(out.read_text(encoding="utf-8")), done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where indexes and reports go."""
    return tmp_path_factory.mktemp("speed")


@pytest.fixture(scope="module")
def latency(folder: Path) -> tuple[dict[str, Any], str]:
    """One short run at two sizes."""
    options = ["--indexes", folder / "indexes", "--out", folder / "latency.json", "--plot", folder / "latency.svg"]
    sizes = ["--sizes", UNITS, 2 * UNITS, "--alternatives-up-to", UNITS]
    python = str(BENCH) if BENCH.is_file() else sys.executable
    return run("latency.py", *sizes, "--queries", 3, *options, python=python)


def test_latency_times_everything_at_every_size(latency, folder):
    """Every part has its times on every query, the others up to their largest size, and what is left out is said."""
    report, printed = latency
    assert [size["units"] for size in report["sizes"]] == [UNITS, 2 * UNITS]
    present = OTHERS - report["left_out"].keys()
    assert "ensemble" in present
    for size, expected in zip(report["sizes"], (OWN | present, OWN), strict=True):
        assert size["times_ms"].keys() == expected
        for figures in size["times_ms"].values():
            assert 0 < figures["p50"] <= figures["p99"]
            assert figures["queries"] == 3
        assert size["dense"] == "exact"
        assert size["processor"]["times_ms"].keys() == expected
    assert all(name in printed for name in OWN | OTHERS)
    assert (folder / "latency.svg").read_text(encoding="utf-8").count("<svg") == 1
    assert report["environment"]["packages"]["bounded-retrieval"]


def test_latency_relates_each_run_to_its_searches_and_to_the_others(latency):
    """Ratios are those of the times in the same report."""
    report, _ = latency
    small = report["sizes"][0]
    medians = {name: figures["p50"] for name, figures in small["times_ms"].items()}
    for name, bare in (("stop", "lexical"), ("reference continue", "lexical+dense")):
        assert small[name]["over_bare_ratio"] == pytest.approx(medians[name] / medians[bare])
        assert small[name]["ensemble_ratio"] == pytest.approx(medians["ensemble"] / medians[name])
        empty = f"empty {name.rpartition(' ')[2]}"
        assert small[name]["empty_graph_in_six_nodes"] == pytest.approx(medians[empty] / medians["6 nodes"])
        assert small[name]["overhead_in_six_nodes"] == pytest.approx(small[name]["over_bare_ms"] / medians["6 nodes"])
    assert "ensemble_ratio" not in report["sizes"][1]["stop"]
    assert {name for name in RUNS if "further_calls_in_six_nodes" in small[name]} == {"stop", "continue"}
    assert {name for name in RUNS if "plain_nodes_in_six_nodes" in small[name]} == {"stop"}


def test_the_run_written_by_hand_finds_what_the_controller_finds():
    """What it leaves out is checks and records: over the same units both give the same documents in the same order."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from plain_nodes import plain_stop
    finally:
        sys.path.pop(0)
    texts = ("the pump leaks oil", "oil for the pump", "a pump of brass", "brass bands", "valves leak", "leaking pumps")
    documents = [Document(id=str(number), page_content=text) for number, text in enumerate(texts)]
    searcher = BM25Searcher.from_documents(documents)
    graph = create_bounded_retrieval(searcher, units=searcher, threshold=0.0).compile()
    for query in ("leaking pump", "brass", "pump oil valves"):
        by_hand = plain_stop(searcher, searcher, 4)(query)
        assert by_hand["documents"]
        found = graph.invoke({"query": query})["documents"]
        assert [(d.id, d.page_content) for d in by_hand["documents"]] == [(d.id, d.page_content) for d in found]


@pytest.mark.usefixtures("latency")
def test_latency_uses_the_indexes_that_are_there(folder):
    """A second run builds nothing."""
    options = ["--sizes", UNITS, "--queries", 2, "--alternatives-up-to", 0, "--indexes", folder / "indexes"]
    _, printed = run("latency.py", *options, "--out", folder / "again.json")
    assert "building" not in printed


@pytest.fixture(scope="module")
def throughput(folder: Path) -> dict[str, Any]:
    """One short run of all parts."""
    options = ["--units", UNITS, "--flights", 1, 3, "--seconds", 0.05, "--rounds", 1, "--memory-requests", 80]
    report, _ = run("throughput.py", *options, "--indexes", folder / "indexes", "--out", folder / "throughput.json")
    return report


def test_throughput_rates_every_way_of_asking(throughput):
    """Both graphs and the others, through both ways, at each number in flight, with both embeddings."""
    present = OTHERS - throughput["left_out"].keys()
    expected = {
        (name, way, flight)
        for name in {"stop", "continue"} | present
        for way in ("ainvoke", "batch")
        for flight in (1, 3)
    }
    assert throughput["rates"].keys() == {"stand-in", "minilm"}
    for rows in throughput["rates"].values():
        assert {(row["name"], row["way"], row["in_flight"]) for row in rows} == expected
        assert all(row["queries_per_second"] > 0 for row in rows)


def test_no_search_waits_for_another(throughput):
    """While one search is held still at any of its lines, another of its kind comes to its end."""
    searches = throughput["overlap"]["searches"]
    assert searches.keys() == {"lexical", "lexical, filtered", "dense", "dense, score", "units"}
    for found in searches.values():
        assert found["lines"] > 20
        assert found["others_wait_in"] == []


def test_memory_is_sampled_while_requests_pass(throughput):
    """Forty samples of a plausible size, of all requests."""
    memory = throughput["memory"]
    assert memory["requests"] == 80
    assert len(memory["rss_mib"]) == 40
    assert all(30 < sample < 8_000 for sample in memory["rss_mib"])


PLANTED = """
import sys, threading
sys.path.insert(0, {benchmarks!r})
import overlapping

lock = threading.Lock()

def locked():
    with lock:
        return 1

overlapping._ROOT, overlapping.PATIENCE_S = "<string>", 0.2
print(overlapping.lines_that_hold_others(locked, lambda number: locked()))
"""


def test_a_lock_across_a_search_is_found():
    """The check that no search waits sees a planted lock: it stops a thread inside, and the other does not end."""
    code = PLANTED.format(benchmarks=str(ROOT / "benchmarks"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "(3, ['<string>:locked'])"


@pytest.mark.parametrize("name", ["llama-index", "haystack"])
def test_the_other_frameworks_answer(latency, name):
    """Where the dependency group bench is installed, they are timed too."""
    report, _ = latency
    if name in report["left_out"]:
        pytest.skip(f"{name}: {report['left_out'][name]}")
    assert report["sizes"][0]["times_ms"][name]["queries"] == 3
