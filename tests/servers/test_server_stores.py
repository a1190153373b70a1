"""What each server's store does besides searching: it is filled and emptied, says what is wrong, and survives servers."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from server_searchers import BACKENDS, Backend, dense_of, filled, new_name
from started_servers import Server
from waiting import free_port

from bounded_retrieval import create_bounded_retrieval
from bounded_retrieval.contracts.time_left import seconds_left, time_left, unhurried
from bounded_retrieval.errors import (
    BoundedRetrievalError,
    ConfigurationError,
    EmbeddingMismatchError,
    ForkedError,
    SourceError,
    StoreError,
    StoreMissingError,
    StoreVersionError,
)
from bounded_retrieval.retrievers.milvus import MilvusStore
from bounded_retrieval.retrievers.pgvector import PgVectorSearcher

NAMES = tuple(BACKENDS)


def unit(number: int, text: str = "", **metadata: Any) -> Document:
    """A small unit."""
    return Document(id=f"u{number}", page_content=text or f"pump number {number} hums", metadata=metadata)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """A backend."""
    return str(request.param)


@pytest.fixture
def server(name: str, request: pytest.FixtureRequest) -> Server:
    """Its server."""
    running: Server = request.getfixturevalue(BACKENDS[name].fixture)
    return running


@pytest.fixture
def store(name: str, server: Server, embedding: Embeddings) -> Iterator[Any]:
    """A store of ten units."""
    made = filled(name, server, [unit(number) for number in range(10)], embedding)
    yield made
    made.close()


def channels(store: Any) -> list[Any]:
    """The searchers of a store."""
    return [store.lexical, store.dense] if isinstance(store, MilvusStore) else [store]


def test_units_are_added_replaced_and_removed(store: Any) -> None:
    """Adding twice changes nothing, a new text takes the place of the old one, and unknown ids are passed over."""
    assert store.ids() == sorted(f"u{number}" for number in range(10))
    seen: list[tuple[int, int]] = []
    store.add([unit(number) for number in range(10)], lambda done, total: seen.append((done, total)))
    assert (len(store), seen[-1]) == (10, (10, 10))
    store.add(iter([unit(3, "Entirely about valves.", year=2024), unit(11)]))
    assert len(store) == 11
    assert store.fetch(["u3"])["u3"] == unit(3, "Entirely about valves.", year=2024)
    for searcher in channels(store):
        assert searcher.search("valves", 1)[0].unit_id == "u3"
        assert searcher.search("valves", 3, {"year": 2024})[0].unit_id == "u3"
    store.remove(["u3", "nobody", ""])
    assert len(store) == 10
    assert store.fetch(["u3", "u4", "u4"]).keys() == {"u4"}
    for searcher in channels(store):
        assert "u3" not in {row.unit_id for row in searcher.search("valves pump", 20)}


def test_what_a_bad_document_leaves_behind(store: Any) -> None:
    """It is named, and the store goes on answering as before."""
    with pytest.raises(SourceError, match=r"unit 'u5'.*its text is blank"):
        store.add([unit(5, " ")])
    assert len(store) == 10
    assert [searcher.search("pump number 5", 1)[0].unit_id for searcher in channels(store)]


def test_metadata_comes_back_as_it_was(store: Any) -> None:
    """Types, nesting, other scripts and odd characters included."""
    metadata = {
        "title": "T",
        "float": 1.0,
        "large": 1e300,
        "whole": 2**62,
        "yes": True,
        "none": None,
        "list": [1, "a", None],
        "deep": {"a": [{"b": 1}]},
        "ключ": "значение",
        "quote": "a \"b\" \\ 'c' \n {d}",
    }
    store.add([unit(20, "Text 装置 \\ \t 'x' \"y\"\nline", **metadata)])
    held = store.fetch(["u20"])["u20"]
    assert held == unit(20, "Text 装置 \\ \t 'x' \"y\"\nline", **metadata)
    assert {key: type(value) for key, value in held.metadata.items()} == {
        key: type(value) for key, value in metadata.items()
    }


def test_ids_with_odd_characters_are_found_replaced_and_removed(store: Any) -> None:
    """Quotes, backslashes, line breaks and braces in an id are characters like others."""
    ids = ["it's", 'a "b"', "a\\b", "a\nb\rc", "tab\there", "é{x}", "100%", "$1"]
    before = len(store)
    for text in ("The oddest valve.", "The oddest pump."):
        store.add([Document(id=unit_id, page_content=f"{text} {number}") for number, unit_id in enumerate(ids)])
        assert {unit_id: held.page_content for unit_id, held in store.fetch(ids).items()} == {
            unit_id: f"{text} {number}" for number, unit_id in enumerate(ids)
        }
    for searcher in channels(store):
        assert searcher.score("oddest pump", ids).keys() == set(ids)
    store.remove(ids)
    assert (store.fetch(ids), len(store)) == ({}, before)


def test_scores_are_given_for_observed_units_only(store: Any) -> None:
    """Each is what a search gives; an id that is not there has none."""
    for searcher in channels(store):
        found = {row.unit_id: row.score for row in searcher.search("pump number 7", 10)}
        scores = searcher.score("pump number 7", ["u7", "u8", "nobody"])
        assert scores == {"u7": found["u7"], "u8": found["u8"]}
        assert searcher.score("pump", []) == {}
        assert searcher.search("pump", 0) == []


def test_threads_may_search_at_once(store: Any) -> None:
    """Twenty calls in eight threads give what one gives alone."""
    for searcher in channels(store):
        alone = searcher.search("pump number 7", 3)
        with ThreadPoolExecutor(8) as pool:
            assert all(found == alone for found in pool.map(searcher.search, ["pump number 7"] * 20, [3] * 20))


def test_a_restarted_server_is_found_again(server: Server, store: Any) -> None:
    """Between two searches, without a failing one; and after one that failed while it was down."""
    before = [searcher.search("pump number 7", 3) for searcher in channels(store)]
    server.stop()
    server.start()
    assert [searcher.search("pump number 7", 3) for searcher in channels(store)] == before
    server.stop()
    for searcher in channels(store):
        with pytest.raises(StoreError, match=rf"127\.0\.0\.1:{server.port}.*: no \w+ server answers there \(.+\)$"):
            searcher.search("pump number 7", 3)
    server.start()
    assert [searcher.search("pump number 7", 3) for searcher in channels(store)] == before
    store.add([unit(30)])
    assert len(store) == 11


def test_a_hanging_server_takes_no_longer_than_the_limit(
    name: str, server: Server, embedding: Embeddings, capfd: Any
) -> None:
    """The call's own limit, or what a deadline leaves; a run ends then, and what hangs is not waited for."""
    place = new_name()
    made = BACKENDS[name].connect(server, place, embedding, create=True)
    made.add([unit(number) for number in range(3)])
    made.close()
    quick = BACKENDS[name].connect(server, place, embedding, create=False, timeout_ms=700)
    searcher = dense_of(quick)
    assert len(searcher.search("pump", 2)) == 2
    server.pause()
    try:
        with pytest.raises(StoreError, match=r": no answer within 700 ms$"):
            searcher.search("pump", 2)
        with time_left(0.2), pytest.raises(StoreError, match=r": no answer within (200|19\d) ms$"):
            searcher.search("hum", 2)
        with time_left(0.0), unhurried(), pytest.raises(StoreError, match=r": no answer within 700 ms$"):
            searcher.fetch(["u1"])
        with time_left(0.0), pytest.raises(StoreError, match=r": no answer within 700 ms$"):
            searcher.fetch(["u1"])
        graph = create_bounded_retrieval(None, searcher).compile()
        request = {"policy": "fixed_dense", "budget": {"deadline_ms": 300}}
        answer = graph.invoke({"query": "which pump?", "request": request})
        assert answer["stop_reason"] == "deadline_exceeded"
        answer = asyncio.run(graph.ainvoke({"query": "which other pump?", "request": request}))
        assert answer["stop_reason"] == "deadline_exceeded"
    finally:
        server.resume()
    assert len(searcher.search("pump", 2)) == 2
    quick.close()
    assert capfd.readouterr().err == ""


