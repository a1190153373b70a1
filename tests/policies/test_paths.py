from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document

from bounded_retrieval.contracts.budget import Budget, Usage
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.normalise import fingerprint
from bounded_retrieval.contracts.packet import PathStep
from bounded_retrieval.contracts.relationships import EntityName, Relationship, fold_name, fold_relation
from bounded_retrieval.contracts.request import MAX_PATH_HOPS, PathRequest
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.trace import EvidencePacked, PathAttempted
from bounded_retrieval.errors import RequestError
from bounded_retrieval.policies.assembly import Recheck
from bounded_retrieval.policies.paths import assemble_path, check_hops, find_hops, find_start
from bounded_retrieval.retrievers.relationships import RelationshipStore

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def hop(subject: str, object_id: str, source: str, relation: str = "r", **given: Any) -> Relationship:
    """A declared relationship."""
    return Relationship(subject=subject, relation=relation, object=object_id, source_unit=source, **given)


def named(entity_id: str, name: str, source: str) -> EntityName:
    """A declared name."""
    return EntityName(entity_id=entity_id, name=name, source_unit=source)


def units(*unit_ids: str, **texts: str) -> dict[str, Unit]:
    """Units by id; each text is the id unless another one is given."""
    every = dict.fromkeys(unit_ids) | texts
    return {
        unit_id: Unit.from_document(Document(id=unit_id, page_content=text or unit_id))
        for unit_id, text in every.items()
    }


def settle(path: PathRequest | None, **limits: int) -> RunSettings:
    """The settings of a run over a path."""
    return RunSettings(
        query="q",
        query_id="q-1",
        policy="adaptive",
        threshold=0.8,
        terms=("battery",),
        identifiers=(),
        channels=("lexical",),
        limits=Budget(**limits),
        first_hop_rows=3,
        assessor="a",
        fusion="f",
        tokenizer="t",
        path=path,
    )


def attempted(outcome: str, *sources: str, **given: Any) -> PathAttempted:
    """What came of following A > r > r ..., with these source units."""
    steps = tuple(
        PathStep(subject=f"e{number}", relation="r", object=f"e{number + 1}", source_unit=source)
        for number, source in enumerate(sources)
    )
    return PathAttempted(outcome=outcome, steps=steps, usage=Usage(reads=len(set(sources))), **given)


def assembled(
    attempt: PathAttempted, held: Mapping[str, Unit], *, dropped: Sequence[str] = (), hops: int = 3, **limits: int
) -> tuple[Any, EvidencePacked]:
    """The packet and the last event of a path of so many hops."""
    return assemble_path(
        settle(PathRequest(start="e0", relations=("r",) * hops), **limits),
        attempt,
        held,
        attempt.usage,
        recheck=Recheck(dropped=frozenset(dropped)),
        notes=(),
    )


# The start and the hops


def test_a_start_is_every_entity_that_goes_by_the_name() -> None:
    """Each entity once, in order of its id, and only where a source of the name can be shown."""
    names = [named("B", "n", "u1"), named("A", "n", "u2"), named("A", "n", "u3"), named("C", "n", "u4")]
    assert find_start(names, units("u1", "u2", "u3")) == ["A", "B"]
    assert find_start(names, units("u4")) == ["C"]
    assert find_start(names, {}) == []


def test_one_relationship_counts_for_each_object() -> None:
    """Of several sources the first one by id that can be shown; the objects come in order of their ids."""
    declared = [hop("A", "C", "u5"), hop("A", "B", "u3"), hop("A", "B", "u2"), hop("A", "B", "u1")]
    found = find_hops(declared, units("u2", "u3", "u5"))
    assert [(each.object, each.source_unit) for each in found] == [("B", "u2"), ("C", "u5")]


def test_a_stale_source_does_not_count() -> None:
    """A relationship declared for another text is passed over for one that is current or names no text."""
    held = units(u1="now", u2="now", u3="now")
    old, new = fingerprint("then"), fingerprint("now")
    stale = hop("A", "B", "u1", source_fingerprint=old)
    assert find_hops([stale], held) == []
    current = hop("A", "B", "u2", source_fingerprint=new)
    assert find_hops([stale, current, hop("A", "B", "u3")], held) == [current]


