"""Use a bounded graph as a node of a parent graph whose state has other keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.graph.state import CompiledStateGraph, StateGraph

from bounded_retrieval.errors import ConfigurationError, RequestError


def as_node(
    graph: Any,
    *,
    query_key: str = "query",
    documents_key: str | None = "documents",
    packet_key: str | None = None,
    stop_reason_key: str | None = None,
) -> RunnableLambda[Any, dict[str, Any]]:
    """Make a node that reads the query from one key of the parent's state and writes results to others.

    Only the keys named here are written. Under ``query_key="messages"`` the last human message's text is the query,
    and nothing is written to ``messages``.

    Args:
        graph: a bounded graph, compiled or not.
        query_key: parent key that holds the query text, or a list of messages.
        documents_key: parent key for the documents, or none.
        packet_key: parent key for the packet as a dict, or none.
        stop_reason_key: parent key for the stop reason, or none.

    Raises:
        ConfigurationError: no key to write to, ``messages`` named as one, or a result that the graph does not return.
        RequestError: (when run) the parent's state holds no query under ``query_key``.
    """
    graph = graph.compile(name="bounded_retrieval") if isinstance(graph, StateGraph) else graph
    if not isinstance(graph, CompiledStateGraph):
        raise ConfigurationError(f"graph: expected a bounded graph (got {type(graph).__name__})")
    written = {"documents": documents_key, "packet": packet_key, "stop_reason": stop_reason_key}
    keys = {ours: theirs for ours, theirs in written.items() if theirs is not None}
    if not keys or "messages" in keys.values():
        raise ConfigurationError(f"as_node: name at least one key to write, and not messages (got {written})")
    lacking = sorted(set(keys) - set(graph.output_channels))
    if lacking:
        raise ConfigurationError(f"as_node: the graph does not return {', '.join(lacking)} (see output_keys)")
    return _closure(graph, query_key, keys)


def _closure(
    graph: CompiledStateGraph[Any, Any, Any, Any], query_key: str, keys: Mapping[str, str]
) -> RunnableLambda[Any, dict[str, Any]]:
    # LangGraph finds the subgraph (for xray and streaming) among the function's closed-over variables.
    def retrieve(state: Any, config: RunnableConfig) -> dict[str, Any]:
        result = graph.invoke({"query": _query_of(state, query_key)}, config)
        return {theirs: result[ours] for ours, theirs in keys.items()}

    async def aretrieve(state: Any, config: RunnableConfig) -> dict[str, Any]:
        result = await graph.ainvoke({"query": _query_of(state, query_key)}, config)
        return {theirs: result[ours] for ours, theirs in keys.items()}

    return RunnableLambda(retrieve, afunc=aretrieve, name="bounded_retrieval")


def _query_of(state: Any, key: str) -> str:
    value = state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        humans = [message for message in value if isinstance(message, HumanMessage)]
        if humans:
            return str(humans[-1].text)
    raise RequestError(f"{key}: the parent's state holds no query there (got {type(value).__name__})")
