"""Scores and weights with a resolver: asked detached, under the caller's filter, and of nothing that was dropped."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from inventory import QUERY, Outcome
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from scored import DENSE, LEXICAL, Scoring, Weighing

sys.path.insert(0, str(Path(__file__).parents[1] / "eligibility"))
import observing
import worlds
from worlds import Case, ExactSearcher, PushingSearcher, World

from bounded_retrieval.contracts.assessment import QueryWeights
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.eligibility import EligibilityView
from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.contracts.normalise import clean_metadata
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.fusion import ScoreFusion
from bounded_retrieval.policies.replay import replay
from bounded_retrieval.policies.tokenize import tokenize
from bounded_retrieval.policies.weighted import Scorecard

OPEN = {"zone": "open"}
both_ways = pytest.mark.parametrize("awaited", [False, True], ids=["invoke", "ainvoke"])


def units(*hidden: str) -> list[Document]:
    """The usual units, of which some may not be seen."""
    return [
        Document(
            id=unit_id,
            page_content=f"Unit {unit_id} of the battery.",
            metadata={"zone": "closed" if unit_id in hidden else "open"},
        )
        for unit_id in LEXICAL
    ]


def searchers(*hidden: str) -> tuple[Weighing, Scoring]:
    """A lexical searcher that weighs and scores, and a dense one that scores."""
    return Weighing("lexical", LEXICAL, units(*hidden)), Scoring("dense", DENSE, units(*hidden))


def view(**given: Any) -> EligibilityView:
    """A view of somebody."""
    return EligibilityView(**{"view_id": "viewer-one", "version": "rules-7", **given})


def run(*given: Any, eligibility: Any, awaited: bool = False, config: Any = None, **options: Any) -> Outcome:
    """One run that goes on in any case."""
    settled: dict[str, Any] = {"policy": "always_continue", "first_hop_rows": 3} | options
    graph = create_bounded_retrieval(*given, eligibility=eligibility, **settled).compile()
    asked: Any = {"query": QUERY}
    return Outcome(asyncio.run(graph.ainvoke(asked, config)) if awaited else graph.invoke(asked, config))


def by_filter(_: Any) -> EligibilityView:
    """Who may see the open zone."""
    return view(search_filter=OPEN)


def by_ids(_: Any) -> EligibilityView:
    """Who may see all but c, by id."""
    return view(allowed=lambda unit_ids: {unit_id for unit_id in unit_ids if unit_id != "c"})


def by_both(_: Any) -> EligibilityView:
    """The same, with a filter besides that says less."""
    return view(allowed=lambda unit_ids: {unit_id for unit_id in unit_ids if unit_id != "c"}, search_filter=OPEN)


@both_ways
def test_scores_and_weights_are_asked_for_under_the_callers_filter(awaited: bool) -> None:
    """Each look-up is given the filter, names no hidden unit, and the weights count none."""
    words, meanings = searchers("c")
    outcome = run(words, meanings, eligibility=by_filter, awaited=awaited)
    assert (words.asked, meanings.asked) == ([["e"]], [["d"]])
    assert words.filters == meanings.filters == [OPEN]
    assert words.weighed == [(OPEN,)]
    assert outcome.trace.decisions[0].weights is not None
    assert outcome.trace.decisions[0].weights.holding["battery"] == 4
    assert outcome.notes == ()


@both_ways
@pytest.mark.parametrize("resolver", [by_ids, by_both])
def test_under_a_rule_by_id_no_weights_are_asked_for(resolver: Any, awaited: bool) -> None:
    """Counts would be those of units that may not be seen; scores of what was seen are asked for all the same."""
    words, meanings = searchers()
    outcome = run(words, meanings, eligibility=resolver, awaited=awaited)
    assert words.weighed == []
    assert [event.weights for event in outcome.trace.decisions] == [None, None]
    assert (words.asked, meanings.asked) == ([["e"]], [["d"]])
    assert words.filters == ([OPEN] if resolver is by_both else [])
    assert outcome.trace.decisions[0].assessment is not None
    assert "gives no weights" in outcome.trace.decisions[0].assessment.reasons[-1]


@both_ways
def test_a_view_without_a_filter_of_its_own_gives_none(awaited: bool) -> None:
    """An empty filter lets everything pass; searchers without a third argument are enough then."""
    words, meanings = searchers()
    run(words, meanings, eligibility=lambda _: view(search_filter={}), awaited=awaited)
    assert (words.filters, meanings.filters, words.weighed) == ([], [], [()])


@both_ways
def test_a_unit_revoked_after_it_was_seen_is_not_scored(awaited: bool) -> None:
    """What the recheck drops is asked about by nobody, and is in neither the packet nor the trace."""
    words, meanings = searchers()
    allowed = set(LEXICAL)

    class Revoking(Scoring):
        def search(self, *args: Any) -> Any:
            found = super().search(*args)
            allowed.discard("a")
            return found

    revoking = Revoking("dense", DENSE, units())
    outcome = run(words, revoking, eligibility=lambda _: view(allowed=lambda ids: allowed & set(ids)), awaited=awaited)
    assert (words.asked, revoking.asked, meanings.asked) == ([["e"]], [], [])
    assert (outcome.ids, outcome.usage.scored_units) == (["c", "e", "b"], 1)
    assert '"a"' not in outcome.trace.to_json()
    held = {
        unit_id: Unit.from_document(each, private=["zone"]) for unit_id, each in words.held.items() if unit_id != "a"
    }
    assert replay(outcome.trace, held).items == tuple(
        item.model_copy(update={"metadata": {}}) for item in outcome.packet.items
    )


@both_ways
def test_a_run_whose_caller_is_another_one_by_then_scores_nothing(awaited: bool) -> None:
    """A run that ends under another view forgets what it saw; there is nothing to score then."""
    words, meanings = searchers()
    asked = iter(range(100))

    def changing(_: Any) -> EligibilityView:
        return view(search_filter={}, view_id="viewer-one" if next(asked) < 4 else "viewer-two")

    outcome = run(words, meanings, eligibility=changing, awaited=awaited)
    assert (outcome.reason, outcome.notes, outcome.ids) == ("retrieval_failed", ("view_changed",), [])
    assert (words.asked, meanings.asked, outcome.usage.scored_units) == ([], [], 0)


class Listener(BaseCallbackHandler):
    """Remembers what any part of the run was given."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.heard.append(repr(inputs))


