"""Build the bounded retrieval graph."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_origin

from langgraph.graph import END, START, StateGraph
from pydantic import TypeAdapter, ValidationError

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.calibration import Calibration
from bounded_retrieval.contracts.candidate import Channel
from bounded_retrieval.contracts.eligibility import ELIGIBILITY_TIMEOUT_MS, Resolver
from bounded_retrieval.contracts.ports import Assessor, DiagnosticSink, Searcher, UnitSource
from bounded_retrieval.contracts.relationships import RelationshipSource
from bounded_retrieval.contracts.request import PolicyName, Threshold
from bounded_retrieval.contracts.settings import BoundedContext
from bounded_retrieval.errors import ConfigurationError, RequestError, quoted
from bounded_retrieval.graph.choices import Choices, settle
from bounded_retrieval.graph.context import Cancelled, Parts
from bounded_retrieval.graph.routing import Edge, route_after_assess, route_after_inspect
from bounded_retrieval.graph.state import BoundedInput, BoundedOutput, BoundedState, narrowed
from bounded_retrieval.nodes.assess_coverage import assess_coverage
from bounded_retrieval.nodes.dense_search import dense_search
from bounded_retrieval.nodes.follow_path import follow_path
from bounded_retrieval.nodes.inspect_request import inspect_request
from bounded_retrieval.nodes.lexical_search import lexical_search
from bounded_retrieval.nodes.recheck_and_pack import recheck_and_pack
from bounded_retrieval.nodes.running import Node, can_fetch
from bounded_retrieval.nodes.time_limits import TimeLimit
from bounded_retrieval.policies.fusion import Fusion
from bounded_retrieval.policies.settings import NEEDED_CHANNEL, BuilderDefaults, DepthRule
from bounded_retrieval.policies.tokenize import TOKENIZER_NAME, tokenize
from bounded_retrieval.retrievers.langchain import as_searcher

BoundedGraph = StateGraph[BoundedState, Any, BoundedInput, Any]
Router = Callable[[BoundedState], str]

MAX_TIMEOUT_MS = 60_000
"""Longest ``eligibility_timeout_ms``."""


def create_bounded_retrieval(  # noqa: PLR0913 - one keyword for each part a caller may replace
    lexical: Any = None,
    dense: Any = None,
    *,
    units: UnitSource | None = None,
    assessor: Assessor | None = None,
    fusion: Fusion | None = None,
    preset: Literal["reference"] | None = None,
    policy: PolicyName = "adaptive",
    threshold: float | None = None,
    budget: Budget | None = None,
    first_hop_rows: int | None = None,
    calibration: Calibration | str | Path | None = None,
    id_key: str | None = None,
    eligibility: Resolver | None = None,
    eligibility_timeout_ms: int = ELIGIBILITY_TIMEOUT_MS,
    relationships: RelationshipSource | None = None,
    diagnostics: DiagnosticSink | None = None,
    cancelled: Cancelled | None = None,
    context_schema: type[Any] | None = BoundedContext,
    output_keys: Sequence[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> BoundedGraph:
    """Build the controller as an uncompiled ``StateGraph``; compile it with the checkpointer of your choice.

    Args:
        lexical: the lexical channel: a searcher, or a LangChain ``BaseRetriever`` or ``VectorStore``.
        dense: the dense channel, likewise. Either may be missing; a dense channel alone runs ``fixed_dense``.
        units: where the recheck reads current text; none lets each searcher vouch for what it returned first.
        assessor: infers from the returned units whether to stop; by default `Scorecard`, or `TermCoverage` over a
            lexical searcher that cannot weigh a query's terms.
        fusion: ranks the candidates of both channels; by default `ScoreFusion`, or `ReciprocalRankFusion` over
            searchers that cannot score what the other one found, or whose scores are of another scale.
        preset: ``"reference"`` is term coverage at .8, reciprocal rank fusion, 3 + 3 rows, and never changes.
        policy: who decides after the first search, unless the request or the context says otherwise.
        threshold: 0 to 1; none takes the assessor's own default.
        budget: limits of a run, and the ceiling for requests and contexts.
        first_hop_rows: rows the lexical call asks for, the dense call the rest of ``max_rows``; by default two thirds
            of them (4 of 6) beside `Scorecard` and `ScoreFusion`, else half of them, at least 3. With as many as
            ``max_rows`` or more nothing is left for a dense call.
        calibration: what ``bounded-retrieval calibrate`` wrote, or its path: fixes assessor, fusion, threshold, depths.
        id_key: metadata field that adapted LangChain objects' documents are identified by.
        eligibility: called with the runtime, gives the caller's `EligibilityView`; may be async. None: all is public.
        eligibility_timeout_ms: 1 to 60,000; a resolver, or a view's ``allowed``, that takes longer has denied.
        relationships: what requests with a ``path`` follow; a `RelationshipStore`, for example.
        diagnostics: receives protected records (raw errors, ids dropped at the recheck); nothing else does.
        cancelled: polled with the LangGraph runtime before and after each call; true ends the run in a packet.
        context_schema: of the runtime context (any, if only ``eligibility`` is given); our settings are read from it.
        output_keys: which of ``packet``, ``documents``, ``stop_reason``, ``trace`` the graph returns; all of them.
        clock: seconds from any fixed point, for ``deadline_ms``.

    Raises:
        ConfigurationError: the parts cannot work together.
        RequestError: a setting is out of bounds.
        SourceError: the calibration cannot be read.
    """
    _check_settings(id_key, context_schema, output_keys)
    chosen: dict[str, Any] = {"assessor": assessor, "fusion": fusion, "threshold": threshold}
    chosen |= {"first_hop_rows": first_hop_rows, "budget": budget}
    searchers = _adapt({"lexical": lexical, "dense": dense}, id_key)
    settled = settle(Choices(**chosen), preset, calibration, searchers)
    assessor, fusion = settled.assessor, settled.fusion
    rows = None if callable(settled.first_hop_rows) else settled.first_hop_rows
    asked = _check(policy=policy, threshold=settled.threshold, budget=settled.budget, first_hop_rows=rows)
    given: dict[str, Any] = {"cancelled": cancelled, "diagnostics": diagnostics, "clock": clock}
    _check_parts(units, assessor, fusion, **given)
    _check_relationships(relationships, [units, *searchers.values()])
    given |= {"units": units, "assessor": assessor, "fusion": fusion, "relationships": relationships}
    guard = _guard(eligibility, eligibility_timeout_ms, units, searchers)
    defaults = _defaults(searchers, assessor, asked, settled.first_hop_rows)
    # The reference compares words as they stand, whatever forms the lexical index folds.
    channels = _channels(searchers) | ({"stem": None} if preset == "reference" else {})
    parts = Parts(**given, **guard, **channels, defaults=defaults)
    return _wire(parts, _schema_beside(context_schema, eligibility), output_keys)


def parts_of(graph: Any) -> Parts | None:
    """The parts that a bounded graph, compiled or not, was built from; none of any other object."""
    parts = getattr(getattr(graph, "builder", graph), "bounded_parts", None)
    return parts if isinstance(parts, Parts) else None


def unguarded_parts() -> Parts:
    """Parts without searchers or a resolver: whatever is rechecked by them is public and has nobody to vouch for it."""
    settled = settle(Choices(), None, None, {})
    return Parts(
        lexical=None,
        dense=None,
        units=None,
        assessor=settled.assessor,
        fusion=settled.fusion,
        tokenizer=tokenize,
        tokenizer_name=TOKENIZER_NAME,
        stem=None,
        defaults=BuilderDefaults(
            policy="adaptive",
            threshold=settled.assessor.default_threshold,
            budget=Budget(),
            first_hop_rows=settled.first_hop_rows,
            channels=(),
        ),
        cancelled=None,
        diagnostics=None,
        clock=time.monotonic,
    )


def _wire(parts: Parts, context_schema: type[Any] | None, output_keys: Sequence[str] | None) -> BoundedGraph:
    builder = StateGraph(
        BoundedState,
        context_schema=context_schema,
        input_schema=BoundedInput,
        output_schema=narrowed(BoundedOutput, output_keys),
    )
    builder.add_node("inspect_request", Node(inspect_request, parts))
    builder.add_node("lexical_search", Node(lexical_search, parts))
    builder.add_node("assess_coverage", Node(assess_coverage, parts))
    builder.add_node("dense_search", Node(dense_search, parts))
    builder.add_node("follow_path", Node(follow_path, parts))
    builder.add_node("recheck_and_pack", Node(recheck_and_pack, parts))
    builder.add_edge(START, "inspect_request")
    _add_edges(
        builder,
        "inspect_request",
        *_labelled(route_after_inspect, lexical_search="text", dense_search="fixed_dense", follow_path="structured"),
    )
    builder.add_edge("lexical_search", "assess_coverage")
    builder.add_edge("dense_search", "assess_coverage")
    _add_edges(
        builder,
        "assess_coverage",
        *_labelled(route_after_assess, dense_search="continue", recheck_and_pack="stop"),
    )
    builder.add_edge("follow_path", "recheck_and_pack")
    builder.add_edge("recheck_and_pack", END)
    # Where the recursive chain finds who may see what, and how to check it again.
    builder.bounded_parts = parts  # type: ignore[attr-defined]
    return builder


def _add_edges(builder: BoundedGraph, source: str, label: Router, path_map: dict[Hashable, str]) -> None:
    builder.add_conditional_edges(source, label, path_map)
    branches = builder.branches[source]
    for name, branch in branches.items():
        branches[name] = branch._replace(path=Edge(label, branch.path))


def _labelled(route: Router, **labels: str) -> tuple[Router, dict[Hashable, str]]:
    # LangGraph draws the path map's keys on the edges; the router itself returns node names.
    def label(state: BoundedState) -> str:
        return labels[route(state)]

    label.__name__ = getattr(route, "__name__", "route")
    return label, {text: node for node, text in labels.items()}


def _adapt(given: dict[Channel, Any], id_key: str | None) -> dict[Channel, Searcher | None]:
    if all(searcher is None for searcher in given.values()):
        raise ConfigurationError("lexical, dense: at least one of the two searchers is needed")
    return {
        channel: None if searcher is None else as_searcher(searcher, channel, id_key=id_key)
        for channel, searcher in given.items()
    }


def check_callables(**given: object) -> None:
    """Refuse what is no plain function among the parts that are called synchronously.

    Raises:
        ConfigurationError: names the part.
    """
    for name, function in given.items():
        if function is not None and not callable(function):
            raise ConfigurationError(f"{name}: expected a function (got {type(function).__name__})")
        if _is_async(function):
            raise ConfigurationError(f"{name}: is called synchronously; give a plain function (got an async one)")
    if given["clock"] is None:
        raise ConfigurationError("clock: expected a function (got None)")


def _is_async(function: object) -> bool:
    """Whether a call of it gives a coroutine or an asynchronous generator, of which any is true."""
    while isinstance(function, partial):
        function = function.func
    called = (function, getattr(type(function), "__call__", None))  # noqa: B004 - an object whose call is asynchronous
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in called)


def _check_settings(id_key: object, context_schema: object, output_keys: object) -> None:
    if id_key is not None and not isinstance(id_key, str):
        raise ConfigurationError(f"id_key: expected the name of a metadata field (got {quoted(id_key)})")
    if context_schema is not None and not isinstance(context_schema, type) and get_origin(context_schema) is None:
        raise ConfigurationError(f"context_schema: expected a class (got {quoted(context_schema)})")
    is_list = isinstance(output_keys, Iterable) and all(isinstance(key, str) for key in output_keys)
    if output_keys is not None and not is_list:
        raise ConfigurationError(f"output_keys: expected a list of keys (got {quoted(output_keys)})")


def _check_parts(units: object, assessor: object, fusion: object, **functions: object) -> None:
    check_callables(**functions)
    for name, part in {"units": units, "assessor": assessor, "fusion": fusion}.items():
        if isinstance(part, type):
            raise ConfigurationError(f"{name}: expected an instance (got the class {part.__name__})")
    if not hasattr(fusion, "fuse"):
        raise ConfigurationError(f"fusion: expected an object with fuse(rankings) (got {type(fusion).__name__})")
    if units is not None and not can_fetch(units):
        raise ConfigurationError(f"units: expected an object with fetch(unit_ids) (got {type(units).__name__})")
    if not hasattr(assessor, "assess") and not hasattr(assessor, "aassess"):
        raise ConfigurationError(f"assessor: expected an object with assess(given) (got {type(assessor).__name__})")


def _guard(
    eligibility: object, timeout_ms: object, units: object, searchers: Mapping[Channel, Searcher | None]
) -> dict[str, Any]:
    _check_eligibility(eligibility, units, [searcher for searcher in searchers.values() if searcher is not None])
    return {"eligibility": eligibility, "eligibility_limit": _time_limit(timeout_ms)}


def _schema_beside(context_schema: type[Any] | None, eligibility: object) -> type[Any] | None:
    # The caller stands in the application's own context, which our schema would refuse.
    return None if eligibility is not None and context_schema is BoundedContext else context_schema


def _check_eligibility(eligibility: object, units: object, searchers: Sequence[object]) -> None:
    if eligibility is not None and (not callable(eligibility) or isinstance(eligibility, type)):
        kind = eligibility.__name__ if isinstance(eligibility, type) else type(eligibility).__name__
        raise ConfigurationError(
            f"eligibility: expected a resolver, which takes the runtime and returns a view (got {kind})"
        )
    blind = [searcher for searcher in searchers if not can_fetch(searcher)]
    if getattr(eligibility, "needs_current_metadata", False) and units is None and blind:
        raise ConfigurationError(
            f"units: {type(eligibility).__name__} decides by units' current metadata; give units=, since "
            f"{type(blind[0]).__name__} cannot be asked for it"
        )


def _time_limit(milliseconds: Any) -> TimeLimit:
    is_number = isinstance(milliseconds, (int, float)) and not isinstance(milliseconds, bool)
    if not is_number or not 1 <= milliseconds <= MAX_TIMEOUT_MS:
        raise ConfigurationError(f"eligibility_timeout_ms: 1 to {MAX_TIMEOUT_MS} (got {milliseconds!r})")
    return TimeLimit(milliseconds / 1000)


def _check_relationships(relationships: object, sources: Sequence[object]) -> None:
    if relationships is None:
        return
    if isinstance(relationships, type) or not isinstance(relationships, RelationshipSource):
        kind = relationships.__name__ if isinstance(relationships, type) else type(relationships).__name__
        raise ConfigurationError(f"relationships: expected a RelationshipStore or the like (got {kind})")
    if not any(can_fetch(source) for source in sources):
        raise ConfigurationError("relationships: give units= too; nothing else here can read the sources of a path")


def _channels(searchers: Mapping[Channel, Searcher | None]) -> dict[str, Any]:
    """The searchers, and the tokenizer that the lexical one shares with the coverage assessment."""
    lexical = searchers["lexical"]
    tokenizer = getattr(lexical, "tokenizer", None)
    name = getattr(lexical, "tokenizer_name", getattr(tokenizer, "__name__", type(tokenizer).__name__))
    chosen = (tokenize, TOKENIZER_NAME) if tokenizer is None else (tokenizer, name)
    return {
        "lexical": lexical,
        "dense": searchers["dense"],
        "tokenizer": chosen[0],
        "tokenizer_name": chosen[1],
        "stem": getattr(lexical, "stem", None),
    }


def _check(**settings: Any) -> BoundedContext:
    try:
        return BoundedContext.model_validate(settings)
    except ValidationError as error:
        raise RequestError.from_validation(error, "create_bounded_retrieval") from None


def _defaults(
    searchers: dict[Channel, Searcher | None], assessor: Assessor, asked: BoundedContext, rows: int | DepthRule
) -> BuilderDefaults:
    channels = tuple(channel for channel, searcher in searchers.items() if searcher is not None)
    policy = asked.policy or "adaptive"
    if policy == "adaptive" and channels == ("dense",):
        policy = "fixed_dense"
    if NEEDED_CHANNEL[policy] not in channels:
        raise ConfigurationError(f"policy: {policy} needs a {NEEDED_CHANNEL[policy]} searcher")
    return BuilderDefaults(
        policy=policy,
        threshold=_threshold(asked, assessor),
        budget=asked.budget or Budget(),
        first_hop_rows=rows,
        channels=channels,
    )


def _threshold(asked: BoundedContext, assessor: Assessor) -> float:
    if asked.threshold is not None:
        return asked.threshold
    try:
        return TypeAdapter(Threshold).validate_python(assessor.default_threshold)
    except ValidationError as error:
        raise RequestError.from_validation(error, f"{assessor.name}.default_threshold") from None
