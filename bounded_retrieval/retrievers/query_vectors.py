"""Vectors of queries: recent ones are kept, one text is embedded once at a time, and concurrent texts together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.retrievers._sharing import PerProcess
from bounded_retrieval.retrievers.embeddings import embedding_identity

KEPT_QUERIES = 64
"""Recent queries whose vectors are kept; a run that searches and then scores asks for the same one twice."""

LARGEST_BATCH = 64
"""Most texts that one call of ``embed_queries`` is given."""

PATIENCE_SECONDS = 10.0
"""Longest that a query waits for a call that another thread has begun; then it is embedded by itself."""

Vector = NDArray[np.float32]


@runtime_checkable
class EmbedsQueries(Protocol):
    """What an embedding may have besides LangChain's methods, so that queries of one moment are embedded together.

    Worth having where one call for many texts costs less than many calls: a service across a network, a model on a
    GPU.
    """

    def embed_queries(self, texts: list[str]) -> list[list[float]]:
        """The vectors that ``embed_query`` gives for these texts, in their order; at most `LARGEST_BATCH` of them."""
        ...


class QueryVectors:
    """The vectors that one embedding gives queries, for any number of threads.

    Vectors of the last `KEPT_QUERIES` texts are kept. A text that several threads ask for at once is embedded once,
    and what that call raises, each of them gets. Where the embedding has ``embed_queries`` (see `EmbedsQueries`), one
    call is under way at a time and takes all texts that arrived during the one before; if it fails, each text is
    embedded by itself, so that one bad text fails alone. Other embeddings are called as threads arrive. No lock is
    held during a call: kept vectors are given meanwhile. Nobody waits for a call that ended, however it did, nor
    longer than `PATIENCE_SECONDS` for one that hangs. A forked process begins without kept vectors.

    Args:
        embedding: called with texts that are free of lone surrogates.
    """

    def __init__(self, embedding: Embeddings) -> None:
        self.embedding = embedding
        self._desks = PerProcess(_Desk)
        together = getattr(embedding, "embed_queries", None)
        self._together: Callable[[list[str]], Any] | None = together if callable(together) else None

    def vector(self, query: str) -> Vector:
        """The query's vector: float32, shape (dimensions,), not to be written to.

        Raises:
            ConfigurationError: the embedding gave something else than a vector of finite numbers.
        """
        text = clean_text(query)
        desk = self._desks.get()
        with desk.changed:
            kept = desk.kept(text)
            if kept is not None:
                return kept
            wanted = desk.enter(text)
        try:
            return self._wait_or_embed(desk, wanted)
        finally:
            with desk.changed:
                desk.leave(wanted)

    def forget(self) -> None:
        """Let go of all kept vectors, so that the next query is embedded again."""
        desk = self._desks.get()
        with desk.changed:
            desk.recent.clear()

    def _wait_or_embed(self, desk: _Desk, wanted: _Wanted) -> Vector:
        batched = self._together is not None
        while not wanted.is_done:
            taken: list[_Wanted] = []
            try:
                with desk.changed:
                    if not desk.changed.wait_for(lambda: desk.may_go_on(wanted, batched), PATIENCE_SECONDS):
                        return self._embed_one(wanted.text)
                    desk.take(wanted, taken, batched)
                self._embed(taken)
            finally:
                with desk.changed:
                    desk.put_back(taken)
        if wanted.vector is None:
            raise wanted.error or AssertionError(wanted.text)
        return wanted.vector

    def _embed(self, taken: list[_Wanted]) -> None:
        if len(taken) > 1:
            self._embed_together(taken)
            return
        for wanted in taken:
            try:
                wanted.vector = self._embed_one(wanted.text)
            except Exception as error:  # noqa: BLE001 - whatever it is, all who asked for this text get it
                wanted.error = error

    def _embed_one(self, text: str) -> Vector:
        vector: Vector = _locked(as_matrix(self.embedding, [self.embedding.embed_query(text)], 1))[0]
        return vector

    def _embed_together(self, taken: list[_Wanted]) -> None:
        if self._together is None:
            raise AssertionError(taken)
        try:
            texts = [wanted.text for wanted in taken]
            matrix = _locked(as_matrix(self.embedding, self._together(texts), len(texts)))
        except Exception:  # noqa: BLE001 - embedding each by itself says whose error it is
            for wanted in taken:
                wanted.alone = True
            return
        for wanted, row in zip(taken, matrix, strict=True):
            wanted.vector = row.copy()  # a view would keep the whole batch in memory
            wanted.vector.flags.writeable = False


class _Wanted:
    """A text that is being waited for."""

    __slots__ = ("alone", "askers", "error", "taken", "text", "vector")

    def __init__(self, text: str) -> None:
        self.text = text
        self.askers = 0
        self.taken = False
        self.alone = False  # not to be embedded with others (again)
        self.vector: Vector | None = None
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.vector is not None or self.error is not None


class _Desk:
    """Kept vectors and who waits for what in one process; every method is called with ``changed`` held."""

    def __init__(self) -> None:
        self.changed = Condition(Lock())
        self.recent: OrderedDict[str, Vector] = OrderedDict()
        self._wanted: dict[str, _Wanted] = {}
        self._batch: list[_Wanted] | None = None  # the one that is being embedded

    def kept(self, text: str) -> Vector | None:
        if text in self.recent:
            self.recent.move_to_end(text)
        return self.recent.get(text)

    def enter(self, text: str) -> _Wanted:
        wanted = self._wanted.setdefault(text, _Wanted(text))
        wanted.askers += 1
        return wanted

    def leave(self, wanted: _Wanted) -> None:
        wanted.askers -= 1
        if wanted.askers == 0:
            wanted.error = None  # its traceback holds the frames that hold it
            if self._wanted.get(wanted.text) is wanted:
                del self._wanted[wanted.text]

    def may_go_on(self, wanted: _Wanted, batched: bool) -> bool:
        free = not wanted.taken and (wanted.alone or not batched or self._batch is None)
        return wanted.is_done or free

    def take(self, wanted: _Wanted, taken: list[_Wanted], batched: bool) -> None:
        """Add to ``taken`` what the caller is to embed now; the list is the caller's before anything is marked."""
        if wanted.is_done:
            return
        if wanted.alone or not batched:
            taken.append(wanted)
        else:
            self._batch = taken
            waiting = (other for other in self._wanted.values() if not (other.taken or other.alone or other.is_done))
            taken.extend(other for other, _ in zip(waiting, range(LARGEST_BATCH), strict=False))
        for each in taken:
            each.taken = True

    def put_back(self, taken: list[_Wanted]) -> None:
        """What was taken is done, or free for another to take."""
        if self._batch is taken:
            self._batch = None
        for wanted in taken:
            wanted.taken = False
            if wanted.is_done and self._wanted.get(wanted.text) is wanted:
                del self._wanted[wanted.text]
            if wanted.vector is not None:
                self._keep(wanted.text, wanted.vector)
        if taken:
            self.changed.notify_all()

    def _keep(self, text: str, vector: Vector) -> None:
        self.recent[text] = vector
        while len(self.recent) > KEPT_QUERIES:
            self.recent.popitem(last=False)


def as_matrix(embedding: object, vectors: Any, rows: int) -> NDArray[np.float32]:
    """Vectors that an embedding gave for ``rows`` texts, as float32 of shape (rows, dimensions).

    Raises:
        ConfigurationError: they are not that many, not of one length, or not finite.
    """
    matrix: Any = np.empty(0)
    with suppress(TypeError, ValueError):
        matrix = np.asarray(vectors, dtype=np.float32)
    if matrix.shape != (rows, matrix.size // rows) or not np.isfinite(matrix).all():
        name = embedding_identity(embedding)
        raise ConfigurationError(f"embedding {name}: expected {rows} vector(s) of equal length and finite numbers")
    checked: NDArray[np.float32] = matrix
    return checked


def _locked(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    locked = matrix.view()  # of an array that the embedding may still own
    locked.flags.writeable = False
    return locked
