"""The structured route: declared relationships followed hop by hop, each backed by a source that may be shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from inventory import QUERY, Outcome
from langchain_core.documents import Document
from langgraph.checkpoint.memory import InMemorySaver

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.eligibility import EligibilityView
from bounded_retrieval.contracts.normalise import fingerprint
from bounded_retrieval.contracts.relationships import EntityName, Relationship
from bounded_retrieval.errors import AsyncOnlyError, ConfigurationError, RequestError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.replay import replay
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.testing import FixedClock

RAW = "raw-error-7f3"
TEXTS = {
    "u-made": "The HX-200 is made by Orrin Works.",
    "u-based": "Orrin Works is based in Velm.",
    "u-part": "Velm is a town in the county of Astra.",
    "u-name": "Orrin Works is called the Works for short.",
    "u-other": "Somebody says that the HX-200 is made by Brill.",
    "u-zwin": "The HX-200 goes by the name of Twin, and so does the HX-300.",
    "u-twin": "The HX-300 goes by the name of Twin.",
    "u-again": "Orrin Works makes the HX-200.",
}
WAY = ("made by", "based in", "part of")
both_ways = pytest.mark.parametrize("awaited", [False, True], ids=["invoke", "ainvoke"])


def hop(subject: str, relation: str, object_id: str, source: str, **given: Any) -> Relationship:
    """A declared relationship."""
    return Relationship(subject=subject, relation=relation, object=object_id, source_unit=source, **given)


def named(entity_id: str, name: str, source: str) -> EntityName:
    """A declared name."""
    return EntityName(entity_id=entity_id, name=name, source_unit=source)


MADE = hop("hx-200", "made_by", "orrin", "u-made", source_fingerprint=fingerprint(TEXTS["u-made"]))
BASED = hop("orrin", "based in", "velm", "u-based")
PART = hop("velm", "part-of", "astra", "u-part")
LINKS = (MADE, BASED, PART)
LABELS = (named("orrin", "Orrin Works", "u-name"), named("hx-200", "HX 200", "u-made"))


class Source:
    """A searcher and unit source over the corpus; it counts its readings and is never searched."""

    def __init__(self) -> None:
        self.held = {
            unit_id: Document(id=unit_id, page_content=text, metadata={"zone": "open"})
            for unit_id, text in TEXTS.items()
        }
        self.fetched: list[list[str]] = []
        self.searched = 0

    def search(self, query: str, k: int, filter: Any = None) -> list[Any]:  # noqa: ARG002
        self.searched += 1
        return []

    def fetch(self, unit_ids: Any) -> dict[str, Document]:
        self.fetched.append(list(unit_ids))
        return {unit_id: self.held[unit_id] for unit_id in unit_ids if unit_id in self.held}

    def edit(self, unit_id: str) -> None:
        """Change a unit's text."""
        self.held[unit_id] = self.held[unit_id].model_copy(update={"page_content": "Something else by now."})


class Counting:
    """Answers like a store and remembers what it was asked; before an answer something else may happen."""

    def __init__(self, store: RelationshipStore, before: Callable[[str], Any] | None = None) -> None:
        self.store = store
        self.before = before
        self.asked: list[str] = []

    def _note(self, call: str) -> None:
        self.asked.append(call)
        if self.before is not None:
            self.before(call)

    def entities_named(self, name: str) -> Any:
        self._note(f"entities_named {name}")
        return self.store.entities_named(name)

    def relationships_of(self, subject: str, relation: str) -> Any:
        self._note(f"relationships_of {subject} {relation}")
        return self.store.relationships_of(subject, relation)


class Awaited:
    """The same answers, all of them awaited."""

    def __init__(self, store: RelationshipStore) -> None:
        self.store = store

    async def entities_named(self, name: str) -> Any:
        await asyncio.sleep(0)
        return self.store.entities_named(name)

    async def relationships_of(self, subject: str, relation: str) -> Any:
        return self.store.relationships_of(subject, relation)


def store_of(*links: Relationship, names: tuple[EntityName, ...] = LABELS) -> RelationshipStore:
    """A store of these relationships."""
    return RelationshipStore(links, names)


