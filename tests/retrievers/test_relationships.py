from __future__ import annotations

import inspect
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bounded_retrieval.contracts.relationships import (
    EntityName,
    Relationship,
    RelationshipSource,
    fold_name,
    fold_relation,
)
from bounded_retrieval.errors import SourceError
from bounded_retrieval.ingest import find_relationships, read_documents
from bounded_retrieval.retrievers.relationships import MAX_LINE_BYTES, RelationshipStore

LINK = {"subject": "a", "relation": "r", "object": "b", "source_unit": "u"}
NAME = {"entity": "a", "name": "A thing", "source_unit": "u"}


def link(subject, relation, object_id, source_unit="u", fingerprint=None):
    """A relationship in one line."""
    return Relationship(
        subject=subject, relation=relation, object=object_id, source_unit=source_unit, source_fingerprint=fingerprint
    )


def name(entity_id, text, source_unit="u"):
    """A declared name in one line."""
    return EntityName(entity_id=entity_id, name=text, source_unit=source_unit)


def content(store):
    """Everything that a store holds."""
    return list(store.relationships()), list(store.names())


IDS = st.sampled_from(["a", "A", "ß", "SS", "ﬁx", "fix", "x y", "x  y", "x_y", "é", "e\u0301", "\ud800"]) | st.text(
    min_size=1, max_size=8
).filter(str.strip)
LINKS = st.builds(link, IDS, IDS, IDS, IDS, st.none() | IDS)
NAMES = st.builds(name, IDS, IDS, IDS)
STORES = st.tuples(st.lists(LINKS, max_size=12), st.lists(NAMES, max_size=12))


def test_a_declared_relationship_is_found_by_subject_and_relation():
    """Exactly the relationships of this subject under this relation come back, whole."""
    kept = link("device:1", "maintained_by", "team:1", "u1", "f")
    store = RelationshipStore([kept, link("device:1", "sold_by", "team:2"), link("device:10", "maintained_by", "x")])
    assert store.relationships_of("device:1", "maintained_by") == [kept]
    assert store.relationships_of("device:1", "owned_by") == []
    assert store.relationships_of("team:1", "maintained_by") == []


@pytest.mark.parametrize(
    "asked", ["maintained by", "Maintained-By", "maintained  _by", " MAINTAINED\u00a0BY ", "\uff4daintained_by"]
)
def test_spellings_of_a_relation_are_one_relation(asked):
    """Case, compatibility forms, spaces, underscores and hyphens do not tell relations apart."""
    both = [link("a", "maintained_by", "b"), link("a", "Maintained by", "c")]
    assert RelationshipStore(both).relationships_of("a", asked) == both


def test_a_subject_is_compared_exactly():
    """Another spelling of a subject has no relationships: a path breaks there and is not mended."""
    store = RelationshipStore([link("team:a-b", "led_by", "x")])
    for other in ("team:a_b", "Team:a-b", "team:a-b ", "team:a b"):
        assert store.relationships_of(other, "led_by") == []


@pytest.mark.parametrize("asked", ["Straße", "STRASSE", " straße\t", "\uff53trasse"])
def test_spellings_of_a_name_are_one_name(asked):
    """Case, compatibility forms and whitespace do not tell names apart."""
    declared = name("e:1", "Strasse")
    assert RelationshipStore(names=[declared, name("e:2", "Strass")]).entities_named(asked) == [declared]


def test_a_name_is_not_guessed():
    """A part of a name, or one with other punctuation, is not the name."""
    store = RelationshipStore(names=[name("e:1", "HX-200")])
    for other in ("HX", "HX-20", "HX-2000", "HX 200", "HX_200", ""):
        assert store.entities_named(other) == []


@pytest.mark.parametrize("dash", ["\u2010", "\u2011", "\u2012", "\u2013", "\u2212"])
def test_a_joining_dash_is_a_hyphen(dash):
    """A name typed with another joining dash is the same name, as it is for identifiers in a query."""
    declared = name("e:1", "HX-200")
    assert RelationshipStore(names=[declared]).entities_named(f"hx{dash}200") == [declared]


def test_a_name_of_two_entities_gives_both():
    """An ambiguous name gives every entity that goes by it, by id, then by source unit."""
    names = [name("b", "duty", "u2"), name("a", "Duty", "u3"), name("a", "duty", "u1"), name("c", "other")]
    assert RelationshipStore(names=names).entities_named("DUTY") == [names[2], names[1], names[0]]


