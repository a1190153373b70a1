"""Turn text into terms and find exact identifiers in it.

One tokenizer serves the lexical index and the coverage assessment, so that a term is missing for both or for
neither.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from string import ascii_letters

import Stemmer

from bounded_retrieval.contracts.normalise import DASHES

TOKENIZER_NAME = "unicode-1"
"""Changes whenever the terms of any text change."""

INDEX_TERMS_NAME = "unicode-1, english stems, titles twice"
"""Changes whenever what is indexed of any text changes; an index records it."""

STOP_WORDS = frozenset(
    """
    a about after all also am an and any are as at be because been before being between but by can could did do does
    doing during each for from had has have having he her hers him his how i if in into is it its just many may me
    might more most much must my no nor not of off on once only or other our ours out over own same shall she should
    so some such than that the their theirs them then there these they this those through to too under until up us
    very was we were what when where which while who whom whose why will with would you your yours
    """.split()  # noqa: SIM905 - sixteen dozen quoted words would be harder to read
)
"""English function words; they are not asked for in lexical search and do not count for coverage."""

# Combining marks that carry vowels in Indic, Arabic and other scripts are no word characters for ``re``; without
# them a word would fall apart.
_MARKS = "".join(chr(code) for code in range(0x0300, 0x1E00) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
_WORD = re.compile(rf"[^\W_](?:[^\W_]|[{_MARKS}])*")
# The em dash and the horizontal bar part clauses too; only from a letter to a digit they join.
_LONG_DASH = re.compile("(?<=[^\\W\\d_])[\u2014\u2015](?=\\d)")
# NFKC would glue the letters TM to the name before them.
_MARKED = re.compile("[\u00a9\u00ae\u2120\u2122]")
_IGNORED = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")
_LATIN_ACCENT = re.compile("(?<=[\u0000-\u03ff])[\u0300-\u036f]+")

# Normalising takes time quadratic in the length of a run of combining marks. Unicode's stream-safe format (UAX #15)
# allows 30 in a run; no language needs more, so what goes beyond is left out.
_NONSTARTERS = "".join(chr(code) for code in range(0x0300, 0x1E950) if unicodedata.combining(chr(code)))
_LONG_MARKS = re.compile(f"([{_NONSTARTERS}]{{30}})[{_NONSTARTERS}]+")

# Letters and digits of alphabetic scripts; scripts written without spaces would glue a sentence to an identifier.
_ID_CHARS = "0-9a-z\u00df-\u00f6\u00f8-\u024f\u0390-\u03ce\u0430-\u052f\u1e00-\u1fbc"
_IDENTIFIER = re.compile(rf"(?<![{_ID_CHARS}\u0300-\u036f])[{_ID_CHARS}]+(?:[-._][{_ID_CHARS}]+)*(?![{_ID_CHARS}])")
_MEASURES = (
    "bit|day|door|fold|foot|high|hour|inch|kilometer|kilometre|long|man|member|meter|metre|mile|minute|month|old|page|"
    "part|person|point|pound|seat|second|step|storey|story|time|way|week|wheel|wide|year"
)
_DIGIT = re.compile("[0-9]")
_ASCII_WORD = re.compile("[0-9a-z]+")
_ORDINARY = re.compile(
    rf"\d+s?|\d+(?:st|nd|rd|th)(?:-[^\W\d_]+)*|\d+(?:-(?:{_MEASURES})s?)+|(?:early|late|mid|post|pre)-\d+s?"
)

_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]+")


def fold(text: str) -> str:
    """NFKC, case folded, every joining dash as ``-``, invisible joiners and trade marks removed."""
    if not text.isascii():
        text = _LONG_MARKS.sub(r"\1", _IGNORED.sub("", _MARKED.sub(" ", text)))
        text = DASHES.sub("-", _LONG_DASH.sub("-", unicodedata.normalize("NFKC", text)))
    return text.casefold()


def find_identifiers(text: str) -> tuple[str, ...]:
    """Device-style identifiers in order of first appearance, folded, without repeats.

    An identifier is a longest run of letters and digits, joined inside by single ``-``, ``.`` or ``_``, that holds
    at least one letter and one digit: ``hx-200``, ``kb5034441``, ``v2.3.1``. Ordinals, decades and measures written
    as words (``19th``, ``1990s``, ``mid-1990s``, ``15-year-old``) are not.
    """
    return tuple(dict.fromkeys(_identifiers_in(fold(text))))


def tokenize(text: str) -> list[str]:
    """Terms of a text in order, repeats kept.

    Words are runs of letters and digits of any script, folded (see `fold`), Latin and Greek accents removed.
    An identifier is one term and is not taken apart. Han and kana runs, written without spaces, give overlapping
    pairs of characters (a single character gives itself).
    """
    folded = fold(text)
    if _DIGIT.search(folded) is None:
        return _words_in(folded)
    terms: list[str] = []
    position = 0
    for match in _IDENTIFIER.finditer(folded):
        if _is_identifier(match.group()):
            terms.extend(_words_in(folded[position : match.start()]))
            terms.append(match.group())
            position = match.end()
    terms.extend(_words_in(folded[position:]))
    return terms


def words_and_parts(text: str) -> list[str]:
    """The terms of a text, and after them the parts of each joined identifier.

    ``HX-200`` gives ``hx-200``, ``hx`` and ``200``, so that an exact match ranks first and a partial one still
    ranks.
    """
    terms = tokenize(text)
    joined = [term for term in terms if not term.isalnum()]
    return terms + [part for term in joined for part in _words_in(term) if part != term]


def index_terms(text: str) -> list[str]:
    """What the lexical index holds for a text: `words_and_parts`, each word as its stem (see `stems_of`)."""
    return stems_of(words_and_parts(text))


def search_terms(query: str) -> list[str]:
    """What of a query the lexical index is searched for: distinct stems of its words, stop words left out.

    A query of stop words only is searched for all of them.
    """
    words = dict.fromkeys(words_and_parts(query))
    telling = [word for word in words if word not in STOP_WORDS]
    return list(dict.fromkeys(stems_of(telling or list(words))))


def stems_of(words: list[str]) -> list[str]:
    """The English (Porter 2) stem of each word of the letters a to z; every other term unchanged.

    Accents are gone by then, so a word that had some is stemmed too. Source: Porter's Snowball project, its algorithm
    ``english``.
    """
    # A stemmer is not to be shared between threads; making one takes about a microsecond. Its own cache slows it down.
    stem = Stemmer.Stemmer("english", 0).stemWord
    return [stem(word) if word.isascii() and word.isalpha() else word for word in words]


class WantedStems:
    """Looks for the same stems in one text after another. Not to be shared between threads.

    Finds what looking them up among `stems_of` of all words would find. Most words are not wanted and need not be
    stemmed: an English stem begins with its word's first two letters, but for the exceptions in `_beginnings`.

    Attributes:
        stems: those wanted.
    """

    def __init__(self, stems: Iterable[str]) -> None:
        self.stems = frozenset(stems)
        self._begin = _beginnings(self.stems)
        self._stem = Stemmer.Stemmer("english", 0).stemWord
        self._known: dict[str, str] = {}

    def places(self, words: Sequence[str]) -> dict[str, list[int]]:
        """At which places among a text's words each wanted stem stands; one that stands nowhere is left out."""
        begin, known, stems = self._begin, self._known, self.stems
        places: dict[str, list[int]] = {}
        for place, word in enumerate(words):
            if word[:2] in begin:
                form = known.get(word)
                if form is None:
                    form = known[word] = self._stem(word) if word.isascii() and word.isalpha() else word
                if form in stems:
                    places.setdefault(form, []).append(place)
        return places


