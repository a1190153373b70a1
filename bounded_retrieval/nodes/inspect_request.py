"""Node ``inspect_request``: settle what this run may do."""

from __future__ import annotations

from typing import Any, Literal

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.trace import RequestInspected
from bounded_retrieval.contracts.unchecked import unchecked
from bounded_retrieval.errors import RequestError
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState, Update
from bounded_retrieval.nodes.clock import Stopwatch
from bounded_retrieval.nodes.running import Body
from bounded_retrieval.policies.coverage import retain_terms
from bounded_retrieval.policies.paths import check_hops
from bounded_retrieval.policies.settings import read_context, read_request, resolve
from bounded_retrieval.policies.stopping import STEPS_OF_ONE_SEARCH


def inspect_request(state: BoundedState, runtime: Runtime[Any], parts: Parts) -> Body:
    """Resolve the settings once (request, then context, then builder) and reset every private channel.

    Raises:
        RequestError: the request or the context is not valid, a path is longer than the reads allowed, or the recursion
            limit leaves no room for one search.
    """
    watch = Stopwatch({}, parts)
    settings = _settle(state, runtime.context, parts)
    _check_steps(state)
    first = _first_action(settings)
    inspected = unchecked(RequestInspected, **settings.__dict__, event="request_inspected", next_action=first)
    event = inspected.model_dump(mode="json")
    runtime.stream_writer(event)
    return _reset(settings) | {"events": [event], "decision": {"action": first}, "elapsed_ms": watch.elapsed_ms()}
    yield  # a body is a generator even where it makes no outside call


def _first_action(settings: RunSettings) -> Literal["lexical_search", "dense_search", "follow_path"]:
    if settings.path is not None:
        return "follow_path"
    return "dense_search" if settings.policy == "fixed_dense" else "lexical_search"


def _settle(state: BoundedState, context: Any, parts: Parts) -> RunSettings:
    request = read_request(state.get("query"), state.get("request"))
    if request.path is not None and parts.relationships is None:
        raise RequestError("path: the graph was built without relationships (see relationships=)")
    resolved = resolve(request, read_context(context), parts.defaults)
    query_terms = retain_terms(request.query, parts.tokenizer)
    settings = RunSettings(
        query=request.query,
        query_id=request.query_id,
        policy=resolved.policy,
        threshold=resolved.threshold,
        terms=query_terms.terms,
        identifiers=query_terms.identifiers,
        channels=parts.defaults.channels,
        limits=resolved.limits,
        first_hop_rows=resolved.first_hop_rows,
        assessor=parts.assessor.name,
        fusion=parts.fusion.name,
        tokenizer=parts.tokenizer_name,
        path=request.path,
    )
    check_hops(settings)
    return settings


def _check_steps(state: BoundedState) -> None:
    # LangGraph does not count the step being executed as remaining, and wants one to spare after the last.
    limit = state.get("remaining_steps", STEPS_OF_ONE_SEARCH) + 1
    if limit <= STEPS_OF_ONE_SEARCH:
        raise RequestError(f"recursion_limit: a run needs at least {STEPS_OF_ONE_SEARCH + 1} (got {limit})")


def _reset(settings: RunSettings) -> Update:
    return {
        "settings": settings.model_dump(mode="json"),
        "usage": Usage().model_dump(),
        "units": {},
        "sources": {},
        "candidates": [],
        "notes": [],
        "view": {},
        "packet": {},
        "documents": [],
        "stop_reason": "",
        "trace": {},
    }
