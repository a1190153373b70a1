"""Node ``plan_hop``: ask the planner what to look up next, and check that it may be looked up."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from langgraph.runtime import Runtime
from pydantic import ValidationError

from bounded_retrieval.contracts.chain import (
    MAX_HOP_QUERY_CHARS,
    ChainLimits,
    ChainRequest,
    ChainUsage,
    Check,
    NextQuery,
)
from bounded_retrieval.errors import RequestError
from bounded_retrieval.graph.chain_state import ChainParts, ChainState
from bounded_retrieval.graph.state import Update
from bounded_retrieval.nodes.clock import interruption
from bounded_retrieval.nodes.hops import Chain, enter, tokens_of
from bounded_retrieval.nodes.running import Body, Call
from bounded_retrieval.policies.chaining import check_limits_left, check_plan, first_fired
from bounded_retrieval.policies.settings import read_request
from bounded_retrieval.policies.stopping import INTERRUPTED


def plan_hop(state: ChainState, runtime: Runtime[Any], parts: ChainParts) -> Body:
    """Settle the request at the first hop; then take the planner's next query, unless a rule forbids it.

    Raises:
        RequestError: the request is not valid.
    """
    begun = {} if _has_begun(state) else _begin(state, parts)
    if not begun and state["stopped"]:
        raise RequestError("query: missing from the graph's input")
    chain = yield from enter({**state, **begun}, runtime, parts)  # type: ignore[typeddict-item]
    if chain.forgotten:
        return begun | chain.forgotten
    stopped = interruption(runtime, parts, chain.limits, chain.watch)
    if stopped is not None:
        return begun | chain.checked([Check(rule=INTERRUPTED[stopped], fired=True, found=stopped)])
    left = check_limits_left(chain.trail, chain.usage, chain.limits, steps_suffice=True)
    if first_fired(left) is not None:
        return begun | chain.checked(left)
    plan, tokens, note = yield from _plan(chain, parts)
    usage = chain.usage.plus(ChainUsage(tokens=tokens))
    checks = check_plan(plan, chain.trail, usage, chain.limits, parts.rules)
    stopped = interruption(runtime, parts, chain.limits, chain.watch)
    if stopped is not None:
        checks = (Check(rule=INTERRUPTED[stopped], fired=True, found=stopped), *checks)
    return {
        **begun,
        "plan": None if plan is None else plan.model_dump(mode="json"),
        "planning": chain.state["planning"] + tokens,
        "notes": list(dict.fromkeys([*chain.state["notes"], *([note] if note else [])])),
        **chain.checked(checks),
    }


def _has_begun(state: ChainState) -> bool:
    # Input channels are empty after the step that they came in; a query therefore begins a chain.
    return "settings" in state and state.get("query") is None and state.get("request") is None


def _begin(state: ChainState, parts: ChainParts) -> Update:
    given = state.get("request") or {}
    if not isinstance(given, Mapping):
        raise RequestError(f"request: expected a mapping of ChainRequest fields (got {type(given).__name__})")
    try:
        request = ChainRequest.model_validate(dict(given))
    except ValidationError as error:
        raise RequestError.from_validation(error, "request") from None
    asked = read_request(state.get("query"), {"query_id": request.query_id} if request.query_id else None)
    limits = _lower(parts.limits, request.limits)
    return {
        "settings": {"question": asked.query, "query_id": asked.query_id, "limits": limits.model_dump()},
        "plan": None,
        "planning": 0,
        "checks": [],
        "stopped": "",
        "units": {},
        "sources": {},
        "notes": [],
        "view": {},
        "elapsed_ms": 0.0,
        "trail": [],
        "documents": [],
        "stop_reason": "",
        "resolved": False,
        "unresolved": [],
        "chain": {},
    }


def _lower(ceiling: ChainLimits, asked: ChainLimits | None) -> ChainLimits:
    named = {} if asked is None else {name: getattr(asked, name) for name in asked.model_fields_set}
    changes = {name: value for name, value in named.items() if value is not None}
    for name, value in changes.items():
        limit = getattr(ceiling, name)
        if limit is not None and value > limit:
            raise RequestError(f"request.limits.{name}: may only lower the limit {limit} (got {value})")
    return ceiling.model_copy(update=changes)


def _plan(chain: Chain, parts: ChainParts) -> Generator[Call, Any, tuple[NextQuery | None, int, str | None]]:
    """The planner's answer as a `NextQuery` (none when it failed), its tokens, and a note on what was wrong with it."""
    try:
        answer = yield chain.call(parts.planner, "plan", chain.question, chain.shown(), parts=parts)
        plan = _read(answer)
    except Exception as error:  # noqa: BLE001 - whatever a planner raises, there is no plan
        parts.report({"event": "planner_failed", "query_id": chain.query_id, "error": error})
        return None, tokens_of(error), "planner_failed"
    if plan.query is None or 0 < len(plan.query) <= MAX_HOP_QUERY_CHARS:
        return plan, plan.tokens, None
    # A query that cannot be made is no sign that nothing is left to look up.
    open_still = (*plan.unresolved, chain.question)
    return plan.model_copy(update={"query": None, "unresolved": open_still}), plan.tokens, "unusable_query"


def _read(answer: Any) -> NextQuery:
    if answer is None or isinstance(answer, str):
        return NextQuery(query=answer)
    if isinstance(answer, (NextQuery, Mapping)):
        return NextQuery.model_validate(answer)
    raise TypeError(f"a planner returns a query, a NextQuery or None (got {type(answer).__name__})")