def test_an_entity_goes_by_its_own_id():
    """An id, however spelled, gives one entry for each unit that mentions it: in a name, as subject or as object."""
    links = [
        link("a:1", "r", "b", "u3"),
        link("b", "r", "A:1", "u9"),
        link("c", "r", "a:1", "u2"),
        link("a:1", "s", "b", "u2"),
    ]
    store = RelationshipStore(links, [name("a:1", "thing", "u1")])
    own = [("a:1", "a:1", unit) for unit in ("u1", "u2", "u3")]
    found = [(entry.entity_id, entry.name, entry.source_unit) for entry in store.entities_named("A:1 ")]
    assert found == [("A:1", "A:1", "u9"), *own]
    assert store.entities_named("b")[0] == name("b", "b", "u2")
    assert store.entities_named("thing") == [name("a:1", "thing", "u1")]


def test_an_id_that_is_also_a_declared_name_is_not_repeated():
    """Where an entity is declared to go by its id, that unit's entry comes once; another entity's stands beside it."""
    store = RelationshipStore([link("a", "r", "b", "u")], [name("a", "a", "u"), name("z", "A", "u")])
    assert store.entities_named("a") == [name("a", "a", "u"), name("z", "A", "u")]


def test_names_of_an_entity_are_the_declared_ones():
    """The names of exactly this id come by source unit; the id itself is not one of them."""
    names = [name("a", "one", "u2"), name("a", "two", "u1"), name("A", "three")]
    store = RelationshipStore([link("a", "r", "b")], names)
    assert store.names_of("a") == [names[1], names[0]]
    assert store.names_of("b") == store.names_of("one") == []


def test_repeats_are_held_once_and_other_sources_are_no_repeats():
    """The same declaration twice is one; another source unit or fingerprint makes it another declaration."""
    links = [link("a", "r", "b"), link("a", "r", "b", "u2"), link("a", "r", "b", "u2", "f")]
    store = RelationshipStore(links * 2, [name("a", "n")] * 3)
    assert store.relationships_of("a", "r") == links
    assert (len(store), repr(store)) == (3, "RelationshipStore(3 relationships, 1 names)")


def test_circles_are_data():
    """Relationships that lead back to their start, even in one step, are kept."""
    links = [link("a", "next", "a"), link("b", "next", "c"), link("c", "next", "b")]
    store = RelationshipStore(links)
    assert [store.relationships_of(x, "next")[0].object for x in "abc"] == ["a", "c", "b"]


def test_an_empty_store_answers_nothing():
    """Without declarations every answer is empty and the length is zero."""
    store = RelationshipStore()
    assert (len(store), store.entities_named("a"), store.names_of("a"), store.relationships_of("a", "r")) == (
        0,
        [],
        [],
        [],
    )


def test_the_store_is_a_relationship_source():
    """The store has the methods that the protocol asks for, by name and by parameters."""
    assert isinstance(RelationshipStore(), RelationshipSource)
    assert not isinstance(object(), RelationshipSource)
    for method in ("entities_named", "relationships_of"):
        asked, given_by = (inspect.signature(getattr(kind, method)) for kind in (RelationshipSource, RelationshipStore))
        assert list(asked.parameters) == list(given_by.parameters)


@pytest.mark.parametrize(
    "values",
    [
        {"subject": ""},
        {"relation": " \t"},
        {"object": "x" * 501},
        {"source_unit": 3},
        {"source_fingerprint": ""},
        {"other": "x"},
    ],
)
def test_a_model_refuses_what_is_no_declaration(values):
    """Empty, blank, over-long and non-text values and unknown fields are refused."""
    with pytest.raises(ValidationError, match=next(iter(values))):
        Relationship.model_validate({**LINK, **values})


def test_models_are_frozen_and_clean():
    """A declaration cannot be changed, and characters that cannot be stored are replaced."""
    held = link("a\x00", "r", "b" * 500)
    assert (held.subject, len(held.object)) == ("a\ufffd", 500)
    with pytest.raises(ValidationError, match="frozen"):
        held.subject = "b"


@given(st.text())
def test_folding_ignores_what_it_says(text):
    """Whitespace around and between and, for relations, underscores and hyphens fold to one space or to nothing."""
    assert fold_name(f" \n{text}\t") == fold_name(text)
    assert fold_name(f"{text}  x") == fold_name(f"{text}\n x")
    assert fold_relation(f"_{text}- x") == fold_relation(f"{text} x")
    assert fold_relation(text) == fold_relation(fold_name(text))


