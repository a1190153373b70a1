"""Ask an index one question: what the command line and the demo run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bounded_retrieval.contracts.calibration import Calibration
from bounded_retrieval.contracts.eligibility import EligibilityView, Resolver
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.ports import DiagnosticSink
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.errors import RequestError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.metadata_view import MetadataView
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.retrievers.store import Index, open_index


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The packet and trace of one run; ``error`` is what a search raised, where one did."""

    packet: EvidencePacket
    trace: DecisionTrace
    error: Exception | None


@dataclass(frozen=True)
class Caller:
    """Who asks, as far as metadata says who may see what: fields of the units, and what the caller has of them."""

    tenant: str | None = None
    groups: tuple[str, ...] = ()


class Asker:
    """The controller over one open index.

    Args:
        index: an open index.
        caller: whose view to ask under, by the units' ``tenant``, ``groups``, ``valid_from`` and ``valid_until``; who
            names no tenant sees the units without one. None makes everything public.
        relationships: what a path follows; none takes those of the index.
        diagnostics: receives protected records.
        calibration: decides as it was certified.

    Raises:
        ConfigurationError: the calibration was made with another tokenizer or embedding than the index has.
    """

    def __init__(
        self,
        index: Index,
        *,
        caller: Caller | None = None,
        relationships: RelationshipStore | None = None,
        diagnostics: DiagnosticSink | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self._errors: list[Exception] = []
        self._caller = caller
        self._diagnostics = diagnostics
        view = None if caller is None else _view_of(caller)
        if calibration is not None:
            index.check_calibration(calibration)
        builder = create_bounded_retrieval(
            index.lexical,
            index.dense,
            units=index.units,
            eligibility=view,
            relationships=index.relationships if relationships is None else relationships,
            diagnostics=self._keep,
            calibration=calibration,
            context_schema=Caller,
        )
        self._graph = builder.compile(name="bounded_retrieval")

    def ask(self, query: str, request: Mapping[str, Any] | None = None) -> Answer:
        """Run once; ``request`` holds further fields of `RetrievalRequest`."""
        self._errors.clear()
        result = self._graph.invoke({"query": query, "request": dict(request or {})}, context=self._caller)
        return Answer(
            packet=EvidencePacket.from_result(result),
            trace=DecisionTrace.from_result(result),
            error=self._errors[0] if self._errors else None,
        )

    def _keep(self, record: dict[str, Any]) -> None:
        if self._diagnostics is not None:
            self._diagnostics(record)
        error = record.get("error")
        if isinstance(error, Exception):
            self._errors.append(error)


def _view_of(caller: Caller) -> Resolver:
    if caller.tenant is not None:
        return MetadataView()
    view = MetadataView(tenant=None)

    def without_tenants(runtime: Any) -> EligibilityView:
        # Who names no tenant sees what belongs to none.
        seen = view(runtime)
        return replace(seen, search_filter={"$and": [seen.search_filter or {}, {"tenant": {"$exists": False}}]})

    return without_tenants


def ask_index(query: str, directory: Path, request: Mapping[str, Any] | None = None, **options: Any) -> Answer:
    """Open an index directory, run once, close it; ``options`` are those of `Asker`.

    Raises:
        StoreError: the directory cannot be used.
        RequestError: the query or a setting is not valid.
    """
    with open_index(directory) as index:
        if (request or {}).get("path") and index.relationships is None and options.get("relationships") is None:
            raise RequestError(
                f"--path: {directory} holds no relationships; give --relationships FILE, here or to index"
            )
        return Asker(index, **options).ask(query, request)