def hiding(*hidden: str) -> Callable[[Any], EligibilityView]:
    """A resolver under which these units may not be seen."""
    view = EligibilityView(view_id="v", version="1", allowed=lambda unit_ids: set(unit_ids) - set(hidden))
    return lambda _: view


def follow(
    relationships: Any,
    start: str = "hx-200",
    relations: tuple[str, ...] = WAY,
    *,
    source: Any = None,
    awaited: bool = False,
    query_id: str = "one",
    **options: Any,
) -> Outcome:
    """One run along a path."""
    builder = create_bounded_retrieval(source or Source(), relationships=relationships, **options)
    given: Any = {
        "query": QUERY,
        "request": {"query_id": query_id, "path": {"start": start, "relations": list(relations)}},
    }
    graph = builder.compile()
    return Outcome(asyncio.run(graph.ainvoke(given)) if awaited else graph.invoke(given))


def replayed(outcome: Outcome) -> bool:
    """Whether the trace gives the packet again."""
    units = {
        unit_id: Unit.from_document(Document(id=unit_id, page_content=text, metadata={"zone": "open"}))
        for unit_id, text in TEXTS.items()
    }
    return replay(outcome.trace, units) == outcome.packet


def sources_of(outcome: Outcome) -> list[str]:
    """The sources of the packet's path."""
    return [step.source_unit for step in outcome.packet.path]


def public(outcome: Outcome) -> str:
    """Packet and trace, without the query's id."""
    return (outcome.packet.model_dump_json() + outcome.trace.to_json()).replace(outcome.packet.query_id, "")


def nothing(outcome: Outcome, reason: str, missing: int, notes: tuple[str, ...] = ()) -> None:
    """Check that a path that was not followed hands over nothing but the reason and what is missing."""
    assert (outcome.ids, outcome.packet.path, outcome.reason) == ([], (), reason)
    assert outcome.packet.resolution == "unresolved"
    assert outcome.packet.missing_terms == WAY[len(WAY) - missing :]
    assert outcome.notes == notes
    assert (outcome.usage.calls, outcome.usage.units, outcome.usage.chars) == (0, 0, 0)
    assert replayed(outcome)


# Followed


@both_ways
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_declared_path_is_followed(hops: int, awaited: bool) -> None:
    """The sources come in the order of the hops, each is one read, no search is made and nothing is missing."""
    source = Source()
    outcome = follow(store_of(*LINKS), relations=WAY[:hops], source=source, awaited=awaited)
    assert outcome.ids == ["u-made", "u-based", "u-part"][:hops]
    steps = [(step.subject, step.relation, step.object, step.source_unit) for step in outcome.packet.path]
    declared = [(each.subject, each.relation, each.object, each.source_unit) for each in LINKS]
    assert steps == declared[:hops]
    assert (outcome.reason, outcome.packet.resolution) == ("path_followed", "provisional")
    assert (outcome.packet.missing_terms, outcome.notes) == ((), ())
    assert (outcome.usage.calls, outcome.usage.rows, outcome.usage.reads, outcome.usage.units) == (0, 0, hops, hops)
    assert source.searched == 0
    assert [item.text for item in outcome.packet.items] == [TEXTS[unit_id] for unit_id in outcome.ids]
    assert replayed(outcome)


@pytest.mark.parametrize(("start", "relation"), [("HX  200", "Made By"), ("hx-200", "MADE-BY"), ("Hx-200", "made_by")])
def test_spellings_of_names_and_relations_do_not_matter(start: str, relation: str) -> None:
    """A start is found by a name or its id however written, a relation likewise; steps hold the declared spelling."""
    outcome = follow(store_of(*LINKS), start, (relation,))
    assert outcome.reason == "path_followed"
    assert (outcome.packet.path[0].subject, outcome.packet.path[0].relation) == ("hx-200", "made_by")


@both_ways
@pytest.mark.parametrize("hidden", [[], ["u-name"]])
def test_an_asynchronous_store_is_awaited_and_gives_the_same(awaited: bool, hidden: list[str]) -> None:
    """Packet and trace are those of a synchronous store, under either way of calling; ``invoke`` names what is async."""
    rule = hiding(*hidden)
    straight = follow(store_of(*LINKS), eligibility=rule)
    if awaited:
        assert public(follow(Awaited(store_of(*LINKS)), awaited=True, eligibility=rule)) == public(straight)
        assert public(follow(store_of(*LINKS), awaited=True, eligibility=rule)) == public(straight)
        return
    with pytest.raises(AsyncOnlyError, match=r"^Awaited\.entities_named: "):
        follow(Awaited(store_of(*LINKS)), eligibility=rule)


