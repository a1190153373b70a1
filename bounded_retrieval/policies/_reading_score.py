"""How well a candidate span answers a question: declared features, and the declared weight of each.

The weights were fitted once, on half of a public multi-hop collection, and are constants here: the score of a span is
the weighted sum of its features and can be read off `Scored.features`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bounded_retrieval.policies._reading_question import Question
from bounded_retrieval.policies._reading_text import MAX_SPAN_CHARS, Sentence, Shape, Span, Word, spans_of
from bounded_retrieval.policies._reading_words import (
    ADJECTIVE_ENDINGS,
    CONTINENTS,
    COUNTRIES,
    GROUP_WORDS,
    PERSON_WORDS,
    PLACE_WORDS,
    STATES,
    Kind,
)
from bounded_retrieval.policies.tokenize import STOP_WORDS

WEIGHTS: Final[Mapping[str, float]] = {
    "shape": 1.5,  # a date where a date is asked for, a name where a name is
    "kind": 2.0,  # the words of a name speak for the kind asked for, or against it
    "head": 0.4,  # holds the asked-for noun: "which river", "Atbarah River"
    "sentence": 2.0,  # how much of the question its sentence and title hold
    "document": 0.2,  # how much of the known name the title holds
    "whole_name": 1.6,  # its sentence and title together hold all of the known name
    "titled": 1.2,  # how much of the title the question holds
    "cued": 0.6,  # a word of the relation stands in its sentence
    "cue_left": 1.1,  # a word of the relation stands close before it
    "terms": 0.5,  # the question's other words are close
    "entity_left": 0.7,  # the known name stands close before it
    "bracket": 0.6,  # in brackets right behind the known name
    "preposition": 0.9,  # behind the preposition that goes with the kind: "by" and a person
    "life": 0.9,  # where "(2 May 1900, Rome - 3 June 1970, Paris)" puts birth and death
    "lead": 1.0,  # in an early sentence
    "early": 0.4,  # early in its sentence
    "subject": -0.3,  # the first word of its sentence
    "copula": -0.3,  # right after "is" or "was"
    "overlap": 0.4,  # the share of its words that the question holds
    "title": 0.4,  # it stands in the title
    "long": 0.4,  # its length in words, up to six
    "whole_date": 0.1,  # a date with its year, where no bare year is asked for
    "rank": 0.9,  # in a passage that was given first
}
"""The weight of each feature."""

_CLOSED: Final[Mapping[Kind, frozenset[str]]] = {"country": COUNTRIES, "continent": CONTINENTS, "state": STATES}
# Figures have no words that speak for a kind; this puts their scores level with those of names.
_FIT_BY_SHAPE: Final[Mapping[Shape, float]] = {"date": 0.4, "year": 0.4, "number": 0.4}
_PERSON_LENGTHS: Final = range(2, 5)
_BOUND_WORDS: Final = 6
_LIFE_CHARS: Final = 25
_PLACE_PREPOSITIONS: Final = frozenset("in at near from to of into around".split())  # noqa: SIM905
_PREPOSITIONS: Final[Mapping[Kind, frozenset[str]]] = {
    "person": frozenset({"by"}),
    "group": frozenset({"at", "for", "by", "with", "of"}),
    "date": frozenset({"in", "on", "since", "until"}),
    "place": _PLACE_PREPOSITIONS,
    "country": _PLACE_PREPOSITIONS,
    "continent": _PLACE_PREPOSITIONS,
    "state": _PLACE_PREPOSITIONS,
}
_SHAPES: Final[Mapping[Kind, Mapping[Shape, float]]] = {
    "date": {"date": 1.0, "year": 0.9, "number": -0.5},
    "number": {"number": 1.0, "year": 0.2},
    "thing": {"thing": 1.0, "name": 0.6, "quoted": 0.0},
    "name": {"name": 1.0, "quoted": 0.7, "thing": -0.5},
}
_YEAR_SHAPES: Final[Mapping[Shape, float]] = {"year": 1.0}
_NAME_SHAPES: Final[Mapping[Shape, float]] = {"name": 1.0, "quoted": 0.0}


@dataclass(frozen=True)
class Passage:
    """A passage as the scorer needs it; ``plain`` are its words that occur uncapitalised."""

    unit_id: str | None
    text: str
    title: frozenset[str]
    rank: int
    plain: frozenset[str]


@dataclass(frozen=True)
class Scored:
    """A candidate with its features."""

    text: str
    unit_id: str | None
    features: Mapping[str, float]

    @property
    def score(self) -> float:
        """The weighted sum of the features."""
        return sum(WEIGHTS[name] * value for name, value in self.features.items())


class SentenceScorer:
    """Scores the candidates of one sentence.

    Args:
        question: what is asked.
        passage: where the sentence stands.
        sentence: its words.
        relevance: how much of the question the sentence holds.
    """

    def __init__(self, question: Question, passage: Passage, sentence: Sentence, relevance: float) -> None:
        self._question = question
        self._passage = passage
        self._words = sentence.words
        self._number = sentence.number
        self._relevance = relevance
        self._shapes = _YEAR_SHAPES if question.head == "year" else _SHAPES.get(question.kind, _NAME_SHAPES)
        title = passage.title
        self._titled = len(title & question.known) / len(title) if title else 0.0
        self._at: dict[str, list[int]] = {}
        for i, word in enumerate(sentence.words):
            self._at.setdefault(word.key, []).append(i)
        self._whole_name = float(bool(question.entity) and question.entity <= (self._at.keys() | title))
        self._cues = self._positions(question.cues)
        self._entity = self._positions(question.entity)
        self._terms = [self._at[key] for key in sorted(question.other) if key in self._at]

    def scored(self) -> Iterator[Scored]:
        """The candidates, in the order of the text within each shape."""
        text = self._passage.text
        for span in spans_of(text, self._words, things=self._question.kind in ("thing", "name")):
            inside = self._words[span.first : span.last]
            if span.shape in self._shapes and self._is_new(span, inside):
                last = inside[-1]
                end = last.end - 2 * last.lower.endswith(("'s", "\u2019s"))
                yield Scored(text[inside[0].start : end], self._passage.unit_id, self._features(span, inside))

    def _positions(self, keys: frozenset[str]) -> list[int]:
        return sorted(i for key in keys & self._at.keys() for i in self._at[key])

    def _is_new(self, span: Span, inside: Sequence[Word]) -> bool:
        """Whether the span says something that the question does not, and is no ordinary word."""
        asked = self._question
        if inside[-1].end - inside[0].start > MAX_SPAN_CHARS:
            return False
        if all(word.key in asked.known or word.lower in STOP_WORDS for word in inside):
            return False
        # Scripts without spaces: a part of the question's run of characters is one word here.
        if len(inside) == 1 and not inside[0].text.isascii() and inside[0].lower in asked.lowered:
            return False
        ordinary = len(inside) == 1 and span.first == 0 and inside[0].lower in self._passage.plain
        return not (span.shape == "name" and ordinary)

    def _features(self, span: Span, inside: Sequence[Word]) -> dict[str, float]:
        asked = self._question
        keys = {word.key for word in inside}
        about = len(asked.entity & self._passage.title) / len(asked.entity) if asked.entity else 0.0
        return {
            "shape": self._shapes[span.shape],
            "kind": _FIT_BY_SHAPE.get(span.shape) or kind_fit(asked.kind, inside),
            "head": float(asked.head in keys),
            "sentence": self._relevance,
            "document": about,
            "titled": self._titled,
            "whole_name": self._whole_name,
            **self._distances(span),
            **self._surroundings(span),
            "lead": 1 / (1 + self._number),
            "early": 1 / (1 + span.first / 5),
            "subject": float(span.first == 0),
            "overlap": sum(key in asked.known for key in keys) / len(keys),
            "title": float(keys <= self._passage.title),
            "long": min(len(inside), _BOUND_WORDS) / _BOUND_WORDS,
            "whole_date": float(span.shape == "date" and asked.head != "year" and inside[-1].text.isdigit()),
            "rank": 1 / (1 + self._passage.rank),
        }

    def _distances(self, span: Span) -> dict[str, float]:
        near = [max(_before(at, span), _after(at, span)) for at in self._terms]
        return {
            "cued": float(bool(self._cues)),
            "cue_left": _before(self._cues, span),
            "terms": sum(near) / max(1, len(self._question.other)),
            "entity_left": _before(self._entity, span),
        }

    def _surroundings(self, span: Span) -> dict[str, float]:
        words, asked = self._words, self._question
        at = span.first - 1
        left = words[at] if at >= 0 else None
        gap = self._passage.text[left.end : words[span.first].start] if left else ""
        if left is not None and left.lower in ("the", "a", "an"):
            at -= 1
        lead_in = words[at].lower if at >= 0 else ""
        return {
            "bracket": float(left is not None and left.key in asked.entity and "(" in gap[-3:]),
            "preposition": float(lead_in in _PREPOSITIONS.get(asked.kind, ())),
            "copula": float(lead_in in ("is", "was", "are", "were")),
            "life": self._life(span, left, gap),
        }

    def _life(self, span: Span, left: Word | None, gap: str) -> float:
        asked = self._question
        if asked.life is None or self._number or left is None or gap.strip(" ") not in (",", ""):
            return 0.0
        if not (left.text.isdigit() or left.lower == "in"):
            return 0.0
        start = self._words[span.first].start
        behind = self._passage.text[max(0, start - _LIFE_CHARS) : start]
        died = "\u2013" in behind or " - " in behind
        return 1.0 if died == (asked.life == "death") else -0.5


def kind_fit(kind: Kind, inside: Sequence[Word]) -> float:
    """How much the words of a name speak for a kind, roughly from -1 to 1.5."""
    lowers = {word.lower for word in inside}
    whole = " ".join(word.lower for word in inside)
    if kind in _CLOSED:
        return 1.5 if whole in _CLOSED[kind] else -0.5
    if kind == "thing":
        return 0.0
    known = whole in COUNTRIES or whole in CONTINENTS
    adjective = len(inside) == 1 and whole.endswith(ADJECTIVE_ENDINGS) and not known
    place, group = bool(lowers & PLACE_WORDS), bool(lowers & GROUP_WORDS)
    if kind == "person":
        strange = "of" in lowers or ((place or group) and not lowers & PERSON_WORDS)
        return 0.5 * (len(inside) in _PERSON_LENGTHS) - 0.7 * strange - float(known or adjective)
    if kind == "place":
        return 0.4 * place - 0.6 * (group or adjective)
    if kind == "group":
        return 0.6 * group - float(known or adjective)
    return -0.5 * adjective


def _before(positions: Sequence[int], span: Span) -> float:
    """Closeness of the nearest position before a span: 1 right before it, towards 0 far away or without any."""
    i = bisect_left(positions, span.first)
    return 3 / (2 + span.first - positions[i - 1]) if i else 0.0


def _after(positions: Sequence[int], span: Span) -> float:
    i = bisect_left(positions, span.last)
    return 3 / (3 + positions[i] - span.last) if i < len(positions) else 0.0
