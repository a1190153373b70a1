"""Who may see what: only what a caller may see is seen, counted, charged and handed over, whatever a resolver does."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from inventory import QUERY, Outcome, ask, dense, documents, lexical
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import ValidationError

from bounded_retrieval.contracts.budget import Budget, Usage
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.eligibility import OVERFETCH_CAP, EligibilityView, ViewStamp
from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.contracts.request import IDENTITY_FIELDS, RetrievalRequest
from bounded_retrieval.contracts.trace import EvidencePacked
from bounded_retrieval.errors import AsyncOnlyError, ConfigurationError, RequestError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.coverage import TermCoverage
from bounded_retrieval.testing import FailingSearcher

MODES = ["values", "updates", "custom", "messages", "checkpoints", "tasks", "debug"]
OPEN = {"zone": "open"}
CLOSED = {"zone": "closed"}
RAW = "raw-error-7f3"
MARK: ContextVar[str] = ContextVar("MARK", default="unset")

both_ways = pytest.mark.parametrize("awaited", [False, True], ids=["invoke", "ainvoke"])


def shown(*names: str) -> list[Document]:
    """Units that everybody may see."""
    return [Document(id=name, page_content=f"Part {name} of the battery.", metadata=dict(OPEN)) for name in names]


def hidden(*names: str) -> list[Document]:
    """Units that nobody may see; ids and texts say so."""
    return [
        Document(id=f"secret-{name}", page_content=f"The secret {name} of the battery.", metadata=dict(CLOSED))
        for name in names
    ]


class Blind:
    """A searcher that takes no notice of the filter; it counts its calls and readings."""

    def __init__(self, *held: Document) -> None:
        self.held = {document.id: document for document in held}
        self.calls: list[tuple[int, Any]] = []
        self.fetched: list[list[str]] = []

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002
        self.calls.append((k, filter))
        return [
            Candidate(unit_id=unit_id, channel="lexical", rank=rank, unit=unit)
            for rank, (unit_id, unit) in enumerate(list(self.held.items())[:k], 1)
        ]

    def fetch(self, unit_ids: Any) -> dict[str, Document]:
        self.fetched.append(list(unit_ids))
        return {unit_id: self.held[unit_id] for unit_id in unit_ids if unit_id in self.held}


class Pushing(Blind):
    """A searcher that applies filters itself, and says whether it applies all of them."""

    pushes = True

    def pushes_down(self, filter: Any) -> bool:  # noqa: ARG002
        return self.pushes

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:
        self.calls.append((k, filter))
        passes = compile_filter(filter)
        return Blind(*(unit for unit in self.held.values() if passes(unit.metadata))).search(query, k)


class Lying(Pushing):
    """A searcher that says it applies filters and does not."""

    search = Blind.search


class References(Blind):
    """A searcher that returns ids without texts."""

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:
        return [row.model_copy(update={"unit": None}) for row in super().search(query, k, filter)]


class Meanwhile:
    """The reference assessor; something else happens while it works."""

    name = "meanwhile"
    default_threshold = 0.8
    settings: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, happens: Callable[[], Any]) -> None:
        self.happens = happens

    def assess(self, given: Any) -> Any:
        self.happens()
        return TermCoverage().assess(given)


def resolving(view: Any) -> Callable[[Any], Any]:
    """A resolver that always gives this."""
    return lambda _: view


def view(**given: Any) -> EligibilityView:
    """A view of somebody."""
    return EligibilityView(**{"view_id": "viewer-one", "version": "rules-7", **given})


def not_secret(unit_ids: Any) -> set[str]:
    """Every id but those of hidden units."""
    return {unit_id for unit_id in unit_ids if not unit_id.startswith("secret")}


by_ids = resolving(view(allowed=not_secret))
by_filter = resolving(view(search_filter=OPEN))
both_rules = pytest.mark.parametrize("resolver", [by_ids, by_filter], ids=["allowed", "filter"])


def run(*searchers: Any, awaited: bool = False, **options: Any) -> Outcome:
    """One run, through ``invoke`` or ``ainvoke``."""
    graph = create_bounded_retrieval(*searchers, **options).compile()
    given: Any = {"query": QUERY}
    return Outcome(asyncio.run(graph.ainvoke(given)) if awaited else graph.invoke(given))


def everything(*searchers: Any, awaited: bool = False, **options: Any) -> str:
    """All that one run emits in any stream mode, leaves in any checkpoint and returns, as text."""
    graph = create_bounded_retrieval(*searchers, **options).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}

    async def collect() -> list[Any]:
        return [chunk async for chunk in graph.astream({"query": QUERY}, config, stream_mode=MODES)]

    chunks = asyncio.run(collect()) if awaited else list(graph.stream({"query": QUERY}, config, stream_mode=MODES))
    assert {mode for mode, _ in chunks} == set(MODES) - {"messages"}
    return repr([chunks, list(graph.get_state_history(config))])


def packed_of(outcome: Outcome) -> EvidencePacked:
    """The last event of a run's trace."""
    last = outcome.trace.events[-1]
    assert isinstance(last, EvidencePacked)
    return last


