from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from bounded_retrieval import as_node, create_bounded_retrieval
from bounded_retrieval.errors import ConfigurationError, RequestError
from bounded_retrieval.testing import ScriptedSearcher

DOCUMENTS = [Document(id=f"u{number}", page_content=f"The pump of site {number} hums.") for number in range(4)]


def bounded() -> Any:
    """A bounded graph over the documents."""
    return create_bounded_retrieval(ScriptedSearcher(DOCUMENTS, "lexical")).compile()


class Parent(TypedDict, total=False):
    question: str
    context: list[Document]
    stopped: str
    query: str
    documents: Annotated[list[Document], operator.add]


async def test_keys_of_the_parent_are_read_and_written() -> None:
    """The query comes from one key, results go to the named keys, and nothing else of the parent changes."""
    node = as_node(bounded(), query_key="question", documents_key="context", stop_reason_key="stopped")
    graph = (
        StateGraph(Parent).add_node("retrieve", node).add_edge(START, "retrieve").add_edge("retrieve", END).compile()
    )
    result = graph.invoke({"question": "Which pump hums?"})
    assert set(result) == {"question", "context", "stopped", "documents"}
    assert [document.id for document in result["context"]] == ["u0", "u1", "u2"]
    assert (result["stopped"], result["documents"]) == ("proxy_sufficient", [])
    assert await graph.ainvoke({"question": "Which pump hums?"}) == result
    assert "lexical_search" in graph.get_graph(xray=True).draw_mermaid()


def test_the_last_human_message_is_the_query() -> None:
    """With messages, the last human message is asked and no message is written."""

    class State(MessagesState):
        context: list[Document]

    searcher = ScriptedSearcher(DOCUMENTS, "lexical")
    node = as_node(create_bounded_retrieval(searcher), query_key="messages", documents_key="context")
    graph = StateGraph(State).add_node("retrieve", node).add_edge(START, "retrieve").add_edge("retrieve", END).compile()
    result = graph.invoke({"messages": [HumanMessage("first"), AIMessage("yes?"), HumanMessage("Which pump hums?")]})
    assert [query for query, _ in searcher.calls] == ["Which pump hums?"]
    assert len(result["messages"]) == 3


@pytest.mark.parametrize("checkpointer", [None, InMemorySaver()], ids=["plain", "checkpointed"])
def test_shared_keys_as_a_subgraph_are_not_doubled(checkpointer: Any) -> None:
    """Added directly under shared keys, a parent's reducer receives the documents once, twice in one parent."""
    builder = StateGraph(Parent).add_node("first", bounded()).add_node("second", bounded())
    builder.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    config = {"configurable": {"thread_id": "one"}}
    result = builder.compile(checkpointer=checkpointer).invoke({"query": "Which pump hums?"}, config)
    assert [document.id for document in result["documents"]] == ["u0", "u1", "u2"] * 2
    assert set(result) == {"query", "documents"}


def test_a_fan_out_runs_each_branch_on_its_own() -> None:
    """Several runs of one graph at once do not see each other."""

    def fan(_state: Parent) -> list[Send]:
        return [Send("retrieve", {"query": f"Which pump hums at site {number}?"}) for number in range(3)]

    builder = StateGraph(Parent).add_node("retrieve", bounded())
    graph = builder.add_conditional_edges(START, fan, ["retrieve"]).add_edge("retrieve", END).compile()
    assert len(graph.invoke({})["documents"]) == 9


def test_bad_connections_are_refused() -> None:
    """No key to write, messages as one, a foreign object, or a parent without a query give a clear error."""
    with pytest.raises(ConfigurationError, match="at least one key"):
        as_node(bounded(), documents_key=None)
    with pytest.raises(ConfigurationError, match="messages"):
        as_node(bounded(), documents_key="messages")
    with pytest.raises(ConfigurationError, match="bounded graph"):
        as_node(object())
    node = as_node(bounded(), query_key="question", documents_key="context")
    graph = (
        StateGraph(Parent).add_node("retrieve", node).add_edge(START, "retrieve").add_edge("retrieve", END).compile()
    )
    with pytest.raises(RequestError, match="question"):
        graph.invoke({"context": []})


def test_a_result_that_the_graph_does_not_return_is_refused() -> None:
    """output_keys and the keys to be written are compared when the node is made, not when it first runs."""
    graph = create_bounded_retrieval(ScriptedSearcher(DOCUMENTS, "lexical"), output_keys=["packet"])
    with pytest.raises(ConfigurationError, match="does not return documents"):
        as_node(graph)
    assert as_node(graph, documents_key=None, packet_key="packet")
