from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.evaluation.caching import cached
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.exact import ExactSearcher
from bounded_retrieval.testing.fakes import ScriptedSearcher

TEXTS = ["a pump for sand", "a pump for water", "the sand filter", "a pump", "water in the pump"]
DOCUMENTS = [Document(id=f"u{number}", page_content=text) for number, text in enumerate(TEXTS)]


class Counting(BM25Searcher):
    """Counts what it is asked."""

    searches: list[tuple[str, int]]
    scorings: list[list[str]]

    def search(self, query: str, k: int, filter: Any = None) -> Any:
        self.searches.append((query, k))
        return super().search(query, k, filter)

    def score(self, query: str, unit_ids: Sequence[str], filter: Any = None) -> dict[str, float]:
        self.scorings.append(list(unit_ids))
        return super().score(query, unit_ids, filter)


@pytest.fixture
def real() -> Counting:
    """BM25 over five units, not asked yet."""
    searcher = Counting.from_documents(DOCUMENTS)
    searcher.searches, searcher.scorings = [], []
    return searcher


def test_the_real_searcher_is_asked_once_for_each_query_and_as_deep_as_anyone_goes(real: Counting) -> None:
    """Whatever is asked first, and however often."""
    kept = cached(real, 4)
    answers = [kept.search("sand pump", k) for k in (1, 4, 2)]
    kept.search("water", 2)
    assert kept.asked.searches == 2
    assert real.searches == [("sand pump", 4), ("water", 4)]
    assert answers == [BM25Searcher.search(real, "sand pump", k) for k in (1, 4, 2)]


def test_what_a_caller_does_to_an_answer_stays_with_the_caller(real: Counting) -> None:
    """The rows kept are not the list given away."""
    kept = cached(real, 4)
    kept.search("pump", 4).clear()
    assert len(kept.search("pump", 4)) == 4


@pytest.mark.parametrize(
    ("k", "filter", "named"), [(5, None, "for 5 rows, of 4 kept"), (2, {"tenant": "a"}, "with a filter")]
)
def test_what_is_not_kept_is_refused(real: Counting, k: int, filter: Any, named: str) -> None:
    """More rows than were fetched, or those of a filter."""
    with pytest.raises(ConfigurationError, match=named):
        cached(real, 4).search("pump", k, filter)
    assert real.searches == []


def test_scores_are_asked_for_once_and_only_where_they_are_lacking(real: Counting) -> None:
    """A unit that the searcher does not hold has none, and is not asked for again."""
    kept: Any = cached(real, 4)
    first = kept.score("sand pump", ["u0", "gone", "u0"])
    second = kept.score("sand pump", ["u2", "u0", "gone"])
    assert real.scorings == [["u0", "gone"], ["u2"]]
    assert kept.asked.scorings == 2
    assert first == BM25Searcher.score(real, "sand pump", ["u0"])
    assert second == BM25Searcher.score(real, "sand pump", ["u2", "u0"])
    with pytest.raises(ConfigurationError, match="filter"):
        kept.score("sand pump", ["u0"], {"tenant": "a"})


def test_only_what_the_real_searcher_can_do_can_be_done(real: Counting) -> None:
    """Whatever asks by ability must meet the same abilities; and none that would go round the kept answers."""
    plain = ScriptedSearcher(DOCUMENTS, "dense")
    plain.asearch = plain.ascore = None
    kept = cached(plain, 4)
    assert not hasattr(kept, "score")
    assert not hasattr(kept, "asearch")
    assert not hasattr(kept, "ascore")
    assert not hasattr(kept, "weigh")
    over: Any = cached(real, 4)
    assert over.tokenizer("HX-200 pump") == ["hx-200", "pump"]
    assert over.weigh("pump", ["pump"]) == real.weigh("pump", ["pump"])
    assert over.fetch(["u1"]) == real.fetch(["u1"])
    assert real.searches == []


def test_a_failed_search_is_told_and_not_kept() -> None:
    """The next one asks again."""
    failing = ScriptedSearcher(DOCUMENTS, "dense")
    whole, failing.search = failing.search, None
    kept = cached(failing, 4)
    with pytest.raises(TypeError):
        kept.search("pump", 2)
    failing.search = whole
    assert len(kept.search("pump", 2)) == 2


def test_units_are_left_out_of_the_rows_that_are_kept() -> None:
    """As the real searcher leaves them out, without asking it again; only where it can, and as deep as rows are kept."""
    searcher = ExactSearcher.from_documents(DOCUMENTS, DeterministicFakeEmbedding(size=8))
    kept = cached(searcher, 4)
    first, second, *_ = [row.unit_id for row in kept.search("sand pump", 4)]
    for left_out in ([], [first], [second, "unknown"]):
        assert kept.search_excluding("sand pump", 2, left_out) == searcher.search_excluding("sand pump", 2, left_out)
    assert kept.asked.searches == 1
    with pytest.raises(ConfigurationError, match="for 5 rows, of 4 kept"):
        kept.search_excluding("sand pump", 3, [first, second])
    assert not hasattr(cached(BM25Searcher.from_documents(DOCUMENTS), 4), "search_excluding")
