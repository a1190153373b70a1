from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_world import GOOD_STOP, MIXED, query_text, scripted, unit_id

from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.evaluation.experiment import Experiment, LiveCheck, run_experiment
from bounded_retrieval.evaluation.summary import BASELINES, EXCERPT_CHARS, FORMAT, summarise, timings
from bounded_retrieval.evaluation.variants import read_variants
from bounded_retrieval.policies.registry import ASSESSORS, FUSIONS

PROMISED = {"ndcg@4", "recall@4", "queries", "calls", "dense_calls", "rows", "reads", "stop_reasons"}

CHILD = """
import json, sys
from small_world import MIXED, scripted
from bounded_retrieval.evaluation.experiment import run_experiment
from bounded_retrieval.evaluation.summary import summarise

world = scripted(MIXED)
documents = {document.id: document for document in world["collection"].documents()}
report = summarise(run_experiment(**world, live=1), documents=documents, resamples=200)
sys.stdout.write(json.dumps(report))
"""


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    """All policies over six queries."""
    return run_experiment(**scripted(MIXED), live=2)


@pytest.fixture(scope="module")
def report(experiment: Experiment) -> dict[str, Any]:
    """The report of them, with the texts of all units."""
    documents = {str(each.id): each for each in experiment.collection.documents()}
    return summarise(experiment, documents=documents, about={"units": 24}, resamples=200, seed=3)


def test_the_report_is_json_and_has_every_policy_and_figure_of_the_contract(report: dict[str, Any]) -> None:
    """Fixed policies, fusions, the reference, every assessor; with what is beside each result."""
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["format"] == FORMAT
    policies = report["policies"]
    assert {"fixed_lexical", "fixed_dense", "always_continue", "reference", "adaptive"} <= policies.keys()
    assert {f"always_continue:{fusion}" for fusion in FUSIONS} | {
        f"adaptive:{assessor}" for assessor in ASSESSORS
    } <= policies.keys()
    for found in policies.values():
        assert PROMISED | {"depth", "actions", "ranking", "intervals"} <= found.keys()
    assert report["collection"]["units"] == 24
    assert report["collection"]["name"] == "manuals"
    assert report["live_check"] == {"queries": 2, "runs": 2 * len(policies), "different": []}


def test_the_figures_of_a_policy_are_those_of_its_runs(experiment: Experiment, report: dict[str, Any]) -> None:
    """Sums of what was spent, means of what was measured, a count for each stop reason, an interval around each mean."""
    for name, found in report["policies"].items():
        runs = list(experiment.outcomes[name].values())
        assert found["queries"] == len(runs) == sum(found["stop_reasons"].values())
        assert found["stop_reasons"].keys() <= {reason.value for reason in StopReason}
        for spent in ("calls", "dense_calls", "rows", "reads"):
            assert found[spent] == sum(run.usage[spent] for run in runs)
        for measure, (low, high) in found["intervals"].items():
            assert found[measure] == pytest.approx(sum(run.measures[measure] for run in runs) / len(runs), abs=1e-6)
            assert 0 <= low <= found[measure] <= high <= 1
    assert report["policies"]["reference"]["dense_calls"] == 2
    assert report["policies"]["fixed_dense"]["dense_calls"] == 6
    assert report["policies"]["fixed_lexical"]["dense_calls"] == 0


def test_every_policy_is_compared_with_the_baselines_and_its_own_arm(
    experiment: Experiment, report: dict[str, Any]
) -> None:
    """In the ranking and in the packet; never with itself; better, equal and worse add up."""
    found = {(each["policy"], each["against"], each["measure"]): each for each in report["differences"]}
    assert len(found) == len(report["differences"])
    for variant in experiment.variants:
        own = [variant.continue_arm().name] if variant.policy == "adaptive" else []
        against = {name for policy, name, _ in found if policy == variant.name}
        assert against == {*BASELINES, *own} - {variant.name}
    for each in found.values():
        assert each["better"] + each["equal"] + each["worse"] == 6
    pair = found["reference", "always_continue", "ndcg@4"]
    assert (pair["better"], pair["equal"], pair["worse"]) == (1, 3, 2)
    means = [report["policies"][name]["ndcg@4"] for name in ("reference", "always_continue")]
    assert pair["mean"] == pytest.approx(means[0] - means[1], abs=2e-6)
    assert pair["interval"][0] <= pair["mean"] <= pair["interval"][1]


def test_a_query_shows_what_every_policy_made_of_it(report: dict[str, Any]) -> None:
    """The second one: a harmful stop."""
    found = report["queries"][1]
    assert (found["query_id"], found["text"], found["relevant"]) == ("q001", query_text(1), {unit_id("r", 1): 1})
    assert [row["unit_id"] for row in found["channels"]["dense"]] == [unit_id(letter, 1) for letter in "rab"]
    assert [row["rank"] for row in found["channels"]["lexical"]] == [1, 2, 3]
    assert len(found["matched"][unit_id("a", 1)]) == 5
    run = found["runs"]["reference"]
    assert (run["stopped_early"], run["one_more_call"], run["dense_calls"]) == (True, "improved", 0)
    assert (run["decision"]["coverage"], run["decision"]["sufficient"]) == (1, True)
    assert run["packed"] == [unit_id(letter, 1) for letter in "abc"]
    assert found["runs"].keys() == report["policies"].keys()
    assert "decision" not in found["runs"]["fixed_dense"]
    assert report["queries"][4]["runs"]["reference"]["one_more_call"] == "improved"
    assert report["queries"][4]["runs"]["reference"]["stopped_early"] is False


