"""A lexical searcher with a tokenizer of its own: every assessor compares terms as that searcher does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from inventory import ask, dense
from langchain_core.documents import Document

from bounded_retrieval import IdfCoverage, Scorecard
from bounded_retrieval.contracts.candidate import Candidate

PAGE = Document(id="a", page_content="Install the c++ #include .net compiler " + "and more " * 100)


class Whitespace:
    """Finds words between blanks, in which ``c++`` and ``.net`` are words."""

    tokenizer = staticmethod(lambda text: text.casefold().split())
    tokenizer_name = "blanks"

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002
        """The one page."""
        return [Candidate(unit_id="a", channel="lexical", rank=1, score=3.0, unit=PAGE)][:k]

    def weigh(self, query: str, words: Sequence[str], filter: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """Every word is in the one page, and is as rare as any."""
        held = {word: int(word in self.tokenizer(PAGE.page_content)) for word in words}
        return {"terms": dict.fromkeys(words, 1.0), "holding": held, "attainable": float(len(words))}


@pytest.mark.parametrize("assessor", [Scorecard(), IdfCoverage()])
def test_terms_are_compared_as_the_searcher_compares_them(assessor: Any) -> None:
    """Words that only this tokenizer knows are held, stand together, and are missed by nobody."""
    outcome = ask(Whitespace(), dense(), query="c++ .net compiler", assessor=assessor)
    decision = outcome.trace.decisions[0]
    assert decision.observations[0].matched_terms == ("c++", ".net", "compiler")
    assert decision.assessment is not None
    factors = {factor.name: factor.value for factor in decision.assessment.factors}
    assert factors.get("phrases", 1.0) == factors.get("coverage", 1.0) == 1.0
    assert not any("held by no returned unit" in reason for reason in decision.assessment.reasons)
    assert outcome.reason == "proxy_sufficient"


def test_a_word_that_the_page_lacks_is_still_missed() -> None:
    """A control: the veto speaks of what the searcher's own words say."""
    outcome = ask(Whitespace(), dense(), query="c++ .net c# f#", assessor=Scorecard())
    assessment = outcome.trace.decisions[0].assessment
    assert assessment is not None
    assert "words that no unit holds (2 or more): c#, f#" in assessment.reasons
