"""What a graph decides and ranks with unless told otherwise: by what its searchers can do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from inventory import QUERY, Outcome, ask, documents
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from scored import DENSE, LEXICAL, Scoring, Weighing

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.scorecard import shipped_scorecard
from bounded_retrieval.graph.bounded import create_bounded_retrieval, parts_of
from bounded_retrieval.policies.coverage import TermCoverage
from bounded_retrieval.policies.fusion import ReciprocalRankFusion, ScoreFusion
from bounded_retrieval.policies.replay import replay
from bounded_retrieval.policies.weighted import IdfCoverage, Scorecard
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.chroma import ChromaSearcher

OWN = shipped_scorecard().thresholds["default"]
"""Where the scorecard stops unless told otherwise."""

both_ways = pytest.mark.parametrize("awaited", [False, True], ids=["invoke", "ainvoke"])


class Able:
    """A searcher with exactly these of the optional methods, each under its name or to be awaited."""

    def __init__(self, *names: str) -> None:
        self.search = lambda *_: []
        for name in names:
            setattr(self, name, lambda *_: {})


LEXICALS: dict[str, tuple[str, ...] | None] = {
    "weighs and scores": ("weigh", "score"),
    "awaited": ("aweigh", "ascore"),
    "weighs": ("weigh",),
    "scores": ("score",),
    "neither": (),
    "none": None,
}
DENSES: dict[str, tuple[str, ...] | None] = {"scores": ("score",), "awaited": ("ascore",), "neither": (), "none": None}


def settled(lexical: Any, dense: Any, **options: Any) -> tuple[str, str, int, float]:
    """The assessor, the fusion, the rows of the lexical call at the default budget, and the threshold."""
    parts = parts_of(create_bounded_retrieval(lexical, dense, **options))
    assert parts is not None
    rows = parts.defaults.first_hop_rows
    at_six = rows(6) if callable(rows) else rows
    return parts.assessor.name, parts.fusion.name, at_six, parts.defaults.threshold


PAIRS = [pair for pair in itertools.product(LEXICALS, DENSES) if pair != ("none", "none")]


@pytest.mark.parametrize(("words", "meanings"), PAIRS)
def test_the_defaults_follow_from_what_the_searchers_can_do(words: str, meanings: str) -> None:
    """Weights make the scorecard; weights and scores of every channel that is there make score fusion and 4 rows."""
    names, others = LEXICALS[words], DENSES[meanings]
    searchers = [None if each is None else Able(*each) for each in (names, others)]
    weighs = words in ("weighs and scores", "awaited", "weighs")
    scores = words in ("weighs and scores", "awaited") and meanings != "neither"
    assert settled(*searchers) == (
        "scorecard" if weighs else "term_coverage",
        "score_fusion" if scores else "rrf",
        4 if scores else 3,
        OWN if weighs else 0.8,
    )


def test_the_embedding_does_not_change_the_defaults() -> None:
    """Similarities of any embedding are spread before they are added, so the same parts are the default over all."""
    found = [Document(id="a", page_content="the pump")]
    with closing(ChromaSearcher.from_documents(found, DeterministicFakeEmbedding(size=8))) as dense:
        assert settled(BM25Searcher.from_documents(found), dense) == ("scorecard", "score_fusion", 4, OWN)


def test_each_default_gives_way_to_what_is_given() -> None:
    """An assessor, a fusion, rows or a threshold of one's own stand; the others stay what they were."""
    able = Able("weigh", "score"), Able("score")
    assert settled(*able, assessor=TermCoverage()) == ("term_coverage", "score_fusion", 4, 0.8)
    assert settled(*able, assessor=IdfCoverage()) == ("idf_coverage", "score_fusion", 4, 0.9)
    assert settled(*able, fusion=ReciprocalRankFusion()) == ("scorecard", "rrf", 4, OWN)
    assert settled(*able, first_hop_rows=2) == ("scorecard", "score_fusion", 2, OWN)
    assert settled(*able, threshold=0.6) == ("scorecard", "score_fusion", 4, 0.6)
    assert settled(Able(), Able(), fusion=ScoreFusion())[:3] == ("term_coverage", "score_fusion", 3)


@pytest.mark.parametrize("setting", ["economy", "default", "quality"])
def test_a_setting_of_the_scorecard_sets_the_threshold(setting: str) -> None:
    """Fewest dense calls and best quality are one argument away."""
    able = Able("weigh", "score"), Able("score")
    assert settled(*able, assessor=Scorecard(setting=setting))[3] == shipped_scorecard().thresholds[setting]


