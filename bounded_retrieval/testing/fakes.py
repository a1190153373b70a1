"""Small searchers and a clock for tests: what they answer is exactly what they were given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Candidate, Channel
from bounded_retrieval.contracts.filters import Filter, compile_filter
from bounded_retrieval.contracts.normalise import content_id


class ScriptedSearcher:
    """Answers every query with the same documents in the same order, scores falling from 1.

    Attributes:
        documents: what it holds and answers with; change it to play an index that changes.
        calls: the queries it was asked, with the rows asked for.
    """

    def __init__(self, documents: Sequence[Document], channel: Channel) -> None:
        self.documents = list(documents)
        self.channel = channel
        self.calls: list[tuple[str, int]] = []

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Return the first ``k`` documents that pass the filter, whatever the query."""
        self.calls.append((query, k))
        passes = compile_filter(filter)
        matching = [document for document in self.documents if passes(document.metadata)]
        return [
            Candidate(
                unit_id=document.id or content_id(document.page_content),
                channel=self.channel,
                rank=rank,
                score=1 / rank,
                unit=document,
            )
            for rank, document in enumerate(matching[:k], 1)
        ]

    def fetch(self, unit_ids: Sequence[str]) -> Mapping[str, Document]:
        """Return the documents held now, by id."""
        held = {document.id or content_id(document.page_content): document for document in self.documents}
        return {unit_id: held[unit_id] for unit_id in unit_ids if unit_id in held}


class FailingSearcher:
    """Raises the given error on every call.

    Attributes:
        calls: the queries it was asked, with the rows asked for.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or ConnectionError("the searcher is down")
        self.calls: list[tuple[str, int]] = []

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:  # noqa: ARG002
        """Record the call and raise."""
        self.calls.append((query, k))
        raise self.error


class FixedClock:
    """A clock in seconds that only moves when told to; pass it as ``clock=``."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Read the clock."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.now += seconds