def public(outcome: Outcome) -> bytes:
    """Packet, documents and trace of a run, byte by byte."""
    parts = [outcome.packet.model_dump_json(), outcome.trace.to_json(), repr(outcome.packet.to_documents())]
    return "\n".join(parts).encode()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging calls wait for; they all come back when the test ends."""
    event = threading.Event()
    yield event
    event.set()


# What is seen


@both_ways
@both_rules
def test_only_eligible_rows_are_seen_counted_and_charged(resolver: Any, awaited: bool) -> None:
    """Hidden rows take no rank, no row and no read, and three visible ones are kept from behind them."""
    words = Blind(*hidden("a", "b"), *shown("l1"), *hidden("c"), *shown("l2", "l3", "l4"))
    meanings = Blind(*hidden("d"), *shown("d1", "d2", "d3", "d4"))
    outcome = run(words, meanings, awaited=awaited, eligibility=resolver, policy="always_continue")
    first, second = outcome.trace.searches
    assert [(row.unit_id, row.rank) for row in first.returned] == [("l1", 1), ("l2", 2), ("l3", 3)]
    assert [(row.unit_id, row.rank) for row in second.returned] == [("d1", 1), ("d2", 2), ("d3", 3)]
    assert [(search.requested, search.cut, search.invalid, search.unread) for search in (first, second)] == [
        (3, 0, 0, 0)
    ] * 2
    assert (outcome.usage.calls, outcome.usage.rows, outcome.usage.reads) == (2, 6, 6)
    assert outcome.notes == ()


@both_ways
@both_rules
def test_nothing_hidden_appears_anywhere(resolver: Any, awaited: bool) -> None:
    """No id and no text of a hidden unit stands in any stream mode, checkpoint, packet, document or trace."""
    words = Blind(*hidden("a"), *shown("l1", "l2"))
    meanings = Blind(*hidden("d"), *shown("d1"))
    text = everything(words, meanings, awaited=awaited, eligibility=resolver, policy="always_continue")
    assert "Part l1" in text
    assert "secret" not in text


@both_rules
def test_hidden_units_change_nothing_that_is_public(resolver: Any) -> None:
    """Packet, documents and trace are byte for byte those of a collection without the hidden units."""
    visible = shown("l1", "l2", "l3", "l4")
    mixed = [*hidden("a", "b"), visible[0], *hidden("c"), *visible[1:], *hidden("d")]
    outcomes = [run(Blind(*held), Blind(*shown("d1")), eligibility=resolver) for held in (visible, mixed)]
    assert public(outcomes[0]) == public(outcomes[1])


@both_ways
@pytest.mark.parametrize("searcher", [Blind, References])
@both_rules
def test_a_visible_unit_far_behind_hidden_ones_is_found(resolver: Any, searcher: Any, awaited: bool) -> None:
    """A searcher that does not filter is asked for the cap in one call, so a unit at rank 150 of it is found."""
    words = searcher(*hidden(*map(str, range(149))), *shown("far"))
    outcome = run(words, awaited=awaited, eligibility=resolver, policy="fixed_lexical")
    assert [k for k, _ in words.calls] == [OVERFETCH_CAP]
    assert outcome.ids == ["far"]
    assert outcome.packet.items[0].channels["lexical"].rank == 1
    assert (outcome.usage.rows, outcome.usage.reads, outcome.trace.searches[0].requested) == (1, 1, 6)


def test_no_more_than_the_cap_is_looked_at() -> None:
    """A unit behind more hidden ones than the cap is not found, and no further call looks for it."""
    words = Blind(*hidden(*map(str, range(OVERFETCH_CAP))), *shown("far"))
    outcome = run(words, eligibility=by_ids, policy="fixed_lexical")
    assert (outcome.ids, outcome.reason, len(words.calls)) == ([], "policy_complete", 1)


@both_rules
def test_a_single_row_too_many_is_not_taken(resolver: Any) -> None:
    """A searcher that returns more than it was asked for, filtered or not, brings no more than the cap."""
    words = Blind(*hidden(*map(str, range(OVERFETCH_CAP))), *shown("far"))
    words.search = lambda query, k, _=None: Blind.search(words, query, k + 1)
    assert run(words, eligibility=resolver, policy="fixed_lexical").ids == []


def test_without_a_resolver_nobody_asks_for_more() -> None:
    """In a public collection a search is asked for exactly the rows needed, without a filter."""
    words = Blind(*shown("l1"))
    outcome = run(words, policy="fixed_lexical")
    assert words.calls == [(6, None)]
    assert (outcome.trace.searches[0].view, outcome.trace.searches[0].filter_pushed_down) == (None, None)
    assert packed_of(outcome).view is None


@both_ways
@pytest.mark.parametrize("pushes", [True, False])
def test_a_searcher_that_filters_is_asked_for_exactly_the_rows_needed(awaited: bool, pushes: bool) -> None:
    """It is given the view's filter, and the trace says whether it applied all of it."""
    searchers = [
        Pushing(*hidden("a"), *shown("l1", "l2", "l3", "l4")),
        Pushing(*hidden("d"), *shown(*"stuvw")),
    ]
    for searcher in searchers:
        searcher.pushes = pushes
    outcome = run(*searchers, awaited=awaited, eligibility=by_filter, policy="always_continue")
    assert [searcher.calls for searcher in searchers] == [[(3, OPEN)]] * 2
    assert [search.filter_pushed_down for search in outcome.trace.searches] == [pushes] * 2
    assert outcome.usage.rows == 6


def test_a_filter_beside_allowed_is_handed_on_and_more_is_asked_for() -> None:
    """Where ``allowed`` is the rule a filtering searcher cannot know what it refuses: it gets filter and cap."""
    words = Pushing(*hidden("a"), *shown("l1", "l2"))
    only_l2 = view(allowed=lambda unit_ids: {"l2"} & set(unit_ids), search_filter=OPEN)
    outcome = run(words, eligibility=resolving(only_l2), policy="fixed_lexical")
    assert words.calls == [(OVERFETCH_CAP, OPEN)]
    assert (outcome.ids, outcome.trace.searches[0].filter_pushed_down) == (["l2"], True)


@pytest.mark.parametrize("resolver", [by_ids, resolving(view(search_filter={}))], ids=["none", "empty"])
def test_without_a_filter_nothing_is_said_of_pushing_down(resolver: Any) -> None:
    """``filter_pushed_down`` is none for a view that has no filter or an empty one."""
    outcome = run(Pushing(*shown("l1")), eligibility=resolver, policy="fixed_lexical")
    assert outcome.trace.searches[0].filter_pushed_down is None
    assert outcome.ids == ["l1"]


@both_rules
def test_a_searcher_that_lies_about_filtering_shows_nothing(resolver: Any) -> None:
    """The rule is enforced on the rows that come back, whatever the searcher says it did."""
    text = everything(Lying(*hidden("a"), *shown("l1")), eligibility=resolver, policy="fixed_lexical")
    assert "Part l1" in text
    assert "secret" not in text


