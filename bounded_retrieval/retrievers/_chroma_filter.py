"""How metadata is laid out in Chroma, and how a filter narrows a Chroma query.

Chroma's own filters differ from `contracts.filters`: they cannot order text, do not look into lists with ``$eq``,
truncate fractions when they compare them with integers, and store no mixed lists. So a compiled ``where`` is only a
necessary condition: every unit that passes the filter passes it. The caller checks the rows that come back with
`compile_filter`, unless `decides_whole` says that nothing is left to check: equality with text, booleans and whole
numbers below 2**53 is exact, and so is an ordering by such a number that is not negated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from bounded_retrieval.contracts.filters import Filter, compile_filter
from bounded_retrieval.contracts.normalise import MAX_JSON_INT, MIN_JSON_INT, clean_metadata, clean_text
from bounded_retrieval.errors import StoreCorruptError

Where = dict[str, Any]

METADATA_KEY = "_bounded_retrieval_metadata"
"""Chroma metadata key under which a unit's whole metadata stands as one JSON text."""

MIXED_KEY = "_bounded_retrieval_mixed"
"""Chroma metadata key for lists of several types, which Chroma cannot hold: each element, as text with its field."""

MAX_VALUES = 500
"""Most values of one ``$in`` or ``$nin`` that are given to Chroma (SQLite bounds the size of an expression)."""

_EXACT = 2**53


def pack_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Chroma metadata for a unit's cleaned metadata: the JSON text, and beside it each value Chroma can filter on."""
    packed: dict[str, Any] = {METADATA_KEY: json.dumps(metadata)}
    mixed: list[str] = []
    for key, value in metadata.items():
        if not _is_filterable(key):
            continue
        if isinstance(value, list):
            uniform = _uniform([item for item in value if isinstance(item, (str, int, float))])
            if uniform is None:
                mixed += _mixed_entries(key, value)
            elif uniform:
                packed[key] = uniform
        elif isinstance(value, (str, int, float)):
            packed[key] = value
    if mixed:
        packed[MIXED_KEY] = mixed
    return packed


def unpack_metadata(packed: Mapping[str, Any] | None) -> dict[str, Any]:
    """A unit's metadata out of Chroma's, with its original types; also reads rows that another program wrote."""
    if packed is None:
        return {}
    if METADATA_KEY in packed:
        try:
            metadata = json.loads(packed[METADATA_KEY])
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreCorruptError(f"dense store: the metadata of a unit is not JSON ({error})") from error
        if not isinstance(metadata, dict):
            raise StoreCorruptError("dense store: the metadata of a unit is no JSON object")
        return metadata
    return clean_metadata(packed)[0]


def compile_where(filter: Filter | None) -> Where | bool:
    """Turn a filter into a Chroma ``where`` that every passing unit meets.

    Returns:
        The ``where``; ``True`` when it cannot narrow the query; ``False`` when no unit can pass.

    Raises:
        RequestError: names the operator, field or value that is not part of the language.
    """
    return _compiled(filter).where


def decides_whole(filter: Filter | None) -> bool:
    """Whether `compile_where` gives a ``where`` that only passing units meet, so that nothing is left to check.

    Raises:
        RequestError: names the operator, field or value that is not part of the language.
    """
    return _compiled(filter).exact


class _Narrowing(NamedTuple):
    where: Where | bool
    exact: bool
    """Whether every unit that meets ``where`` passes; every unit that passes meets it in any case."""


_OPEN = _Narrowing(where=True, exact=False)
"""Nothing that Chroma could be asked for."""


def _compiled(filter: Filter | None) -> _Narrowing:
    compile_filter(filter)
    return _compile(filter or {}, negated=False)


def _compile(filter: Filter, *, negated: bool) -> _Narrowing:
    return _combine("$or" if negated else "$and", [_entry(key, value, negated) for key, value in filter.items()])


def _entry(key: str, value: Any, negated: bool) -> _Narrowing:
    if key == "$not":
        return _compile(value, negated=not negated)
    if key in ("$and", "$or"):
        parts = [_compile(part, negated=negated) for part in value]
        return _combine("$or" if (key == "$or") is not negated else "$and", parts)
    tests = value if isinstance(value, Mapping) else {"$eq": value}
    return _combine("$or" if negated else "$and", [_test(key, name, bound, negated) for name, bound in tests.items()])


def _test(field: str, name: str, bound: Any, negated: bool) -> _Narrowing:
    # Chroma can ask neither for a field's absence nor, whatever its value, for its presence or its form.
    if name in ("$exists", "$date") or not _is_filterable(field):
        return _OPEN
    if name in ("$gt", "$gte", "$lt", "$lte"):
        # The opposite also holds for units without the field.
        return _OPEN if negated else _ordered(field, name, bound)
    values = list(bound) if name in ("$in", "$nin") else [bound]
    forms = [form for value in values for form in _stored_forms(value)]
    return _among(field, forms) if (name in ("$eq", "$in")) is not negated else _outside(field, forms)


