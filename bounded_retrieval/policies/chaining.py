"""The rules of the recursive chain as pure functions: what ends it, what stays open, what is packed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.chain import (
    CHARS_PER_TOKEN,
    RESOLVING,
    ChainLimits,
    ChainUsage,
    Check,
    Hop,
    NextQuery,
)
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import Interruption
from bounded_retrieval.policies.novelty import DEFAULT_SIMILARITY, find_repeat, is_novel
from bounded_retrieval.policies.packing import Packing, pack
from bounded_retrieval.policies.stopping import INTERRUPTED

WITHHELD = "(withheld: it may hold a sub-answer that is gone)"
"""Stands in place of a query that may hold what the last recheck dropped."""


@dataclass(frozen=True, kw_only=True)
class ChainRules:
    """The rules that the builder settled. None of them can be reached from a planner, a reader or a request.

    Attributes:
        novelty: whether a hop without a new unit ends the chain.
        min_new_share: share of new units, 0 to 1, below which a hop ends it; 0 asks for one new unit.
        repeated: whether a repeated query ends the chain.
        similarity: share of terms in common from which two queries are the same.
    """

    novelty: bool = True
    min_new_share: float = 0.0
    repeated: bool = True
    similarity: float = DEFAULT_SIMILARITY


def spent(trail: Sequence[Hop], planning: int = 0) -> ChainUsage:
    """What the hops have spent, and the tokens of planning that belong to no hop yet."""
    total = ChainUsage(tokens=planning)
    for hop in trail:
        total = total.plus(hop.usage)
    return total


def estimate_tokens(*texts: str) -> int:
    """The declared estimate for a model that states no usage: a token for every four characters, rounded up."""
    return -(-sum(map(len, texts)) // CHARS_PER_TOKEN)


def check_plan(
    plan: NextQuery | None, trail: Sequence[Hop], usage: ChainUsage, limits: ChainLimits, rules: ChainRules
) -> tuple[Check, ...]:
    """The checks between planning and a hop, in the declared order; ``plan`` is none where the planner failed."""
    checks = [Check(rule=StopReason.RETRIEVAL_FAILED, fired=plan is None, found="the planner answered or failed")]
    query = None if plan is None else plan.query
    if rules.repeated and query is not None:
        repeat = find_repeat(query, [hop.query for hop in trail], rules.similarity)
        found = f"like the query of hop {repeat[0]} ({repeat[1]:.2f})" if repeat else "like no earlier query"
        checks.append(Check(rule=StopReason.REPEATED_QUERY, fired=repeat is not None, found=found))
    checks.append(_check_tokens(usage, limits))
    found = "no further query" if query is None else "a further query"
    return (*checks, Check(rule=StopReason.NO_NEXT_QUERY, fired=query is None, found=found))


def check_found(hop: Hop, interruption: Interruption | None, rules: ChainRules) -> tuple[Check, ...]:
    """The checks right after a hop's search, in the declared order."""
    checks = []
    if interruption is not None:
        checks.append(Check(rule=INTERRUPTED[interruption], fired=True, found=interruption))
    failed = hop.outcome == "failed"
    checks.append(Check(rule=StopReason.RETRIEVAL_FAILED, fired=failed, found=f"the search {hop.outcome}"))
    if rules.novelty and not failed:
        novel = is_novel(hop.new_units, len(hop.unit_ids), rules.min_new_share)
        found = f"{hop.new_units} new of {len(hop.unit_ids)} units"
        checks.append(Check(rule=StopReason.NO_NEW_EVIDENCE, fired=not novel, found=found))
    return tuple(checks)


def check_limits_left(
    trail: Sequence[Hop], usage: ChainUsage, limits: ChainLimits, *, steps_suffice: bool
) -> tuple[Check, ...]:
    """The checks before a further hop is planned, in the declared order."""
    calls_left = limits.max_calls - usage.calls
    found = f"{calls_left} calls left" if steps_suffice else "the caller's recursion limit has no room for a hop"
    return (
        Check(
            rule=StopReason.DEPTH_CAP,
            fired=len(trail) >= limits.max_hops,
            found=f"{len(trail)} of {limits.max_hops} hops",
        ),
        _check_tokens(usage, limits),
        Check(rule=StopReason.RESOURCE_BUDGET_EXHAUSTED, fired=calls_left < 1 or not steps_suffice, found=found),
    )


