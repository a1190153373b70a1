from __future__ import annotations

import pytest
from langchain_core.documents import Document

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment, QueryTerms
from bounded_retrieval.contracts.candidate import Candidate, Unit
from bounded_retrieval.policies.coverage import TermCoverage, missing_from, observe, retain_terms

QUERY = "How do I replace the HX-200 battery safely?"
"""Retained: replace, hx-200, battery, safely."""


def assess(
    query: str, *texts: str, threshold: float = 0.8, max_chars: int = 4000, title: str = ""
) -> CoverageAssessment:
    """What the reference assessor says about units of these texts."""
    terms = retain_terms(query)
    units = [
        Unit.from_document(Document(id=f"u{number}", page_content=text, metadata={"title": title}))
        for number, text in enumerate(texts, 1)
    ]
    given = AssessmentInput(
        query=query,
        query_terms=terms,
        observations=tuple(observe(terms, unit, max_chars) for unit in units),
        candidates=tuple(
            Candidate(unit_id=unit.unit_id, channel="lexical", rank=rank) for rank, unit in enumerate(units, 1)
        ),
        units={unit.unit_id: unit for unit in units},
        threshold=threshold,
    )
    return TermCoverage().assess(given)


def test_terms_are_kept_in_order_without_stop_words_and_repeats() -> None:
    """What is looked for is the query's distinct words in order, minus the declared stop list."""
    kept = retain_terms(QUERY + " Replace it!")
    assert kept == QueryTerms(terms=("replace", "hx-200", "battery", "safely"), identifiers=("hx-200",))


def test_a_query_of_stop_words_keeps_them() -> None:
    """When only stop words were asked for, they are what is looked for."""
    assert retain_terms("who are the who").terms == ("who", "are", "the")
    assert assess("the who", "The Who played.").coverage == 1


FRACTIONS = [
    ([], 0.0),
    (["Parcels are shipped."], 0.0),
    (["Charge the battery."], 1 / 4),
    (["Replace the HX-200."], 2 / 4),
    (["Replace the HX-200 battery."], 3 / 4),
    (["Safely replace the battery of your HX-200."], 4 / 4),
    (["Replace it.", "The HX-200 battery.", "Safely."], 2 / 4),
    (["battery battery battery"], 1 / 4),
    (["REPLACE! hx\u2011200? Battery…"], 3 / 4),
]


@pytest.mark.parametrize(("texts", "fraction"), FRACTIONS)
def test_coverage_is_the_best_single_units_fraction(texts: list[str], fraction: float) -> None:
    """Of four retained terms, the most that one unit holds, divided by four; units are not added up."""
    assert assess(QUERY, *texts).coverage == fraction


def test_the_title_counts() -> None:
    """A term in the unit's title is held by the unit."""
    assert assess(QUERY, "Replace it safely.", title="HX-200 battery").coverage == 1


def test_the_threshold_itself_is_enough() -> None:
    """Coverage equal to the threshold is sufficient; the next smaller fraction is not."""
    query = "alpha beta gamma delta epsilon"
    assert assess(query, "alpha beta gamma delta", threshold=0.8).sufficient
    assert not assess(query, "alpha beta gamma", threshold=0.8).sufficient


@pytest.mark.parametrize(("text", "sufficient"), [("alpha beta", True), ("alpha", False)])
def test_threshold_1_wants_every_term(text: str, sufficient: bool) -> None:
    """At threshold 1 one unit has to hold all terms."""
    assert assess("alpha beta", text, threshold=1).sufficient is sufficient


@pytest.mark.parametrize(("texts", "sufficient"), [(["anything"], True), ([], False)])
def test_threshold_0_wants_any_unit(texts: list[str], sufficient: bool) -> None:
    """At threshold 0 any returned unit is enough, but no unit never is."""
    assert assess("alpha beta", *texts, threshold=0).sufficient is sufficient


@pytest.mark.parametrize("lookalike", ["HX-2000", "HX 200", "HX200"])
def test_a_missing_identifier_vetoes(lookalike: str) -> None:
    """Without the exact identifier nothing is sufficient, whatever the fraction and the threshold."""
    assessment = assess(QUERY, f"Safely replace the {lookalike} battery.", threshold=0)
    assert assessment.coverage == 3 / 4
    assert not assessment.sufficient
    assert assessment.missing_terms == ("hx-200",)
    assert "identifiers held exactly by no returned unit: hx-200" in assessment.reasons


