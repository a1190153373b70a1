"""Plan a chain without a model: a declared decomposition whose templates are filled in with earlier sub-answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bounded_retrieval.contracts.chain import Hop, NextQuery
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.policies.novelty import normalise_query

# A number that belongs to a word or a decimal ("C#1", "#1st", "#1.5") is text; a doubled sign escapes.
_PLACEHOLDER = re.compile(r"(?<![\w#])(#?)#([0-9]{1,9})(?!\w|\.[0-9])")
_SPACE_BEFORE_END = re.compile(r" (?=[?!.,;:]+$)")

_SHOWN_CHARS = 100


class TemplatePlanner:
    """Follows declared decompositions such as ``What company published X?``, ``Who was the first president of #1?``.

    ``#k`` stands for the sub-answer of hop k, and hop k of a trail is the one that template k made. A template may use
    any earlier hops, in any order and several times, so that a decomposition need not be a line. A sub-answer is put in
    as it stands: a ``#2`` inside it is never filled in. In ``C#1``, ``#1st``, ``#1_a`` and ``#1.5`` the sign is text,
    and ``##1`` gives the text ``#1``. White space becomes one space each, and none before the final punctuation.

    A decomposition may have more templates than a chain may have hops; such a chain ends by its depth cap, unresolved.

    Args:
        templates: the decomposition of every question; or decompositions by question, which are matched by the
            question's text without regard to case, white space and punctuation at its end.

    Raises:
        ConfigurationError: there is no template, or one is blank, is no text, or uses a sub-answer that cannot be there
            by then (its own, a later one, or ``#0``); names the template.
    """

    def __init__(self, templates: Sequence[str] | Mapping[str, Sequence[str]]) -> None:
        self._by_question: dict[str, tuple[str, ...]] | None = None
        self._for_all: tuple[str, ...] | None = None
        if isinstance(templates, Mapping):
            self._by_question = _by_question(templates)
        else:
            self._for_all = _checked(templates, "templates")

    def plan(self, question: str, trail: Sequence[Hop]) -> NextQuery:
        """The first template without a hop, filled in.

        Where it needs a sub-answer that its hop does not have there is no next query, and it stays open together with
        every further one, each with what could be filled in; a question without a decomposition stays open itself.
        """
        templates = self._templates(question)
        if templates is None:
            return NextQuery(query=None, unresolved=(question,))
        made = {hop.number for hop in trail}
        answers = _answers(trail)
        left = [template for number, template in enumerate(templates, 1) if number not in made]
        if not left:
            return NextQuery(query=None)
        filled = [_fill(template, answers) for template in left]
        if answers.keys() >= _needs(left[0]):
            return NextQuery(query=filled[0])
        return NextQuery(query=None, unresolved=tuple(filled))

    def remaining(self, question: str, trail: Sequence[Hop]) -> tuple[str, ...]:
        """The templates without a hop, each with what could be filled in: what stays open when a rule ends a chain."""
        made, answers = {hop.number for hop in trail}, _answers(trail)
        templates = enumerate(self._templates(question) or (), 1)
        return tuple(_fill(template, answers) for number, template in templates if number not in made)

    def is_complete(self, question: str, trail: Sequence[Hop]) -> bool:
        """Whether every template of the question has a hop with a sub-answer."""
        templates = self._templates(question)
        return templates is not None and _answers(trail).keys() >= set(range(1, len(templates) + 1))

    def _templates(self, question: str) -> tuple[str, ...] | None:
        if self._by_question is None:
            return self._for_all
        return self._by_question.get(normalise_query(question))


def _by_question(given: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    if not given:
        raise ConfigurationError("templates: at least one question with its templates (got none)")
    found: dict[str, tuple[str, ...]] = {}
    for question, templates in given.items():
        where = f"templates[{_shorten(question)}]"
        key = normalise_query(question) if isinstance(question, str) else ""
        if not key:
            raise ConfigurationError(f"{where}: expected the text of a question")
        checked = _checked(templates, where)
        if found.setdefault(key, checked) != checked:
            raise ConfigurationError(f"{where}: the same question is there twice, with other templates")
    return found


def _checked(given: Any, where: str) -> tuple[str, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise ConfigurationError(f"{where}: expected a sequence of templates (got {type(given).__name__})")
    if not given:
        raise ConfigurationError(f"{where}: at least one template (got none)")
    return tuple(_check(template, number, where) for number, template in enumerate(given, 1))


def _check(template: Any, number: int, where: str) -> str:
    if not isinstance(template, str) or not template.strip():
        raise ConfigurationError(f"{where}: template {number} is blank or no text (got {_shorten(template)})")
    wrong = sorted(needed for needed in _needs(template) if not 1 <= needed < number)
    if wrong:
        there = f"only #1 to #{number - 1} are" if number > 1 else "none is"
        raise ConfigurationError(
            f"{where}: template {number} uses #{wrong[0]}, but {there} there by then (got {_shorten(template)})"
        )
    return _SPACE_BEFORE_END.sub("", " ".join(template.split()))


def _needs(template: str) -> frozenset[int]:
    return frozenset(int(match[2]) for match in _PLACEHOLDER.finditer(template) if not match[1])


def _fill(template: str, answers: Mapping[int, str]) -> str:
    def put(match: re.Match[str]) -> str:
        return match[0][1:] if match[1] else answers.get(int(match[2]), match[0])

    return _PLACEHOLDER.sub(put, template)


def _answers(trail: Sequence[Hop]) -> dict[int, str]:
    texts = {hop.number: " ".join((hop.sub_answer or "").split()) for hop in trail}
    return {number: text for number, text in texts.items() if text}


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."