def _beginnings(stems: Collection[str]) -> frozenset[str]:
    """The first two letters of all words that have one of these stems, and of some others."""
    found = {stem[:2] for stem in stems}
    found.update(each + letter for each in [*found] if len(each) == 1 for letter in ascii_letters)  # aing: a
    found.update(each[0] + "y" for each in [*found] if each.endswith("i"))  # dying: die
    for each in [each for each in found if "y" in each]:  # a word of any tokenizer may hold Y; its stem has y then
        found.update(map("".join, product(*("yY" if letter == "y" else letter for letter in each))))
    return frozenset(found)


def _identifiers_in(folded: str) -> list[str]:
    if _DIGIT.search(folded) is None:
        return []
    return [match.group() for match in _IDENTIFIER.finditer(folded) if _is_identifier(match.group())]


def _is_identifier(run: str) -> bool:
    if run.isalpha() or run.isdigit():
        return False
    has_digit = any(char.isdigit() for char in run)
    has_letter = any(char.isalpha() for char in run)
    return has_digit and has_letter and _ORDINARY.fullmatch(run) is None


def _words_in(folded: str) -> list[str]:
    if folded.isascii():
        return _ASCII_WORD.findall(folded)
    folded = _without_accents(folded)
    words: list[str] = []
    for word in _WORD.findall(folded):
        words.extend([word] if word.isascii() else _split_unspaced(word))
    return words


def _without_accents(folded: str) -> str:
    decomposed = unicodedata.normalize("NFD", folded)
    return unicodedata.normalize("NFC", _LATIN_ACCENT.sub("", decomposed))


def _split_unspaced(word: str) -> list[str]:
    pieces: list[str] = []
    position = 0
    for match in _UNSPACED.finditer(word):
        if match.start() > position:
            pieces.append(word[position : match.start()])
        run = match.group()
        pieces.extend(run[i : i + 2] for i in range(max(1, len(run) - 1)))
        position = match.end()
    if position < len(word):
        pieces.append(word[position:])
    return pieces
