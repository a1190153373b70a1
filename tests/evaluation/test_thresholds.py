from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from small_world import GOES_ON, GOOD_STOP, HARMFUL, Script, document, query_text, scripted

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.calibration import Calibration
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.errors import ConfigurationError, RequestError, SourceError
from bounded_retrieval.evaluation.collections import Collection
from bounded_retrieval.evaluation.experiment import run_experiment
from bounded_retrieval.evaluation.slices import slice_fingerprint
from bounded_retrieval.evaluation.thresholds import CalibrationSettings, Verdict, calibrate, draw_slices, unit_lengths
from bounded_retrieval.evaluation.variants import Variant
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.registry import ASSESSORS, DEFAULT_ASSESSOR, assessor_named, default_first_hop_rows

NEARLY: Script = (4, "rab", "cde", {"r": 1})
"""Four of five terms: stops at .5 and not at .9; the relevant unit is first either way."""

NEARLY_HARMFUL: Script = (4, "abc", "rab", {"r": 1})
"""The same without the relevant unit, which going on ranks third."""

SETTINGS = CalibrationSettings(
    assessor="term_coverage", fusion="rrf", first_hop_rows=3, thresholds=(0.5, 0.9), epsilon=0.2, confidence=0.9
)
THREE_WAYS = {"selection": 0.4, "certification": 0.4, "final": 0.2}


def by_turns(*scripts: Script, queries: int = 40) -> dict[str, Any]:
    """So many queries, of each kind as many."""
    return scripted([scripts[number % len(scripts)] for number in range(queries)])


def calibrated(world: Mapping[str, Any], settings: CalibrationSettings = SETTINGS, **options: Any) -> Verdict:
    """The verdict on a world."""
    return calibrate(**world, settings=settings, **options)


# What is certified


def test_of_two_harmless_thresholds_the_thriftier_is_taken() -> None:
    """With what it was tested by, in the order of the test."""
    verdict = calibrated(by_turns(GOOD_STOP, NEARLY, GOES_ON), about={"tokenizer": "words", "embedding": "vectors"})
    found = verdict.calibration
    assert found is not None
    assert [(each.threshold, each.verdict) for each in found.candidates] == [(0.9, "certified"), (0.5, "certified")]
    assert (found.threshold, found.assessor, found.fusion, found.first_hop_rows) == (0.5, "term_coverage", "rrf", 3)
    assert found.assessor_settings == dict(assessor_named("term_coverage").settings)
    assert (found.tokenizer, found.embedding, found.limits) == ("words", "vectors", Budget())
    assert (found.measure, found.against, found.epsilon, found.confidence) == ("ndcg@4", "always_continue", 0.2, 0.9)
    assert all(each.upper_bound <= 0.2 for each in found.candidates)
    careful, thrifty = found.candidates
    assert careful.selection_dense_share > thrifty.selection_dense_share
    assert verdict.candidates == found.candidates


def test_a_threshold_that_does_harm_is_not_certified_beside_one_that_does_not() -> None:
    """The harmless one comes first in the test and is taken."""
    verdict = calibrated(by_turns(GOOD_STOP, NEARLY_HARMFUL))
    assert [(each.threshold, each.verdict) for each in verdict.candidates] == [
        (0.9, "certified"),
        (0.5, "not_certified"),
    ]
    assert verdict.calibration is not None
    assert verdict.calibration.threshold == 0.9


def test_a_harmful_collection_is_not_certified_end_to_end() -> None:
    """No artefact; the best fixed policy is named with its measure."""
    verdict = calibrated(by_turns(HARMFUL))
    assert verdict.calibration is None
    assert [each.verdict for each in verdict.candidates] == ["not_certified", "not_tested"]
    assert verdict.best_fixed == ("fixed_dense", 1)


def test_the_best_fixed_policy_can_be_what_losses_are_taken_against() -> None:
    """Going on always ranks the unit third, a dense search alone first."""
    verdict = calibrated(by_turns(HARMFUL), replace(SETTINGS, against="best_fixed"))
    assert verdict.baseline == "fixed_dense"
    assert verdict.candidates[0].selection_loss == 1


