"""Resolve the settings of one run: request, then runtime context, then builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Channel
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.request import PolicyName, RetrievalRequest
from bounded_retrieval.contracts.settings import BoundedContext, RunSettings
from bounded_retrieval.errors import RequestError

NEEDED_CHANNEL: Mapping[PolicyName, Channel] = {
    "adaptive": "lexical",
    "always_continue": "lexical",
    "fixed_lexical": "lexical",
    "fixed_dense": "dense",
}
"""The channel without which a policy cannot make its first search."""

T = TypeVar("T")

DepthRule = Callable[[int], int]
"""Rows that the lexical call asks for, from ``max_rows``."""


@dataclass(frozen=True, kw_only=True)
class BuilderDefaults:
    """What the builder settled; its budget is a ceiling.

    Attributes:
        first_hop_rows: a number, or how it follows from a run's ``max_rows``.
    """

    policy: PolicyName
    threshold: float
    budget: Budget
    first_hop_rows: int | DepthRule
    channels: tuple[Channel, ...]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The four settings that a request or a context may change."""

    policy: PolicyName
    threshold: float
    limits: Budget
    first_hop_rows: int


def read_request(query: str | None, request: Any) -> RetrievalRequest:
    """Validate graph input: ``query`` and the optional ``request`` mapping as one `RetrievalRequest`.

    Raises:
        RequestError: names the field that is missing, unknown, contradictory or out of bounds.
    """
    fields = _as_fields(request)
    if query is None and "query" not in fields:
        raise RequestError("query: missing from the graph's input")
    named = fields.setdefault("query", query)
    if query is not None and _cleaned(named) != _cleaned(query):
        raise RequestError("request.query: differs from the input's query")
    try:
        return RetrievalRequest.model_validate(fields)
    except ValidationError as error:
        raise RequestError.from_validation(error, "request") from None


def read_context(context: Any) -> BoundedContext:
    """Read our settings out of whatever context object the application passed, and nothing else of it.

    Raises:
        RequestError: a field that is ours holds a value that is not.
    """
    if isinstance(context, BoundedContext):
        return context
    if context is None:
        return BoundedContext()
    if isinstance(context, Mapping):
        found = {name: context.get(name) for name in BoundedContext.model_fields}
    else:
        found = {name: getattr(context, name, None) for name in BoundedContext.model_fields}
    try:
        return BoundedContext.model_validate({name: value for name, value in found.items() if value is not None})
    except ValidationError as error:
        raise RequestError.from_validation(error, "context") from None


def resolve(request: RetrievalRequest, context: BoundedContext, defaults: BuilderDefaults) -> Resolved:
    """Apply the precedence request, context, builder; a budget may only lower the builder's.

    Raises:
        RequestError: a limit above the builder's, or a policy whose channel is missing.
    """
    limits = lower(defaults.budget, context.budget, "context")
    limits = lower(limits, request.budget, "request")
    policy = _first(request.policy, context.policy, defaults.policy)
    channel = NEEDED_CHANNEL[policy]
    if channel not in defaults.channels:
        raise RequestError(f"policy: {policy} needs a {channel} searcher, and the graph was built without one")
    own = defaults.first_hop_rows
    rows = own(limits.max_rows) if callable(own) else own
    return Resolved(
        policy=policy,
        threshold=_first(request.threshold, context.threshold, defaults.threshold),
        limits=limits,
        first_hop_rows=_first(request.first_hop_rows, context.first_hop_rows, rows),
    )


def lower(ceiling: Budget, asked: Budget | None, where: str) -> Budget:
    """Lower a budget field by field; fields not set in ``asked`` are inherited.

    Raises:
        RequestError: names the field that asks for more than the ceiling.
    """
    if asked is None:
        return ceiling
    changes = {name: getattr(asked, name) for name in asked.model_fields_set if getattr(asked, name) is not None}
    for name, value in changes.items():
        limit = getattr(ceiling, name)
        if limit is not None and value > limit:
            raise RequestError(f"{where}.budget.{name}: may only lower the limit {limit} (got {value})")
    return ceiling.model_copy(update=changes)


def clamp(settings: RunSettings, defaults: BuilderDefaults) -> RunSettings:
    """Settings with no limit above the builder's: whoever can write a thread's state could have raised them there."""
    ceiling, limits = defaults.budget, settings.limits
    ours = limits.__dict__
    raised = {
        name: limit
        for name, limit in ceiling.__dict__.items()
        if limit is not None and (ours[name] is None or ours[name] > limit)
    }
    return settings.model_copy(update={"limits": limits.model_copy(update=raised)}) if raised else settings


def _as_fields(request: Any) -> dict[str, Any]:
    if request is None:
        return {}
    if isinstance(request, RetrievalRequest):
        return {name: getattr(request, name) for name in request.model_fields_set}
    if isinstance(request, Mapping):
        return {str(name): value for name, value in request.items()}
    raise RequestError(f"request: expected a mapping of RetrievalRequest fields (got {type(request).__name__})")


def _cleaned(query: Any) -> Any:
    return clean_text(query) if isinstance(query, str) else query


def _first(request: T | None, context: T | None, builder: T) -> T:
    if request is not None:
        return request
    return context if context is not None else builder
