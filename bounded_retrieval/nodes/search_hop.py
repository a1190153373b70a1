"""Node ``search_hop``: make one hop's search, and let the reader take a sub-answer from what it found."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from langchain_core.documents import Document
from langgraph.runtime import Runtime

from bounded_retrieval.contracts.chain import ChainUsage, Hop, SubAnswer
from bounded_retrieval.graph.chain_state import LOG, ChainParts, ChainState, HopFound, in_a_log
from bounded_retrieval.nodes.charging import was_cut_off
from bounded_retrieval.nodes.clock import interruption
from bounded_retrieval.nodes.hops import Chain, enter, tokens_of
from bounded_retrieval.nodes.running import Body, Call, method_call
from bounded_retrieval.nodes.spans import describe_on, hop_span
from bounded_retrieval.policies.chaining import check_limits_left, first_fired
from bounded_retrieval.policies.novelty import count_new


def search_hop(state: ChainState, runtime: Runtime[Any], parts: ChainParts) -> Body:
    """Search with the planned query, never again with it, and read a sub-answer."""
    chain = yield from enter(state, runtime, parts)
    if chain.forgotten or chain.plan is None or chain.plan.query is None:
        return chain.forgotten
    spent = first_fired(check_limits_left(chain.trail, chain.usage, chain.limits, steps_suffice=True))
    if spent is not None:
        return {"stopped": spent.value}
    query = chain.plan.query
    with hop_span(parts, chain.query_id) as span:
        found, notes = yield from _search(chain, query, runtime, parts)
        answer, tokens = (None, 0) if found is None else (yield from _read(chain, query, found, parts, notes))
        hop = _hop(chain, query, found, answer, chain.state["planning"] + tokens)
        _tell(runtime, chain, hop, span, parts)
    stopped = interruption(runtime, parts, chain.limits, chain.watch)
    if found is not None and (stopped is None or found.interruption == "cancelled"):
        stopped = found.interruption
    units = {} if found is None else {unit_id: unit.model_dump() for unit_id, unit in found.units.items()}
    return {
        "trail": [h.model_dump(mode="json") for h in (*chain.closed(), hop)],
        "planning": 0,
        "checks": [],
        "units": {**units, **chain.state["units"]},
        "sources": {**({} if found is None else found.sources), **chain.state["sources"]},
        "view": chain.access.stamped(chain.state),
        "notes": list(dict.fromkeys([*chain.state["notes"], *notes])),
        "stopped": stopped or "",
        "elapsed_ms": chain.watch.elapsed_ms(),
    }


def _search(
    chain: Chain, query: str, runtime: Runtime[Any], parts: ChainParts
) -> Generator[Call, Any, tuple[HopFound | None, list[str]]]:
    if not parts.search.charges_itself and (yield from was_cut_off(runtime)):
        return None, ["hop_failed"]
    calls_left = chain.limits.max_calls - chain.usage.calls
    deadline = chain.limits.deadline_ms
    ms_left = None if deadline is None else max(0, int(deadline - chain.watch.elapsed_ms()))
    try:
        found: HopFound = yield method_call(parts.search, "search", query, calls_left, ms_left)
    except Exception as error:  # noqa: BLE001 - whatever a search raises, the hop failed and its call stays charged
        parts.report({"event": "hop_failed", "query_id": chain.query_id, "error": error})
        return None, ["hop_failed"]
    return found, list(found.notes)


def _read(
    chain: Chain, query: str, found: HopFound, parts: ChainParts, notes: list[str]
) -> Generator[Call, Any, tuple[SubAnswer | None, int]]:
    # Copies, which a reader may do with as it likes.
    documents: Sequence[Document] = [unit.model_copy(deep=True).to_document() for unit in found.units.values()]
    if not documents:
        return None, 0
    try:
        answer = _as_answer((yield chain.call(parts.reader, "read", query, documents, parts=parts)))
    except Exception as error:  # noqa: BLE001 - a reader that fails has found no sub-answer
        parts.report({"event": "reader_failed", "query_id": chain.query_id, "error": error})
        notes.append("reader_failed")
        return None, tokens_of(error)
    return answer, 0 if answer is None else answer.tokens


def _as_answer(answer: Any) -> SubAnswer | None:
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        return None
    if isinstance(answer, str):
        return SubAnswer(text=answer.strip())
    return SubAnswer.model_validate(answer)


def _hop(chain: Chain, query: str, found: HopFound | None, answer: SubAnswer | None, tokens: int) -> Hop:
    text = None if answer is None else answer.text.strip() or None
    number = len(chain.trail) + 1
    if found is None:
        return Hop(number=number, query=query, outcome="failed", usage=ChainUsage(calls=1, tokens=tokens))
    return Hop(
        number=number,
        query=query,
        outcome="failed" if found.failed else "answered",
        sub_answer=text,
        answer_unit_ids=() if answer is None else tuple(i for i in answer.unit_ids if i in found.units),
        unit_ids=tuple(found.units),
        new_units=count_new(found.units, chain.state["units"]),
        search_stop_reason=found.stop_reason,
        missing_terms=found.missing_terms,
        usage=found.usage.plus(ChainUsage(tokens=tokens)),
    )


def _tell(runtime: Runtime[Any], chain: Chain, hop: Hop, span: Any, parts: ChainParts) -> None:
    """One event, one log line and one span a hop; the last two hold ids and counts only."""
    runtime.stream_writer({"event": "hop", "query_id": chain.query_id, **hop.model_dump(mode="json")})
    counts = {"units": len(hop.unit_ids), "new_units": hop.new_units, "calls": hop.usage.calls}
    LOG.info("chain %s hop %d: %s, %s", in_a_log(chain.query_id), hop.number, hop.outcome, counts)
    facts: dict[str, str | int] = {"query_id": chain.query_id, "hop": hop.number, "outcome": hop.outcome, **counts}
    describe_on(span, facts, parts, chain.query_id)
