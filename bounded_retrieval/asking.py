"""Ask an index one question: what the command line and the demo run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.retrievers.store import Index, open_index


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The packet and trace of one run; ``error`` is what a search raised, where one did."""

    packet: EvidencePacket
    trace: DecisionTrace
    error: Exception | None


class Asker:
    """The controller over one open index."""

    def __init__(self, index: Index) -> None:
        self._errors: list[Exception] = []
        builder = create_bounded_retrieval(index.lexical, index.dense, units=index.units, diagnostics=self._keep_error)
        self._graph = builder.compile(name="bounded_retrieval")

    def ask(self, query: str, request: Mapping[str, Any] | None = None) -> Answer:
        """Run once; ``request`` holds further fields of `RetrievalRequest`."""
        self._errors.clear()
        result = self._graph.invoke({"query": query, "request": dict(request or {})})
        return Answer(
            packet=EvidencePacket.from_result(result),
            trace=DecisionTrace.from_result(result),
            error=self._errors[0] if self._errors else None,
        )

    def _keep_error(self, record: dict[str, Any]) -> None:
        error = record.get("error")
        if isinstance(error, Exception):
            self._errors.append(error)


def ask_index(query: str, directory: Path, request: Mapping[str, Any] | None = None) -> Answer:
    """Open an index directory, run once, close it.

    Raises:
        StoreError: the directory cannot be used.
        RequestError: the query or a setting is not valid.
    """
    with open_index(directory) as index:
        return Asker(index).ask(query, request)
