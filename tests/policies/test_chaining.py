from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.chain import ChainLimits, ChainUsage, Check, Hop, NextQuery
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.policies.chaining import (
    WITHHELD,
    ChainRules,
    check_found,
    check_limits_left,
    check_plan,
    estimate_tokens,
    first_fired,
    open_parts,
    pack_by_turns,
    spent,
    without_dropped,
)

QUESTION = "Who keeps the key?"
LIMITS = ChainLimits(max_hops=3, max_calls=4, max_tokens=10)


def hop(number: int, *unit_ids: str, answer: str | None = "yes", **fields: Any) -> Hop:
    """A hop with its units and its sub-answer."""
    query = fields.pop("query", f"query{number}")
    return Hop(number=number, query=query, unit_ids=unit_ids, sub_answer=answer, **fields)


def rules_of(checks: tuple[Check, ...]) -> list[str]:
    """The rules checked, in order."""
    return [check.rule.value for check in checks]


def plan(query: str | None, *unresolved: str) -> NextQuery:
    """A planner's answer."""
    return NextQuery(query=query, unresolved=unresolved)


def test_usage_is_the_sum_over_hops_and_planning() -> None:
    """Every count of every hop is added up, and the tokens of planning that belong to no hop yet."""
    usage = ChainUsage(calls=2, dense_calls=1, rows=6, reads=5, tokens=7)
    total = spent([hop(1, usage=usage), hop(2, usage=usage)], planning=3)
    assert total == ChainUsage(calls=4, dense_calls=2, rows=12, reads=10, tokens=17)
    assert spent([], planning=0) == ChainUsage()


@given(st.lists(st.text(max_size=20), max_size=5))
def test_tokens_are_estimated_by_characters(texts: list[str]) -> None:
    """The estimate is a token for every four characters begun, over all texts together."""
    chars = len("".join(texts))
    assert estimate_tokens(*texts) == chars // 4 + bool(chars % 4)


def test_a_plan_is_checked_in_the_declared_order() -> None:
    """Between planning and a hop: the planner failed, a repeat, the tokens, nothing more to look up."""
    checks = check_plan(plan("new"), [hop(1)], ChainUsage(), LIMITS, ChainRules())
    assert rules_of(checks) == ["retrieval_failed", "repeated_query", "token_budget_exhausted", "no_next_query"]
    assert first_fired(checks) is None


PLANS = [
    (None, 0, "retrieval_failed"),
    (None, 99, "retrieval_failed"),
    (plan("query1"), 0, "repeated_query"),
    (plan("The QUERY1 ?"), 99, "repeated_query"),
    (plan("new"), 10, "token_budget_exhausted"),
    (plan(None), 10, "token_budget_exhausted"),
    (plan(None), 9, "no_next_query"),
    (plan("new"), 9, None),
]


@pytest.mark.parametrize(("given_plan", "tokens", "reason"), PLANS)
def test_what_a_plan_ends(given_plan: NextQuery | None, tokens: int, reason: str | None) -> None:
    """The first rule that fires names the reason; without one the hop may be made."""
    fired = first_fired(check_plan(given_plan, [hop(1)], ChainUsage(tokens=tokens), LIMITS, ChainRules()))
    assert (None if fired is None else fired.value) == reason


def test_a_repeat_of_any_earlier_hop_is_one() -> None:
    """Not only the latest query counts, and the check says which hop it was like."""
    checks = check_plan(plan("query1"), [hop(1), hop(2)], ChainUsage(), LIMITS, ChainRules())
    assert "hop 1" in next(check.found for check in checks if check.fired)


def test_a_rule_switched_off_is_not_checked() -> None:
    """Without the rule on repetition or on novelty the check is not made at all."""
    rules = ChainRules(repeated=False, novelty=False)
    assert "repeated_query" not in rules_of(check_plan(plan("query1"), [hop(1)], ChainUsage(), LIMITS, rules))
    assert rules_of(check_found(hop(1), None, rules)) == ["retrieval_failed"]


FOUND = [
    (hop(1, "a", new_units=1), None, None),
    (hop(1, "a", new_units=0), None, "no_new_evidence"),
    (hop(1), None, "no_new_evidence"),
    (hop(1, outcome="failed"), None, "retrieval_failed"),
    (hop(1, outcome="failed"), "deadline", "deadline_exceeded"),
    (hop(1), "cancelled", "cancelled"),
    (hop(1, "a", new_units=1), "deadline", "deadline_exceeded"),
]


