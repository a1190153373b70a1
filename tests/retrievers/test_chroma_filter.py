from __future__ import annotations

import itertools
import math
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings

from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.errors import RequestError
from bounded_retrieval.retrievers import chroma
from bounded_retrieval.retrievers._chroma_filter import (
    MAX_VALUES,
    compile_where,
    decides_whole,
    pack_metadata,
    unpack_metadata,
)
from bounded_retrieval.retrievers.chroma import ChromaSearcher

EMBEDDING = DeterministicFakeEmbedding(size=16)


class LetterEmbeddings(Embeddings):
    """Counts the letters a and b."""

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        return [float(text.count(letter)) for letter in "ab"]


NUMBERS = st.sampled_from([0, 1, 2, -1, 2**53, 2**53 + 1, -(2**63), 2**63 - 1, 2**60])
FLOATS = st.sampled_from([0.0, 1.0, 0.5, 1.5, -0.5, -1.5, 2.0**53, 2.0**60, 1e300])
WORDS = st.sampled_from(["", "1", "a", "b", "2026-01-01", "2026-06-30", "true"])
SCALARS = st.one_of(st.booleans(), NUMBERS, FLOATS, WORDS)
VALUES = st.one_of(SCALARS, st.none(), st.lists(st.one_of(SCALARS, st.none()), max_size=3), st.just({"x": 1}))
FIELDS = st.sampled_from(["a", "b", "title", "#h", ""])
UNBOUND = st.one_of(SCALARS, st.sampled_from([10**30, math.inf, -math.inf, math.nan, "\x00", "\ud800"]))
CONDITIONS = st.one_of(
    UNBOUND,
    st.dictionaries(st.sampled_from(["$eq", "$ne"]), UNBOUND, min_size=1, max_size=2),
    st.dictionaries(st.sampled_from(["$in", "$nin"]), st.lists(UNBOUND, max_size=4), min_size=1, max_size=2),
    st.dictionaries(
        st.sampled_from(["$gt", "$gte", "$lt", "$lte"]),
        UNBOUND.filter(lambda bound: not isinstance(bound, bool)),
        min_size=1,
        max_size=2,
    ),
    st.fixed_dictionaries({"$exists": st.booleans()}),
    st.fixed_dictionaries({"$date": st.booleans()}),
)
FILTERS = st.recursive(
    st.dictionaries(FIELDS, CONDITIONS, max_size=2),
    lambda inner: st.one_of(
        st.builds(
            lambda name, parts: {name: parts}, st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3)
        ),
        st.builds(lambda part: {"$not": part}, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(FIELDS, VALUES, max_size=3), min_size=1, max_size=8),
    st.lists(FILTERS, min_size=1, max_size=6),
)
def test_a_filtered_search_equals_brute_force(metadatas, filters):
    """For any metadata and any filter the answer is the passing units, all of them, by score and id."""
    units = [Document(id=str(n), page_content=f"text {n}", metadata=metadata) for n, metadata in enumerate(metadatas)]
    with closing(ChromaSearcher.from_documents(units, EMBEDDING)) as searcher:
        everything = searcher.search("query", 20)
        for condition in filters:
            accepts = compile_filter(condition)
            expected = [(row.unit_id, row.score) for row in everything if accepts(row.unit.metadata)]
            for k in (20, 2):
                assert [(row.unit_id, row.score) for row in searcher.search("query", k, condition)] == expected[:k]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.dictionaries(FIELDS, VALUES, max_size=3), min_size=1, max_size=8),
    st.lists(FILTERS, min_size=1, max_size=8),
)
def test_what_is_pushed_down_whole_is_decided_by_chroma_alone(metadatas, filters):
    """Chroma's own answer holds every passing unit, and only those where the searcher says so."""
    units = [Document(id=str(n), page_content="a", metadata=metadata) for n, metadata in enumerate(metadatas)]
    with closing(ChromaSearcher.from_documents(units, LetterEmbeddings())) as searcher:
        held = {unit_id: unit.metadata for unit_id, unit in searcher.fetch(searcher.ids()).items()}
        for condition in filters:
            where, accepts = compile_where(condition), compile_filter(condition)
            passing = {unit_id for unit_id, metadata in held.items() if accepts(metadata)}
            narrowed = where if isinstance(where, dict) else None
            raw = set() if where is False else set(searcher._live().get(where=narrowed)["ids"])
            assert raw == passing if searcher.pushes_down(condition) else raw >= passing


@pytest.mark.parametrize(
    ("condition", "whole"),
    [
        (None, True),
        ({}, True),
        ({"kind": "note", "n": {"$in": [1, 2.0, True]}}, True),
        ({"kind": {"$nin": ["note"]}, "n": {"$gte": 3, "$lt": 9.0}}, True),
        ({"$not": {"$or": [{"kind": "note"}, {"n": {"$ne": 3}}]}}, True),
        ({"n": {"$in": []}, "kind": {"$gt": "a"}}, True),
        ({"$or": [{"n": {"$nin": []}}, {"kind": {"$gt": "a"}}]}, True),
        ({"kind": {"$gt": "a"}}, False),
        ({"kind": "note", "day": {"$lte": "2026-01-01"}}, False),
        ({"$not": {"n": {"$gt": 3}}}, False),
        ({"n": {"$gt": 2**53}}, False),
        ({"n": 1.5}, False),
        ({"n": {"$ne": 1.5}}, False),
        ({"n": {"$gt": 1.5}}, False),
        ({"n": {"$exists": True}}, False),
        ({"$not": {"n": {"$exists": True}}}, False),
        ({"n": {"$in": [str(n) for n in range(MAX_VALUES + 1)]}}, False),
        ({"n": {"$nin": [str(n) for n in range(MAX_VALUES + 1)]}}, False),
        ({"#n": 1}, False),
    ],
)
def test_what_is_pushed_down_whole_is_told(condition, whole):
    """Equality and orderings with whole numbers are; texts in order, fractions, existence and long lists are not."""
    assert decides_whole(condition) is whole


