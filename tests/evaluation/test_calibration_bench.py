from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.evaluation import thresholds as thresholds_module
from bounded_retrieval.evaluation.bootstrap import exact_interval
from bounded_retrieval.evaluation.certification import is_refuted, upper_bound
from bounded_retrieval.evaluation.collections import Collection, Query
from bounded_retrieval.evaluation.experiment import Experiment, LiveCheck, Outcome, Reached
from bounded_retrieval.evaluation.thresholds import CalibrationSettings, _Bench

Losses = NDArray[np.float64]

TWO = CalibrationSettings(
    assessor="term_coverage", fusion="rrf", first_hop_rows=3, thresholds=(0.8, 0.9), epsilon=0.1, confidence=0.9
)
SLICE = 40
BY_TURNS = np.where(np.arange(2 * SLICE) % 2 == 0, 0.85, 0.95)
"""Coverage of queries by turns: at .8 all of them stop, at .9 every other one."""


def outcome(value: float, dense_calls: int) -> Outcome:
    """A run that measured so much, after so many dense calls."""
    usage = {"calls": 1 + dense_calls, "dense_calls": dense_calls}
    measures = {"ndcg@4": value, "packet_recall": value / 2}
    return Outcome(
        ranking=(), packed=(), stop_reason="policy_complete", usage=usage, decision=None, matched={}, measures=measures
    )


def bench(losses: Losses, coverage: Losses, settings: CalibrationSettings = TWO, fixed: float = 0.0) -> _Bench:
    """Queries of which each would lose so much by stopping, half of them in either slice, and no graph at all.

    Args:
        losses: what going on always ranks above stopping, shape (queries,), -1 to 1.
        coverage: how far the assessor reached, likewise.
        settings: what is declared.
        fixed: what a dense search alone measures for every query.
    """
    queries = tuple(Query(query_id=f"q{number:03d}", text=f"q{number}") for number in range(len(losses)))
    variant = settings.variant
    stop, further = variant.stop_arm().name, variant.continue_arm().name
    values = {
        stop: np.maximum(-losses, 0),
        further: np.maximum(losses, 0),
        "fixed_lexical": np.zeros(len(losses)),
        "fixed_dense": np.full(len(losses), fixed),
    }
    outcomes = {
        name: {
            query.query_id: outcome(float(value), int(name == further))
            for query, value in zip(queries, of_queries, strict=True)
        }
        for name, of_queries in values.items()
    }
    reached = {
        query.query_id: Reached(coverage=float(each), may_stop=True)
        for query, each in zip(queries, coverage, strict=True)
    }
    half = len(queries) // 2
    collection: dict[str, Any] = {"name": "bench", "kind": "beir", "split": "test", "has_documents": False}
    return _Bench(
        experiment=Experiment(
            collection=Collection(queries=queries, judgements={}, **collection),
            budget=Budget(),
            variants=(variant,),
            queries=queries,
            outcomes=outcomes,
            reached={variant.name: reached},
            answers={},
            live=LiveCheck(queries=0, runs=0, different=()),
            seconds={},
            latencies={},
        ),
        settings=settings,
        slices={"selection": queries[:half], "certification": queries[half:]},
    )


def test_losses_are_what_stopping_costs_where_it_stops() -> None:
    """A query that does not stop at a threshold loses nothing there."""
    losses = np.linspace(-1, 1, 2 * SLICE)
    found = bench(losses, BY_TURNS)
    assert found.losses(0.8, "selection") == pytest.approx(losses[:SLICE])
    assert found.losses(0.9, "certification") == pytest.approx(np.where(BY_TURNS > 0.9, losses, 0)[SLICE:])
    assert found.losses(1.0, "certification") == pytest.approx(np.zeros(SLICE))
    assert (found.dense_share(0.8, "selection"), found.dense_share(0.9, "selection")) == (0, 0.5)
    assert found.dense_share(1.0, "selection") == 1


