"""What people complain of in the alternatives, one test each, where no other file has it already.

Elsewhere: scores thrown away, and a fused list longer than k (``test_retriever.py``); duplicates inside one list
(``policies/test_fusion.py``, ``policies/test_rows.py``); one failing channel (``graph/test_bounded.py``,
``test_retriever.py``); multi-key filters in Chroma (``retrievers/test_langchain_adapters.py``); a blocked event loop
(``graph/test_event_loop.py``, ``graph/test_asynchronous.py``); a recursion limit (``graph/test_interruptions.py``);
unserialisable state (``graph/test_checkpoints.py``, ``checkpoints/``, ``test_agent.py``); a swallowed cancellation
(``graph/test_asynchronous.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers.context import collect_runs
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from bounded_retrieval import BoundedRetriever, as_node, create_bounded_retrieval, create_retrieval_tool
from bounded_retrieval.testing import FailingSearcher, ScriptedSearcher

QUERY = "Which pump hums?"
DOCUMENTS = [
    Document(
        id=f"u{number}", page_content=f"The pump of site {number} hums.", metadata={"site": number % 2, "n": number}
    )
    for number in range(8)
]


async def test_a_filter_holds_under_ainvoke_too() -> None:
    """Complaint: a filter applied in the sync path and forgotten in ainvoke."""
    langchain_chroma = pytest.importorskip("langchain_chroma", reason="langchain-chroma is not installed")
    embedding = DeterministicFakeEmbedding(size=16)
    chroma = langchain_chroma.Chroma(collection_name="complaints", embedding_function=embedding)
    chroma.add_documents(DOCUMENTS)
    memory = InMemoryVectorStore.from_documents(DOCUMENTS, embedding)
    lexical = memory.as_retriever(search_kwargs={"k": 8, "filter": lambda document: document.metadata["site"] == 1})
    dense = chroma.as_retriever(search_kwargs={"k": 8, "filter": {"$and": [{"site": 1}, {"n": {"$gt": 1}}]}})
    retriever = BoundedRetriever.from_retrievers(lexical, dense, k=8, policy="always_continue")
    try:
        found = retriever.invoke(QUERY)
        assert {document.metadata["site"] for document in found} == {1}
        assert {document.id for document in found} >= {"u3", "u5", "u7"}
        assert await retriever.ainvoke(QUERY) == found
        assert await retriever.abatch([QUERY]) == [found]
    finally:
        chroma.delete_collection()


@dataclass(frozen=True)
class Identity:
    """An application's context that holds what must not be seen."""

    user: str = "dana-the-caller"
    tenant: str = "north-wing-tenant"

    def appears_in(self, text: str) -> bool:
        return self.user in text or self.tenant in text


def _everything_traced(run: Callable[[], Any]) -> str:
    with collect_runs() as collector:
        run()
    return "\n".join(json.dumps(traced.model_dump(mode="json"), default=repr) for traced in collector.traced_runs)


SEARCHERS = {
    "answering": lambda: (ScriptedSearcher(DOCUMENTS[:4], "lexical"), ScriptedSearcher(DOCUMENTS[4:], "dense")),
    "failing": lambda: (FailingSearcher(), ScriptedSearcher(DOCUMENTS[4:], "dense")),
}


@pytest.mark.parametrize("searchers", SEARCHERS.values(), ids=SEARCHERS.keys())
def test_no_identity_or_tenant_in_traces(searchers: Any) -> None:
    """Complaint: identity or tenant in traces, of the graph, the retriever and the tool, and in what they give."""
    identity, given = Identity(), []
    builder = create_bounded_retrieval(*searchers(), context_schema=Identity)
    graph, retriever, tool = builder.compile(), BoundedRetriever.from_graph(builder), create_retrieval_tool(builder)
    call = ToolCall(name=tool.name, args={"query": QUERY}, id="1", type="tool_call")
    in_configurable = {"configurable": {"bounded_context": identity}}

    def run_all() -> None:
        given.append(list(graph.stream({"query": QUERY}, context=identity, stream_mode=["custom", "values", "debug"])))
        given.append(retriever.invoke(QUERY, context=identity))
        given.append(retriever.invoke(QUERY, in_configurable))
        given.append(tool.invoke(call, in_configurable))

    traced = _everything_traced(run_all)
    assert all(step in traced for step in ("lexical_search", "recheck_and_pack", "BoundedRetriever", tool.name))
    assert not identity.appears_in(traced)
    assert not identity.appears_in(repr(given))


