"""Node ``check_sufficiency``: ask the declared sufficiency test, where there is one."""

from __future__ import annotations

from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.chain import ChainUsage, Check, Sufficiency
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.graph.chain_state import ChainParts, ChainState
from bounded_retrieval.nodes.clock import interruption
from bounded_retrieval.nodes.hops import enter, tokens_of
from bounded_retrieval.nodes.running import Body
from bounded_retrieval.policies.chaining import has_spent_tokens
from bounded_retrieval.policies.stopping import INTERRUPTED


def check_sufficiency(state: ChainState, runtime: Runtime[Any], parts: ChainParts) -> Body:
    """Ask whether the trail suffices. It comes after the mechanical rules and can neither skip nor undo them."""
    chain = yield from enter(state, runtime, parts)
    if chain.forgotten or not chain.trail or parts.sufficiency is None:
        return chain.forgotten
    if getattr(parts.sufficiency, "spends_tokens", False) and has_spent_tokens(chain.usage, chain.limits):
        return chain.checked([Check(rule=StopReason.SUFFICIENT, fired=False, found="not asked: no token is left")])
    notes, said = list(chain.state["notes"]), Sufficiency(sufficient=False)
    try:
        given = (chain.question, chain.shown())
        said = _read((yield chain.call(parts.sufficiency, "is_sufficient", *given, parts=parts)))
    except Exception as error:  # noqa: BLE001 - a test that fails has not passed
        parts.report({"event": "sufficiency_failed", "query_id": chain.query_id, "error": error})
        notes.append("sufficiency_failed")
        said = said.model_copy(update={"tokens": tokens_of(error)})
    *earlier, latest = chain.trail
    latest = latest.model_copy(update={"usage": latest.usage.plus(ChainUsage(tokens=said.tokens))})
    found = "the test passed" if said.sufficient else "the test did not pass"
    checks = [Check(rule=StopReason.SUFFICIENT, fired=said.sufficient, found=found)]
    stopped = interruption(runtime, parts, chain.limits, chain.watch)
    if stopped is not None:
        checks.insert(0, Check(rule=INTERRUPTED[stopped], fired=True, found=stopped))
    return {
        **chain.checked(checks),
        "trail": [hop.model_dump(mode="json") for hop in (*earlier, latest)],
        "notes": list(dict.fromkeys(notes)),
    }


def _read(answer: Any) -> Sufficiency:
    if isinstance(answer, bool):
        return Sufficiency(sufficient=answer)
    return Sufficiency.model_validate(answer)
