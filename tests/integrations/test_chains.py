from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_classic.chains import create_history_aware_retriever, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from bounded_retrieval import BM25Searcher, BoundedContext, BoundedRetriever
from bounded_retrieval.testing import ScriptedSearcher

QUERY = "Which pump hums at night?"
DOCUMENTS = [
    Document(id=f"u{number}", page_content=f"The pump of site {number} hums at night.", metadata={"n": number})
    for number in range(8)
]
ANSWER_PROMPT = ChatPromptTemplate.from_messages([("system", "{context}"), ("human", "{input}")])
REPHRASE_PROMPT = ChatPromptTemplate.from_messages([("placeholder", "{chat_history}"), ("human", "{input}")])


class EchoSearcher:
    """Answers each query with one document that repeats it, slowly enough for calls to overlap."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.running = self.most_running = 0
        self._lock = threading.Lock()

    def search(self, query: str, k: int, filter: Any = None) -> Any:  # noqa: ARG002
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        threading.Event().wait(0.005)
        with self._lock:
            self.running -= 1
        document = Document(id=f"{self.channel}: {query}", page_content=f"{self.channel} says {query}")
        return ScriptedSearcher([document], self.channel).search(query, k)  # type: ignore[arg-type]


def scripted(**options: Any) -> BoundedRetriever:
    """A retriever whose channels hold different documents."""
    return BoundedRetriever.from_retrievers(
        ScriptedSearcher(DOCUMENTS[:4], "lexical"), ScriptedSearcher(DOCUMENTS[4:], "dense"), **options
    )


def channels(documents: list[Document]) -> set[str]:
    """The channels that any of the documents came from."""
    return {name for document in documents for name in document.metadata["bounded_retrieval"]["channels"]}


def with_context(**settings: Any) -> dict[str, Any]:
    """The config of a call under a runtime context."""
    return {"configurable": {"bounded_context": BoundedContext(**settings)}}


ALWAYS, ONCE = with_context(policy="always_continue"), with_context(policy="fixed_lexical")


async def test_a_retrieval_chain_answers_from_the_packet() -> None:
    """create_retrieval_chain takes the retriever as it takes any; the documents in its context are those of the packet."""
    answer = create_stuff_documents_chain(FakeListChatModel(responses=["At night."]), ANSWER_PROMPT)
    retriever = scripted()
    chain = create_retrieval_chain(retriever, answer)
    result = chain.invoke({"input": QUERY})
    assert result["answer"] == "At night."
    assert result["context"] == retriever.invoke(QUERY)
    assert await chain.ainvoke({"input": QUERY}) == result


def test_a_retrieval_chain_hands_the_context_of_a_call_on() -> None:
    """The runtime context in the chain's configurable reaches the retriever inside it."""
    answer = create_stuff_documents_chain(FakeListChatModel(responses=["At night."]), ANSWER_PROMPT)
    chain = create_retrieval_chain(scripted(), answer)
    assert channels(chain.invoke({"input": QUERY})["context"]) == {"lexical"}
    assert channels(chain.invoke({"input": QUERY}, ALWAYS)["context"]) == {"lexical", "dense"}


async def test_a_history_aware_chain_asks_with_the_rephrased_question() -> None:
    """With a history the model's question is searched for, without one the user's, and each has its own query id."""
    lexical = ScriptedSearcher(DOCUMENTS, "lexical")
    model = FakeListChatModel(responses=[QUERY])
    chain = create_history_aware_retriever(model, BoundedRetriever.from_retrievers(lexical), REPHRASE_PROMPT)
    history = [HumanMessage("There is a pump."), AIMessage("Is there?")]
    chain.invoke({"input": "When does it hum?", "chat_history": history})
    await chain.ainvoke({"input": "When does it hum?", "chat_history": []})
    assert [query for query, _ in lexical.calls] == [QUERY, "When does it hum?"]


async def test_two_retrievers_in_parallel_do_not_mix() -> None:
    """RunnableParallel runs two of them on the same question at the same time."""
    chain = RunnableParallel(
        one=scripted(policy="fixed_lexical"), other=scripted(policy="fixed_dense"), question=RunnablePassthrough()
    )
    result = chain.invoke(QUERY)
    assert (channels(result["one"]), channels(result["other"])) == ({"lexical"}, {"dense"})
    assert await chain.ainvoke(QUERY) == result