def test_a_place_that_is_not_there_is_named(name: str, server: Server, embedding: Embeddings) -> None:
    """Opening it is an error, and so is searching one that was deleted meanwhile."""
    with pytest.raises(StoreMissingError, match=r"'nowhere'.*not there") as caught:
        BACKENDS[name].connect(server, "nowhere", embedding, create=False)
    assert len(str(caught.value).splitlines()) == 1
    if name != "chroma":
        made = filled(name, server, [unit(1)], embedding)
        made.drop()
        with pytest.raises(StoreMissingError, match="not there"):
            dense_of(made).search("pump", 1)
        made.close()


def test_a_server_that_is_not_there_is_named(name: str, server: Server, embedding: Embeddings) -> None:
    """In one line, with its address."""
    port, server.port = server.port, free_port()
    try:
        with pytest.raises(StoreError, match=rf"127\.0\.0\.1:{server.port}.*no \w+ server answers there") as caught:
            BACKENDS[name].connect(server, "units", embedding, create=False, timeout_ms=3_000)
    finally:
        server.port = port
    assert len(str(caught.value).splitlines()) == 1


class Renamed(Embeddings):
    """Another embedding's vectors under a name."""

    def __init__(self, name: str, inner: Embeddings) -> None:
        self.embedding_id = name
        self._inner = inner

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._inner.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        return self._inner.embed_query(text)


