"""Faults that the adapters of PostgreSQL and Chroma once had: bounds, secrets, names, and what happens at one time."""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from server_searchers import filled, new_name

from bounded_retrieval.contracts.time_left import time_left
from bounded_retrieval.errors import BoundedRetrievalError, ConfigurationError, StoreError
from bounded_retrieval.retrievers import _pgvector_pool, _pgvector_sql
from bounded_retrieval.retrievers import pgvector as module
from bounded_retrieval.retrievers.chroma_server import ChromaServerSearcher
from bounded_retrieval.retrievers.pgvector import PgVectorSearcher


class Kind(str, enum.Enum):  # noqa: UP042 - this one writes itself as Kind.NOTE
    """Whose members are texts."""

    NOTE = "note"


def units(count: int) -> list[Document]:
    """Small units."""
    return [
        Document(id=f"u{n}", page_content=f"pump number {n}", metadata={"n": n, "kind": "note"}) for n in range(count)
    ]


@pytest.fixture
def store(pgvector: Any, embedding: Embeddings) -> Iterator[Any]:
    """A table of ten units."""
    made = filled("pgvector", pgvector, units(10), embedding)
    yield made
    made.close()


def together(*works: Callable[[], Any]) -> list[BaseException]:
    """What went wrong where all of it was begun at one time."""
    start = Barrier(len(works))

    def begin(work: Callable[[], Any]) -> None:
        start.wait()
        work()

    with ThreadPoolExecutor(len(works)) as pool:
        begun = [pool.submit(begin, work) for work in works]
        return [error for each in begun if (error := each.exception()) is not None]