@pytest.mark.parametrize(
    ("max_rows", "able", "plain"),
    [(1, 1, 3), (2, 1, 3), (3, 2, 3), (6, 4, 3), (9, 6, 4), (30, 20, 15), (200, 133, 100)],
)
def test_the_first_depth_follows_from_the_rows_of_a_run(max_rows: int, able: int, plain: int) -> None:
    """Two thirds of the rows beside the defaults, half of them and at least three beside ranks."""
    for searchers, expected in (((Able("weigh", "score"), Able("score")), able), ((Able(), Able()), plain)):
        parts = parts_of(create_bounded_retrieval(*searchers))
        assert parts is not None
        rows = parts.defaults.first_hop_rows
        assert callable(rows)
        assert rows(max_rows) == expected


def test_a_request_that_lowers_the_rows_lowers_the_first_depth() -> None:
    """The depth is worked out for each run: 2 of 3 rows first, then the one that is left."""
    words, meanings = Weighing("lexical", LEXICAL), Scoring("dense", DENSE)
    request = {"budget": {"max_rows": 3}}
    outcome = ask(words, meanings, policy="always_continue", request=request)
    assert [search.requested for search in outcome.trace.searches] == [2, 1]
    usual = ask(words, meanings, policy="always_continue")
    assert [search.requested for search in usual.trace.searches] == [4, 2]


def test_adapted_langchain_objects_get_the_reference_defaults() -> None:
    """A vector store neither weighs nor scores on demand."""
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
    assert settled(store, store)[:3] == ("term_coverage", "rrf", 3)
    assert settled(BM25Searcher.from_documents(documents(a="One.")), store)[:3] == ("scorecard", "rrf", 3)


# The reference


TEXTS = documents(
    a="Replacing the batteries of the HX-200.",
    b="The charger.",
    c="A probe needs a new battery every year.",
    d="Probes and chargers.",
)


def over_texts(**options: Any) -> Outcome:
    """One run about a form of a word that no text has."""
    return ask(
        BM25Searcher.from_documents(TEXTS), Scoring("dense", {"b": 0.4}, TEXTS), query="battery probes", **options
    )


def test_by_default_words_are_compared_as_the_index_has_them() -> None:
    """Other forms of a word are found by the index, so no assessor that comes with it calls them missing."""
    for options in ({}, {"assessor": TermCoverage()}):
        (unit,) = [o for o in over_texts(**options).trace.decisions[0].observations if o.unit_id == "c"]
        assert unit.matched_terms == ("battery", "probes")


def test_the_reference_compares_words_as_they_stand() -> None:
    """Under the reference preset a form that is not there is missing, whatever the index folds."""
    outcome = over_texts(preset="reference")
    held = {each.unit_id: each.matched_terms for each in outcome.trace.decisions[0].observations}
    assert (held["c"], held["d"]) == (("battery",), ("probes",))


def test_the_reference_is_what_it_was() -> None:
    """Term coverage at .8, ranks with k = 60, 3 + 3 rows; nothing is weighed and nothing is scored."""
    words, meanings = Weighing("lexical", LEXICAL), Scoring("dense", DENSE)
    outcome = ask(words, meanings, preset="reference", policy="always_continue")
    request = outcome.trace.request
    assert (request.assessor, request.fusion, request.threshold, request.first_hop_rows) == (
        "term_coverage",
        "rrf",
        0.8,
        3,
    )
    assert (words.weighed, words.asked, meanings.asked, outcome.usage.scored_units) == ([], [], [], 0)
    assert [event.weights for event in outcome.trace.decisions] == [None, None]
    assert settled(words, meanings, preset="reference") == ("term_coverage", "rrf", 3, 0.8)


# Weights


def run(*searchers: Any, awaited: bool = False, **options: Any) -> Outcome:
    """One run at the defaults, through ``invoke`` or ``ainvoke``."""
    graph = create_bounded_retrieval(*searchers, **options).compile()
    given: Any = {"query": QUERY}
    return Outcome(asyncio.run(graph.ainvoke(given)) if awaited else graph.invoke(given))


@both_ways
def test_weights_are_asked_for_once(awaited: bool) -> None:
    """One call after the lexical search serves both decisions, and stands in both."""
    words = Weighing("lexical", LEXICAL)
    outcome = run(words, Scoring("dense", DENSE), awaited=awaited, policy="always_continue")
    first, second = outcome.trace.decisions
    assert words.weighed == [()]
    assert first.weights is not None
    assert (first.weights.holding["battery"], first.weights == second.weights) == (5, True)


RANKS = ReciprocalRankFusion()


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"assessor": TermCoverage(), "fusion": RANKS}, 0),
        ({"policy": "fixed_dense"}, 0),
        ({"assessor": TermCoverage(), "policy": "always_continue"}, 1),
        ({"policy": "always_continue"}, 1),
    ],
)
def test_weights_are_asked_for_only_where_they_are_of_use(options: dict[str, Any], calls: int) -> None:
    """An assessor or a fusion of scores asks for them, once; not one of ranks, and not without a lexical answer."""
    words = Weighing("lexical", LEXICAL)
    outcome = run(words, Scoring("dense", DENSE), **options)
    assert len(words.weighed) == calls
    assert outcome.trace.scored is None or outcome.trace.scored.attainable == 8.0


