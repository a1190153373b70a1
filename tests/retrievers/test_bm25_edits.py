from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document

from bounded_retrieval.errors import SourceError
from bounded_retrieval.retrievers._bm25_corpus import CorpusBuilder
from bounded_retrieval.retrievers.bm25 import BM25Searcher

DOCUMENTS = [
    Document(id="u1", page_content="red pump red"),
    Document(id="u2", page_content="pump valve", metadata={"kind": "note"}),
    Document(id="u3", page_content="blue valve fan motor shaft", metadata={"title": "Blue", "kind": "note"}),
]


WORDS = st.sampled_from(["red", "pump", "valve", "fan", "the", "HX-200", "blue"])
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
HELD = st.fixed_dictionaries({}, optional={"n": st.integers(0, 2), "kind": st.sampled_from("ab"), "title": TEXTS})
CORPORA = st.lists(st.tuples(TEXTS, HELD), min_size=1, max_size=24).map(
    lambda texts: [Document(id=f"u{n * 7 % 25:02}", page_content=t, metadata=m) for n, (t, m) in enumerate(texts)]
)


@pytest.mark.parametrize("backend", ["bm25s", "rank_bm25"])
@given(first=CORPORA, second=CORPORA, gone=st.sets(st.integers(0, 24).map("u{:02}".format)), query=TEXTS)
def test_edits_give_the_index_of_the_units_that_remain(backend, first, second, gone, query):
    """Adding, replacing and removing leaves exactly what indexing the result afresh would give."""
    searcher = BM25Searcher.from_documents(first, backend=backend)
    searcher.add(second)
    searcher.remove([*gone, "never there"])
    left = {document.id: document for document in [*first, *second] if document.id not in gone}
    fresh = BM25Searcher.from_documents(left.values(), backend=backend)
    assert searcher.ids() == fresh.ids() == sorted(left)
    assert searcher.search(query, 30) == fresh.search(query, 30)
    assert searcher._index.corpus.vocabulary.keys() == fresh._index.corpus.vocabulary.keys()


def test_only_new_texts_are_tokenised_by_an_edit(monkeypatch):
    """Adding one unit tokenises one text; removing tokenises none."""
    searcher = BM25Searcher.from_documents(DOCUMENTS)
    seen = []
    tokenise = CorpusBuilder.add
    monkeypatch.setattr(CorpusBuilder, "add", lambda self, unit: (seen.append(unit.unit_id), tokenise(self, unit)))
    searcher.add([Document(id="u4", page_content="new")])
    searcher.remove(["u1"])
    assert seen == ["u4"]


def test_a_refused_edit_changes_nothing():
    """If one of the documents to add is bad, none is added."""
    searcher = BM25Searcher.from_documents(DOCUMENTS)
    with pytest.raises(SourceError, match="'u9'"):
        searcher.add([Document(id="u8", page_content="new"), Document(id="u9", page_content=" ")])
    assert searcher.ids() == ["u1", "u2", "u3"]


def test_ids_come_from_the_named_field_in_edits_too():
    """``id_key`` given once holds for later additions."""
    searcher = BM25Searcher.from_documents([Document(page_content="a", metadata={"key": 1})], id_key="key")
    searcher.add([Document(id="x", page_content="pump", metadata={"key": 2})])
    assert searcher.ids() == ["1", "2"]


def test_searches_during_edits_see_one_state():
    """While units come and go in pairs, every search sees both of a pair or neither."""
    searcher = BM25Searcher.from_documents(DOCUMENTS)
    pair = [Document(id="p1", page_content="zebra"), Document(id="p2", page_content="zebra")]
    done = threading.Event()
    problems = []

    def search():
        while not done.is_set():
            found = [c.unit_id for c in searcher.search("zebra", 5)]
            filtered = searcher.search("pump", 5, {"kind": "note"})
            if found not in ([], ["p1", "p2"]) or [c.unit_id for c in filtered] != ["u2"]:
                problems.append(found)

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(search) for _ in range(4)]
        for _ in range(60):
            searcher.add(pair)
            searcher.remove(["p1", "p2"])
        done.set()
    assert [future.result() for future in running] == [None] * 4
    assert problems == []


def test_concurrent_edits_are_all_kept():
    """Edits from several threads follow one another; none is lost."""
    searcher = BM25Searcher.from_documents([])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: searcher.add([Document(id=f"{n:02}", page_content="pump")]), range(40)))
    assert searcher.ids() == [f"{n:02}" for n in range(40)]