def test_the_index_is_not_all_there_is(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk that ends early, as it does among removed units, is followed by a comparison of all, without a filter too."""
    monkeypatch.setattr(module, "EXACT_UNITS", 400)
    store.add(units(450))
    early = {"hnsw.ef_search": "2", "hnsw.iterative_scan": "off", "enable_seqscan": "off", "enable_sort": "off"}
    monkeypatch.setattr(module, "_SETTINGS", early)
    monkeypatch.setattr(module, "_EXACTLY", module._EXACTLY | {"enable_seqscan": "on", "enable_sort": "on"})
    assert len(store.search("pump number 7", 6)) == 6


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://bob:hun/ter2@127.0.0.1:1/db",
        "postgresql://bob:hun@ter2@127.0.0.1:1/db",
        "postgresql://bob:hunter%2@127.0.0.1:1/db",
        "postgresql://bob:ter2/db",
        "postgresql://bob:hunter\ud8002@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=bob&password=x&foo=ter2",
        "host=127.0.0.1 port=1 user=bob password=hun ter2 dbname=db",
        "dbname=postgresql://bob:ter2@127.0.0.1:1/db",
    ],
)
def test_an_address_that_is_misread_is_not_repeated(url: str, embedding: Embeddings) -> None:
    """Neither in words of this package nor in libpq's."""
    with pytest.raises(ConfigurationError, match="url: no address of a PostgreSQL server") as caught:
        PgVectorSearcher.open(url, embedding)
    assert not any(secret in str(caught.value) for secret in ("bob", "ter2", "hun"))


def test_a_user_and_a_password_are_not_repeated(pgvector: Any, embedding: Embeddings) -> None:
    """The server names the user that it does not know; other words that hold it stay."""
    with pytest.raises(StoreError, match=r'role "\*\*\*" does not exist') as caught:
        PgVectorSearcher.open(pgvector.url.replace("tests@", "secretuser:hunter2@"), embedding)
    assert "secretuser" not in str(caught.value)
    assert _pgvector_pool.without("user rob: probe 'p$1'", ["rob", "p$1", " "]) == "user ***: probe '***'"


@pytest.mark.parametrize(
    ("host", "port", "client"),
    [
        ("bob:hunter2@127.0.0.1", 1, {}),
        ("http://bob:hunter2@127.0.0.1", 1, {}),
        ("bob:hun/ter2@127.0.0.1", 1, {}),
        ("127.0.0.1", "abc", {"chroma_server_headers": {"Authorization": "Bearer hunter2"}}),
        ("127.0.0.1", 1, {"chroma_server_headers": "Bearer hunter2"}),
    ],
)
def test_chroma_secrets_are_not_repeated(host: str, port: Any, client: dict[str, Any], embedding: Embeddings) -> None:
    """Nor does a setting that is not valid raise an error of somebody else's, in several lines."""
    pytest.importorskip("chromadb")
    with pytest.raises(BoundedRetrievalError, match=r"127\.0\.0\.1") as caught:
        ChromaServerSearcher.connect(host, port, embedding=embedding, timeout_ms=2_000, client=client)
    assert not any(secret in str(caught.value) for secret in ("bob", "ter2", "hun", "Bearer"))
    assert len(str(caught.value).splitlines()) == 1


def test_connections_are_bounded(store: Any, pgvector: Any) -> None:
    """More threads than the server takes all find something; few connections stay when they are done."""
    import psycopg

    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded-retrieval'"
    with psycopg.connect(pgvector.url, autocommit=True) as connection:

        def counted() -> int:
            return int(connection.execute(count).fetchone()[0])  # type: ignore[index]

        others = counted()
        assert together(*[lambda: store.search("pump", 2)] * 120) == []
        assert len(store._connections._idle[os.getpid()]) <= _pgvector_pool.MOST_IDLE
        assert counted() <= others + _pgvector_pool.MOST_CALLS + _pgvector_pool.MOST_IDLE


def test_a_call_waits_for_its_turn_no_longer_than_it_may_take(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line then, and afterwards there is a turn again, after errors too."""
    monkeypatch.setattr(_pgvector_pool, "MOST_CALLS", 1)
    store._connections._places.clear()
    with pytest.raises(StoreError, match=r": no answer within 200 ms$"):
        store._connections.run(lambda _: store._connections.run(print, 0.2))
    for _ in range(3):
        with pytest.raises(StoreError, match="refused by the server"):
            store._connections.run(lambda connection: connection.execute("nonsense"))
    assert len(store) == 10


def test_writers_do_not_wait_for_each_other(store: Any) -> None:
    """However they order their units, adding and removing."""
    many = units(400)
    ids = [unit.id for unit in many]

    def repeat(work: Callable[[Any], Any], given: list[Any]) -> Callable[[], None]:
        return lambda: [work(given) for _ in range(12)] and None

    works = [repeat(store.add, many), repeat(store.add, many[::-1]), repeat(store.add, many[200:] + many[:200])]
    assert together(*works, repeat(store.remove, ids), repeat(store.remove, ids[::-1])) == []
    assert "ORDER BY id" in _pgvector_sql.REMOVE


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({"n": {"$gt": np.float64(7.5)}}, 2),
        ({"kind": {"$gte": Kind.NOTE}}, 10),
        ({"kind": {"$gt": "\ud800"}}, 0),
        ({"\ud800": {"$gt": "a"}}, 0),
        ({"$not": {"\ud800": {"$gt": 1}}}, 10),
    ],
)
def test_odd_bounds_and_fields_are_compared(store: Any, wanted: Any, count: int) -> None:
    """Numbers and texts of other types by their value; what no unit can hold is found in none."""
    assert len(store.search("pump", 20, wanted)) == count


@pytest.mark.parametrize("table", ["user", "order", "arriving", "Select"])
def test_a_table_may_have_any_name(pgvector: Any, embedding: Embeddings, table: str) -> None:
    """Words of SQL and of this package too."""
    store = PgVectorSearcher.create(pgvector.url, embedding, table=table)
    store.add(units(3))
    store.remove(["u1"])
    assert (len(store), store.ids(), len(store.search("pump", 5))) == (2, ["u0", "u2"], 2)
    assert store.fetch(["u2"]).keys() == store.score("pump", ["u2"]).keys() == {"u2"}
    store.drop()
    store.close()


def test_one_table_is_made_by_several_at_one_time(pgvector: Any, embedding: Embeddings) -> None:
    """The first one makes it, the others find it."""
    for _ in range(4):
        place = new_name()
        assert together(*[lambda: PgVectorSearcher.create(pgvector.url, embedding, table=place).close()] * 6) == []  # noqa: B023


def test_a_search_waits_for_a_writer_no_longer_than_the_deadline(chroma: Any, embedding: Embeddings) -> None:
    """A run's deadline holds also where no request was made yet."""
    store = filled("chroma", chroma, units(3), embedding)
    written, searched = threading.Event(), threading.Event()

    def write() -> None:
        with store._use.writing():
            written.set()
            searched.wait(10)

    writer = threading.Thread(target=write)
    writer.start()
    written.wait(10)
    for work in (lambda: store.search("pump", 2), lambda: store.score("pump", ["u1"])):
        with time_left(0.1), pytest.raises(StoreError, match=r"no answer within (100|9\d) ms, a change is under way$"):
            work()
    searched.set()
    writer.join()
    with time_left(5):
        assert len(store.search("pump", 2)) == 2
    store.close()
