from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document

sys.path.insert(0, str(Path(__file__).parent))
import signs_again

from bounded_retrieval.contracts.assessment import AssessmentInput, QueryWeights
from bounded_retrieval.contracts.candidate import Candidate, Unit
from bounded_retrieval.policies.coverage import observe, retain_terms
from bounded_retrieval.policies.signs import NEAR, Signs, read_signs
from bounded_retrieval.policies.tokenize import stems_of

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
MAX_CHARS = 200


def given_for(
    query: str,
    *texts: str,
    scores: tuple[float | None, ...] = (),
    weights: dict[str, float] | None = None,
    attainable: float = 10.0,
    asked: int = 0,
    titles: tuple[str, ...] = (),
) -> AssessmentInput:
    """What an assessor is given for a query and the texts that the lexical channel returned, in this order."""
    names = [f"u{number}" for number in range(len(texts))]
    heads = [*titles, *[""] * len(texts)]
    units = {
        name: Unit.from_document(Document(id=name, page_content=text, metadata={"title": head}))
        for name, text, head in zip(names, texts, heads, strict=False)
    }
    terms = retain_terms(query)
    rows = zip(names, [*scores, *[None] * len(texts)], strict=False)
    return AssessmentInput(
        query=query,
        query_terms=terms,
        observations=tuple(observe(terms, unit, MAX_CHARS, stem=stems_of) for unit in units.values()),
        candidates=tuple(
            Candidate(unit_id=name, channel="lexical", rank=rank, score=score)
            for rank, (name, score) in enumerate(rows, 1)
        ),
        units=units,
        threshold=0.5,
        weights=None if weights is None else QueryWeights(terms=weights, attainable=attainable),
        rows_asked=asked or len(texts),
    )


def signs(query: str, *texts: str, **options: Any) -> Signs:
    """The signs of a result."""
    return read_signs(given_for(query, *texts, **options))


def test_coverage_is_the_best_units_share_of_the_weight() -> None:
    """One unit with two heavy terms of four beats one with two light ones, and the terms are named in query order."""
    heavy = {"replace": 1.0, "pump": 4.0, "seal": 3.0, "today": 2.0}
    found = signs("replace pump seal today", "Replace it today.", "The seal of a pump.", weights=heavy)
    assert (found.coverage, found.held) == (0.7, ("pump", "seal"))
    assert found.anywhere == {"replace", "today", "pump", "seal"}
    assert found.is_weighed


def test_without_weights_all_terms_count_alike() -> None:
    """Then coverage is a count, and the lead is not known."""
    found = signs("replace pump seal today", "Replace it.", "The seal of a pump.", scores=(9.0, 1.0))
    assert (found.coverage, found.held, found.lead, found.is_weighed) == (0.5, ("pump", "seal"), 0.0, False)


def test_other_forms_of_a_word_count() -> None:
    """A term is held where its stem is, as in the lexical index."""
    found = signs("pumps leaking", "The pump leaks.")
    assert (found.coverage, found.phrases) == (1.0, 1.0)


def test_a_title_is_part_of_the_text() -> None:
    """Words of the title count, and the title's last word stands beside the text's first."""
    found = signs("pump seal", "Seal it.", titles=("The pump",))
    assert (found.coverage, found.phrases, found.together) == (1.0, 1.0, (("pump", "seal"),))


@pytest.mark.parametrize(
    ("text", "together"),
    [
        ("pump seal", True),
        ("pump one two seal", True),
        ("pump one two three seal", False),
        ("seal pump", False),
        ("seal pump of a seal", True),
        ("pump pump", False),
        ("pump one two three pump one seal", True),
    ],
)
def test_two_words_stand_together_in_order_within_three_words(text: str, together: bool) -> None:
    """The second comes at most three words after the first, in any place of the text where both stand."""
    assert NEAR == 3
    assert signs("pump seal", text).phrases == (1.0 if together else 0.0)


def test_phrases_are_shares_of_pairs_by_weight_over_all_units() -> None:
    """A pair counts with both its terms' weight; different units may hold different pairs, none halves of one."""
    heavy = {"cold": 1.0, "pump": 3.0, "seal": 5.0}
    found = signs("cold pump seal", "A cold pump.", "One seal. One pump.", weights=heavy)
    assert (found.together, found.pairs, found.phrases) == ((("cold", "pump"),), 2, round(4 / 12, 6))
    both = signs("cold pump seal", "A cold pump.", "Its pump seal.", weights=heavy)
    assert (both.together, both.phrases) == ((("cold", "pump"), ("pump", "seal")), 1.0)


def test_a_query_of_one_term_has_no_pairs() -> None:
    """Then what is asked for is that the term is there."""
    assert (signs("pump", "A pump.").phrases, signs("pump", "A pump.").pairs) == (1.0, 0)
    assert signs("pump", "A lamp.").phrases == 0.0


PUMP = {"pump": 2.0}


