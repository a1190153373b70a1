from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableParallel, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from bounded_retrieval import (
    BoundedContext,
    BoundedRetriever,
    Budget,
    RetrievalFailedError,
    build_index,
    create_bounded_retrieval,
    open_index,
)
from bounded_retrieval.errors import ConfigurationError, RequestError
from bounded_retrieval.graph.bounded import parts_of
from bounded_retrieval.retrievers.embeddings import load_embedding
from bounded_retrieval.testing import FailingSearcher, ScriptedSearcher

DOCUMENTS = [
    Document(
        id=f"u{number}",
        page_content=f"The pump of site {number} hums at night.",
        metadata={"title": f"Site {number}", "n": number},
    )
    for number in range(12)
]
QUERY = "Which pump hums at night?"


def scripted(**options: Any) -> BoundedRetriever:
    """A retriever over twelve documents, half of them in each channel."""
    return BoundedRetriever.from_retrievers(
        ScriptedSearcher(DOCUMENTS[:6], "lexical"), ScriptedSearcher(DOCUMENTS[6:], "dense"), **options
    )


class TestStandard(RetrieversIntegrationTests):
    """LangChain's own tests for retrievers."""

    @property
    def retriever_constructor(self) -> type[BoundedRetriever]:
        return BoundedRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        lexical, dense = ScriptedSearcher(DOCUMENTS[:6], "lexical"), ScriptedSearcher(DOCUMENTS[6:], "dense")
        return {"graph": create_bounded_retrieval(lexical, dense)}

    @property
    def retriever_query_example(self) -> str:
        return QUERY


def test_documents_carry_packet_facts_under_one_key() -> None:
    """Scores, ranks and the stop reason travel under one metadata key; the unit's own metadata stays as it was."""
    document = scripted().invoke(QUERY)[0]
    assert document.id == "u0"
    assert document.metadata["title"] == "Site 0"
    assert set(document.metadata) == {"title", "n", "bounded_retrieval"}
    facts = document.metadata["bounded_retrieval"]
    assert facts["stop_reason"] == "proxy_sufficient"
    assert facts["channels"]["lexical"] == {"rank": 1, "score": 1.0}


async def test_async_and_batch_equal_sync() -> None:
    """invoke, ainvoke, batch and abatch give the same documents."""
    retriever = scripted()
    expected = retriever.invoke(QUERY)
    assert await retriever.ainvoke(QUERY) == expected
    assert retriever.batch([QUERY, QUERY]) == [expected, expected]
    assert await retriever.abatch([QUERY]) == [expected]


def test_k_is_the_most_units_and_may_only_lower() -> None:
    """k= at construction is max_units; rows grow with it; a call may lower it and not raise it."""
    retriever = scripted(k=8, policy="always_continue")
    assert len(retriever.invoke(QUERY)) == 8
    assert len(retriever.invoke(QUERY, k=2)) == 2
    with pytest.raises(RequestError, match="max_units"):
        retriever.invoke(QUERY, k=9)


def test_context_comes_from_the_call_then_the_enclosing_graph_then_configurable() -> None:
    """The first context that is given decides, and JSON in configurable never does."""
    retriever = scripted(threshold=0.0)

    def calls(**arguments: Any) -> int:
        documents = retriever.invoke(QUERY, **arguments)
        return 2 if "dense" in str([document.metadata for document in documents]) else 1

    always = BoundedContext(policy="always_continue")
    assert calls() == 1
    assert calls(context=always) == 2
    assert calls(config={"configurable": {"bounded_context": always}}) == 2
    assert calls(config={"configurable": {"bounded_context": {"policy": "always_continue"}}}) == 1

    class State(TypedDict, total=False):
        calls: int

    def node(_state: State) -> State:
        return {"calls": calls(config={"configurable": {"bounded_context": BoundedContext(policy="fixed_lexical")}})}

    parent = StateGraph(State, context_schema=BoundedContext).add_node("node", node)
    graph = parent.add_edge(START, "node").add_edge("node", END).compile()
    assert graph.invoke({}, context=always)["calls"] == 2


def test_callbacks_and_tags_are_passed_through() -> None:
    """A caller's handler sees the retriever's run with its tags, and the graph's run inside it."""
    seen: list[tuple[str, list[str]]] = []

    class Handler(BaseCallbackHandler):
        def on_retriever_start(self, serialized: Any, query: str, *, tags: list[str] | None = None, **_: Any) -> None:  # noqa: ARG002
            seen.append(("retriever", tags or []))

        def on_chain_start(
            self,
            serialized: Any,  # noqa: ARG002
            inputs: Any,  # noqa: ARG002
            *,
            name: str | None = None,
            tags: list[str] | None = None,
            **_: Any,
        ) -> None:
            seen.append((name or "", tags or []))

    scripted().invoke(QUERY, {"callbacks": [Handler()], "tags": ["mine"]})
    assert seen[0] == ("retriever", ["mine"])
    assert "lexical_search" in {name for name, _ in seen}