def test_a_filter_outside_the_language_is_neither_pushed_down_nor_not():
    """Asking about an unknown operator is the same error as searching with it."""
    with closing(ChromaSearcher.from_documents([], LetterEmbeddings())) as searcher:
        with pytest.raises(RequestError, match="unknown operator"):
            searcher.pushes_down({"n": {"$regex": "x"}})
        assert searcher.pushes_down({"n": 1})


def test_lists_of_the_longest_length_are_pushed_down_whole():
    """500 texts fit into one where clause, also where the field holds lists and mixed lists, and negated."""
    metadatas = [{"of": "7"}, {"of": ["x", "499"]}, {"of": [1, "0"]}, {"of": [True, "x"]}, {"of": 7}, {}]
    units = [Document(id=str(n), page_content="a", metadata=metadata) for n, metadata in enumerate(metadatas)]
    among = {"of": {"$in": [str(n) for n in range(MAX_VALUES)]}}
    with closing(ChromaSearcher.from_documents(units, LetterEmbeddings())) as searcher:
        assert searcher.pushes_down(among)
        assert set(searcher._live().get(where=compile_where(among))["ids"]) == {"0", "1", "2"}
        assert set(searcher._live().get(where=compile_where({"$not": among}))["ids"]) == {"3", "4", "5"}


def test_long_value_lists_are_taken():
    """A filter may name more values than Chroma's SQL takes; up to 500 are pushed down."""
    units = [Document(id=str(n), page_content="a", metadata={"n": n, "of": [n, n + 1]}) for n in range(30)]
    with closing(ChromaSearcher.from_documents(units, LetterEmbeddings())) as searcher:
        for size in (400, 40_000):
            wanted = list(range(25, 25 + size))
            assert len(searcher.search("a", 50, {"n": {"$in": wanted}})) == 5
            assert len(searcher.search("a", 50, {"of": {"$in": wanted}})) == 6
            assert len(searcher.search("a", 50, {"$not": {"n": {"$in": wanted}}})) == 25


def test_a_filter_chroma_cannot_express_reads_on_up_to_the_cap(monkeypatch):
    """Rows that a text ordering drops are made up for by reading further, and never beyond OVERFETCH_CAP."""
    units = [Document(id=f"{n:03}", page_content="a" * (n + 1) + "b", metadata={"day": f"{n:03}"}) for n in range(200)]
    with closing(ChromaSearcher.from_documents(units, LetterEmbeddings())) as searcher:
        assert [row.unit_id for row in searcher.search("a", 2, {"day": {"$lt": "002"}})] == ["001", "000"]
        monkeypatch.setattr(chroma, "OVERFETCH_CAP", 50)
        assert searcher.search("a", 2, {"day": {"$lt": "002"}}) == []


HELD = [
    None,
    True,
    False,
    0,
    1,
    2,
    -3,
    1.0,
    "",
    "a",
    "1",
    "true",
    [],
    ["a"],
    ["a", "b"],
    [1, 2],
    [1.0],
    [True],
    [1, 2.0],
    [1, "a"],
    [True, 2],
]


@pytest.fixture(scope="module")
def pairs():
    """One unit for each pair of values of the fields x and y."""
    units = [
        Document(id=f"{n}", page_content="a", metadata={"x": x, "y": y})
        for n, (x, y) in enumerate(itertools.product(HELD, HELD))
    ]
    with closing(ChromaSearcher.from_documents(units, LetterEmbeddings())) as searcher:
        yield units, searcher


@pytest.mark.parametrize(
    "condition",
    [1, 1.0, "a", True, {"$ne": 1}, {"$ne": "a"}, {"$in": [1, "a", True]}, {"$nin": [1, "a", True]}, {"$gt": 1}],
)
def test_equality_lists_and_whole_numbers_are_pushed_down_whole(pairs, condition):
    """Chroma's own answer to the where clause is exactly the passing units: nothing is left to read on for."""
    units, searcher = pairs
    filters = [{"x": condition}, {"x": condition, "y": {"$ne": "a"}}, {"$or": [{"x": condition}, {"y": 1}]}]
    if condition != {"$gt": 1}:
        filters += [{"$not": {"x": condition}}, {"$not": {"x": condition, "y": "a"}}]
    for whole in filters:
        expected = {unit.id for unit in units if compile_filter(whole)(unit.metadata)}
        assert set(searcher._live().get(where=compile_where(whole))["ids"]) == expected


@pytest.mark.parametrize(
    ("condition", "where"),
    [
        (None, True),
        ({}, True),
        ({"day": {"$gt": "2026-01-01"}}, True),
        ({"$not": {"n": {"$gt": 3}}}, True),
        ({"n": {"$lt": 1.5}}, {"n": {"$lte": 2}}),
        ({"n": {"$in": []}}, False),
        ({"$or": [{"n": {"$in": []}}, {"n": math.nan}]}, False),
    ],
)
def test_what_cannot_narrow_and_what_cannot_match_are_told_apart(condition, where):
    """True stands for no restriction, False for no unit at all."""
    assert compile_where(condition) == where


def test_metadata_of_other_programs_is_read_as_it_is():
    """Chroma metadata without our text gives its own values; with it, the original ones."""
    assert unpack_metadata({"n": 1, "tags": ["x"]}) == {"n": 1, "tags": ["x"]}
    assert unpack_metadata(None) == {}
    assert unpack_metadata(pack_metadata({"a": [1, "x"], "b": None})) == {"a": [1, "x"], "b": None}