@pytest.mark.parametrize(("latest", "interruption", "reason"), FOUND)
def test_what_a_search_ends(latest: Hop, interruption: Any, reason: str | None) -> None:
    """After a search: what came from outside, then a failure, then nothing new."""
    fired = first_fired(check_found(latest, interruption, ChainRules()))
    assert (None if fired is None else fired.value) == reason


LEFT = [
    (1, 0, 0, True, None),
    (3, 99, 99, False, "depth_cap"),
    (4, 0, 0, True, "depth_cap"),
    (1, 0, 10, True, "token_budget_exhausted"),
    (1, 4, 10, False, "token_budget_exhausted"),
    (1, 4, 9, True, "resource_budget_exhausted"),
    (1, 5, 0, True, "resource_budget_exhausted"),
    (1, 3, 9, False, "resource_budget_exhausted"),
]


@pytest.mark.parametrize(("hops", "calls", "tokens", "steps", "reason"), LEFT)
def test_what_the_limits_end(hops: int, calls: int, tokens: int, steps: bool, reason: str | None) -> None:
    """Before a further hop: depth, then tokens, then calls and supersteps."""
    trail = [hop(number) for number in range(1, hops + 1)]
    usage = ChainUsage(calls=calls, tokens=tokens)
    fired = first_fired(check_limits_left(trail, usage, LIMITS, steps_suffice=steps))
    assert (None if fired is None else fired.value) == reason


def test_no_token_limit_ends_a_chain_without_a_model() -> None:
    """A limit of no tokens is met by a chain that spends none."""
    limits = ChainLimits(max_tokens=0)
    assert first_fired(check_limits_left([], ChainUsage(), limits, steps_suffice=True)) is None
    fired = first_fired(check_limits_left([], ChainUsage(tokens=1), limits, steps_suffice=True))
    assert fired is StopReason.TOKEN_BUDGET_EXHAUSTED


OPEN = [
    ("no_next_query", [hop(1)], plan(None), (), ()),
    ("no_next_query", [hop(1, answer=None), hop(2)], plan(None), (), ("query1",)),
    ("no_next_query", [hop(1)], plan(None, "who else"), (), ("who else",)),
    ("no_next_query", [], plan(None), (), (QUESTION,)),
    ("sufficient", [hop(1, answer=None)], plan("query1"), (), ()),
    ("sufficient", [hop(1, answer=None)], plan("query1"), (1,), ("query1", QUESTION)),
    ("no_next_query", [hop(1, answer=None), hop(2)], plan(None, "who is Ann"), (1,), ("query1", QUESTION)),
    ("sufficient", [hop(1)], plan("query1", "who else"), (), ("who else",)),
    ("repeated_query", [hop(1)], plan("query1"), (), (QUESTION,)),
    ("repeated_query", [hop(1, answer=None)], plan("Query1?"), (), ("query1", QUESTION)),
    ("depth_cap", [hop(1), hop(2, answer=None)], plan("query2", "who else"), (), ("query2", "who else", QUESTION)),
    ("retrieval_failed", [hop(1)], None, (), (QUESTION,)),
    ("cancelled", [], None, (), (QUESTION,)),
    ("token_budget_exhausted", [hop(1, answer=None)], plan("new"), (), ("query1", "new", QUESTION)),
]


@pytest.mark.parametrize(("reason", "trail", "latest", "lost", "expected"), OPEN)
def test_what_stays_open(reason: str, trail: Any, latest: Any, lost: Any, expected: Any) -> None:
    """Unanswered hops, what the planner declared, what was planned and not made, and the question where it was cut off."""
    assert open_parts(QUESTION, trail, StopReason(reason), latest, lost) == expected


@pytest.mark.parametrize("reason", set(StopReason) - {StopReason.SUFFICIENT, StopReason.NO_NEXT_QUERY})
def test_a_chain_that_was_ended_is_never_resolved(reason: StopReason) -> None:
    """After any other reason the question itself is open, even where every hop has a sub-answer."""
    assert QUESTION in open_parts(QUESTION, [hop(1)], reason, None)