# How many hops, and how they are written


@pytest.mark.parametrize(("hops", "reads"), [(1, 1), (6, 6), (200, 200)])
def test_as_many_hops_as_reads_are_allowed(hops: int, reads: int) -> None:
    """Each hop reads its source unit once."""
    check_hops(settle(PathRequest(start="A", relations=("r",) * hops), max_reads=reads))


@pytest.mark.parametrize(("hops", "reads"), [(1, 0), (7, 6), (200, 199)])
def test_more_hops_than_reads_are_refused(hops: int, reads: int) -> None:
    """The error names the limit and the value in one line."""
    with pytest.raises(RequestError) as caught:
        check_hops(settle(PathRequest(start="A", relations=("r",) * hops), max_reads=reads))
    assert str(caught.value) == f"path.relations: at most max_reads {reads} hops (got {hops})"


def test_without_a_path_no_reads_are_needed() -> None:
    """A request for text is not measured by hops."""
    check_hops(settle(None, max_reads=0))


@pytest.mark.parametrize(
    ("text", "start", "relations"),
    [
        ("A > r", "A", ("r",)),
        ("A>r>s", "A", ("r", "s")),
        ("  The HX-200  >  made by\t> based in ", "The HX-200", ("made by", "based in")),
        ("Ä\u00df > \u6771", "Ä\u00df", ("\u6771",)),
        ("A\x00 > r", "A\ufffd", ("r",)),
        (f"{'a' * 500} > {'r' * 500}", "a" * 500, ("r" * 500,)),
        (f"A{' > r' * MAX_PATH_HOPS}", "A", ("r",) * MAX_PATH_HOPS),
    ],
)
def test_a_path_is_read_from_text(text: str, start: str, relations: tuple[str, ...]) -> None:
    """Start and relations stand between ``>``; whitespace around them is nothing."""
    path = PathRequest.parse(text)
    assert (path.start, path.relations) == (start, relations)
    assert PathRequest.parse(str(path)) == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "A",
        ">",
        "A >",
        "> r",
        "A > > r",
        "A > r >",
        "A -> ",
        "\n>\n",
        f"{'a' * 501} > r",
        f"A > {'r' * 501}",
        f"A{' > r' * (MAX_PATH_HOPS + 1)}",
        f"A{' > r' * 1000}",
        "A\nB >",
        f"A > {'x' * 100_000}",
    ],
)
def test_a_text_that_is_no_path_is_refused(text: str) -> None:
    """In one short line that begins with what it is about."""
    with pytest.raises(RequestError) as caught:
        PathRequest.parse(text)
    message = str(caught.value)
    assert message.startswith("path")
    assert "\n" not in message
    assert len(message) < 300


@untimed
@given(st.text(max_size=40))
def test_any_text_is_a_path_or_refused(text: str) -> None:
    """Reading a text never raises anything but a `RequestError` of one line, and what was read can be written."""
    try:
        path = PathRequest.parse(text)
    except RequestError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - either way is right
    else:
        assert PathRequest.parse(str(path)) == path


# The packet of a path


def test_a_followed_path_is_packed_in_its_order() -> None:
    """Each source once, in the order of the hops, with the path, no missing relation and no score."""
    packet, packed = assembled(attempted("followed", "u2", "u1", "u3"), units("u1", "u2", "u3"))
    assert [item.unit_id for item in packet.items] == ["u2", "u1", "u3"]
    assert [step.source_unit for step in packet.path] == ["u2", "u1", "u3"]
    assert (packet.stop_reason, packet.resolution, packet.missing_terms) == ("path_followed", "provisional", ())
    assert {(item.fused_score, *item.channels) for item in packet.items} == {(0.0,)}
    assert (packet.usage.reads, packet.usage.units, packet.usage.calls) == (3, 3, 0)
    assert packed.packed == ("u2", "u1", "u3")