def _search_once(backend: Backend, server: Server, place: str, embedding: Embeddings) -> None:
    # Chroma tells the number of dimensions when it is searched.
    with closing(backend.connect(server, place, embedding, create=False)) as store:
        dense_of(store).search("pump", 1)


def test_another_embedding_is_refused(name: str, server: Server, embedding: Embeddings) -> None:
    """By the name that is recorded, or by its dimensions; the built-in one need not be given."""
    place = new_name()
    BACKENDS[name].connect(server, place, embedding, create=True).close()
    opened = BACKENDS[name].connect(server, place, None, create=False)
    assert dense_of(opened).embedding.embedding_id == embedding.embedding_id  # type: ignore[attr-defined]
    opened.add([unit(1)])
    opened.close()
    other = Renamed("another", embedding)
    with pytest.raises(EmbeddingMismatchError, match=r"built with embedding 'wordllama-256' \(got 'another'\)"):
        BACKENDS[name].connect(server, place, other, create=False)
    short = Renamed("wordllama-256", DeterministicFakeEmbedding(size=7))
    with pytest.raises(EmbeddingMismatchError, match=r"holds vectors of 256 dimensions, .* gives 7"):
        _search_once(BACKENDS[name], server, place, short)
    unknown = new_name()
    BACKENDS[name].connect(server, unknown, other, create=True).close()
    with pytest.raises(EmbeddingMismatchError, match="give its embedding"):
        BACKENDS[name].connect(server, unknown, None, create=False)


def test_a_closed_store_says_so(store: Any) -> None:
    """Closing may be repeated; a search is an error then."""
    assert "wordllama" in repr(store) or "units" in repr(store)
    store.close()
    store.close()
    for searcher in channels(store):
        with pytest.raises(StoreError, match="closed"):
            searcher.search("pump", 1)


@pytest.mark.parametrize("timeout_ms", [0, -1, float("nan"), 600_001])
def test_a_time_limit_that_is_none_is_refused(
    name: str, server: Server, embedding: Embeddings, timeout_ms: float
) -> None:
    """The bound and the value are named."""
    with pytest.raises(ConfigurationError, match=r"timeout_ms: expected above 0 and at most 600000 \(got"):
        BACKENDS[name].connect(server, "units", embedding, create=False, timeout_ms=timeout_ms)


@pytest.mark.parametrize("name", ["milvus", "chroma"])
def test_a_forked_process_is_refused(store: Any) -> None:
    """At once and by name, where it would hang."""
    assert isinstance(_in_a_fork(lambda: dense_of(store).search("pump", 1)), ForkedError)
    assert dense_of(store).search("pump", 1)


@pytest.mark.parametrize("name", ["pgvector"])
def test_a_forked_process_opens_its_own_connection(store: Any) -> None:
    """It finds what its parent finds, and the parent's connection survives its end."""
    before = store.search("pump number 7", 3)
    found = _in_a_fork(lambda: [row.unit_id for row in store.search("pump number 7", 3)])
    assert found == [row.unit_id for row in before]
    assert store.search("pump number 7", 3) == before


def _in_a_fork(work: Any) -> Any:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - the parent looks at it
                result = error
            os.write(writing, pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer)


def test_milvus_statistics_survive_a_writer_that_died(milvus: Any, embedding: Embeddings) -> None:
    """What was half done is counted anew by the next change; scores are then those of a fresh store."""
    died = filled("milvus", milvus, [unit(number) for number in range(5)], embedding)
    died._statistics._put({"#unsettled": 1, "pump": 77, "#units": 99})
    died.add([unit(7, "one more pump")])
    fresh = filled("milvus", milvus, [*(unit(number) for number in range(5)), unit(7, "one more pump")], embedding)
    shape = [[(row.unit_id, row.score) for row in each.lexical.search("pump 3", 6)] for each in (died, fresh)]
    assert shape[0] == shape[1] != []
    died.close()
    fresh.close()


