"""A small inventory and searchers over it, shared by the graph's tests."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Channel
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.testing import FixedClock, ScriptedSearcher

QUERY = "replace the HX-200 battery"
HIT = "Replace the HX-200 battery with the small screwdriver."


def documents(**texts: str) -> list[Document]:
    """Documents by id and text."""
    return [Document(id=unit_id, page_content=text) for unit_id, text in texts.items()]


PARTS = documents(**{f"l{number}": f"Part {number} of the battery." for number in range(1, 9)})
NOTES = documents(**{f"d{number}": f"Note {number} on charging." for number in range(1, 9)})
HITS = documents(hit=HIT)


def lexical(found: list[Document] | None = None) -> ScriptedSearcher:
    """A lexical searcher; by default over parts of the battery."""
    return ScriptedSearcher(PARTS if found is None else found, "lexical")


def dense(found: list[Document] | None = None) -> ScriptedSearcher:
    """A dense searcher; by default over notes on charging."""
    return ScriptedSearcher(NOTES if found is None else found, "dense")


class SlowSearcher(ScriptedSearcher):
    """A scripted searcher whose every call takes some seconds of a fixed clock."""

    def __init__(self, found: list[Document], channel: Channel, clock: FixedClock, seconds: float) -> None:
        super().__init__(found, channel)
        self.clock = clock
        self.seconds = seconds

    def search(self, query: str, k: int, filter: Any = None) -> list[Any]:
        self.clock.advance(self.seconds)
        return super().search(query, k, filter)


class Outcome:
    """Packet and trace of one run."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.packet = EvidencePacket.from_result(result)
        self.trace = DecisionTrace.from_result(result)
        self.reason = self.packet.stop_reason.value
        self.ids = [item.unit_id for item in self.packet.items]
        self.usage = self.packet.usage
        self.notes = self.packet.notes
        self.outcomes = [search.outcome for search in self.trace.searches]


def ask(
    *searchers: Any,
    query: str = QUERY,
    request: dict[str, Any] | None = None,
    limit: int = 25,
    context: Any = None,
    **options: Any,
) -> Outcome:
    """One run of a graph over a lexical and a dense searcher."""
    graph = create_bounded_retrieval(*searchers, **options).compile()
    given = {"query": query} if request is None else {"query": query, "request": request}
    return Outcome(graph.invoke(given, {"recursion_limit": limit}, context=context))