@given(STORES, st.randoms(use_true_random=False))
def test_the_order_of_declarations_does_not_matter(declared, chance):
    """Every answer is the same, sorted by ids and without repeats, in whatever order the declarations came."""
    links, names = declared
    store = RelationshipStore(links, names)
    other = RelationshipStore(chance.sample(links * 2, len(links) * 2), chance.sample(names * 2, len(names) * 2))
    assert content(store) == content(other)
    for asked in {n.name for n in names} | {r.subject for r in links} | {r.object for r in links}:
        found = store.entities_named(asked)
        keys = [(entry.entity_id, entry.source_unit, entry.name) for entry in found]
        assert keys == sorted(set(keys))
        assert found == other.entities_named(asked)


@given(STORES)
def test_the_store_answers_as_a_plain_search_of_the_list_would(declared):
    """Dictionaries give exactly what going through all declarations gives."""
    links, names = declared
    store = RelationshipStore(links, names)
    for asked in links:
        expected = {
            r
            for r in links
            if r.subject == asked.subject and fold_relation(r.relation) == fold_relation(asked.relation)
        }
        assert set(store.relationships_of(asked.subject, asked.relation)) == expected
    uses = [(n.entity_id, n.source_unit) for n in names]
    uses += [(end, r.source_unit) for r in links for end in (r.subject, r.object)]
    for asked in {n.name for n in names} | {entity_id for entity_id, _ in uses}:
        expected = {n for n in names if fold_name(n.name) == fold_name(asked)}
        expected |= {
            name(entity_id, entity_id, unit) for entity_id, unit in uses if fold_name(entity_id) == fold_name(asked)
        }
        assert set(store.entities_named(asked)) == expected
        assert set(store.names_of(asked)) == {n for n in names if n.entity_id == asked}


@settings(max_examples=60, deadline=None)
@given(STORES)
def test_a_file_brings_everything_back(tmp_path_factory, declared):
    """What is written comes back equal, and writing it again gives the same bytes."""
    path = tmp_path_factory.mktemp("round") / "relationships.jsonl"
    store = RelationshipStore(*declared)
    store.to_jsonl(path)
    again = RelationshipStore.from_jsonl(path)
    assert content(again) == content(store)
    before = path.read_bytes()
    again.to_jsonl(path)
    assert path.read_bytes() == before
    assert [held.name for held in path.parent.iterdir()] == [path.name]


def test_a_file_may_hold_blank_lines_any_line_ends_and_a_mark(tmp_path):
    """Blank lines are skipped, Windows line ends and a byte order mark do no harm, a null fingerprint is none."""
    path = tmp_path / "r.jsonl"
    lines = [
        "\ufeff" + json.dumps(LINK),
        "",
        "  ",
        json.dumps({**LINK, "subject": "c", "source_fingerprint": None}),
        json.dumps(NAME),
    ]
    path.write_text("\r\n".join(lines), encoding="utf-8", newline="")
    assert content(RelationshipStore.from_jsonl(path)) == (
        [link("a", "r", "b"), link("c", "r", "b")],
        [name("a", "A thing")],
    )


