"""Query vectors: kept, embedded once, in common calls where the embedding has them, and nobody left waiting."""

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.retrievers import query_vectors
from bounded_retrieval.retrievers.query_vectors import KEPT_QUERIES, LARGEST_BATCH, EmbedsQueries, QueryVectors


class Numbers(Embeddings):
    """Texts are numbers; a vector is the number and its square. Holds calls back until ``gate`` is set."""

    def __init__(self):
        self.calls = []
        self.gate = threading.Event()
        self.gate.set()
        self.ends_thread = False

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        self.calls.append(text)
        self.wait()
        if self.ends_thread and text == "1":
            self.ends_thread = False
            raise SystemExit
        return vector_of(text)

    def wait(self):
        assert self.gate.wait(30)


class Together(Numbers):
    """The same, with one call for many texts."""

    def embed_queries(self, texts):
        self.calls.append(tuple(texts))
        self.wait()
        return [vector_of(text) for text in texts]


def vector_of(text):
    """What `Numbers` makes of a text."""
    return [float(text), float(text) ** 2]


def until(condition):
    """Wait for something that other threads bring about."""
    for _ in range(3_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("did not come about in 30 seconds")


def waiting(vectors):
    """Texts waited for, and how many ask for them in all."""
    desk = vectors._desks.get()
    with desk.changed:
        return sum(wanted.askers for wanted in desk._wanted.values())


@pytest.fixture
def pool():
    """More threads than any test keeps waiting."""
    with ThreadPoolExecutor(2 * LARGEST_BATCH) as made:
        yield made


def begin(pool, vectors, texts):
    """Ask for texts one after another, each in its own thread, none before the one before is waiting."""
    started = []
    for text in texts:
        before = waiting(vectors)
        started.append(pool.submit(vectors.vector, text))
        until(lambda before=before: waiting(vectors) == before + 1)
    return started


@pytest.mark.parametrize("make", [Numbers, Together])
def test_recent_vectors_are_kept_and_older_ones_let_go(make):
    """The last 64 texts asked for cost one call each, one more lets the longest unused go, and `forget` all."""
    embedding = make()
    vectors = QueryVectors(embedding)
    texts = [str(number) for number in range(KEPT_QUERIES)]
    given = [vectors.vector(text) for text in [*texts, *texts]]
    assert embedding.calls == texts
    assert given[0].dtype == np.float32
    assert not given[0].flags.writeable
    assert [row.tolist() for row in given] == [vector_of(text) for text in [*texts, *texts]]
    vectors.vector("0")
    vectors.vector("64")
    vectors.vector("0")
    vectors.vector("1")
    assert embedding.calls[KEPT_QUERIES:] == ["64", "1"]
    vectors.forget()
    vectors.vector("1")
    assert embedding.calls[KEPT_QUERIES:] == ["64", "1", "1"]


@pytest.mark.parametrize("make", [Numbers, Together])
def test_one_text_asked_for_at_once_is_embedded_once(make, pool):
    """Sixteen threads that want one text share one call and one vector."""
    embedding = make()
    embedding.gate.clear()
    vectors = QueryVectors(embedding)
    asked = begin(pool, vectors, ["7"] * 16)
    embedding.gate.set()
    assert len({id(each.result(30)) for each in asked}) == 1
    assert embedding.calls == ["7"]
    assert waiting(vectors) == 0


def test_texts_that_arrive_during_a_call_are_embedded_in_the_next_one(pool):
    """One call at a time: the first text goes alone, those that came meanwhile together, in the order of arrival."""
    embedding = Together()
    embedding.gate.clear()
    vectors = QueryVectors(embedding)
    texts = [str(number) for number in range(9)]
    asked = begin(pool, vectors, [*texts, "3"])
    assert embedding.calls == ["0"]
    embedding.gate.set()
    assert [each.result(30).tolist() for each in asked] == [vector_of(text) for text in [*texts, "3"]]
    assert embedding.calls == ["0", tuple(texts[1:])]
    assert [vectors.vector(text).tolist() for text in texts] == [vector_of(text) for text in texts]
    assert len(embedding.calls) == 2


def test_a_batch_has_a_largest_size(pool):
    """Who came too late for one batch is in the next."""
    embedding = Together()
    embedding.gate.clear()
    vectors = QueryVectors(embedding)
    texts = [str(number) for number in range(LARGEST_BATCH + 6)]
    asked = begin(pool, vectors, texts)
    embedding.gate.set()
    assert [each.result(30)[0] for each in asked] == [float(text) for text in texts]
    assert embedding.calls == ["0", tuple(texts[1 : LARGEST_BATCH + 1]), tuple(texts[LARGEST_BATCH + 1 :])]


def test_an_embedding_without_a_common_call_is_called_by_all_threads_at_once(pool):
    """No thread waits for another's text."""
    embedding = Numbers()
    embedding.gate.clear()
    vectors = QueryVectors(embedding)
    assert not isinstance(embedding, EmbedsQueries)
    assert isinstance(Together(), EmbedsQueries)
    asked = begin(pool, vectors, ["1", "2", "3"])
    until(lambda: sorted(embedding.calls) == ["1", "2", "3"])
    embedding.gate.set()
    assert [each.result(30)[0] for each in asked] == [1, 2, 3]


@pytest.mark.parametrize("make", [Numbers, Together])
def test_a_kept_vector_is_given_while_a_call_hangs(make, pool):
    """No lock is held during a call."""
    embedding = make()
    vectors = QueryVectors(embedding)
    vectors.vector("1")
    embedding.gate.clear()
    asked = begin(pool, vectors, ["2", "3"])
    assert vectors.vector("1").tolist() == [1.0, 1.0]
    embedding.gate.set()
    assert [each.result(30)[0] for each in asked] == [2, 3]


@pytest.mark.parametrize("make", [Numbers, Together])
def test_an_error_reaches_all_who_asked_for_the_text_and_nobody_else(make, pool):
    """One text that cannot be embedded fails alone, also where it was in a common call; it is tried anew when asked."""
    embedding = make()
    embedding.gate.clear()
    vectors = QueryVectors(embedding)
    asked = begin(pool, vectors, ["1", "2", "bad", "bad", "nan", "3"])
    embedding.gate.set()
    assert [asked[place].result(30)[0] for place in (0, 1, 5)] == [1, 2, 3]
    for place in (2, 3):
        with pytest.raises(ValueError, match="bad"):
            asked[place].result(30)
    with pytest.raises(
        ConfigurationError, match=r"(Numbers|Together): expected 1 vector\(s\) of equal length and finite"
    ):
        asked[4].result(30)
    with pytest.raises(ValueError, match="bad"):
        vectors.vector("bad")
    assert waiting(vectors) == 0
    assert set(vectors._desks.get().recent) == {"1", "2", "3"}


def test_a_common_call_that_gives_too_few_vectors_is_made_up_for(pool):
    """Vectors that cannot be told apart are not used; each text is embedded by itself."""
    embedding = Together()
    embedding.embed_queries = lambda texts: [vector_of(texts[0])]
    embedding.gate.clear()
    vectors = QueryVectors(embedding)
    asked = begin(pool, vectors, ["1", "2", "3"])
    embedding.gate.set()
    assert [each.result(30)[0] for each in asked] == [1, 2, 3]
    assert sorted(embedding.calls) == ["1", "2", "3"]


@pytest.mark.parametrize("make", [Numbers, Together])
def test_a_thread_that_is_ended_in_its_call_leaves_the_others_going(make, pool):
    """Whoever else wants that text makes the call again; texts that wait behind it are embedded."""
    embedding = make()
    embedding.gate.clear()
    vectors = QueryVectors(embedding)
    first, second, *others = begin(pool, vectors, ["1", "1", "2", "3"])
    until(lambda: "1" in embedding.calls)
    embedding.ends_thread = True
    embedding.gate.set()
    with pytest.raises(SystemExit):
        first.result(30)
    assert [each.result(30)[0] for each in (second, *others)] == [1, 2, 3]
    assert waiting(vectors) == 0


def test_a_call_that_hangs_holds_nobody_up_for_good(pool, monkeypatch):
    """Who has waited long enough for another's call embeds by itself."""
    monkeypatch.setattr(query_vectors, "PATIENCE_SECONDS", 0.05)
    embedding = Together()
    embedding.gate.clear()
    vectors = QueryVectors(embedding)
    hanging = begin(pool, vectors, ["1"])
    embedding.wait = lambda: None
    assert vectors.vector("2").tolist() == [2.0, 4.0]
    assert not hanging[0].done()
    embedding.gate.set()
    assert hanging[0].result(30)[0] == 1


@pytest.mark.parametrize("make", [Numbers, Together])
def test_many_threads_get_the_vectors_of_one_by_one(make, pool):
    """Each of 3,000 questions from 128 threads has its own vector, however calls fell together."""
    vectors = QueryVectors(make())
    texts = [str(number % 150) for number in range(3_000)]
    assert [row.tolist() for row in pool.map(vectors.vector, texts)] == [vector_of(text) for text in texts]
    assert waiting(vectors) == 0
    assert len(vectors._desks.get().recent) == KEPT_QUERIES


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_waits_for_none_of_its_parents_calls(pool):
    """A process forked while a call is under way and the lock is held embeds for itself."""
    embedding = Together()
    vectors = QueryVectors(embedding)
    vectors.vector("1")
    embedding.gate.clear()
    begin(pool, vectors, ["2"])
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def ask():
        embedding.wait = lambda: None
        theirs.send([vectors.vector(text).tolist() for text in ("1", "2", "3")])

    with vectors._desks.get().changed:
        child = context.Process(target=ask)
        child.start()
    assert ours.poll(30)
    assert ours.recv() == [vector_of(text) for text in ("1", "2", "3")]
    child.join(30)
    embedding.gate.set()
    assert child.exitcode == 0
