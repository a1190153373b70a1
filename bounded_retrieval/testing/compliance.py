"""A compliance suite for searchers: subclass it, say how to build one, and run pytest.

::

    class TestMySearcher(SearcherCompliance):
        channel = "dense"

        def build(self, documents):
            return MySearcher(documents)

Every case runs through ``search`` and, where the searcher has one, through ``asearch``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Candidate, Channel

DOCUMENTS = (
    Document(
        id="battery",
        page_content="Replace the battery of the HX-200 probe.",
        metadata={"device": "HX-200", "year": 2024},
    ),
    Document(
        id="pairing",
        page_content="Pair the HX-210 probe with a gateway over radio.",
        metadata={"device": "HX-210", "year": 2025},
    ),
    Document(id="shipping", page_content="Parcels damaged by the courier are replaced.", metadata={"year": 2023}),
    Document(
        id="résumé",
        page_content="Das Gerät startet neu; 装置が再起動します。",
        metadata={"device": "HX-200", "year": 2025},
    ),
)
"""The documents that the suite builds searchers over."""


class SearcherCompliance:
    """What every searcher must do. Subclass and define ``channel`` and ``build``.

    Attributes:
        channel: ``lexical`` or ``dense``.
        has_scores: whether candidates carry scores.
        has_filters: whether the searcher enforces ``filter``.
    """

    channel: ClassVar[Channel]
    has_scores: ClassVar[bool] = True
    has_filters: ClassVar[bool] = True

    def build(self, documents: Sequence[Document]) -> Any:
        """Return a searcher over these documents."""
        raise TypeError(f"{type(self).__name__} must define build(documents)")

    @pytest.fixture(params=["search", "asearch"])
    def ask(self, request: pytest.FixtureRequest) -> Any:
        """The searcher's method under test as a plain function ``(query, k, filter) -> list of Candidate``."""
        return self._plain(request.param)

    @pytest.fixture(params=["search_excluding", "asearch_excluding"])
    def ask_others(self, request: pytest.FixtureRequest) -> Any:
        """The optional method as a plain function ``(query, k, unit_ids, filter) -> list of Candidate``."""
        return self._plain(request.param)

    def _plain(self, name: str) -> Any:
        searcher = self.build([document.model_copy(deep=True) for document in DOCUMENTS])
        method = getattr(searcher, name, None)
        if method is None:
            pytest.skip(f"{type(searcher).__name__} has no {name}")

        def call(*given: Any) -> list[Candidate]:
            answer = method(*given)
            return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else list(answer)

        return call

    def test_answers_with_candidates_of_its_channel(self, ask: Any) -> None:
        """Rows are candidates of the declared channel, ranked from 1 without gaps."""
        rows = ask("replace the HX-200 battery", 3)
        assert rows
        assert all(isinstance(row, Candidate) and row.channel == self.channel for row in rows)
        assert [row.rank for row in rows] == list(range(1, len(rows) + 1))

    def test_finds_the_unit_that_says_it(self, ask: Any) -> None:
        """The unit that holds the query's words comes first."""
        assert ask("replace the battery of the HX-200 probe", 3)[0].unit_id == "battery"

    def test_returns_no_more_than_asked(self, ask: Any) -> None:
        """At most ``k`` rows come back, and no unit twice."""
        rows = ask("probe gateway courier battery", 2)
        assert len(rows) <= 2
        assert len({row.unit_id for row in rows}) == len(rows)

    def test_same_query_same_answer(self, ask: Any) -> None:
        """The answer to a query does not change from call to call."""
        assert _shape(ask("HX-210 gateway", 4)) == _shape(ask("HX-210 gateway", 4))

    def test_scores_are_there_or_not(self, ask: Any) -> None:
        """Every row has a score, or no row has, as the searcher declares."""
        scores = [row.score for row in ask("HX-210 gateway radio", 4)]
        assert all((score is not None) == self.has_scores for score in scores)

    def test_filter_holds(self, ask: Any) -> None:
        """Only units whose metadata passes the filter come back."""
        if not self.has_filters:
            pytest.skip("this searcher enforces no filter")
        rows = ask("HX-200 HX-210 battery gateway parcels", 4, {"device": "HX-210"})
        assert {row.unit_id for row in rows} == {"pairing"}
        rows = ask("HX-200 HX-210 battery gateway parcels", 4, {"device": {"$in": ["HX-200"]}, "year": {"$lt": 2025}})
        assert {row.unit_id for row in rows} == {"battery"}

    def test_excluded_units_stay_away(self, ask_others: Any, ask: Any) -> None:
        """Without some units the others come back as in a search, ranked from 1, no more than asked."""
        query = "HX-200 HX-210 battery gateway parcels radio"
        everything = ask(query, 4)
        for count in range(len(everything) + 1):
            left_out = [row.unit_id for row in everything[:count]]
            rows = ask_others(query, 2, [*left_out, "no such unit"])
            expected = [(row.unit_id, row.score) for row in everything[count:][:2]]
            assert [(row.unit_id, row.score) for row in rows] == expected
            assert [row.rank for row in rows] == list(range(1, len(rows) + 1))
        assert ask_others(query, 0, []) == []
        if self.has_filters:
            rows = ask_others(query, 4, ["battery"], {"device": {"$in": ["HX-200", "HX-210"]}})
            assert "pairing" in {row.unit_id for row in rows} <= {"pairing", "résumé"}

    def test_odd_queries_answer(self, ask: Any) -> None:
        """Other scripts, punctuation and replacement characters give an answer, not an error."""
        for query in ("装置", "\ufffd", "?!", "مرحبا", "a" * 5000):
            assert isinstance(ask(query, 2), list)

    def test_the_callers_documents_are_left_alone(self) -> None:
        """Building and searching changes neither the documents nor their metadata."""
        documents = [document.model_copy(deep=True) for document in DOCUMENTS]
        searcher = self.build(documents)
        answer = getattr(searcher, "search", None) or searcher.asearch
        found = answer("HX-200", 2, None)
        if inspect.isawaitable(found):
            asyncio.run(_awaited(found))
        assert documents == list(DOCUMENTS)


async def _awaited(answer: Any) -> list[Candidate]:
    return list(await answer)


def _shape(rows: list[Candidate]) -> list[tuple[str, int, float | None]]:
    return [(row.unit_id, row.rank, row.score) for row in rows]
