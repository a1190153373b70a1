"""Node ``finish_chain``: check every unit once more, say what is open, and hand over the trail."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.chain import RESOLVING, ChainResult, Hop, NextQuery
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.errors import ChainStoppedError
from bounded_retrieval.graph.chain_state import LOG, ChainParts, ChainState, in_a_log
from bounded_retrieval.graph.state import Update
from bounded_retrieval.nodes.hops import Chain, enter
from bounded_retrieval.nodes.recheck_and_pack import recheck_units, units_in
from bounded_retrieval.nodes.running import Body, Call, has_method
from bounded_retrieval.policies.assembly import Recheck
from bounded_retrieval.policies.chaining import open_parts, pack_by_turns, without_dropped
from bounded_retrieval.policies.packing import Packing
from bounded_retrieval.policies.planners import TemplatePlanner


def finish_chain(state: ChainState, runtime: Runtime[Any], parts: ChainParts) -> Body:
    """End the chain. A unit that is gone, changed or no longer to be seen is dropped, with what was read from it.

    Raises:
        ChainStoppedError: the chain is unresolved, and the builder said ``on_stop="fail"``.
    """
    chain = yield from enter(state, runtime, parts)
    units = units_in(chain.state["units"], chain.access)
    recheck = yield from recheck_units(units, chain.state["sources"], chain.access, chain.query_id, parts.recheck)
    trail, lost = without_dropped(chain.closed(), recheck.dropped)
    stop_reason = StopReason(chain.state["stopped"])
    plan = yield from _with_the_rest(chain, stop_reason, parts)
    unresolved = open_parts(chain.question, trail, stop_reason, plan, lost)
    left = {unit_id: unit for unit_id, unit in units.items() if unit_id not in recheck.dropped}
    packing = pack_by_turns(trail, left, chain.limits)
    clarification = yield from _clarify(chain, unresolved, trail, parts)
    output = {
        "stop_reason": stop_reason.value,
        "resolved": not unresolved,
        "unresolved": list(unresolved),
        "trail": [hop.model_dump(mode="json") for hop in trail],
        "documents": [left[unit_id].to_document() for unit_id in packing.unit_ids],
        "chain": _facts(chain, recheck, packing, clarification),
    }
    event = {key: output[key] for key in ("stop_reason", "resolved", "unresolved")}
    runtime.stream_writer({"event": "chain_finished", "query_id": chain.query_id, "hops": len(trail), **event})
    LOG.info("chain %s ended, hops %d: %s", in_a_log(chain.query_id), len(trail), stop_reason.value)
    if unresolved and parts.on_stop == "fail":
        raise ChainStoppedError(ChainResult.from_result(output))  # type: ignore[arg-type]
    # What was seen on the way should not stay in the thread's latest state.
    return {**output, "units": {}, "sources": {}, "plan": None, "checks": []}


def _with_the_rest(chain: Chain, stop_reason: StopReason, parts: ChainParts) -> Generator[Call, Any, NextQuery | None]:
    """The plan, and where a rule ended the chain before the planner was asked again, what it would still have asked."""
    if not has_method(parts.planner, "remaining") or stop_reason in RESOLVING:
        return chain.plan
    plan = chain.plan or NextQuery(query=None)
    call = chain.call(parts.planner, "remaining", chain.question, chain.shown(), parts=parts)
    # Declared templates are read, which takes no time; whoever else is asked has what is left of the deadline.
    call = replace(call, is_optional=True, is_pure=type(parts.planner) is TemplatePlanner)
    if not call.is_pure and call.limit is not None and call.limit.seconds <= 0:
        return chain.plan
    try:
        left = yield call
        parts_left = (left,) if isinstance(left, str) else tuple(left)
        return NextQuery(query=plan.query, unresolved=(*plan.unresolved, *parts_left))
    except Exception as error:  # noqa: BLE001 - without it the question itself is open
        parts.report({"event": "planner_failed", "query_id": chain.query_id, "error": error})
        return chain.plan


def _facts(chain: Chain, recheck: Recheck, packing: Packing, clarification: str | None) -> Update:
    limits = {skip.limit for skip in packing.skipped}
    cut = [note for note, met in (("unit_too_long", {"fits_alone"}), ("documents_cut", limits)) if met & limits]
    return {
        "query": chain.question,
        "query_id": chain.query_id,
        "clarification": clarification,
        "limits": chain.limits.model_dump(),
        "usage": chain.usage.model_dump(),
        "notes": list(dict.fromkeys([*chain.state["notes"], *recheck.notes, *cut])),
    }


def _clarify(
    chain: Chain, unresolved: tuple[str, ...], trail: tuple[Hop, ...], parts: ChainParts
) -> Generator[Call, Any, str | None]:
    if not unresolved or parts.on_stop != "clarify":
        return None
    plain = f"What more can you say about this: {unresolved[0]}"
    if parts.clarifier is None:
        return plain
    call = chain.call(parts.clarifier, "clarify", chain.question, unresolved, trail, parts=parts)
    if call.limit is not None and call.limit.seconds <= 0:
        return plain
    try:
        answer = yield call
    except Exception as error:  # noqa: BLE001 - the plain question will do
        parts.report({"event": "clarifier_failed", "query_id": chain.query_id, "error": error})
        return plain
    return clean_text(answer).strip() if isinstance(answer, str) and answer.strip() else plain