def test_a_unit_that_backs_two_hops_is_packed_once() -> None:
    """The path keeps every step."""
    packet, _ = assembled(attempted("followed", "u1", "u2", "u1"), units("u1", "u2"))
    assert [item.unit_id for item in packet.items] == ["u1", "u2"]
    assert [step.source_unit for step in packet.path] == ["u1", "u2", "u1"]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [("unresolved", "path_unresolved"), ("ambiguous", "ambiguous_request"), ("failed", "retrieval_failed")],
)
def test_of_a_path_that_was_not_followed_nothing_is_packed(outcome: str, reason: str) -> None:
    """Neither units nor path, though hops before the break were followed; the relations from there are missing."""
    packet, packed = assembled(attempted(outcome, "u1"), units("u1"))
    assert (packet.items, packet.path, packet.stop_reason) == ((), (), reason)
    assert (packet.resolution, packet.missing_terms) == ("unresolved", ("r", "r"))
    assert (packed.packed, packed.ranking, packed.skipped) == ((), (), ())


@pytest.mark.parametrize(("dropped", "missing"), [(["u1"], 3), (["u2"], 2), (["u3"], 1), (["u2", "u3"], 2)])
def test_a_path_with_a_dropped_source_is_unresolved(dropped: list[str], missing: int) -> None:
    """Nothing is packed, and the relations from the first dropped hop are missing."""
    packet, _ = assembled(attempted("followed", "u1", "u2", "u3"), units("u1", "u2", "u3"), dropped=dropped)
    assert (packet.items, packet.path, packet.stop_reason) == ((), (), "path_unresolved")
    assert packet.missing_terms == ("r",) * missing


@pytest.mark.parametrize(
    ("limits", "ids"), [({"max_units": 2}, ["u1", "u2"]), ({"max_chars": 6}, ["u1", "u2"]), ({"max_units": 0}, [])]
)
def test_a_path_that_does_not_fit_is_not_claimed(limits: dict[str, int], ids: list[str]) -> None:
    """The units that fit are packed, without a path."""
    packet, _ = assembled(attempted("followed", "u1", "u2", "u3"), units("u1", "u2", "u3"), **limits)
    assert [item.unit_id for item in packet.items] == ids
    assert (packet.stop_reason, packet.path, packet.resolution) == ("resource_budget_exhausted", (), "unresolved")


@pytest.mark.parametrize(("interruption", "reason"), [("cancelled", "cancelled"), ("deadline", "deadline_exceeded")])
@pytest.mark.parametrize("outcome", ["followed", "unresolved", "ambiguous"])
def test_an_interrupted_path_packs_what_was_followed(interruption: Any, reason: str, outcome: str) -> None:
    """Whatever else happened, clock and caller come first, and no path is claimed."""
    packet, _ = assembled(attempted(outcome, "u1", interruption=interruption), units("u1"))
    assert ([item.unit_id for item in packet.items], packet.path, packet.stop_reason) == (["u1"], (), reason)
    assert packet.missing_terms == ("r", "r")


# Against a plain reading of the rules


ENTITIES = ("A", "B", "C", "D")
RELATIONS = ("r", "R", "s")
NAMES = ("Alpha", "alpha ", "Beta", "A")
SOURCES = ("u1", "u2", "u3", "u4", "u5")

declared_relationships = st.lists(
    st.builds(
        Relationship,
        subject=st.sampled_from(ENTITIES),
        relation=st.sampled_from(RELATIONS),
        object=st.sampled_from(ENTITIES),
        source_unit=st.sampled_from(SOURCES),
        source_fingerprint=st.sampled_from([None, None, fingerprint("u1"), fingerprint("u2")]),
    ),
    max_size=14,
)
declared_names = st.lists(
    st.builds(
        EntityName,
        entity_id=st.sampled_from(ENTITIES),
        name=st.sampled_from(NAMES),
        source_unit=st.sampled_from(SOURCES),
    ),
    max_size=5,
)
paths = st.builds(
    PathRequest,
    start=st.sampled_from((*ENTITIES, *NAMES, "a")),
    relations=st.lists(st.sampled_from(RELATIONS), min_size=1, max_size=4).map(tuple),
)


