from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bounded_retrieval.contracts.candidate import Unit, searchable_text
from bounded_retrieval.policies.coverage import Observer, observe, retain_terms
from bounded_retrieval.policies.tokenize import WantedStems, stems_of, tokenize

LETTERS = "abcdefghijklmnopqrstuvwxyzY"
IRREGULAR = ("skis", "skies", "dying", "lying", "tying", "idly", "gently", "ugly", "early", "only", "singly")
SUFFIXES = ("ed", "eds", "edly", "ing", "ings", "ingly", "ied", "ies", "ly", "eed", "eedly", "ying", "yed", "ness")
ENDINGS = ("", "s", "es", "ed", "ing", "ly", "ies", "ied", "ational", "fulness", "y", "ying", "'s")
words = st.one_of(
    st.text("abcdefghijklmnopqrstuvwxyzY", min_size=1, max_size=9),
    st.builds(str.__add__, st.text("aeioustly", min_size=1, max_size=4), st.sampled_from(ENDINGS)),
    st.sampled_from(IRREGULAR),
    st.sampled_from(("hx-200", "café", "東京", "x", "Yet", "yYy", "2026", "")),
)
ordinary = settings(deadline=None, max_examples=400)


@ordinary
@given(st.lists(words, max_size=30), st.lists(words, max_size=6))
def test_places_are_those_among_the_stems_of_all_words(text: list[str], query: list[str]) -> None:
    """Stemming only words that begin as a wanted stem does finds what stemming every word finds."""
    wanted = frozenset(stems_of(query))
    expected: dict[str, list[int]] = {}
    for place, stem in enumerate(stems_of(text)):
        if stem in wanted:
            expected.setdefault(stem, []).append(place)
    assert WantedStems(wanted).places(text) == expected


@ordinary
@given(st.lists(st.lists(words, max_size=10), max_size=4), st.lists(words, max_size=6))
def test_texts_looked_through_earlier_change_nothing(texts: list[list[str]], query: list[str]) -> None:
    """What is remembered of one text's words finds the same in the next one as a fresh look does."""
    wanted = WantedStems(stems_of(query))
    assert [wanted.places(text) for text in texts] == [WantedStems(wanted.stems).places(text) for text in texts]


def test_every_short_word_and_every_inflected_one_is_found_by_its_stem() -> None:
    """No word of up to three letters, and none that ends in a suffix after up to two, is passed over."""
    starts = ["".join(letters) for size in (1, 2) for letters in product(LETTERS, repeat=size)]
    inflected = [start + ending for start in starts for ending in SUFFIXES]
    short = ["".join(letters) for letters in product(LETTERS, repeat=3)]
    every = [*starts, *short, *inflected, *IRREGULAR]
    passed_over = [
        word
        for word, stem in zip(every, stems_of(every), strict=True)
        if WantedStems([stem]).places([word]) != {stem: [0]}
    ]
    assert passed_over == []


@ordinary
@given(st.lists(words, max_size=30), st.lists(words, min_size=1, max_size=6), st.booleans())
def test_an_observer_says_what_is_said_of_each_unit_alone(text: list[str], query: list[str], long: bool) -> None:
    """One observer of several units states the same facts as one for each, and keeps the places of those that fit."""
    terms = retain_terms(" ".join(query))
    texts = {"first": " ".join(text), "second": " ".join([*query, *text])}
    units = [
        Unit(unit_id=name, fingerprint="", title="", text=each or " ", metadata={}) for name, each in texts.items()
    ]
    most = 1 if long else 4000
    observer = Observer(terms, most, tokenize, stems_of)
    together = [observer.observe(unit) for unit in units]
    assert together == [observe(terms, unit, most, stem=stems_of) for unit in units]
    wanted = frozenset(stems_of(list(terms.terms)))
    assert observer.places == {
        unit.unit_id: WantedStems(wanted).places(tokenize(searchable_text("", unit.text if seen.fits else "")))
        for unit, seen in zip(units, together, strict=True)
    }


@pytest.mark.parametrize(
    ("tokenizer", "stem", "places"),
    [
        (tokenize, stems_of, {"pump": [1, 3], "hum": [4]}),
        (str.split, stems_of, {"pump": [3]}),
        (tokenize, None, {"hum": [4]}),
        (tokenize, lambda found: [word[:3] for word in found], {"pum": [1, 3], "hum": [4]}),
    ],
)
def test_places_are_those_of_the_searchers_own_words_and_forms(tokenizer: Any, stem: Any, places: Any) -> None:
    """Whatever tokenizer and stems it has: they are where the unit is said to hold the terms."""
    observer = Observer(retain_terms("pumps hum"), 100, tokenizer, stem)
    unit = Unit(unit_id="u", fingerprint="", title="", text="The pump. A pump hum!", metadata={})
    held = observer.observe(unit).matched_terms
    assert observer.places == {"u": places}
    assert held == tuple(term for term, form in observer.forms.items() if form in places)
