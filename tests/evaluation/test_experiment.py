from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from small_world import GOES_ON, GOOD_STOP, HARMFUL, LATE, MIXED, query_text, scripted, unit_id

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.errors import RequestError, SourceError
from bounded_retrieval.evaluation.caching import cached
from bounded_retrieval.evaluation.collections import load_collection
from bounded_retrieval.evaluation.experiment import Experiment, run_experiment
from bounded_retrieval.evaluation.variants import ALWAYS, REFERENCE, Variant, default_variants, read_variants
from bounded_retrieval.policies.coverage import TermCoverage
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.chroma import ChromaSearcher

BASIC = ("fixed_lexical", "fixed_dense", "always_continue", "reference")


class CountingBM25(BM25Searcher):
    """Keeps the queries that it was searched for."""

    asked: list[tuple[str, int]]

    def search(self, query: str, k: int, filter: Any = None) -> Any:
        self.asked.append((query, k))
        return super().search(query, k, filter)


class CountingChroma(ChromaSearcher):
    """Keeps the queries that it was searched for."""

    asked: list[tuple[str, int]]

    def search(self, query: str, k: int, filter: Any = None) -> Any:
        self.asked.append((query, k))
        return super().search(query, k, filter)


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    """Six queries of the shipped collection over 40 of its units, theirs among them, in searchers that count."""
    whole = load_collection("device_support")
    queries = whole.judged()[::10]
    needed = {unit for query in queries for unit in whole.judgements[query.query_id]}
    documents = sorted(whole.documents(), key=lambda each: (each.id not in needed, each.id))[:40]
    lexical, dense = CountingBM25.from_documents(documents), CountingChroma.from_documents(documents)
    lexical.asked, dense.asked = [], []
    return {"collection": replace(whole, queries=queries), "lexical": lexical, "dense": dense, "units": lexical}


def run(scripts: Sequence[Any] = MIXED, names: Sequence[str] = BASIC, **options: Any) -> Experiment:
    """An experiment over scripted searchers."""
    return run_experiment(**scripted(scripts), variants=read_variants(names), **{"live": 0, **options})


def test_each_channel_is_asked_once_for_each_query_whatever_is_compared(shipped: dict[str, Any]) -> None:
    """All policies, fusions and assessors, over BM25 and Chroma; as deep as the limits allow."""
    shipped["lexical"].asked.clear()
    shipped["dense"].asked.clear()
    found = run_experiment(**shipped, live=0)
    texts = [query.text for query in found.queries]
    assert len(texts) == 6
    assert len(found.outcomes) >= 10
    for channel in ("lexical", "dense"):
        assert sorted(shipped[channel].asked) == sorted((text, 6) for text in texts)


def test_cached_and_live_runs_are_the_same_to_the_last_field(shipped: dict[str, Any]) -> None:
    """Packets and traces of every policy by the live check, and compared here without it."""
    variants = read_variants(["fixed_lexical", "fixed_dense", "reference", "adaptive", "always_continue:score_fusion"])
    found = run_experiment(**shipped, variants=variants, live=2)
    assert (found.live.queries, found.live.runs, found.live.different) == (2, 2 * len(found.variants), ())
    parts = (shipped["lexical"], shipped["dense"])
    for variant in found.variants:
        graphs = [
            variant.build(*searchers, shipped["units"], Budget()).compile()
            for searchers in (parts, [cached(each, 6) for each in parts])
        ]
        for query in found.queries[2:4]:
            live, kept = (
                graph.invoke({"query": query.text, "request": {"query_id": query.query_id}}) for graph in graphs
            )
            assert json.dumps([live["packet"], live["trace"]]) == json.dumps([kept["packet"], kept["trace"]])
            assert (
                tuple(each["unit_id"] for each in live["packet"]["items"])
                == found.outcomes[variant.name][query.query_id].packed
            )


def test_the_latency_of_every_live_run_is_taken(shipped: dict[str, Any]) -> None:
    """One for each query and policy, and none without a live check."""
    found = run_experiment(**shipped, variants=read_variants(BASIC), live=2)
    assert {len(values) for values in found.latencies.values()} == {2}
    assert all(value > 0 for values in found.latencies.values() for value in values)
    assert found.seconds.keys() == {"retrieval", "policies", "live"}
    assert set(run().latencies.values()) == {()}