def test_another_measure_is_another_loss() -> None:
    """The settings name it."""
    losses = np.full(2 * SLICE, 0.5)
    found = bench(losses, BY_TURNS, replace(TWO, measure="packet_recall"))
    assert found.losses(0.8, "selection") == pytest.approx(losses[:SLICE] / 2)


def test_the_order_of_candidates_comes_from_the_selection_slice_alone() -> None:
    """Whatever the certification slice says; and what it says decides the verdicts alone."""
    is_lower = np.arange(SLICE) % 2 == 0
    # Stopping the queries of coverage .85 gains something, or loses much; those of .95 are neither way.
    gain, loss = np.where(is_lower, -0.3, 0.0), np.where(is_lower, 0.9, 0.0)
    orders, verdicts = {}, {}
    for name, losses in {"gg": (gain, gain), "gl": (gain, loss), "lg": (loss, gain), "ll": (loss, loss)}.items():
        candidates = bench(np.concatenate(losses), BY_TURNS, TWO).test()
        orders[name] = [each.threshold for each in candidates]
        verdicts[name] = [each.verdict for each in candidates]
    assert orders["gg"] == orders["gl"] == [0.8, 0.9]
    assert orders["lg"] == orders["ll"] == [0.9, 0.8]
    assert verdicts["gg"] == verdicts["lg"] == ["certified", "certified"]
    assert verdicts["gl"] == ["not_certified", "not_tested"]
    assert verdicts["ll"] == ["certified", "not_certified"]


def test_the_order_in_which_candidates_are_declared_does_not_count() -> None:
    """Of equal ones the higher threshold is tested first."""
    for thresholds in ((0.8, 0.9), (0.9, 0.8)):
        candidates = bench(np.zeros(2 * SLICE), BY_TURNS, replace(TWO, thresholds=thresholds)).test()
        assert [each.threshold for each in candidates] == [0.9, 0.8]


def test_a_candidate_after_a_failure_is_not_tested() -> None:
    """Even where it would have passed alone: another candidate is another chance to be lucky."""
    # Stopping at .8 helps on the selection slice, so it comes first; on the certification slice it loses.
    is_lower = np.arange(SLICE) % 2 == 0
    losses = np.concatenate([np.where(is_lower, -0.3, 0.0), np.where(is_lower, 0.9, 0.0)])
    first, second = bench(losses, BY_TURNS, TWO).test()
    assert (first.threshold, first.verdict) == (0.8, "not_certified")
    assert (second.threshold, second.verdict, second.upper_bound) == (0.9, "not_tested", None)
    assert (second.certification_loss, second.certification_dense_share) == (None, None)
    (alone,) = bench(losses, BY_TURNS, replace(TWO, thresholds=(0.9,))).test()
    assert alone.verdict == "certified"


def test_the_bound_told_is_that_of_the_certification_slice() -> None:
    """Rounded up to six decimals; a mean above it is refuted, one below it is not."""
    losses = np.where(np.arange(2 * SLICE) % 8 == 0, 0.25, 0.0)
    (found,) = bench(losses, BY_TURNS, replace(TWO, thresholds=(0.8,), epsilon=0.3)).test()
    bound = upper_bound(losses[SLICE:], 0.9, seed=TWO.seed)
    assert bound <= found.upper_bound <= bound + 1e-6
    assert found.certification_loss == pytest.approx(losses[SLICE:].mean(), abs=1e-6)
    assert is_refuted(losses[SLICE:], found.upper_bound + 1e-5, 0.9, seed=TWO.seed)
    assert not is_refuted(losses[SLICE:], found.upper_bound - 1e-4, 0.9, seed=TWO.seed)


def test_a_bound_that_is_told_of_a_certified_candidate_is_never_above_epsilon() -> None:
    """Rounding up stops at epsilon, which some binary fractions would exceed."""
    losses = np.zeros(2 * SLICE)
    bound = upper_bound(losses[SLICE:], 0.9)
    for epsilon in (bound, np.nextafter(bound, 1), bound + 1e-7):
        (found,) = bench(losses, BY_TURNS, replace(TWO, thresholds=(0.8,), epsilon=float(epsilon))).test()
        assert found.verdict == "certified"
        assert found.upper_bound <= epsilon