def test_nothing_can_be_certified_on_a_few_queries_at_a_small_epsilon() -> None:
    """However harmless the stops are."""
    assert calibrated(by_turns(GOOD_STOP, queries=20), replace(SETTINGS, epsilon=0.02)).calibration is None


def test_what_was_certified_is_what_a_run_gives() -> None:
    """The policy run over the certification slice loses as much, and makes as many dense calls, as the artefact says."""
    world = by_turns(GOOD_STOP, NEARLY, NEARLY_HARMFUL, GOES_ON)
    found = calibrated(world, replace(SETTINGS, epsilon=0.9)).calibration
    assert found is not None
    queries = draw_slices(world["collection"], found.fractions, found.seed)["certification"]
    own = Variant(
        name="own",
        policy="adaptive",
        assessor=found.assessor,
        fusion=found.fusion,
        threshold=found.threshold,
        first_hop_rows=found.first_hop_rows,
    )
    runs = run_experiment(**world, variants=[own], queries=queries, live=0, budget=found.limits).outcomes
    losses = [
        runs[found.against][q.query_id].measures["ndcg@4"] - runs["own"][q.query_id].measures["ndcg@4"] for q in queries
    ]
    (chosen,) = (each for each in found.candidates if each.threshold == found.threshold)
    assert sum(losses) / len(losses) == pytest.approx(chosen.certification_loss, abs=1e-6)
    dense = sum(run.usage["dense_calls"] for run in runs["own"].values())
    assert dense / len(queries) == pytest.approx(chosen.certification_dense_share, abs=1e-6)
    ids = [query.query_id for query in queries]
    assert found.slices["certification"].fingerprint == slice_fingerprint(ids)
    assert found.slices["certification"].queries == len(ids)


def test_the_same_collection_gives_the_same_artefact_whatever_the_order_of_its_queries() -> None:
    """To the byte; another seed draws other slices."""
    world = by_turns(GOOD_STOP, NEARLY, NEARLY_HARMFUL, queries=24)
    settings = replace(SETTINGS, epsilon=0.9)
    held = world["collection"]
    turned = {**world, "collection": replace(held, queries=held.queries[::-1])}
    first, again, shuffled = (calibrated(each, settings).calibration for each in (world, world, turned))
    assert first.to_json() == again.to_json() == shuffled.to_json()
    other = calibrated(world, replace(settings, seed=5)).calibration
    assert other.slices["selection"].fingerprint != first.slices["selection"].fingerprint


def test_an_artefact_from_its_file_decides_a_run(tmp_path: Path) -> None:
    """Which stops at the certified threshold, with the certified depths."""
    world = by_turns(GOOD_STOP, NEARLY, GOES_ON)
    path = tmp_path / "calibration.json"
    found = calibrated(world, replace(SETTINGS, budget=Budget(max_rows=5))).calibration
    path.write_text(found.to_json(), encoding="utf-8")
    assert Calibration.from_file(path) == found
    graph = create_bounded_retrieval(world["lexical"], world["dense"], units=world["units"], calibration=path).compile()
    reasons = []
    for number in range(3):
        trace = DecisionTrace.from_result(graph.invoke({"query": query_text(number)}))
        assert (trace.events[0].threshold, trace.events[0].first_hop_rows) == (0.5, 3)
        reasons.append(trace.events[-1].stop_reason.value)
    assert reasons == ["proxy_sufficient", "proxy_sufficient", "resource_budget_exhausted"]


# Slices


def test_the_final_slice_is_never_searched() -> None:
    """Nor is any query outside the two slices; the artefact knows which queries were set apart."""
    world = by_turns(GOOD_STOP, NEARLY, queries=60)
    found = calibrated(world, replace(SETTINGS, fractions=THREE_WAYS, epsilon=0.5)).calibration
    assert found is not None
    slices = draw_slices(world["collection"], THREE_WAYS, 0)
    final = {query.text for query in slices["final"]}
    used = {query.text for name in ("selection", "certification") for query in slices[name]}
    assert len(final) == found.slices["final"].queries == 12
    for channel in ("lexical", "dense"):
        assert {text for text, _ in world[channel].calls} == used
        assert not final & used


