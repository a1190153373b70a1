from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.request import RetrievalRequest
from bounded_retrieval.contracts.settings import BoundedContext
from bounded_retrieval.errors import RequestError
from bounded_retrieval.policies.settings import BuilderDefaults, Resolved, lower, read_context, read_request, resolve

BUILDER = BuilderDefaults(
    policy="adaptive", threshold=0.8, budget=Budget(), first_hop_rows=3, channels=("lexical", "dense")
)


def settle(
    request: dict[str, Any] | None = None, context: dict[str, Any] | None = None, builder: BuilderDefaults = BUILDER
) -> Resolved:
    """The settings that request, context and builder come to."""
    return resolve(read_request("x", request), read_context(context), builder)


PRECEDENCE = [
    ("policy", "adaptive", "fixed_dense", "fixed_lexical"),
    ("threshold", 0.8, 0.5, 0.0),
    ("first_hop_rows", 3, 2, 1),
]


@pytest.mark.parametrize(("field", "builder", "context", "request_value"), PRECEDENCE)
def test_request_before_context_before_builder(field: str, builder: Any, context: Any, request_value: Any) -> None:
    """Each setting comes from the request if given, else from the context if given, else from the builder."""
    assert getattr(settle(), field) == builder
    assert getattr(settle(context={field: context}), field) == context
    assert getattr(settle({field: request_value}), field) == request_value
    assert getattr(settle({field: request_value}, {field: context}), field) == request_value
    assert getattr(settle({field: None}, {field: context}), field) == context


LOWERED = [
    ("max_calls", 1),
    ("max_iterations", 1),
    ("max_rows", 4),
    ("max_reads", 5),
    ("max_units", 0),
    ("max_chars", 10),
    ("deadline_ms", 100),
]


@pytest.mark.parametrize(("limit", "value"), LOWERED)
def test_each_limit_may_be_lowered(limit: str, value: int) -> None:
    """Request and context may lower any limit; all others are inherited."""
    expected = Budget().model_copy(update={limit: value})
    assert settle({"budget": {limit: value}}).limits == expected
    assert settle(context={"budget": {limit: value}}).limits == expected


@pytest.mark.parametrize("limit", [limit for limit, _ in LOWERED])
@pytest.mark.parametrize("where", ["request", "context"])
def test_no_limit_may_be_raised(limit: str, where: str) -> None:
    """Asking for more than the builder allows is an error that names place, limit, ceiling and value."""
    builder = BuilderDefaults(
        policy="adaptive", threshold=0.8, budget=Budget(**{limit: 1}), first_hop_rows=3, channels=("lexical", "dense")
    )
    with pytest.raises(RequestError, match=rf"^{where}\.budget\.{limit}: may only lower the limit 1 \(got 2\)$"):
        settle(**{where: {"budget": {limit: 2}}}, builder=builder)


@pytest.mark.parametrize(("limit", "value"), LOWERED)
def test_the_limit_itself_may_be_named(limit: str, value: int) -> None:
    """Asking for exactly what is allowed is no attempt to raise it."""
    allowed = Budget(**{limit: value})
    assert lower(allowed, allowed, "request") == allowed


def test_the_context_lowers_the_ceiling_for_the_request() -> None:
    """A request may not take back what the context lowered."""
    limits = settle({"budget": {"max_rows": 3}}, {"budget": {"max_rows": 4, "max_units": 2}}).limits
    assert (limits.max_rows, limits.max_units) == (3, 2)
    with pytest.raises(RequestError, match=r"request\.budget\.max_rows: may only lower the limit 4 \(got 5\)"):
        settle({"budget": {"max_rows": 5}}, {"budget": {"max_rows": 4}})


def test_a_deadline_may_be_added_but_not_removed() -> None:
    """A missing deadline may be set by anyone; a set one is not lifted by saying none."""
    assert settle({"budget": {"deadline_ms": 600_000}}).limits.deadline_ms == 600_000
    assert settle({"budget": {"deadline_ms": None}}, {"budget": {"deadline_ms": 50}}).limits.deadline_ms == 50


def test_limits_left_out_are_inherited_not_defaulted() -> None:
    """A budget that names one limit does not bring the defaults of the others."""
    assert lower(Budget(max_rows=20, max_units=10), Budget(max_rows=10), "request") == Budget(max_rows=10, max_units=10)
    assert lower(Budget(max_rows=1), None, "request") == Budget(max_rows=1)


@dataclass
class AppContext:
    tenant: str
    threshold: float | None = None
    budget: Any = None