def test_a_circle_packs_each_unit_once_and_keeps_every_step() -> None:
    """A > B > A reads two units for three hops."""
    circle = store_of(MADE, hop("orrin", "makes", "hx-200", "u-again"))
    outcome = follow(circle, relations=("made by", "makes", "made by"))
    assert outcome.ids == ["u-made", "u-again"]
    assert sources_of(outcome) == ["u-made", "u-again", "u-made"]
    assert (outcome.reason, outcome.usage.reads) == ("path_followed", 2)
    assert replayed(outcome)


def test_an_entity_related_to_itself_is_a_hop() -> None:
    """A relationship may lead back to where it began, as often as is asked."""
    outcome = follow(store_of(hop("hx-200", "r", "hx-200", "u-made")), relations=("r",) * 6)
    assert (outcome.ids, len(outcome.packet.path), outcome.usage.reads) == (["u-made"], 6, 1)


ALTERNATIVES = (
    hop("orrin", "based in", "velm", "u-again"),
    hop("orrin", "based in", "velm", "u-based"),
    hop("orrin", "based in", "velm", "u-part", source_fingerprint="stale"),
)


@pytest.mark.parametrize(
    ("hidden", "chosen"),
    [([], "u-again"), (["u-again"], "u-based"), (["u-based"], "u-again"), (["u-again", "u-based"], None)],
)
def test_of_several_sources_the_first_that_may_be_shown_is_used(hidden: list[str], chosen: str | None) -> None:
    """By the id of the unit, among those that are current and eligible."""
    outcome = follow(store_of(MADE, *ALTERNATIVES), relations=WAY[:2], eligibility=hiding(*hidden))
    assert sources_of(outcome) == (["u-made", chosen] if chosen else [])
    assert outcome.reason == ("path_followed" if chosen else "path_unresolved")


def test_private_fields_are_kept_from_a_path_too() -> None:
    """What the view's filter reads is gone from the packet's metadata and from the state."""
    view = EligibilityView(view_id="v", version="1", search_filter={"zone": "open"})
    builder = create_bounded_retrieval(Source(), relationships=store_of(*LINKS), eligibility=lambda _: view)
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}
    given: Any = {"query": QUERY, "request": {"path": {"start": "hx-200", "relations": list(WAY)}}}
    outcome = Outcome(graph.invoke(given, config))
    assert [item.metadata for item in outcome.packet.items] == [{}] * 3
    assert "zone" not in repr(list(graph.get_state_history(config)))


# Unresolved, and the same in every case


def deleting(unit_id: str) -> Source:
    """The corpus without a unit."""
    source = Source()
    del source.held[unit_id]
    return source


def editing(unit_id: str) -> Source:
    """The corpus with another text of a unit."""
    source = Source()
    source.edit(unit_id)
    return source


def blanking(unit_id: str) -> Source:
    """The corpus with a unit that has no text left."""
    source = Source()
    source.held[unit_id] = Document(id=unit_id, page_content=" \n")
    return source