def test_identifiers_may_stand_in_different_units() -> None:
    """Each identifier has to be held by some returned unit, not all by the same one."""
    query = "HX-200 or HX-210 battery"
    assert assess(query, "HX-200 battery", "HX-210", threshold=0.5).sufficient
    assert not assess(query, "HX-200 battery", "HX-220", threshold=0.5).sufficient


def test_an_identifier_with_another_dash_is_the_same() -> None:
    """``hx-200`` with a no-break hyphen is ``HX-200``, in query and unit alike."""
    assert assess("hx\u2011200", "The HX-200.", threshold=1).sufficient
    assert assess("HX-200", "The hx\u2011200.", threshold=1).sufficient


def test_a_unit_too_long_to_fit_does_not_count() -> None:
    """Terms and identifiers held only by a unit that cannot be packed are missing."""
    long = "Safely replace the HX-200 battery." + " " * 100
    assessment = assess(QUERY, long, "battery", max_chars=50)
    assert assessment.coverage == 1 / 4
    assert assessment.missing_terms == ("replace", "hx-200", "safely")
    assert assessment.best_unit_id == "u2"
    assert not assessment.sufficient


def test_a_unit_as_long_as_the_limit_fits() -> None:
    """A unit of exactly ``max_chars`` characters counts; with one more it does not."""
    unit = Unit.from_document(Document(id="u", page_content="x" * 50, metadata={"title": "T" * 100}))
    terms = retain_terms("x")
    assert observe(terms, unit, 50).fits
    assert not observe(terms, unit, 49).fits


def test_no_unit_that_fits_is_said_in_words() -> None:
    """With nothing to look at, the reason says so and no unit is named as best."""
    assessment = assess(QUERY, "battery" * 10, max_chars=5)
    assert assessment.reasons == ("no returned unit fits the packet",)
    assert assessment.best_unit_id is None
    assert not assessment.sufficient


def test_no_term_to_look_for_is_never_sufficient() -> None:
    """A query of punctuation has no term, so nothing can pass, not even at threshold 0."""
    assessment = assess("?!", "anything", threshold=0)
    assert assessment.reasons == ("the query holds no term to look for",)
    assert (assessment.coverage, assessment.sufficient, assessment.missing_terms) == (0, False, ())


def test_the_first_of_equally_good_units_is_best() -> None:
    """Between units that hold as many terms, the one seen first is named."""
    assert assess("alpha beta", "beta", "alpha").best_unit_id == "u1"


def test_observation_states_facts_in_query_order() -> None:
    """An observation lists what of the query a unit holds, in the query's order, and its characters."""
    unit = Unit.from_document(Document(id="u", page_content="battery of HX-210 and HX-200"))
    seen = observe(retain_terms("HX-200 HX-210 HX-220 battery charger"), unit, 4000)
    assert seen.matched_terms == ("hx-200", "hx-210", "battery")
    assert seen.matched_identifiers == ("hx-200", "hx-210")
    assert seen.chars == 28


def test_missing_terms_are_in_query_order_and_once() -> None:
    """What no unit holds is listed in the query's order; an identifier that is a term too is listed once."""
    terms = retain_terms("charger for HX-220 and battery")
    unit = Unit.from_document(Document(id="u", page_content="battery"))
    assert missing_from(terms, (observe(terms, unit, 4000),)) == ("charger", "hx-220")


def test_identifiers_count_whatever_the_index_tokenizer_does() -> None:
    """With a tokenizer that takes identifiers apart, the identifier itself is still looked for and reported."""
    terms = retain_terms("HX-200 battery", lambda text: text.lower().replace("-", " ").split())
    assert terms == QueryTerms(terms=("hx", "200", "battery"), identifiers=("hx-200",))
    unit = Unit.from_document(Document(id="u", page_content="200 hx battery"))
    seen = observe(terms, unit, 4000, lambda text: text.split())
    assert seen.matched_terms == terms.terms
    assert missing_from(terms, (seen,)) == ("hx-200",)


def test_the_assessor_names_itself_and_its_settings() -> None:
    """An assessment says who made it, with which settings, against which threshold, and why."""
    assessment = assess(QUERY, "replace the HX-200 battery")
    assert assessment.assessor == "term_coverage"
    assert assessment.settings == {"default_threshold": 0.8}
    assert assessment.threshold == 0.8
    assert assessment.reasons == ("3 of 4 terms in one unit: 0.750 is below 0.8",)