def test_a_lexical_search_that_failed_is_not_asked_for_weights() -> None:
    """A channel that did not answer has no statistics to go by."""

    class Down(Weighing):
        def search(self, *_: Any) -> Any:
            raise ConnectionError("down")

    words = Down("lexical", LEXICAL)
    outcome = run(words, Scoring("dense", DENSE))
    assert (words.weighed, outcome.notes) == ([], ("channel_failed",))


def failing(*_: Any) -> Any:
    """Weights that cannot be had."""
    raise ConnectionError("raw-error-7f3")


async def awaitable(*_: Any) -> Any:
    """Weights that can only be awaited."""
    return {"terms": {}, "attainable": 1.0}


WEIGHTS: dict[str, Callable[..., Any]] = {
    "an error": failing,
    "nothing": lambda *_: None,
    "a list": lambda *_: [1.0, 2.0],
    "negative": lambda *_: {"terms": {"battery": -1.0}, "attainable": 1.0},
    "no number": lambda *_: {"terms": {"battery": float("nan")}, "attainable": 1.0},
    "unbounded": lambda *_: {"terms": {}, "attainable": float("inf")},
    "a field too many": lambda *_: {"terms": {}, "attainable": 1.0, "relevant": ["a"]},
    "half a unit": lambda *_: {"terms": {}, "holding": {"battery": 0.5}, "attainable": 1.0},
}


@both_ways
@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_that_cannot_be_had_leave_all_terms_alike(case: str, awaited: bool) -> None:
    """The assessor decides without them, says so, and the run is none the worse; the diagnostics are told."""
    words, records = Weighing("lexical", LEXICAL), []
    words.weigh = WEIGHTS[case]  # type: ignore[method-assign]
    outcome = run(words, Scoring("dense", DENSE), awaited=awaited, diagnostics=records.append)
    first = outcome.trace.decisions[0]
    assert first.weights is None
    assert first.assessment is not None
    assert first.assessment.reasons[-1].startswith("the lexical searcher gives no weights")
    assert [(record["event"], record["channel"]) for record in records] == [("weigh_failed", "lexical")]
    assert outcome.notes == ()
    assert "raw-error" not in outcome.trace.to_json()


def test_weights_that_can_only_be_awaited_are_done_without_under_invoke() -> None:
    """Awaited they count; under invoke the run goes on as without them."""
    words, records = Weighing("lexical", LEXICAL), []
    words.weigh = awaitable  # type: ignore[method-assign]
    assert run(words, Scoring("dense", DENSE), awaited=True).trace.decisions[0].weights is not None
    outcome = run(words, Scoring("dense", DENSE), diagnostics=records.append)
    assert outcome.trace.decisions[0].weights is None
    assert [record["event"] for record in records] == ["weigh_failed"]


@pytest.mark.parametrize("policy", ["adaptive", "always_continue"])
def test_a_run_at_the_defaults_is_replayed(policy: str) -> None:
    """Decisions with weights and factors, and a fusion of scores, are taken and made again from the trace."""
    words, meanings = BM25Searcher.from_documents(TEXTS), Scoring("dense", {"b": 0.4, "a": 0.9, "d": 0.1}, TEXTS)
    outcome = ask(words, meanings, query="charger probes", policy=policy)
    units = {each.id: Unit.from_document(each) for each in TEXTS}
    assert replay(outcome.trace, units) == outcome.packet


def test_a_decision_by_the_scorecard_can_be_checked_from_the_trace() -> None:
    """Words, weights, points and threshold are all there: adding up what is shown gives what was compared."""
    long = [Document(id=f"x{number}", page_content=f"A note on item {number}.") for number in range(9)]
    words = BM25Searcher.from_documents([*TEXTS, *long])
    outcome = ask(
        words, Scoring("dense", {"b": 0.4}, TEXTS), query="batteries of the HX-200", budget=Budget(max_units=2)
    )
    decision = outcome.trace.decisions[0]
    assert (outcome.reason, outcome.usage.dense_calls) == ("proxy_sufficient", 0)
    assert decision.assessment is not None
    most = sum(points[-1] for _, points in decision.assessment.settings["points"].values())
    assert decision.assessment.coverage == round(sum(each.points for each in decision.assessment.factors) / most, 6)
    assert decision.weights is not None
    assert decision.weights.holding == {"batteries": 2, "hx-200": 1}
    assert decision.weights.attainable >= (outcome.trace.searches[0].returned[0].score or 0.0)