BROKEN: dict[int, dict[str, Callable[[], Outcome]]] = {
    3: {
        "unknown start": lambda: follow(store_of(*LINKS), "hx-900"),
        "missing relation": lambda: follow(store_of(BASED, PART)),
        "undeclared relation": lambda: follow(store_of(hop("hx-200", "sold by", "orrin", "u-made"), BASED, PART)),
        "stale": lambda: follow(store_of(*LINKS), source=editing("u-made")),
        "deleted": lambda: follow(store_of(*LINKS), source=deleting("u-made")),
        "no text": lambda: follow(store_of(*LINKS), source=blanking("u-made")),
        "an empty store": lambda: follow(store_of(names=())),
    },
    2: {
        "missing relation": lambda: follow(store_of(MADE, PART)),
        "broken bridge": lambda: follow(store_of(MADE, hop("Orrin", "based in", "velm", "u-based"), PART)),
        "undeclared relation": lambda: follow(store_of(MADE, hop("orrin", "known in", "velm", "u-based"), PART)),
        "stale": lambda: follow(
            store_of(MADE, BASED.model_copy(update={"source_fingerprint": fingerprint("then")}), PART)
        ),
        "deleted": lambda: follow(store_of(*LINKS), source=deleting("u-based")),
        "no text": lambda: follow(store_of(*LINKS), source=blanking("u-based")),
        "never there": lambda: follow(store_of(MADE, BASED.model_copy(update={"source_unit": "u-gone"}), PART)),
    },
}
UNDER_A_VIEW: dict[int, dict[str, Callable[[], Outcome]]] = {
    3: {
        "unknown start": lambda: follow(store_of(*LINKS), "hx-900", eligibility=hiding()),
        "missing relation": lambda: follow(store_of(BASED, PART), eligibility=hiding()),
        "protected source": lambda: follow(store_of(*LINKS), eligibility=hiding("u-made")),
        "everything protected": lambda: follow(store_of(*LINKS), eligibility=hiding(*TEXTS)),
    },
    2: {
        "missing relation": lambda: follow(store_of(MADE, PART), eligibility=hiding()),
        "deleted": lambda: follow(store_of(*LINKS), source=deleting("u-based"), eligibility=hiding()),
        "stale": lambda: follow(
            store_of(MADE, BASED.model_copy(update={"source_fingerprint": "x"}), PART), eligibility=hiding()
        ),
        "protected source": lambda: follow(store_of(*LINKS), eligibility=hiding("u-based")),
    },
}


def test_a_name_that_only_a_hidden_unit_declares_changes_nothing() -> None:
    """An entity exists where a visible relationship mentions it, whether or not a hidden unit names it."""
    assert follow(store_of(*LINKS), eligibility=hiding("u-name")).reason == "path_followed"


@pytest.mark.parametrize("cases", [BROKEN, UNDER_A_VIEW], ids=["public", "view"])
@pytest.mark.parametrize("missing", [3, 2])
def test_a_path_that_breaks_is_unresolved_in_the_same_words(missing: int, cases: Any) -> None:
    """Whatever the reason at the same hop, packet and trace are byte for byte the same, and nothing is packed."""
    outcomes = {name: case() for name, case in cases[missing].items()}
    for outcome in outcomes.values():
        nothing(outcome, "path_unresolved", missing)
    assert outcomes["missing relation"].usage.reads == 3 - missing
    expected = outcomes["missing relation"].packet.model_dump_json()
    assert [name for name, outcome in outcomes.items() if outcome.packet.model_dump_json() != expected] == []
    expected = outcomes["missing relation"].trace.to_json()
    asked_otherwise = {"unknown start"}
    told = [name for name, outcome in outcomes.items() if outcome.trace.to_json() != expected]
    assert set(told) <= asked_otherwise


@both_ways
def test_the_query_does_not_matter_to_the_packet_but_for_its_id(awaited: bool) -> None:
    """Two runs that break at the same hop differ in ``query_id`` alone."""
    runs = [
        follow(store_of(*LINKS), eligibility=hiding("u-made"), query_id=query_id, awaited=awaited)
        for query_id in ("one", "two")
    ]
    assert runs[0].packet.model_dump_json().replace('"one"', '"two"') == runs[1].packet.model_dump_json()


# Ambiguous


TWINS = (named("hx-200", "Twin", "u-zwin"), named("hx-300", "Twin", "u-twin"))
FORK = (MADE, hop("hx-200", "made by", "brill", "u-other"))


def test_a_start_of_two_entities_is_ambiguous() -> None:
    """None is chosen, nothing is read and nothing is packed."""
    outcome = follow(store_of(*LINKS, names=TWINS), "twin")
    nothing(outcome, "ambiguous_request", 3)
    assert outcome.usage.reads == 0


def test_a_hop_to_two_entities_is_ambiguous() -> None:
    """Two current sources that lead to different entities: none is chosen, the relation is missing."""
    nothing(follow(store_of(*FORK, BASED, PART)), "ambiguous_request", 3)
    later = hop("orrin", "based in", "astra", "u-other")
    nothing(follow(store_of(MADE, BASED, later, PART)), "ambiguous_request", 2)


