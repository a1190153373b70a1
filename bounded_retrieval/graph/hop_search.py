"""One hop's search: the bounded controller, any LangChain retriever or vector store, or a plain function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.runtime import get_runtime

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.chain import ChainUsage
from bounded_retrieval.contracts.packet import EvidenceItem, EvidencePacket
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import Interruption
from bounded_retrieval.errors import AsyncOnlyError, ConfigurationError
from bounded_retrieval.graph.bounded import parts_of
from bounded_retrieval.graph.chain_state import HopFound, HopSearch
from bounded_retrieval.nodes.running import without_stop_iteration
from bounded_retrieval.policies.settings import lower, read_context

_ENDED: Mapping[StopReason, Interruption] = {
    StopReason.CANCELLED: "cancelled",
    StopReason.DEADLINE_EXCEEDED: "deadline",
}


def as_hop_search(search: Any) -> HopSearch:
    """Adapt an object to a hop's search.

    Raises:
        ConfigurationError: it is no bounded graph, retriever, vector store or function; names its type.
    """
    graph = bounded_graph_in(search)
    parts = parts_of(graph)
    if parts is not None:
        return BoundedHop(graph, parts.defaults.budget)
    if isinstance(search, (BaseRetriever, VectorStore)):
        return RetrieverHop(search)
    if callable(search) and not isinstance(search, (type, StateGraph, CompiledStateGraph)):
        return FunctionHop(search)
    raise ConfigurationError(
        "search: expected a bounded graph, a LangChain retriever or vector store, or a function of the query "
        f"(got {type(search).__module__}.{type(search).__qualname__})"
    )


def bounded_graph_in(search: Any) -> Any | None:
    """The bounded graph that a search is, or that a retriever stands over; its guard then holds for the chain too."""
    held = getattr(search, "graph", None) if isinstance(search, BaseRetriever) else search
    return held if parts_of(held) is not None else None


class BoundedHop:
    """Runs the bounded controller; its builder's budget, the ceiling, is lowered to what the chain has left."""

    charges_itself = True

    def __init__(self, graph: Any, ceiling: Budget) -> None:
        self._ceiling = ceiling
        self.graph = graph.compile(name="bounded_retrieval") if isinstance(graph, StateGraph) else graph
        if "packet" not in self.graph.output_channels:
            raise ConfigurationError("search: its output_keys must hold 'packet'")

    def search(self, query: str, max_calls: int, deadline_ms: int | None) -> HopFound:
        """Run the controller once."""
        return _from_packet(self.graph.invoke(self._input(query, max_calls, deadline_ms)))

    async def asearch(self, query: str, max_calls: int, deadline_ms: int | None) -> HopFound:
        """Run the controller once, awaited."""
        return _from_packet(await self.graph.ainvoke(self._input(query, max_calls, deadline_ms)))

    def _input(self, query: str, max_calls: int, deadline_ms: int | None) -> dict[str, Any]:
        # A caller's context may have lowered the limits already, and a request may not raise them again.
        ceiling = lower(self._ceiling, read_context(_surrounding_context()).budget, "context")
        budget: dict[str, int] = {"max_calls": min(max_calls, ceiling.max_calls)}
        limits = [limit for limit in (deadline_ms, ceiling.deadline_ms) if limit is not None]
        if limits:
            budget["deadline_ms"] = min(limits)
        return {"query": query, "request": {"budget": Budget.model_validate(budget).model_dump(include=set(budget))}}


class RetrieverHop:
    """Asks a LangChain retriever, or a vector store, once."""

    charges_itself = False

    def __init__(self, source: BaseRetriever | VectorStore) -> None:
        self._retriever = source.as_retriever() if isinstance(source, VectorStore) else source

    def search(self, query: str, max_calls: int, deadline_ms: int | None) -> HopFound:  # noqa: ARG002 - one call
        """Ask once."""
        return _from_documents(self._retriever.invoke(query))

    async def asearch(self, query: str, max_calls: int, deadline_ms: int | None) -> HopFound:  # noqa: ARG002
        """Ask once, awaited."""
        return _from_documents(await self._retriever.ainvoke(query))


class FunctionHop:
    """Calls a function of the query, synchronous or not, that returns documents."""

    charges_itself = False

    def __init__(self, function: Callable[[str], Sequence[Document] | Awaitable[Sequence[Document]]]) -> None:
        self._function: Callable[[str], Any] = function
        call = getattr(type(function), "__call__", None)  # noqa: B004 - an object whose call is asynchronous
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def search(self, query: str, max_calls: int, deadline_ms: int | None) -> HopFound:  # noqa: ARG002 - one call
        """Call it once."""
        answer = None if self._is_async else self._function(query)
        if self._is_async or inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise AsyncOnlyError("search: only works asynchronously; use ainvoke")
        return _from_documents(answer)

    async def asearch(self, query: str, max_calls: int, deadline_ms: int | None) -> HopFound:  # noqa: ARG002
        """Call it once, in a thread unless it is asynchronous."""
        call = partial(self._function, query)
        answer = call() if self._is_async else await asyncio.to_thread(without_stop_iteration(call))
        return _from_documents(await answer if inspect.isawaitable(answer) else answer)


def _surrounding_context() -> Any:
    try:
        return get_runtime().context
    except (RuntimeError, KeyError):
        return None


def _from_packet(result: Mapping[str, Any]) -> HopFound:
    packet = EvidencePacket.from_result(result)
    usage = packet.usage
    return HopFound(
        units={item.unit_id: _unit(item) for item in packet.items},
        sources={item.unit_id: next(iter(item.channels), "lexical") for item in packet.items},
        usage=ChainUsage(calls=usage.calls, dense_calls=usage.dense_calls, rows=usage.rows, reads=usage.reads),
        failed=packet.stop_reason is StopReason.RETRIEVAL_FAILED,
        stop_reason=packet.stop_reason,
        missing_terms=packet.missing_terms,
        interruption=_ENDED.get(packet.stop_reason),
        notes=packet.notes,
    )


def _unit(item: EvidenceItem) -> Unit:
    return Unit.model_validate(item.model_dump(include={"unit_id", "fingerprint", "title", "text", "metadata"}))


def _from_documents(documents: Any) -> HopFound:
    if isinstance(documents, (str, bytes)) or not isinstance(documents, Iterable):
        raise TypeError(f"a search returns documents (got {type(documents).__name__})")
    units: dict[str, Unit] = {}
    rows = list(documents)
    for document in rows:
        if not isinstance(document, Document):
            raise TypeError(f"a search returns documents (got a {type(document).__name__})")
        unit = Unit.from_document(document)
        if unit.text.strip():
            units.setdefault(unit.unit_id, unit)
    usage = ChainUsage(calls=1, rows=len(rows), reads=len(units))
    return HopFound(units=units, sources=dict.fromkeys(units, "lexical"), usage=usage)
