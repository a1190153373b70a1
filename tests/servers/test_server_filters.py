"""Filters over servers: those of the filter language, decided by the server wherever the searcher says so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from server_searchers import dense_of, filled

from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.retrievers._facets import Language, Narrowing, facets_of, narrow

VALUES: list[Any] = [
    *("HX-200", "hx-200", "", "0", "true", "2024-01-02", "2024-01-02T03:04:05Z", "é", "Ünï", 'a "quoted" \\ text'),
    *(0, 1, 1.0, 1.5, -3, 2**53 + 1, 1e300, True, False, None, ["a", 1], [], ["HX-200", True], {"a": 1}),
]
FILTERS: list[dict[str, Any]] = [
    *({"f": value} for value in VALUES if isinstance(value, str | int | float)),
    *({"f": {"$ne": value}} for value in ("HX-200", 1, True)),
    *({"f": {name: bound}} for name in ("$gt", "$gte", "$lt", "$lte") for bound in (1, 1.25, "HX", "é", 2**60)),
    *({"$not": {"f": {name: bound}}} for name in ("$gt", "$lte") for bound in (1, "HX")),
    {"f": {"$in": ["HX-200", 1, "nothing"]}},
    {"f": {"$in": []}},
    {"f": {"$nin": ["HX-200", 1]}},
    *({"f": {name: wanted}} for name in ("$exists", "$date") for wanted in (True, False)),
    {"$or": [{"f": "a"}, {"n": {"$lt": 3}}]},
    {"$not": {"$or": [{"f": {"$exists": True}}, {"n": 2}]}},
    {"$and": [{"n": {"$gte": 2}}, {"$or": [{"f": 1}, {"f": {"$exists": False}}]}]},
    {"odd \"name']": "x"},
    {"odd \"name']": {"$gt": "a"}},
    {"absent": 1},
]


def documents() -> list[Document]:
    """A unit for each value, one without any, and one with a field of an odd name."""
    made = [
        Document(id=f"u{place:02d}", page_content=f"unit {place} says pump", metadata={"f": value, "n": place})
        for place, value in enumerate(VALUES)
    ]
    made.append(Document(id="bare", page_content="a bare pump"))
    return [*made, Document(id="odd", page_content="an odd pump", metadata={"odd \"name']": "x"})]


@pytest.mark.parametrize("backend", ["milvus", "pgvector", "chroma"])
def test_a_server_decides_as_the_filter_language_does(
    backend: str, request: pytest.FixtureRequest, embedding: Any
) -> None:
    """Every filter lets through exactly the units that pass, in both channels, whoever decides it."""
    held = documents()
    store = filled(backend, request.getfixturevalue(backend), held, embedding)
    searchers = [dense_of(store), *([store.lexical] if backend == "milvus" else [])]
    for wanted in FILTERS:
        passes = compile_filter(wanted)
        expected = {document.id for document in held if passes(document.metadata)}
        for searcher in searchers:
            found = {row.unit_id for row in searcher.search("pump", len(held), wanted)}
            assert found == expected, (wanted, searcher)
    store.close()


@pytest.mark.parametrize(
    ("backend", "open_filters"),
    [
        ("milvus", [{"f": {"$gt": 2**60}}, {"f": {"$gt": 1.25}}, {"odd \"name']": {"$gt": "a"}}]),
        ("pgvector", [{"f": {"$gt": 2**60}}]),
        ("chroma", [{"f": {"$gt": "HX"}}, {"f": {"$exists": True}}]),
    ],
)
def test_what_is_not_pushed_down_is_said(
    backend: str, open_filters: list[Any], request: pytest.FixtureRequest, embedding: Any
) -> None:
    """`pushes_down` is true of equality and whole numbers everywhere, and false of the filters that the page names."""
    store = filled(backend, request.getfixturevalue(backend), documents()[:1], embedding)
    searcher = dense_of(store)
    assert all(searcher.pushes_down(each) for each in (None, {"f": "a"}, {"f": {"$in": [1, 2]}}, {"n": {"$lt": 3}}))
    assert not any(searcher.pushes_down(each) for each in open_filters)
    store.close()


def test_filtered_scores_are_those_of_an_index_of_the_units_that_pass(
    milvus: Any, embedding: Any, shipped: list[Document]
) -> None:
    """Under a filter Milvus' scores and weights are the embedded index's, whose statistics know of no other unit."""
    from bounded_retrieval.retrievers.bm25 import BM25Searcher

    held = shipped[:60]
    store, embedded = filled("milvus", milvus, held, embedding), BM25Searcher.from_documents(held)
    wanted = {"device": {"$in": ["HX-200", "all"]}}
    for query in ("replace the battery of the HX-200", "warranty"):
        found, expected = store.lexical.search(query, 4, wanted), embedded.search(query, 4, wanted)
        assert [(row.unit_id, row.score) for row in found] == [(row.unit_id, row.score) for row in expected]
        ids = [document.id or "" for document in held[:5]]
        assert store.lexical.score(query, ids, wanted) == embedded.score(query, ids, wanted)
        words = ["battery", "warranty"]
        assert store.lexical.weigh(query, words, wanted) == embedded.weigh(query, words, wanted)
    store.close()


SCALARS = st.one_of(
    st.sampled_from(["a", "b", "2024-01-01"]), st.integers(-2, 2), st.booleans(), st.sampled_from([0.5, 1.0])
)
FIELDS = st.sampled_from(["f", "g"])
ORDERED = st.one_of(st.sampled_from(["a", "b"]), st.integers(-2, 2), st.sampled_from([0.5]))
LEAVES = st.one_of(
    st.builds(lambda field, value: {field: value}, FIELDS, SCALARS),
    st.builds(lambda field, values: {field: {"$in": values}}, FIELDS, st.lists(SCALARS, max_size=3)),
    st.builds(lambda field, values: {field: {"$nin": values}}, FIELDS, st.lists(SCALARS, max_size=3)),
    st.builds(lambda field, name, bound: {field: {name: bound}}, FIELDS, st.sampled_from(["$gt", "$lte"]), ORDERED),
    st.builds(
        lambda field, name, yes: {field: {name: yes}}, FIELDS, st.sampled_from(["$exists", "$date"]), st.booleans()
    ),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda parts: {"$and": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: {"$or": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda part: {"$not": part}, inner),
    ),
    max_leaves=6,
)
METADATA = st.dictionaries(FIELDS, st.one_of(SCALARS, st.none(), st.lists(SCALARS, max_size=3)), max_size=2)


@settings(max_examples=300)
@given(wanted=TREES, metadata=METADATA)
def test_a_filter_in_terms_of_facets_means_the_same(wanted: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Evaluated in Python over a unit's facets and its fields, it lets the unit through if and only if it passes."""
    comparisons: list[bool] = []

    def ordered(field: str, name: str, bound: Any) -> Narrowing:
        comparisons.append(compile_filter({field: {name: bound}})(metadata))
        return Narrowing(f"comparisons[{len(comparisons) - 1}]", exact=True)

    language = Language(held=lambda facets: f"(not held.isdisjoint({facets!r}))", ordered=ordered, most=100)
    narrowed = narrow(wanted, language)
    text = str(narrowed.text)
    assert narrowed.exact
    assert eval(text, {"held": set(facets_of(metadata)), "comparisons": comparisons}) is compile_filter(wanted)(
        metadata
    )