class Telling(Weighing):
    """A searcher that works through a LangChain runnable, which tells the callbacks around it."""

    def score(self, *args: Any) -> Any:
        return RunnableLambda(lambda _: super(Telling, self).score(*args)).invoke("scoring-secret")

    def weigh(self, *args: Any) -> Any:
        return RunnableLambda(lambda _: super(Telling, self).weigh(*args)).invoke("weighing-secret")


@both_ways
@pytest.mark.parametrize("guarded", [True, False])
def test_scoring_and_weighing_run_detached_under_a_resolver(guarded: bool, awaited: bool) -> None:
    """With a resolver the run's callbacks hear of neither; in a public collection they do."""
    listener = Listener()
    words, meanings = Telling("lexical", LEXICAL, units()), Telling("dense", DENSE, units())
    resolver = by_filter if guarded else None
    outcome = run(words, meanings, eligibility=resolver, awaited=awaited, config={"callbacks": [listener]})
    heard = {name for name in ("scoring-secret", "weighing-secret") if any(name in text for text in listener.heard)}
    assert heard == (set() if guarded else {"scoring-secret", "weighing-secret"})
    assert (outcome.usage.scored_units, len(words.weighed)) == (2, 1)


def test_failures_tell_the_caller_nothing() -> None:
    """A score or a weight that fails over a hidden unit leaves no word of it in any output; the diagnostics have it."""

    class Broken(Weighing):
        def score(self, *_: Any) -> Any:
            raise ValueError("secret-c")

        weigh = score

    records: list[dict[str, Any]] = []
    words, meanings = Broken("lexical", LEXICAL, units("c")), Scoring("dense", DENSE, units("c"))
    graph = create_bounded_retrieval(
        words,
        meanings,
        eligibility=by_filter,
        policy="always_continue",
        first_hop_rows=3,
        diagnostics=records.append,
        fusion=ScoreFusion(),
        assessor=Scorecard(),
    ).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}
    modes = ["values", "updates", "custom", "checkpoints", "tasks", "debug"]
    chunks = list(graph.stream({"query": QUERY}, config, stream_mode=modes))
    assert "secret-c" not in repr([chunks, list(graph.get_state_history(config))])
    failures = [record["event"] for record in records if str(record.get("error")) == "secret-c"]
    assert failures == ["weigh_failed", "score_failed"]


# Worlds with hidden units, and without


class ScoringSearcher(PushingSearcher):
    """An exact searcher that scores: what a search under the filter gives a unit, 0 for one that does not pass."""

    def score(self, query: str, unit_ids: Sequence[str], filter: Any = None) -> Mapping[str, float]:
        accepts = compile_filter(filter)
        held = [self.documents[unit_id] for unit_id in unit_ids if unit_id in self.documents]
        return {
            each.id: self.score_of(query, each) if accepts(clean_metadata(each.metadata)[0]) else 0.0 for each in held
        }


