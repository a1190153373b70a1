"""The decision table of the design, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from bounded_retrieval.contracts.assessment import CoverageAssessment
from bounded_retrieval.contracts.budget import Budget, Usage
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import SearchAttempted
from bounded_retrieval.policies.stopping import Decision, decide, refuse_search, rows_to_request

ONE = Usage(calls=1, iterations=1, rows=3, reads=3)
TWO = Usage(calls=2, dense_calls=1, iterations=2, rows=6, reads=6)


def settings(
    policy: str = "adaptive", channels: tuple[str, ...] = ("lexical", "dense"), rows: int = 3, **limits: Any
) -> RunSettings:
    """Settings of a run under these limits."""
    return RunSettings.model_validate(
        {
            "query": "x",
            "query_id": "q",
            "policy": policy,
            "threshold": 0.8,
            "terms": ("x",),
            "identifiers": (),
            "channels": channels,
            "limits": Budget(**limits),
            "first_hop_rows": rows,
            "assessor": "term_coverage",
            "fusion": "rrf",
            "tokenizer": "unicode-1",
        }
    )


def search(kind: str, channel: str = "lexical") -> SearchAttempted:
    """A search in one word: answered, empty (answered, nothing new), failed, or an interruption before or after."""
    outcome = {"empty": "answered", "cancelled": "answered", "deadline": "answered", "late failure": "failed"}.get(
        kind, kind
    )
    stopped = {"late failure": "deadline", "cancelled before": "cancelled", "deadline before": "deadline"}.get(
        kind, kind
    )
    return SearchAttempted.model_validate(
        {
            "channel": channel,
            "requested": 3,
            "outcome": "not_started" if kind.endswith("before") else outcome,
            "new_units": 0 if kind == "empty" else 2,
            "interruption": stopped if stopped in ("cancelled", "deadline") else None,
            "usage": Usage(),
        }
    )


def assessment(sufficient: bool | None) -> CoverageAssessment | None:
    """An assessment that passes, does not pass, or is missing."""
    if sufficient is None:
        return None
    return CoverageAssessment(
        coverage=float(sufficient), threshold=0.8, missing_terms=(), sufficient=sufficient, assessor="t"
    )


def why_not(decision: Decision) -> dict[str, str | None]:
    """Why each action was not legal, or none."""
    return {legal.action: legal.why_not for legal in decision.legal_actions}


PASS, FAIL, BROKEN = True, False, None
AFTER_FIRST = [
    ("adaptive", "answered", PASS, {}, "proxy_sufficient"),
    ("adaptive", "answered", FAIL, {}, None),
    ("adaptive", "answered", BROKEN, {}, None),
    ("adaptive", "empty", FAIL, {}, None),
    ("adaptive", "failed", FAIL, {}, None),
    ("adaptive", "failed", PASS, {}, None),
    ("adaptive", "answered", PASS, {"max_calls": 1}, "proxy_sufficient"),
    ("adaptive", "answered", FAIL, {"max_calls": 1}, "resource_budget_exhausted"),
    ("adaptive", "answered", FAIL, {"max_iterations": 1}, "resource_budget_exhausted"),
    ("adaptive", "answered", FAIL, {"max_rows": 3}, "resource_budget_exhausted"),
    ("adaptive", "answered", FAIL, {"max_reads": 3}, "resource_budget_exhausted"),
    ("adaptive", "failed", FAIL, {"max_calls": 1}, "retrieval_failed"),
    ("adaptive", "not_started", FAIL, {"max_calls": 0}, "resource_budget_exhausted"),
    ("adaptive", "cancelled", PASS, {}, "cancelled"),
    ("adaptive", "deadline", PASS, {}, "deadline_exceeded"),
    ("adaptive", "late failure", FAIL, {}, "deadline_exceeded"),
    ("adaptive", "cancelled before", FAIL, {}, "cancelled"),
    ("adaptive", "deadline before", FAIL, {}, "deadline_exceeded"),
    ("always_continue", "answered", PASS, {}, None),
    ("always_continue", "answered", FAIL, {}, None),
    ("always_continue", "failed", FAIL, {}, None),
    ("always_continue", "answered", PASS, {"max_calls": 1}, "resource_budget_exhausted"),
    ("always_continue", "failed", FAIL, {"max_calls": 1}, "retrieval_failed"),
    ("always_continue", "cancelled", PASS, {}, "cancelled"),
    ("fixed_lexical", "answered", PASS, {}, "policy_complete"),
    ("fixed_lexical", "answered", FAIL, {}, "policy_complete"),
    ("fixed_lexical", "empty", FAIL, {}, "policy_complete"),
    ("fixed_lexical", "failed", FAIL, {}, "retrieval_failed"),
    ("fixed_lexical", "not_started", FAIL, {"max_calls": 0}, "resource_budget_exhausted"),
    ("fixed_lexical", "deadline", PASS, {}, "deadline_exceeded"),
    ("fixed_dense", "answered", PASS, {}, "policy_complete"),
    ("fixed_dense", "failed", FAIL, {}, "retrieval_failed"),
    ("fixed_dense", "cancelled", PASS, {}, "cancelled"),
]


@pytest.mark.parametrize(("policy", "outcome", "passes", "limits", "reason"), AFTER_FIRST)
def test_after_the_first_search(
    policy: str, outcome: str, passes: bool | None, limits: dict[str, int], reason: str | None
) -> None:
    """Policy, outcome, assessment and budget decide between one more search and one stop reason."""
    channel = "dense" if policy == "fixed_dense" else "lexical"
    decision = decide(settings(policy, **limits), [search(outcome, channel)], assessment(passes), ONE)
    assert decision.stop_reason == reason
    assert decision.action == ("dense_search" if reason is None else "recheck_and_pack")


AFTER_SECOND = [
    ("adaptive", "answered", "answered", PASS, "proxy_sufficient"),
    ("adaptive", "answered", "answered", FAIL, "resource_budget_exhausted"),
    ("adaptive", "answered", "answered", BROKEN, "resource_budget_exhausted"),
    ("adaptive", "answered", "empty", FAIL, "no_new_evidence"),
    ("adaptive", "answered", "empty", PASS, "no_new_evidence"),
    ("adaptive", "empty", "empty", FAIL, "no_new_evidence"),
    ("adaptive", "failed", "empty", FAIL, "no_new_evidence"),
    ("adaptive", "failed", "answered", PASS, "proxy_sufficient"),
    ("adaptive", "failed", "answered", FAIL, "resource_budget_exhausted"),
    ("adaptive", "answered", "failed", FAIL, "resource_budget_exhausted"),
    ("adaptive", "empty", "failed", FAIL, "resource_budget_exhausted"),
    ("adaptive", "failed", "failed", FAIL, "retrieval_failed"),
    ("adaptive", "answered", "cancelled", PASS, "cancelled"),
    ("adaptive", "answered", "deadline", PASS, "deadline_exceeded"),
    ("adaptive", "answered", "cancelled before", FAIL, "cancelled"),
    ("adaptive", "answered", "deadline before", FAIL, "deadline_exceeded"),
    ("always_continue", "answered", "answered", PASS, "resource_budget_exhausted"),
    ("always_continue", "answered", "answered", FAIL, "resource_budget_exhausted"),
    ("always_continue", "answered", "empty", PASS, "no_new_evidence"),
    ("always_continue", "answered", "failed", PASS, "resource_budget_exhausted"),
    ("always_continue", "failed", "failed", FAIL, "retrieval_failed"),
]


@pytest.mark.parametrize(("policy", "first", "second", "passes", "reason"), AFTER_SECOND)
def test_after_the_second_search(policy: str, first: str, second: str, passes: bool | None, reason: str) -> None:
    """After the second search every row ends, with exactly the reason that the design's order gives."""
    searches = [search(first), search(second, "dense")]
    decision = decide(settings(policy), searches, assessment(passes), TWO)
    assert (decision.action, decision.stop_reason) == ("recheck_and_pack", reason)
    assert why_not(decision)["dense_search"] in ("already_attempted", "cancelled", "deadline")