def test_a_searcher_that_cannot_say_whether_it_filters_ends_no_run() -> None:
    """The rule is enforced on its rows in any case."""
    words = Pushing(*hidden("a"), *shown("l1"))
    words.pushes_down = raising
    assert set(run(words, eligibility=by_filter, policy="fixed_lexical").ids) <= {"l1"}


def test_a_unit_without_text_to_test_is_not_shown() -> None:
    """A reference whose document nobody can give does not pass a filter view, and is charged nothing."""
    outcome = run(References(*shown("l1")), units=Blind(), eligibility=by_filter, policy="fixed_lexical")
    assert (outcome.ids, outcome.usage.rows, outcome.usage.reads) == ([], 0, 0)


def test_a_large_allowance_of_rows_is_asked_for_as_it_is() -> None:
    """With ``max_rows`` at its ceiling the cap does not lower what is asked for, and all visible rows are charged."""
    words = Blind(*shown(*map(str, range(250))))
    budget = Budget(max_rows=200, max_reads=200)
    outcome = run(words, eligibility=by_ids, policy="fixed_lexical", budget=budget)
    assert (words.calls, outcome.usage.rows) == ([(200, None)], 200)


class ListRetriever(BaseRetriever):
    """Returns its documents, whatever the query."""

    held: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:  # noqa: ARG002
        return self.held


class Listener(BaseCallbackHandler):
    """Remembers whatever a retriever emitted."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_retriever_end(self, documents: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.heard.extend(documents)


@both_ways
@pytest.mark.parametrize("guarded", [True, False])
def test_callbacks_of_the_run_do_not_hear_what_a_retriever_found(guarded: bool, awaited: bool) -> None:
    """Under a resolver an adapted retriever emits its documents to nobody; in a public collection it does."""
    retriever, listener = ListRetriever(held=[*hidden("a"), *shown("l1")]), Listener()
    rule = {"eligibility": by_ids} if guarded else {}
    graph = create_bounded_retrieval(retriever, policy="fixed_lexical", **rule).compile()
    config: Any = {"callbacks": [listener]}
    given: Any = {"query": QUERY}
    outcome = Outcome(asyncio.run(graph.ainvoke(given, config)) if awaited else graph.invoke(given, config))
    assert "l1" in outcome.ids
    assert bool(listener.heard) is not guarded


# What is kept to itself


LABELLED = Document(
    id="u",
    page_content="Replace the HX-200 battery.",
    metadata={"zone": "open", "clearance": "tango-9", "shelf": 4, "title": "Batteries"},
)


@both_ways
@pytest.mark.parametrize("rule", [{"search_filter": {"$or": [OPEN, {"clearance": "tango-9"}]}}, {"allowed": set}])
def test_private_fields_are_in_nothing_that_is_handed_over(rule: Any, awaited: bool) -> None:
    """Fields that the filter reads and ``private_fields`` are gone from packet, documents, state and streams."""
    named = ["zone", "clearance", "no_such_field"]
    resolver = resolving(view(**rule, private_fields=named))
    outcome = run(Blind(LABELLED), awaited=awaited, eligibility=resolver)
    assert outcome.packet.items[0].metadata == {"shelf": 4}
    assert set(outcome.packet.to_documents()[0].metadata) == {"title", "shelf", "bounded_retrieval"}
    text = everything(Blind(LABELLED), awaited=awaited, eligibility=resolver)
    assert "shelf" in text
    assert [word for word in ("zone", "clearance", "tango-9") if word in text] == []


def test_fields_that_a_filter_reads_are_private_without_being_named() -> None:
    """A view without ``private_fields`` keeps what its own filter reads, at any depth."""
    rule = {"$and": [OPEN, {"$not": {"clearance": {"$in": ["x"]}}}]}
    outcome = run(Blind(LABELLED), eligibility=resolving(view(search_filter=rule)))
    assert outcome.packet.items[0].metadata == {"shelf": 4}


@pytest.mark.parametrize(
    "rule", [{"allowed": set, "private_fields": ["title"]}, {"search_filter": {"title": "Batteries"}}]
)
def test_a_private_title_is_kept_too(rule: Any) -> None:
    """The metadata field ``title`` may be private like any other."""
    outcome = run(Blind(LABELLED), eligibility=resolving(view(**rule)))
    assert outcome.ids == ["u"]
    assert b"Batteries" not in public(outcome)


@both_rules
def test_view_and_version_stand_in_the_trace(resolver: Any) -> None:
    """Each search and the end of the run name the view in force; the packet names none."""
    outcome = run(Blind(*shown("l1")), Blind(*shown("d1")), eligibility=resolver)
    stamp = ViewStamp(view_id="viewer-one", version="rules-7")
    assert [search.view for search in outcome.trace.searches] == [stamp, stamp]
    assert packed_of(outcome).view == stamp
    assert "viewer-one" not in outcome.packet.model_dump_json()


def test_a_number_is_a_version_too() -> None:
    """A version may be a whole number; the trace holds its text."""
    outcome = run(Blind(*shown("l1")), eligibility=resolving(view(version=7, allowed=set)))
    assert packed_of(outcome).view == ViewStamp(view_id="viewer-one", version="7")


class Sparse:
    """A view of the application's own class, without the attributes that it has no use for."""

    view_id = "viewer-two"
    version = "1"
    allowed = staticmethod(not_secret)


class Own(Sparse):
    """A view of the application's own class."""

    search_filter = None
    private_fields = ()


def test_any_object_with_the_attributes_is_a_view() -> None:
    """A view needs not be an `EligibilityView`."""
    outcome = run(Blind(*hidden("a"), *shown("l1")), eligibility=resolving(Own()))
    assert outcome.ids == ["l1"]


@both_ways
def test_a_view_that_lacks_an_attribute_raises_nothing(awaited: bool) -> None:
    """Whether it counts as a view without a filter or as none at all, the run ends in a packet without hidden units."""
    outcome = run(Blind(*hidden("a"), *shown("l1")), awaited=awaited, eligibility=resolving(Sparse()))
    assert set(outcome.ids) <= {"l1"}