@pytest.mark.parametrize(
    ("scores", "asked", "attainable", "expected"),
    [
        ((6.0, 3.0, 2.0), 3, 10.0, 0.4),
        ((6.0, 3.0, 2.0), 2, 10.0, 0.3),
        ((6.0, 3.0, 2.0), 4, 10.0, 0.6),  # fewer came back than were asked for: the last of them is nothing
        ((6.0,), 1, 10.0, 0.0),
        ((6.0, 6.0), 2, 10.0, 0.0),
        ((6.0, 3.0), 2, 0.0, 0.0),
        ((6.0, -4.0), 2, 5.0, 1.0),
        ((-1.0, -4.0), 2, 5.0, 0.0),
        ((None, None), 2, 5.0, 0.0),
    ],
)
def test_lead(scores: Any, asked: int, attainable: float, expected: float) -> None:
    """The best score less that of the last row asked for, as a share of the most that is possible, within 0 and 1."""
    texts = ["A pump."] * len(scores)
    assert signs("pump", *texts, scores=scores, asked=asked, attainable=attainable, weights=PUMP).lead == expected


def test_a_unit_that_does_not_fit_leads_nobody() -> None:
    """What cannot be packed gives neither words nor the best score, but keeps its place among the rows."""
    long = "pump seal " * 50
    found = signs("pump seal", long, "A pump.", scores=(9.0, 4.0), weights={"pump": 1.0, "seal": 1.0})
    assert (found.coverage, found.phrases, found.lead) == (0.5, 0.0, 0.0)
    assert found.anywhere == {"pump"}


def test_rows_of_the_dense_channel_do_not_lead() -> None:
    """Only lexical scores are compared with the highest lexical score."""
    given = given_for("pump", "A pump.", "No.", scores=(3.0, 1.0), weights=PUMP)
    dense = Candidate(unit_id="u1", channel="dense", rank=1, score=9.0)
    more = given.model_copy(update={"candidates": (*given.candidates, dense)})
    assert read_signs(more).lead == read_signs(given).lead == 0.2


def test_the_shortest_unit_is_looked_for_among_those_that_fit() -> None:
    """Characters are the text's, whatever the title and whichever row it is; what cannot be packed does not count."""
    assert signs("pump", "A pump.", "The pump of it.", titles=("A", "Pumps and seals")).shortest == len("A pump.")
    assert signs("pump", "A cold pump.", "Pump.").shortest == len("Pump.")
    assert signs("pump", "A pump.", "pump " * 50).shortest == len("A pump.")
    assert signs("pump", "pump " * 50).shortest == signs("pump").shortest == 0


@pytest.mark.parametrize(("query", "texts"), [("pump", ()), ("?!", ("A pump.",)), ("?!", ())])
def test_nothing_to_go_by_is_all_zeroes(query: str, texts: Any) -> None:
    """Without a unit, or without a term, every sign is 0."""
    found = signs(query, *texts)
    assert (found.coverage, found.phrases, found.lead, found.held, found.pairs) == (0.0, 0.0, 0.0, (), 0)


def test_a_word_that_the_weights_do_not_name_counts_nothing() -> None:
    """A searcher of another make may leave out a word; then it has no weight, and nothing is divided by 0."""
    assert signs("pump seal", "A pump seal.", weights={"seal": 2.0}).coverage == 1.0
    assert signs("pump seal", "A pump seal.", weights={}).coverage == 0.0


WORDS = ("pump", "pumps", "seal", "cold", "hx-200", "the", "lamp", "装置")
sentence = st.lists(st.sampled_from([*WORDS, "one", "two"]), max_size=12).map(" ".join)
scores = st.one_of(st.none(), st.floats(-5, 20, allow_nan=False))
weight = st.floats(0, 9, allow_nan=False).map(lambda value: round(value, 3))


@untimed
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join),
    st.lists(st.tuples(sentence, scores, st.booleans()), max_size=5),
    st.one_of(st.none(), st.dictionaries(st.sampled_from(WORDS), weight)),
    st.floats(0, 30, allow_nan=False),
    st.integers(1, 6),
)
def test_signs_are_what_their_definitions_say(
    query: str, rows: Any, weights: Any, attainable: float, asked: int
) -> None:
    """An independent computation gives the same numbers for any result, weights and scores."""
    texts = [text if fits else f"{text} {'x' * MAX_CHARS}" for text, _, fits in rows]
    found = signs(
        query, *texts, scores=tuple(row[1] for row in rows), weights=weights, attainable=attainable, asked=asked
    )
    terms, fits = list(retain_terms(query).terms), [row[2] for row in rows]
    fitting = [text for text, fit in zip(texts, fits, strict=True) if fit]
    most = None if weights is None else attainable
    assert found.coverage == signs_again.coverage(terms, fitting, weights)
    assert found.phrases == signs_again.phrases(terms, fitting, weights)
    assert found.lead == signs_again.lead([row[1] for row in rows], fits, asked, most)
    assert found.shortest == signs_again.shortest(fitting)
