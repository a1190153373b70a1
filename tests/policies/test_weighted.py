from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from test_signs import MAX_CHARS, WORDS, given_for, sentence

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment, QueryWeights
from bounded_retrieval.contracts.scorecard import ScorecardTable, shipped_scorecard
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.policies.weighted import RARE, IdfCoverage, Scorecard

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])

TABLE = ScorecardTable.model_validate(
    {
        "factors": [
            {"name": "phrases", "edges": [0.5, 1.0], "points": [20, 50]},
            {"name": "lead", "edges": [0.1, 0.2], "points": [10, 30]},
            {"name": "coverage", "edges": [0.5], "points": [20]},
        ],
        "thresholds": {"default": 0.5, "economy": 0.25},
        "provenance": {},
    }
)
CARD = Scorecard(table=TABLE)
HEAVY = {"pump": 4.0, "seal": 2.0, "leaks": 2.0}
COMMON = dict.fromkeys(HEAVY, 9)
QUERY = "pump seal leaks"
ASSESSORS = pytest.mark.parametrize("assessor", [IdfCoverage(), CARD], ids=lambda each: each.name)


def weighed(given: AssessmentInput, holding: dict[str, int], terms: dict[str, float] | None = None) -> AssessmentInput:
    """The same with counts of the units that hold each term."""
    weights = QueryWeights(terms=terms or HEAVY, holding=holding, attainable=10.0)
    return given.model_copy(update={"weights": weights})


def card(
    *texts: str, scores: tuple[float, ...] = (), holding: Any = None, query: str = QUERY, threshold: float = 0.5
) -> CoverageAssessment:
    """What the small table says of a result."""
    given = weighed(given_for(query, *texts, scores=scores), COMMON if holding is None else holding)
    return CARD.assess(given.model_copy(update={"threshold": threshold}))


def test_points_worked_by_hand() -> None:
    """Half of the pairs, a lead of .3 and three quarters of the weight are 20 + 30 + 20 of 100 points."""
    result = card("The pump has a seal.", "Nothing.", scores=(4.0, 1.0))
    assert [(each.name, each.value, each.points) for each in result.factors] == [
        ("phrases", 0.6, 20.0),
        ("lead", 0.3, 30.0),
        ("coverage", 0.75, 20.0),
    ]
    assert (result.coverage, result.sufficient, result.missing_terms) == (0.7, True, ("leaks",))


def test_reasons_say_what_was_counted() -> None:
    """Each factor's reason has its count, its share and its points, and the last one the comparison."""
    assert card("The pump has a seal.", "Nothing.", scores=(4.0, 1.0)).reasons == (
        "1 of 2 neighbouring pairs within 3 words (pump seal), 60% by weight: 20 of 50 points",
        "the best score is ahead of the last by 30.0% of the highest possible: 30 of 30 points",
        "one unit holds 2 of 3 terms, 75% by weight: 20 of 20 points",
        "0.700 reaches 0.5",
    )


@pytest.mark.parametrize(("threshold", "relation"), [(0.7, "reaches"), (0.71, "is below")])
def test_the_threshold_is_reached_at_its_own_value(threshold: float, relation: str) -> None:
    """A share equal to the threshold is sufficient, one below it is not."""
    result = card("The pump has a seal.", "Nothing.", scores=(4.0, 1.0), threshold=threshold)
    assert result.sufficient is (relation == "reaches")
    assert f"0.700 {relation} {threshold:g}" in result.reasons


def test_weighted_coverage_worked_by_hand() -> None:
    """The best unit's share of the weight is compared, not its share of the terms."""
    given = weighed(given_for(QUERY, "A pump.", "The seal leaks no more."), COMMON)
    result = IdfCoverage().assess(given.model_copy(update={"threshold": 0.5}))
    assert (result.coverage, result.sufficient, result.factors[0].value) == (0.5, True, 0.5)
    assert result.reasons == ("one unit holds 1 of 3 terms, 50% by weight", "0.500 reaches 0.5")


