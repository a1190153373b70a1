from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bounded_retrieval.policies.tokenize import (
    STOP_WORDS,
    find_identifiers,
    fold,
    index_terms,
    search_terms,
    stems_of,
    tokenize,
    words_and_parts,
)

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

any_text = st.text(st.characters(codec=None), max_size=200)

TERMS = [
    ("Replace the BATTERY!", ["replace", "the", "battery"]),
    ("it's state-of-the-art", ["it", "s", "state", "of", "the", "art"]),
    ("snake_case", ["snake", "case"]),
    ("Café crème, naïve Übermaß", ["cafe", "creme", "naive", "ubermass"]),
    ("Cafe\u0301", ["cafe"]),
    ("Ώρα Ελλάδα", ["ωρα", "ελλαδα"]),
    ("й ё", ["й", "ё"]),
    ("\uff26\uff35\uff2c\uff2c\u3000\uff57\uff49\uff44\uff54\uff48 \uff11\uff12", ["full", "width", "12"]),
    ("ﬁne ①", ["fine", "1"]),
    ("co\u00adoperate zero\u200bwidth", ["cooperate", "zerowidth"]),
    ("装置", ["装置"]),
    ("装置が", ["装置", "置が"]),
    ("字", ["字"]),
    ("装置を再起動", ["装置", "置を", "を再", "再起", "起動"]),
    ("한국어 문서", ["한국어", "문서"]),
    ("हिन्दी किताब", ["हिन्दी", "किताब"]),
    ("தமிழ்", ["தமிழ்"]),
    ("مرحبا بالعالم", ["مرحبا", "بالعالم"]),
    ("שלום עולם", ["שלום", "עולם"]),
    ("2024 3.5", ["2024", "3", "5"]),
    ("?! … —", []),
    ("", []),
    ("\ufffd \x00", []),
]

IDENTIFIERS = [
    ("HX-200", ("hx-200",)),
    ("hx\u2011200", ("hx-200",)),
    ("hx\u2010200 hx\u2013200 hx\u2212200", ("hx-200",)),
    ("\uff28\uff38\uff0d\uff12\uff10\uff10", ("hx-200",)),
    ("HX\u00ad-200", ("hx-200",)),
    ("KB5034441", ("kb5034441",)),
    ("\uff4b\uff42\uff15\uff10\uff13\uff14\uff14\uff14\uff11", ("kb5034441",)),
    ("v2.3.1", ("v2.3.1",)),
    ("Update to v2.3.1.", ("v2.3.1",)),
    ("(HX-200), 'HX-210'; HX-220!", ("hx-200", "hx-210", "hx-220")),
    ("HX-200 hx-200", ("hx-200",)),
    ("AB_12", ("ab_12",)),
    ("**HX-200** _HX-210_", ("hx-200", "hx-210")),
    ("装置HX-200を再起動", ("hx-200",)),
    ("装置hx\u2011200が", ("hx-200",)),
    ("HX-200은", ("hx-200",)),
    ("الجهاز HX-200 معطل", ("hx-200",)),
    ("जीHX-200", ("hx-200",)),
    ("\u0391\u0392-12", ("αβ-12",)),
    ("Ά1", ("ά1",)),
    ("БК-7", ("бк-7",)),
    ("battery 200 2024 3.5", ()),
    ("HX 200", ()),
    ("state-of-the-art", ()),
    ("19th 1st 1990s 15-year-old 21st-century", ()),
    ("a\u00f72 a\u00d72", ()),
    ("Việt2", ("việt2",)),
    ("İX-200", ()),
    ("", ()),
]


@pytest.mark.parametrize(("text", "terms"), TERMS)
def test_terms(text: str, terms: list[str]) -> None:
    """Words of any script, folded, without Latin and Greek accents; Han and kana runs in overlapping pairs."""
    assert tokenize(text) == terms


@pytest.mark.parametrize(("text", "identifiers"), IDENTIFIERS)
def test_identifiers(text: str, identifiers: tuple[str, ...]) -> None:
    """Letters with digits, joined by single dashes, dots or underscores, in order and without repeats."""
    assert find_identifiers(text) == identifiers


@pytest.mark.parametrize(
    "other",
    [
        "HX-2000",
        "HX-20",
        "HX 200",
        "HX200",
        "AHX-200",
        "HX-200-B",
        "HX-200B",
        "HX--200",
        "HX_200",
        "HX.200",
        "HX-200.1",
        "H X-200",
    ],
)
def test_lookalikes_are_other_identifiers(other: str) -> None:
    """Nothing but case, width and dash is folded: a near-identical identifier does not count as ``HX-200``."""
    assert "hx-200" not in find_identifiers(f"The {other} has no battery.")
    assert "hx-200" not in tokenize(f"The {other} has no battery.")