def test_each_query_is_searched_once_whatever_is_tried() -> None:
    """Candidates are threshold by threshold the same answers."""
    world = by_turns(GOOD_STOP, NEARLY, queries=24)
    calibrated(world, replace(SETTINGS, thresholds=(0.1, 0.3, 0.5, 0.7, 0.9)))
    for channel in ("lexical", "dense"):
        assert sorted(world[channel].calls) == sorted((query_text(number), 6) for number in range(24))


@pytest.mark.parametrize(
    ("queries", "fractions", "named"),
    [
        (19, {}, "certification needs at least 10 judged queries (got 9 of 19, for a share of 0.5); 20 in all"),
        (1, {}, "selection needs at least 10 judged queries (got 1 of 1, for a share of 0.5); 20 in all"),
        (
            40,
            {"fractions": THREE_WAYS},
            "final needs at least 10 judged queries (got 8 of 40, for a share of 0.2); 50 in all",
        ),
    ],
)
def test_too_few_queries_are_refused_before_any_search(queries: int, fractions: Any, named: str) -> None:
    """The slice is named, with what it needs and has."""
    world = by_turns(GOOD_STOP, queries=queries)
    with pytest.raises(SourceError) as caught:
        calibrated(world, replace(SETTINGS, **fractions))
    assert str(caught.value) == f"manuals: slice {named} are enough where none are nearly alike"
    assert world["lexical"].calls == world["dense"].calls == []


def test_queries_without_a_relevant_unit_are_in_no_slice() -> None:
    """They do not count among the ten either."""
    world = by_turns(GOOD_STOP, (5, "rab", "cde", {"r": 0}), queries=30)
    with pytest.raises(SourceError, match=r"got [78] of 15, for a share of 0\.5\)"):
        calibrated(world)


# Lengths


def test_lengths_are_told_before_any_policy_runs() -> None:
    """And are those of what the selection queries find."""
    order: list[str] = []
    told: list[Mapping[str, Any]] = []

    def take(found: Mapping[str, Any]) -> None:
        order.append("lengths")
        told.append(dict(found))

    world = by_turns(GOOD_STOP, NEARLY, queries=24)
    verdict = calibrated(world, progress=lambda stage, *_: order.append(stage), lengths=take)
    assert order.index("lengths") < order.index("deciding")
    assert "lengths" not in order[order.index("deciding") :]
    assert told == [verdict.unit_lengths]
    # Six units of each of the twelve selection queries.
    assert told[0]["units"] == 72


def answers(units: Sequence[Document]) -> dict[str, Any]:
    """One query's answer of both channels."""
    world = scripted([GOOD_STOP])
    world["lexical"].answers = {"q": list(units)}
    return {"q": {"lexical": world["lexical"].search("q", 6), "dense": []}}


def test_lengths_are_in_characters_and_say_what_fits() -> None:
    """Alone, and the best of one query together with what separates them."""
    units = [
        document(letter, 0, 0).model_copy(update={"page_content": "x" * chars})
        for letter, chars in zip("abcde", (10, 20, 30, 40, 500), strict=True)
    ]
    found = unit_lengths(answers(units), None, Budget(max_chars=100, max_units=4))
    assert found == {
        "units": 5,
        "min": 10,
        "median": 30,
        "p90": 500,
        "max": 500,
        "max_chars": 100,
        "fits_alone": 0.8,
        "all_fit": 0.0,
    }
    assert unit_lengths(answers(units), None, Budget(max_chars=110, max_units=4))["all_fit"] == 1
    assert unit_lengths(answers(units), None, Budget(max_chars=1000, max_units=5))["fits_alone"] == 1


def test_lengths_of_rows_without_a_text_are_looked_up() -> None:
    """Where a searcher returns ids only; a unit that is gone has none."""
    found = answers([document("a", 0, 0), document("b", 0, 0)])
    rows = [row.model_copy(update={"unit": None}) for row in found["q"]["lexical"]]
    world = scripted([(5, "a", "c", {"a": 1})])
    lengths = unit_lengths({"q": {"lexical": rows, "dense": []}}, world["units"], Budget())
    assert (lengths["units"], lengths["max"]) == (1, len(document("a", 0, 5).page_content))
    assert unit_lengths({"q": {"lexical": rows, "dense": []}}, None, Budget()) == {"units": 0}