@pytest.mark.parametrize(("query", "text"), [("pump", "1 term: 0 of 9"), (QUERY, "3 terms: 4 of 9")])
def test_the_number_of_terms_can_count(query: str, text: str) -> None:
    """A table may give points for the terms that there are to be found by, stop words and repeats left out."""
    factors = [{"name": "terms", "edges": [2, 4], "points": [4, 9]}]
    table = TABLE.model_validate({**TABLE.model_dump(), "factors": factors})
    terms = dict.fromkeys(query.split(), 9)
    result = Scorecard(table=table).assess(weighed(given_for(f"the {query} {query}", "A pump."), terms))
    assert result.factors[0].text == f"the query has {text} points"


@pytest.mark.parametrize(
    ("texts", "text"),
    [(("A pump.", "The seal of a pump."), "7 characters: 0 of 9"), (("A pump." * 20,), "140 characters: 4 of 9")],
)
def test_the_length_of_the_returned_units_can_count(texts: tuple[str, ...], text: str) -> None:
    """A table may give points for units that are long enough to be found by their words; the shortest one decides."""
    factors = [{"name": "length", "edges": [100, 500], "points": [4, 9]}]
    table = TABLE.model_validate({**TABLE.model_dump(), "factors": factors})
    result = Scorecard(table=table).assess(weighed(given_for(QUERY, *texts), COMMON))
    assert result.factors[0].text == f"the shortest returned unit has {text} points"
    assert result.coverage == round(result.factors[0].points / 9, 6)


def test_settings_stand_in_the_assessment() -> None:
    """Everything that decides is there: each sign's edges and points, and which threshold was taken."""
    result = card("The pump.")
    assert (result.assessor, result.settings["setting"]) == ("scorecard", "default")
    assert result.settings["points"]["lead"] == [[0.1, 0.2], [10, 30]]
    assert IdfCoverage(default_threshold=0.7).settings == {"default_threshold": 0.7}


def test_a_setting_names_a_threshold() -> None:
    """Each setting of the table gives its own default threshold; one that there is not is refused by name."""
    assert (CARD.default_threshold, Scorecard(table=TABLE, setting="economy").default_threshold) == (0.5, 0.25)
    assert {Scorecard(setting=name).default_threshold for name in ("default", "economy", "quality")} == set(
        shipped_scorecard().thresholds.values()
    )
    with pytest.raises(ConfigurationError, match=r"setting: one of default, economy \(got 'quality'\)"):
        Scorecard(table=TABLE, setting="quality")


# What keeps a result from being sufficient


@ASSESSORS
def test_a_missing_identifier_is_a_veto(assessor: Any) -> None:
    """An identifier that no returned unit holds exactly keeps from sufficient, at any threshold, and is named."""
    terms = {"hx-200": 3.0, "pump": 2.0}
    given = weighed(given_for("HX-200 pump", "The HX-2000 pump, HX 200."), dict.fromkeys(terms, 9), terms)
    result = assessor.assess(given.model_copy(update={"threshold": 0.0}))
    assert not result.sufficient
    assert "identifiers held exactly by no returned unit: hx-200" in result.reasons
    held = weighed(given_for("HX-200 pump", "The HX-2000 pump.", "hx\u2011200"), dict.fromkeys(terms, 9), terms)
    assert assessor.assess(held.model_copy(update={"threshold": 0.0})).sufficient


@ASSESSORS
@pytest.mark.parametrize(("units", "is_veto"), [(0, False), (1, True), (RARE, True), (RARE + 1, False)])
def test_a_rare_word_that_was_not_found_is_a_veto(assessor: Any, units: int, is_veto: bool) -> None:
    """A word of few units keeps from sufficient where no returned unit holds it; one that no unit holds does not."""
    given = weighed(given_for(QUERY, "The pump has a seal."), COMMON | {"leaks": units})
    result = assessor.assess(given.model_copy(update={"threshold": 0.0}))
    assert result.sufficient is not is_veto
    named = f"rare words (in 1 to {RARE} units) held by no returned unit: leaks"
    assert (named in result.reasons) is is_veto