def test_no_identity_or_tenant_in_checkpoints() -> None:
    """Complaint: identity or tenant in traces, of which a checkpoint is the longest-lived."""
    identity, saver = Identity(), InMemorySaver()
    builder = create_bounded_retrieval(*SEARCHERS["answering"](), context_schema=Identity)
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"query": QUERY}, {"configurable": {"thread_id": "one"}}, context=identity)
    saved = repr([saver.storage, saver.blobs, saver.writes])
    assert "recheck_and_pack" in saved
    assert not identity.appears_in(saved)


def test_the_search_for_identities_finds_them() -> None:
    """A control: an identity that an application itself puts into a run's input is seen in what is traced."""
    identity = Identity()
    traced = _everything_traced(lambda: RunnableLambda(lambda given: given).invoke({"caller": identity.user}))
    assert identity.appears_in(traced)


def _problems(schema: dict[str, Any]) -> list[str]:
    """What keeps a form from being drawn: a field without a type or a description, or a reference to nowhere."""
    definitions = schema.get("$defs", {})

    def of(field: dict[str, Any]) -> list[str]:
        options = field.get("anyOf", [field])
        targets = [option["$ref"].rpartition("/")[2] for option in options if "$ref" in option]
        missing = [target for target in targets if target not in definitions]
        is_typed = all({"type", "enum", "const", "$ref"} & set(option) for option in options)
        return missing + ([] if is_typed else ["no type"]) + ([] if field.get("description") else ["no description"])

    forms = [schema, *definitions.values()]
    found = {name: of(field) for form in forms for name, field in form.get("properties", {}).items()}
    return [f"{name}: {problem}" for name, problems in found.items() for problem in problems]


def test_schemas_can_be_drawn_as_forms() -> None:
    """Complaint: a get_input_schema that Studio cannot draw. Every field has a type and says what it is for."""
    graph = create_bounded_retrieval(*SEARCHERS["answering"]()).compile()
    given, context = graph.get_input_jsonschema(), graph.get_context_jsonschema()
    assert (list(given["properties"]), given["required"]) == (["query", "request"], ["query"])
    assert set(context["properties"]) == {"policy", "threshold", "budget", "first_hop_rows"}
    assert "required" not in context
    assert _problems(given) == _problems(context) == []
    assert _problems(graph.get_input_schema().model_json_schema()) == []
    assert set(graph.get_output_jsonschema()["properties"]) == {"packet", "documents", "stop_reason", "trace"}


def test_schemas_around_the_graph_can_be_drawn_too() -> None:
    """Complaint: a get_input_schema that Studio cannot draw, in a parent, as a retriever or as a tool."""

    class Parent(TypedDict):
        question: str
        context: list[Document]

    builder = create_bounded_retrieval(*SEARCHERS["answering"]())
    node = as_node(builder, query_key="question", documents_key="context")
    parent = StateGraph(Parent).add_node("retrieve", node).add_edge(START, "retrieve").add_edge("retrieve", END)
    assert set(parent.compile().get_input_jsonschema()["properties"]) == {"question", "context"}
    assert BoundedRetriever.from_graph(builder).get_input_jsonschema()["type"] == "string"
    assert _problems(create_retrieval_tool(builder).args_schema.model_json_schema()) == []  # type: ignore[union-attr]