def first_fired(checks: Sequence[Check]) -> StopReason | None:
    """The rule that ends the chain: the first of them that fired."""
    return next((check.rule for check in checks if check.fired), None)


def open_parts(
    question: str, trail: Sequence[Hop], stop_reason: StopReason, plan: NextQuery | None, lost: Collection[int] = ()
) -> tuple[str, ...]:
    """The parts of the question that stay open; none exactly when the chain counts as resolved.

    Hops without a sub-answer stay open (unless a sufficiency test passed), and so does what the planner says; where the
    chain was ended from outside the planner or the test, the question itself does. ``lost`` holds the numbers of hops
    whose sub-answer the recheck took away: then the first of them and the question are open.
    """
    if lost:
        # Whatever was planned since may hold a lost sub-answer.
        return tuple(dict.fromkeys((*(hop.query for hop in trail if hop.number == min(lost)), question)))
    is_sufficient = stop_reason is StopReason.SUFFICIENT
    unanswered = () if is_sufficient else tuple(hop.query for hop in trail if hop.sub_answer is None)
    declared = () if plan is None else plan.unresolved
    asked = None if plan is None or stop_reason is StopReason.REPEATED_QUERY else plan.query
    pending = () if asked is None or any(hop.query == asked for hop in trail) else (asked,)
    ended_by_itself = stop_reason in RESOLVING and bool(trail)
    parts = (*unanswered, *declared, *(() if ended_by_itself else (*pending, question)))
    return tuple(dict.fromkeys(parts))


def pack_by_turns(trail: Sequence[Hop], units: Mapping[str, Unit], limits: ChainLimits) -> Packing:
    """Whole units within the limits: the best of each hop in turn, then the second best, and so on."""
    order: dict[str, None] = {}
    for rank in range(max((len(hop.unit_ids) for hop in trail), default=0)):
        order.update((hop.unit_ids[rank], None) for hop in trail if rank < len(hop.unit_ids))
    lengths = {unit_id: len(units[unit_id].text) for unit_id in order if unit_id in units}
    return pack(list(lengths), lengths, limits.max_units, limits.max_chars)


def without_dropped(trail: Sequence[Hop], dropped: Collection[str]) -> tuple[tuple[Hop, ...], frozenset[int]]:
    """The trail without dropped units and the sub-answers that may have come from them, and the numbers of their hops.

    The queries of all later hops may hold such a sub-answer, in whatever spelling, and are withheld.
    """
    lost = frozenset(hop.number for hop in trail if hop.sub_answer is not None and _is_lost(hop, dropped))
    return tuple(_clear(hop, dropped, lost) for hop in trail), lost


def _is_lost(hop: Hop, dropped: Collection[str]) -> bool:
    return not set(hop.answer_unit_ids or hop.unit_ids).isdisjoint(dropped)


def _clear(hop: Hop, dropped: Collection[str], lost: Collection[int]) -> Hop:
    update: dict[str, Any] = {"unit_ids": tuple(unit_id for unit_id in hop.unit_ids if unit_id not in dropped)}
    if hop.number in lost:
        update |= {"sub_answer": None, "answer_unit_ids": ()}
    if lost and hop.number > min(lost):
        update |= {"query": WITHHELD, "missing_terms": ()}
    return hop.model_copy(update=update)


def has_spent_tokens(usage: ChainUsage, limits: ChainLimits) -> bool:
    """Whether no token is left of those that models have spent; parts without a model spend none."""
    return limits.max_tokens is not None and usage.tokens > 0 and usage.tokens >= limits.max_tokens


def _check_tokens(usage: ChainUsage, limits: ChainLimits) -> Check:
    allowed = "any number of" if limits.max_tokens is None else f"{limits.max_tokens}"
    return Check(
        rule=StopReason.TOKEN_BUDGET_EXHAUSTED,
        fired=has_spent_tokens(usage, limits),
        found=f"{usage.tokens} of {allowed} tokens",
    )