@ASSESSORS
@pytest.mark.parametrize(("unknown", "is_veto"), [(["leaks"], False), (["seal", "leaks"], True), ([*HEAVY], True)])
def test_two_words_that_no_unit_holds_are_a_veto(assessor: Any, unknown: list[str], is_veto: bool) -> None:
    """One word that the index does not know keeps nothing from sufficient; two or more do, and are named in order."""
    text = " ".join(word for word in HEAVY if word not in unknown) or "nothing"
    given = weighed(given_for(QUERY, text), COMMON | dict.fromkeys(unknown, 0))
    result = assessor.assess(given.model_copy(update={"threshold": 0.0}))
    assert result.sufficient is not is_veto
    assert (f"words that no unit holds (2 or more): {', '.join(unknown)}" in result.reasons) is is_veto


@ASSESSORS
def test_a_rare_word_in_another_unit_or_form_is_no_veto(assessor: Any) -> None:
    """It is enough that some returned unit has a form of it; a unit too long to fit does not count."""
    found = weighed(given_for(QUERY, "The pump has a seal.", "Leaking."), COMMON | {"leaks": 1})
    assert assessor.assess(found.model_copy(update={"threshold": 0.0})).sufficient
    long = weighed(given_for(QUERY, "The pump has a seal.", "Leaking. " * MAX_CHARS), COMMON | {"leaks": 1})
    assert not assessor.assess(long.model_copy(update={"threshold": 0.0})).sufficient


@ASSESSORS
def test_a_word_whose_count_is_not_known_is_no_veto(assessor: Any) -> None:
    """A searcher that does not say how many units hold a word has not said that it is rare."""
    given = weighed(given_for(QUERY, "The pump."), {"pump": 9})
    assert assessor.assess(given.model_copy(update={"threshold": 0.0})).sufficient


@ASSESSORS
@pytest.mark.parametrize(("query", "texts"), [(QUERY, ()), (QUERY, ("x" * 500,)), ("?!", ("A pump.",))])
def test_nothing_to_go_by_is_never_sufficient(assessor: Any, query: str, texts: Any) -> None:
    """Without a unit that fits, or without a term, a threshold of 0 is reached and does not help."""
    result = assessor.assess(given_for(query, *texts).model_copy(update={"threshold": 0.0}))
    assert (result.coverage, result.sufficient) == (0.0, False)
    assert "nothing to go by" in result.reasons


# Without weights


@ASSESSORS
def test_without_weights_all_terms_count_alike(assessor: Any) -> None:
    """It says so, the lead gives nothing, no word is known to be rare, and identifiers are vetoes all the same."""
    given = given_for(QUERY, "The pump has a seal.", scores=(9.0,)).model_copy(update={"threshold": 0.0})
    result = assessor.assess(given)
    assert result.sufficient
    assert result.reasons[-1].startswith("the lexical searcher gives no weights")
    values = {each.name: each.value for each in result.factors}
    assert values["coverage"] == round(2 / 3, 6)
    assert values.get("lead", 0.0) == 0.0
    unheld = given_for("HX-200 pump", "The pump.").model_copy(update={"threshold": 0.0})
    assert not assessor.assess(unheld).sufficient


# Queries at the edge


EDGE_QUERIES = [
    "the of and",
    "HX-200",
    "装置が再起動します",
    "?!",
    "a " * 900,
    "pump " * 300,
    "\ufffd",
    "Ünïcödé pumps",
    "1 2 3",
]


