"""The controller as LangGraph Studio and ``langgraph dev`` serve it (see ``langgraph.json``).

By default it stands over the shipped collection, whose index is made by the first search and kept. The environment
variable ``BOUNDED_RETRIEVAL_INDEX`` names another index directory.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from filelock import FileLock
from langchain_core.documents import Document
from pydantic import ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from bounded_retrieval.contracts.assessment import QueryWeights
from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Candidate, Channel
from bounded_retrieval.contracts.filters import Filter
from bounded_retrieval.contracts.normalise import fingerprint
from bounded_retrieval.contracts.ports import Stem
from bounded_retrieval.contracts.request import FirstHopRows, PolicyName, Threshold
from bounded_retrieval.contracts.settings import BoundedContext
from bounded_retrieval.errors import StoreError
from bounded_retrieval.graph.bounded import BoundedGraph, create_bounded_retrieval
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.policies.registry import default_first_hop_rows
from bounded_retrieval.policies.tokenize import stems_of
from bounded_retrieval.policies.weighted import Scorecard
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.retrievers.store import Index, build_index, open_index

INDEX_VARIABLE = "BOUNDED_RETRIEVAL_INDEX"
"""Environment variable with the index directory to serve."""

SHIPPED_INDEXES = Path("build") / "studio-index"
"""Where the shipped collection's index is kept, below the directory that the server was started in."""

_SHIPPED = Path(__file__).parents[1] / "data" / "device_support"
_CORPUS, _RELATIONSHIPS = _SHIPPED / "corpus.jsonl", _SHIPPED / "relationships.jsonl"
_LOG = logging.getLogger("bounded_retrieval.studio")


def _cap_at_defaults(schema: dict[str, Any]) -> None:
    for limit in schema["properties"].values():
        if "maximum" in limit:
            limit["maximum"] = limit["default"]


def _described(setting: str) -> str:
    return BoundedContext.model_fields[setting].description or ""


class StudioBudget(Budget):
    """Limits of one run. They may only lower the defaults, which are therefore the maxima of the schema."""

    model_config = ConfigDict(json_schema_extra=_cap_at_defaults)


class StudioContext(BoundedContext):
    """How a run should be decided. Fields left out, or null, have the values shown; the input's request goes before."""

    # The fields of `BoundedContext` without null, so that a form shows plain fields with what applies.
    policy: PolicyName = Field(default="adaptive", description=_described("policy"))
    threshold: Threshold = Field(default=Scorecard().default_threshold, description=_described("threshold"))
    budget: StudioBudget = Field(default=StudioBudget(), description=_described("budget"))
    # What the form shows is the share of the default rows. It is left open, so that of fewer rows it is a share again.
    first_hop_rows: FirstHopRows | SkipJsonSchema[None] = Field(
        default=None,
        description=_described("first_hop_rows"),
        json_schema_extra={"default": default_first_hop_rows(Budget().max_rows)},
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


@dataclass(frozen=True)
class LazyChannel:
    """One channel of an index that the first call opens. Asynchronous runs make these calls in a thread."""

    index: Callable[[], Index]
    channel: Channel
    stem: ClassVar[Stem] = staticmethod(stems_of)

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Search the channel."""
        found: list[Candidate] = self._searcher().search(query, k, filter)
        return found

    def search_excluding(
        self, query: str, k: int, unit_ids: Sequence[str], filter: Filter | None = None
    ) -> list[Candidate]:
        """Search for other units than these; asked of the dense channel only."""
        return self.index().dense.search_excluding(query, k, unit_ids, filter)

    def score(self, query: str, unit_ids: Sequence[str], filter: Filter | None = None) -> dict[str, float]:
        """The channel's scores of these units."""
        found: dict[str, float] = self._searcher().score(query, unit_ids, filter)
        return found

    def weigh(self, query: str, words: Sequence[str], filter: Filter | None = None) -> QueryWeights:
        """How rare the words of the query are; asked of the lexical channel only."""
        return self.index().lexical.weigh(query, words, filter)

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The units that exist now, by id."""
        return self.index().units.fetch(unit_ids)

    def _searcher(self) -> Any:
        index = self.index()
        return index.lexical if self.channel == "lexical" else index.dense


def once(open_it: Callable[[], Index]) -> Callable[[], Index]:
    """Open at the first call; calls that come meanwhile wait for it. What failed is tried again by the next call."""
    remembered, lock = cache(open_it), Lock()

    def opened() -> Index:
        with lock:
            return remembered()

    return opened


def open_shipped(root: Path) -> Index:
    """Open the shipped collection's index below ``root``; make it first if there is none that opens.

    Its directory is named after the collection's content. A process that comes while another one is making it waits.

    Raises:
        StoreError, OSError: the directory cannot be written.
    """
    directory = root / fingerprint(_CORPUS.read_text(encoding="utf-8"))[:12]
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{directory.name}.lock"):
        with suppress(StoreError):
            return open_index(directory)
        _LOG.info("indexing the shipped collection in %s (once)", directory)
        shutil.rmtree(directory, ignore_errors=True)
        build_index(read_documents([_CORPUS]), directory)
        return open_index(directory)


def create_studio_graph(directory: str | None) -> BoundedGraph:
    """Build the controller over an index directory, or over the shipped collection.

    Raises:
        StoreError: the directory cannot be used. It is opened at once, so that a wrong one ends the server's start.
    """
    relationships: RelationshipStore | None
    if directory:
        index = open_index(directory)
        lexical, dense = LazyChannel(lambda: index, "lexical"), LazyChannel(lambda: index, "dense")
        relationships = index.relationships
    else:
        shipped = once(lambda: open_shipped(SHIPPED_INDEXES))
        lexical, dense = LazyChannel(shipped, "lexical"), LazyChannel(shipped, "dense")
        relationships = RelationshipStore.from_jsonl(_RELATIONSHIPS)
    return create_bounded_retrieval(
        lexical,
        dense,
        units=lexical,
        relationships=relationships,
        context_schema=StudioContext,
        diagnostics=_log_error,
    )


def _log_error(record: dict[str, Any]) -> None:
    # Whoever starts the server is the application and its developer: the console is their diagnostic sink.
    error = record.get("error")
    if isinstance(error, Exception):
        _LOG.error("%s %s: %s: %s", record["event"], record.get("channel", ""), type(error).__name__, error)


graph = create_studio_graph(os.environ.get(INDEX_VARIABLE)).compile(name="bounded_retrieval")
"""What ``langgraph.json`` names."""
