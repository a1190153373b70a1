from __future__ import annotations

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers.context import collect_runs

from bounded_retrieval.nodes.detached import untraced

UNITS = [Document(id=f"u{n}", page_content=f"text {n}") for n in range(3)]


class ListRetriever(BaseRetriever):
    """Returns its documents, whatever the query."""

    documents: list[Document]

    def _get_relevant_documents(self, query, *, run_manager):  # noqa: ARG002  # LangChain's signature
        return self.documents


class OuterRetriever(BaseRetriever):
    """Calls an inner retriever, and hands its callbacks on or (as many do) leaves that out."""

    inner: BaseRetriever
    hands_on: bool

    def _get_relevant_documents(self, query, *, run_manager):
        return self.inner.invoke(query, config={"callbacks": run_manager.get_child()} if self.hands_on else None)


class Listener(BaseCallbackHandler):
    """Remembers every document that a retriever emitted."""

    def __init__(self):
        self.heard = []

    def on_retriever_end(self, documents, **kwargs):  # noqa: ARG002  # LangChain's signature
        self.heard.extend(documents)


async def ask(retriever, query, *, awaited):
    """Through ``invoke`` or ``ainvoke``."""
    return await retriever.ainvoke(query) if awaited else retriever.invoke(query)


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("hands_on", [False, True])
@pytest.mark.parametrize("detached", [False, True])
async def test_detached_documents_reach_no_listener(detached, hands_on, awaited):
    """Callbacks and run collectors of the surrounding run hear a retriever's documents only if it is attached."""
    listener = Listener()
    retriever = OuterRetriever(inner=ListRetriever(documents=UNITS), hands_on=hands_on)

    async def inside(query):
        if not detached:
            return await ask(retriever, query, awaited=awaited)
        with untraced():
            return await ask(retriever, query, awaited=awaited)

    with collect_runs() as collector:
        found = await RunnableLambda(inside).ainvoke("q", config={"callbacks": [listener]})
        RunnableLambda(lambda query: query).invoke("still collected")
    assert found == UNITS
    assert bool(listener.heard) is not detached
    kinds = {child.run_type for run in collector.traced_runs for child in [run, *run.child_runs]}
    assert kinds == ({"chain"} if detached else {"chain", "retriever"})


async def test_listeners_are_back_after_an_error():
    """What surrounded a call that failed goes on listening afterwards."""
    listener = Listener()

    async def inside(query):
        with pytest.raises(ZeroDivisionError), untraced():
            raise ZeroDivisionError
        return await ListRetriever(documents=UNITS).ainvoke(query)

    await RunnableLambda(inside).ainvoke("q", config={"callbacks": [listener]})
    assert listener.heard == UNITS
