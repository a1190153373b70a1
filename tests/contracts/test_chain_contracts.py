from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from bounded_retrieval.contracts.chain import (
    MAX_HOPS,
    ChainLimits,
    ChainRequest,
    ChainResult,
    ChainUsage,
    Check,
    Hop,
    NextQuery,
    ResolvedChain,
    SubAnswer,
    Sufficiency,
    UnresolvedChain,
)
from bounded_retrieval.contracts.request import JUDGEMENT_FIELDS
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.wording import NOTES
from bounded_retrieval.errors import RequestError
from bounded_retrieval.integrations.wording import chain_for_model

HOP = Hop(number=1, query="old pier", sub_answer="Pier 7", unit_ids=("a",), new_units=1, usage=ChainUsage(calls=1))
ENDED = [reason for reason in StopReason if reason not in (StopReason.SUFFICIENT, StopReason.NO_NEXT_QUERY)]


def output(**changes: Any) -> dict[str, Any]:
    """A chain graph's output; by default a resolved one."""
    facts = {
        "query": "Who keeps the key?",
        "query_id": "id-1",
        "clarification": None,
        "limits": ChainLimits().model_dump(),
        "usage": {"calls": 1},
        "notes": [],
    }
    return {
        "stop_reason": "no_next_query",
        "resolved": True,
        "unresolved": [],
        "trail": [HOP.model_dump(mode="json")],
        "documents": [Document(id="a", page_content="Text of a.")],
        "chain": {**facts, **changes.pop("chain", {})},
        **changes,
    }


def unresolved(reason: str = "depth_cap", **changes: Any) -> dict[str, Any]:
    """An unresolved output."""
    return output(**{"stop_reason": reason, "resolved": False, "unresolved": ["who else"], **changes})


BOUNDS = [
    ("max_hops", 1, 8),
    ("max_calls", 0, 16),
    ("max_units", 0, 50),
    ("max_chars", 0, 200_000),
    ("max_tokens", 0, 10**12),
    ("deadline_ms", 0, 600_000),
]


def test_the_defaults_are_the_declared_ones() -> None:
    """Three hops, 16 calls, eight units, 8,000 characters; no limit on tokens and time; never more than eight hops."""
    assert ChainLimits().model_dump() == {
        "max_hops": 3,
        "max_calls": 16,
        "max_units": 8,
        "max_chars": 8_000,
        "max_tokens": None,
        "deadline_ms": None,
    }
    assert MAX_HOPS == 8


@pytest.mark.parametrize(("name", "least", "most"), BOUNDS)
def test_each_limit_has_bounds(name: str, least: int, most: int) -> None:
    """The bounds themselves are limits; one below the least is refused, and one above the most where there is one."""
    assert getattr(ChainLimits(**{name: least}), name) == least
    assert getattr(ChainLimits(**{name: most}), name) == most
    with pytest.raises(ValidationError):
        ChainLimits(**{name: least - 1})
    if name != "max_tokens":
        with pytest.raises(ValidationError):
            ChainLimits(**{name: most + 1})


@pytest.mark.parametrize("name", [name for name, _, _ in BOUNDS])
@pytest.mark.parametrize("value", [True, 1.0, "1", [1]], ids=repr)
def test_limits_are_whole_numbers(name: str, value: Any) -> None:
    """Neither a bool nor a float nor text is taken for a limit."""
    with pytest.raises(ValidationError):
        ChainLimits(**{name: value})


@pytest.mark.parametrize("name", ["max_hops", "max_calls", "max_units", "max_chars"])
def test_none_is_no_limit_of_these(name: str) -> None:
    """Depth, calls, units and characters always have a limit."""
    with pytest.raises(ValidationError):
        ChainLimits(**{name: None})


@pytest.mark.parametrize(
    "model",
    [ChainLimits(), HOP, NextQuery(query=None), SubAnswer(text="x"), ChainUsage()],
    ids=lambda model: type(model).__name__,
)
def test_contracts_are_frozen(model: Any) -> None:
    """No field can be set after the model was made, and unknown fields are refused."""
    name = next(iter(type(model).model_fields))
    with pytest.raises(ValidationError):
        setattr(model, name, getattr(model, name))
    with pytest.raises(ValidationError):
        type(model)(**{**dict(model), "surprise": 1})


@pytest.mark.parametrize("label", sorted(JUDGEMENT_FIELDS))
def test_labels_are_refused_in_a_request(label: str) -> None:
    """No judgement of relevance reaches a chain."""
    with pytest.raises(ValidationError, match="labels never reach the decision"):
        ChainRequest.model_validate({label: 1})


def test_a_sub_answer_is_cleaned_and_cut() -> None:
    """NUL is replaced, 500 characters are kept, and no text is no sub-answer."""
    assert SubAnswer(text="a\x00b").text == "a\ufffdb"
    assert len(SubAnswer(text="x" * 501).text) == 500
    with pytest.raises(ValidationError):
        SubAnswer(text="")


@pytest.mark.parametrize("model", [SubAnswer, NextQuery, Sufficiency], ids=lambda model: model.__name__)
def test_no_tokens_are_given_back(model: Any) -> None:
    """A negative number of tokens, which would lower the usage, is refused."""
    fields = {"text": "x", "query": "x", "sufficient": True}
    known = {name: value for name, value in fields.items() if name in model.model_fields}
    with pytest.raises(ValidationError):
        model(**known, tokens=-1)


