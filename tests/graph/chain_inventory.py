"""Small searches, planners and readers for the recursive chain's tests. Each does exactly what it was given to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document

from bounded_retrieval.contracts.chain import ChainResult, Hop
from bounded_retrieval.graph.chain import create_recursive_retrieval

QUESTION = "Who keeps the key of the customs house?"
CONFIG: Any = {"recursion_limit": 100}
TOPICS = (
    "harbour office",
    "night porter",
    "brass bell",
    "copper roof",
    "garden wall",
    "river ferry",
    "paper mill",
    "signal tower",
    "winter market",
    "stone bridge",
)
"""Queries of which no two share a word."""


def document(unit_id: str, text: str | None = None, **metadata: Any) -> Document:
    """A document; by default its text is made from its id."""
    return Document(id=unit_id, page_content=f"Text of {unit_id}." if text is None else text, metadata=metadata)


class Search:
    """Answers the n-th call with the n-th answer, and further calls with documents that are new each time.

    Attributes:
        answers: each a list of documents, an exception to raise, or a function of the query that gives either.
        queries: what it was asked, in order.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.queries: list[str] = []

    def __call__(self, query: str) -> Any:
        self.queries.append(query)
        number = len(self.queries)
        answer = self.answers[number - 1] if number <= len(self.answers) else [document(f"u{number}")]
        answer = answer(query) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer


class Plan:
    """Plans the n-th hop with the n-th answer, and ends (none) after the last one.

    Attributes:
        answers: each whatever a planner may return, an exception to raise, or a function of no arguments.
        asked: the trail's length at each call.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.asked: list[int] = []

    def __call__(self, question: str, trail: Sequence[Hop]) -> Any:  # noqa: ARG002
        self.asked.append(len(trail))
        answer = self.answers[len(trail)] if len(trail) < len(self.answers) else None
        answer = answer() if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer


def endless(question: str, trail: Sequence[Hop]) -> str:  # noqa: ARG001
    """A planner with a new query for every hop."""
    return TOPICS[len(trail)]


def says(query: str, documents: Sequence[Document]) -> str:  # noqa: ARG001
    """A reader with a sub-answer to everything."""
    return f"the answer on {query}"


def silent(query: str, documents: Sequence[Document]) -> None:
    """A reader without any sub-answer."""


def build(search: Any = None, planner: Any = endless, reader: Any = says, **options: Any) -> Any:
    """A compiled chain graph; by default one that always finds and answers something new."""
    checkpointer = options.pop("checkpointer", None)
    builder = create_recursive_retrieval(Search() if search is None else search, planner, reader, **options)
    return builder.compile(checkpointer=checkpointer)


def given(request: Mapping[str, Any] | None = None, question: str = QUESTION) -> dict[str, Any]:
    """What a chain graph is given."""
    return {"query": question} if request is None else {"query": question, "request": dict(request)}


def ask(*parts: Any, request: Mapping[str, Any] | None = None, context: Any = None, **options: Any) -> Any:
    """The result of one run."""
    graph = build(*parts, **options)
    return ChainResult.from_result(graph.invoke(given(request), CONFIG, context=context))


def aask(*parts: Any, request: Mapping[str, Any] | None = None, context: Any = None, **options: Any) -> Any:
    """The result of one asynchronous run."""
    graph = build(*parts, **options)
    return ChainResult.from_result(asyncio.run(graph.ainvoke(given(request), CONFIG, context=context)))


def told(graph: Any, inputs: Any, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The result of one run and its custom events."""
    parts = list(graph.stream(inputs, CONFIG, stream_mode=["custom", "values"], **options))
    return ChainResult.from_result(parts[-1][1]), [part for mode, part in parts if mode == "custom"]


def fired(result: ChainResult) -> list[str]:
    """The rules that fired, hop by hop."""
    return [check.rule.value for hop in result.trail for check in hop.checks if check.fired]


def returning(value: Any) -> Callable[..., Any]:
    """A function of any arguments with this answer."""
    return lambda *_: value


def raising(error: Exception) -> Callable[..., Any]:
    """A function of any arguments that raises."""

    def fail(*_: Any) -> Any:
        raise error

    return fail
