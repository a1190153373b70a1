"""Words, sentences and candidate spans of a passage, for the extractive reader.

All scans go once from left to right; a sentence is cut after `MAX_SENTENCE_WORDS`, so the work per sentence is
bounded and the whole is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from bounded_retrieval.policies._reading_words import (
    ABBREVIATIONS,
    CONNECTORS,
    MONTHS,
    NUMBER_WORDS,
    PARTICIPLES,
    ROLE_WORDS,
)
from bounded_retrieval.policies.tokenize import STOP_WORDS

MAX_SENTENCE_WORDS: Final = 80
"""A longer sentence is read as several."""

MAX_SPAN_WORDS: Final = 12
"""Longest candidate, in words."""

MAX_SPAN_CHARS: Final = 200
"""Longest candidate, in characters."""

MAX_THING_WORDS: Final = 3
"""Longest ordinary noun phrase, in words."""

Shape = Literal["name", "quoted", "date", "year", "number", "thing"]
"""How a candidate looks, before anything is known about the question."""

_WORD: Final = re.compile(r"\d+(?:[.,]\d+)+|[^\W_]+(?:['\u2019][^\W_]+)*|&")
_YEAR: Final = re.compile(r"1[0-9]{3}s?|20[0-9]{2}s?")
_KEY_ENDINGS: Final = ("ing", "ers", "ors", "ies", "er", "or", "ed", "es", "s", "e", "y")
_MAX_KEY: Final = 6
_MIN_STEM: Final = 4
_QUOTES: Final = ('"', "\u201c", "\u201d", "``", "''")


class Word(NamedTuple):
    """A word with its place in the text, its lower-cased form, and the key under which its forms meet."""

    text: str
    start: int
    end: int
    lower: str
    key: str


class Sentence(NamedTuple):
    """Words first to last, and the how-manieth of its text it is, from 0."""

    words: Sequence[Word]
    number: int


class Span(NamedTuple):
    """Words ``first`` to ``last`` (exclusive) of a sentence as a candidate."""

    first: int
    last: int
    shape: Shape


def word_key(lower: str) -> str:
    """A short stem: ``directed``, ``director`` and ``directs`` share one."""
    if lower.endswith(("'s", "\u2019s")):
        lower = lower[:-2]
    if lower.isalpha():
        for ending in _KEY_ENDINGS:
            if lower.endswith(ending) and len(lower) - len(ending) >= _MIN_STEM:
                lower = lower[: -len(ending)]
                break
        return lower[:_MAX_KEY]
    return lower


def words_of(text: str) -> list[Word]:
    """All words of a text in order."""
    words = []
    for match in _WORD.finditer(text):
        lower = match.group().lower()
        words.append(Word(match.group(), match.start(), match.end(), lower, word_key(lower)))
    return words


def sentences_of(text: str) -> Iterator[Sentence]:
    """The sentences of a text, each with at least one word."""
    words = words_of(text)
    first = number = 0
    for i in range(1, len(words) + 1):
        if i == len(words) or i - first >= MAX_SENTENCE_WORDS or _ends(text, words[i - 1], words[i]):
            yield Sentence(words[first:i], number)
            first, number = i, number + 1


def _ends(text: str, left: Word, right: Word) -> bool:
    gap = text[left.end : right.start]
    if "\n\n" in gap or "\u3002" in gap or "!" in gap or "?" in gap:
        return True
    if "." not in gap or gap == "." or right.text[0].islower():
        return False
    return len(left.text) > 1 and left.lower not in ABBREVIATIONS


def spans_of(text: str, words: Sequence[Word], *, things: bool) -> list[Span]:
    """The candidates of a sentence: names, dates, numbers, quoted titles; with ``things``, also noun phrases."""
    spans = [*_names(text, words), *_figures(words), *_quoted(text, words)]
    if things:
        spans.extend(_things(text, words))
    return list(dict.fromkeys(spans))


def _joined(text: str, left: Word, right: Word) -> bool:
    """Whether nothing but a space, a hyphen or an initial's stop stands between two words."""
    gap = text[left.end : right.start] if right.start - left.end <= 3 else "#"  # noqa: PLR2004 - " - "
    if gap.strip(" ") in ("", "-"):
        return True
    return gap.strip(" ") == "." and (len(left.text) == 1 or left.lower in ABBREVIATIONS)


def _capital(word: Word) -> bool:
    return word.text[0].isupper() and not (word.lower in STOP_WORDS and word.lower not in ("us", "may", "will"))


