"""The controller as a LangChain retriever and as a tool."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.runtime import get_runtime
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.chain import CHAIN_KEYS, ChainResult
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.request import RetrievalRequest
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.errors import ConfigurationError, RequestError, RetrievalFailedError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.integrations.wording import chain_for_model, packet_for_model

CONTEXT_KEY = "bounded_context"
"""Key of ``configurable`` under which a runtime context may be passed, only as an instance."""

MAX_K = 50
"""Most units that a packet may hold: the hard ceiling of ``max_units``."""

_logger = logging.getLogger(__name__)

Graph = CompiledStateGraph[Any, Any, Any, Any]


class BoundedRetriever(BaseRetriever):
    """A LangChain retriever over a bounded graph.

    Packet facts travel in each document's metadata under ``bounded_retrieval``. A run in which no permitted attempt
    answered raises `RetrievalFailedError` with the packet attached, since an empty list would hide it.

    The runtime context of a call is ``context=``, else that of the enclosing graph, else
    ``configurable["bounded_context"]``, there only as an instance, so that JSON from a client cannot supply it.

    Attributes:
        graph: the compiled graph.
        k: most units in a packet; none takes the graph's own ``max_units``. It may only lower that.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    graph: Any
    k: int | None = Field(default=None, ge=1, le=MAX_K)

    @field_validator("graph")
    @classmethod
    def _check_graph(cls, graph: Any) -> Graph:
        return _compiled(graph)

    @classmethod
    def from_graph(cls, graph: Any, **fields: Any) -> BoundedRetriever:
        """Wrap a bounded graph, compiled or not; ``fields`` are those of the retriever (``k``, ``tags``).

        Raises:
            ConfigurationError: the graph is none, or gives no packet.
            RequestError: a field is not valid; names it.
        """
        compiled = _compiled(graph)
        try:
            return cls(graph=compiled, **fields)
        except ValidationError as error:
            raise RequestError.from_validation(error, cls.__name__) from None

    @classmethod
    def from_retrievers(
        cls, lexical: Any = None, dense: Any = None, *, k: int | None = None, **options: Any
    ) -> BoundedRetriever:
        """Build the graph over two searchers, LangChain retrievers or vector stores.

        Args:
            lexical: the lexical channel.
            dense: the dense channel.
            k: most units in a packet, 1 to 50; by default the budget's ``max_units``, which is 4. Unless ``budget`` is
                given, rows, reads and characters grow with it.
            **options: those of `create_bounded_retrieval`. A ``budget`` that leaves ``max_units`` open takes ``k``.

        Raises:
            ConfigurationError: ``k`` is out of bounds or above the budget's ``max_units``; or the parts cannot work
                together.
        """
        options["budget"] = _budget_for(k, _as_budget(options.get("budget")))
        return cls(graph=create_bounded_retrieval(lexical, dense, **options), k=k)

    @classmethod
    def from_documents(
        cls, documents: Iterable[Document], embedding: Embeddings | None = None, *, k: int | None = None, **options: Any
    ) -> BoundedRetriever:
        """Index documents in memory for both channels and build the graph over them.

        Up to `EXACT_LIMIT` documents vectors are searched exactly and neighbours support lexical scores, as in an index
        of `build_index`; beyond, vectors are searched with Chroma.

        Args:
            documents: read once; a document without an id takes a stable one from its text.
            embedding: any LangChain embedding; none takes the embedded default, which works offline.
            k: most units in a packet.
            **options: those of `create_bounded_retrieval`.
        """
        from bounded_retrieval.retrievers.bm25 import BM25Searcher
        from bounded_retrieval.retrievers.chroma import ChromaSearcher
        from bounded_retrieval.retrievers.exact import EXACT_LIMIT, ExactSearcher
        from bounded_retrieval.retrievers.units import as_documents

        documents = list(as_documents(documents))
        id_key = options.get("id_key")
        lexical = BM25Searcher.from_documents(documents, id_key=id_key)
        dense: Any
        if len(documents) <= EXACT_LIMIT:
            dense = ExactSearcher.from_documents(documents, embedding, id_key=id_key)
            lexical.use_neighbours(dense)
        else:
            dense = ChromaSearcher.from_documents(documents, embedding, id_key=id_key)
        return cls.from_retrievers(lexical, dense, k=k, **{"units": lexical, **options})

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Find evidence documents, best first. Accepts ``k=`` and ``context=`` besides."""
        return super().invoke(input, config, **_with_configurable(kwargs, config))

    async def ainvoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Find evidence documents, best first. Accepts ``k=`` and ``context=`` besides."""
        return await super().ainvoke(input, config, **_with_configurable(kwargs, config))

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        context: Any = None,
        configurable: Mapping[str, Any] | None = None,
    ) -> list[Document]:
        config = _child_config(run_manager, configurable)
        given = self._input(query, k)
        result = self.graph.invoke(given, config, context=_context(context, configurable))
        return _documents_or_raise(EvidencePacket.from_result(result))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        context: Any = None,
        configurable: Mapping[str, Any] | None = None,
    ) -> list[Document]:
        config = _child_config(run_manager, configurable)
        given = self._input(query, k)
        result = await self.graph.ainvoke(given, config, context=_context(context, configurable))
        return _documents_or_raise(EvidencePacket.from_result(result))

    def _input(self, query: str, k: int | None) -> dict[str, Any]:
        units = k if k is not None else self.k
        return {"query": query} if units is None else {"query": query, "request": {"budget": {"max_units": units}}}


