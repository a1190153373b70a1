"""Bugs to plant in the recursive chain, each a function that patches the package."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.nodes import check_limits, check_novelty, finish_chain, plan_hop, search_hop
from bounded_retrieval.policies import chaining


def no_depth_cap(patch: pytest.MonkeyPatch) -> None:
    """A chain may make as many hops as it likes."""
    check = chaining.check_limits_left

    def uncapped(_trail: Any, *rest: Any, **named: Any) -> Any:
        return check((), *rest, **named)

    for module in (plan_hop, check_limits, search_hop):
        patch.setattr(module, "check_limits_left", uncapped)


def failed_hop_not_charged(patch: pytest.MonkeyPatch) -> None:
    """A hop whose search failed costs nothing."""
    hop = search_hop._hop

    def forgiving(*args: Any) -> Any:
        made = hop(*args)
        usage = made.usage.model_copy(update={"calls": 0})
        return made.model_copy(update={"usage": usage}) if made.outcome == "failed" else made

    patch.setattr(search_hop, "_hop", forgiving)


def novelty_after_sufficiency(patch: pytest.MonkeyPatch) -> None:
    """A hop without a new unit does not end the chain."""
    check = chaining.check_found

    def lenient(*args: Any) -> Any:
        return tuple(each for each in check(*args) if each.rule is not StopReason.NO_NEW_EVIDENCE)

    patch.setattr(check_novelty, "check_found", lenient)


def another_reason(patch: pytest.MonkeyPatch) -> None:
    """A chain whose planner failed says that nothing more was to be asked."""
    check = chaining.check_plan

    def renamed(*args: Any) -> Any:
        rules = {StopReason.RETRIEVAL_FAILED: StopReason.NO_NEXT_QUERY}
        return tuple(each.model_copy(update={"rule": rules.get(each.rule, each.rule)}) for each in check(*args))

    patch.setattr(plan_hop, "check_plan", renamed)


def documents_lost(patch: pytest.MonkeyPatch) -> None:
    """A chain that ran out hands over only what its last hop found."""
    pack = chaining.pack_by_turns
    patch.setattr(finish_chain, "pack_by_turns", lambda trail, *rest: pack(trail[-1:], *rest))


def documents_over_the_limit(patch: pytest.MonkeyPatch) -> None:
    """A chain's documents have no limit."""
    pack = chaining.pack
    patch.setattr(chaining, "pack", lambda order, lengths, _units, _chars: pack(order, lengths, 50, 200_000))


def lost_answers_kept(patch: pytest.MonkeyPatch) -> None:
    """Sub-answers that came from dropped units stay."""

    def only_units(trail: Any, dropped: Any) -> Any:
        return tuple(
            hop.model_copy(update={"unit_ids": tuple(unit for unit in hop.unit_ids if unit not in dropped)})
            for hop in trail
        ), frozenset()

    patch.setattr(finish_chain, "without_dropped", only_units)


def chain_recheck_lets_pass(patch: pytest.MonkeyPatch) -> None:
    """A chain's last recheck lets everything pass."""
    recheck = finish_chain.recheck_units

    def lenient(*args: Any) -> Any:
        return replace((yield from recheck(*args)), dropped=frozenset())

    patch.setattr(finish_chain, "recheck_units", lenient)


def no_json(patch: pytest.MonkeyPatch) -> None:
    """A number that JSON does not know gets into a chain's output."""
    facts = finish_chain._facts

    def odd(*args: Any) -> Any:
        found = facts(*args)
        return {**found, "notes": [*found["notes"], math.nan]}

    patch.setattr(finish_chain, "_facts", odd)