REFUSALS = [
    ("adaptive", {}, None),
    ("always_continue", {}, None),
    ("fixed_lexical", {}, "policy"),
    ("adaptive", {"max_calls": 1}, "max_calls"),
    ("adaptive", {"max_iterations": 1}, "max_iterations"),
    ("adaptive", {"max_reads": 3}, "max_reads"),
    ("adaptive", {"max_rows": 3}, "max_rows"),
    ("adaptive", {"max_calls": 1, "max_rows": 3}, "max_calls"),
    ("adaptive", {"channels": ("lexical",)}, "no_dense_channel"),
    ("adaptive", {"channels": ("lexical",), "max_calls": 1}, "no_dense_channel"),
]


@pytest.mark.parametrize(("policy", "changes", "reason"), REFUSALS)
def test_each_illegal_action_says_why(policy: str, changes: dict[str, Any], reason: str | None) -> None:
    """After the first search the dense one is legal, or the first thing in its way is named; packing is always legal."""
    decision = decide(settings(policy, **changes), [search("answered")], assessment(FAIL), ONE)
    assert why_not(decision) == {
        "lexical_search": "already_attempted",
        "dense_search": reason,
        "recheck_and_pack": None,
    }
    assert [legal.legal for legal in decision.legal_actions] == [False, reason is None, True]