@both_rules
def test_ids_and_the_time_of_the_check_reach_the_diagnostics_only(
    resolver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was removed, what was kept, when and under which view are protected records, in no public output."""
    monkeypatch.setattr("bounded_retrieval.nodes.recheck_and_pack._now", lambda: "2001-02-03T04:05:06.789+00:00")
    records: list[dict[str, Any]] = []
    words = Blind(*hidden("a"), *shown("l1"))
    outcome = run(words, eligibility=resolver, policy="fixed_lexical", diagnostics=records.append)
    removed, rechecked = records
    stamp = {"view_id": "viewer-one", "version": "rules-7"}
    query_id = outcome.packet.query_id
    assert removed == {
        "event": "ineligible_removed",
        "channel": "lexical",
        "query_id": query_id,
        "unit_ids": ["secret-a"],
        **stamp,
    }
    at = "2001-02-03T04:05:06.789+00:00"
    assert rechecked == {
        "event": "rechecked",
        "query_id": query_id,
        "checked_at": at,
        "kept": ["l1"],
        **stamp,
    }
    text = everything(words, eligibility=resolver, policy="fixed_lexical")
    assert [word for word in ("checked_at", at[:10], "secret", "rechecked") if word in text] == []


def test_the_time_of_the_check_is_in_utc() -> None:
    """ISO 8601 with milliseconds."""
    records: list[dict[str, Any]] = []
    run(Blind(*shown("l1")), eligibility=by_ids, diagnostics=records.append)
    at = dt.datetime.fromisoformat(records[-1]["checked_at"])
    assert abs(dt.datetime.now(dt.UTC) - at) < dt.timedelta(minutes=1)


def test_equal_runs_give_equal_bytes_at_any_time() -> None:
    """Nothing public depends on when the check was made."""
    outcomes = [run(Blind(*shown("l1")), eligibility=by_ids) for _ in range(2)]
    assert public(outcomes[0]) == public(outcomes[1])


# The recheck


class World:
    """A collection, who may see what of it, and everything that was asked of either."""

    def __init__(self, rule: str = "allowed") -> None:
        self.source = Blind(
            *(Document(id=name, page_content=f"Replace {name}, an HX-200 battery.", metadata=OPEN) for name in "abcde")
        )
        self.words = Blind(*self.source.held.values())
        self.rule = rule
        self.denied: set[str] = set()
        self.allowed_calls: list[list[str]] = []

    def allowed(self, unit_ids: Any) -> set[str]:
        self.allowed_calls.append(list(unit_ids))
        return set(unit_ids) - self.denied

    def resolve(self, _: Any) -> EligibilityView:
        return view(allowed=self.allowed) if self.rule == "allowed" else view(search_filter=OPEN)

    def revoke(self) -> None:
        self.denied.add("b")

    def delete(self) -> None:
        del self.source.held["b"]

    def edit(self) -> None:
        self.put("Replace b, an HX-200 battery!", OPEN)

    def replace(self) -> None:
        self.put(self.source.held["c"].page_content, OPEN)

    def move(self) -> None:
        self.put(self.source.held["b"].page_content, CLOSED)

    def strip(self) -> None:
        self.put(self.source.held["b"].page_content, {})

    def break_down(self) -> None:
        def fetch(_: Any) -> Any:
            raise OSError(RAW)

        self.source.fetch = fetch

    def put(self, text: str, metadata: dict[str, str]) -> None:
        """Another document under the id of ``b``."""
        self.source.held["b"] = Document(id="b", page_content=text, metadata=metadata)


def changed(what: str, rule: str = "allowed", *, awaited: bool = False) -> tuple[World, Outcome, list[dict[str, Any]]]:
    """A run during which, between search and packing, something happens to ``b``."""
    world = World(rule)
    records: list[dict[str, Any]] = []
    outcome = run(
        world.words,
        awaited=awaited,
        units=world.source,
        eligibility=world.resolve,
        assessor=Meanwhile(getattr(world, what)),
        budget=Budget(max_rows=3),
        diagnostics=records.append,
        threshold=0.1,
    )
    return world, outcome, records


CHANGES = [
    ("revoke", "allowed", "denied"),
    ("delete", "allowed", "gone"),
    ("delete", "filter", "gone"),
    ("edit", "allowed", "changed"),
    ("edit", "filter", "changed"),
    ("replace", "allowed", "changed"),
    ("move", "filter", "denied"),
    ("strip", "filter", "denied"),
]


@both_ways
@pytest.mark.parametrize(("what", "rule", "reason"), CHANGES)
def test_what_changed_between_search_and_packing_is_dropped(what: str, rule: str, reason: str, awaited: bool) -> None:
    """The packet is smaller, nothing is searched in its place, and only the diagnostics say which unit and why."""
    world, outcome, records = changed(what, rule, awaited=awaited)
    assert outcome.ids == ["a", "c"]
    assert len(world.words.calls) == 1
    assert (outcome.reason, outcome.packet.resolution) == ("proxy_sufficient", "unresolved")
    assert outcome.notes == ("dropped_at_recheck",)
    assert (packed_of(outcome).dropped, outcome.trace.searches[0].dropped) == (1, 1)
    (dropped,) = [record for record in records if record["event"] == "dropped_at_recheck"]
    assert dropped["reasons"] == {"b": reason}
    assert b'"b"' not in public(outcome)


@both_ways
@pytest.mark.parametrize(("what", "rule"), [("revoke", "allowed"), ("delete", "filter"), ("move", "filter")])
def test_the_latest_state_holds_no_text_that_was_seen(what: str, rule: str, awaited: bool) -> None:
    """Once the packet is made, what was dropped from it is in no channel of the thread's state either."""
    world = World(rule)
    builder = create_bounded_retrieval(
        world.words,
        units=world.source,
        eligibility=world.resolve,
        assessor=Meanwhile(getattr(world, what)),
        policy="fixed_lexical",
    )
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}
    given: Any = {"query": QUERY}
    result = asyncio.run(graph.ainvoke(given, config)) if awaited else graph.invoke(given, config)
    assert "b" not in Outcome(result).ids
    values = graph.get_state(config).values
    assert (values["units"], values["sources"], values["candidates"], values["events"]) == ({}, {}, [], [])
    assert [word for word in ("Replace b,", "'b'") if word in repr(values)] == []


