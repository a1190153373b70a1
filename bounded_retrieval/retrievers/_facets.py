"""Filters for engines that hold a list of words beside each unit: the words, and a filter in their terms.

A unit's *facets* are digests of what its metadata says: that a field is there, is a date, is a number or a text, or
holds a value (or an element with it). So every test of the filter language but the four orderings is "the unit has one
of these facets", or that it has none of them; nothing is left to how an engine compares values of several types, lists
and missing fields. An ordering is asked of the engine, among units that have a value of the bound's kind there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from bounded_retrieval.contracts.filters import Filter, compile_filter, is_date

EXACT_INTEGER = 2**53
"""Numbers below this are exact in every engine, whether it holds them as integers or as floats."""

_OPPOSITE = {"$gt": "$lte", "$gte": "$lt", "$lt": "$gte", "$lte": "$gt"}


class Narrowing(NamedTuple):
    """A condition in an engine's language that every passing unit meets.

    Attributes:
        text: the condition; ``True`` where all units meet it, ``False`` where none does.
        exact: whether only passing units meet it.
    """

    text: str | bool
    exact: bool


OPEN = Narrowing(text=True, exact=False)
"""Nothing that the engine could be asked for."""


class Language(NamedTuple):
    """How an engine says what a filter is made of.

    Attributes:
        held: a condition met by units that have at least one of these facets (one or more).
        ordered: a condition met by units whose field ``(field, operator, bound)`` is so ordered, among those that have
            a value of the bound's kind there; or `OPEN`.
        most: most facets that one condition may name.
    """

    held: Callable[[Sequence[str]], str]
    ordered: Callable[[str, str, Any], Narrowing]
    most: int


def facets_of(metadata: Mapping[str, Any]) -> list[str]:
    """The facets of cleaned metadata, distinct, in no particular order: 32 hexadecimal digits each."""
    return list({facet(*words) for field, value in metadata.items() for words in _said(field, value)})


def facet(*words: str) -> str:
    """The digest of some words."""
    return blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()


def narrow(filter: Filter | None, language: Language) -> Narrowing:
    """Put a filter into an engine's language.

    Raises:
        RequestError: names the operator, field or value that is not part of the filter language.
    """
    compile_filter(filter)
    return _filter(filter or {}, language, negated=False)


def _said(field: str, value: Any) -> Iterator[tuple[str, ...]]:
    if value is not None:
        yield "exists", field
    if is_date(value):
        yield "date", field
    kind = _kind(value)
    if kind in ("number", "text"):
        yield "kind", field, kind
    for item in value if isinstance(value, list) else [value]:
        if _kind(item):
            yield _value(field, item)


def _value(field: str, value: Any) -> tuple[str, ...]:
    # 1 and 1.0 are equal, whichever is held.
    plain = int(value) if isinstance(value, float) and value.is_integer() else _plain(value)
    return "value", field, _kind(value), str(plain)


def _plain(value: Any) -> Any:
    # A member of an enumeration is written as its name.
    if isinstance(value, str):
        return str.__str__(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else ""


def _filter(filter: Filter, language: Language, *, negated: bool) -> Narrowing:
    parts = [_entry(key, value, language, negated) for key, value in filter.items()]
    return _combine("or" if negated else "and", parts)


def _entry(key: str, value: Any, language: Language, negated: bool) -> Narrowing:
    if key == "$not":
        return _filter(value, language, negated=not negated)
    if key in ("$and", "$or"):
        parts = [_filter(part, language, negated=negated) for part in value]
        return _combine("or" if (key == "$or") is not negated else "and", parts)
    tests = value if isinstance(value, Mapping) else {"$eq": value}
    parts = [_test(key, name, bound, language, negated) for name, bound in tests.items()]
    return _combine("or" if negated else "and", parts)


def _test(field: str, name: str, bound: Any, language: Language, negated: bool) -> Narrowing:
    if name in _OPPOSITE:
        return _ordering(_plain(field), name, _plain(bound), language, negated)
    if name in ("$exists", "$date"):
        return _held([facet(name[1:], field)], language, negated is bool(bound))
    values = bound if name in ("$in", "$nin") else [bound]
    facets = list(dict.fromkeys(facet(*_value(field, value)) for value in values))
    return _held(facets, language, (name in ("$ne", "$nin")) is not negated)


def _ordering(field: str, name: str, bound: Any, language: Language, negated: bool) -> Narrowing:
    comparable = _held([facet("kind", field, _kind(bound))], language, negated=False)
    if not negated:
        return _combine("and", [comparable, language.ordered(field, name, bound)])
    # What is not of the bound's kind is not so ordered either.
    other = _held([facet("kind", field, _kind(bound))], language, negated=True)
    opposite = _combine("and", [comparable, language.ordered(field, _OPPOSITE[name], bound)])
    return _combine("or", [other, opposite])


def _held(facets: list[str], language: Language, negated: bool) -> Narrowing:
    if not facets:
        return Narrowing(text=negated, exact=True)
    if len(facets) > language.most:
        return OPEN
    text = language.held(facets)
    return Narrowing(f"(not {text})" if negated else text, exact=True)


def _combine(name: Literal["and", "or"], parts: Sequence[Narrowing]) -> Narrowing:
    decided = name == "or"
    settled = [part for part in parts if part.text is decided]
    if settled:
        # No unit meets False; one exact True outweighs the others.
        return Narrowing(text=decided, exact=not decided or any(part.exact for part in settled))
    texts = [part.text for part in parts if isinstance(part.text, str)]
    exact = all(part.exact for part in parts)
    if not texts:
        return Narrowing(text=not decided, exact=exact)
    return Narrowing(f"({f' {name} '.join(texts)})", exact=exact)