def test_an_answered_hop_is_not_open() -> None:
    """The plan of a hop that was made and has a sub-answer is not pending any more."""
    assert open_parts(QUESTION, [hop(1)], StopReason.DEPTH_CAP, plan("query1")) == (QUESTION,)


def units(**lengths: int) -> dict[str, Unit]:
    """Units by id, with texts of these lengths."""
    return {
        name: Unit(unit_id=name, fingerprint="", title="", text="x" * length, metadata={})
        for name, length in lengths.items()
    }


def test_each_hop_gets_its_turn() -> None:
    """The best of each hop comes before the second best of any, and a unit of two hops once."""
    trail = [hop(1, "a", "b", "c"), hop(2, "b", "d"), hop(3), hop(4, "e")]
    held = units(a=1, b=1, c=1, d=1, e=1)
    assert pack_by_turns(trail, held, ChainLimits(max_units=50)).unit_ids == ("a", "b", "e", "d", "c")
    assert pack_by_turns(trail, held, ChainLimits(max_units=3)).unit_ids == ("a", "b", "e")
    assert pack_by_turns([], held, ChainLimits()).unit_ids == ()


def test_units_that_are_gone_are_not_packed() -> None:
    """A unit that is not held any more is left out and takes no room."""
    assert pack_by_turns([hop(1, "a", "b")], units(b=1), ChainLimits(max_units=1)).unit_ids == ("b",)


def test_a_unit_too_long_makes_room_for_the_next() -> None:
    """Whole units are packed while they fit, separators included; one that does not fit is skipped."""
    held = units(a=5, b=6, c=4)
    assert pack_by_turns([hop(1, "a", "b", "c")], held, ChainLimits(max_chars=11)).unit_ids == ("a", "c")
    assert pack_by_turns([hop(1, "a", "b", "c")], held, ChainLimits(max_chars=10)).unit_ids == ("a",)


@given(
    st.lists(st.lists(st.sampled_from("abcdef"), unique=True, max_size=5), max_size=8),
    st.integers(0, 6),
    st.integers(0, 60),
)
def test_packing_stays_within_its_limits(found: list[list[str]], max_units: int, max_chars: int) -> None:
    """No packing exceeds its limits or holds a unit twice, and with room for all of them none is left out."""
    trail = [hop(number, *names) for number, names in enumerate(found, 1)]
    held = units(**dict(zip("abcdef", (1, 3, 5, 7, 9, 11), strict=True)))
    packed = pack_by_turns(trail, held, ChainLimits(max_units=max_units, max_chars=max_chars)).unit_ids
    names = {name for each in found for name in each}
    chars = len("\n\n".join(held[name].text for name in packed))
    assert len(packed) == len(set(packed)) <= max_units
    assert chars <= max_chars
    assert set(packed) <= names
    if max_units >= len(names) and max_chars >= len("\n\n".join(held[name].text for name in names)):
        assert set(packed) == names


def test_dropped_units_take_the_sub_answers_that_may_rest_on_them() -> None:
    """A sub-answer goes with the unit it names, or with any of its hop's where it names none; the rest stays."""
    trail = (
        hop(1, "a", "b", answer_unit_ids=("a",)),
        hop(2, "a", "b", answer_unit_ids=("b",)),
        hop(3, "a", "c"),
        hop(4, "c"),
        hop(5),
    )
    left, lost = without_dropped(trail, {"a"})
    assert lost == {1, 3}
    assert [each.query for each in left] == ["query1", *[WITHHELD] * 4]
    assert [each.unit_ids for each in left] == [("b",), ("b",), ("c",), ("c",), ()]
    assert [each.sub_answer for each in left] == [None, "yes", None, "yes", "yes"]
    assert left[0].answer_unit_ids == ()
    assert without_dropped(trail, ()) == (trail, frozenset())


def test_the_first_rule_that_fired_is_the_reason() -> None:
    """Of several checks that fired the first one counts; without one there is no reason."""
    checks = [
        Check(rule=StopReason.DEPTH_CAP, fired=False, found=""),
        Check(rule=StopReason.TOKEN_BUDGET_EXHAUSTED, fired=True, found=""),
        Check(rule=StopReason.NO_NEXT_QUERY, fired=True, found=""),
    ]
    assert first_fired(checks) is StopReason.TOKEN_BUDGET_EXHAUSTED
    assert first_fired(checks[:1]) is None
    assert first_fired([]) is None