def test_what_is_said_of_stops_and_reasons_fits_the_policies(report: dict[str, Any]) -> None:
    """The parts of one report agree."""
    adaptive = report["early_stops"].keys()
    assert adaptive == report["arms"].keys() == report["ceilings"].keys() == report["curves"].keys()
    for name in adaptive:
        stops = sum(query["runs"][name]["stopped_early"] for query in report["queries"])
        assert report["early_stops"][name]["stops"] == stops
        assert {report["arms"][name]["stop"], report["arms"][name]["continue"]} <= report["policies"].keys()
        assert report["ceilings"][name]["ndcg@4"] >= report["policies"][name]["ndcg@4"] - 1e-6
    for name, reasons in report["stop_reasons"].items():
        assert {reason: group["queries"] for reason, group in reasons.items()} == report["policies"][name][
            "stop_reasons"
        ]


def test_grades_of_nothing_are_not_shown_as_relevant() -> None:
    """Of a query's judgements only those above 0."""
    experiment = run_experiment(
        **scripted([(5, "rab", "cde", {"r": 1, "a": 0, "b": -1})]), variants=read_variants(["reference"]), live=0
    )
    assert summarise(experiment, resamples=100)["queries"][0]["relevant"] == {unit_id("r", 0): 1}


def test_excerpts_are_short_and_only_of_what_was_given(experiment: Experiment) -> None:
    """A report without documents quotes nothing."""
    (first, *_) = experiment.collection.documents()
    long = first.model_copy(update={"page_content": "word " * 100, "metadata": {"title": "On words"}})
    found = summarise(experiment, documents={"u": long}, resamples=100)["units"]
    assert found == {"u": {"title": "On words", "text": ("word " * 100)[:EXCERPT_CHARS], "chars": 500}}
    assert summarise(experiment, resamples=100)["units"] == {}


def test_the_same_observations_give_the_same_bytes(experiment: Experiment) -> None:
    """Twice over one experiment, and over another run of it."""
    again = run_experiment(**scripted(MIXED), live=2)
    first, second, third = (json.dumps(summarise(each, resamples=200)) for each in (experiment, experiment, again))
    assert first == second == third


def test_the_seed_and_the_confidence_move_intervals_and_nothing_else(
    experiment: Experiment, report: dict[str, Any]
) -> None:
    """Wider ones for more confidence; the means stay."""
    narrow = summarise(experiment, resamples=200, seed=3, confidence=0.6)["policies"]
    for name, found in report["policies"].items():
        low, high = found["intervals"]["ndcg@4"]
        inner_low, inner_high = narrow[name]["intervals"]["ndcg@4"]
        assert low <= inner_low <= inner_high <= high
        assert found["ndcg@4"] == narrow[name]["ndcg@4"]
    assert narrow["reference"]["intervals"] != report["policies"]["reference"]["intervals"]


def test_two_processes_with_other_hash_seeds_write_the_same_bytes() -> None:
    """Nothing depends on the order of a set; and no folder of the machine is named."""
    outputs = []
    for seed in ("1", "77"):
        paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        finished = subprocess.run(
            [sys.executable, "-c", CHILD], capture_output=True, timeout=120, check=True, env=environment
        )
        outputs.append(finished.stdout)
    assert outputs[0] == outputs[1]
    assert str(Path.cwd()).encode() not in outputs[0]
    report = json.loads(outputs[0])
    assert len(report["policies"]) >= 10
    assert report["policies"]["fixed_dense"]["rows"] > 0


def named(experiment: Experiment, latencies: dict[str, Sequence[float]]) -> dict[str, Any]:
    """Timings, had the live runs taken so long."""
    return timings(replace(experiment, latencies={name: tuple(values) for name, values in latencies.items()}))


def test_timings_are_apart_from_the_report(experiment: Experiment, report: dict[str, Any]) -> None:
    """Percentiles that occurred; a policy that was not run live has none."""
    found = named(experiment, {"reference": [5.0, 1.0, 3.0, 2.0, 4.0], "fixed_dense": []})
    assert found["latency_ms"] == {"reference": {"runs": 5, "p50": 3.0, "p95": 5.0}}
    assert found["seconds"].keys() == {"retrieval", "policies", "live"}
    assert "seconds" not in json.dumps(report)
    assert "latency" not in json.dumps(report)


def test_a_live_check_that_failed_is_in_the_report(experiment: Experiment) -> None:
    """By policy and query."""
    live = LiveCheck(queries=1, runs=2, different=(("reference", "q000"),))
    found = summarise(replace(experiment, live=live), resamples=100)["live_check"]
    assert found == {"queries": 1, "runs": 2, "different": [["reference", "q000"]]}


def test_one_query_is_enough_for_a_report() -> None:
    """Its intervals are points."""
    experiment = run_experiment(**scripted([GOOD_STOP]), variants=read_variants(["reference"]), live=0)
    found = summarise(experiment, resamples=100)["policies"]["reference"]
    assert (found["ndcg@4"], found["intervals"]["ndcg@4"]) == (1, [1, 1])