class WeighingSearcher(ScoringSearcher):
    """A lexical one that weighs by counting units that pass."""

    heeds_filter = True

    def weigh(self, query: str, words: Sequence[str], filter: Any = None) -> QueryWeights:
        accepts = compile_filter(filter if self.heeds_filter else None)
        passing = [each for each in self.documents.values() if accepts(clean_metadata(each.metadata)[0])]
        texts = [f"{each.metadata.get('title', '')} {each.page_content}" for each in passing]
        holding = {word: sum(word in tokenize(text) for text in texts) for word in words}
        terms = {word: 1 / (1 + count) for word, count in holding.items()}
        return QueryWeights(terms=terms, holding=holding, attainable=float(len(set(tokenize(query)))))


class Heedless(WeighingSearcher):
    """One whose weights count everything that it holds."""

    heeds_filter = False


class ScoringWorld(World):
    """A world whose searchers score and weigh, so that the scorecard and the fusion of scores are the defaults."""

    words: type[ExactSearcher] = WeighingSearcher

    def _searcher(self, channel: str, kind: str | None) -> Any:
        if kind not in ("exact", "weighing"):
            return super()._searcher(channel, kind)
        return (self.words if channel == "lexical" else ScoringSearcher)(self.held, channel)


class HeedlessWorld(ScoringWorld):
    """One whose lexical searcher lets out how many hidden units there are."""

    words = Heedless


CASES = worlds.text_cases(lexicals=("bm25", "weighing"), denses=("exact",))
LOSING = worlds.text_cases(lexicals=("bm25", "weighing"), denses=("exact",), changing=True)
FAILING = worlds.text_cases(
    lexicals=("bm25", "weighing"), denses=("exact",), changing=True, outages=("resolver", "identity")
)
COUNTED = worlds.text_cases(views=("filter", "metadata"), lexicals=("weighing",), denses=("exact",))

quick = settings(max_examples=9, deadline=None, suppress_health_check=list(HealthCheck))
seeded = settings(quick, max_examples=300, derandomize=True, database=None, phases=(Phase.generate,))


def going_on(case: Case) -> Case:
    """A case in which both searches are made as often as the budget allows, so that there is something to score."""
    return replace(case, policy="always_continue" if case.policy.startswith("fixed") else case.policy)


def differences(case: Case, kind: type[World] = ScoringWorld) -> list[str]:
    """The places in which the caller could tell the two worlds apart."""
    seen = [observing.observe(partial(kind, case, whole=whole)) for whole in (True, False)]
    return observing.differing(*seen)


@pytest.mark.parametrize("cases", [CASES, LOSING, FAILING], ids=["text", "lost", "failing"])
def test_hidden_units_and_units_that_do_not_exist_look_the_same(cases: Any) -> None:
    """With scores and weights too, no output of a run differs between a world with hidden units and one without."""

    @quick
    @given(cases)
    def look(case: Case) -> None:
        assert differences(going_on(case)) == []

    look()


def test_these_worlds_score_and_weigh() -> None:
    """The pair that is looked at most is one in which units are scored and words are weighed."""
    plans = (
        worlds.Plan(unit_id="m0", text=worlds.TEXTS[0], fate="shown"),
        worlds.Plan(unit_id="a0", text=worlds.TEXTS[1], fate="hidden"),
        worlds.Plan(unit_id="z0", text=worlds.TEXTS[6], fate="shown"),
        worlds.Plan(unit_id="m1", text=worlds.TEXTS[3], fate="shown"),
        worlds.Plan(unit_id="z1", text=worlds.TEXTS[8], fate="shown"),
    )
    case = Case(units=plans, view="exact_filter", lexical="weighing", policy="always_continue", first_hop_rows=2)
    case = replace(case, manners=("stream", "ainvoke", "tool"))
    world = ScoringWorld(case, whole=True)
    trace = DecisionTrace.from_result(world.graph().compile().invoke({"query": worlds.QUERY}, context=worlds.Caller()))
    assert trace.scored is not None
    assert trace.scored.why_not is None
    assert trace.scored.usage.scored_units > 0
    assert trace.decisions[0].weights is not None
    assert differences(case) == []


def test_weights_that_count_hidden_units_are_found_out() -> None:
    """With a lexical searcher that takes no notice of the filter, some pair of worlds can be told apart."""

    @seeded
    @given(COUNTED)
    def look(case: Case) -> None:
        assert differences(going_on(case), HeedlessWorld) == []

    with pytest.raises(AssertionError):
        look()