@pytest.mark.parametrize("hides", [True, False])
def test_what_may_not_be_seen_makes_nothing_ambiguous(hides: bool) -> None:
    """Where the other alternative's source is hidden, or gone, there is one way, at the start and at a hop."""
    for unit_id, links, start, labels in (
        ("u-twin", LINKS, "Twin", (*LABELS, *TWINS)),
        ("u-other", (*FORK, BASED, PART), "hx-200", LABELS),
    ):
        options: dict[str, Any] = {"eligibility": hiding(unit_id)} if hides else {"source": deleting(unit_id)}
        outcome = follow(store_of(*links, names=labels), start, **options)
        assert outcome.reason == "path_followed"
        assert outcome.ids == ["u-made", "u-based", "u-part"]
        assert unit_id not in public(outcome)


def test_a_stale_alternative_makes_nothing_ambiguous() -> None:
    """A relationship declared for another text does not count as a second way."""
    stale = FORK[1].model_copy(update={"source_fingerprint": "then"})
    assert follow(store_of(MADE, stale, BASED, PART)).reason == "path_followed"


def test_any_number_of_hidden_alternatives_hides_nothing_else() -> None:
    """A visible hop is followed however many declarations from hidden sources stand before it."""
    hidden = [f"u-hidden-{number:04}" for number in range(1_000)]
    source = Source()
    source.held |= {unit_id: Document(id=unit_id, page_content="Hidden.") for unit_id in hidden}
    crowd = [hop("hx-200", "made by", f"brill-{unit_id}", unit_id) for unit_id in hidden]
    outcome = follow(store_of(*crowd, *LINKS), source=source, eligibility=hiding(*hidden))
    assert outcome.reason == "path_followed"


# Limits


@pytest.mark.parametrize(
    ("budget", "ids"),
    [
        (Budget(max_units=2), ["u-made", "u-based"]),
        (Budget(max_units=0), []),
        (Budget(max_chars=len(TEXTS["u-made"])), ["u-made"]),
        (Budget(max_chars=0), []),
    ],
)
def test_a_path_that_does_not_fit_is_not_claimed(budget: Budget, ids: list[str]) -> None:
    """Whole units of it that fit are packed; without the rest there is no path."""
    outcome = follow(store_of(*LINKS), budget=budget)
    assert (outcome.ids, outcome.reason, outcome.packet.path) == (ids, "resource_budget_exhausted", ())
    assert (outcome.packet.resolution, outcome.usage.reads) == ("unresolved", 3)
    assert replayed(outcome)


@pytest.mark.parametrize(("hops", "reads"), [(7, 6), (3, 2), (1, 0), (200, 199)])
def test_more_hops_than_reads_are_refused_before_anything_is_read(hops: int, reads: int) -> None:
    """The error names limit and value; neither store nor source was asked."""
    relationships, source = Counting(store_of(*LINKS)), Source()
    with pytest.raises(RequestError, match=rf"at most max_reads {reads} hops \(got {hops}\)"):
        follow(relationships, relations=("r",) * hops, source=source, budget=Budget(max_reads=reads))
    assert (relationships.asked, source.fetched) == ([], [])


def test_a_thousand_hops_are_refused() -> None:
    """Whatever the reads, in one short line."""
    relationships = Counting(store_of(*LINKS))
    with pytest.raises(RequestError) as caught:
        follow(relationships, relations=("r",) * 1000, budget=Budget(max_reads=200))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert relationships.asked == []


def test_two_hundred_hops_are_followed() -> None:
    """As many as reads may be allowed at all; each unit is read once."""
    ring = store_of(MADE, hop("orrin", "made by", "hx-200", "u-again"))
    outcome = follow(ring, relations=("made by",) * 200, budget=Budget(max_reads=200))
    assert (outcome.reason, len(outcome.packet.path), outcome.usage.reads) == ("path_followed", 200, 2)


def test_the_store_is_asked_once_for_each_thing() -> None:
    """For the start once, then for each hop its relationships."""
    relationships = Counting(store_of(*LINKS))
    follow(relationships)
    assert relationships.asked == [
        "entities_named hx-200",
        "relationships_of hx-200 made by",
        "relationships_of orrin based in",
        "relationships_of velm part of",
    ]


