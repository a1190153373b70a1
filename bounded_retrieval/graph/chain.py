"""Build the bounded recursive chain: each sub-answer forms the next query, and no model decides when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, get_args

from langchain_core.language_models import BaseChatModel
from langgraph.graph import END, START, StateGraph
from pydantic import ValidationError

from bounded_retrieval.contracts.chain import ChainLimits, OnStop
from bounded_retrieval.contracts.ports import DiagnosticSink, UnitSource
from bounded_retrieval.errors import ConfigurationError, RequestError
from bounded_retrieval.graph.bounded import check_callables, parts_of, unguarded_parts
from bounded_retrieval.graph.chain_state import ChainInput, ChainOutput, ChainParts, ChainState
from bounded_retrieval.graph.chat import CHAT_PARTS
from bounded_retrieval.graph.context import Cancelled, Parts
from bounded_retrieval.graph.hop_search import as_hop_search, bounded_graph_in
from bounded_retrieval.graph.state import narrowed
from bounded_retrieval.nodes.check_limits import check_limits
from bounded_retrieval.nodes.check_novelty import check_novelty
from bounded_retrieval.nodes.check_sufficiency import check_sufficiency
from bounded_retrieval.nodes.finish_chain import finish_chain
from bounded_retrieval.nodes.plan_hop import plan_hop
from bounded_retrieval.nodes.running import Node, can_fetch
from bounded_retrieval.nodes.search_hop import search_hop
from bounded_retrieval.nodes.time_limits import TimeLimit
from bounded_retrieval.policies.chaining import ChainRules
from bounded_retrieval.policies.reading import ExtractiveReader

ChainGraph = StateGraph[ChainState, Any, ChainInput, Any]


def create_recursive_retrieval(  # noqa: PLR0913 - one keyword for each part a caller may replace
    search: Any,
    planner: Any,
    reader: Any = None,
    *,
    sufficiency: Any = None,
    limits: ChainLimits | None = None,
    rules: ChainRules | None = None,
    on_stop: OnStop = "partial",
    clarifier: Any = None,
    units: UnitSource | None = None,
    diagnostics: DiagnosticSink | None = None,
    cancelled: Cancelled | None = None,
    spans: Any = None,
    context_schema: type[Any] | None = None,
    output_keys: Sequence[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ChainGraph:
    """Build the chain as an uncompiled ``StateGraph``; its depth is capped at `MAX_HOPS` whatever is given here.

    Args:
        search: makes each hop's search: a bounded graph (its limits, eligibility and recheck hold for the chain too), a
            LangChain retriever or vector store, or a function of the query that returns documents.
        planner: function of the question and the trail (of `Hop`) that gives a query, a `NextQuery`, or None when
            nothing is left; a `TemplatePlanner`; or a chat model. May be async, as every part below.
        reader: function of the query and the documents that gives text, a `SubAnswer` or None; or a chat model.
        sufficiency: function of the question and the trail that gives a bool or a `Sufficiency`; or a chat model. By
            default the planner's own ``is_complete``, where it has one.
        limits: limits of a chain, and the ceiling for requests.
        rules: the mechanical rules on novelty and repetition; the depth cap is not among them.
        on_stop: an unresolved chain returns what it has (``partial``), asks back (``clarify``) or raises (``fail``).
        clarifier: words the question back, from the question, the open parts and the trail; a plain one by default.
        units: where the last recheck reads current text; by default what a bounded graph in ``search`` has.
        diagnostics: receives protected records; by default the sink of a bounded graph in ``search``.
        cancelled: polled with the LangGraph runtime before and after each hop; true ends the chain with what was found.
        spans: an OpenTelemetry tracer; each hop is a span of it, with ids and counts.
        context_schema: schema of the runtime context; by default that of a bounded graph in ``search``.
        output_keys: which of the output's keys the graph returns; all of them.
        clock: seconds from any fixed point, for ``deadline_ms``.

    Raises:
        ConfigurationError: the parts cannot work together.
        RequestError: a limit is out of bounds.
    """
    _check_settings(on_stop, rules, spans)
    check_callables(cancelled=cancelled, diagnostics=diagnostics, clock=clock)
    parts = ChainParts(
        search=as_hop_search(search),
        planner=_as_part("planner", planner, "plan"),
        reader=_as_part("reader", ExtractiveReader() if reader is None else reader, "read"),
        sufficiency=_sufficiency(sufficiency, planner),
        rules=rules or ChainRules(),
        limits=_limits(limits),
        on_stop=on_stop,
        clarifier=None if clarifier is None else _as_part("clarifier", clarifier, "clarify"),
        recheck=_recheck_parts(search, units, diagnostics),
        cancelled=cancelled,
        clock=clock,
        spans=spans,
        time_limit=TimeLimit(600),  # the ceiling of deadline_ms; each call gets what is left
    )
    return _wire(parts, context_schema or _schema_of(bounded_graph_in(search)), output_keys)


def _schema_of(graph: Any) -> type[Any] | None:
    schema: type[Any] | None = getattr(getattr(graph, "builder", graph), "context_schema", None)
    return schema


def _wire(parts: ChainParts, context_schema: type[Any] | None, output_keys: Sequence[str] | None) -> ChainGraph:
    builder: ChainGraph = StateGraph(
        ChainState,
        context_schema=context_schema,
        input_schema=ChainInput,
        output_schema=narrowed(ChainOutput, output_keys),
    )
    nodes = (plan_hop, search_hop, check_novelty, check_sufficiency, check_limits, finish_chain)
    for function in nodes:
        builder.add_node(function.__name__, Node(function, parts))
    builder.add_edge(START, "plan_hop")
    builder.add_conditional_edges("plan_hop", *_unless_stopped("search_hop", "search"))
    builder.add_edge("search_hop", "check_novelty")
    builder.add_conditional_edges("check_novelty", *_unless_stopped("check_sufficiency", "new"))
    builder.add_conditional_edges("check_sufficiency", *_unless_stopped("check_limits", "open"))
    builder.add_conditional_edges("check_limits", *_unless_stopped("plan_hop", "next"))
    builder.add_edge("finish_chain", END)
    return builder


def _unless_stopped(onward: str, label: str) -> tuple[Callable[[ChainState], str], dict[Hashable, str]]:
    # LangGraph draws the path map's keys on the edges.
    def route_unless_stopped(state: ChainState) -> str:
        return "stop" if state["stopped"] else label

    return route_unless_stopped, {label: onward, "stop": "finish_chain"}


def _as_part(name: str, part: Any, method: str) -> Any:
    if isinstance(part, BaseChatModel):
        return CHAT_PARTS[method](part)
    has_method = hasattr(part, method) or hasattr(part, f"a{method}")
    if isinstance(part, type) or not (has_method or callable(part)):
        kind = part.__name__ if isinstance(part, type) else type(part).__name__
        raise ConfigurationError(f"{name}: expected a function, an object with {method}, or a chat model (got {kind})")
    return part


def _sufficiency(given: Any, planner: Any) -> Any | None:
    test = getattr(planner, "is_complete", None) if given is None else given
    return None if test is None else _as_part("sufficiency", test, "is_sufficient")


def _limits(given: Any) -> ChainLimits:
    try:
        return ChainLimits() if given is None else ChainLimits.model_validate(given)
    except ValidationError as error:
        raise RequestError.from_validation(error, "limits") from None


def _check_settings(on_stop: Any, rules: ChainRules | None, spans: Any) -> None:
    if on_stop not in get_args(OnStop):
        raise ConfigurationError(f"on_stop: expected one of {', '.join(get_args(OnStop))} (got {on_stop!r})")
    _check_rules(rules)
    if spans is not None and not hasattr(spans, "start_as_current_span"):
        raise ConfigurationError(f"spans: expected an OpenTelemetry tracer (got {type(spans).__name__})")


def _check_rules(rules: ChainRules | None) -> None:
    if rules is None:
        return
    if not isinstance(rules, ChainRules):
        raise ConfigurationError(f"rules: expected ChainRules (got {type(rules).__name__})")
    for name, least in (("min_new_share", 0.0), ("similarity", 0.5)):
        value = getattr(rules, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= 1:
            raise ConfigurationError(f"rules.{name}: {least:g} to 1 (got {value!r})")


def _recheck_parts(search: Any, units: UnitSource | None, diagnostics: DiagnosticSink | None) -> Parts:
    if units is not None and (isinstance(units, type) or not can_fetch(units)):
        raise ConfigurationError(f"units: expected an object with fetch(unit_ids) (got {type(units).__name__})")
    inner = parts_of(bounded_graph_in(search)) or unguarded_parts()
    return replace(
        inner,
        units=inner.units if units is None else units,
        diagnostics=inner.diagnostics if diagnostics is None else diagnostics,
    )