def test_an_identifier_is_one_term() -> None:
    """An identifier is not taken apart, and the words around it stay whole, also where they are glued to it."""
    assert tokenize("the HX-200 v2.3.1 probe") == ["the", "hx-200", "v2.3.1", "probe"]
    assert tokenize("装置HX-200を再起動") == ["装置", "hx-200", "を再", "再起", "起動"]


def test_the_parts_of_joined_identifiers_follow_the_terms() -> None:
    """An identifier is one term, and its parts come after all terms."""
    assert words_and_parts("HX-200 batteries") == ["hx-200", "batteries", "hx", "200"]
    assert words_and_parts("KB5034441") == ["kb5034441"]
    assert index_terms("HX-200 batteries") == ["hx-200", "batteri", "hx", "200"]


@pytest.mark.parametrize(
    ("forms", "stem"),
    [("pump pumps pumped pumping", "pump"), ("battery batteries", "batteri"), ("valve valves", "valv")],
)
def test_forms_of_a_word_share_a_stem(forms: str, stem: str) -> None:
    """Whichever form stands in the text, another one finds it."""
    assert set(index_terms(forms)) == {stem}


@pytest.mark.parametrize("term", ["hx-2000s", "v2.3.1", "kb5034441s", "ωραίος", "насосы", "東京", "1990s"])
def test_what_is_no_latin_word_has_no_stem(term: str) -> None:
    """Identifiers, numbers and other scripts stand in the index as they are."""
    assert stems_of([term]) == [term]


def test_stop_words_are_left_out_before_stemming() -> None:
    """``does`` is a stop word, ``doe`` is an animal; a query of stop words is searched for as it is."""
    assert search_terms("Does the doe being fed return?") == ["doe", "fed", "return"]
    assert search_terms("does being") == ["doe", "be"]
    assert search_terms("pump pumps pumping PUMP") == ["pump"]


@given(st.text(max_size=80))
def test_a_query_is_searched_for_by_terms_that_its_text_would_have(text: str) -> None:
    """Whatever is asked is found in a text of the same words."""
    assert set(search_terms(text)) <= set(index_terms(text))


def test_stems_are_the_same_from_many_threads() -> None:
    """Eight threads that stem at once disturb nobody."""
    words = [f"{word}{ending}" for word in ("pump", "filter", "valve", "sensor") for ending in ("s", "ing", "ed")] * 50
    expected = stems_of(words)
    with ThreadPoolExecutor(8) as pool:
        assert all(found == expected for found in pool.map(lambda _: stems_of(words), range(64)))


def test_composed_and_decomposed_text_have_the_same_terms() -> None:
    """The same letters written in another normal form are the same terms."""
    for composed, decomposed in (("é", "e\u0301"), ("한", "\u1112\u1161\u11ab"), ("が", "か\u3099"), ("क़", "क\u093c")):
        assert tokenize(composed) == tokenize(decomposed)


def test_stop_words_are_terms_of_this_tokenizer() -> None:
    """Every stop word is one term to the tokenizer, so that it can be recognised at all."""
    assert all(tokenize(word) == [word] for word in STOP_WORDS)


@untimed
@given(any_text)
def test_any_text_has_terms_and_always_the_same(text: str) -> None:
    """No text makes the tokenizer fail, and the same text always gives the same terms."""
    terms = tokenize(text)
    assert terms == tokenize(text)
    assert all(terms)
    assert set(find_identifiers(text)) <= set(terms)


@untimed
@given(any_text)
def test_case_does_not_matter(text: str) -> None:
    """Folding a text a second time changes nothing that the tokenizer sees."""
    assert find_identifiers(fold(text)) == find_identifiers(text)


@untimed
@given(any_text, any_text)
def test_lines_are_independent(first: str, second: str) -> None:
    """Terms of two paragraphs are the terms of the one and then those of the other."""
    assert tokenize(f"{first}\n\n{second}") == tokenize(first) + tokenize(second)


HALF = 500_000
PATTERNS = {
    "one word": "a",
    "dashes": "a-",
    "dotted": "a1.",
    "identifiers": "a.1 ",
    "ordinary": "-aaa",
    "words": "word wörd ",
    "han": "装置",
    "indic": "कि",
    "jamo": "\u1112\u1161\u11ab",
    "one kind of mark": "\u0300",
    "marks out of order": "\u0300\u0316",
    "marks with joiners": "\u0300\u0316" * 15 + "\u200d",
    "expanding": "\ufdfa" + " " * 17,
    "punctuation": "._-",
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
def test_a_megabyte_takes_linear_time(pattern: str) -> None:
    """Twice the text takes about twice the time, not four times, whatever it consists of."""
    text = "1" + pattern * (HALF // len(pattern))
    half = min(seconds(text) for _ in range(3))
    whole = min(seconds(text + text) for _ in range(3))
    assert whole < 3.4 * half + 0.3


def seconds(text: str) -> float:
    """Processor time of this thread, which other processes do not lengthen."""
    started = time.thread_time()
    tokenize(text)
    return time.thread_time() - started
