"""Lexical scores over Milvus are those of the embedded index, with the support of the units most like each one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from server_searchers import filled, new_name

from bounded_retrieval import BM25Searcher, ExactSearcher, MilvusStore, build_index, open_index
from bounded_retrieval.contracts.time_left import time_left
from bounded_retrieval.demo import shipped_collection
from bounded_retrieval.errors import SourceError, StoreError
from bounded_retrieval.retrievers import _milvus_statistics
from bounded_retrieval.retrievers._neighbours import SUPPORT

QUERIES = [
    json.loads(line)["text"] for line in (shipped_collection() / "queries.jsonl").read_text("utf-8").splitlines()
]
SOME = QUERIES[::6]


@pytest.fixture
def store(milvus: Any, shipped: list[Document], embedding: Embeddings) -> Iterator[MilvusStore]:
    """A store of the shipped collection."""
    made = filled("milvus", milvus, shipped, embedding)
    yield made
    made.close()


def embedded(documents: Iterable[Document], embedding: Embeddings) -> BM25Searcher:
    """The embedded lexical searcher, with neighbours."""
    held = list(documents)
    searcher = BM25Searcher.from_documents(held)
    searcher.use_neighbours(ExactSearcher.from_documents(held, embedding))
    return searcher


def ranking(searcher: Any, query: str, k: int = 10, narrow: dict[str, Any] | None = None) -> list[tuple[str, float]]:
    """Ids and scores."""
    return [(row.unit_id, row.score) for row in searcher.search(query, k, narrow)]


def assert_same(searcher: Any, expected: BM25Searcher, queries: Iterable[str] = SOME) -> None:
    """Rankings, and the scores of all units, are equal to the last digit."""
    ids = [*expected.ids(), "nobody"]
    for query in queries:
        assert ranking(searcher, query) == ranking(expected, query)
        assert searcher.score(query, ids) == expected.score(query, ids)


def assert_other(one: BM25Searcher, another: BM25Searcher) -> None:
    """A control: the two do not score alike."""
    assert any(one.score(query, one.ids()) != another.score(query, another.ids()) for query in SOME)


def without(documents: Iterable[Document], *names: str) -> list[Document]:
    """All documents but those with these ids."""
    return [document for document in documents if document.id not in names]


def test_scores_are_those_of_an_embedded_index(
    store: MilvusStore, shipped: list[Document], embedding: Embeddings, tmp_path: Path
) -> None:
    """For every shipped question, of those found and of any unit."""
    build_index(shipped, tmp_path, embedding=embedding)
    with open_index(tmp_path, embedding=embedding) as index:
        assert_same(store.lexical, index.lexical, QUERIES)
        assert_other(index.lexical, BM25Searcher.from_documents(shipped))


@pytest.mark.parametrize("k", [1, 6, 20, 200])
def test_the_best_of_any_number_are_the_same(
    store: MilvusStore, shipped: list[Document], embedding: Embeddings, k: int
) -> None:
    """As many units are looked at as in the embedded index, also where Milvus gives more."""
    expected = embedded(shipped, embedding)
    for query in SOME:
        assert ranking(store.lexical, query, k) == ranking(expected, query, k)


def test_a_unit_scored_alone_has_its_neighbours_support(
    store: MilvusStore, shipped: list[Document], embedding: Embeddings
) -> None:
    """Terms of neighbours that are not asked for themselves are read; a unit that holds no term of a query scores, too."""
    expected = embedded(shipped, embedding)
    plain = BM25Searcher.from_documents(shipped).score(SOME[0], expected.ids())
    scores = {name: score for name, score in expected.score(SOME[0], expected.ids()).items() if not plain[name]}
    silent = max(scores, key=scores.__getitem__)
    for name in (silent, ranking(expected, SOME[0])[0][0]):
        assert store.lexical.score(SOME[0], [name]) == expected.score(SOME[0], [name]) != {name: 0}
    assert silent not in dict(ranking(store.lexical, SOME[0], 200))


def test_no_score_exceeds_what_is_attainable(store: MilvusStore) -> None:
    """A bound of BM25's scores is one of supported ones."""
    for query in SOME:
        assert ranking(store.lexical, query, 1)[0][1] <= store.lexical.weigh(query, []).attainable
    assert store.lexical.score("xyzzy", store.ids()[:2]) == dict.fromkeys(store.ids()[:2], 0)


def test_edits_leave_the_others_their_neighbours(
    store: MilvusStore, shipped: list[Document], embedding: Embeddings
) -> None:
    """Replaced, removed and new units support nobody and are supported by nobody, until neighbours are found anew."""
    edit = [
        Document(id="another", page_content="How to pair a pump with the hub."),
        Document(id=shipped[3].id, page_content=shipped[4].page_content),
        shipped[7],
    ]
    gone = [str(shipped[10].id), str(shipped[50].id)]
    expected = embedded(shipped, embedding)
    for held in (store, expected):
        held.add(edit)
        held.remove([*gone, "nobody"])
    assert_same(store.lexical, expected)
    anew = embedded([*without(shipped, *gone, str(shipped[3].id)), *edit[:2]], embedding)
    assert_other(expected, anew)
    store.use_neighbours()
    assert_same(store.lexical, anew)


def test_a_large_addition_finds_them_anew(store: MilvusStore, shipped: list[Document], embedding: Embeddings) -> None:
    """From a tenth of the collection on, new and replaced units together; below it new units have none."""
    copies = [Document(id=f"copy{place}", page_content=shipped[place].page_content) for place in range(20)]
    before = embedded(shipped, embedding)
    for held in (store, before):
        held.add(copies[:19])
    assert (len(store), len(shipped)) == (199, 180)
    assert_same(store.lexical, before)
    store.remove([str(copies[0].id)])
    store.add([*copies[18:], *shipped[:18]])
    assert len(store) == 199
    assert_same(store.lexical, embedded([*shipped, *copies[1:]], embedding))


