"""Searchers that can score units which the other one returned, shared by the tests of score fusion in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inventory import Outcome, ask, documents
from langchain_core.documents import Document

from bounded_retrieval.contracts.assessment import QueryWeights
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.policies.fusion import ScoreFusion

LEXICAL = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0, "e": 0.0}
DENSE = {"e": 0.9, "c": 0.8, "b": 0.3, "a": 0.2}
"""What each channel gives each unit; the dense one does not know ``d``. The first three of each are returned."""


class Scoring:
    """Gives each unit a fixed score, and remembers what it was asked.

    Attributes:
        scores: the raw score of each unit that the channel knows.
        held: the documents that it holds now, by id.
        asked: the ids of each call of ``score``, in order.
        filters: the filter of each such call, where one was given.
        searches: how many searches were made.
    """

    def __init__(self, channel: str, scores: dict[str, float], held: Sequence[Document] | None = None) -> None:
        self.channel = channel
        self.scores = scores
        units = (
            documents(**{unit_id: f"Unit {unit_id} of the battery." for unit_id in LEXICAL}) if held is None else held
        )
        self.held = {unit.id: unit for unit in units}
        self.asked: list[list[str]] = []
        self.filters: list[Any] = []
        self.searches = 0

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002
        self.searches += 1
        passes = compile_filter(filter)
        known = [unit_id for unit_id, unit in self.held.items() if unit_id in self.scores and passes(unit.metadata)]
        best = sorted(known, key=lambda unit_id: (-self.scores[unit_id], unit_id))
        return [
            Candidate(
                unit_id=unit_id, channel=self.channel, rank=rank, score=self.scores[unit_id], unit=self.held[unit_id]
            )
            for rank, unit_id in enumerate(best[:k], 1)
        ]

    def score(self, query: str, unit_ids: Sequence[str], *narrowed: Any) -> Any:  # noqa: ARG002
        self.asked.append(list(unit_ids))
        self.filters += narrowed
        return {unit_id: self.scores[unit_id] for unit_id in unit_ids if unit_id in self.scores}

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        return {unit_id: self.held[unit_id] for unit_id in unit_ids if unit_id in self.held}


class Weighing(Scoring):
    """A lexical one that also says how rare words are, by counting; it remembers the filters of those calls."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.weighed: list[tuple[Any, ...]] = []

    def weigh(self, query: str, words: Sequence[str], *narrowed: Any) -> Any:  # noqa: ARG002
        self.weighed.append(narrowed)
        passes = compile_filter(narrowed[0] if narrowed else None)
        texts = [unit.page_content.casefold() for unit in self.held.values() if passes(unit.metadata)]
        holding = {word: sum(word in text for text in texts) for word in words}
        terms = {word: 1 / (1 + count) for word, count in holding.items()}
        return QueryWeights(terms=terms, holding=holding, attainable=8.0)


def lexical(**options: Any) -> Scoring:
    """The lexical searcher over `LEXICAL`."""
    return Scoring("lexical", LEXICAL, **options)


def dense(**options: Any) -> Scoring:
    """The dense searcher over `DENSE`."""
    return Scoring("dense", DENSE, **options)


def fused(*searchers: Any, **options: Any) -> Outcome:
    """One run that goes on in any case and adds up scores."""
    settings = {"policy": "always_continue", "fusion": ScoreFusion(), "first_hop_rows": 3}
    return ask(*searchers, **(settings | options))
