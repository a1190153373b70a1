from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from small_world import GOES_ON, GOOD_STOP, HARMFUL, LATE, LOST, LUCKY, MIXED, scripted

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.evaluation.bootstrap import Resampler
from bounded_retrieval.evaluation.diagnosis import (
    MAX_POINTS,
    ceiling,
    change,
    curve,
    early_stops,
    outcomes_by_reason,
    stopped_early,
)
from bounded_retrieval.evaluation.experiment import Experiment, Reached, run_experiment
from bounded_retrieval.evaluation.variants import Variant, read_variants

SECOND, THIRD, FOURTH = (1 / math.log2(place + 1) for place in (2, 3, 4))
MANY = 70


def run(scripts: Sequence[Any] = MIXED, names: Sequence[str] = ("reference",), **options: Any) -> Experiment:
    """An experiment over scripted searchers."""
    return run_experiment(**scripted(scripts), variants=read_variants(names), live=0, **options)


def of(experiment: Experiment, name: str) -> Variant:
    """The variant of that name."""
    return next(variant for variant in experiment.variants if variant.name == name)


def stops_of(scripts: Sequence[Any], confidence: float = 0.95) -> dict[str, Any]:
    """What the early stops of the reference cost."""
    experiment = run(scripts)
    return early_stops(experiment, of(experiment, "reference"), confidence)


def test_each_early_stop_is_compared_with_going_on_at_both_cutoffs() -> None:
    """Of four stops two did harm at 4 and one of them at 3; two held the relevant unit, which one would have lost."""
    found = stops_of(MIXED)
    assert (found["queries"], found["stops"], found["held_relevant"]) == (6, 4, 2)
    three, four = found["cutoffs"]["3"], found["cutoffs"]["4"]
    assert (three["improved"], three["unchanged"], three["reduced"]) == (1, 2, 1)
    assert (four["improved"], four["unchanged"], four["reduced"]) == (2, 1, 1)
    assert three["mean_change"] == pytest.approx(0, abs=1e-6)
    assert four["mean_change"] == pytest.approx(FOURTH / 4, abs=1e-6)
    assert (three["harm_rate"], four["harm_rate"]) == (0.25, 0.5)


def test_the_interval_of_harm_is_exact() -> None:
    """None of three: the upper end solves (1 - p)^3 = .025, or .05 for a confidence of .9."""
    assert stops_of([GOOD_STOP] * 3)["cutoffs"]["4"]["harm_interval"] == [
        0,
        pytest.approx(1 - 0.025 ** (1 / 3), abs=1e-6),
    ]
    assert stops_of([GOOD_STOP] * 3, 0.9)["cutoffs"]["4"]["harm_interval"][1] == pytest.approx(
        1 - 0.05 ** (1 / 3), abs=1e-6
    )
    assert stops_of([HARMFUL] * 3)["cutoffs"]["3"]["harm_interval"] == [pytest.approx(0.025 ** (1 / 3), abs=1e-6), 1]


def test_where_nothing_stopped_there_is_no_rate() -> None:
    """Not a rate of 0: nothing is known."""
    found = stops_of([GOES_ON, LOST])
    assert (found["stops"], found["held_relevant"]) == (0, 0)
    for cutoff in found["cutoffs"].values():
        assert (cutoff["improved"], cutoff["unchanged"], cutoff["reduced"]) == (0, 0, 0)
        assert (cutoff["mean_change"], cutoff["harm_rate"], cutoff["harm_interval"]) == (None, None, [0, 1])


def test_a_stop_after_both_searches_is_no_early_stop() -> None:
    """The dense search brought the unit that passes the test."""
    late = (2, "abc", "rde", {"r": 1})
    world = scripted([late])
    (found,) = world["dense"].answers.values()
    (asked,) = world["dense"].answers
    found[0] = found[0].model_copy(update={"page_content": asked})
    world["units"] = None
    experiment = run_experiment(**world, variants=read_variants(["reference"]), live=0)
    (outcome,) = experiment.outcomes["reference"].values()
    assert (outcome.stop_reason, outcome.usage["calls"]) == ("proxy_sufficient", 2)
    assert not stopped_early(outcome)
    assert early_stops(experiment, of(experiment, "reference"), 0.95)["stops"] == 0


