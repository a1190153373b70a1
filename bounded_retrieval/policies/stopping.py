"""Decide what happens after a search: stop, and why, or make the one remaining search.

Pure functions of recorded facts, so that a decision can be replayed from the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bounded_retrieval.contracts.assessment import CoverageAssessment
from bounded_retrieval.contracts.budget import Usage, remaining
from bounded_retrieval.contracts.candidate import Channel
from bounded_retrieval.contracts.request import PolicyName
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import Action, Interruption, LegalAction, SearchAttempted

FIXED_POLICIES: frozenset[PolicyName] = frozenset({"fixed_lexical", "fixed_dense"})

STEPS_OF_ONE_SEARCH = 4
"""Supersteps of the shortest run: inspect_request, one search, assess_coverage, recheck_and_pack."""

INTERRUPTED: Mapping[Interruption, StopReason] = {
    "cancelled": StopReason.CANCELLED,
    "deadline": StopReason.DEADLINE_EXCEEDED,
    "view_changed": StopReason.RETRIEVAL_FAILED,
}
"""How a run ends that was ended from outside."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do next; ``stop_reason`` is none exactly when the action is another search."""

    action: Action
    stop_reason: StopReason | None
    legal_actions: tuple[LegalAction, ...]


def rows_to_request(channel: Channel, settings: RunSettings, usage: Usage) -> int:
    """How many rows a search may ask for: its share of ``max_rows``, never more than what is left.

    The lexical call asks for ``first_hop_rows``, the dense call for the rest of ``max_rows``; a fixed policy asks
    for all of it in its single call.
    """
    limit = settings.limits.max_rows
    if settings.policy in FIXED_POLICIES:
        share = limit
    elif channel == "lexical":
        share = settings.first_hop_rows
    else:
        share = limit - settings.first_hop_rows
    return max(0, min(share, limit - usage.rows))


def refuse_search(channel: Channel, settings: RunSettings, usage: Usage) -> str | None:
    """Name what keeps a search from starting (a missing channel or a spent limit), or none when it may start."""
    if channel not in settings.channels:
        return f"no_{channel}_channel"
    left = remaining(settings.limits, usage)
    for name in ("calls", "iterations", "reads"):
        if left[name] < 1:
            return f"max_{name}"
    return "max_rows" if rows_to_request(channel, settings, usage) < 1 else None


def decide(
    settings: RunSettings,
    searches: Sequence[SearchAttempted],
    assessment: CoverageAssessment | None,
    usage: Usage,
    *,
    steps_suffice: bool = True,
) -> Decision:
    """Decide after the latest search, in the declared order of precedence.

    Args:
        settings: the run's settings.
        searches: the searches so far, the latest last, at least one.
        assessment: what the assessor inferred; none when it failed, which counts as not sufficient.
        usage: what the run has spent, the latest iteration included.
        steps_suffice: whether the caller's recursion limit leaves room for one more search.
    """
    refusal = _refuse_dense(settings, searches, usage, steps_suffice=steps_suffice)
    legal_actions = (
        LegalAction(action="lexical_search", legal=False, why_not=_refuse_lexical(searches)),
        LegalAction(action="dense_search", legal=refusal is None, why_not=refusal),
        LegalAction(action="recheck_and_pack", legal=True),
    )
    stop_reason = _stop_reason(settings, searches, assessment, may_continue=refusal is None)
    action: Action = "dense_search" if stop_reason is None else "recheck_and_pack"
    return Decision(action=action, stop_reason=stop_reason, legal_actions=legal_actions)


def _stop_reason(
    settings: RunSettings,
    searches: Sequence[SearchAttempted],
    assessment: CoverageAssessment | None,
    *,
    may_continue: bool,
) -> StopReason | None:
    latest = searches[-1]
    if latest.interruption is not None:
        return INTERRUPTED[latest.interruption]
    if len(searches) > 1 and latest.outcome == "answered" and latest.new_units == 0:
        return StopReason.NO_NEW_EVIDENCE
    if latest.outcome == "answered" and settings.policy == "adaptive" and assessment and assessment.sufficient:
        return StopReason.PROXY_SUFFICIENT
    if latest.outcome == "answered" and settings.policy in FIXED_POLICIES:
        return StopReason.POLICY_COMPLETE
    return None if may_continue else _spent(searches)


def _spent(searches: Sequence[SearchAttempted]) -> StopReason:
    outcomes = {search.outcome for search in searches}
    if "failed" in outcomes and "answered" not in outcomes:
        return StopReason.RETRIEVAL_FAILED
    return StopReason.RESOURCE_BUDGET_EXHAUSTED


def _refuse_lexical(searches: Sequence[SearchAttempted]) -> str:
    return "already_attempted" if any(search.channel == "lexical" for search in searches) else "policy"


def _refuse_dense(
    settings: RunSettings, searches: Sequence[SearchAttempted], usage: Usage, *, steps_suffice: bool
) -> str | None:
    latest = searches[-1]
    if latest.interruption is not None:
        return latest.interruption
    if any(search.channel == "dense" for search in searches):
        return "already_attempted"
    if settings.policy in FIXED_POLICIES:
        return "policy"
    refusal = refuse_search("dense", settings, usage)
    if refusal is None and not steps_suffice:
        return "recursion_limit"
    return refusal
