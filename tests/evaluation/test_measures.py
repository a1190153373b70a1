from __future__ import annotations

import math
import random

import ir_measures
import pytest

from bounded_retrieval.evaluation.measures import MEASURES, PACKET_MEASURES, measure, measure_packets


def gain(grade: int, place: int) -> float:
    """What a unit of this grade adds at a place, counted from 1."""
    return grade / math.log2(place + 1)


def test_graded_gains_are_discounted_by_the_logarithm_of_the_place() -> None:
    """Grades 1, 3, 0 and 2 in a row, against the ideal 3, 2, 1."""
    found = measure({"q": {"a": 1, "b": 3, "c": 0, "d": 2}}, {"q": ["a", "b", "c", "d"]})["q"]
    ideal = gain(3, 1) + gain(2, 2) + gain(1, 3)
    assert found["ndcg@3"] == pytest.approx((gain(1, 1) + gain(3, 2)) / ideal, abs=1e-6)
    assert found["ndcg@4"] == pytest.approx((gain(1, 1) + gain(3, 2) + gain(2, 4)) / ideal, abs=1e-6)
    assert found["recall@4"] == 1
    assert set(found) == set(MEASURES)


def test_judged_units_that_nothing_returns_stay_in_the_ideal_ranking() -> None:
    """The one unit found is first; another of grade 2 is in no ranking, whether the index holds it or not."""
    found = measure({"q": {"a": 1, "absent": 2}}, {"q": ["a"]})["q"]
    assert found["ndcg@4"] == pytest.approx(gain(1, 1) / (gain(2, 1) + gain(1, 2)), abs=1e-6)
    assert found["recall@4"] == 0.5


def test_units_beyond_the_cutoff_do_not_count() -> None:
    """The only relevant unit at the fourth and at the fifth place."""
    found = measure({"q": {"r": 1}, "p": {"r": 1}}, {"q": list("abcr"), "p": list("abcdr")})
    assert (found["q"]["ndcg@3"], found["q"]["ndcg@4"]) == (0, pytest.approx(gain(1, 4), abs=1e-6))
    assert found["p"] == {"ndcg@3": 0, "ndcg@4": 0, "recall@4": 0}


@pytest.mark.parametrize("rankings", [{"q": []}, {"q": [], "p": ["r"]}])
def test_an_empty_ranking_has_nothing(rankings: dict[str, list[str]]) -> None:
    """Alone, and beside one that is not empty."""
    judgements = {"q": {"r": 1}, "p": {"r": 1}}
    assert measure(judgements, rankings)["q"] == dict.fromkeys(MEASURES, 0)
    assert measure_packets(judgements, rankings)["q"] == dict.fromkeys(PACKET_MEASURES, 0)
    assert measure(judgements, rankings).keys() == rankings.keys()


def test_a_negative_grade_says_as_much_as_none() -> None:
    """It takes nothing away, and is no relevant unit."""
    ranking = {"q": ["bad", "r"]}
    assert measure({"q": {"bad": -2, "r": 1}}, ranking) == measure({"q": {"bad": 0, "r": 1}}, ranking)
    assert measure({"q": {"bad": -2, "r": 1}}, ranking) == measure({"q": {"r": 1}}, ranking)


def test_the_order_is_the_ranking_and_not_that_of_ids() -> None:
    """Ids that sort in another way than they are ranked, more than nine of them."""
    ranking = [f"u{place}" for place in range(12, 0, -1)]
    assert measure({"q": {"u12": 1}}, {"q": ranking})["q"]["ndcg@3"] == 1
    assert measure({"q": {"u1": 1}}, {"q": ranking})["q"]["ndcg@4"] == 0


def test_recall_of_a_packet_is_over_all_that_it_holds() -> None:
    """Six units, the last relevant; the other packet is smaller."""
    found = measure_packets({"q": {"f": 1, "x": 1}, "p": {"a": 1}}, {"q": list("abcdef"), "p": ["a"]})
    assert found["q"] == {"packet_ndcg@4": 0, "packet_recall": 0.5}
    assert found["p"] == {"packet_ndcg@4": 1, "packet_recall": 1}


def test_queries_do_not_mix() -> None:
    """The same unit is relevant to one query and not to the other."""
    found = measure({"q": {"a": 1, "b": 0}, "p": {"a": 0, "b": 1}}, {"q": ["a", "b"], "p": ["a", "b"]})
    assert found["q"]["ndcg@4"] == 1
    assert found["p"]["ndcg@4"] == pytest.approx(gain(1, 2), abs=1e-6)


def test_random_rankings_measure_as_ir_measures_has_them() -> None:
    """A hundred queries of up to eight judged units in rankings of up to eight."""
    draw = random.Random(5)
    units = [f"u{number}" for number in range(12)]
    judgements = {f"q{n}": {u: draw.randint(0, 3) for u in draw.sample(units, 7)} | {"u0": 1} for n in range(100)}
    rankings = {query_id: draw.sample(units, draw.randint(1, 8)) for query_id in judgements}
    found = measure(judgements, rankings)
    run = {q: {unit: 1 / place for place, unit in enumerate(ranking, 1)} for q, ranking in rankings.items()}
    names = {"ndcg@3": "nDCG@3", "ndcg@4": "nDCG@4", "recall@4": "R@4"}
    for name, text in names.items():
        own = {
            each.query_id: each.value
            for each in ir_measures.iter_calc([ir_measures.parse_measure(text)], judgements, run)
        }
        assert {query_id: values[name] for query_id, values in found.items()} == pytest.approx(own, abs=1e-6)