@ASSESSORS
@pytest.mark.parametrize("query", EDGE_QUERIES)
@pytest.mark.parametrize("texts", [(), ("The HX-200 pump.",), ("装置が再起動します。", "the of and")])
def test_odd_queries_are_assessed(assessor: Any, query: str, texts: Any) -> None:
    """Stop words only, an identifier only, other scripts, repeats: a share from 0 to 1, and a veto or a comparison."""
    given = given_for(query, *texts, scores=(2.0, 1.0)[: len(texts)])
    terms = dict.fromkeys(given.query_terms.terms, 1.5)
    for each in (given, weighed(given, dict.fromkeys(terms, 9), terms) if terms else given):
        result = assessor.assess(each)
        assert 0 <= result.coverage <= 1
        assert result.sufficient <= (result.coverage >= each.threshold)
        assert any(" 0.5" in reason for reason in result.reasons)


# Properties


def points_in(result: CoverageAssessment) -> list[tuple[int, int]]:
    """The points that each reason names, and the most of them."""
    found = [re.search(r": (\d+) of (\d+) points$", each.text) for each in result.factors]
    return [(int(match.group(1)), int(match.group(2))) for match in found if match]


results = st.lists(st.tuples(sentence, st.floats(0, 9).map(lambda value: round(value, 2))), min_size=1, max_size=4)
queries = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
heavy = st.dictionaries(st.sampled_from(WORDS), st.floats(0.1, 9).map(lambda value: round(value, 2)))


def drawn(query: str, rows: Any, weights: Any) -> AssessmentInput:
    """A result, its rows by falling score."""
    ordered = sorted((row[1] for row in rows), reverse=True)
    given = given_for(query, *(row[0] for row in rows), scores=tuple(ordered))
    terms = {term: weights.get(term, 1.0) for term in given.query_terms.terms}
    return weighed(given, dict.fromkeys(terms, 9), terms)


@untimed
@given(queries, results, heavy)
def test_what_is_shown_is_what_counted(query: str, rows: Any, weights: Any) -> None:
    """The points in the reasons are the table's for the values shown, and their share is what was compared."""
    result = Scorecard().assess(drawn(query, rows, weights))
    table = {factor.name: factor for factor in shipped_scorecard().factors}
    shown = points_in(result)
    assert [(each.points, table[each.name].points[-1]) for each in result.factors] == shown
    assert [table[each.name].of(each.value) for each in result.factors] == [points for points, _ in shown]
    assert result.coverage == round(sum(points for points, _ in shown) / sum(most for _, most in shown), 6)
    assert [each.text for each in result.factors] == list(result.reasons[: len(shown)])


@untimed
@given(queries, results, heavy, sentence)
def test_more_text_never_lowers_the_share(query: str, rows: Any, weights: Any, more: str) -> None:
    """A unit whose text goes on, with the same scores, is worth no less: no word or phrase that was there is gone."""
    (text, score), *others = rows
    longer = f"{text} {more}"
    assume(len(longer) <= MAX_CHARS)
    shorter, fuller = (drawn(query, [(each, score), *others], weights) for each in (text, longer))
    for assessor in (Scorecard(), IdfCoverage()):
        assert assessor.assess(shorter).coverage <= assessor.assess(fuller).coverage


@untimed
@given(queries, results, heavy, st.floats(0, 5))
def test_a_wider_lead_never_lowers_the_share(query: str, rows: Any, weights: Any, gain: float) -> None:
    """With everything else the same, a better best score is worth no less."""
    given = drawn(query, rows, weights)
    first, *others = given.candidates
    better = first.model_copy(update={"score": (first.score or 0.0) + gain})
    raised = given.model_copy(update={"candidates": (better, *others)})
    assume(len(others) > 0)
    assert Scorecard().assess(given).coverage <= Scorecard().assess(raised).coverage


@untimed
@given(queries, results, heavy, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_threshold_never_makes_sufficient(
    query: str, rows: Any, weights: Any, one: float, other: float
) -> None:
    """What is not sufficient at a threshold is not at a higher one."""
    given = drawn(query, rows, weights)
    low, high = sorted((one, other))
    for assessor in (Scorecard(), IdfCoverage()):
        at_low, at_high = (assessor.assess(given.model_copy(update={"threshold": at})) for at in (low, high))
        assert at_high.sufficient <= at_low.sufficient
