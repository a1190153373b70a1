from __future__ import annotations

import ast
import inspect
import itertools
import re
from pathlib import Path

import pytest

from bounded_retrieval.contracts import stop
from bounded_retrieval.contracts.stop import PROVISIONAL, StopReason

TEXT_ROUTE = {
    "proxy_sufficient",
    "resource_budget_exhausted",
    "no_new_evidence",
    "policy_complete",
    "deadline_exceeded",
    "cancelled",
    "retrieval_failed",
}
DOCS = Path(__file__).resolve().parents[2] / "docs" / "stop-reasons.md"


def docstrings() -> dict[str, str]:
    """The string below each member of `StopReason`, by value."""
    body = ast.parse(inspect.getsource(StopReason)).body[0].body
    members = itertools.pairwise(body)
    return {
        member.value.value: " ".join(below.value.value.split())
        for member, below in members
        if isinstance(member, ast.Assign) and isinstance(below, ast.Expr)
    }


def stems(text: str) -> set[str]:
    """First four letters of each word long enough to carry a meaning."""
    return {word[:4] for word in re.findall(r"[a-z]{4,}", text.lower())}


def test_text_route_values_are_there() -> None:
    """Every stop reason of the text route exists under its stable value."""
    assert set(StopReason) >= TEXT_ROUTE


@pytest.mark.parametrize("reason", StopReason)
def test_values_are_snake_case_and_plain_strings(reason: StopReason) -> None:
    """A value is snake_case, equals its text and is the lower-case name of its member."""
    assert reason == reason.value == reason.name.lower()
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", reason.value)


@pytest.mark.parametrize("reason", StopReason)
def test_every_value_says_what_it_means_and_what_not(reason: StopReason) -> None:
    """Each value has one sentence for either side, and the two differ."""
    for sentence in (reason.meaning, reason.not_meaning):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert "\n" not in sentence
    assert reason.meaning != reason.not_meaning


@pytest.mark.parametrize("reason", StopReason)
def test_docstring_halves_agree_with_the_properties(reason: StopReason) -> None:
    """The docstring's two halves say in the same words what ``meaning`` and ``not_meaning`` say."""
    means, does_not_mean = docstrings()[reason.value].split(" Does not mean: ")
    assert means.startswith("Means: ")
    assert stems(means.removeprefix("Means: ")) <= stems(reason.meaning)
    assert stems(does_not_mean) & stems(reason.not_meaning)


@pytest.mark.parametrize("reason", StopReason)
def test_the_docs_list_every_value(reason: StopReason) -> None:
    """``docs/stop-reasons.md`` names every value in code font."""
    assert f"`{reason.value}`" in DOCS.read_text(encoding="utf-8")


def test_only_a_passed_test_is_provisional() -> None:
    """Of the text route's stop reasons only ``proxy_sufficient`` makes a packet provisional."""
    assert PROVISIONAL & {StopReason(value) for value in TEXT_ROUTE} == {StopReason.PROXY_SUFFICIENT}


def test_no_value_claims_sufficiency() -> None:
    """No text-route value says without qualification that evidence is sufficient, complete or correct."""
    claims = {"sufficient", "complete", "correct", "answered", "resolved"}
    assert not claims & TEXT_ROUTE
    assert "correct" in stop.StopReason.PROXY_SUFFICIENT.not_meaning
