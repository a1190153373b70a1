"""What a Milvus store does where callers are denied, edits overlap, servers are slow, and writers or makers break off."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from threading import Barrier
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from server_searchers import new_name

from bounded_retrieval import BM25Searcher, MilvusStore
from bounded_retrieval.contracts.time_left import time_left
from bounded_retrieval.errors import BoundedRetrievalError, ConfigurationError, SourceError, StoreError
from bounded_retrieval.retrievers import _milvus_collection, _milvus_statistics
from bounded_retrieval.retrievers._milvus_client import MilvusConnection

OLD = {"kind": "old"}
NOBODY = ({"$not": {}}, {"kind": {"$in": []}}, {"$or": [{"kind": {"$in": []}}]}, {"$and": [OLD, {"$not": {}}]})


def units(numbers: range, text: str = "pump", **metadata: Any) -> list[Document]:
    """Small units, each with a word of its own."""
    return [Document(id=f"u{each}", page_content=f"{text} number{each}", metadata=metadata) for each in numbers]


@pytest.fixture
def store(milvus: Any, embedding: Embeddings) -> Iterator[MilvusStore]:
    """A store of ten units."""
    made = MilvusStore.create(milvus.uri, embedding, collection=new_name())
    made.add(units(range(10), **OLD))
    yield made
    made.close()


@pytest.fixture(scope="module")
def still(milvus: Any, embedding: Embeddings) -> Iterator[MilvusStore]:
    """The same for tests that leave it as it is."""
    made = MilvusStore.create(milvus.uri, embedding, collection=new_name())
    made.add(units(range(10), **OLD))
    yield made
    made.close()


@pytest.fixture
def another(milvus: Any, store: MilvusStore, embedding: Embeddings) -> Iterator[MilvusStore]:
    """The same store as another process has it open."""
    opened = MilvusStore.open(milvus.uri, embedding, collection=place_of(store))
    yield opened
    opened.close()


def place_of(store: MilvusStore) -> str:
    """Its collection's name."""
    return store._connection.collection


def found(store: Any, query: str, narrow: Any = None) -> list[tuple[str, float]]:
    """Ids and scores."""
    return [(row.unit_id, row.score) for row in store.lexical.search(query, 20, narrow)]


def counted(store: MilvusStore) -> dict[str, int]:
    """What stands in the statistics of some rows."""
    return store._statistics._values(["#units", "#length", "#unsettled", "pump", "valv"])


