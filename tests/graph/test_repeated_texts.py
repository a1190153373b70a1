"""Rows that repeat a text, or bring none: what they are charged for, leave out and tell the assessor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from inventory import Outcome, ask
from langchain_core.documents import Document
from scored import Scoring, Weighing

from bounded_retrieval import Scorecard, ScoreFusion
from bounded_retrieval.contracts.candidate import Candidate, leave_out

QUERY = "battery unit copy"
COPIES = [Document(id=f"copy{number}", page_content="A copy of the battery unit.") for number in range(4)]
OTHERS = [Document(id=f"other{number}", page_content=f"Other unit {number}.") for number in range(3)]
SCORES = {f"copy{number}": 4.0 for number in range(4)} | {f"other{number}": 1.0 - number / 10 for number in range(3)}


class Excluding(Scoring):
    """The dense searcher, which can leave units out and remembers which."""

    left_out: Sequence[str] = ()

    def search_excluding(self, query: str, k: int, unit_ids: Sequence[str], filter: Any = None) -> list[Candidate]:
        """The best of the others."""
        self.left_out = list(unit_ids)
        return leave_out(super().search(query, len(SCORES), filter), unit_ids, k)


def run(held: Sequence[Document] = (*COPIES, *OTHERS), **options: Any) -> tuple[Outcome, Excluding]:
    """One run of the default parts over both channels, and the dense searcher."""
    words, meanings = Weighing("lexical", SCORES, held=held), Excluding("dense", SCORES, held=held)
    parts = {"assessor": Scorecard(), "fusion": ScoreFusion(), "first_hop_rows": 4}
    return ask(words, meanings, query=QUERY, **(parts | options)), meanings


def test_no_row_is_spent_on_another_copy_of_a_text_that_is_there() -> None:
    """Four rows of one text are one unit; the dense search leaves all four ids out and brings others."""
    outcome, meanings = run(policy="always_continue")
    assert meanings.left_out == ["copy0", "copy1", "copy2", "copy3"]
    lexical, dense = outcome.trace.searches
    assert (lexical.duplicates, dense.excluded, dense.new_units) == (3, 4, 2)
    assert outcome.ids == ["copy0", "other0", "other1"]
    assert outcome.reason != "no_new_evidence"


def lead(outcome: Outcome) -> float:
    """The sign of the first assessment."""
    assessment = outcome.trace.decisions[0].assessment
    assert assessment is not None
    return next(factor.value for factor in assessment.factors if factor.name == "lead")


def test_copies_are_ahead_of_nothing() -> None:
    """Four rows with one score have no lead, whether they hold one text or four."""
    told_apart = [Document(id=each.id, page_content=f"{each.page_content} {each.id}") for each in COPIES]
    assert lead(run((*told_apart, *OTHERS))[0]) == 0.0
    assert lead(run()[0]) == 0.0


def test_fewer_rows_than_asked_for_are_ahead_of_nothing_else() -> None:
    """Where the search found no further row, copies or not, the first is ahead by all that it has."""
    assert lead(run(COPIES[:3])[0]) == pytest.approx(4 / 8)
    assert lead(run(COPIES[:1])[0]) == pytest.approx(4 / 8)


def test_a_row_whose_unit_is_gone_still_counts_as_found() -> None:
    """The last row's text cannot be read; the third then is the last one that can be compared, and as good."""

    class Textless(Weighing):
        """Returns rows without texts."""

        def search(self, *given: Any) -> list[Candidate]:
            """The same rows."""
            return [row.model_copy(update={"unit": None}) for row in super().search(*given)]

    held = [Document(id=each.id, page_content=f"{each.page_content} {each.id}") for each in COPIES]
    shelf = Weighing("lexical", SCORES, held=held[:3])
    words, meanings = Textless("lexical", SCORES, held=held), Excluding("dense", SCORES, held=held)
    parts = {"assessor": Scorecard(), "fusion": ScoreFusion(), "first_hop_rows": 4, "units": shelf}
    outcome = ask(words, meanings, query=QUERY, **parts)
    assert outcome.trace.searches[0].unread == 1
    assert lead(outcome) == 0.0