def test_a_hop_that_breaks_ends_the_asking() -> None:
    """After the first hop that cannot be followed nothing further is asked."""
    relationships = Counting(store_of(MADE, PART))
    follow(relationships)
    assert relationships.asked[-1] == "relationships_of orrin based in"


def test_a_path_needs_relationships() -> None:
    """A graph without any refuses a path, in one line that names the parameter."""
    with pytest.raises(RequestError, match=r"^path: .*relationships"):
        follow(None)


@pytest.mark.parametrize("given", [RelationshipStore, "store", [MADE], object()])
def test_a_builder_refuses_what_is_no_store(given: Any) -> None:
    """The error is one line that begins with the parameter's name."""
    with pytest.raises(ConfigurationError, match=r"^relationships: "):
        follow(given)


# Dropped at the recheck


def after_the_last_hop(happens: Callable[[], Any]) -> Callable[[str], None]:
    """What a store does right before its last answer: the last hop's source is read after it, so hit earlier ones."""

    def before(call: str) -> None:
        if call == "relationships_of velm part of":
            happens()

    return before


@both_ways
@pytest.mark.parametrize(("unit_id", "missing"), [("u-made", 3), ("u-based", 2)])
@pytest.mark.parametrize("what", ["deleted", "edited", "revoked"])
def test_a_source_lost_before_packing_leaves_no_path(what: str, unit_id: str, missing: int, awaited: bool) -> None:
    """A hop whose source was there and is gone at the recheck is unresolved; nothing is packed."""
    source, hidden, records = Source(), set(), []
    view = EligibilityView(view_id="v", version="1", allowed=lambda unit_ids: set(unit_ids) - hidden)
    changes = {
        "deleted": lambda: source.held.pop(unit_id),
        "edited": lambda: source.edit(unit_id),
        "revoked": lambda: hidden.add(unit_id),
    }
    relationships = Counting(store_of(*LINKS), after_the_last_hop(changes[what]))
    outcome = follow(
        relationships, source=source, awaited=awaited, eligibility=lambda _: view, diagnostics=records.append
    )
    nothing(outcome, "path_unresolved", missing, ("dropped_at_recheck",))
    assert unit_id not in public(outcome)
    reason = {"deleted": "gone", "edited": "changed", "revoked": "denied"}[what]
    assert records[0]["reasons"] == {unit_id: reason}
    assert source.fetched[-1] == ["u-made", "u-based", "u-part"]


def test_lost_in_whatever_way_is_the_same() -> None:
    """A source that was revoked and one that was deleted before packing give the same bytes."""
    outcomes = []
    for what in ("deleted", "revoked"):
        source, hidden = Source(), set()
        view = EligibilityView(view_id="v", version="1", allowed=lambda unit_ids, h=hidden: set(unit_ids) - h)
        lose = {
            "deleted": lambda source=source: source.held.pop("u-based"),
            "revoked": lambda hidden=hidden: hidden.add("u-based"),
        }
        relationships = Counting(store_of(*LINKS), after_the_last_hop(lose[what]))
        outcomes.append(follow(relationships, source=source, eligibility=lambda _, view=view: view))
    assert public(outcomes[0]) == public(outcomes[1])


# Failures


def failing(call: str, error: Exception) -> Counting:
    """A store that raises when it is asked this."""

    def before(asked: str) -> None:
        if asked.startswith(call):
            raise error

    return Counting(store_of(*LINKS), before)


CALLS = ["entities_named", "relationships_of hx-200", "relationships_of orrin", "relationships_of velm"]


@both_ways
@pytest.mark.parametrize("call", CALLS)
def test_a_store_that_raises_ends_in_an_empty_packet(call: str, awaited: bool) -> None:
    """At whichever hop; the error is in the diagnostics alone."""
    records: list[dict[str, Any]] = []
    outcome = follow(failing(call, OSError(RAW)), awaited=awaited, diagnostics=records.append)
    nothing(outcome, "retrieval_failed", 3, ("relationships_failed",))
    assert (records[0]["event"], str(records[0]["error"])) == ("relationships_failed", RAW)
    assert RAW not in public(outcome)