def test_several_files_are_one_store(tmp_path):
    """The declarations of several files are put together; a repeat across files is held once."""
    (tmp_path / "1").write_text(f"{json.dumps(LINK)}\n{json.dumps(NAME)}")
    (tmp_path / "2").write_text(f"{json.dumps(LINK)}\n{json.dumps({**LINK, 'object': 'c'})}")
    store = RelationshipStore.from_jsonl(tmp_path / "1", tmp_path / "2")
    assert [r.object for r in store.relationships_of("a", "r")] == ["b", "c"]
    assert len(store.names_of("a")) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"not JSON \(.*, column 2\)"),
        ("[" * 100_000, "not readable JSON"),
        ('{"subject": ' + "1" * 5000 + "}", "not readable JSON"),
        ("[1]", r"expected a JSON object \(got a list\)"),
        ("null", r"expected a JSON object \(got null\)"),
        (json.dumps({}), "subject is missing"),
        (json.dumps({**LINK, "weight": 1}), "unknown field 'weight'"),
        (json.dumps({**LINK, **NAME}), "unknown field 'subject'"),
        (json.dumps({**NAME, "entity_id": "a"}), "unknown field 'entity_id'"),
        (json.dumps({key: value for key, value in LINK.items() if key != "object"}), "object is missing"),
        (json.dumps({key: value for key, value in NAME.items() if key != "name"}), "name is missing"),
        (json.dumps({**LINK, "relation": 7}), r"relation must be text \(got a number\)"),
        (json.dumps({**LINK, "relation": None}), r"relation must be text \(got null\)"),
        (json.dumps({**LINK, "source_fingerprint": True}), r"source_fingerprint must be text \(got true or false\)"),
        (json.dumps({**NAME, "entity": ["a"]}), r"entity must be text \(got a list\)"),
        (json.dumps({**LINK, "source_unit": " "}), r"source_unit is empty or blank \(got ' '\)"),
        (json.dumps({**LINK, "source_fingerprint": ""}), r"source_fingerprint is empty or blank \(got ''\)"),
        (json.dumps({**NAME, "name": "x" * 501}), r"name has 501 characters, at most 500 \(got 'x{60}'\)"),
        (json.dumps({**NAME, "name": "x" * MAX_LINE_BYTES}), "longer than 1000000 bytes"),
        (b'{"subject": "\xff"}', r"byte 13 \(0xff\): not UTF-8"),
    ],
)
def test_what_is_no_declaration_is_named_by_file_line_and_field(tmp_path, line, message):
    """A faulty line ends the reading with one line that says where it stands and what is wrong."""
    path = tmp_path / "relationships.jsonl"
    path.write_bytes(json.dumps(LINK).encode() + b"\n\n" + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(SourceError, match=rf"^{path}, line 3: {message}") as caught:
        RelationshipStore.from_jsonl(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """A missing file and a folder give an error with their name and the reason."""
    with pytest.raises(SourceError, match=r"none.jsonl: cannot be read \(No such file"):
        RelationshipStore.from_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(SourceError, match="cannot be read"):
        RelationshipStore.from_jsonl(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    """When the disk fails, the old file is as it was and nothing is left beside it."""

    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    path = tmp_path / "r.jsonl"
    path.write_text("old")
    monkeypatch.setattr("bounded_retrieval.retrievers.relationships.os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        RelationshipStore([link("a", "r", "b")]).to_jsonl(path)
    assert [(held.name, held.read_text()) for held in tmp_path.iterdir()] == [("r.jsonl", "old")]


def test_a_hub_of_many_relationships_is_answered_in_order(tmp_path):
    """Ten thousand declarations about one entity load, and come back sorted and once each."""
    links = [link("hub", "has", f"part:{n:05}", f"u{n % 7}") for n in range(10_000)]
    random.Random(1).shuffle(links)
    path = tmp_path / "r.jsonl"
    RelationshipStore(links).to_jsonl(path)
    store = RelationshipStore.from_jsonl(path)
    assert [r.object for r in store.relationships_of("hub", "has")] == [f"part:{n:05}" for n in range(10_000)]
    assert [entry.source_unit for entry in store.entities_named("HUB")] == [f"u{n}" for n in range(7)]


def test_relationships_of_a_folder_are_found_and_not_read_as_documents(tmp_path):
    """Files of that exact name, at any depth, are found as relationships and reported as no documents."""
    for folder in ("", "deep/er", ".hidden"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "relationships.jsonl").write_text(json.dumps(LINK))
    (tmp_path / "my-relationships.jsonl").write_text('{"id": "1", "text": "pump"}')
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "relationships.jsonl").symlink_to(tmp_path / "relationships.jsonl")
    skipped = []
    units = list(read_documents([tmp_path], on_skip=lambda path, reason: skipped.append((path, reason))))
    found = [tmp_path / "relationships.jsonl", tmp_path / "deep" / "er" / "relationships.jsonl"]
    assert [unit.page_content for unit in units] == ["pump"]
    assert find_relationships([tmp_path, tmp_path / "deep", tmp_path / "my-relationships.jsonl"]) == found
    assert {(path, "holds declared relationships, not documents") for path in found} <= set(skipped)


def test_a_relationship_file_given_as_a_document_is_refused(tmp_path):
    """Given by itself it is refused with its name, and a folder that holds nothing else has nothing to read."""
    (tmp_path / "relationships.jsonl").write_text('{"id": "1", "text": "pump"}')
    with pytest.raises(SourceError, match=r"relationships\.jsonl: holds declared relationships, not documents"):
        read_documents([tmp_path / "relationships.jsonl"])
    with pytest.raises(SourceError, match="nothing readable"):
        read_documents([tmp_path])
    with pytest.raises(SourceError, match="none: does not exist"):
        find_relationships([tmp_path / "none"])