def spoil(
    monkeypatch: pytest.MonkeyPatch, method: str, error: BaseException, *, is_made: bool, suffix: str = ""
) -> None:
    """Let a call of the client on collections of so ending names break off, after it was made or before."""
    call = MilvusConnection.call

    def broken(self: MilvusConnection, name: str, *args: Any, **options: Any) -> Any:
        if name != method or not self.collection.endswith(suffix):
            return call(self, name, *args, **options)
        if is_made:
            call(self, name, *args, **options)
        raise error

    monkeypatch.setattr(MilvusConnection, "call", broken)


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[float]:
    """Let every call take so long, or fail when it may not; the limits that are given to the calls."""
    call, limits = MilvusConnection.call, []

    def slowly(self: MilvusConnection, method: str, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        limit = self.timeout if timeout is None else timeout
        limits.append(limit)
        time.sleep(min(limit, seconds))
        if limit < seconds:
            raise StoreError(f"{self.name}: no answer in time")
        return call(self, method, *args, timeout=timeout, **options)

    monkeypatch.setattr(MilvusConnection, "call", slowly)
    return limits


@pytest.mark.parametrize("narrow", NOBODY, ids=json.dumps)
def test_who_may_see_nothing_learns_nothing_of_the_statistics(still: MilvusStore, narrow: Any) -> None:
    """A filter that no unit passes has the statistics of no units, and asks the server for none."""
    nothing = BM25Searcher.from_documents([]).weigh("pump valve", ["pump", "valve"])
    assert still.lexical.weigh("pump valve", ["pump", "valve"]) != nothing
    assert still.lexical.weigh("pump valve", ["pump", "valve"], narrow) == nothing
    assert still.lexical.score("pump", ["u1"], narrow) == {"u1": 0}
    assert found(still, "pump", narrow) == []


@pytest.mark.parametrize("narrow", [None, {"kind": "new"}])
def test_statistics_that_are_kept_are_not_mixed_with_newer_ones(
    store: MilvusStore, another: MilvusStore, narrow: Any
) -> None:
    """A term asked for later is counted together with the units; the answer is the writer's."""
    store.add([Document(id="first", page_content="gasket alpha", metadata={"kind": "new"})])
    assert found(another, "gasket", narrow)
    store.add(units(range(20, 40), "widget", kind="new"))
    assert found(another, "widget gasket", narrow) == found(store, "widget gasket", narrow)
    assert another.lexical.weigh("widget", ["widget"], narrow) == store.lexical.weigh("widget", ["widget"], narrow)


@pytest.mark.parametrize("narrow", [None, OLD])
def test_removed_units_leave_no_rarity_below_zero(store: MilvusStore, another: MilvusStore, narrow: Any) -> None:
    """A term that was counted before is never held by more units than there are."""
    assert found(another, "pump", narrow)
    store.remove([f"u{each}" for each in range(1, 10)])
    weights = another.lexical.weigh("pump number0", ["pump", "number0"], narrow)
    assert weights == store.lexical.weigh("pump number0", ["pump", "number0"], narrow)
    assert weights.holding == {"pump": 1, "number0": 1}


@pytest.mark.parametrize("narrow", [None, OLD])
def test_a_term_that_nobody_held_is_found_as_soon_as_somebody_does(
    store: MilvusStore, another: MilvusStore, narrow: Any
) -> None:
    """That there is none is not kept."""
    assert found(another, "sprocket", narrow) == []
    store.add([Document(id="new", page_content="sprocket", metadata=OLD)])
    assert [name for name, _ in found(another, "sprocket", narrow)] == ["new"]


def test_counts_taken_while_a_writer_is_at_work_make_sense(store: MilvusStore, another: MilvusStore) -> None:
    """Rows that are written one after the other give no negative rarity."""
    store._statistics._put({"#units": 2, "#length": -5})
    assert another.lexical.weigh("pump", ["pump"]).holding == {"pump": 2}
    assert all(score > 0 for _, score in found(another, "pump"))


def test_what_a_search_read_before_a_change_is_not_kept_after_it(
    store: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that overlaps a change of the same object does not put old counts back."""
    read = store._statistics._read

    def overlapping(*args: Any) -> Any:
        old = read(*args)
        monkeypatch.undo()
        store.remove([f"u{each}" for each in range(1, 10)])
        return old

    monkeypatch.setattr(store._statistics, "_read", overlapping)
    found(store, "pump")
    assert store.lexical.weigh("pump", ["pump"]).holding == {"pump": 1}


@pytest.mark.parametrize("narrow", [None, {"number": {"$gte": 0}}, OLD])
@pytest.mark.parametrize("method", ["search", "score", "weigh"])
@pytest.mark.parametrize("is_declared", [True, False])
def test_all_calls_of_a_search_have_one_limit(
    still: MilvusStore, monkeypatch: pytest.MonkeyPatch, narrow: Any, method: str, is_declared: bool
) -> None:
    """Each has what the others left, of a run's deadline or of the time limit."""
    monkeypatch.setattr(still._connection, "timeout", 30.0 if is_declared else 0.5)
    calls: dict[str, Callable[[], Any]] = {
        "search": lambda: still.lexical.search("pump hums", 3, narrow),
        "score": lambda: still.lexical.score("pump hums", ["u1", "u2"], narrow),
        "weigh": lambda: still.lexical.weigh("pump hums", ["pump"], narrow),
    }
    limits = slow(monkeypatch, 0.12)
    # It ends with an answer or, where its calls take longer than all of them may, with an error.
    with time_left(0.5 if is_declared else None), suppress(StoreError):
        calls[method]()
    assert limits[0] <= 0.5
    assert len(limits) <= 5
    assert all(before - after > 0.1 for before, after in pairwise(limits))


def test_reading_many_units_has_one_limit(still: MilvusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it takes several calls."""
    monkeypatch.setattr(_milvus_collection, "BATCH", 2)
    monkeypatch.setattr(still._connection, "timeout", 0.5)
    limits = slow(monkeypatch, 0.12)
    with pytest.raises(StoreError):
        still.fetch([f"u{each}" for each in range(10)])
    assert 2 <= len(limits) <= 5
    assert all(before - after > 0.1 for before, after in pairwise(limits))


def test_loading_a_collection_is_part_of_the_limit(still: MilvusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load and the call made again have what is left."""
    still._connection.call("release_collection", place_of(still))
    limits = slow(monkeypatch, 0.12)
    with time_left(5.0):
        assert still.dense.search("pump", 2)
    assert len(limits) == 3
    assert all(before - after > 0.1 for before, after in pairwise(limits))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoreError("no answer"), RuntimeError("broken")], ids=type)
@pytest.mark.parametrize("method", ["add", "remove"])
def test_a_change_that_broke_off_is_counted_anew_by_the_next(
    store: MilvusStore, another: MilvusStore, monkeypatch: pytest.MonkeyPatch, error: BaseException, method: str
) -> None:
    """Also where the server took what the caller never heard of."""
    with monkeypatch.context() as broken:
        call, given = ("upsert", units(range(10, 20))) if method == "add" else ("delete", ["u1", "u2"])
        spoil(broken, call, error, is_made=True, suffix=place_of(store))
        with pytest.raises(type(error)):
            getattr(store, method)(given)
    assert counted(store)["#unsettled"] == 1
    another.add([Document(id="more", page_content="valve")])
    held = len(another) - 1
    assert held == (20 if method == "add" else 8)
    assert counted(another) == {"#units": held + 1, "#length": 2 * held + 1, "#unsettled": 0, "pump": held, "valv": 1}


def test_what_is_known_of_a_change_that_broke_off_counts_at_once(store: MilvusStore) -> None:
    """Units before a document that is refused are found, and the error is the document's."""
    bad = Document(id="bad", page_content=" ")
    with pytest.raises(SourceError, match="its text is blank"):
        store.add([*(Document(id=f"v{each}", page_content=f"valve {each}") for each in range(500)), bad])
    assert len(found(store, "valve")) == 20
    assert (counted(store)["#units"], counted(store)["#unsettled"]) == (510, 1)


def test_no_message_shows_a_password(milvus: Any, still: MilvusStore, embedding: Embeddings) -> None:
    """Neither errors nor what is printed of a store have the user and the password of its address."""
    with_password = milvus.uri.replace("http://", "http://root:hunter2@")
    with pytest.raises(BoundedRetrievalError) as absent:
        MilvusStore.open(with_password, embedding, collection="nowhere")
    with pytest.raises(BoundedRetrievalError) as nobody:
        MilvusStore.open("http://root:hunter2@127.0.0.1:1", embedding, timeout_ms=500)
    told = [str(absent.value), str(nobody.value)]
    for bad in (
        "milvus://root:hunter2@localhost",
        "root:hunter2@localhost",
        "http:root:hunter2@a",
        "http://ro/hunter2@",
    ):
        with pytest.raises(BoundedRetrievalError) as refused:
            MilvusStore.open(bad, embedding, timeout_ms=500)
        told.append(str(refused.value))
    opened = MilvusStore.open(with_password, embedding, collection=place_of(still))
    told += [repr(opened), repr(opened.lexical), repr(opened.dense), opened._connection.of("other").name]
    opened.close()
    assert not [text for text in told if "hunter2" in text or "root" in text or len(text.splitlines()) != 1]
    assert all("127.0.0.1" in text for text in told[:2])


def test_what_the_server_says_of_a_password_is_not_passed_on(
    milvus: Any, still: MilvusStore, embedding: Embeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words of the server and of its client are shown without them too."""
    from pymilvus.exceptions import MilvusException

    with_password = milvus.uri.replace("http://", "http://root:hunter2@")
    opened = MilvusStore.open(with_password, embedding, collection=place_of(still))

    def refuse(*_: Any, **__: Any) -> None:
        raise MilvusException(message=f"no root:hunter2 at {with_password}{' so' * 99}")

    monkeypatch.setattr(opened._connection._live(), "query", refuse)
    with pytest.raises(StoreError, match="refused by the server") as caught:
        len(opened)
    assert "hunter2" not in str(caught.value)
    opened.close()


class Kind(str, enum.Enum):  # noqa: UP042 - a StrEnum is written as its value
    """A kind as applications have them."""

    KIND = "kind"
    OLD = "old"


class Year(int, enum.Enum):
    """A number as applications have them."""

    THIS = 2026


@pytest.mark.parametrize(
    "narrow",
    [
        {"kind": Kind.OLD},
        {Kind.KIND: Kind.OLD},
        {"kind": {"$in": [Kind.OLD]}},
        {"kind": {"$gte": Kind.OLD}},
        {Kind.KIND: {"$gte": Kind.OLD}},
        {"$not": {"kind": {"$ne": Kind.OLD}}},
        {"year": Year.THIS},
        {"year": {"$lte": Year.THIS}},
    ],
    ids=str,
)
def test_members_of_enumerations_equal_their_values(store: MilvusStore, narrow: Any) -> None:
    """In a filter, as a field or as a value, wherever it is asked."""
    held = [*units(range(3), **OLD, year=2026), *units(range(3, 6), kind="n", year=2027)]
    store.remove(store.ids())
    store.add(held)
    plain = BM25Searcher.from_documents(held)
    expected = [(row.unit_id, row.score) for row in plain.search("pump", 20, narrow)]
    assert len(expected) == 3
    assert found(store, "pump", narrow) == expected
    assert {row.unit_id for row in store.dense.search("pump", 20, narrow)} == {name for name, _ in expected}


def test_statistics_can_be_read_while_they_are_counted_anew(
    store: MilvusStore, another: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are overwritten, and those of terms that are gone leave at the end; at no time is there nothing."""
    before, seen = found(another, "pump"), []
    store._statistics._put({"#unsettled": 1, "valv": 7})
    call = MilvusConnection.call

    def watched(self: MilvusConnection, method: str, *args: Any, **options: Any) -> Any:
        answer = call(self, method, *args, **options)
        if method in ("upsert", "delete", "drop_collection", "create_collection"):
            monkeypatch.setattr(MilvusConnection, "call", call)
            another._statistics._kept.clear()
            seen.append(found(another, "pump"))
            monkeypatch.setattr(MilvusConnection, "call", watched)
        return answer

    monkeypatch.setattr(_milvus_statistics, "_BATCH", 4)
    monkeypatch.setattr(MilvusConnection, "call", watched)
    store.remove(["nobody"])
    monkeypatch.undo()
    assert len(seen) > 3
    assert all(answer == before for answer in seen)
    assert "valv" not in counted(store)


@pytest.mark.parametrize("is_opened", [True, False])
def test_statistics_that_are_gone_are_made_anew(
    milvus: Any, store: MilvusStore, embedding: Embeddings, is_opened: bool
) -> None:
    """Whoever opens the store next counts them, also where the neighbours are gone too."""
    before = counted(store)
    store._statistics.drop()
    store._neighbours.drop()
    make: Any = MilvusStore.open if is_opened else MilvusStore.create
    again = make(milvus.uri, embedding, collection=place_of(store))
    assert counted(again) == before
    again.use_neighbours()
    assert found(again, "pump") == found(store, "pump")
    again.close()


def test_statistics_left_by_a_store_that_was_dropped_do_not_count(
    milvus: Any, store: MilvusStore, embedding: Embeddings
) -> None:
    """A drop that broke off after the units leaves them; a store of the same name counts its own."""
    store._connection.call("drop_collection", place_of(store))
    again = MilvusStore.create(milvus.uri, embedding, collection=place_of(store))
    again.add(units(range(3)))
    assert counted(again) == {"#units": 3, "#length": 6, "#unsettled": 0, "pump": 3}
    again.close()


@pytest.mark.parametrize(
    "step",
    [
        ("create_collection", "_neighbours"),
        ("create_collection", "_terms"),
        ("create_index", "_terms"),
        ("create_collection", "x1"),
        ("create_index", "x1"),
        ("load_collection", "x1"),
    ],
    ids="".join,
)
@pytest.mark.parametrize("is_made", [True, False])
def test_making_a_store_that_broke_off_is_completed(
    milvus: Any, embedding: Embeddings, monkeypatch: pytest.MonkeyPatch, step: tuple[str, str], is_made: bool
) -> None:
    """At any of its steps; what is made again is a whole store."""
    place = f"{new_name()}x1"
    with monkeypatch.context() as broken:
        spoil(broken, step[0], KeyboardInterrupt(), is_made=is_made, suffix=step[1])
        with pytest.raises(KeyboardInterrupt):
            MilvusStore.create(milvus.uri, embedding, collection=place)
    made = MilvusStore.create(milvus.uri, embedding, collection=place)
    made.add(units(range(3)))
    assert len(found(made, "pump")) == len(made.dense.search("pump", 5)) == 3
    made.drop()
    made.close()


def test_several_may_make_a_store_at_once(milvus: Any, embedding: Embeddings) -> None:
    """What another process has made meanwhile is taken for done."""
    barrier = Barrier(4)

    def make(place: str) -> int:
        barrier.wait()
        made = MilvusStore.create(milvus.uri, embedding, collection=place)
        held = len(made)
        made.close()
        return held

    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(make, [new_name()] * 4)) == [0] * 4


@pytest.mark.parametrize("beside", ["terms", "neighbours"])
def test_a_store_takes_no_other_ones_units_for_what_is_beside_it(
    milvus: Any, embedding: Embeddings, beside: str
) -> None:
    """A name whose statistics or neighbours would stand in another store is refused, and that store is left alone."""
    place = new_name()
    other = MilvusStore.create(milvus.uri, embedding, collection=f"{place}_{beside}")
    other.add(units(range(3)))
    with pytest.raises(ConfigurationError, match=rf"'{place}_{beside}': is there already and holds something else"):
        MilvusStore.create(milvus.uri, embedding, collection=place)
    assert place not in other._connection.call("list_collections")
    assert len(other.ids()) == 3
    other.close()


def test_a_store_is_not_made_where_another_one_keeps_something(
    milvus: Any, still: MilvusStore, embedding: Embeddings
) -> None:
    """The other way round it is refused, too, and leaves nothing."""
    there = set(still._connection.call("list_collections"))
    with pytest.raises(ConfigurationError, match="is there already and holds something else"):
        MilvusStore.create(milvus.uri, embedding, collection=f"{place_of(still)}_terms")
    assert set(still._connection.call("list_collections")) == there
