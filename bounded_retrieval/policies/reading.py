"""Answer a short factual question from a few passages without a model: an extractive, deterministic reader.

The question says which kind of answer it wants (`parse_question`); names, dates, numbers and quoted titles of the
most relevant sentences are the candidates; each gets a score as the weighted sum of declared features
(`bounded_retrieval.policies._reading_score`). The best one is the answer if it reaches a declared threshold.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Final

from langchain_core.documents import Document

from bounded_retrieval.contracts.chain import MAX_HOP_QUERY_CHARS, SubAnswer
from bounded_retrieval.errors import ConfigurationError, quoted
from bounded_retrieval.policies._reading_question import Question, parse_question
from bounded_retrieval.policies._reading_score import Passage, Scored, SentenceScorer
from bounded_retrieval.policies._reading_text import Sentence, sentences_of, words_of

MAX_PASSAGE_CHARS: Final = 200_000
"""Characters of a passage that are read; the rest is left out."""

MAX_TITLE_CHARS: Final = 300
"""Characters of a title that are read."""

MAX_SENTENCES: Final = 60
"""Most sentences, of all passages, whose candidates are scored."""

THRESHOLD: Final = 8.0
"""Least score of an answer.

At 8 about seven in ten single facts are answered where a passage holds them, and about three in ten where none does; at
9 five in ten and one in ten.
"""

_TITLE_CREDIT: Final = 0.6


@dataclass(frozen=True)
class _Read:
    """A sentence with its passage and the keys of its words."""

    passage: Passage
    sentence: Sentence
    keys: frozenset[str]


@dataclass(frozen=True)
class ExtractiveReader:
    """Picks the span of some passages that answers a short factual question best.

    Built for sub-questions of a chain: one fact each, as a question ("Who directed Hamlet?") or as
    ``entity >> relation`` ("Hamlet >> director"). It knows English; other languages mostly give no answer. The same
    question and passages always give the same answer, and no model is called.

    Args:
        threshold: least score of an answer; higher answers less often and is right more often.

    Raises:
        ConfigurationError: the threshold is no number.
    """

    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        is_number = isinstance(self.threshold, Real) and not isinstance(self.threshold, bool)
        if not is_number or math.isnan(self.threshold):
            raise ConfigurationError(f"threshold: expected a number (got {quoted(self.threshold)})")

    def __call__(self, query: str, documents: Sequence[Document]) -> SubAnswer | None:
        """The best span with the unit it stands in, or none if no span reaches the threshold.

        Args:
            query: the question.
            documents: the passages, best first. ``id`` is the unit's id and ``title`` in the metadata its title.
        """
        # The first of equals wins: sentences come by relevance, then by rank and place.
        best = max(candidates(query, documents), key=lambda found: found.score, default=None)
        if best is None or best.score < self.threshold:
            return None
        return SubAnswer(text=best.text, unit_ids=() if best.unit_id is None else (best.unit_id,))


def candidates(query: str, documents: Sequence[Document]) -> list[Scored]:
    """All candidates of the most relevant sentences, each with its features."""
    question = parse_question(query[:MAX_HOP_QUERY_CHARS])
    read = [entry for rank, document in enumerate(documents) for entry in _sentences(rank, document)]
    relevances = _relevances(question, read)
    best = heapq.nlargest(MAX_SENTENCES, range(len(read)), key=lambda i: (relevances[i], -i))
    return [
        found
        for i in best
        for found in SentenceScorer(question, read[i].passage, read[i].sentence, relevances[i]).scored()
    ]


def _sentences(rank: int, document: Document) -> list[_Read]:
    text = document.page_content[:MAX_PASSAGE_CHARS]
    title = document.metadata.get("title")
    title_words = words_of(title[:MAX_TITLE_CHARS]) if isinstance(title, str) else []
    sentences = list(sentences_of(text))
    passage = Passage(
        unit_id=document.id,
        text=text,
        title=frozenset(word.key for word in title_words),
        rank=rank,
        plain=frozenset(word.lower for part in sentences for word in part.words if word.text[0].islower()),
    )
    return [_Read(passage, part, frozenset(word.key for word in part.words)) for part in sentences]


def _relevances(question: Question, read: Sequence[_Read]) -> list[float]:
    """How much of the question each sentence holds; a term counts the more, the fewer sentences hold it."""
    terms = question.other | question.entity
    held = Counter(key for entry in read for key in entry.keys & terms)
    weight = {key: math.log(1 + len(read) / max(1, held[key])) for key in terms}
    total = _sum(weight, terms) or 1.0
    relevances = []
    for entry in read:
        # A sentence about "it" is about what the title names.
        implied = (question.entity & entry.passage.title) - entry.keys
        relevances.append((_sum(weight, terms & entry.keys) + _TITLE_CREDIT * _sum(weight, implied)) / total)
    return relevances


def _sum(weight: dict[str, float], keys: Iterable[str]) -> float:
    return math.fsum(weight[key] for key in keys)
