# ruff: noqa: ARG002, ARG003  # stand-ins keep LangChain's signatures
from __future__ import annotations

import copy
import subprocess
import sys

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from bounded_retrieval.contracts.normalise import content_id
from bounded_retrieval.contracts.ports import Searcher, UnitSource
from bounded_retrieval.errors import ConfigurationError, RequestError
from bounded_retrieval.retrievers import langchain as adapters
from bounded_retrieval.retrievers._chroma_filter import compile_where
from bounded_retrieval.retrievers.langchain import RetrieverSearcher, VectorStoreSearcher, as_searcher

EMBEDDING = DeterministicFakeEmbedding(size=16)
UNITS = [
    Document(
        id=f"u{n}", page_content=f"text {n}", metadata={"n": n, "kind": "note" if n % 2 else "guide", "key": f"k{n}"}
    )
    for n in range(30)
]


class ListRetriever(BaseRetriever):
    """Returns its documents, whatever the query."""

    documents: list[Document]
    k: int = 30

    def _get_relevant_documents(self, query, *, run_manager):
        return self.documents[: self.k]


class PlainStore(VectorStore):
    """A store without scores and ids by lookup, that takes ``filter`` as exact matches and edits it."""

    def __init__(self, documents):
        self.documents = documents
        self.filters = []

    def similarity_search(self, query, k=4, **kwargs):
        wanted = kwargs.get("filter", {})
        self.filters.append(copy.deepcopy(kwargs))
        rows = [row for row in self.documents if "kind" not in wanted or row.metadata["kind"] == wanted["kind"]]
        wanted.clear()
        return rows[:k]

    @classmethod
    def from_texts(cls, texts, embedding, metadatas=None, **kwargs):
        return cls([Document(text) for text in texts])


@pytest.fixture
def store():
    """An in-memory LangChain store that holds UNITS."""
    made = InMemoryVectorStore(EMBEDDING)
    made.add_documents(UNITS)
    return made


@pytest.fixture(params=["sync", "async"])
def search(request):
    """Search through ``search`` and, in the second run of each test, through ``asearch``."""

    async def run(searcher, *given):
        return searcher.search(*given) if request.param == "sync" else await searcher.asearch(*given)

    return run


def ids(rows):
    """Unit ids in order."""
    return [row.unit_id for row in rows]


def test_langchain_objects_are_adapted_and_searchers_are_returned_as_they_are(store):
    """as_searcher looks for LangChain types first: a vector store has a method named search, too."""
    assert isinstance(as_searcher(store, "dense"), VectorStoreSearcher)
    own = as_searcher(ListRetriever(documents=UNITS), "lexical")
    assert isinstance(own, RetrieverSearcher)
    assert isinstance(own, Searcher)
    assert as_searcher(own, "lexical") is own


@pytest.mark.parametrize("obj", [None, "text", 3, RetrieverSearcher, len])
def test_anything_else_is_refused_by_its_type(obj):
    """An object that cannot search gives an error that names its type and the channel."""
    with pytest.raises(ConfigurationError, match=rf"dense: .*{type(obj).__qualname__}"):
        as_searcher(obj, "dense")


def test_importing_the_adapters_loads_no_store_and_no_model():
    """Neither a vector database nor a model library is imported before it is used."""
    code = "import sys, bounded_retrieval.retrievers.langchain, bounded_retrieval.retrievers.chroma\n"
    code += "print({'chromadb', 'onnxruntime', 'tokenizers', 'wordllama', 'langchain_chroma'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


async def test_a_store_answers_in_its_order_with_its_scores(store, search):
    """Rank and unit are the store's own, and so is the score, to nine decimals."""
    expected = store.similarity_search_with_score("text 3", k=4)
    rows = await search(as_searcher(store, "dense"), "text 3", 4)
    assert [(row.unit_id, row.score, row.rank, row.channel) for row in rows] == [
        (document.id, round(score, 9), rank, "dense") for rank, (document, score) in enumerate(expected, 1)
    ]
    assert rows[0].unit == UNITS[3]


@pytest.mark.parametrize("k", [0, -1])
async def test_no_rows_asked_for_gives_no_rows(store, search, k):
    """A k of zero or less gives an empty answer; the filter is still checked."""
    for searcher in (as_searcher(store, "dense"), as_searcher(ListRetriever(documents=UNITS), "lexical")):
        assert await search(searcher, "text", k) == []
        with pytest.raises(RequestError):
            await search(searcher, "text", k, {"$unknown": 1})


