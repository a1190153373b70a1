"""The smallest host for the bounded graph: a controller with one method, ``run``.

    python examples/retrieval_controller.py

A request names a query, who asks and what they may see. Identity and view travel in the runtime context, never in the
query or in the graph's state. This host gives the builder no ``eligibility=``: the graph receives both and reads
neither, so everybody sees everything. A resolver given there is called with the runtime and finds them in
``runtime.context``; nothing else here would have to change (see ``revoked_access.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bounded_retrieval import BM25Searcher, ChromaSearcher, EvidencePacket, create_bounded_retrieval
from bounded_retrieval.contracts.request import PolicyName
from bounded_retrieval.ingest import read_documents

CORPUS = Path(__file__).resolve().parents[1] / "bounded_retrieval" / "data" / "device_support" / "corpus.jsonl"

QUERIES = (
    "How do I pair the HX-210 probe with the GT-40 gateway?",
    "Our parcel turned up smashed by the courier",
    "How do I replace the battery pack of the HX-220?",
)


@dataclass(frozen=True, kw_only=True)
class View:
    """What somebody may see, by name and version. Not enforced by this host."""

    view_id: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request as the application knows it."""

    query: str
    identity: str
    view: View


@dataclass(frozen=True, kw_only=True)
class HostContext:
    """The application's own runtime context; the graph reads ``policy`` and ``threshold`` from it."""

    identity: str
    view: View
    policy: PolicyName
    threshold: float | None


class RetrievalController:
    """Hosts one compiled graph. It holds nothing of a request, so one instance serves any number of threads."""

    def __init__(self, lexical: Any, dense: Any) -> None:
        builder = create_bounded_retrieval(lexical, dense, context_schema=HostContext)
        self._graph = builder.compile(name="bounded_retrieval")

    def run(self, request: Request, policy: PolicyName = "adaptive", threshold: float | None = None) -> EvidencePacket:
        """Search once or twice and return the packet; no threshold takes the assessor's own."""
        context = HostContext(identity=request.identity, view=request.view, policy=policy, threshold=threshold)
        return EvidencePacket.from_result(self._graph.invoke({"query": request.query}, context=context))


def show(request: Request, packet: EvidencePacket) -> None:
    """Print a packet for a person."""
    usage = packet.usage
    print(f"\n{request.query}")
    print(f"  stopped: {packet.stop_reason.value} ({packet.resolution})")
    print(f"  spent:   {usage.calls} of {packet.limits.max_calls} calls, {usage.dense_calls} of them dense")
    print(f"  missing: {', '.join(packet.missing_terms) or '-'}")
    for item in packet.items:
        print(f"  - {item.unit_id}: {item.title}")


def main() -> None:
    """Make three requests: one that stops early, one that needs the second search, one with missing evidence."""
    documents = list(read_documents([CORPUS]))
    controller = RetrievalController(BM25Searcher.from_documents(documents), ChromaSearcher.from_documents(documents))
    print(f"{len(documents)} units. Access control: not in this host; identity and view are carried, not enforced.")
    view = View(view_id="support-desk", version="1")
    for query in QUERIES:
        request = Request(query=query, identity="dana", view=view)
        show(request, controller.run(request))


if __name__ == "__main__":
    main()
