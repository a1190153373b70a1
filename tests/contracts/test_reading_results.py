"""``from_result`` reads a graph's output or the thing itself, and refuses anything else in one line."""

from __future__ import annotations

import json
import warnings
from typing import Any, TypedDict

import pytest
from langchain_core.documents import Document
from langchain_core.messages import ToolCall
from langgraph.graph import END, START, StateGraph

from bounded_retrieval import (
    ChainResult,
    DecisionTrace,
    EvidencePacket,
    as_node,
    create_bounded_retrieval,
    create_recursive_retrieval,
    create_retrieval_tool,
)
from bounded_retrieval.errors import RequestError
from bounded_retrieval.testing import ScriptedSearcher

UNITS = [Document(id="a", page_content="The pump hums at night.")]
MODELS: list[Any] = [EvidencePacket, DecisionTrace, ChainResult]
CALL = ToolCall(name="bounded_retrieval", args={"query": "pump"}, id="1", type="tool_call")


def controller() -> Any:
    """A compiled controller."""
    return create_bounded_retrieval(ScriptedSearcher(UNITS, "lexical")).compile()


def chain() -> Any:
    """A compiled chain."""
    return create_recursive_retrieval(lambda _: UNITS, lambda _, trail: None if trail else "pump").compile()


def outputs(model: Any, **options: Any) -> Any:
    """What the graph that a model is read from returned."""
    return (chain() if model is ChainResult else controller()).invoke({"query": "pump"}, **options)


@pytest.mark.parametrize("model", MODELS)
def test_the_thing_itself_is_read_in_every_form(model: Any) -> None:
    """The object, its dict, its JSON and the output around it all give the same."""
    read = model.from_result(outputs(model))
    assert model.from_result(read) is read
    assert model.from_result(read.model_dump()) == read
    assert model.from_result(json.loads(read.model_dump_json())) == read


@pytest.mark.parametrize("model", MODELS)
def test_an_output_of_the_second_version_is_read(model: Any) -> None:
    """What LangGraph puts around the output under ``version="v2"`` is looked through, without its warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.from_result(outputs(model, version="v2")) == model.from_result(outputs(model))


def test_a_tools_artifact_is_read() -> None:
    """The artifact of the controller's tool is its packet's dict."""
    message = create_retrieval_tool(controller()).invoke(CALL)
    assert EvidencePacket.from_result(message.artifact) == EvidencePacket.from_result(outputs(EvidencePacket))


def test_what_a_node_writes_is_read() -> None:
    """The dict under a parent's key is the packet's."""

    class Parent(TypedDict, total=False):
        query: str
        documents: list[Document]
        evidence: dict[str, Any]

    builder = StateGraph(Parent).add_node("retrieve", as_node(controller(), packet_key="evidence"))
    graph = builder.add_edge(START, "retrieve").add_edge("retrieve", END).compile()
    packet = EvidencePacket.from_result(graph.invoke({"query": "pump"})["evidence"])
    assert [item.unit_id for item in packet.items] == ["a"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("given", [None, 5, "packet", b"packet", [], [("packet", {})], object], ids=repr)
def test_what_is_no_output_is_refused(model: Any, given: Any) -> None:
    """Anything but a mapping is named in one line."""
    with pytest.raises(RequestError, match=r"^result: expected what a graph returned \(got .*\)$"):
        model.from_result(given)


@pytest.mark.parametrize("model", MODELS)
def test_a_mapping_of_something_else_lists_its_keys(model: Any) -> None:
    """A mapping that has neither the key nor the fields keeps its error, whatever its keys are."""
    for given, listed in (
        ({}, r"\[\]"),
        ({"b": 1, 2: 3}, r"\['2', 'b'\]"),
        ({"items": [], "query_id": "q"}, "'items'"),
    ):
        with pytest.raises(KeyError, match=f"not in the graph's output, which has .*{listed}"):
            model.from_result(given)


@pytest.mark.parametrize("model", [EvidencePacket, DecisionTrace])
def test_the_other_graphs_output_is_no_output_of_this_one(model: Any) -> None:
    """A chain's output holds neither packet nor trace, and a controller's no chain."""
    with pytest.raises(KeyError, match="not in the graph's output"):
        model.from_result(outputs(ChainResult))
    with pytest.raises(KeyError, match="not in the graph's output"):
        ChainResult.from_result(outputs(model))


INVALID = [
    (EvidencePacket, {"packet": None}, r"packet: .*\(got None\)"),
    (EvidencePacket, {"packet": {"query_id": 5}}, r"packet\.query_id: .*\(got 5\); packet\.items: .*"),
    (DecisionTrace, {"trace": None}, r"trace: .*\(got None\)"),
    (DecisionTrace, {"events": [{"event": "guess"}]}, r"trace\.events\.0: .*'guess'.*"),
    (ChainResult, dict.fromkeys(["stop_reason", "resolved", "unresolved", "trail", "documents", "chain"]), "chain: .*"),
]


@pytest.mark.parametrize(("model", "given", "message"), INVALID)
def test_what_is_not_valid_is_refused_in_one_line(model: Any, given: Any, message: str) -> None:
    """A packet or trace that is none is named with its field."""
    with pytest.raises(RequestError, match=f"^{message}$"):
        model.from_result(given)
