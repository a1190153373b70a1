"""Access is taken away between the search and the packing: the recheck finds out, and nothing is shown.

Run it: ``python examples/revoked_access.py``. Offline; the searcher stands in for one whose documents are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.documents import Document
from langgraph.runtime import Runtime

from bounded_retrieval import BM25Searcher, Candidate, EligibilityView, EvidencePacket, create_bounded_retrieval

NOTES = (
    Document(id="pump-reset", page_content="Hold both keys for five seconds to reset the pump."),
    Document(id="pump-code", page_content="The service code that resets the pump is kept by the duty desk."),
)


@dataclass
class SharedNotes:
    """Who may see which note, as some directory service would say; it can change at any time."""

    granted: dict[str, set[str]]
    searcher: BM25Searcher = field(default_factory=lambda: BM25Searcher.from_documents(NOTES))

    def view(self, runtime: Runtime[dict[str, str]]) -> EligibilityView:
        """The resolver: the view of whoever makes this call."""
        user = runtime.context["user"]
        return EligibilityView(view_id=user, version="1", allowed=lambda ids: self.granted[user] & set(ids))


@dataclass
class RevokingSearcher:
    """Searches, and takes one note away from everybody while it does: the change that comes at the wrong moment."""

    notes: SharedNotes
    revoked: str

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:
        """Search the notes; by the time the controller has looked at the answer, one of them is revoked."""
        return self.notes.searcher.search(query, k, filter)

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The recheck reads here, and asks for the view afterwards."""
        for granted in self.notes.granted.values():
            granted.discard(self.revoked)
        return self.notes.searcher.fetch(unit_ids)


def main() -> None:
    """Ask the same question before and after the note is revoked."""
    notes = SharedNotes({"ann": {"pump-reset", "pump-code"}})
    protected: list[dict[str, Any]] = []
    for label, searcher in (
        ("nothing changes", notes.searcher),
        ("revoked while the run is under way", RevokingSearcher(notes, "pump-code")),
    ):
        builder = create_bounded_retrieval(
            searcher, eligibility=notes.view, diagnostics=protected.append, context_schema=dict
        )
        result = builder.compile().invoke({"query": "How do I reset the pump?"}, context={"user": "ann"})
        packet = EvidencePacket.from_result(result)
        print(f"{label}: {[item.unit_id for item in packet.items]}")
        print(f"  {packet.stop_reason}, {packet.resolution}, calls {packet.usage.calls}, notes {list(packet.notes)}")
    dropped = next(record for record in protected if record["event"] == "dropped_at_recheck")
    print(f"only the diagnostics sink is told: {dropped['reasons']}")


if __name__ == "__main__":
    main()