async def test_a_batch_may_mix_contexts() -> None:
    """Each input of a batch runs under the context of its own config, in order."""
    retriever, configs = scripted(), [ONCE, ALWAYS, {}, ALWAYS]
    expected = [{"lexical"}, {"lexical", "dense"}, {"lexical"}, {"lexical", "dense"}]
    assert [channels(found) for found in retriever.batch([QUERY] * 4, configs)] == expected
    assert [channels(found) for found in await retriever.abatch([QUERY] * 4, configs)] == expected
    chain = retriever | RunnableLambda(channels)
    assert chain.batch([QUERY] * 4, configs) == expected
    assert dict(chain.batch_as_completed([QUERY] * 4, configs)) == dict(enumerate(expected))


def expectation(number: int) -> tuple[str, dict[str, Any], list[str]]:
    """A query, the config of its call, and the ids that only this call can give."""
    query = f"question {number}"
    found = {0: ["lexical"], 1: ["dense"], 2: ["lexical", "dense"]}[number % 3]
    policy = ("fixed_lexical", "fixed_dense", "always_continue")[number % 3]
    return query, with_context(policy=policy), [f"{name}: {query}" for name in found]


async def test_concurrent_calls_share_nothing() -> None:
    """Sixty overlapping calls of one retriever, each with its own query and policy, each get their own answer."""
    lexical, dense = EchoSearcher("lexical"), EchoSearcher("dense")
    retriever = BoundedRetriever.from_retrievers(lexical, dense)
    cases = [expectation(number) for number in range(60)]
    expected = [ids for _, _, ids in cases]

    found = await asyncio.gather(*(retriever.ainvoke(query, config) for query, config, _ in cases))
    assert [[document.id for document in documents] for documents in found] == expected
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda case: retriever.invoke(case[0], case[1]), cases))
    assert [[document.id for document in documents] for documents in found] == expected
    assert lexical.most_running > 1


class Parent(TypedDict, total=False):
    ids: list[str]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
async def test_several_calls_in_one_node_of_a_graph(checkpointed: bool, asynchronous: bool) -> None:
    """A node may call the retriever one after the other and in a batch, whether or not its graph has a checkpointer."""
    retriever = BoundedRetriever.from_retrievers(EchoSearcher("lexical"), EchoSearcher("dense"))

    def node(_state: Parent) -> Parent:
        found = [retriever.invoke("one"), retriever.invoke("one"), *retriever.batch(["two", "three"])]
        return {"ids": [document.id or "" for document in itertools.chain(*found)]}

    async def anode(_state: Parent) -> Parent:
        found = [
            await retriever.ainvoke("one"),
            await retriever.ainvoke("one"),
            *await retriever.abatch(["two", "three"]),
        ]
        return {"ids": [document.id or "" for document in itertools.chain(*found)]}

    builder = StateGraph(Parent).add_node("node", RunnableLambda(node, afunc=anode))
    graph = builder.add_edge(START, "node").add_edge("node", END).compile(InMemorySaver() if checkpointed else None)
    config = {"configurable": {"thread_id": "one"}}
    for _ in range(2):
        result = await graph.ainvoke({}, config) if asynchronous else graph.invoke({}, config)
        assert result["ids"] == [f"lexical: {word}" for word in ("one", "one", "two", "three")]


async def test_events_of_the_chain_name_the_steps() -> None:
    """astream_events shows the retriever's run with its documents, and the steps inside it by name."""
    chain = RunnablePassthrough() | BoundedRetriever.from_retrievers(BM25Searcher.from_documents(DOCUMENTS))
    events = [event async for event in chain.astream_events(QUERY, version="v2")]
    (end,) = [event for event in events if event["event"] == "on_retriever_end"]
    assert [document.id for document in end["data"]["output"]] == ["u0", "u1", "u2", "u3"]
    assert {"lexical_search", "assess_coverage"} <= {event["name"] for event in events}