def test_an_action_may_be_legal_without_being_chosen() -> None:
    """Stopping because the test passed does not make the other search illegal."""
    decision = decide(settings(), [search("answered")], assessment(PASS), ONE)
    assert decision.stop_reason is StopReason.PROXY_SUFFICIENT
    assert why_not(decision)["dense_search"] is None


def test_fixed_dense_never_searches_lexically() -> None:
    """Under ``fixed_dense`` the lexical search is ruled out by the policy."""
    decision = decide(settings("fixed_dense"), [search("answered", "dense")], assessment(FAIL), ONE)
    assert why_not(decision) == {
        "lexical_search": "policy",
        "dense_search": "already_attempted",
        "recheck_and_pack": None,
    }


@pytest.mark.parametrize("kind", ["cancelled", "deadline"])
def test_an_interruption_makes_searching_illegal(kind: str) -> None:
    """Once the caller or the clock ended the run, that is why no search is legal."""
    assert why_not(decide(settings(), [search(kind)], assessment(FAIL), ONE))["dense_search"] == kind


def test_no_room_in_the_recursion_limit_ends_the_run() -> None:
    """Without supersteps for the dense hop the run packs, and the reason is named; a spent limit is named before it."""
    decision = decide(settings(), [search("answered")], assessment(FAIL), ONE, steps_suffice=False)
    assert decision.stop_reason is StopReason.RESOURCE_BUDGET_EXHAUSTED
    assert why_not(decision)["dense_search"] == "recursion_limit"
    decision = decide(settings(max_calls=1), [search("answered")], assessment(FAIL), ONE, steps_suffice=False)
    assert why_not(decision)["dense_search"] == "max_calls"


ROWS = [
    ("adaptive", "lexical", (3, 6, 0), 3),
    ("adaptive", "dense", (3, 6, 3), 3),
    ("adaptive", "dense", (3, 6, 0), 3),
    ("adaptive", "dense", (3, 6, 5), 1),
    ("adaptive", "dense", (2, 10, 2), 8),
    ("adaptive", "lexical", (5, 3, 0), 3),
    ("adaptive", "dense", (5, 3, 3), 0),
    ("adaptive", "dense", (6, 6, 2), 0),
    ("always_continue", "lexical", (1, 6, 0), 1),
    ("fixed_lexical", "lexical", (3, 6, 0), 6),
    ("fixed_dense", "dense", (3, 6, 0), 6),
    ("fixed_dense", "dense", (3, 0, 0), 0),
]


@pytest.mark.parametrize(("policy", "channel", "first_limit_spent", "asked"), ROWS)
def test_rows_asked_for(policy: str, channel: str, first_limit_spent: tuple[int, int, int], asked: int) -> None:
    """The lexical call asks for its share, the dense call for the rest, a fixed policy for all; never more than is left."""
    first, limit, spent = first_limit_spent
    assert rows_to_request(channel, settings(policy, rows=first, max_rows=limit), Usage(rows=spent)) == asked


@pytest.mark.parametrize("name", ["max_calls", "max_iterations", "max_reads", "max_rows"])
def test_a_limit_of_0_forbids_even_the_first_search(name: str) -> None:
    """A zero limit refuses the first search and is named."""
    assert refuse_search("lexical", settings(**{name: 0}), Usage()) == name


def test_nothing_refuses_a_search_within_limits() -> None:
    """Packet limits and the deadline do not refuse a search."""
    assert refuse_search("lexical", settings(max_units=0, max_chars=0, deadline_ms=0), Usage()) is None