def test_of_certified_candidates_the_one_with_the_fewest_dense_calls_is_taken() -> None:
    """As the selection slice has it, and not the one that was tested first."""
    found = bench(np.where(BY_TURNS < 0.9, 0.05, 0.0), BY_TURNS, replace(TWO, epsilon=0.5))
    candidates = found.test()
    assert [(each.threshold, each.verdict) for each in candidates] == [(0.9, "certified"), (0.8, "certified")]
    artefact = found.artefact(candidates, {}, {})
    assert artefact is not None
    assert artefact.threshold == 0.8


def test_without_a_certified_candidate_there_is_no_artefact() -> None:
    """Not even a careful one."""
    found = bench(np.full(2 * SLICE, 0.9), BY_TURNS)
    assert found.artefact(found.test(), {}, {}) is None


@pytest.mark.parametrize(("fixed", "best"), [(0.9, "fixed_dense"), (0.1, "always_continue")])
def test_losses_can_be_taken_against_the_best_fixed_policy(fixed: float, best: str) -> None:
    """Whichever that is on the selection slice; a better baseline is a harder test."""
    losses = np.full(2 * SLICE, 0.2)
    found = bench(losses, BY_TURNS, replace(TWO, against="best_fixed"), fixed)
    assert found.best_fixed() == (best, pytest.approx(max(fixed, 0.2)))
    assert found.baseline == best
    assert found.losses(0.8, "certification") == pytest.approx(np.full(SLICE, max(fixed, 0.2)))
    assert bench(losses, BY_TURNS, TWO, fixed).baseline == "always_continue"


# The promise: a share of wrong certificates, end to end


def certified_share(
    draw: Callable[[np.random.Generator], Losses], wrong: Callable[[float], bool], worlds: int = 400
) -> int:
    """How many collections, drawn from one source, end in an artefact whose threshold is wrong."""
    random = np.random.default_rng(11)
    settings = replace(TWO, epsilon=0.2, confidence=0.8)
    found = 0
    for _ in range(worlds):
        coverage = np.where(random.random(2 * SLICE) < 0.5, 0.85, 0.95)
        one = bench(draw(random), coverage, settings)
        artefact = one.artefact(one.test(), {}, {})
        found += artefact is not None and wrong(artefact.threshold)
    return found


@pytest.fixture(autouse=True)
def _steady_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    # Reading the versions of packages takes longer than all the rest of a simulated calibration.
    monkeypatch.setattr(thresholds_module, "versions", dict)


def test_wrong_certificates_are_as_rare_as_promised() -> None:
    """Both candidates lose just more than epsilon: chosen and certified, they pass in at most one case of five."""
    # Stopping at .8 loses .402 on average and at .9, where half as many stop, .201; epsilon is .2.
    errors = certified_share(lambda random: (random.random(2 * SLICE) < 0.402).astype(float), lambda _: True)
    assert exact_interval(errors, 400, 0.999).low <= 0.2
    assert errors > 0


def test_a_candidate_that_is_wrong_beside_a_good_one_is_rarely_taken() -> None:
    """Stopping at .8 loses .21 on average, at .9 half of that: the first is wrong, the second is not."""
    errors = certified_share(lambda random: (random.random(2 * SLICE) < 0.21).astype(float), lambda taken: taken == 0.8)
    assert exact_interval(errors, 400, 0.999).low <= 0.2


def test_a_candidate_that_loses_nothing_is_certified() -> None:
    """The test is no blanket refusal."""
    draw = certified_share(lambda random: np.where(random.random(2 * SLICE) < 0.02, 0.5, 0.0), lambda _: True, 100)
    assert draw >= 95