def _among(field: str, forms: list[Any]) -> _Narrowing:
    if len(forms) > MAX_VALUES:
        return _OPEN
    if not forms:
        return _Narrowing(where=False, exact=True)
    scalars: list[Where | bool] = [{field: {"$in": group}} for group in _by_type(forms)]
    elements: list[Where | bool] = [{field: {"$contains": form}} for form in forms]
    mixed: list[Where | bool] = [{MIXED_KEY: {"$contains": entry}} for entry in _mixed_entries(field, forms)]
    return _Narrowing(_join("$or", [*scalars, *elements, *mixed]), exact=all(map(_is_exact, forms)))


def _outside(field: str, forms: list[Any]) -> _Narrowing:
    exact = [form for form in forms if _is_exact(form)]
    if len(exact) > MAX_VALUES:
        return _OPEN
    scalars: list[Where | bool] = [{field: {"$nin": group}} for group in _by_type(exact)]
    elements: list[Where | bool] = [{field: {"$not_contains": form}} for form in exact]
    mixed: list[Where | bool] = [{MIXED_KEY: {"$not_contains": entry}} for entry in _mixed_entries(field, exact)]
    return _Narrowing(_join("$and", [*scalars, *elements, *mixed]), exact=len(exact) == len(forms))


def _ordered(field: str, name: str, bound: Any) -> _Narrowing:
    if isinstance(bound, str) or not _is_within(bound):
        return _OPEN
    if bound == int(bound):
        return _Narrowing({field: {name: int(bound)}}, exact=True)
    if name in ("$gt", "$gte"):
        return _Narrowing({field: {"$gte": math.floor(bound)}}, exact=False)
    return _Narrowing({field: {"$lte": math.ceil(bound)}}, exact=False)


def _combine(name: Literal["$and", "$or"], parts: Sequence[_Narrowing]) -> _Narrowing:
    where = _join(name, [part.where for part in parts])
    # No unit meets False, and a part that lets every unit pass outweighs the others of an $or.
    settled = where is False or (name == "$or" and _Narrowing(where=True, exact=True) in parts)
    return _Narrowing(where, exact=settled or all(part.exact for part in parts))


def _join(name: Literal["$and", "$or"], parts: Sequence[Where | bool]) -> Where | bool:
    """Conjunction or disjunction; a balanced tree, since SQLite bounds the depth of an expression."""
    decided = name == "$or"
    if any(part is decided for part in parts):
        return decided
    open_parts = [part for part in parts if not isinstance(part, bool)]
    return _balanced(name, open_parts) if open_parts else not decided


def _balanced(name: str, parts: list[Where]) -> Where:
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return {name: [_balanced(name, parts[:middle]), _balanced(name, parts[middle:])]}


def _stored_forms(value: Any) -> list[Any]:
    """Every value that Chroma may hold and that equals this one: a whole number may be stored as int or float."""
    if isinstance(value, bool):
        return [value]
    if isinstance(value, str):
        return [value] if clean_text(value) == value else []
    whole = isinstance(value, int) or value.is_integer()
    forms: list[Any] = [int(value)] if whole and MIN_JSON_INT <= value <= MAX_JSON_INT else []
    return [*forms, *_as_float(value)]


def _mixed_entries(field: str, values: Sequence[Any]) -> list[str]:
    """What `MIXED_KEY` holds for these elements of a field; equal ones, 1 and 1.0 for example, have equal entries."""
    items = [value for value in values if isinstance(value, (str, int, float))]
    plain = [int(item) if isinstance(item, float) and item.is_integer() else item for item in items]
    return list(dict.fromkeys(json.dumps([field, item]) for item in plain))


def _as_float(value: float) -> list[float]:
    try:
        number = float(value)
    except OverflowError:
        return []
    return [number] if math.isfinite(number) and number == value else []


def _is_exact(form: Any) -> bool:
    return isinstance(form, (str, bool)) or (_is_within(form) and form == int(form))


def _is_within(number: Any) -> bool:
    return bool(-_EXACT < number < _EXACT)


def _by_type(forms: list[Any]) -> list[list[Any]]:
    groups: dict[type, list[Any]] = {}
    for form in forms:
        groups.setdefault(type(form), []).append(form)
    return list(groups.values())


def _uniform(items: list[Any]) -> list[Any] | None:
    kinds = {type(item) for item in items}
    if len(kinds) <= 1:
        return items
    if kinds == {int, float} and all(_is_within(item) for item in items):
        return [float(item) for item in items]
    return None


def _is_filterable(key: str) -> bool:
    reserved = key.startswith(("$", "#", "chroma:")) or key in (METADATA_KEY, MIXED_KEY)
    return bool(key) and not reserved and clean_text(key) == key