def test_changes_below_the_rounding_of_a_sum_are_none() -> None:
    """Better, equal and worse are told apart by more than the last bits."""
    (outcome,) = run([GOOD_STOP]).outcomes["reference"].values()
    shifted = {shift: replace(outcome, measures={"ndcg@4": 0.5 + shift}) for shift in (0, 1e-12, 1e-6, -1e-6)}
    found = [change(shifted[0], shifted[shift], "ndcg@4") for shift in (1e-12, 1e-6, -1e-6)]
    assert found == ["unchanged", "improved", "reduced"]


def test_stop_reasons_add_up_to_the_queries() -> None:
    """For every policy; each group has its own means and counts of packets."""
    experiment = run(names=["reference", "fixed_dense", "adaptive"])
    for runs in experiment.outcomes.values():
        groups = outcomes_by_reason(runs).values()
        assert sum(group["queries"] for group in groups) == 6
        for group in groups:
            packets = group["packet_holds_all"] + group["packet_holds_some"] + group["packet_holds_none"]
            assert packets == group["queries"]
    found = outcomes_by_reason(experiment.outcomes["reference"])
    assert list(found) == ["proxy_sufficient", "resource_budget_exhausted"]
    stopped, went_on = found.values()
    assert stopped["ndcg@4"] == pytest.approx((1 + THIRD) / 4, abs=1e-6)
    assert (stopped["packet_holds_all"], stopped["packet_holds_none"]) == (2, 2)
    assert (went_on["queries"], went_on["ndcg@4"], went_on["recall@4"]) == (2, 0.5, 0.5)


def test_a_packet_that_holds_some_of_what_is_relevant_is_counted_apart() -> None:
    """One of two relevant units."""
    found = outcomes_by_reason(run([(5, "rab", "cde", {"r": 1, "x": 1})]).outcomes["reference"])
    assert found["proxy_sufficient"]["packet_holds_some"] == 1


def test_the_oracle_goes_on_exactly_where_that_ranks_better() -> None:
    """Three queries of six: two harmful stops, and the one that went on and ranked its unit first instead of third."""
    experiment = run()
    found = ceiling(experiment, of(experiment, "reference"), Resampler(6, 200, 0), 0.95)
    assert found["ndcg@4"] == pytest.approx((1 + THIRD + FOURTH + THIRD + 1 + 0) / 6, abs=1e-6)
    assert found["dense_calls"] == 3
    assert found["interval"][0] <= found["ndcg@4"] <= found["interval"][1]


def test_the_oracle_stops_wherever_going_on_gains_nothing() -> None:
    """Of equal rankings it takes the one without a dense call."""
    experiment = run([GOOD_STOP, LUCKY, LOST])
    assert ceiling(experiment, of(experiment, "reference"), Resampler(3, 100, 0), 0.95)["dense_calls"] == 0


def test_no_point_of_a_curve_is_above_the_oracle_or_below_its_price() -> None:
    """At as many dense calls."""
    experiment = run([*MIXED, HARMFUL, (3, "abr", "rcd", {"r": 1})])
    found = curve(experiment, of(experiment, "reference"))
    best = dict(found["oracle"])
    for point in found["points"]:
        assert point["ndcg@4"] <= best[point["dense_calls"]] + 1e-6
    assert [calls for calls, _ in found["oracle"]] == list(range(9))