@pytest.mark.parametrize("where", ["store", "source"])
def test_an_unreadable_file_is_no_question_of_eligibility(where: str) -> None:
    """Whatever the store or the source raises, the note is that the relationships could not be read."""
    source = Source()
    relationships: Any = store_of(*LINKS)
    if where == "store":
        relationships = failing("relationships_of", PermissionError(RAW))
    else:
        source.fetch = raising
    nothing(follow(relationships, source=source), "retrieval_failed", 3, ("relationships_failed",))


def raising(_: Any) -> Any:
    """A unit source whose file may not be read."""
    raise PermissionError(RAW)


ODD: list[Any] = [None, "text", 5, {"a": 1}, [MADE, None], [("hx-200", "made by", "orrin", "u-made")], iter([MADE])]


@both_ways
@pytest.mark.parametrize("method", ["entities_named", "relationships_of"])
@pytest.mark.parametrize("answer", ODD, ids=lambda answer: type(answer).__name__)
def test_a_store_that_answers_with_something_else_has_failed(method: str, answer: Any, awaited: bool) -> None:
    """Anything but a list of the declared kind is no answer."""
    relationships = Counting(store_of(*LINKS))
    setattr(relationships, method, lambda *_: answer)
    outcome = follow(relationships, awaited=awaited)
    nothing(outcome, "retrieval_failed", 3, ("relationships_failed",))


@both_ways
@pytest.mark.parametrize("answer", [None, [], "text", [Document(page_content="x")]])
def test_a_source_that_answers_with_something_else_has_failed(answer: Any, awaited: bool) -> None:
    """Anything but a mapping is no answer of a unit source."""
    source = Source()
    source.fetch = lambda _: answer
    outcome = follow(store_of(*LINKS), source=source, awaited=awaited)
    nothing(outcome, "retrieval_failed", 3, ("relationships_failed",))


@pytest.mark.parametrize("value", [None, "text", {"page_content": TEXTS["u-made"]}, 5])
def test_a_source_that_gives_no_documents_gives_no_units(value: Any) -> None:
    """An entry that is no document is a unit that is not there."""
    source = Source()
    source.held["u-made"] = value
    nothing(follow(store_of(*LINKS), source=source), "path_unresolved", 3)


@both_ways
@pytest.mark.parametrize("where", ["resolver", "allowed"])
def test_a_rule_that_fails_ends_in_an_empty_packet(where: str, awaited: bool) -> None:
    """A view that cannot be established, or cannot say, shows no path; the note is the view's."""

    def fail(_: Any) -> Any:
        raise RuntimeError(RAW)

    view = EligibilityView(view_id="v", version="1", allowed=fail)
    relationships = Counting(store_of(*LINKS))
    outcome = follow(relationships, awaited=awaited, eligibility=fail if where == "resolver" else lambda _: view)
    assert (outcome.ids, outcome.reason, outcome.notes) == ([], "retrieval_failed", ("eligibility_failed",))
    assert RAW not in public(outcome)
    assert where == "allowed" or relationships.asked == []
    assert replayed(outcome)


# Interrupted


@both_ways
@pytest.mark.parametrize("what", ["cancelled", "deadline"])
def test_an_interruption_before_the_first_hop_reads_nothing(what: str, awaited: bool) -> None:
    """Neither store nor source is asked."""
    relationships, source = Counting(store_of(*LINKS)), Source()
    options: dict[str, Any] = (
        {"cancelled": lambda _: True} if what == "cancelled" else {"budget": Budget(deadline_ms=0)}
    )
    outcome = follow(relationships, source=source, awaited=awaited, **options)
    nothing(outcome, "cancelled" if what == "cancelled" else "deadline_exceeded", 3)
    assert (relationships.asked, source.fetched, outcome.usage.reads) == ([], [], 0)
    attempt = outcome.trace.path
    assert attempt is not None
    assert (attempt.outcome, attempt.why_not, attempt.interruption) == ("not_started", what, what)