def test_it_works_inside_lcel() -> None:
    """RunnableParallel and pipes take it as they take any retriever."""
    chain = RunnableParallel(context=scripted(), question=RunnablePassthrough()) | (lambda given: len(given["context"]))
    assert chain.invoke(QUERY) == 3


def test_failure_raises_with_the_packet() -> None:
    """When no attempt answered, an error carries the packet; an empty list would hide it."""
    retriever = BoundedRetriever.from_retrievers(FailingSearcher(), FailingSearcher())
    with pytest.raises(RetrievalFailedError, match="2 of 2 calls") as failure:
        retriever.invoke(QUERY)
    assert failure.value.packet.usage.calls == 2


def test_from_documents_builds_both_channels() -> None:
    """With documents alone, both channels are built with the embedded default embedding."""
    documents = [
        Document(id="a", page_content="Damage caused by the carrier must be reported within three days."),
        Document(id="b", page_content="Only a site lead may reset a passcode."),
    ]
    found = BoundedRetriever.from_documents(documents).invoke("Our parcel was smashed by the courier")
    assert found[0].id == "a"


def test_from_documents_ranks_as_an_index_does(tmp_path: Path) -> None:
    """Neighbours support lexical scores, as in an index of the same documents."""
    parts = parts_of(BoundedRetriever.from_documents(DOCUMENTS).graph)
    build_index(DOCUMENTS, tmp_path)
    with open_index(tmp_path) as index:
        assert parts is not None
        assert parts.lexical.search(QUERY, 6) == index.lexical.search(QUERY, 6)


def test_existing_langchain_objects_work_as_they_are() -> None:
    """A BM25Retriever and a vector store are enough, and the same text under two ids is one document."""
    from langchain_community.retrievers import BM25Retriever

    store = InMemoryVectorStore.from_documents(DOCUMENTS, load_embedding())
    bare = [Document(page_content=document.page_content, metadata=document.metadata) for document in DOCUMENTS]
    retriever = BoundedRetriever.from_retrievers(BM25Retriever.from_documents(bare), store, policy="always_continue")
    texts = [document.page_content for document in retriever.invoke("The pump of site 3 hums at night.")]
    assert len(texts) == len(set(texts)) == 4


def test_what_is_no_bounded_graph_is_refused() -> None:
    """Another object, or a graph that does not return its packet, gives a clear error."""
    with pytest.raises((ConfigurationError, ValueError), match="graph"):
        BoundedRetriever.from_graph(object())
    graph = create_bounded_retrieval(ScriptedSearcher(DOCUMENTS, "lexical"), output_keys=["documents"])
    with pytest.raises((ConfigurationError, ValueError), match="output_keys"):
        BoundedRetriever.from_graph(graph)


def test_a_budget_beside_k() -> None:
    """A budget that leaves max_units open takes k; what cannot go together is refused when the retriever is built."""
    retriever = scripted(k=5, budget=Budget(max_chars=9000), policy="always_continue")
    assert len(retriever.invoke(QUERY)) == 5
    assert len(scripted(k=2, budget=Budget(max_units=4)).invoke(QUERY)) == 2
    with pytest.raises(ConfigurationError, match=r"max_units 4 \(got 6\)"):
        scripted(k=6, budget=Budget(max_units=4))
    for k in (0, 51):
        with pytest.raises(ConfigurationError, match=rf"1 to 50 \(got {k}\)"):
            scripted(k=k)


def test_a_setting_it_does_not_know_is_refused() -> None:
    """A setting of the graph given to the retriever around it is an error; ignoring it would hide the mistake."""
    graph = create_bounded_retrieval(ScriptedSearcher(DOCUMENTS, "lexical"))
    with pytest.raises(ValueError, match="policy"):
        BoundedRetriever.from_graph(graph, policy="always_continue")


def test_an_empty_list_says_why_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """When everything found was too long to pack, the log names the note; it names no unit."""
    long = [Document(id="long", page_content="pump " * 1000)]
    retriever = BoundedRetriever.from_retrievers(ScriptedSearcher(long, "lexical"))
    assert retriever.invoke("pump") == []
    assert "unit_too_long" in caplog.text
    assert "long" not in caplog.text.replace("unit_too_long", "")
