"""Tokens of a chain's calls may add up to any number that its parts may state between them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chain_inventory import CONFIG, QUESTION, TOPICS, ask, build
from pydantic import ValidationError

from bounded_retrieval.contracts.chain import (
    MAX_HOPS,
    ChainLimits,
    ChainResult,
    ChainUsage,
    NextQuery,
    SubAnswer,
    Sufficiency,
)

MOST = 10**12


def plan(question: str, trail: Any) -> NextQuery:  # noqa: ARG001
    """A planner that states as many tokens as it may."""
    return NextQuery(query=TOPICS[len(trail)], tokens=MOST)


def read(query: str, documents: Any) -> SubAnswer:  # noqa: ARG001
    """A reader that does."""
    return SubAnswer(text=f"the answer on {query}", tokens=MOST)


def doubts(question: str, trail: Any) -> Sufficiency:  # noqa: ARG001
    """A sufficiency test that does."""
    return Sufficiency(sufficient=False, tokens=MOST)


PARTS: dict[str, dict[str, Any]] = {
    "planner": {"planner": plan},
    "reader": {"reader": read},
    "sufficiency": {"sufficiency": doubts},
    "all": {"planner": plan, "reader": read, "sufficiency": doubts},
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_without_a_limit_the_chain_goes_on(parts: dict[str, Any]) -> None:
    """Eight hops whose calls each state the most tokens there are end at the depth cap, with all of them counted."""
    result = ask(limits=ChainLimits(max_hops=MAX_HOPS), **parts)
    assert result.stop_reason.value == "depth_cap"
    assert result.usage.tokens == MAX_HOPS * len(parts) * MOST
    assert sum(hop.usage.tokens for hop in result.trail) == result.usage.tokens
    assert type(result).model_validate_json(result.model_dump_json()).usage == result.usage


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_with_a_limit_the_chain_ends_by_it(parts: dict[str, Any]) -> None:
    """As soon as the sum reaches the limit, and although no single call states as much, the tokens are used up."""
    result = ask(limits=ChainLimits(max_hops=MAX_HOPS, max_tokens=MOST + 1), **parts)
    assert result.stop_reason.value == "token_budget_exhausted"
    assert result.usage.tokens > MOST


def test_awaited_chains_add_up_as_well() -> None:
    """An asynchronous run counts the same."""
    graph = build(planner=plan, reader=read)
    result = ChainResult.from_result(asyncio.run(graph.ainvoke({"query": QUESTION}, CONFIG)))
    assert (result.stop_reason.value, result.usage.tokens) == ("depth_cap", 6 * MOST)


@pytest.mark.parametrize("model", [NextQuery, SubAnswer, Sufficiency])
def test_what_one_call_states_stays_bounded(model: Any) -> None:
    """More than the most tokens of a call are refused where the call states them, and no usage has a negative count."""
    fields = {"text": "x", "query": "x", "sufficient": True}
    known = {name: value for name, value in fields.items() if name in model.model_fields}
    assert model(**known, tokens=MOST).tokens == MOST
    with pytest.raises(ValidationError):
        model(**known, tokens=MOST + 1)
    with pytest.raises(ValidationError):
        ChainUsage(tokens=-1)


def test_usages_add_up_beyond_what_one_call_states() -> None:
    """The sum of two usages is a usage."""
    most = ChainUsage(calls=MOST, dense_calls=MOST, rows=MOST, reads=MOST, tokens=MOST)
    assert set(most.plus(most).model_dump().values()) == {2 * MOST}
