"""Scores of units that only the other channel returned: which are looked up, what is counted, what is made of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from inventory import QUERY, Outcome, ask, documents
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langgraph.checkpoint.memory import InMemorySaver
from scored import DENSE, LEXICAL, Scoring, dense, fused, lexical

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.trace import DecisionTrace, EvidencePacked
from bounded_retrieval.errors import RequestError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.fusion import ReciprocalRankFusion, ScoreFusion
from bounded_retrieval.policies.replay import replay
from bounded_retrieval.policies.weighted import Scorecard
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.chroma import ChromaSearcher

both_ways = pytest.mark.parametrize("awaited", [False, True], ids=["invoke", "ainvoke"])


def units_of(*searchers: Any) -> dict[str, Unit]:
    """The units that some searchers hold, by id."""
    return {unit_id: Unit.from_document(each) for searcher in searchers for unit_id, each in searcher.held.items()}


def packed_of(trace: DecisionTrace) -> EvidencePacked:
    """How a run ended."""
    last = trace.events[-1]
    assert isinstance(last, EvidencePacked)
    return last


def run(*searchers: Any, awaited: bool = False, **options: Any) -> Outcome:
    """One run with score fusion over both channels, through ``invoke`` or ``ainvoke``."""
    settings: dict[str, Any] = {"policy": "always_continue", "fusion": ScoreFusion(), "first_hop_rows": 3}
    graph = create_bounded_retrieval(*searchers, **(settings | options)).compile()
    given: Any = {"query": QUERY}
    return Outcome(asyncio.run(graph.ainvoke(given)) if awaited else graph.invoke(given))


@both_ways
def test_scores_of_both_channels_are_added_up(awaited: bool) -> None:
    """Lexical a, b, c and dense e, c, b: each is scored by both, and the packet holds the four best sums.

    The query has three terms, so the dense channel weighs .66.
    """
    outcome = run(lexical(), dense(), awaited=awaited)
    expected = {
        "a": (0.34 * 4 / 4, 0.0),
        "b": (0.34 * 3 / 4, 0.66 * (0.3 - 0.2) / (1 - 0.2)),
        "c": (0.34 * 2 / 4, 0.66 * (0.8 - 0.2) / (1 - 0.2)),
        "e": (0.0, 0.66 * (0.9 - 0.2) / (1 - 0.2)),
    }
    assert outcome.ids == ["c", "e", "a", "b"]
    for item in outcome.packet.items:
        assert tuple(item.contributions.values()) == pytest.approx(expected[item.unit_id])
        assert item.fused_score == sum(item.contributions.values())
    assert packed_of(outcome.trace).fused_by == "score_fusion"
    assert "fused_by_rank" not in outcome.notes


@both_ways
def test_only_units_that_the_other_channel_returned_are_scored(awaited: bool) -> None:
    """Each searcher is asked once, for exactly those, and they are counted; calls, rows and reads are as ever."""
    words, meanings = lexical(), dense()
    outcome = run(words, meanings, awaited=awaited)
    assert (words.asked, meanings.asked) == ([["e"]], [["a"]])
    assert (words.searches, meanings.searches) == (1, 1)
    by_rank = run(lexical(), dense(), awaited=awaited, fusion=ReciprocalRankFusion())
    assert outcome.usage == by_rank.usage.model_copy(update={"scored_units": 2, "chars": outcome.usage.chars})
    assert (outcome.usage.calls, outcome.usage.dense_calls, outcome.usage.rows, outcome.usage.reads) == (2, 1, 6, 4)
    assert outcome.reason == by_rank.reason == "resource_budget_exhausted"


def test_the_trace_says_what_was_looked_up() -> None:
    """One event before the packing holds both channels' scores, and the usage by then."""
    trace = fused(lexical(), dense()).trace
    assert [event.event for event in trace.events[-2:]] == ["units_scored", "evidence_packed"]
    assert trace.scored is not None
    assert trace.scored.model_dump(exclude={"usage"}) == {
        "event": "units_scored",
        "scores": {"lexical": ({"unit_id": "e", "score": 0.0},), "dense": ({"unit_id": "a", "score": 0.2},)},
        "attainable": None,
        "why_not": None,
    }
    assert trace.scored.usage.scored_units == packed_of(trace).usage.scored_units == 2