def test_the_ends_of_a_curve_are_the_arms() -> None:
    """Stopping always at the lowest threshold, never at the end; the straight line has the same ends."""
    experiment = run()
    variant = of(experiment, "reference")
    found = curve(experiment, variant)
    arms = {
        arm.name: sum(outcome.measures["ndcg@4"] for outcome in experiment.outcomes[arm.name].values()) / 6
        for arm in (variant.stop_arm(), variant.continue_arm())
    }
    stop, further = arms.values()
    assert stop != further
    first, last = found["points"][0], found["points"][-1]
    assert (first["threshold"], first["dense_calls"]) == (0, 0)
    assert (last["threshold"], last["dense_calls"]) == (None, 6)
    assert (first["ndcg@4"], last["ndcg@4"]) == (pytest.approx(stop, abs=1e-6), pytest.approx(further, abs=1e-6))
    assert found["random"] == [[0, pytest.approx(stop, abs=1e-6)], [6, pytest.approx(further, abs=1e-6)]]
    assert found["oracle"][0] == [0, pytest.approx(stop, abs=1e-6)]
    assert found["oracle"][-1] == [6, pytest.approx(further, abs=1e-6)]


@pytest.mark.parametrize("name", ["reference", "adaptive", "adaptive:idf_coverage"])
def test_a_curve_at_the_threshold_that_was_run_is_what_was_run(name: str) -> None:
    """Dense calls and both measures, for each assessor at its own threshold."""
    experiment = run([*MIXED, (3, "abr", "rcd", {"r": 1}), (4, "rab", "bcr", {"r": 2, "c": 1})], [name])
    variant = of(experiment, name)
    bar = variant.made_assessor().default_threshold if variant.threshold is None else variant.threshold
    point = next(
        each for each in curve(experiment, variant)["points"] if each["threshold"] is None or each["threshold"] >= bar
    )
    runs = experiment.outcomes[name].values()
    assert point["dense_calls"] == sum(outcome.usage["dense_calls"] for outcome in runs)
    for measure in ("ndcg@4", "recall@4"):
        assert point[measure] == pytest.approx(sum(outcome.measures[measure] for outcome in runs) / len(runs), abs=1e-6)


def test_a_veto_holds_at_every_point_of_a_curve() -> None:
    """A query that may never stop makes its dense call at threshold 0 too."""
    experiment = run([GOOD_STOP, GOOD_STOP])
    experiment.reached["reference"]["q001"] = Reached(coverage=1, may_stop=False)
    assert [point["dense_calls"] for point in curve(experiment, of(experiment, "reference"))["points"]] == [1, 1, 2]


def test_a_dense_call_that_the_limits_leave_no_room_for_is_not_counted() -> None:
    """Three rows are all used up by the first search: going on is free and changes nothing."""
    experiment = run(MIXED, budget=Budget(max_rows=3))
    found = curve(experiment, of(experiment, "reference"))
    assert {point["dense_calls"] for point in found["points"]} == {0}
    assert {calls for calls, _ in found["oracle"]} == {0}
    assert found["random"][0] == found["random"][1]


def test_a_curve_has_so_many_points_and_keeps_its_ends() -> None:
    """Seventy thresholds matter, of which sixty are shown, and never stopping."""
    experiment = run([GOOD_STOP] * MANY)
    variant = of(experiment, "reference")
    reached = {f"q{number:03d}": Reached(coverage=number / 1000, may_stop=True) for number in range(MANY)}
    experiment.reached["reference"].update(reached)
    found = [point["threshold"] for point in curve(experiment, variant)["points"]]
    assert len(found) == MAX_POINTS + 1
    assert found[:-1] == sorted(set(found[:-1]))
    assert (found[0], found[-2], found[-1]) == (0, (MANY - 1) / 1000, None)


def test_graded_relevance_counts_in_what_a_stop_costs() -> None:
    """Going on swaps a unit of grade 1 for one of grade 2 at the head."""
    found = stops_of([(5, "arc", "rde", {"r": 2, "a": 1})])
    ideal = 2 + SECOND
    before, after = (1 + 2 * SECOND) / ideal, 1
    assert found["cutoffs"]["4"]["improved"] == 1
    assert found["cutoffs"]["4"]["mean_change"] == pytest.approx(after - before, abs=1e-6)


def test_late_finds_count_at_four_and_not_at_three() -> None:
    """The unit that comes fourth."""
    found = stops_of([LATE])["cutoffs"]
    assert (found["3"]["unchanged"], found["4"]["improved"]) == (1, 1)
