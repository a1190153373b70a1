from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document

from bounded_retrieval import BM25Searcher
from bounded_retrieval.contracts.ports import WeighingSearcher
from bounded_retrieval.policies.coverage import retain_terms

BACKENDS = ["bm25s", "rank_bm25"]
DOCUMENTS = [
    Document(id="u1", page_content="the red pump", metadata={"kind": "note"}),
    Document(id="u2", page_content="two pumps and a valve", metadata={"kind": "note"}),
    Document(id="u3", page_content="a blue fan", metadata={"kind": "hint"}),
    Document(id="u4", page_content="a motor", metadata={"kind": "hint"}),
]
WORDS = ["pump", "valve", "fan", "shaft", "pumps", "HX-200", "the"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_are_worked_out_by_hand(backend: Any) -> None:
    """Of four units two hold the pump in some form, one the valve, none the shaft; the sum bounds any score."""
    searcher = BM25Searcher.from_documents(DOCUMENTS, backend=backend)
    assert isinstance(searcher, WeighingSearcher)
    found = searcher.weigh("the pumping valve shaft", ["pumping", "valve", "shaft"])
    pump, valve, shaft = (math.log(1 + (4 - n + 0.5) / (n + 0.5)) for n in (2, 1, 0))
    assert found.terms == pytest.approx({"pumping": pump, "valve": valve, "shaft": shaft}, abs=1e-8)
    assert found.holding == {"pumping": 2, "valve": 1, "shaft": 0}
    assert found.attainable == pytest.approx(pump + valve + shaft, abs=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_under_a_filter_they_are_those_of_the_passing_units_alone(backend: Any) -> None:
    """As scores are; with the statistics of the corpus a filter changes nothing."""
    query, words = "pump valve fan", ["pump", "valve", "fan"]
    searcher = BM25Searcher.from_documents(DOCUMENTS, backend=backend)
    alone = BM25Searcher.from_documents([d for d in DOCUMENTS if d.metadata["kind"] == "note"], backend=backend)
    assert searcher.weigh(query, words, {"kind": "note"}) == alone.weigh(query, words)
    whole = BM25Searcher.from_documents(DOCUMENTS, backend=backend, statistics="corpus")
    assert whole.weigh(query, words, {"kind": "note"}) == searcher.weigh(query, words)
    nothing = searcher.weigh(query, words, {"kind": "none"})
    assert nothing.holding == dict.fromkeys(words, 0)


@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join), min_size=1, max_size=6),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join),
    st.sampled_from([0.0, 1e-3, 1.5, 100.0]),
)
def test_no_score_is_above_what_is_attainable(texts: list[str], query: str, k1: float) -> None:
    """On both backends, which agree; the rarer a word the more it weighs, and an unknown one weighs most."""
    documents = [Document(id=f"u{place}", page_content=text) for place, text in enumerate(texts)]
    terms = list(retain_terms(query).terms)
    first, second = (
        searcher.weigh(query, terms)
        for searcher in (BM25Searcher.from_documents(documents, backend=backend, k1=k1) for backend in BACKENDS)
    )
    assert first == second
    searcher = BM25Searcher.from_documents(documents, k1=k1)
    assert all(row.score is not None and row.score <= first.attainable for row in searcher.search(query, 10))
    by_rarity = sorted(terms, key=lambda term: first.holding[term])
    assert [first.terms[term] for term in by_rarity] == sorted(first.terms.values(), reverse=True)
