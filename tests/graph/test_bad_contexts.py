"""A runtime context that is not valid is refused in one line, by every way that leads into a graph."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from typing import Any

import pytest
from inventory import HITS, QUERY, dense, lexical
from langgraph.graph import END, START, StateGraph
from pydantic import ValidationError

from bounded_retrieval import (
    BoundedContext,
    BoundedRetriever,
    Budget,
    ChainResult,
    RetrievalRequest,
    create_bounded_retrieval,
    create_recursive_retrieval,
)
from bounded_retrieval.errors import RequestError
from bounded_retrieval.graph.state import BoundedState

BAD = [
    ({"threshold": 2}, "context.threshold: Input should be less than or equal to 1 (got 2)"),
    ({"threshold": "high"}, "context.threshold: Input should be a valid number (got 'high')"),
    ({"policy": "x"}, "context.policy: Input should be 'adaptive', 'always_continue', .* (got 'x')"),
    ({"budget": {"max_rows": -1}}, "context.budget.max_rows: Input should be greater than or equal to 0 (got -1)"),
    ({"treshold": 0.5}, "context.treshold: unknown field (got 0.5)"),
    ({"self": 1, "first_hop_rows": 0}, "context.first_hop_rows: .* (got 0); context.self: unknown field (got 1)"),
]


def controller() -> Any:
    """A compiled controller."""
    return create_bounded_retrieval(lexical(HITS), dense()).compile()


def chain() -> Any:
    """A compiled chain over a controller, whose context schema it takes."""
    return create_recursive_retrieval(controller(), lambda _, trail: None if trail else QUERY).compile()


def parent() -> Any:
    """A graph of the application's own with our context schema and the controller as a node."""
    builder = StateGraph(BoundedState, context_schema=BoundedContext)
    builder.add_node("retrieve", controller())
    builder.add_edge(START, "retrieve")
    builder.add_edge("retrieve", END)
    return builder.compile()


WAYS = {
    "invoke": lambda context: controller().invoke({"query": QUERY}, context=context),
    "ainvoke": lambda context: asyncio.run(controller().ainvoke({"query": QUERY}, context=context)),
    "stream": lambda context: list(controller().stream({"query": QUERY}, context=context)),
    "chain": lambda context: chain().invoke({"query": QUERY}, context=context),
    "parent": lambda context: parent().invoke({"query": QUERY}, context=context),
    "retriever": lambda context: BoundedRetriever.from_retrievers(lexical()).invoke(QUERY, context=context),
    "by hand": lambda context: BoundedContext(**context),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("context", "message"), BAD, ids=[" ".join(context) for context, _ in BAD])
def test_a_bad_context_is_refused_in_one_line(context: dict[str, Any], message: str, way: str) -> None:
    """The field, the limit and the value are named, without pydantic's lines and its link."""
    pattern = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(RequestError, match=f"^{pattern}$") as caught:
        WAYS[way](context)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("way", WAYS)
def test_a_good_context_is_taken_as_before(way: str) -> None:
    """A valid mapping goes through by the same ways."""
    assert WAYS[way]({"policy": "fixed_lexical", "budget": {"max_rows": 2}}) is not None


def test_a_good_context_reaches_the_hops_of_a_chain() -> None:
    """The limits in a mapping hold in a chain's searches."""
    result = ChainResult.from_result(chain().invoke({"query": QUERY}, context={"policy": "always_continue"}))
    assert result.usage.dense_calls == 1


def test_a_subclass_is_refused_in_one_line_too() -> None:
    """An application's own fields beside ours are checked in the same way."""

    class Extended(BoundedContext):
        user: str

    assert Extended(user="ann", threshold=0.5).threshold == 0.5
    graph = create_bounded_retrieval(lexical(HITS), context_schema=Extended).compile()
    with pytest.raises(RequestError, match=r"^context\.user: Field required \(got \{'threshold': 0\.5\}\)$"):
        graph.invoke({"query": QUERY}, context={"threshold": 0.5})


def test_validation_by_pydantic_is_as_it_was() -> None:
    """Where the context is validated as a value, the error is pydantic's and names the field without more."""
    with pytest.raises(ValidationError) as caught:
        BoundedContext.model_validate({"threshold": 2})
    assert [problem["loc"] for problem in caught.value.errors()] == [("threshold",)]
    with pytest.raises(ValidationError):
        BoundedContext.model_validate_json('{"threshold": 2}')
    assert not BoundedContext.__pydantic_custom_init__


def test_the_context_is_the_model_that_it_was() -> None:
    """Its signature, its copies and its fields are those of any model."""
    context = BoundedContext(threshold=0.5, budget=Budget(max_rows=2))
    assert list(inspect.signature(BoundedContext).parameters) == ["policy", "threshold", "budget", "first_hop_rows"]
    assert pickle.loads(pickle.dumps(context)) == context.model_copy() == context
    assert context.model_fields_set == {"threshold", "budget"}
    with pytest.raises(ValidationError):
        RetrievalRequest(query=QUERY, threshold=2)