def test_nothing_changed_is_provisional() -> None:
    """A control: where nothing happens all three units are packed, in one batched check and one reading of all ids at each of the two."""
    world = World()
    outcome = run(world.words, units=world.source, eligibility=world.resolve, budget=Budget(max_rows=3), threshold=0.1)
    assert (outcome.ids, outcome.packet.resolution, outcome.notes) == (["a", "b", "c"], "provisional", ())
    assert world.allowed_calls == [["a", "b", "c", "d", "e"], ["a", "b", "c"]]
    assert world.source.fetched == [["a", "b", "c"]] * 2
    assert len(world.words.calls) == 1


@both_ways
@pytest.mark.parametrize("rule", ["allowed", "filter"])
def test_a_source_that_fails_at_the_recheck_drops_everything(rule: str, awaited: bool) -> None:
    """What could not be read again is not shown; that it was unread is in the diagnostics alone."""
    _, outcome, records = changed("break_down", rule, awaited=awaited)
    assert outcome.ids == []
    assert outcome.notes == ("recheck_failed", "dropped_at_recheck")
    (dropped,) = [record for record in records if record["event"] == "dropped_at_recheck"]
    assert dropped["reasons"] == dict.fromkeys("abc", "unread")
    assert RAW.encode() not in public(outcome)


@pytest.mark.parametrize(("rule", "what"), [("allowed", "revoke"), ("allowed", "edit"), ("filter", "move")])
def test_revoked_and_deleted_cannot_be_told_apart(rule: str, what: str) -> None:
    """Whatever happened to a unit, packet, documents and trace are byte for byte the same."""
    assert public(changed(what, rule)[1]) == public(changed("delete", rule)[1])


@both_ways
def test_allowed_at_the_search_and_denied_at_the_recheck_is_dropped(awaited: bool) -> None:
    """A view that changes its mind between the calls shows nothing that it denied last."""
    answers = iter([{"l1", "l2"}, {"l2"}])
    records: list[dict[str, Any]] = []
    outcome = run(
        Blind(*shown("l1", "l2")),
        awaited=awaited,
        eligibility=resolving(view(allowed=lambda _: next(answers))),
        policy="fixed_lexical",
        diagnostics=records.append,
    )
    assert (outcome.ids, outcome.notes) == (["l2"], ("dropped_at_recheck",))
    (dropped,) = [record for record in records if record["event"] == "dropped_at_recheck"]
    assert dropped["reasons"] == {"l1": "denied"}


@both_ways
def test_denied_at_the_search_and_allowed_at_the_recheck_is_not_seen(awaited: bool) -> None:
    """What was denied first was never seen, so that a later permission brings nothing."""
    answers = iter([{"l2"}, {"l1", "l2"}])
    resolver = resolving(view(allowed=lambda _: next(answers)))
    outcome = run(Blind(*shown("l1", "l2")), awaited=awaited, eligibility=resolver, policy="fixed_lexical")
    assert (outcome.ids, outcome.notes) == (["l2"], ())


def test_an_unvouched_unit_is_not_shown_under_a_filter() -> None:
    """Where nobody can give the current metadata, a view that is a filter cannot be checked again: nothing is shown."""
    words = Blind(*shown("l1"))
    words.vouches_for = lambda _: False
    outcome = run(words, eligibility=by_filter, policy="fixed_lexical")
    assert (outcome.ids, outcome.notes) == ([], ("text_not_rechecked", "dropped_at_recheck"))


# Resolvers that do not do their work


def raising(_: Any) -> Any:
    """A resolver, or ``allowed``, that raises."""
    raise RuntimeError(RAW)


def stopping(_: Any) -> Any:
    """Raises what would end an iteration."""
    raise StopIteration(RAW)


BAD_ANSWERS = {
    "list": ["viewer-one"],
    "none": None,
    "text": "viewer-one",
    "class": EligibilityView,
    "no rule": view(),
    "bad filter": view(search_filter={"zone": {"$like": RAW}}),
    "filter of text": view(search_filter="zone"),
    "bad filter beside allowed": view(search_filter={"$nor": []}, allowed=set),
    "empty view_id": view(view_id="", allowed=set),
    "long view_id": view(view_id="v" * 201, allowed=set),
    "view_id of bytes": view(view_id=b"viewer-one", allowed=set),
    "empty version": view(version="", allowed=set),
    "long version": view(version="v" * 201, allowed=set),
    "version of none": view(version=None, allowed=set),
    "private_fields of text": view(allowed=set, private_fields="zone"),
    "private_fields of a number": view(allowed=set, private_fields=5),
    "allowed of text": view(allowed="everything"),
}
BAD_RESOLVERS: dict[str, Callable[[Any], Any]] = {
    "raises": raising,
    "raises StopIteration": stopping,
    **{name: resolving(answer) for name, answer in BAD_ANSWERS.items()},
}


@both_ways
@pytest.mark.parametrize("name", [*BAD_RESOLVERS, "hangs"])
def test_a_resolver_that_gives_no_view_has_denied(name: str, awaited: bool, gate: threading.Event) -> None:
    """Nothing is seen, nothing is charged, nothing is raised; what went wrong is in the diagnostics alone."""
    records: list[dict[str, Any]] = []
    words, meanings = Blind(*hidden("a"), *shown("l1")), Blind(*shown("d1"))
    options = {
        "eligibility": BAD_RESOLVERS.get(name, lambda _: gate.wait(5)),
        "eligibility_timeout_ms": 50 if name == "hangs" else 5_000,
        "diagnostics": records.append,
    }
    outcome = run(words, meanings, awaited=awaited, **options)
    assert (outcome.ids, outcome.reason, outcome.notes) == ([], "retrieval_failed", ("eligibility_failed",))
    assert outcome.usage == Usage()
    assert (words.calls, meanings.calls) == ([], [])
    assert {record["event"] for record in records} == {"eligibility_failed", "rechecked"}
    assert all(isinstance(record["error"], Exception) for record in records if "error" in record)
    text = everything(words, meanings, awaited=awaited, **options)
    assert [word for word in ("secret", "Part", RAW, "RuntimeError", "Timeout") if word in text] == []


