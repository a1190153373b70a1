"""Adapters from LangChain retrievers and vector stores to the searcher port.

An adapter only reads: the adapted object, its settings and its documents are never changed. Candidates carry cleaned
copies. A unit's id is the ``id_key`` metadata field if one is named and set, else ``Document.id``, else a hash of the
text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from bounded_retrieval.contracts.candidate import Candidate, Channel, Unit
from bounded_retrieval.contracts.filters import Filter, Predicate, compile_filter
from bounded_retrieval.contracts.normalise import CONTENT_ID_PREFIX, clean_metadata, clean_text
from bounded_retrieval.contracts.ports import Searcher
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.retrievers._chroma_filter import compile_where, decides_whole

OVERFETCH_CAP = 1_000
"""Most rows asked of a store for one search (``k``, if more) when a filter drops rows that came back."""

_OWN_IDS = 10_000  # ids that a searcher notes before it forgets them

_Scored = tuple[Document, float | None]


def as_searcher(obj: Any, channel: Channel, *, id_key: str | None = None) -> Searcher:
    """Adapt an object to the searcher port.

    Args:
        obj: a LangChain retriever or vector store; anything else with ``search`` or ``asearch`` is returned as it is.
        channel: the channel its candidates name.
        id_key: metadata field to take unit ids from.

    Raises:
        ConfigurationError: it is none of these; names its type.
    """
    if isinstance(obj, BaseRetriever):
        return RetrieverSearcher(obj, channel, id_key=id_key)
    if isinstance(obj, VectorStore):
        return VectorStoreSearcher(obj, channel, id_key=id_key)
    kind = type(obj)
    # A bare Chroma collection also has a method named search; it takes other arguments.
    named = any(callable(getattr(obj, name, None)) for name in ("search", "asearch"))
    if named and not isinstance(obj, type) and not kind.__module__.startswith("chromadb."):
        found: Searcher = obj
        return found
    raise ConfigurationError(
        f"{channel}: expected a searcher, a LangChain retriever or a vector store "
        f"(got {kind.__module__}.{kind.__qualname__})"
    )


class RetrieverSearcher:
    """A LangChain retriever as a searcher, without scores.

    The retriever decides how many documents it returns; the answer is cut to ``k``, so set the retriever to return
    enough. It cannot be given a filter: one is enforced on what it returned.

    Args:
        retriever: any ``BaseRetriever``; called through ``invoke`` and ``ainvoke``.
        channel: the channel its candidates name.
        id_key: metadata field to take unit ids from.
    """

    def __init__(self, retriever: BaseRetriever, channel: Channel, *, id_key: str | None = None) -> None:
        self.retriever = retriever
        self.channel = channel
        self._id_key = id_key

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Return at most ``k`` candidates in the retriever's order.

        Raises:
            RequestError: the filter is not part of the filter language.
        """
        accepts = compile_filter(filter)
        if k <= 0:
            return []
        return self._candidates(self.retriever.invoke(query), k, accepts)

    async def asearch(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Like `search`, awaited."""
        accepts = compile_filter(filter)
        if k <= 0:
            return []
        return self._candidates(await self.retriever.ainvoke(query), k, accepts)

    def pushes_down(self, filter: Filter | None) -> bool:
        """Whether the retriever itself decides the whole filter: only one that asks for nothing.

        Raises:
            RequestError: the filter is not part of the filter language.
        """
        compile_filter(filter)
        return not filter

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.retriever).__name__}, {self.channel!r})"

    def _candidates(self, documents: Iterable[Document], k: int, accepts: Predicate) -> list[Candidate]:
        units = _accepted(((document, None) for document in documents), self._id_key, accepts)
        return _ranked(units, k, self.channel)


class VectorStoreSearcher:
    """A LangChain vector store as a searcher.

    Rank is the order of the store's answer, equal scores by id. The score is what the store gives, to nine decimals:
    depending on the store a similarity (higher is better) or a distance (lower is better); none where it gives none. It
    is never compared with a threshold.

    A filter is translated for ``Chroma`` and ``InMemoryVectorStore``; any other store gets the mapping as it is, as its
    ``filter`` argument. In every case it is enforced on the rows that come back; where it drops some, more rows
    are asked for, up to `OVERFETCH_CAP`. What a store leaves out because it reads the mapping otherwise is not found.

    Where the store implements ``get_by_ids`` and ids are its own (no ``id_key``), the searcher is a unit source: it has
    ``fetch``. A row that the store returns without an id cannot be fetched again, and `vouches_for` says so.

    Args:
        store: any ``VectorStore``.
        channel: the channel its candidates name.
        id_key: metadata field to take unit ids from.
    """

    fetch: Callable[[Sequence[str]], dict[str, Document]]

    def __init__(self, store: VectorStore, channel: Channel, *, id_key: str | None = None) -> None:
        self.store = store
        self.channel = channel
        self._id_key = id_key
        self._own_ids: dict[str, str] = {}
        if id_key is None and type(store).get_by_ids is not VectorStore.get_by_ids:
            self.fetch = self._fetch

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Return at most ``k`` candidates in the store's order.

        Raises:
            RequestError: the filter is not part of the filter language.
        """
        accepts, pushed = compile_filter(filter), _pushed_down(self.store, filter)
        if k <= 0 or pushed is None:
            return []
        asked = k
        while asked:
            rows = self._noted(self._rows(query, asked, pushed))
            units = _accepted(rows, self._id_key, accepts)
            asked = _next_request(asked, len(rows), len(units), k)
        return _ranked(units, k, self.channel)

    async def asearch(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Like `search`, awaited."""
        accepts, pushed = compile_filter(filter), _pushed_down(self.store, filter)
        if k <= 0 or pushed is None:
            return []
        asked = k
        while asked:
            rows = self._noted(await self._arows(query, asked, pushed))
            units = _accepted(rows, self._id_key, accepts)
            asked = _next_request(asked, len(rows), len(units), k)
        return _ranked(units, k, self.channel)

    def pushes_down(self, filter: Filter | None) -> bool:
        """Whether the store itself decides the whole filter, so that it returns no row that does not pass.

        For ``Chroma`` it depends on the filter (see `ChromaSearcher`), ``InMemoryVectorStore`` always does, and of any
        other store nothing is known.

        Raises:
            RequestError: the filter is not part of the filter language.
        """
        compile_filter(filter)
        if not filter or isinstance(self.store, InMemoryVectorStore):
            return True
        return _is_chroma(self.store) and decides_whole(filter)

    def vouches_for(self, unit_id: str) -> bool:
        """Whether ``fetch`` can find the unit.

        It cannot where the unit came without an id and was named by its content, nor where its id seems to have been
        cleaned and this searcher did not return it.
        """
        return not unit_id.startswith(CONTENT_ID_PREFIX) and ("\ufffd" not in unit_id or unit_id in self._own_ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.store).__name__}, {self.channel!r})"

    def _rows(self, query: str, asked: int, pushed: Mapping[str, Any]) -> list[_Scored]:
        try:
            return list(self.store.similarity_search_with_score(query, k=asked, **pushed))
        except NotImplementedError:
            return [(document, None) for document in self.store.similarity_search(query, k=asked, **pushed)]

    async def _arows(self, query: str, asked: int, pushed: Mapping[str, Any]) -> list[_Scored]:
        try:
            return list(await self.store.asimilarity_search_with_score(query, k=asked, **pushed))
        except NotImplementedError:
            return [(document, None) for document in await self.store.asimilarity_search(query, k=asked, **pushed)]

    def _fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """Current units by id; an id that is not there is left out."""
        wanted = list(dict.fromkeys(self._own_ids.get(unit_id, unit_id) for unit_id in unit_ids))
        # Some stores read an empty list of ids as every id.
        documents = self.store.get_by_ids(wanted) if wanted else []
        units = (Unit.from_document(document) for document in documents if document.id in wanted)
        return {unit.unit_id: unit.to_document() for unit in units}

    def _noted(self, rows: list[_Scored]) -> list[_Scored]:
        """The rows, after the store's own ids were noted where they differ from their units'."""
        for document, _ in rows:
            if document.id and "\ufffd" in (unit_id := clean_text(document.id)):
                if len(self._own_ids) >= _OWN_IDS:
                    self._own_ids.clear()
                self._own_ids[unit_id] = document.id
        return rows


_Found = tuple[Unit, float | None]


def _accepted(rows: Iterable[_Scored], id_key: str | None, accepts: Predicate) -> list[_Found]:
    return [
        (_unit(document, id_key), score) for document, score in rows if accepts(clean_metadata(document.metadata)[0])
    ]


def _unit(document: Document, id_key: str | None) -> Unit:
    own_id = document.metadata.get(id_key) if id_key else None
    return Unit.from_document(document, None if own_id is None else str(own_id))


def _ranked(units: list[_Found], k: int, channel: Channel) -> list[Candidate]:
    ordered = [found for tied in _by_score(units) for found in tied]
    return [
        Candidate(unit_id=unit.unit_id, channel=channel, rank=rank, score=_rounded(score), unit=unit.to_document())
        for rank, (unit, score) in enumerate(ordered[: max(k, 0)], 1)
    ]


def _rounded(score: float | None) -> float | None:
    # The last digits depend on what else a store computed in the same step.
    return None if score is None else round(float(score), 9)


def _by_score(units: list[_Found]) -> Iterator[list[_Found]]:
    """The store's order, except that units with one and the same score stand by id: stores order those at random."""
    for score, group in groupby(units, key=lambda found: _rounded(found[1])):
        tied = list(group)
        yield tied if score is None else sorted(tied, key=lambda found: found[0].unit_id)


def _next_request(asked: int, returned: int, kept: int, k: int) -> int:
    """How many rows to ask for next; 0 when enough were kept, the store has no more, or the cap is reached."""
    cap = max(OVERFETCH_CAP, k)
    return 0 if kept >= k or returned < asked or asked >= cap else min(4 * asked, cap)


def _pushed_down(store: VectorStore, filter: Filter | None) -> dict[str, Any] | None:
    """The search arguments that narrow a store's answer to a filter; none when no unit can pass it."""
    if not filter:
        return {}
    if _is_chroma(store):
        where = compile_where(filter)
        if isinstance(where, bool):
            return {} if where else None
        return {"filter": where}
    if isinstance(store, InMemoryVectorStore):
        accepts = compile_filter(filter)
        return {"filter": lambda document: accepts(clean_metadata(document.metadata)[0])}
    return {"filter": _copied(filter)}


def _is_chroma(store: VectorStore) -> bool:
    # By name: LangChain has had the class in more than one package, and none of them is imported here.
    return any(kind.__name__ == "Chroma" and "chroma" in kind.__module__ for kind in type(store).__mro__)


def _copied(value: Any) -> Any:
    """A plain copy, so that a store that edits its filter does not edit the caller's."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_copied(item) for item in value]
    return value