@both_ways
@pytest.mark.parametrize("what", ["cancelled", "deadline"])
@pytest.mark.parametrize(
    ("after", "followed"), [("entities_named", 0), ("relationships_of hx-200", 1), ("relationships_of orrin", 2)]
)
def test_an_interruption_between_hops_packs_what_was_followed(
    what: str, after: str, followed: int, awaited: bool
) -> None:
    """No further hop is looked at, no path is claimed, and the relations from there are missing."""
    clock = FixedClock(1000.0)
    ended: list[str] = []

    def before(call: str) -> None:
        if call.startswith(after):
            ended.append(call)
            clock.advance(5 if what == "deadline" else 0)

    relationships = Counting(store_of(*LINKS), before)
    outcome = follow(
        relationships,
        awaited=awaited,
        clock=clock,
        budget=Budget(deadline_ms=1000),
        cancelled=lambda _: what == "cancelled" and bool(ended),
    )
    assert relationships.asked[-1].startswith(after)
    assert outcome.reason == ("cancelled" if what == "cancelled" else "deadline_exceeded")
    assert outcome.ids == ["u-made", "u-based"][:followed]
    assert (outcome.packet.path, outcome.packet.missing_terms) == ((), WAY[followed:])
    assert outcome.usage.reads == followed
    assert replayed(outcome)


def test_a_deadline_passed_during_the_last_hop_claims_no_path() -> None:
    """The clock is read again once the path was followed; its units are packed."""
    clock = FixedClock(1000.0)
    relationships = Counting(store_of(*LINKS), after_the_last_hop(lambda: clock.advance(5)))
    outcome = follow(relationships, clock=clock, budget=Budget(deadline_ms=1000))
    assert (outcome.reason, outcome.packet.path) == ("deadline_exceeded", ())
    assert outcome.ids == ["u-made", "u-based", "u-part"]
    assert outcome.trace.path is not None
    assert outcome.trace.path.elapsed_ms == 5000
    assert replayed(outcome)


# Steps and events


@both_ways
@pytest.mark.parametrize("hidden", [[], ["u-based"]])
def test_a_path_takes_three_supersteps_with_one_event_each(hidden: list[str], awaited: bool) -> None:
    """``inspect_request``, ``follow_path``, ``recheck_and_pack``; the events streamed are those of the trace."""
    graph = create_bounded_retrieval(Source(), relationships=store_of(*LINKS), eligibility=hiding(*hidden)).compile()
    given: Any = {"query": QUERY, "request": {"path": {"start": "hx-200", "relations": list(WAY)}}}

    async def collect() -> list[Any]:
        return [chunk async for chunk in graph.astream(given, stream_mode=["updates", "custom"])]

    chunks = asyncio.run(collect()) if awaited else list(graph.stream(given, stream_mode=["updates", "custom"]))
    updates = [chunk for mode, chunk in chunks if mode == "updates"]
    events = [chunk for mode, chunk in chunks if mode == "custom"]
    assert [list(update) for update in updates] == [["inspect_request"], ["follow_path"], ["recheck_and_pack"]]
    assert [event["event"] for event in events] == ["request_inspected", "path_attempted", "evidence_packed"]
    assert [event["event"] for event in updates[-1]["recheck_and_pack"]["trace"]["events"]] == [
        event["event"] for event in events
    ]
    assert events[1]["view"] == {"view_id": "v", "version": "1"}


def test_nothing_protected_is_in_stream_or_state() -> None:
    """No id, text or entity of a hop that may not be seen appears in any mode or checkpoint of the run."""
    graph = create_bounded_retrieval(
        Source(), relationships=store_of(*LINKS), eligibility=hiding("u-based", "u-part")
    ).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}
    given: Any = {"query": QUERY, "request": {"path": {"start": "hx-200", "relations": list(WAY)}}}
    modes: Any = ["values", "updates", "custom", "messages", "checkpoints", "tasks", "debug"]
    text = repr([list(graph.stream(given, config, stream_mode=modes)), list(graph.get_state_history(config))])
    assert "u-made" in text
    assert [word for word in ("u-based", "u-part", "Velm", "velm", "astra") if word in text] == []


def test_equal_requests_give_equal_bytes() -> None:
    """Two runs of one path, one of them awaited, are the same to the byte."""
    assert public(follow(store_of(*LINKS))) == public(follow(store_of(*reversed(LINKS)), awaited=True))