def test_every_live_run_pays_for_its_own_vector() -> None:
    """A dense searcher that keeps the vectors of recent queries forgets them before each; scripted ones need not."""
    world = scripted([GOOD_STOP, HARMFUL])
    forgotten: list[int] = []
    world["dense"].forget_queries = lambda: forgotten.append(1)
    found = run_experiment(**world, variants=read_variants(BASIC), live=2)
    assert len(forgotten) == found.live.runs


class Shuffling:
    """Answers small requests with other rows than those at the head of a larger answer."""

    def __init__(self, searcher: Any) -> None:
        self.searcher = searcher

    def search(self, query: str, k: int, filter: Any = None) -> Any:
        found = self.searcher.search(query, 6, filter)
        chosen = found if k == 6 else found[1 : k + 1]
        return [row.model_copy(update={"rank": rank}) for rank, row in enumerate(chosen, 1)]

    def fetch(self, unit_ids: Sequence[str]) -> Any:
        return self.searcher.fetch(unit_ids)


def test_a_searcher_whose_rows_depend_on_how_many_are_asked_for_is_reported() -> None:
    """By policy and query, for those policies that ask for fewer than all."""
    world = scripted([GOOD_STOP, HARMFUL])
    found = run_experiment(**{**world, "lexical": Shuffling(world["lexical"])}, variants=read_variants(BASIC), live=2)
    assert {name for name, _ in found.live.different} == {"always_continue", "reference", "fixed_lexical:3_rows"}
    assert {query_id for _, query_id in found.live.different} == {"q000", "q001"}


def test_the_live_check_takes_queries_spread_over_the_collection() -> None:
    """Never more than there are."""
    world = scripted([GOOD_STOP] * 7)
    found = run_experiment(**world, variants=read_variants(["fixed_dense"]), live=3)
    assert [query for query, _ in world["dense"].calls[7:]] == [query_text(number) for number in (0, 2, 4)]
    assert found.live.queries == 3
    assert run([GOOD_STOP] * 3, live=99).live.queries == 3


def test_every_run_is_what_was_written_down() -> None:
    """Stop reason, ranking, packet, cost, decision and measures of two queries under the reference."""
    found = run([GOOD_STOP, GOES_ON])
    stopped, went_on = found.outcomes["reference"].values()
    assert (stopped.stop_reason, stopped.ranking) == ("proxy_sufficient", tuple(unit_id(letter, 0) for letter in "rab"))
    assert (stopped.usage["calls"], stopped.usage["dense_calls"], stopped.usage["rows"]) == (1, 0, 3)
    assert (stopped.decision.coverage, stopped.decision.threshold, stopped.decision.sufficient) == (1, 0.8, True)
    assert len(stopped.matched[unit_id("r", 0)]) == 5
    assert went_on.stop_reason == "resource_budget_exhausted"
    assert went_on.ranking[:2] == (unit_id("r", 1), unit_id("a", 1))
    assert went_on.packed == went_on.ranking[:4]
    assert (went_on.usage["calls"], went_on.usage["dense_calls"], went_on.usage["rows"]) == (2, 1, 6)
    assert (went_on.decision.coverage, went_on.decision.sufficient) == (0.4, False)
    assert len(went_on.decision.missing_terms) == 3
    assert went_on.measures["ndcg@4"] == went_on.measures["packet_recall"] == 1


def test_both_arms_of_every_adaptive_policy_are_run_too() -> None:
    """Where it stops it is the one, where it goes on it is the other, to the packet."""
    found = run(names=["reference", "adaptive:term_coverage@0.5"])
    for name in ("reference", "adaptive:term_coverage@0.5"):
        variant = next(each for each in found.variants if each.name == name)
        stop, further = found.outcomes[variant.stop_arm().name], found.outcomes[variant.continue_arm().name]
        for query_id, outcome in found.outcomes[name].items():
            arm = (stop if outcome.stop_reason == "proxy_sufficient" else further)[query_id]
            assert (outcome.ranking, outcome.packed, outcome.measures) == (arm.ranking, arm.packed, arm.measures)


@pytest.mark.parametrize("threshold", [0.0, 0.4, 0.41, 1.0])
def test_what_another_threshold_would_do_is_known_from_one_run(threshold: float) -> None:
    """Coverage and vetoes of every query foretell where a run at that threshold stops."""
    known = run(names=["adaptive:term_coverage"]).reached["adaptive:term_coverage"]
    name = f"adaptive:term_coverage@{threshold}"
    for query_id, outcome in run(names=[name]).outcomes[name].items():
        assert known[query_id].stops_at(threshold) == (outcome.stop_reason == "proxy_sufficient")