def test_another_reader_sees_them_at_once(
    milvus: Any, store: MilvusStore, shipped: list[Document], embedding: Embeddings
) -> None:
    """Nothing of them is kept: who opened the collection before an edit scores with the neighbours after it."""
    reader = MilvusStore.open(milvus.uri, embedding, collection=store._connection.collection, statistics_ttl_s=0)
    expected = embedded(shipped, embedding)
    assert_same(reader.lexical, expected, SOME[:2])
    for held in (store, expected):
        held.remove([str(shipped[10].id)])
    assert_same(reader.lexical, expected, SOME[:2])
    reader.close()


def test_under_a_filter_they_play_no_part(milvus: Any, shipped: list[Document], embedding: Embeddings) -> None:
    """The scores are BM25's among the units that pass; a filter that asks for nothing is none."""
    held = [
        Document(id=document.id, page_content=document.page_content, metadata={"half": place % 2})
        for place, document in enumerate(shipped)
    ]
    store, plain = filled("milvus", milvus, held, embedding), BM25Searcher.from_documents(held)
    for narrow in ({"half": 1}, {"half": {"$in": [0, 1]}}):
        for query in SOME[:3]:
            assert ranking(store.lexical, query, narrow=narrow) == ranking(plain, query, narrow=narrow)
            scores = store.lexical.score(query, plain.ids(), narrow)
            assert scores == plain.score(query, plain.ids(), narrow)
    assert ranking(store.lexical, SOME[0], narrow={}) == ranking(embedded(held, embedding), SOME[0])
    store.close()


def test_before_the_first_addition_ends_nobody_has_any(milvus: Any, embedding: Embeddings) -> None:
    """An empty collection answers; one whose addition broke off ranks by BM25 alone, and later with support."""
    held = [Document(id=f"u{place:03}", page_content=f"pump {place % 7} hums {place}") for place in range(500)]
    store = MilvusStore.create(milvus.uri, embedding, collection=new_name())
    assert (store.lexical.search("pump", 3), store.lexical.score("pump", ["u001"])) == ([], {})
    with pytest.raises(SourceError, match="its text is blank"):
        store.add([*held, Document(id="bad", page_content=" ")])
    store._neighbours._near.on_collection("delete", ids=["#known"])
    plain = BM25Searcher.from_documents(held)
    assert store.lexical.score("17", plain.ids()) == plain.score("17", plain.ids())
    store.use_neighbours()
    assert_same(store.lexical, embedded(held, embedding), ["17"])
    store.close()


def test_a_unit_that_resembles_nothing_gets_its_own_share(milvus: Any, embedding: Embeddings) -> None:
    """Left alone by removals, it scores four fifths of BM25's score, as in the embedded index."""
    held = [Document(id=f'the "{name}" one', page_content=f"A pump that is {name}.") for name in ("red", "blue")]
    store, plain = filled("milvus", milvus, held, embedding), BM25Searcher.from_documents(held[:1])
    assert_same(store.lexical, embedded(held, embedding), ["pump", "blue"])
    assert store.ids() == ['the "blue" one', 'the "red" one']
    store.remove([str(held[1].id)])
    (own,), (found,) = ranking(plain, "red pump"), ranking(store.lexical, "red pump")
    assert found == (own[0], pytest.approx((1 - SUPPORT) * own[1]))
    store.close()


def test_units_that_are_gone_leave_when_they_are_found_anew(store: MilvusStore, shipped: list[Document]) -> None:
    """Also those that a writer which died half-way has left there."""
    store._connection.on_collection("delete", ids=[shipped[0].id])
    store.use_neighbours()
    near = store._neighbours.of([str(document.id) for document in shipped])
    assert near is not None
    assert near.keys() == {document.id for document in shipped[1:]}
    assert all(shipped[0].id not in held for held in near.values())


def test_rows_are_read_in_as_many_parts_as_it_takes(
    store: MilvusStore, shipped: list[Document], embedding: Embeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding them, and taking many units from others' rows, which are written meanwhile, leave none out."""
    monkeypatch.setattr(_milvus_statistics, "_BATCH", 7)
    expected = embedded(shipped, embedding)
    for held in (store, expected):
        held.remove([str(document.id) for document in shipped[::3]])
    assert store.ids() == expected.ids()
    assert_same(store.lexical, expected, SOME[:4])
    store.use_neighbours()
    assert_same(store.lexical, embedded(shipped[1::3] + shipped[2::3], embedding), SOME[:4])


def test_looking_them_up_takes_no_longer_than_a_deadline_leaves(milvus: Any, store: MilvusStore) -> None:
    """A server that hangs ends it in an error."""
    milvus.pause()
    try:
        with time_left(0.2), pytest.raises(StoreError, match=r"_neighbours'.*: no answer within (200|19\d) ms$"):
            store._neighbours.of(["u1"])
    finally:
        milvus.resume()


def test_they_are_dropped_with_the_collection(store: MilvusStore) -> None:
    """None of the three collections is left."""
    name = store._connection.collection
    there = set(store._connection.call("list_collections"))
    assert {name, f"{name}_terms", f"{name}_neighbours"} <= there
    store.drop()
    assert there - set(store._connection.call("list_collections")) == {name, f"{name}_terms", f"{name}_neighbours"}