class _ToolInput(BaseModel):
    query: str = Field(description="What to find evidence for, in one full sentence or question.")

    @field_validator("query")
    @classmethod
    def _check_query(cls, query: str) -> str:
        # A query that the graph would refuse is the model's mistake, which an agent tells it, and does not end a run.
        try:
            return RetrievalRequest(query=query).query
        except ValidationError as error:
            raise RequestError.from_validation(error, "tool") from None


def create_retrieval_tool(
    graph: Any,
    *,
    name: str = "bounded_retrieval",
    description: str = (
        "Search the document collection. Returns whole passages with their source ids, why the search stopped, and "
        "which words of the query no passage holds."
    ),
) -> BaseTool:
    """Make the controller, or a recursive chain, a tool whose only argument is ``query``.

    The content is text for the model: passages delimited and labelled as data, the stop reason in plain words, what
    is missing. The artifact is the packet as a dict (`EvidencePacket.model_validate` reads it). Of a chain the content
    begins with whether it resolved, and the artifact is the graph's output without its documents' classes
    (`ChainResult.from_result` reads it).

    Raises:
        RetrievalFailedError: (when called) no permitted attempt of the controller answered.
    """
    compiled = _compiled(graph, "packet", "trail")
    lacking = sorted({*CHAIN_KEYS} - set(compiled.output_channels)) if "trail" in compiled.output_channels else []
    if lacking:
        raise ConfigurationError(f"graph: its output_keys must hold {', '.join(map(repr, lacking))} too")

    def search(query: str, config: RunnableConfig) -> tuple[str, dict[str, Any]]:
        context = _context(None, config.get("configurable"))
        return _content_and_artifact(compiled.invoke({"query": query}, config, context=context))

    async def asearch(query: str, config: RunnableConfig) -> tuple[str, dict[str, Any]]:
        context = _context(None, config.get("configurable"))
        return _content_and_artifact(await compiled.ainvoke({"query": query}, config, context=context))

    return StructuredTool.from_function(
        func=search,
        coroutine=asearch,
        name=name,
        description=description,
        args_schema=_ToolInput,
        response_format="content_and_artifact",
    )


def _compiled(graph: Any, *keys: str) -> Graph:
    if isinstance(graph, StateGraph):
        graph = graph.compile(name="bounded_retrieval")
    if not isinstance(graph, CompiledStateGraph):
        raise ConfigurationError(f"graph: expected a bounded graph (got {type(graph).__name__})")
    wanted = keys or ("packet",)
    if not set(wanted).intersection(graph.output_channels):
        raise ConfigurationError(f"graph: its output_keys must hold {' or '.join(map(repr, wanted))}")
    return graph


def _as_budget(given: Any) -> Budget | None:
    try:
        return None if given is None else Budget.model_validate(given)
    except ValidationError as error:
        raise RequestError.from_validation(error, "budget") from None


def _budget_for(k: int | None, given: Budget | None) -> Budget:
    if k is None:
        return Budget() if given is None else given
    if not isinstance(k, int) or not 1 <= k <= MAX_K:
        raise ConfigurationError(f"k: a whole number from 1 to {MAX_K} (got {k!r})")
    if given is not None and "max_units" in given.model_fields_set:
        if k > given.max_units:
            raise ConfigurationError(f"k: above budget.max_units {given.max_units} (got {k})")
        return given
    if given is not None:
        return given.model_copy(update={"max_units": k})
    base = Budget()
    if k <= base.max_units:
        return base.model_copy(update={"max_units": k})
    rows = k + k // 2
    chars = base.max_chars // base.max_units * k
    return Budget(max_units=k, max_rows=rows, max_reads=rows, max_chars=chars)


def _with_configurable(kwargs: dict[str, Any], config: RunnableConfig | None) -> dict[str, Any]:
    # BaseRetriever keeps the call's config to itself; the graph needs its configurable values.
    return {**kwargs, "configurable": (config or {}).get("configurable")}


def _child_config(
    run_manager: CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun,
    configurable: Mapping[str, Any] | None,
) -> RunnableConfig:
    config = RunnableConfig(callbacks=run_manager.get_child(), tags=list(run_manager.tags))
    if configurable:
        config["configurable"] = dict(configurable)
    return config


def _context(given: Any, configurable: Mapping[str, Any] | None) -> Any:
    if given is not None or _enclosing_context() is not None:
        return given  # LangGraph hands the enclosing graph's context on by itself
    held = (configurable or {}).get(CONTEXT_KEY)
    is_plain = held is None or isinstance(held, (Mapping, list, tuple, str, bytes, int, float))
    return None if is_plain else held


def _enclosing_context() -> Any:
    try:
        runtime = get_runtime()
    except (RuntimeError, KeyError):
        return None
    return getattr(runtime, "context", None)


def _documents_or_raise(packet: EvidencePacket) -> list[Document]:
    _raise_if_failed(packet)
    if packet.notes and not packet.items:
        # An empty list cannot carry the notes that say why it is empty.
        _logger.warning("empty packet after %s: %s", packet.stop_reason.value, ", ".join(packet.notes))
    return packet.to_documents()


def _content_and_artifact(result: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if "trail" in result:
        chain = ChainResult.from_result(result)
        documents = [document.model_dump() for document in chain.documents]
        return chain_for_model(chain), {**result, "documents": documents}
    packet = EvidencePacket.from_result(result)
    _raise_if_failed(packet)
    return packet_for_model(packet), packet.model_dump(mode="json")


def _raise_if_failed(packet: EvidencePacket) -> None:
    if packet.stop_reason is StopReason.RETRIEVAL_FAILED:
        raise RetrievalFailedError(
            f"retrieval_failed: no permitted attempt answered ({packet.usage.calls} of {packet.limits.max_calls} calls "
            "charged)",
            packet,
        )