def test_a_unit_that_the_channel_does_not_know_is_counted_and_gains_nothing() -> None:
    """The look-up was made, its answer does not name the unit, and its contribution is 0."""
    words = Scoring("lexical", {"d": 4.0, "a": 3.0})
    outcome = fused(words, dense())
    (unit,) = [item for item in outcome.packet.items if item.unit_id == "d"]
    assert (unit.contributions["dense"], outcome.usage.scored_units) == (0.0, 5)
    assert outcome.trace.scored is not None
    assert [each.unit_id for each in outcome.trace.scored.scores["dense"]] == ["a"]


def test_what_the_recheck_dropped_is_not_scored() -> None:
    """A unit that is gone by then is neither asked for nor counted, and takes no part in the shares."""
    words, meanings = lexical(), dense()
    shelf = lexical()
    del shelf.held["a"]
    outcome = fused(words, meanings, units=shelf)
    assert (words.asked, meanings.asked, outcome.usage.scored_units) == ([["e"]], [], 1)
    # c has 2 of the 3 that b has, which is the most that is left.
    (unit,) = [item for item in outcome.packet.items if item.unit_id == "c"]
    assert unit.contributions["lexical"] == pytest.approx(0.34 * 2 / 3)
    assert '"a"' not in outcome.trace.to_json()


def test_one_unit_under_two_ids_is_returned_by_both_channels() -> None:
    """A dense row with the text of a lexical one is that unit, so neither channel is asked for it again."""
    words = Scoring("lexical", {"a": 4.0}, documents(a="The battery."))
    meanings = Scoring("dense", {"z": 0.9}, documents(z="The battery."))
    outcome = fused(words, meanings)
    assert (words.asked, meanings.asked, outcome.ids, outcome.usage.scored_units) == ([], [], ["a"], 0)
    assert outcome.packet.items[0].contributions == {"lexical": pytest.approx(0.34), "dense": 0.0}
    assert packed_of(outcome.trace).fused_by == "score_fusion"


@pytest.mark.parametrize(
    ("words", "meanings"), [(LEXICAL, {}), ({}, DENSE), ({}, {})], ids=["no dense", "no lexical", "nothing"]
)
def test_where_one_channel_found_everything_nothing_is_scored(words: Any, meanings: Any) -> None:
    """There is no second ranking, so the first one's order stands without a look-up, an event or a note."""
    searchers = Scoring("lexical", words), Scoring("dense", meanings)
    outcome = fused(*searchers)
    assert [searcher.asked for searcher in searchers] == [[], []]
    assert (outcome.trace.scored, outcome.usage.scored_units) == (None, 0)
    assert outcome.ids == [*list(words)[:3], *list(meanings)[:3]]
    assert "fused_by_rank" not in outcome.notes


def test_ranks_need_no_scores() -> None:
    """With reciprocal rank fusion no searcher is asked for a score."""
    words, meanings = lexical(), dense()
    outcome = fused(words, meanings, fusion=ReciprocalRankFusion())
    assert (words.asked, meanings.asked, outcome.trace.scored) == ([], [], None)
    assert packed_of(outcome.trace).fused_by == "rrf"


def test_a_small_budget_of_calls_is_not_spent_on_scores() -> None:
    """Scores are no calls and no rows: a run at its last call and its last row still has them."""
    budget = Budget(max_calls=2, max_rows=2, max_reads=2)
    outcome = fused(lexical(), dense(), budget=budget, first_hop_rows=1)
    assert (outcome.usage.calls, outcome.usage.rows, outcome.usage.reads) == (2, 2, 2)
    assert (outcome.usage.scored_units, packed_of(outcome.trace).fused_by) == (2, "score_fusion")


# What the dense store sees


class Counting(Embeddings):
    """Counts letters, and how often it was asked for a query."""

    def __init__(self) -> None:
        self.queries = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self._vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.queries += 1
        return self._vector(text)

    def _vector(self, text: str) -> list[float]:
        return [1.0 + text.casefold().count(letter) for letter in "abehrt"]


class Watched(ChromaSearcher):
    """A store that counts every time that its collection is used."""

    used = 0

    def _live(self) -> Any:
        self.used += 1
        return super()._live()