BAD_ALLOWED: dict[str, Callable[[Any], Any]] = {
    "raises": raising,
    "raises StopIteration": stopping,
    "list": list,
    "dict": dict.fromkeys,
    "iterator": iter,
    "text": " ".join,
    "true": lambda _: True,
    "none": lambda _: None,
}


@both_ways
@pytest.mark.parametrize("name", [*BAD_ALLOWED, "hangs"])
def test_an_allowed_that_gives_no_set_has_denied(name: str, awaited: bool, gate: threading.Event) -> None:
    """The searches have failed, nothing is seen, and the error is in the diagnostics alone."""
    records: list[dict[str, Any]] = []
    words, meanings = Blind(*shown("l1")), Blind(*shown("d1"))
    options = {
        "eligibility": resolving(view(allowed=BAD_ALLOWED.get(name, lambda _: gate.wait(5)))),
        "eligibility_timeout_ms": 50 if name == "hangs" else 5_000,
        "diagnostics": records.append,
    }
    outcome = run(words, meanings, awaited=awaited, **options)
    assert (outcome.ids, outcome.reason) == ([], "retrieval_failed")
    assert outcome.notes == ("channel_failed", "eligibility_failed")
    assert outcome.outcomes == ["failed", "failed"]
    assert (outcome.usage.calls, outcome.usage.rows, outcome.usage.reads) == (2, 0, 0)
    assert [record["event"] for record in records] == ["eligibility_failed", "eligibility_failed", "rechecked"]
    text = everything(words, meanings, awaited=awaited, **options)
    assert [word for word in ("Part", '"l1"', "'l1'", RAW, "RuntimeError", "Timeout") if word in text] == []


@both_ways
@pytest.mark.parametrize("name", ["raises", "list", "none", "hangs"])
def test_an_allowed_that_fails_at_the_recheck_drops_everything(name: str, awaited: bool, gate: threading.Event) -> None:
    """A view that can no longer say is a view that denies, and the packet says that the check failed."""
    later = BAD_ALLOWED.get(name, lambda _: gate.wait(5))
    answers = iter([set, later])

    def allowed(unit_ids: Any) -> Any:
        return next(answers)(unit_ids)

    outcome = run(
        Blind(*shown("l1")),
        awaited=awaited,
        eligibility=resolving(view(allowed=allowed)),
        eligibility_timeout_ms=50 if name == "hangs" else 5_000,
        policy="fixed_lexical",
    )
    assert (outcome.ids, outcome.reason) == ([], "policy_complete")
    assert outcome.notes == ("recheck_failed", "dropped_at_recheck")
    assert outcome.packet.resolution == "unresolved"


@both_ways
def test_ids_that_were_not_asked_about_are_ignored(awaited: bool) -> None:
    """A view that names more units than it was asked about shows none of those."""
    answer = {"l1", "secret-b", "d9", 7, None, ("l2",)}
    outcome = run(
        Blind(*hidden("a"), *shown("l1", "l2")),
        awaited=awaited,
        eligibility=resolving(view(allowed=lambda _: answer)),
        policy="fixed_lexical",
    )
    assert (outcome.ids, outcome.usage.rows, outcome.notes) == (["l1"], 1, ())


@both_ways
def test_a_set_of_other_things_permits_nothing(awaited: bool) -> None:
    """Members that are no ids of units asked about stand for nobody."""
    resolver = resolving(view(allowed=lambda _: frozenset({1, None, b"l1", ("l1",)})))
    outcome = run(Blind(*shown("l1")), awaited=awaited, eligibility=resolver, policy="fixed_lexical")
    assert (outcome.ids, outcome.reason, outcome.notes) == ([], "policy_complete", ())


@both_ways
def test_another_view_at_every_call_ends_in_an_empty_packet(awaited: bool) -> None:
    """A resolver whose ``view_id`` never stays the same shows nothing, and the run says that the view changed."""
    numbers = iter(range(100))
    records: list[dict[str, Any]] = []

    def resolver(_: Any) -> EligibilityView:
        return view(view_id=f"viewer-{next(numbers)}", allowed=set)

    words = Blind(*shown("l1"))
    outcome = run(words, dense(), awaited=awaited, eligibility=resolver, diagnostics=records.append)
    assert (outcome.ids, outcome.reason, outcome.notes) == ([], "retrieval_failed", ("view_changed",))
    assert outcome.usage == Usage()
    assert records[0]["event"] == "view_changed"
    assert (records[0]["from"]["view_id"], records[0]["to"]["view_id"]) == ("viewer-0", "viewer-1")


@both_ways
def test_another_version_of_the_same_view_goes_on(awaited: bool) -> None:
    """A view that only changed its version is the same caller's; search and end name the version in force then."""
    numbers = iter(range(100))
    outcome = run(
        Blind(*shown("l1")),
        awaited=awaited,
        eligibility=lambda _: view(version=str(next(numbers)), allowed=set),
        policy="fixed_lexical",
    )
    assert outcome.ids == ["l1"]
    assert outcome.trace.searches[0].view == ViewStamp(view_id="viewer-one", version="0")
    assert packed_of(outcome).view == ViewStamp(view_id="viewer-one", version="2")


def failing_at(*turns: int) -> Callable[[Any], Any]:
    """A resolver that raises at these calls, counted from 1, and works at the others."""
    numbers = iter(range(1, 100))

    def resolver(_: Any) -> EligibilityView:
        if next(numbers) in turns:
            raise RuntimeError(RAW)
        return view(allowed=set)

    return resolver


@both_ways
def test_a_resolver_that_fails_once_at_a_search_costs_that_search(awaited: bool) -> None:
    """The first attempt failed and stays charged; the other channel is asked, and the note stays."""
    words = Blind(*shown("l1"))
    outcome = run(words, Blind(*shown("d1")), awaited=awaited, eligibility=failing_at(1))
    assert (outcome.ids, outcome.outcomes, words.calls) == (["d1"], ["failed", "answered"], [])
    assert outcome.notes == ("channel_failed", "eligibility_failed")
    assert outcome.usage.calls == 2


