"""A run that stops, written by hand: the controller's nodes and edges over plain dicts, and nothing checked.

It searches, looks for the query's stems in the units, reads the units once more, compares their text and packs them
with a list of events. It does not validate a request, settle or enforce limits, ask who may see what, infer anything
from what it looked for, fuse, survive a failing searcher or say why it ended, and it believes whatever state it is
given. What the controller takes beyond this graph is what those things cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from langchain_core.documents import Document
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from bounded_retrieval.policies.tokenize import WantedStems, stems_of, tokenize

MAX_CHARS = 4_000


class PlainInput(TypedDict):
    """What the graph is given."""

    query: str


class PlainOutput(TypedDict, total=False):
    """What it gives back."""

    packet: dict[str, Any]
    documents: list[Document]
    stop_reason: str
    trace: dict[str, Any]


class PlainState(PlainOutput, PlainInput, total=False):
    """What its nodes hand on."""

    terms: list[str]
    units: dict[str, dict[str, Any]]
    candidates: list[dict[str, Any]]
    usage: dict[str, int]
    action: str
    events: list[dict[str, Any]]


def plain_stop(lexical: Any, units: Any, rows: int) -> Callable[[str], Any]:
    """Compile the graph over a lexical searcher of the package and a source of units.

    Args:
        lexical: searches, and says how rare words are.
        units: reads units once more.
        rows: how many to ask the searcher for.
    """
    builder = StateGraph(PlainState, input_schema=PlainInput, output_schema=PlainOutput)
    builder.add_node("inspect_request", _inspect)
    builder.add_node("lexical_search", lambda state: _search(state, lexical, rows))
    builder.add_node("assess_coverage", lambda state: _assess(state, lexical))
    builder.add_node("dense_search", lambda _: {})
    builder.add_node("recheck_and_pack", lambda state: _pack(state, units))
    builder.add_edge(START, "inspect_request")
    builder.add_conditional_edges("inspect_request", lambda _: "lexical_search", ["lexical_search", "dense_search"])
    builder.add_edge("lexical_search", "assess_coverage")
    builder.add_conditional_edges(
        "assess_coverage", lambda state: state["action"], ["dense_search", "recheck_and_pack"]
    )
    builder.add_edge("dense_search", "assess_coverage")
    builder.add_edge("recheck_and_pack", END)
    compiled = builder.compile()
    return lambda query: compiled.invoke({"query": query})


def _inspect(state: PlainState) -> dict[str, Any]:
    terms = list(dict.fromkeys(tokenize(state["query"])))
    return {"query": state["query"], "terms": terms, "events": [{"event": "request_inspected", "terms": terms}]}


def _search(state: PlainState, lexical: Any, rows: int) -> dict[str, Any]:
    units, candidates = {}, []
    for row in lexical.search(state["query"], rows):
        text = row.unit.page_content
        fingerprint = hashlib.sha256(text.encode()).hexdigest()
        units[row.unit_id] = {"text": text, "metadata": row.unit.metadata, "fingerprint": fingerprint}
        candidates.append({"unit_id": row.unit_id, "channel": "lexical", "rank": row.rank, "score": row.score})
    event = {"event": "search_attempted", "channel": "lexical", "returned": candidates}
    return {"units": units, "candidates": candidates, "usage": {"calls": 1}, "events": [*state["events"], event]}


def _assess(state: PlainState, lexical: Any) -> dict[str, Any]:
    weights = lexical.weigh(state["query"], state["terms"])
    wanted = WantedStems(stems_of(state["terms"]))
    observations = [
        {"unit_id": unit_id, "places": wanted.places(tokenize(unit["text"]))}
        for unit_id, unit in state["units"].items()
    ]
    found = {stem for observation in observations for stem in observation["places"]}
    event = {"event": "coverage_assessed", "observations": observations, "found": len(found), "of": len(weights.terms)}
    return {"action": "recheck_and_pack", "events": [*state["events"], event]}


def _pack(state: PlainState, units: Any) -> dict[str, Any]:
    current = units.fetch(list(state["units"]))
    items, documents, chars = [], [], 0
    for unit_id, unit in state["units"].items():
        if current[unit_id].page_content == unit["text"] and chars + len(unit["text"]) <= MAX_CHARS:
            chars += len(unit["text"])
            items.append({"unit_id": unit_id, **unit})
            documents.append(Document(id=unit_id, page_content=unit["text"], metadata=unit["metadata"]))
    event = {"event": "evidence_packed", "packed": [item["unit_id"] for item in items], "chars": chars}
    return {
        "packet": {"items": items, "usage": state["usage"]},
        "documents": documents,
        "stop_reason": "proxy_sufficient",
        "trace": {"events": [*state["events"], event]},
    }