def followed(
    path: PathRequest, store: RelationshipStore, shown: Mapping[str, Unit]
) -> tuple[str, list[tuple[str, str, str]]]:
    """The outcome by the functions of the package, over a store that holds everything, hidden sources too."""
    steps: list[tuple[str, str, str]] = []
    entities = find_start(store.entities_named(path.start), shown)
    for relation in path.relations:
        if len(entities) != 1:
            break
        hops = find_hops(store.relationships_of(entities[0], relation), shown)
        entities = [each.object for each in hops]
        if len(hops) == 1:
            steps.append((hops[0].subject, hops[0].object, hops[0].source_unit))
    return ("ambiguous" if len(entities) > 1 else "followed" if entities else "unresolved"), steps


def expected(
    path: PathRequest, relationships: Sequence[Relationship], names: Sequence[EntityName], visible: set[str]
) -> tuple[str, list[tuple[str, str, str]]]:
    """The outcome by a plain reading of the rules, which sees nothing of hidden declarations."""
    links = [each for each in relationships if each.source_unit in visible]
    known = [each for each in names if each.source_unit in visible]
    here = {each.entity_id for each in known if fold_name(each.name) == fold_name(path.start)}
    mentioned = {each.subject for each in links} | {each.object for each in links} | {each.entity_id for each in known}
    here |= {entity for entity in mentioned if fold_name(entity) == fold_name(path.start)}
    steps: list[tuple[str, str, str]] = []
    for relation in path.relations:
        if len(here) != 1:
            break
        (subject,) = here
        sources: dict[str, list[str]] = {}
        for each in links:
            is_current = each.source_fingerprint in (None, fingerprint(each.source_unit))
            is_asked = each.subject == subject and fold_relation(each.relation) == fold_relation(relation)
            if is_asked and is_current:
                sources.setdefault(each.object, []).append(each.source_unit)
        here = set(sources)
        if len(here) == 1:
            (reached,) = here
            steps.append((subject, reached, min(sources[reached])))
    return ("ambiguous" if len(here) > 1 else "followed" if here else "unresolved"), steps


@settings(untimed, max_examples=400)
@given(declared_relationships, declared_names, paths, st.sets(st.sampled_from(SOURCES)))
def test_a_path_ends_as_the_rules_say(
    relationships: list[Relationship], names: list[EntityName], path: PathRequest, visible: set[str]
) -> None:
    """Over any relationships, names and hidden units the outcome and the hops are those of a plain reading."""
    store = RelationshipStore(relationships, names)
    assert followed(path, store, units(*visible)) == expected(path, relationships, names, visible)


@settings(untimed, max_examples=200)
@given(declared_relationships, paths, st.sets(st.sampled_from(SOURCES)))
def test_hidden_declarations_change_nothing(
    relationships: list[Relationship], path: PathRequest, visible: set[str]
) -> None:
    """Where no entity has a name, a path ends as if what hidden sources declare had never been declared."""
    shown = units(*visible)
    known = [each for each in relationships if each.source_unit in visible]
    everything, visible_part = RelationshipStore(relationships), RelationshipStore(known)
    assert followed(path, everything, shown) == followed(path, visible_part, shown)


@untimed
@given(declared_relationships, st.randoms(use_true_random=False), st.sets(st.sampled_from(SOURCES)))
def test_the_order_of_declarations_does_not_matter(
    relationships: list[Relationship], chance: Any, visible: set[str]
) -> None:
    """The hops that count are the same however the declarations are ordered."""
    shuffled = list(relationships)
    chance.shuffle(shuffled)
    shown = units(*visible)
    alike = [[(r.object, r.source_unit) for r in find_hops(each, shown)] for each in (relationships, shuffled)]
    assert alike[0] == alike[1]