# Settings


def test_two_candidates_are_declared_by_default() -> None:
    """The assessor's own threshold and the one half-way to 1."""
    for name in ASSESSORS:
        own = assessor_named(name).default_threshold
        assert CalibrationSettings(assessor=name).checked().thresholds == (own, pytest.approx((1 + own) / 2, abs=1e-6))
    assert CalibrationSettings().assessor == DEFAULT_ASSESSOR
    assert replace(SETTINGS, thresholds=(0.5, 0.9, 0.5)).checked().thresholds == (0.5, 0.9)


@pytest.mark.parametrize("rows", [3, 6, 9])
def test_depths_are_those_of_a_builder_under_the_same_limits(rows: int) -> None:
    """Unless they are given."""
    settings = CalibrationSettings(budget=Budget(max_rows=rows))
    assert settings.checked().first_hop_rows == settings.variant.first_hop_rows == default_first_hop_rows(rows)
    assert replace(settings, first_hop_rows=1).checked().first_hop_rows == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"thresholds": tuple(place / 10 for place in range(9))}, "threshold: at most 8 candidates (got 9)"),
        ({"thresholds": (0.5, 1.5)}, "threshold: 0 to 1 (got 1.5)"),
        ({"thresholds": (float("nan"),)}, "threshold: 0 to 1 (got nan)"),
        ({"measure": "map"}, "measure: one of ndcg@3, ndcg@4"),
        ({"against": "reference"}, "against: one of always_continue, best_fixed (got 'reference')"),
        ({"epsilon": 1.5}, "epsilon: 0 to 1 (got 1.5)"),
        ({"epsilon": float("nan")}, "epsilon: 0 to 1 (got nan)"),
        ({"confidence": 0.5}, "confidence: above .5 and below 1 (got 0.5)"),
        ({"confidence": 1.0}, "confidence: above .5 and below 1 (got 1.0)"),
        ({"seed": -1}, "seed: 0 or more (got -1)"),
        ({"first_hop_rows": 0}, "first_hop_rows: at least 1 (got 0)"),
        ({"fractions": {"selection": 1.0}}, "slices: selection, certification and, if wanted, final (got selection)"),
        ({"fractions": {"selection": 0.4, "certification": 0.4, "last": 0.2}}, "slices: selection, certification"),
        ({"assessor": "none"}, "assessor: unknown name 'none'"),
        ({"fusion": "sum"}, "fusion: unknown name 'sum'"),
    ],
)
def test_settings_out_of_bounds_are_refused_before_anything_is_read(changes: Any, named: str) -> None:
    """By name, with the limit and the value."""
    world = by_turns(GOOD_STOP)
    with pytest.raises((RequestError, ConfigurationError)) as caught:
        calibrated(world, replace(SETTINGS, **changes))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    assert world["lexical"].calls == []


def test_another_measure_is_certified_where_it_is_asked_for() -> None:
    """Recall of the packet instead of the ranking's nDCG."""
    verdict = calibrated(
        by_turns(GOOD_STOP, NEARLY_HARMFUL), replace(SETTINGS, measure="packet_recall", thresholds=(0.5,))
    )
    (found,) = verdict.candidates
    # Each harmful stop loses all of its recall, and half of the queries are such.
    assert found.selection_loss == pytest.approx(0.5, abs=0.17)
    assert found.verdict == "not_certified"


def test_a_collection_without_documents_can_be_calibrated_on() -> None:
    """Only queries and judgements are needed where searchers are given."""
    world = by_turns(GOOD_STOP, queries=24)
    bare = {"name": "bare", "kind": "table", "split": "", "has_documents": False}
    held: Collection = world["collection"]
    world["collection"] = Collection(queries=held.queries, judgements=held.judgements, **bare)
    found = calibrated(world, replace(SETTINGS, epsilon=0.9)).calibration
    assert found.collection == {"name": "bare", "kind": "table", "split": "", "fingerprint": held.fingerprint}