def _names(text: str, words: Sequence[Word]) -> Iterator[Span]:
    """Each capitalised run, and the parts of it that are names too."""
    i = 0
    while i < len(words):
        if not _capital(words[i]):
            i += 1
            continue
        last, cuts = _name_end(text, words, i)
        if not all(word.lower in MONTHS or word.text[0].isdigit() for word in words[i:last]):
            if last - i <= MAX_SPAN_WORDS:
                yield Span(i, last, "name")
            yield from _name_parts(words, i, last, cuts)
        i = last


def _name_parts(words: Sequence[Word], first: int, last: int, cuts: Sequence[int]) -> Iterator[Span]:
    """What follows the last word of rank, and the pieces between connectors."""
    role = next((at for at in range(last - 2, first - 1, -1) if words[at].lower in ROLE_WORDS), None)
    if role is not None and last - role <= MAX_SPAN_WORDS:
        yield Span(role + 1, last, "name")
    for start, end in pairwise([first - 1, *cuts, last]) if cuts else ():
        at = next((i for i in range(start + 1, end) if _capital(words[i])), end)
        if at < end:
            yield Span(at, end, "name")


def _name_end(text: str, words: Sequence[Word], first: int) -> tuple[int, list[int]]:
    """Where the name that starts at ``first`` ends, and where its connectors stand."""
    last, cuts = first + 1, []
    while last < len(words) and _joined(text, words[last - 1], words[last]):
        word = words[last]
        # The second half of a name like "Jong-il" counts too.
        hyphened = text[words[last - 1].end : word.start] == "-"
        if _capital(word) or word.text.isdigit() or hyphened:
            last += 1
            continue
        ahead = _after_connectors(text, words, last)
        if ahead is None:
            break
        cuts.append(last)
        last = ahead + 1
    return last, cuts


def _after_connectors(text: str, words: Sequence[Word], first: int) -> int | None:
    """Where the name goes on behind one or two connectors ("of", "of the"), or none if it does not."""
    if words[first].lower not in CONNECTORS or words[first].lower == "the":
        return None
    for ahead in range(first + 1, min(first + 3, len(words))):
        if not _joined(text, words[ahead - 1], words[ahead]):
            return None
        if _capital(words[ahead]):
            return ahead
        if words[ahead].lower not in CONNECTORS:
            return None
    return None


def _figures(words: Sequence[Word]) -> Iterator[Span]:
    for i, word in enumerate(words):
        if word.lower in NUMBER_WORDS or word.text[-1].isdigit() or _YEAR.fullmatch(word.text):
            yield Span(i, i + 1, "year" if _YEAR.fullmatch(word.text) else "number")
            if i and words[i - 1].text.isdigit() and word.lower in ("million", "billion", "thousand"):
                yield Span(i - 1, i + 1, "number")
        elif word.lower in MONTHS and word.text[0].isupper():
            yield from _dates(words, i)


def _dates(words: Sequence[Word], month: int) -> Iterator[Span]:
    """The date around a month's name: day before or after, then the year."""
    first, last = month, month + 1
    if month and _is_day(words[month - 1]):
        first -= 1
    elif last < len(words) and _is_day(words[last]):
        last += 1
    if last < len(words) and _YEAR.fullmatch(words[last].text):
        last += 1
    if last - first > 1:
        yield Span(first, last, "date")


def _is_day(word: Word) -> bool:
    digits = word.lower.removesuffix("th").removesuffix("st").removesuffix("nd").removesuffix("rd")
    return digits.isdigit() and len(digits) <= 2  # noqa: PLR2004 - two digits


def _quoted(text: str, words: Sequence[Word]) -> Iterator[Span]:
    """What stands between two quotation marks; those before and after a word look the same in plain text."""
    opened: int | None = None
    for i, word in enumerate(words):
        before = text[max(words[i - 1].end if i else 0, word.start - 2) : word.start]
        if before.endswith(_QUOTES):
            opened = i
        after = text[word.end : word.end + 4].lstrip(" ,.")
        if opened is not None and after.startswith(_QUOTES):
            if i - opened < MAX_SPAN_WORDS:
                yield Span(opened, i + 1, "quoted")
            opened = None


def _things(text: str, words: Sequence[Word]) -> Iterator[Span]:
    """Up to three lower-case words in a row, none of them a function word."""
    i = 0
    while i < len(words):
        last = i
        while last < len(words) and _plain(words[last]) and (last == i or _joined(text, words[last - 1], words[last])):
            last += 1
        for first in range(i, last):
            for end in range(first + 1, min(last, first + MAX_THING_WORDS) + 1):
                yield Span(first, end, "thing")
        i = max(last, i + 1)


def _plain(word: Word) -> bool:
    return word.text[0].islower() and word.lower not in STOP_WORDS and word.lower not in PARTICIPLES