@both_ways
@pytest.mark.parametrize("turn", [2, 3])
def test_a_resolver_that_fails_once_something_was_seen_discards_it(turn: int, awaited: bool) -> None:
    """At the assessment or at the end a view that cannot be established forgets all that was seen and spent."""
    outcome = run(Blind(*shown("l1")), awaited=awaited, eligibility=failing_at(turn), policy="fixed_lexical")
    assert (outcome.ids, outcome.reason, outcome.notes) == ([], "retrieval_failed", ("eligibility_failed",))
    assert outcome.usage == Usage()
    assert b"l1" not in public(outcome)


# Calls and threads


async def resolver_coroutine(_: Any) -> EligibilityView:
    """A resolver that is awaited."""
    return view(allowed=not_secret)


async def allowed_coroutine(unit_ids: Any) -> set[str]:
    """``allowed`` that is awaited."""
    return not_secret(unit_ids)


def handing_on(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A plain function that returns what this one does: a coroutine, where it is asynchronous."""

    def hand_on(given: Any) -> Any:
        return function(given)

    return hand_on


class AwaitedResolver:
    """A resolver that is an object with an asynchronous call."""

    async def __call__(self, _: Any) -> EligibilityView:
        return view(allowed=allowed_coroutine)


class AsyncView:
    """A view with ``aallowed`` alone."""

    view_id = "viewer-one"
    version = "rules-7"
    search_filter = None
    aallowed = staticmethod(allowed_coroutine)


ASYNC_ONLY = {
    "function": (resolver_coroutine, "eligibility"),
    "object": (AwaitedResolver(), "eligibility"),
    "partial": (functools.partial(resolver_coroutine), "eligibility"),
    "lambda": (handing_on(resolver_coroutine), "eligibility"),
    "allowed": (resolving(view(allowed=allowed_coroutine)), "EligibilityView.allowed"),
    "allowed lambda": (resolving(view(allowed=handing_on(allowed_coroutine))), "EligibilityView.allowed"),
    "aallowed": (resolving(AsyncView()), "AsyncView.allowed"),
}


@pytest.mark.parametrize(("resolver", "named"), ASYNC_ONLY.values(), ids=ASYNC_ONLY)
def test_an_asynchronous_rule_works_under_ainvoke_and_is_named_under_invoke(resolver: Any, named: str) -> None:
    """Under ``ainvoke`` it is awaited; under ``invoke`` an `AsyncOnlyError` of one line says what is async only."""
    words = Blind(*hidden("a"), *shown("l1"))
    assert run(words, awaited=True, eligibility=resolver, policy="fixed_lexical").ids == ["l1"]
    with pytest.raises(AsyncOnlyError) as caught:
        run(words, eligibility=resolver, policy="fixed_lexical")
    assert str(caught.value).startswith(f"{named}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["resolver", "allowed"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("is_pure", [True, False])
def test_what_ends_a_process_is_not_taken_for_a_denial(where: str, kind: type[BaseException], is_pure: bool) -> None:
    """An interrupt inside a rule passes through the run."""

    def interrupted(_: Any) -> Any:
        raise kind

    def resolver(runtime: Any) -> Any:
        return interrupted(runtime) if where == "resolver" else view(allowed=interrupted)

    resolver.is_pure = is_pure
    with pytest.raises(kind):
        run(Blind(*shown("l1")), eligibility=resolver)


@both_ways
@pytest.mark.parametrize("is_pure", [True, False])
def test_a_pure_rule_is_called_in_place_and_any_other_in_a_thread(is_pure: bool, awaited: bool) -> None:
    """Only a resolver that declares itself pure, and its view's ``allowed``, run without a thread of their own."""
    threads: list[int] = []

    def allowed(unit_ids: Any) -> set[str]:
        threads.append(threading.get_ident())
        return set(unit_ids)

    def resolver(_: Any) -> EligibilityView:
        threads.append(threading.get_ident())
        return view(allowed=allowed)

    resolver.is_pure = is_pure
    run(Blind(*shown("l1")), awaited=awaited, eligibility=resolver)
    assert len(threads) >= 4
    assert {thread == threading.get_ident() for thread in threads} == {is_pure}


def test_a_pure_rule_has_no_time_limit() -> None:
    """What declares that it does no I/O is not measured."""
    moments = threading.Event()

    def resolver(_: Any) -> EligibilityView:
        moments.wait(0.02)
        return view(allowed=set)

    resolver.is_pure = True
    assert run(Blind(*shown("l1")), eligibility=resolver, eligibility_timeout_ms=1).ids == ["l1"]


@both_ways
def test_a_rule_sees_the_callers_context_variables(awaited: bool) -> None:
    """Although it is called in another thread."""
    seen: list[str] = []

    def resolver(_: Any) -> EligibilityView:
        seen.append(MARK.get())
        return view(allowed=set)

    token = MARK.set("mine")
    try:
        run(Blind(*shown("l1")), awaited=awaited, eligibility=resolver)
    finally:
        MARK.reset(token)
    assert set(seen) == {"mine"}


@both_ways
def test_a_resolver_reads_the_runtime(awaited: bool) -> None:
    """It is called with the LangGraph runtime, in which the application's context stands."""

    def resolver(runtime: Any) -> EligibilityView:
        may_see = runtime.context["may_see"]
        return view(view_id=f"of-{'-'.join(may_see)}", allowed=lambda unit_ids: set(may_see) & set(unit_ids))

    graph = create_bounded_retrieval(Blind(*shown("l1", "l2")), eligibility=resolver, context_schema=dict).compile()
    for may_see in (["l1"], ["l2"], []):
        given: Any = {"query": QUERY}
        context = {"may_see": may_see}
        result = asyncio.run(graph.ainvoke(given, context=context)) if awaited else graph.invoke(given, context=context)
        assert Outcome(result).ids == may_see


def test_a_searcher_that_fails_is_a_failed_channel_and_no_denial() -> None:
    """An error of the search itself is told apart from one of the rule."""
    outcome = run(FailingSearcher(), Blind(*shown("d1")), eligibility=by_ids)
    assert (outcome.ids, outcome.notes) == (["d1"], ("channel_failed",))


# Builder and request


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"eligibility": view(allowed=set)}, "eligibility"),
        ({"eligibility": EligibilityView}, "eligibility"),
        ({"eligibility": AwaitedResolver}, "eligibility"),
        ({"eligibility": "everybody"}, "eligibility"),
        ({"eligibility": {"view_id": "v"}}, "eligibility"),
        ({"eligibility": by_ids, "eligibility_timeout_ms": 0}, "eligibility_timeout_ms"),
        ({"eligibility": by_ids, "eligibility_timeout_ms": -1}, "eligibility_timeout_ms"),
        ({"eligibility": by_ids, "eligibility_timeout_ms": 70_000}, "eligibility_timeout_ms"),
        ({"eligibility": by_ids, "eligibility_timeout_ms": float("nan")}, "eligibility_timeout_ms"),
        ({"eligibility": by_ids, "eligibility_timeout_ms": "x"}, "eligibility_timeout_ms"),
        ({"eligibility": by_ids, "eligibility_timeout_ms": None}, "eligibility_timeout_ms"),
        ({"eligibility_timeout_ms": 0}, "eligibility_timeout_ms"),
    ],
)
def test_a_builder_refuses_what_is_no_resolver_and_no_limit(options: Any, named: str) -> None:
    """The error is one line that begins with the parameter's name."""
    with pytest.raises(ConfigurationError) as caught:
        create_bounded_retrieval(lexical(), **options)
    assert str(caught.value).startswith(f"{named}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("milliseconds", [1, 60_000])
def test_the_limits_of_the_time_limit_are_accepted(milliseconds: int) -> None:
    """From one millisecond to one minute."""
    create_bounded_retrieval(lexical(), eligibility=by_ids, eligibility_timeout_ms=milliseconds)


@pytest.mark.parametrize("field", sorted(IDENTITY_FIELDS))
def test_a_request_may_not_say_who_asks_or_what_may_be_seen(field: str) -> None:
    """Such fields are refused by name, whatever they hold, before anything is searched."""
    words = Blind(*shown("l1"))
    for value in ("x", None, {}):
        with pytest.raises(RequestError) as caught:
            ask(words, request={field: value}, eligibility=by_ids)
        assert f"{field} refused" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert words.calls == []


def test_the_names_that_are_refused_include_the_obvious_ones() -> None:
    """A caller cannot name a tenant, groups, a user, a view or a filter, and several are named together."""
    assert {"tenant", "groups", "user", "user_id", "view", "view_id", "eligibility", "filter"} <= IDENTITY_FIELDS
    with pytest.raises(ValidationError, match="groups, tenant refused"):
        RetrievalRequest.model_validate({"query": "q", "tenant": "t", "groups": []})


SMUGGLED: list[dict[str, Any]] = [
    {"view": {"view_id": "viewer-one", "version": "rules-7"}},
    {"units": {"secret-a": {"unit_id": "secret-a", "text": "The secret a."}}},
    {"settings": {"policy": "always_continue"}, "decision": {"action": "recheck_and_pack"}},
    {"tenant": "south", "groups": ["all"], "eligibility": None, "user": "root"},
    {"candidates": [{"unit_id": "secret-a"}], "sources": {"secret-a": "lexical"}, "usage": {"calls": -5}},
    {"packet": {"items": []}, "trace": {"events": []}, "stop_reason": "proxy_sufficient", "events": [{}]},
]


@both_ways
@pytest.mark.parametrize("smuggled", SMUGGLED, ids="-".join)
def test_other_input_has_no_effect(smuggled: dict[str, Any], awaited: bool) -> None:
    """Keys of the state, and unknown ones, beside ``query`` and ``request`` change nothing at all."""
    words = Blind(*hidden("a"), *shown("l1", "l2"))
    graph = create_bounded_retrieval(words, eligibility=by_ids).compile()
    given: Any = {"query": QUERY, **smuggled}
    result = asyncio.run(graph.ainvoke(given)) if awaited else graph.invoke(given)
    assert public(Outcome(result)) == public(run(words, eligibility=by_ids))


# The contract


@pytest.mark.parametrize(
    "values",
    [
        {"view_id": "", "version": "1"},
        {"view_id": "v", "version": ""},
        {"view_id": "v" * 201, "version": "1"},
        {"view_id": "v", "version": "1" * 201},
        {"view_id": "v", "version": 1},
        {"view_id": None, "version": "1"},
        {"view_id": "v"},
        {"view_id": "v", "version": "1", "search_filter": {}},
    ],
)
def test_a_stamp_holds_an_id_and_a_version_and_nothing_else(values: dict[str, Any]) -> None:
    """Both are texts of 1 to 200 characters."""
    with pytest.raises(ValidationError):
        ViewStamp.model_validate(values)


def test_views_and_stamps_are_frozen() -> None:
    """Neither can be changed once it was made; the longest id is accepted."""
    stamp = ViewStamp(view_id="v" * 200, version="1" * 200)
    with pytest.raises(ValidationError):
        stamp.view_id = "w"
    with pytest.raises(AttributeError):
        view().view_id = "w"


def test_a_plain_view_permits_nothing_by_itself() -> None:
    """Without a rule there is none: no ``allowed``, no filter, no private fields."""
    plain = EligibilityView(view_id="v", version="1")
    assert (plain.allowed, plain.search_filter, tuple(plain.private_fields)) == (None, None, ())


def test_texts_under_two_ids_are_one_unit_only_among_visible_ones() -> None:
    """A hidden unit with the text of a visible one neither takes its place nor stands beside it."""
    twin = Document(id="secret-twin", page_content=shown("l1")[0].page_content, metadata=CLOSED)
    outcome = run(Blind(twin, *shown("l1")), Blind(twin, *documents(d1="Other.")), eligibility=by_ids)
    assert outcome.ids == ["l1", "d1"]
    assert set(outcome.packet.items[0].channels) == {"lexical"}