FILTERS = [
    {"kind": "note"},
    {"kind": "note", "n": {"$gte": 20}},
    {"kind": {"$gt": "h"}},
    {"$not": {"$or": [{"n": {"$lt": 25}}, {"kind": "note"}]}},
    {"n": {"$in": []}},
]


def passing(filter):
    """Ids of UNITS that pass one of FILTERS, worked out by hand."""
    number = FILTERS.index(filter)
    wanted = [range(1, 30, 2), range(21, 30, 2), range(1, 30, 2), (26, 28), ()][number]
    return {f"u{n}" for n in wanted}


@pytest.mark.parametrize("filter", FILTERS)
async def test_a_filter_is_pushed_down_to_an_in_memory_store(store, search, filter):
    """InMemoryVectorStore gets a predicate, so that every passing unit is found."""
    searcher = as_searcher(store, "dense")
    assert set(ids(await search(searcher, "text 1", 30, filter))) == passing(filter)
    assert len(await search(searcher, "text 1", 2, filter)) == min(2, len(passing(filter)))


@pytest.mark.parametrize("filter", FILTERS)
async def test_a_filter_is_translated_for_a_chroma_store(search, filter):
    """langchain-chroma gets a where clause; several keys, negations and text orderings all hold."""
    langchain_chroma = pytest.importorskip("langchain_chroma", reason="langchain-chroma is not installed")
    chroma = langchain_chroma.Chroma(collection_name="adapter", embedding_function=EMBEDDING)
    chroma.add_documents(UNITS)
    searcher = as_searcher(chroma, "dense")
    try:
        assert set(ids(await search(searcher, "text 1", 30, filter))) == passing(filter)
        assert len(await search(searcher, "text 1", 2, filter)) == min(2, len(passing(filter)))
        assert searcher.fetch(["u3", "nope"]) == {"u3": UNITS[3]}
    finally:
        chroma.delete_collection()


async def test_an_unknown_store_gets_a_copy_of_the_mapping_and_is_checked_again(search):
    """The caller's filter survives a store that edits it, and what the store ignores is enforced afterwards."""
    plain = PlainStore(UNITS)
    condition = {"kind": "note", "n": {"$gte": 20}}
    rows = await search(VectorStoreSearcher(plain, "dense"), "q", 3, condition)
    assert ids(rows) == ["u21", "u23", "u25"]
    assert condition == {"kind": "note", "n": {"$gte": 20}}
    assert plain.filters[0] == {"filter": condition}
    assert all(row.score is None for row in rows)


async def test_no_filter_argument_is_passed_without_a_filter(search):
    """A store that knows no filter argument works as long as none is asked for."""
    plain = PlainStore(UNITS)
    await search(VectorStoreSearcher(plain, "dense"), "q", 3)
    assert plain.filters == [{}]


async def test_reading_on_for_a_filter_ends_at_the_cap(search, monkeypatch):
    """Rows dropped by a filter are made up for up to OVERFETCH_CAP rows, and no further."""
    searcher = VectorStoreSearcher(PlainStore(UNITS), "dense")
    assert ids(await search(searcher, "q", 1, {"n": 29})) == ["u29"]
    monkeypatch.setattr(adapters, "OVERFETCH_CAP", 29)
    assert await search(searcher, "q", 1, {"n": 29}) == []


def test_units_are_fetched_where_the_store_can(store):
    """The adapter is a unit source exactly if the store looks documents up by id."""
    searcher = as_searcher(store, "dense")
    assert isinstance(searcher, UnitSource)
    assert searcher.fetch(["u2", "nope", "u2"]) == {"u2": UNITS[2]}
    assert searcher.fetch([]) == {}
    assert not isinstance(as_searcher(PlainStore([]), "dense"), UnitSource)
    assert not isinstance(as_searcher(store, "dense", id_key="key"), UnitSource)


async def test_a_retriever_is_cut_to_k_and_keeps_its_own_settings(search):
    """Rows come in the retriever's order, without scores; its k is not touched."""
    retriever = ListRetriever(documents=UNITS, k=5)
    searcher = as_searcher(retriever, "lexical")
    rows = await search(searcher, "q", 3)
    assert [(row.unit_id, row.rank, row.score, row.channel) for row in rows] == [
        (f"u{n}", n + 1, None, "lexical") for n in range(3)
    ]
    assert len(await search(searcher, "q", 9)) == 5
    assert retriever.k == 5