@pytest.mark.parametrize("number", [0, 9])
def test_a_hop_is_one_of_eight(number: int) -> None:
    """There is no hop before the first and none after the eighth."""
    with pytest.raises(ValidationError):
        Hop(number=number, query="x")


def test_an_output_is_read_as_its_own_type() -> None:
    """A resolved and an unresolved output are two types, and neither is an instance of the other."""
    resolved, ended = ChainResult.from_result(output()), ChainResult.from_result(unresolved())
    assert isinstance(resolved, ResolvedChain)
    assert isinstance(ended, UnresolvedChain)
    assert not isinstance(ended, ResolvedChain)
    assert (resolved.query, resolved.query_id, resolved.trail) == ("Who keeps the key?", "id-1", (HOP,))


def test_an_output_may_have_been_json_in_between() -> None:
    """An output that was JSON, its documents as mappings, gives the same result."""
    written = {**output(), "documents": [document.model_dump() for document in output()["documents"]]}
    assert ChainResult.from_result(json.loads(json.dumps(written))) == ChainResult.from_result(output())


@pytest.mark.parametrize("key", ["trail", "stop_reason", "resolved", "unresolved", "documents", "chain"])
def test_a_missing_key_is_named(key: str) -> None:
    """An output that lacks a field cannot be read, and the error names it."""
    with pytest.raises(KeyError, match=f"{key}: not in the graph's output"):
        ChainResult.from_result({name: value for name, value in output().items() if name != key})


@pytest.mark.parametrize("reason", ENDED)
def test_a_chain_that_was_ended_cannot_be_resolved(reason: StopReason) -> None:
    """An output that says resolved after a limit, a rule or a failure is refused, and so is the type itself."""
    with pytest.raises(RequestError, match=r"^chain.*is not resolved") as refused:
        ChainResult.from_result(output(stop_reason=reason.value))
    assert "\n" not in str(refused.value)
    fields = {**dict(ChainResult.from_result(output())), "stop_reason": reason}
    with pytest.raises(ValidationError):
        ResolvedChain(**fields)


CONTRADICTIONS = [
    {"resolved": True, "unresolved": ["who else"]},
    {"resolved": False, "unresolved": []},
]


@pytest.mark.parametrize("changes", CONTRADICTIONS, ids=["resolved with open parts", "unresolved without"])
def test_resolved_means_that_nothing_is_open(changes: dict[str, Any]) -> None:
    """An output that contradicts itself is refused."""
    with pytest.raises(RequestError, match=r"^chain"):
        ChainResult.from_result(output(**changes))


@pytest.mark.parametrize("reason", list(StopReason))
def test_unresolved_is_said_wherever_it_is_shown(reason: StopReason) -> None:
    """HTML, the text for a model and the repr of an unresolved chain say so, with its reason and what that means."""
    result = ChainResult.from_result(unresolved(reason.value))
    assert f"<b>UNRESOLVED ({reason.value})" in result._repr_html_()
    assert reason.not_meaning in chain_for_model(result)
    assert chain_for_model(result).startswith(f"UNRESOLVED ({reason.value}). {reason.meaning}")
    assert 'Still open: "who else"' in chain_for_model(result)
    assert repr(result).startswith("UnresolvedChain(")
    assert "resolved=False" in str(result)


def test_resolved_is_said_too() -> None:
    """A resolved chain says RESOLVED, and UNRESOLVED nowhere."""
    result = ChainResult.from_result(output())
    for shown in (result._repr_html_(), chain_for_model(result)):
        assert "RESOLVED (no_next_query)" in shown
        assert "UNRESOLVED" not in shown


HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>\x1b[31m'


def test_whatever_comes_from_outside_is_escaped() -> None:
    """Question, queries, sub-answers, ids, open parts, clarification and notes cannot become markup."""
    trail = [HOP.model_copy(update={"query": HOSTILE, "sub_answer": HOSTILE, "unit_ids": (HOSTILE,)}).model_dump()]
    facts = {"query": HOSTILE, "query_id": HOSTILE, "clarification": HOSTILE, "notes": [HOSTILE]}
    shown = ChainResult.from_result(unresolved(unresolved=[HOSTILE], trail=trail, chain=facts))._repr_html_()
    assert shown.count("&lt;script&gt;") == 9
    assert "<script" not in shown
    assert "<img" not in shown
    assert "\x1b" not in shown


def test_a_trail_without_a_hop_is_said() -> None:
    """The HTML of a chain that made no hop says so instead of showing an empty table."""
    assert "no hop was made" in ChainResult.from_result(unresolved("cancelled", trail=[]))._repr_html_()


def test_the_html_shows_which_rule_fired() -> None:
    """Each hop's row names the rules that fired, or none."""
    check = Check(rule=StopReason.DEPTH_CAP, fired=True, found="3 of 3 hops")
    trail = [HOP.model_dump(), HOP.model_copy(update={"number": 2, "checks": (check,)}).model_dump()]
    shown = ChainResult.from_result(unresolved(trail=trail))._repr_html_()
    assert "<code>none</code>" in shown
    assert "<code>depth_cap</code>" in shown


def test_every_note_is_explained() -> None:
    """The notes that a chain's nodes make have words of their own."""
    made = {"hop_failed", "planner_failed", "reader_failed", "sufficiency_failed", "unusable_query"}
    assert made <= NOTES.keys()
