"""Node ``assess_coverage``: state the facts, draw the inference, decide."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import Any, cast

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment, QueryTerms, QueryWeights
from bounded_retrieval.contracts.budget import Usage, remaining
from bounded_retrieval.contracts.candidate import Unit, row_from_state
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.trace import CoverageAssessed, SearchAttempted
from bounded_retrieval.contracts.unchecked import replaced, unchecked
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState, Json, has_room_to_continue
from bounded_retrieval.nodes.clock import Stopwatch
from bounded_retrieval.nodes.eligibility import Access, forget, open_access
from bounded_retrieval.nodes.running import Body, Call, method_call, settings_of
from bounded_retrieval.nodes.weighing import ask_weights
from bounded_retrieval.policies.coverage import Observer, TermCoverage
from bounded_retrieval.policies.stopping import decide
from bounded_retrieval.policies.weighted import IdfCoverage, Scorecard

# What these infer was checked when they made it; what any other assessor returns is checked here.
_OWN_ASSESSORS = (TermCoverage, IdfCoverage, Scorecard)


def assess_coverage(state: BoundedState, runtime: Runtime[Any], parts: Parts) -> Body:
    """Observe the units read so far, let the assessor infer, and record the decision with every action's legality."""
    watch = Stopwatch(state, parts)
    settings = settings_of(state, parts)
    access = yield from open_access(state, runtime, parts, settings.query_id)
    forgotten = forget(state, access.note) if access.note else {}
    state = cast("BoundedState", state | forgotten)
    usage = Usage.model_validate(state["usage"])
    searches = searches_in(state["events"])
    if searches[-1].outcome != "not_started":
        usage = replaced(usage, iterations=usage.iterations + 1)
    weights = yield from _weigh(state, settings, access, parts)
    lexical = next((search for search in searches if search.channel == "lexical"), None)
    given = _given(state, settings, parts, weights, lexical)
    assessment = yield from _assess(given, settings, parts)
    steps_suffice = has_room_to_continue(state)
    decision = decide(settings, searches, assessment, usage, steps_suffice=steps_suffice)
    event = unchecked(
        CoverageAssessed,
        event="coverage_assessed",
        observations=given.observations,
        dropped_observations=0,
        assessment=assessment,
        usage=usage,
        remaining=remaining(settings.limits, usage),
        steps_suffice=steps_suffice,
        legal_actions=decision.legal_actions,
        action=decision.action,
        stop_reason=decision.stop_reason,
        weights=weights,
    ).model_dump(mode="json")
    runtime.stream_writer(event)
    failed = [] if assessment is not None else ["assessor_failed"]
    return forgotten | {
        "events": [*state["events"], event],
        "usage": usage.model_dump(),
        "decision": {"action": decision.action, "stop_reason": decision.stop_reason and decision.stop_reason.value},
        "notes": list(dict.fromkeys([*state["notes"], *failed])),
        "elapsed_ms": watch.elapsed_ms(),
    }


def searches_in(events: Sequence[Json]) -> list[SearchAttempted]:
    """The searches among a state's events."""
    return [SearchAttempted.model_validate(event) for event in events if event["event"] == "search_attempted"]


def _given(
    state: BoundedState,
    settings: RunSettings,
    parts: Parts,
    weights: QueryWeights | None,
    lexical: SearchAttempted | None,
) -> AssessmentInput:
    units = {unit_id: Unit.recalled(unit) for unit_id, unit in state["units"].items()}
    query_terms = unchecked(QueryTerms, terms=settings.terms, identifiers=settings.identifiers)
    observer = Observer(query_terms, settings.limits.max_chars, parts.tokenizer, parts.stem)
    observations = tuple(observer.observe(unit) for unit in units.values())
    return AssessmentInput.prepared(
        observer.forms,
        observer.places,
        query=settings.query,
        query_terms=query_terms,
        observations=observations,
        candidates=tuple(
            row_from_state(candidate) for candidate in state["candidates"] if candidate["unit_id"] in units
        ),
        units=units,
        threshold=settings.threshold,
        weights=weights,
        rows_asked=0 if lexical is None else _rows_awaited(lexical, units),
    )


def _rows_awaited(search: SearchAttempted, units: Collection[str]) -> int:
    """How many of the rows asked for would be candidates now, had the search returned every one of them."""
    unread = sum(row.unit_id not in units for row in search.returned)
    return max(0, search.requested - search.duplicates - search.invalid - unread)


def _weigh(
    state: BoundedState, settings: RunSettings, access: Access, parts: Parts
) -> Generator[Call, Any, QueryWeights | None]:
    """How rare the query's terms are, for an assessor that asks; once, after a lexical search that answered."""
    if not getattr(parts.assessor, "needs_weights", False):
        return None
    earlier = [event for event in state["events"] if event["event"] == "coverage_assessed"]
    if earlier:
        known = earlier[0]["weights"]
        return None if known is None else QueryWeights.model_validate(known)
    if not any(e.get("channel") == "lexical" and e.get("outcome") == "answered" for e in state["events"]):
        return None
    return (yield from ask_weights(settings.terms, settings, access, parts))


def _assess(
    given: AssessmentInput, settings: RunSettings, parts: Parts
) -> Generator[Call, Any, CoverageAssessment | None]:
    is_pure = getattr(parts.assessor, "is_pure", False)
    try:
        answer = yield method_call(parts.assessor, "assess", given, is_pure=is_pure)
        return answer if type(parts.assessor) in _OWN_ASSESSORS else CoverageAssessment.model_validate(answer)
    except Exception as error:  # noqa: BLE001 - an assessor that fails has not found the evidence sufficient
        parts.report({"event": "assessor_failed", "query_id": settings.query_id, "error": error})
        return None