class Attributes:
    """An application's own class with one of our settings and one that is not ours."""

    def __init__(self) -> None:
        self.policy = "always_continue"
        self.user = object()


CONTEXTS = [
    (None, {}),
    ({}, {}),
    ({"threshold": 0.5, "tenant": "acme"}, {"threshold": 0.5}),
    (AppContext("acme"), {}),
    (AppContext("acme", 0.5, Budget(max_rows=2)), {"threshold": 0.5, "budget": Budget(max_rows=2)}),
    (AppContext("acme", budget={"max_rows": 2}), {"budget": Budget(max_rows=2)}),
    (Attributes(), {"policy": "always_continue"}),
    (SimpleNamespace(first_hop_rows=2), {"first_hop_rows": 2}),
    (BoundedContext(threshold=0.1), {"threshold": 0.1}),
    ("a string", {}),
]


@pytest.mark.parametrize(("context", "ours"), CONTEXTS, ids=lambda value: type(value).__name__)
def test_our_settings_are_read_from_any_context(context: Any, ours: dict[str, Any]) -> None:
    """From a mapping, a dataclass or any object our fields are read where present, and nothing else of it."""
    assert read_context(context) == BoundedContext(**ours)


@pytest.mark.parametrize("context", [{"threshold": 2}, SimpleNamespace(threshold=2), AppContext("acme", 2)])
def test_a_bad_setting_in_a_context_is_named(context: Any) -> None:
    """A field that is ours must hold a value that is ours."""
    with pytest.raises(RequestError, match=r"^context\.threshold: Input should be less than or equal to 1 \(got 2\)$"):
        read_context(context)


POLICIES = [
    ("adaptive", "dense", "lexical"),
    ("always_continue", "dense", "lexical"),
    ("fixed_lexical", "dense", "lexical"),
    ("fixed_dense", "lexical", "dense"),
]


@pytest.mark.parametrize(("policy", "only", "needed"), POLICIES)
def test_a_policy_needs_its_first_channel(policy: str, only: str, needed: str) -> None:
    """A policy whose first search has no searcher is refused by name."""
    builder = BuilderDefaults(policy="adaptive", threshold=0.8, budget=Budget(), first_hop_rows=3, channels=(only,))
    with pytest.raises(RequestError, match=f"policy: {policy} needs a {needed} searcher"):
        settle({"policy": policy}, builder=builder)


def test_query_may_stand_in_the_request_alone_or_twice_alike() -> None:
    """The query comes from the input or from the request, and both may say the same."""
    assert (
        read_request(None, {"query": "x"})
        == read_request("x", {"query": "x"})
        == read_request("x", None)
        == RetrievalRequest(query="x")
    )


def test_a_request_object_is_taken_as_it_is() -> None:
    """A validated request may be given instead of a mapping and keeps what it named."""
    request = RetrievalRequest(query="x", policy="fixed_dense", budget=Budget(max_rows=2))
    assert read_request("x", request) == request


BAD_INPUT = [
    (None, None, "query: missing from the graph's input"),
    (None, {"policy": "adaptive"}, "query: missing from the graph's input"),
    ("x", {"query": "y"}, "request.query: differs from the input's query"),
    ("x", [1], r"request: expected a mapping of RetrievalRequest fields \(got list\)"),
    ("x", "adaptive", r"request: expected a mapping of RetrievalRequest fields \(got str\)"),
    ("x", {"rerank": 1}, r"request.rerank: unknown field \(got 1\)"),
    ("x", {5: 1}, "'5': unknown field"),
    ("x", {"qrels": {}}, "request: qrels refused: labels never reach the decision"),
    ("x", {"relevant_ids": [], "answer": ""}, "request: answer, relevant_ids refused"),
    ("x", {"budget": {"max_rows": -1}}, r"request.budget.max_rows: .* \(got -1\)"),
    (" ", None, "request.query: must hold at least one character"),
]


@pytest.mark.parametrize(("query", "request_fields", "message"), BAD_INPUT)
def test_bad_input_is_named(query: str | None, request_fields: Any, message: str) -> None:
    """Each problem of the graph's input gives one line that names the field."""
    with pytest.raises(RequestError, match=message) as caught:
        read_request(query, request_fields)
    assert "\n" not in str(caught.value)


def test_the_callers_request_is_not_changed() -> None:
    """Reading a request edits neither the mapping nor what it holds."""
    fields = {"budget": {"max_rows": 2}}
    read_request("x", fields)
    assert fields == {"budget": {"max_rows": 2}}