def test_a_veto_keeps_a_run_from_stopping_at_any_threshold() -> None:
    """An identifier that no unit holds."""
    world = scripted([GOOD_STOP])
    asked = f"{query_text(0)} HX-200"
    (query,) = world["collection"].queries
    collection = replace(world["collection"], queries=(replace(query, text=asked),))
    world["lexical"].answers[asked] = world["lexical"].answers[query_text(0)]
    found = run_experiment(**{**world, "collection": collection}, variants=(REFERENCE,), live=0)
    (reached,) = found.reached["reference"].values()
    assert reached.coverage == pytest.approx(5 / 6)
    assert not reached.stops_at(0)


def test_policies_that_differ_in_nothing_but_names_are_run_once() -> None:
    """Their outcomes are the same; the count of runs says so."""
    told: list[tuple[str, int, int]] = []
    again = Variant(name="again", policy="adaptive", threshold=0.8, assessor=TermCoverage())
    alike = Variant(name="alike", policy="adaptive", assessor=TermCoverage())
    found = run_experiment(**scripted(MIXED), variants=(again, alike), live=0, progress=lambda *step: told.append(step))
    assert found.outcomes["again"] == found.outcomes["alike"]
    assert found.reached["again"] == found.reached["alike"]
    # The policy once, its two arms, and once at threshold 0.
    assert [step[1:] for step in told if step[0] == "deciding"][-1] == (4 * len(MIXED), 4 * len(MIXED))


def test_progress_is_told_stage_by_stage_to_its_end() -> None:
    """Searches, then decisions, then the live check; counted from 1 without a gap."""
    told: list[tuple[str, int, int]] = []
    run(live=2, progress=lambda *step: told.append(step))
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert stages == ["searching", "deciding", "checking live"]
    for stage in stages:
        steps = [(done, total) for name, done, total in told if name == stage]
        assert [done for done, _ in steps] == list(range(1, steps[0][1] + 1))
        assert len({total for _, total in steps}) == 1


def test_what_was_retrieved_is_told_before_any_policy_runs() -> None:
    """By query and channel, all rows."""
    order: list[str] = []
    seen: dict[str, Any] = {}

    def take(answers: Any) -> None:
        order.append("retrieved")
        seen.update(answers)

    found = run(MIXED, retrieved=take, progress=lambda stage, *_: order.append(stage))
    assert order.index("deciding") == order.index("retrieved") + 1
    assert seen == found.answers
    assert [row.unit_id for row in seen["q001"]["lexical"]] == [unit_id(letter, 1) for letter in "abc"]
    assert [row.unit_id for row in seen["q001"]["dense"]] == [unit_id(letter, 1) for letter in "rab"]


def test_queries_without_a_relevant_unit_are_not_run() -> None:
    """Nothing can be measured of them; without any other there is no experiment."""
    nothing = (5, "abc", "def", {"a": 0})
    assert [query.query_id for query in run([nothing, GOOD_STOP]).queries] == ["q001"]
    with pytest.raises(SourceError, match="manuals: no query has a relevant unit"):
        run([nothing])


def test_the_limits_hold_for_every_policy() -> None:
    """Four rows: the depths follow, and no channel is asked for more."""
    world = scripted(MIXED)
    limits = Budget(max_rows=4)
    found = run_experiment(**world, variants=default_variants(limits), budget=limits, live=1)
    assert {k for _, k in [*world["lexical"].calls[:6], *world["dense"].calls[:6]]} == {4}
    assert all(outcome.usage["rows"] <= 4 for runs in found.outcomes.values() for outcome in runs.values())
    assert found.outcomes["adaptive"]["q000"].usage["rows"] in (2, 4)
    assert found.live.different == ()


def test_a_name_that_stands_for_two_policies_is_refused() -> None:
    """Among those given, and where it is that of an arm."""
    for variants in ([ALWAYS, replace(ALWAYS, first_hop_rows=2)], [REFERENCE, replace(ALWAYS, first_hop_rows=2)]):
        with pytest.raises(RequestError, match="policies: 'always_continue' stands for two policies"):
            run_experiment(**scripted([LATE]), variants=variants)


def test_a_deadline_is_refused() -> None:
    """No two runs would meet it alike."""
    with pytest.raises(RequestError, match=r"deadline_ms: an experiment has none \(got 1000\)"):
        run([LATE], budget=Budget(deadline_ms=1000))