STORED = [
    Document(id="a", page_content="Replace the HX-200 battery with the small screwdriver."),
    Document(id="b", page_content="The battery of the HX-210."),
    Document(id="c", page_content="Charging takes four hours."),
    Document(id="d", page_content="Earth, heart, hear the brat."),
]


@pytest.fixture(scope="module")
def store() -> Any:
    """A real collection in memory."""
    searcher = Watched.from_documents(STORED, Counting())
    yield searcher
    searcher.close()


def watched(store: Any, **options: Any) -> Outcome:
    """One run over real searchers, from a count of 0, with the parts that are the default over a built-in embedding."""
    store.forget_queries()
    store.used = store.embedding.queries = 0
    parts = {"assessor": Scorecard(), "fusion": ScoreFusion()}
    return ask(BM25Searcher.from_documents(STORED), store, **parts, **options)


@pytest.mark.parametrize("options", [{"threshold": 0.0}, {"policy": "fixed_lexical"}], ids=["adaptive", "fixed"])
def test_a_run_that_stops_after_the_lexical_search_leaves_the_dense_store_alone(store: Any, options: Any) -> None:
    """No query is embedded, the collection is not touched, and no dense call is counted."""
    outcome = watched(store, **options)
    assert outcome.reason in ("proxy_sufficient", "policy_complete")
    assert (store.embedding.queries, store.used) == (0, 0)
    assert (outcome.usage.dense_calls, outcome.usage.scored_units, outcome.trace.scored) == (0, 0, None)
    assert all(item.contributions.keys() == {"lexical"} for item in outcome.packet.items)


def test_a_run_that_goes_on_embeds_its_query_once(store: Any) -> None:
    """The vector of the search serves the scores too, and both are one dense call."""
    outcome = watched(store, policy="always_continue", first_hop_rows=2, budget=Budget(max_rows=4))
    assert (store.embedding.queries, outcome.usage.dense_calls) == (1, 1)
    assert outcome.usage.scored_units > 0
    assert packed_of(outcome.trace).fused_by == "score_fusion"


def test_looked_up_scores_are_those_of_a_search(store: Any) -> None:
    """What a channel gives a unit on demand is what its search would have given it."""
    outcome = watched(store, policy="always_continue", first_hop_rows=2, budget=Budget(max_rows=4))
    assert outcome.trace.scored is not None
    looked_up = outcome.trace.scored.scores
    for channel, searcher in {"lexical": BM25Searcher.from_documents(STORED), "dense": store}.items():
        found = {row.unit_id: row.score for row in searcher.search(QUERY, len(STORED))}
        assert looked_up[channel]
        assert all(found.get(each.unit_id, 0.0) == each.score for each in looked_up[channel])


# Replay and resume


def test_a_run_is_replayed_from_its_trace() -> None:
    """The trace holds every score, so the packet is made again without a searcher, contributions and all."""
    words, meanings = lexical(), dense()
    outcome = fused(words, meanings)
    trace = DecisionTrace.model_validate_json(outcome.trace.to_json())
    assert replay(trace, units_of(words, meanings)) == outcome.packet


def test_a_run_is_replayed_from_a_redacted_trace() -> None:
    """Where the recheck dropped units, their scores are in no event and the packet is made of the others."""
    words, meanings, shelf = lexical(), dense(), lexical()
    del shelf.held["a"], shelf.held["c"]
    outcome = fused(words, meanings, units=shelf)
    assert outcome.ids == ["e", "b"]
    replayed = replay(outcome.trace, units_of(shelf))
    assert replayed == outcome.packet


def test_a_run_is_replayed_with_what_a_unit_source_gives() -> None:
    """LangChain documents by id will do, as ``fetch`` gives them."""
    words, meanings = lexical(), dense()
    outcome = fused(words, meanings)
    assert replay(outcome.trace, {**meanings.held, **words.held}) == outcome.packet


def test_a_run_is_not_replayed_without_its_units_or_with_others() -> None:
    """One that was ranked is missing, or has another length: the error names it, and no other packet is made."""
    words, meanings = lexical(), dense()
    trace = fused(words, meanings).trace
    units = units_of(words, meanings)
    with pytest.raises(RequestError, match=r"^units: 1 of 4 are missing, the first 'a'$"):
        replay(trace, {unit_id: unit for unit_id, unit in units.items() if unit_id != "a"})
    with pytest.raises(RequestError, match=r"^units: 4 of 4 are missing"):
        replay(trace, {})
    longer = units["b"].model_copy(update={"text": units["b"].text + "!"})
    with pytest.raises(RequestError, match=r"^units: 'b' had 22 characters \(got 23\)$"):
        replay(trace, {**units, "b": longer})