async def test_a_filter_is_enforced_on_what_a_retriever_returned(search):
    """Only passing documents are returned, ranked without gaps."""
    rows = await search(as_searcher(ListRetriever(documents=UNITS), "lexical"), "q", 2, {"kind": "note"})
    assert [(row.unit_id, row.rank) for row in rows] == [("u1", 1), ("u3", 2)]


async def test_ids_come_from_the_key_then_the_document_then_the_text(search):
    """id_key names a metadata field; without it and without an id the text's hash is the id."""
    retriever = ListRetriever(documents=[Document("a", metadata={"key": 7}), Document("b", id="own"), Document("c")])
    assert ids(await search(as_searcher(retriever, "lexical", id_key="key"), "q", 3)) == ["7", "own", content_id("c")]


async def test_candidates_carry_copies(store, search):
    """Changing a candidate's unit changes neither the retriever's documents nor the store's."""
    documents = copy.deepcopy(UNITS)
    for searcher in (as_searcher(ListRetriever(documents=documents), "lexical"), as_searcher(store, "dense")):
        (row,) = await search(searcher, "text 0", 1)
        row.unit.metadata["n"] = "changed"
    assert documents == UNITS
    assert store.get_by_ids([row.unit_id])[0].metadata["n"] != "changed"


@pytest.mark.filterwarnings("ignore:`langchain-community` is being sunset:DeprecationWarning")
async def test_the_community_bm25_retriever_works_as_it_is(search):
    """BM25Retriever of langchain-community needs nothing but as_searcher."""
    from langchain_community.retrievers import BM25Retriever

    retriever = BM25Retriever.from_documents(UNITS, k=4)
    rows = await search(as_searcher(retriever, "lexical"), "7", 2)
    assert rows[0].unit_id == "u7"
    assert len(rows) == 2


async def test_a_stores_retriever_works_as_a_retriever(store, search):
    """The result of as_retriever() is a retriever and keeps its search_kwargs."""
    retriever = store.as_retriever(search_kwargs={"k": 6})
    assert len(await search(as_searcher(retriever, "dense"), "text 1", 9)) == 6
    assert retriever.search_kwargs == {"k": 6}


@pytest.mark.parametrize("filter", [None, {}, *FILTERS])
def test_what_a_store_decides_itself_is_told(store, filter):
    """An in-memory store decides every filter, a retriever and an unknown store none but the empty one."""
    assert as_searcher(store, "dense").pushes_down(filter)
    for undecided in (PlainStore([]), ListRetriever(documents=[])):
        assert as_searcher(undecided, "dense").pushes_down(filter) is not bool(filter)


@pytest.mark.parametrize(("filter", "whole"), list(zip(FILTERS, [True, True, False, False, True], strict=True)))
def test_what_a_chroma_store_decides_itself_is_told(filter, whole):
    """Of Chroma it depends on the filter: where it is said to decide, its rows are the passing ones."""
    langchain_chroma = pytest.importorskip("langchain_chroma", reason="langchain-chroma is not installed")
    chroma = langchain_chroma.Chroma(collection_name="pushed", embedding_function=EMBEDDING)
    chroma.add_documents(UNITS)
    try:
        assert as_searcher(chroma, "dense").pushes_down(filter) is whole
        where = compile_where(filter)
        if whole:
            found = [] if where is False else chroma.get(where=where)["ids"]
            assert set(found) == passing(filter)
    finally:
        chroma.delete_collection()


def test_asking_what_is_pushed_down_checks_the_filter(store):
    """A filter outside the language is refused by every adapter."""
    for obj in (store, PlainStore([]), ListRetriever(documents=[])):
        with pytest.raises(RequestError, match="unknown operator"):
            as_searcher(obj, "dense").pushes_down({"$nor": []})


@pytest.mark.parametrize("own_id", ["x\0y", f"x{chr(0xD800)}y", "x\ufffdy"])
async def test_a_unit_whose_id_was_cleaned_is_fetched(own_id, search):
    """By the id that the store knows it by; a searcher that did not return it does not vouch for it."""
    store = InMemoryVectorStore(EMBEDDING)
    store.add_documents([Document(id=own_id, page_content="text")])
    searcher = VectorStoreSearcher(store, "dense")
    assert not searcher.vouches_for("x\ufffdy")
    assert ids(await search(searcher, "text", 1)) == ["x\ufffdy"]
    assert searcher.vouches_for("x\ufffdy")
    assert searcher.fetch(["x\ufffdy"])["x\ufffdy"].page_content == "text"
