"""A parent graph that asks several questions at once, each in a bounded run of its own.

    python examples/parent_graph_fan_out.py

The parent has its own state keys; ``as_node`` connects them. Every branch has its own budget, and none sees another's
state. The packets meet in a reducer. ``subgraphs=True`` lets the parent's stream show what each branch decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from bounded_retrieval import BM25Searcher, EvidencePacket, RetrievalRequest, as_node, create_bounded_retrieval
from bounded_retrieval.ingest import read_documents

CORPUS = Path(__file__).resolve().parents[1] / "bounded_retrieval" / "data" / "device_support" / "corpus.jsonl"

QUESTIONS = [
    "How do I fit the SIM card in the GT-400?",
    "How do I load the RB-110 ribbon in the LP-120?",
    "How do I mount the LP-12 on a vehicle dashboard?",
]

Packets = dict[str, dict[str, Any]]


def collect(held: Packets, packet: dict[str, Any]) -> Packets:
    """Reducer: keep each branch's packet under the id of its query."""
    return {**held, packet["query_id"]: packet}


class Parent(TypedDict, total=False):
    """The parent's state."""

    questions: list[str]
    packets: Annotated[Packets, collect]


class Branch(TypedDict):
    """What one branch is sent."""

    question: str


def fan_out(state: Parent) -> list[Send]:
    """One branch for each question."""
    return [Send("retrieve", Branch(question=question)) for question in state["questions"]]


def build(bounded: Any) -> CompiledStateGraph[Parent, None, Parent, Parent]:
    """The parent graph around a bounded one."""
    builder = StateGraph(Parent)
    node = as_node(bounded, query_key="question", documents_key=None, packet_key="packets")
    builder.add_node("retrieve", node, input_schema=Branch)
    builder.add_conditional_edges(START, fan_out, ["retrieve"])
    builder.add_edge("retrieve", END)
    return builder.compile()


def main() -> None:
    """Stream the decisions of three branches, then show their packets."""
    # One channel is enough for a graph; a dense searcher would be the second argument.
    graph = build(create_bounded_retrieval(BM25Searcher.from_documents(read_documents([CORPUS]))))
    result: dict[str, Any] = {}
    parts: Iterator[Any] = graph.stream({"questions": QUESTIONS}, stream_mode=["custom", "values"], subgraphs=True)
    for namespace, mode, part in parts:
        if mode == "custom" and part["event"] == "coverage_assessed":
            test = part["assessment"]
            reached = f"{test['coverage']:.2f} against {test['threshold']:g}"
            print(f"a branch decides: {test['assessor']} {reached}, so {part['action']}")
        elif mode == "values" and not namespace:
            result = part
    for question in QUESTIONS:
        packet = EvidencePacket.model_validate(result["packets"][RetrievalRequest(query=question).query_id])
        print(f"\n{question}\n  {packet.stop_reason.value}; missing: {', '.join(packet.missing_terms) or '-'}")
        print("  " + ", ".join(item.unit_id for item in packet.items))


if __name__ == "__main__":
    main()
