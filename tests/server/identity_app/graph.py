"""An application with two tenants: its units, its searchers, and the graphs that a server serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from bounded_retrieval import (
    BM25Searcher,
    Candidate,
    MetadataView,
    as_node,
    create_bounded_retrieval,
    create_retrieval_tool,
)
from bounded_retrieval.contracts.filters import Filter, compile_filter

ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("unit-north-1", {"tenant": "north"}, "The north pump hums at night, which is the amber relay."),
    ("unit-north-2", {"tenant": "north"}, "A pump of the north works that hums needs its birch seal."),
    ("unit-north-3", {"tenant": "north", "groups": ["night"]}, "At night the north pump rests on the cedar valve."),
    ("unit-north-4", {"tenant": "north", "groups": ["office"]}, "The north pump hums at night in the dahlia ledger."),
    ("unit-north-5", {"tenant": "north"}, "Order parts for the north yard with the elder form."),
    ("unit-south-1", {"tenant": "south"}, "The south pump hums at night, which is the fennel relay."),
    ("unit-south-2", {"tenant": "south"}, "A pump of the south works that hums needs its ginger seal."),
    ("unit-south-3", {"tenant": "south", "groups": ["night"]}, "At night the south pump rests on the hazel valve."),
    ("unit-south-4", {"tenant": "south", "groups": ["office"]}, "The south pump hums at night in the indigo ledger."),
    ("unit-south-5", {"tenant": "south"}, "Order parts for the south yard with the juniper form."),
    ("unit-stray-1", {}, "Which pump hums at night? The stray one, says the lotus memo."),
    ("unit-stray-2", {"groups": ["night"]}, "The stray pump hums at night under the maple note."),
]
"""Id, metadata and text of each unit. Every id and every text holds the name of its tenant."""

UNITS = [Document(id=unit_id, page_content=text, metadata=metadata) for unit_id, metadata, text in ROWS]


@dataclass(frozen=True)
class AppContext:
    """The runtime context that the application passes to its graph."""

    tenant: str | None = None
    groups: tuple[str, ...] = ()


class Trigrams:
    """A dense searcher as small as they come: cosine of the texts' sets of three letters."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = [(document, _trigrams(document.page_content)) for document in documents]

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Return the ``k`` nearest units that pass the filter."""
        passes, asked = compile_filter(filter), _trigrams(query)
        scored = [
            (len(asked & held) / (len(asked) * len(held)) ** 0.5, document)
            for document, held in self._documents
            if passes(document.metadata)
        ]
        best = sorted(scored, key=lambda pair: (-pair[0], str(pair[1].id)))[:k]
        return [
            Candidate(unit_id=str(document.id), channel="dense", rank=rank, score=score, unit=document)
            for rank, (score, document) in enumerate(best, 1)
        ]


def _trigrams(text: str) -> set[str]:
    letters = text.casefold()
    return {letters[start : start + 3] for start in range(len(letters) - 2)}


_lexical = BM25Searcher.from_documents(UNITS)

builder = create_bounded_retrieval(
    _lexical, Trigrams(UNITS), units=_lexical, eligibility=MetadataView(), context_schema=AppContext
)

graph = builder.compile(name="tenants")


class Asked(TypedDict, total=False):
    """State of the parent graph: a question, and what a node and a tool found for it."""

    question: str
    documents: list[Document]
    passages: str


_tool = create_retrieval_tool(builder)


async def consult(state: Asked, config: RunnableConfig) -> Asked:
    """Ask the same question by the tool."""
    return {"passages": await _tool.ainvoke({"query": state["question"]}, config)}


parent = (
    StateGraph(Asked, context_schema=AppContext)
    .add_node("retrieve", as_node(builder, query_key="question"))
    .add_node("consult", consult)
    .add_edge(START, "retrieve")
    .add_edge("retrieve", "consult")
    .add_edge("consult", END)
    .compile(name="parent")
)