def test_milvus_names_what_it_cannot_hold(milvus: Any, embedding: Embeddings) -> None:
    """A text or an id that is too long, too many values, statistics that there are not, terms of another version."""
    store = MilvusStore.create(milvus.uri, embedding, collection=new_name())
    for bad, message in (
        (unit(1, "é" * 40_000), r"unit 'u1': its text: Milvus holds at most 65535 bytes \(got 80000\)"),
        (Document(id="x" * 600, page_content="a"), r"its id: Milvus holds at most 512 bytes \(got 600\)"),
        (unit(1, "a", f=list(range(5_000))), r"its metadata: Milvus holds at most 4096 values \(got"),
    ):
        with pytest.raises(SourceError, match=message):
            store.add([bad])
    assert len(store) == 0
    assert store.lexical.search("pump", 3) == []
    with pytest.raises(ConfigurationError, match=r"statistics: expected 'filtered' or 'corpus' \(got 'all'\)"):
        MilvusStore.open(milvus.uri, embedding, collection=store._connection.collection, statistics="all")
    store._connection.on_collection("alter_collection_properties", properties={"bounded_retrieval.terms": "old"})
    with pytest.raises(StoreVersionError, match=r"holds terms 'old', expected 'unicode-1"):
        MilvusStore.open(milvus.uri, embedding, collection=store._connection.collection)
    store.close()
    with pytest.raises(ConfigurationError, match=r"uri: expected an address as in .* \(got 'localhost'\)"):
        MilvusStore.open("localhost", embedding)
    with pytest.raises(ConfigurationError, match=r"collection: expected at most 200 letters.* \(got 'a-b'\)"):
        MilvusStore.open(milvus.uri, embedding, collection="a-b")


def test_milvus_corpus_statistics_are_those_of_all_units(milvus: Any, embedding: Embeddings) -> None:
    """A filter then changes no score, as in the embedded index."""
    held = [unit(number, year=number % 2) for number in range(10)]
    store = MilvusStore.create(milvus.uri, embedding, collection=new_name(), statistics="corpus")
    store.add(held)
    everyone = {"year": {"$in": [0, 1]}}  # without a filter, neighbours count
    scores = {row.unit_id: row.score for row in store.lexical.search("pump 3", 10, everyone)}
    found = store.lexical.search("pump 3", 10, {"year": 1})
    assert {row.unit_id: row.score for row in found} == {f"u{odd}": scores[f"u{odd}"] for odd in range(1, 10, 2)}
    store.close()


def test_pgvector_searches_exactly_and_by_its_index(
    pgvector: Any, embedding: Embeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit there is an index; both ways find the same, under a filter that leaves few units too."""
    from bounded_retrieval.retrievers import pgvector as module

    monkeypatch.setattr(module, "EXACT_UNITS", 400)
    held = [unit(number, rare=number % 100 == 0) for number in range(399)]
    store = filled("pgvector", pgvector, held, embedding)
    exact = [store.search("pump number 7", 5, wanted) for wanted in (None, {"rare": True})]
    assert store.index() is False
    store.add([unit(number, "a valve", rare=False) for number in range(400, 420)])
    assert store.index() is True
    assert [store.search("pump number 7", 5, wanted) for wanted in (None, {"rare": True})] == exact
    store.close()


def test_pgvector_names_what_it_cannot_take(pgvector: Any, embedding: Embeddings) -> None:
    """A table's name, an address, an id that is too long, a table of somebody else."""
    with pytest.raises(ConfigurationError, match=r"table: expected at most 48 letters.* \(got 'units; drop'\)"):
        PgVectorSearcher.create(pgvector.url, embedding, table="units; drop")
    with pytest.raises(ConfigurationError, match="url: no address of a PostgreSQL server"):
        PgVectorSearcher.open("nonsense=1", embedding)
    store = PgVectorSearcher.create(pgvector.url, embedding, table=new_name())
    with pytest.raises(SourceError, match=r"its id: PostgreSQL holds at most 2000 bytes \(got 3000\)"):
        store.add([Document(id="x" * 3_000, page_content="a")])
    store._connections.run(lambda connection: connection.execute("CREATE TABLE IF NOT EXISTS foreigner (id int)"))
    with pytest.raises(StoreVersionError, match="its comment does not say that this version made it"):
        PgVectorSearcher.open(pgvector.url, embedding, table="foreigner")
    assert "password" not in repr(store)
    store.close()


def test_a_deadline_is_passed_on_to_threads_and_never_prolonged() -> None:
    """What is declared inside is at most what was declared around it; outside there is none."""
    assert seconds_left() is None
    with time_left(5), time_left(60):
        left = seconds_left()
        assert left is not None
        assert left <= 5
        with time_left(None):
            assert (seconds_left() or 9) <= 5
        with unhurried():
            assert seconds_left() is None
        found: list[float | None] = []
        asyncio.run(asyncio.to_thread(lambda: found.append(seconds_left())))
        assert found[0] is not None
    thread = threading.Thread(target=lambda: found.append(seconds_left()))
    thread.start()
    thread.join()
    assert found[1] is None


def test_errors_of_servers_are_this_packages(name: str, server: Server, embedding: Embeddings) -> None:
    """A name that the server does not take is refused in its words, in one line."""
    with pytest.raises(BoundedRetrievalError) as caught:
        BACKENDS[name].connect(server, "no name\nat all!", embedding, create=True)
    assert len(str(caught.value).splitlines()) == 1
