"""Hybrid search as other frameworks do it, over the same units and the same Chroma collection.

Each gives a `Competitor` and an async way to ask: three rows of each channel, joined by reciprocal ranks, best four
where it cuts. Each lexical index is the framework's own, with its own tokenizer where it has one. LlamaIndex and
Haystack are in the dependency group ``bench`` (`make bench` installs it in ``build/bench``); where they are not
installed, they are left out, and the report says so. Nothing reaches out: telemetry is off, and no language model is
asked.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from measuring import Competitor
from synthetic import content_words
from worlds import COLLECTION, World

ROWS = 3
PACKED = 4

# Read when these are imported.
OFFLINE = {
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "ANONYMIZED_TELEMETRY": "False",
    "LANGSMITH_TRACING": "false",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One framework's hybrid search.

    Attributes:
        name: how the figures call it.
        ask: takes a query, gives what was found.
        aask: the same, as the framework offers it to async code.
    """

    name: str
    ask: Callable[[str], Any]
    aask: Callable[[str], Awaitable[Any]]

    def competitor(self) -> Competitor:
        """Timed until its patience ends, since some take seconds at 100,000 units."""
        return Competitor(name=self.name, run=self.ask, needed=False)


def missing_packages() -> dict[str, str]:
    """What is not installed, by the name of the alternative that needs it."""
    needs = {
        "llama-index": ("llama_index.core", "llama_index.retrievers.bm25", "llama_index.vector_stores.chroma"),
        "haystack": ("haystack", "haystack_integrations.components.retrievers.chroma"),
    }
    absent = {name: [module for module in modules if not _is_there(module)] for name, modules in needs.items()}
    return {
        name: f"not installed: {modules[0]} (dependency group bench)" for name, modules in absent.items() if modules
    }


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def make_alternatives(world: World) -> list[Alternative]:
    """All that are installed, built over a corpus."""
    os.environ.update(OFFLINE)
    makers = {"ensemble": make_ensemble, "llama-index": make_llama_index, "haystack": make_haystack}
    return [make(world) for name, make in makers.items() if name not in missing_packages()]


def make_ensemble(world: World) -> Alternative:
    """LangChain's EnsembleRetriever over BM25Retriever (rank_bm25) and langchain_chroma."""
    from langchain_chroma import Chroma
    from langchain_classic.retrievers import EnsembleRetriever

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # langchain-community announces its sunset at every import
        from langchain_community.retrievers import BM25Retriever

    store = Chroma(COLLECTION, world.embedding, client=world.client)
    lexical = BM25Retriever.from_documents(world.documents, k=ROWS, preprocess_func=content_words)
    dense = store.as_retriever(search_kwargs={"k": ROWS})
    both = EnsembleRetriever(retrievers=[lexical, dense], weights=[0.5, 0.5])
    return Alternative(name="ensemble", ask=both.invoke, aask=both.ainvoke)


def make_llama_index(world: World) -> Alternative:
    """LlamaIndex's QueryFusionRetriever, without generated queries, over its BM25Retriever (bm25s) and Chroma store."""
    from llama_index.core import VectorStoreIndex
    from llama_index.core.llms import MockLLM
    from llama_index.core.retrievers import QueryFusionRetriever
    from llama_index.core.schema import TextNode
    from llama_index.retrievers.bm25 import BM25Retriever
    from llama_index.vector_stores.chroma import ChromaVectorStore

    nodes = [TextNode(id_=str(unit.id), text=unit.page_content, metadata=unit.metadata) for unit in world.documents]
    lexical = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=ROWS)
    index = VectorStoreIndex.from_vector_store(
        ChromaVectorStore.from_collection(world.collection), embed_model=_llama_embedding(world)
    )
    both = QueryFusionRetriever(
        [lexical, index.as_retriever(similarity_top_k=ROWS)],
        llm=MockLLM(),  # asked nothing; without one, it looks for a service
        mode="reciprocal_rerank",
        similarity_top_k=PACKED,
        num_queries=1,
        use_async=False,
    )
    return Alternative(name="llama-index", ask=both.retrieve, aask=both.aretrieve)


def _llama_embedding(world: World) -> Any:
    from llama_index.core.embeddings import BaseEmbedding

    class Same(BaseEmbedding):  # type: ignore[misc]
        """The embedding that all share."""

        def _get_query_embedding(self, query: str) -> list[float]:
            return world.embedding.embed_query(query)

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return world.embedding.embed_query(query)

        def _get_text_embedding(self, text: str) -> list[float]:
            return world.embedding.embed_query(text)

    return Same()


def make_haystack(world: World) -> Alternative:
    """Haystack's hybrid pipeline: embedder, InMemoryBM25Retriever, Chroma retriever, DocumentJoiner."""
    from haystack import Document, Pipeline

    pipeline = _haystack_pipeline(Pipeline(), world, _haystack_words(world, Document))

    def ask(query: str) -> Any:
        return pipeline.run({"embedder": {"text": query}, "lexical": {"query": query}})["joiner"]["documents"]

    # Its own async run needs a Chroma server.
    return Alternative(name="haystack", ask=ask, aask=lambda query: asyncio.to_thread(ask, query))


def _haystack_words(world: World, document_class: Any) -> Any:
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    store = InMemoryDocumentStore()
    store.write_documents(
        [
            document_class(id=str(document.id), content=document.page_content, meta=document.metadata)
            for document in world.documents
        ]
    )
    return store


def _haystack_pipeline(pipeline: Any, world: World, words: Any) -> Any:
    from haystack.components.joiners import DocumentJoiner
    from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
    from haystack_integrations.components.retrievers.chroma import ChromaEmbeddingRetriever
    from haystack_integrations.document_stores.chroma import ChromaDocumentStore

    vectors = ChromaDocumentStore(
        COLLECTION,
        persist_path=str(world.chroma),
        distance_function="cosine",
        client_settings={"anonymized_telemetry": False},
    )
    pipeline.add_component("embedder", _haystack_embedder(world))
    pipeline.add_component("lexical", InMemoryBM25Retriever(words, top_k=ROWS))
    pipeline.add_component("dense", ChromaEmbeddingRetriever(vectors, top_k=ROWS))
    pipeline.add_component("joiner", DocumentJoiner(join_mode="reciprocal_rank_fusion", top_k=PACKED))
    pipeline.connect("embedder.embedding", "dense.query_embedding")
    pipeline.connect("lexical", "joiner")
    pipeline.connect("dense", "joiner")
    return pipeline


def _haystack_embedder(world: World) -> Any:
    from haystack import component

    @component
    class Same:
        """The embedding that all share."""

        @component.output_types(embedding=list[float])
        def run(self, text: str) -> dict[str, list[float]]:
            return {"embedding": world.embedding.embed_query(text)}

    return Same()
