"""Look up each channel's scores of units that only the other one returned, for a fusion that adds scores."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.assessment import QueryWeights
from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Channel
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.trace import Scored, UnitsScored
from bounded_retrieval.contracts.unchecked import replaced
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.nodes.clock import Stopwatch, interruption
from bounded_retrieval.nodes.eligibility import Access
from bounded_retrieval.nodes.running import Call, has_method, method_call
from bounded_retrieval.nodes.weighing import ask_weights
from bounded_retrieval.policies.fusion import CHANNEL_ORDER, Rankings, needs_scores, returned_scores, unscored


def score_observed(  # noqa: PLR0913, PLR0917 - what a node has at hand stands side by side
    rankings: Rankings,
    weights: QueryWeights | None,
    usage: Usage,
    settings: RunSettings,
    access: Access,
    runtime: Runtime[Any],
    parts: Parts,
    watch: Stopwatch,
) -> Generator[Call, Any, UnitsScored | None]:
    """Score the observed units for the fusion; none where it needs no scores, or where one channel found everything.

    No row is returned and no other unit is looked at, so it is no search: it counts in ``scored_units``. It only
    follows a dense search, whose call is charged already; a run that stopped after the lexical one never gets here.
    What a unit could score at most is read from the weights that an assessor asked for, or asked for now.
    """
    if not needs_scores(parts.fusion) or len(rankings) < len(CHANNEL_ORDER):
        return None
    # A store that gives no scores on demand may have returned distances; only searchers that score are added up.
    scorers = [parts.searcher(channel) for channel in CHANNEL_ORDER]
    if returned_scores(rankings) is None or not all(has_method(searcher, "score") for searcher in scorers):
        return UnitsScored(scores={}, why_not="no_scores", usage=usage)
    scores: dict[Channel, tuple[Scored, ...]] = {}
    for channel, unit_ids in unscored(rankings).items():
        if not unit_ids:
            continue
        stopped = interruption(runtime, parts, settings.limits, watch)
        if stopped is not None:
            return UnitsScored(scores={}, why_not=stopped, usage=usage)
        usage = replaced(usage, scored_units=usage.scored_units + len(unit_ids))
        found = yield from _ask(channel, unit_ids, settings, access, parts)
        if found is None:
            return UnitsScored(scores={}, why_not="failed", usage=usage)
        scores[channel] = found
    if weights is None and not getattr(parts.assessor, "needs_weights", False):
        weights = yield from ask_weights((), settings, access, parts)
    attainable = None if weights is None else weights.attainable or None
    return UnitsScored(scores=scores, attainable=attainable, usage=usage)


def _ask(
    channel: Channel, unit_ids: Sequence[str], settings: RunSettings, access: Access, parts: Parts
) -> Generator[Call, Any, tuple[Scored, ...] | None]:
    # A filter is passed only where there is one, so that a searcher without that argument will do for everyone else.
    narrowed = (access.filter,) if access.filter else ()
    options = {"detached": parts.is_guarded, "is_optional": True}
    try:
        answer = yield method_call(
            parts.searcher(channel), "score", settings.query, list(unit_ids), *narrowed, **options
        )
        return _read(answer, unit_ids)
    except Exception as error:  # noqa: BLE001 - whatever a searcher raises, ranks decide then
        parts.report({"event": "score_failed", "channel": channel, "query_id": settings.query_id, "error": error})
        return None


def _read(answer: Any, unit_ids: Sequence[str]) -> tuple[Scored, ...]:
    if not isinstance(answer, Mapping):
        raise TypeError(f"score returns a mapping of unit ids to numbers, not {type(answer).__name__}")
    found = {unit_id: float(answer[unit_id]) for unit_id in unit_ids if unit_id in answer}
    if not all(math.isfinite(score) for score in found.values()):
        raise ValueError("score returned a number that is not finite")
    return tuple(Scored(unit_id=unit_id, score=score) for unit_id, score in found.items())
