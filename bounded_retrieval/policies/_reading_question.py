"""What a short question asks for, read from its words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bounded_retrieval.policies._reading_text import Word, words_of
from bounded_retrieval.policies._reading_words import RELATIONS, Kind
from bounded_retrieval.policies.tokenize import STOP_WORDS

RELATION_MARK: Final = ">>"
"""Stands between an entity and a relation: ``Hamlet >> author``."""

_WH: Final[dict[str, Kind]] = {"who": "person", "whom": "person", "whose": "person", "when": "date", "where": "place"}
_EMPTY_HEADS: Final = frozenset({"name", "names", "kind", "type", "sort", "term", "first", "last"})
_HEAD_REACH: Final = 7


@dataclass(frozen=True)
class Question:
    """A question as the reader scores by it.

    ``head`` is the key of the asked-for noun ("which *river*"); ``entity`` and ``other`` are the keys of the known
    name and of the remaining content words; ``cues`` are keys of words found near answers to such a question;
    ``known`` are the keys of all its words and ``lowered`` is its text in lower case; ``life`` says whether a place
    of birth or of death is asked for.
    """

    kind: Kind
    head: str | None
    entity: frozenset[str]
    other: frozenset[str]
    cues: frozenset[str]
    known: frozenset[str]
    lowered: str
    life: Literal["birth", "death"] | None


def parse_question(query: str) -> Question:
    """Read kind, asked-for noun, known entity and cues from a question or an ``entity >> relation`` pair."""
    left, mark, right = query.rpartition(RELATION_MARK)
    asked = words_of(right)
    head = None if mark else _head(asked)
    named = words_of(left) if mark else _named(asked, head)
    entity = _keys(word for word in named if mark or word.lower not in STOP_WORDS)
    plain = [word for word in asked if word.key not in entity]
    other = _keys(word for word in plain if word.lower not in STOP_WORDS and word.lower not in _EMPTY_HEADS)
    cues = {cue for word in plain if _bare(word) in RELATIONS for cue in RELATIONS[_bare(word)][1] - STOP_WORDS}
    return Question(
        kind=_relation_kind(asked) if mark else _kind(asked, head),
        head=None if head is None else head.key,
        entity=entity,
        other=other,
        cues=_keys(words_of(" ".join(cues))) | (other if mark else frozenset()),
        known=_keys([*named, *asked]),
        lowered=query.lower(),
        life="birth" if "born" in cues else "death" if "died" in cues else None,
    )


def _keys(words: Iterable[Word]) -> frozenset[str]:
    return frozenset(word.key for word in words)


def _bare(word: Word) -> str:
    return word.lower.removesuffix("'s").removesuffix("\u2019s")


def _named(words: Sequence[Word], head: Word | None) -> list[Word]:
    """The capitalised words; in a question without any, the content words that name no relation."""
    capitalised = [
        word for i, word in enumerate(words) if word.text[0].isupper() and (i > 0 or word.lower not in STOP_WORDS)
    ]
    return capitalised or [word for word in words if _content(word) and word != head and _bare(word) not in RELATIONS]


def _content(word: Word) -> bool:
    return word.text[0].islower() and word.lower not in _EMPTY_HEADS and word.lower not in STOP_WORDS


def _head(words: Sequence[Word]) -> Word | None:
    """The noun after ``what`` or ``which``, also after "what is the name of the"."""
    for i, word in enumerate(words):
        if word.lower in _WH or word.lower == "how":
            return None
        if word.lower in ("what", "which"):
            return next((later for later in words[i + 1 : i + 1 + _HEAD_REACH] if _content(later)), None)
    return None


def _kind(words: Sequence[Word], head: Word | None) -> Kind:
    """The first question word decides; after ``what`` and ``which`` the asked-for noun."""
    lowers = [word.lower for word in words]
    for lower, following in zip(lowers, [*lowers[1:], ""], strict=False):
        if lower in _WH:
            return _WH[lower]
        if lower == "how" and following in ("many", "much"):
            return "number"
        if lower in ("what", "which"):
            if following in ("kind", "type", "sort"):
                return "thing"
            break
    return _relation_kind(words if head is None else [head])


def _relation_kind(words: Sequence[Word]) -> Kind:
    return next((RELATIONS[_bare(word)][0] for word in words if _bare(word) in RELATIONS), "name")