def test_a_trace_is_not_replayed_with_other_settings() -> None:
    """Another weight makes another ranking, which is not what the trace says; the right weight is accepted."""
    words, meanings, fusion = lexical(), dense(), ScoreFusion(dense_weight=0.4)
    outcome = fused(words, meanings, fusion=fusion)
    units = units_of(words, meanings)
    assert replay(outcome.trace, units, fusion) == outcome.packet
    with pytest.raises(RequestError, match="its ranking was made by score_fusion at other settings"):
        replay(outcome.trace, units)
    with pytest.raises(RequestError, match="was fused by score_fusion, not rrf"):
        replay(outcome.trace, units, ReciprocalRankFusion())


def test_the_same_answers_give_the_same_bytes() -> None:
    """Two runs and both ways of calling give the same packet and the same trace."""
    outcomes = [run(lexical(), dense(), awaited=awaited) for awaited in (False, False, True)]
    assert len({outcome.packet.model_dump_json() for outcome in outcomes}) == 1
    assert len({outcome.trace.to_json() for outcome in outcomes}) == 1


@both_ways
def test_a_run_cut_off_while_scoring_scores_again(awaited: bool) -> None:
    """Scores are no charged call: resumed, they are looked up anew, no search is repeated, and the packet is whole."""

    class CutOff(Scoring):
        def score(self, *args: Any) -> Any:
            found = super().score(*args)
            if len(self.asked) == 1:
                raise KeyboardInterrupt
            return found

    words, meanings = lexical(), CutOff("dense", DENSE)
    builder = create_bounded_retrieval(
        words, meanings, policy="always_continue", fusion=ScoreFusion(), first_hop_rows=3
    )
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}

    def go(given: Any) -> Any:
        if awaited:
            return asyncio.run(graph.ainvoke(given, config, durability="sync"))
        return graph.invoke(given, config, durability="sync")

    with pytest.raises(KeyboardInterrupt):
        go({"query": QUERY})
    outcome = Outcome(go(None))
    assert (words.asked, meanings.asked) == ([["e"], ["e"]], [["a"], ["a"]])
    assert (words.searches, meanings.searches) == (1, 1)
    undisturbed = fused(lexical(), dense())
    assert (outcome.packet, outcome.trace) == (undisturbed.packet, undisturbed.trace)


def test_a_pause_before_the_packing_changes_nothing() -> None:
    """A run that pauses there and goes on elsewhere, over other searchers alike, ends in the packet of one that did not."""
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "one"}}
    settings: Any = {"policy": "always_continue", "fusion": ScoreFusion(), "first_hop_rows": 3}
    first = create_bounded_retrieval(lexical(), dense(), **settings)
    first.compile(checkpointer=saver, interrupt_before=["recheck_and_pack"]).invoke({"query": QUERY}, config)
    second = create_bounded_retrieval(lexical(), dense(), **settings).compile(checkpointer=saver)
    assert EvidencePacket.from_result(second.invoke(None, config)) == fused(lexical(), dense()).packet


def test_requests_on_one_thread_do_not_see_each_others_scores() -> None:
    """A second request on a thread has its own scores and its own count."""
    builder = create_bounded_retrieval(
        lexical(), dense(), policy="always_continue", fusion=ScoreFusion(), first_hop_rows=3
    )
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}
    assert [Outcome(graph.invoke({"query": QUERY}, config)).usage.scored_units for _ in range(3)] == [2, 2, 2]


def test_events_are_streamed_as_they_happen() -> None:
    """The scores stand in the custom stream, before the packing."""
    builder = create_bounded_retrieval(
        lexical(), dense(), policy="always_continue", fusion=ScoreFusion(), first_hop_rows=3
    )
    events = [event["event"] for event in builder.compile().stream({"query": QUERY}, stream_mode="custom")]
    assert events[-2:] == ["units_scored", "evidence_packed"]
