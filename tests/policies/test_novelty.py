from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bounded_retrieval.policies import novelty
from bounded_retrieval.policies.novelty import (
    DEFAULT_SIMILARITY,
    count_new,
    find_repeat,
    is_novel,
    normalise_query,
    similarity,
)

WORDS = st.sampled_from(["pump", "valve", "gate", "the", "of", "HX-200", "été", "水泵", "?", "\u2013"])
QUERIES = st.lists(WORDS, max_size=6).map(" ".join) | st.text(max_size=30)

SAME = [
    ("Who wrote Starfall?", "who wrote starfall"),
    ("Who wrote Starfall?", "  WHO \n wrote\tStarfall ?! "),
    ("Who wrote Starfall?", "Starfall wrote who"),
    ("the author of Starfall", "author Starfall"),
    ("HX\u2013200 battery", "hx-200 battery"),
    ("café menu", "cafe\u0301 menu"),
    ("who was it", "Who was it?"),
    ("?", "!"),
]
OTHER = [
    ("Who wrote Starfall?", "Who printed Starfall?"),
    ("HX-200 battery", "HX-210 battery"),
    ("pump", "valve"),
    ("who was it", "where were they"),
    ("\U0001f600", "\U0001f4a7"),
    ("pump", ""),
]


@pytest.mark.parametrize(("left", "right"), SAME, ids=repr)
def test_another_spelling_is_the_same_query(left: str, right: str) -> None:
    """Case, white space, punctuation at the end, joining dashes, word order and stop words make no other query."""
    assert similarity(left, right) == 1.0


@pytest.mark.parametrize(("left", "right"), OTHER, ids=repr)
def test_another_word_is_another_query(left: str, right: str) -> None:
    """A query with a word of its own, or with nothing in common, stays below the default threshold."""
    assert similarity(left, right) < DEFAULT_SIMILARITY


def test_the_share_of_common_words_is_the_similarity() -> None:
    """Two of four distinct terms in common give one half."""
    assert similarity("red pump hums", "red pump drips") == 0.5


def test_stop_words_count_where_there_is_nothing_else() -> None:
    """Queries of stop words alone are compared by these."""
    assert similarity("who was it", "it was who") == 1.0
    assert 0 < similarity("who was it", "who was they") < 1


def test_only_the_end_loses_its_punctuation() -> None:
    """Punctuation inside a query stays in its normal form, and none is left at its end."""
    assert normalise_query("  A, B?  C?! . ") == "a, b? c"


@given(QUERIES, QUERIES)
def test_similarity_is_a_share_and_symmetric(left: str, right: str) -> None:
    """Any two queries give a number from 0 to 1, the same in either order."""
    assert similarity(left, right) == similarity(right, left)
    assert 0.0 <= similarity(left, right) <= 1.0


@given(QUERIES)
def test_a_query_is_like_itself(query: str) -> None:
    """Any query, also a blank one and one without terms, repeats itself in every spelling of case and ends."""
    for spelling in (query, f"  {query} ?", normalise_query(query)):
        assert similarity(query, spelling) == 1.0
    assert normalise_query(normalise_query(query)) == normalise_query(query)


@given(QUERIES, st.lists(QUERIES, max_size=6), st.floats(0.5, 1.0))
def test_a_repeat_is_the_closest_earlier_query(query: str, earlier: list[str], threshold: float) -> None:
    """Among queries that lack no term of this one, the first of the most similar; none below the threshold."""
    found = find_repeat(query, earlier, threshold)
    shares = [similarity(query, other) if novelty._terms(query) <= novelty._terms(other) else 0.0 for other in earlier]
    if not shares or max(shares) < threshold:
        assert found is None
    else:
        assert found == (shares.index(max(shares)) + 1, max(shares))


def test_no_earlier_query_is_no_repeat() -> None:
    """The first query repeats nothing, whatever the threshold."""
    assert find_repeat("pump", [], 0.5) is None
    assert find_repeat("", [], 0.5) is None


@pytest.mark.parametrize(("threshold", "found"), [(0.5, (1, 0.5)), (0.51, None)])
def test_the_threshold_itself_counts(threshold: float, found: object) -> None:
    """A similarity equal to the threshold is a repeat, one below it is none."""
    assert find_repeat("red pump", ["red pump drips often"], threshold) == found


def test_a_query_with_a_new_term_is_no_repeat() -> None:
    """A sub-answer put into a long question makes another question, however many words they share."""
    question = "state county river lake border east museum founder spouse capital city"
    assert similarity(f"{question} Tennessee", question) > 0.9
    assert find_repeat(f"{question} Tennessee", [question], 0.9) is None
    assert find_repeat(question, [f"{question} Tennessee"], 0.9) == (1, pytest.approx(11 / 12))


@pytest.mark.parametrize(
    ("one", "other"),
    [("who came before the king", "who came after the king"), ("more than 2 bars", "less than 2 bars")],
)
def test_opposite_questions_are_no_repeats(one: str, other: str) -> None:
    """Function words that turn a question round count as terms."""
    assert find_repeat(one, [other], 0.9) is None


@pytest.mark.parametrize(
    ("new", "units", "share", "novel"),
    [
        (0, 0, 0.0, False),
        (0, 5, 0.0, False),
        (1, 5, 0.0, True),
        (1, 1, 1.0, True),
        (4, 5, 1.0, False),
        (2, 4, 0.5, True),
        (2, 5, 0.5, False),
        (3, 5, 0.5, True),
        (0, 3, 1.0, False),
    ],
)
def test_novel_means_one_new_unit_and_the_share(new: int, units: int, share: float, novel: bool) -> None:
    """A hop is novel with at least one new unit and at least the declared share of new ones."""
    assert is_novel(new, units, share) is novel


@pytest.mark.parametrize(("new", "units", "share"), [(7, 25, 0.28), (7, 50, 0.14), (14, 25, 0.56)])
def test_the_exact_share_is_enough(new: int, units: int, share: float) -> None:
    """A hop with exactly the declared share of new units is novel."""
    assert is_novel(new, units, share)


@given(st.integers(0, 50), st.integers(0, 50), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))
def test_novelty_by_exact_fractions(new: int, known: int, share: float) -> None:
    """For shares that binary fractions hold exactly the rule is the fraction's."""
    units = new + known
    expected = new > 0 and Fraction(new, units) >= Fraction(share)
    assert is_novel(new, units, share) is expected


@given(st.lists(st.sampled_from("abcd")), st.lists(st.sampled_from("abcd")))
def test_new_units_are_counted_once(found: list[str], known: list[str]) -> None:
    """Each distinct unit that was not known counts once, however often it came."""
    assert count_new(found, known) == len([name for name in "abcd" if name in found and name not in known])
