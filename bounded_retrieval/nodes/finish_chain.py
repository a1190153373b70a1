"""Node ``finish_chain``: check every unit once more, say what is open, and hand over the trail."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.chain import ChainResult
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.errors import ChainStoppedError
from bounded_retrieval.graph.chain_state import LOG, ChainParts, ChainState
from bounded_retrieval.graph.state import Update
from bounded_retrieval.nodes.hops import Chain, enter
from bounded_retrieval.nodes.recheck_and_pack import recheck_units
from bounded_retrieval.nodes.running import Body, Call, part_call
from bounded_retrieval.policies.assembly import Recheck
from bounded_retrieval.policies.chaining import open_parts, pack_by_turns, without_dropped


def finish_chain(state: ChainState, runtime: Runtime[Any], parts: ChainParts) -> Body:
    """End the chain. A unit that is gone, changed or no longer to be seen is dropped, with what was read from it.

    Raises:
        ChainStoppedError: the chain is unresolved, and the builder said ``on_stop="fail"``.
    """
    chain = yield from enter(state, runtime, parts)
    units = {unit_id: Unit.model_validate(unit) for unit_id, unit in chain.state["units"].items()}
    recheck = yield from recheck_units(units, chain.state["sources"], chain.access, chain.query_id, parts.recheck)
    trail = without_dropped(chain.closed(), recheck.dropped)
    lost = [hop.number for hop, left in zip(chain.trail, trail, strict=True) if hop.sub_answer != left.sub_answer]
    stop_reason = StopReason(chain.state["stopped"])
    unresolved = open_parts(chain.question, trail, stop_reason, chain.plan, lost)
    left = {unit_id: unit for unit_id, unit in units.items() if unit_id not in recheck.dropped}
    clarification = yield from _clarify(chain, unresolved, parts)
    output = {
        "stop_reason": stop_reason.value,
        "resolved": not unresolved,
        "unresolved": list(unresolved),
        "trail": [hop.model_dump(mode="json") for hop in trail],
        "documents": [left[unit_id].to_document() for unit_id in pack_by_turns(trail, left, chain.limits)],
        "chain": _facts(chain, recheck, clarification),
    }
    event = {key: output[key] for key in ("stop_reason", "resolved", "unresolved")}
    runtime.stream_writer({"event": "chain_finished", "query_id": chain.query_id, "hops": len(trail), **event})
    LOG.info("chain %s ended after %d hops: %s", chain.query_id, len(trail), stop_reason.value)
    if unresolved and parts.on_stop == "fail":
        raise ChainStoppedError(ChainResult.from_result(output))  # type: ignore[arg-type]
    # What was seen on the way should not stay in the thread's latest state.
    return {**output, "units": {}, "sources": {}, "plan": None, "checks": []}


def _facts(chain: Chain, recheck: Recheck, clarification: str | None) -> Update:
    return {
        "query": chain.question,
        "query_id": chain.query_id,
        "clarification": clarification,
        "limits": chain.limits.model_dump(),
        "usage": chain.usage.model_dump(),
        "notes": list(dict.fromkeys([*chain.state["notes"], *recheck.notes])),
    }


def _clarify(chain: Chain, unresolved: tuple[str, ...], parts: ChainParts) -> Generator[Call, Any, str | None]:
    if not unresolved or parts.on_stop != "clarify":
        return None
    plain = f"What more can you say about this: {unresolved[0]}"
    if parts.clarifier is None:
        return plain
    try:
        answer = yield part_call(parts.clarifier, "clarify", chain.question, unresolved, chain.closed())
    except Exception as error:  # noqa: BLE001 - the plain question will do
        parts.report({"event": "clarifier_failed", "query_id": chain.query_id, "error": error})
        return plain
    return clean_text(answer).strip() if isinstance(answer, str) and answer.strip() else plain
