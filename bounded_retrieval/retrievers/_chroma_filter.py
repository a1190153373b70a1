"""How metadata is laid out in Chroma, and how a filter narrows a Chroma query.

Chroma's own filters differ from `contracts.filters`: they cannot order text, do not look into lists with ``$eq``,
truncate fractions when they compare them with integers, and store no mixed lists. So a compiled ``where`` is only a
necessary condition: every unit that passes the filter passes it. The caller checks the rows that come back with
`compile_filter`. For text, booleans and whole numbers below 2**53 the ``where`` is exact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bounded_retrieval.contracts.filters import Filter, compile_filter
from bounded_retrieval.contracts.normalise import MAX_JSON_INT, MIN_JSON_INT, clean_metadata, clean_text

Where = dict[str, Any]

METADATA_KEY = "_bounded_retrieval_metadata"
"""Chroma metadata key under which a unit's whole metadata stands as one JSON text."""

MIXED_KEY = "_bounded_retrieval_mixed"
"""Chroma metadata key that lists the fields whose value is a list of several types, which Chroma cannot hold."""

MAX_VALUES = 500
"""Most values of one ``$in`` or ``$nin`` that are given to Chroma (SQLite bounds the size of an expression)."""

_EXACT = 2**53


def pack_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Chroma metadata for a unit's cleaned metadata: the JSON text, and beside it each value Chroma can filter on."""
    packed: dict[str, Any] = {METADATA_KEY: json.dumps(metadata)}
    mixed = []
    for key, value in metadata.items():
        if not _is_filterable(key):
            continue
        if isinstance(value, list):
            uniform = _uniform([item for item in value if isinstance(item, (str, int, float))])
            if uniform is None:
                mixed.append(key)
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
        metadata: dict[str, Any] = json.loads(packed[METADATA_KEY])
        return metadata
    return clean_metadata(packed)[0]


def compile_where(filter: Filter | None) -> Where | bool:
    """Turn a filter into a Chroma ``where`` that every passing unit meets.

    Returns:
        The ``where``; ``True`` when it cannot narrow the query; ``False`` when no unit can pass.

    Raises:
        RequestError: names the operator, field or value that is not part of the language.
    """
    compile_filter(filter)
    return _compile(filter or {}, negated=False)


def _compile(filter: Filter, *, negated: bool) -> Where | bool:
    return _join("$or" if negated else "$and", [_entry(key, value, negated) for key, value in filter.items()])


def _entry(key: str, value: Any, negated: bool) -> Where | bool:
    if key == "$not":
        return _compile(value, negated=not negated)
    if key in ("$and", "$or"):
        parts = [_compile(part, negated=negated) for part in value]
        return _join("$or" if (key == "$or") is not negated else "$and", parts)
    tests = value if isinstance(value, Mapping) else {"$eq": value}
    return _join("$or" if negated else "$and", [_test(key, name, bound, negated) for name, bound in tests.items()])


def _test(field: str, name: str, bound: Any, negated: bool) -> Where | bool:
    if not _is_filterable(field):
        return True
    if name in ("$gt", "$gte", "$lt", "$lte"):
        # The opposite also holds for units without the field, which Chroma cannot ask for.
        return True if negated else _ordered(field, name, bound)
    values = list(bound) if name in ("$in", "$nin") else [bound]
    if (name in ("$eq", "$in")) is not negated:
        return _among(field, [form for value in values for form in _stored_forms(value)])
    return _outside(field, [form for value in values for form in _stored_forms(value) if _is_exact(form)])


def _among(field: str, forms: list[Any]) -> Where | bool:
    if len(forms) > MAX_VALUES:
        return True
    if not forms:
        return False
    scalars: list[Where | bool] = [{field: {"$in": group}} for group in _by_type(forms)]
    elements: list[Where | bool] = [{field: {"$contains": form}} for form in forms]
    return _join("$or", [*scalars, *elements, {MIXED_KEY: {"$contains": field}}])


def _outside(field: str, forms: list[Any]) -> Where | bool:
    if len(forms) > MAX_VALUES:
        return True
    scalars: list[Where | bool] = [{field: {"$nin": group}} for group in _by_type(forms)]
    elements: list[Where | bool] = [{field: {"$not_contains": form}} for form in forms]
    return _join("$and", [*scalars, *elements])


def _ordered(field: str, name: str, bound: Any) -> Where | bool:
    if isinstance(bound, str) or not _is_within(bound):
        return True
    if bound == int(bound):
        return {field: {name: int(bound)}}
    if name in ("$gt", "$gte"):
        return {field: {"$gte": math.floor(bound)}}
    return {field: {"$lte": math.ceil(bound)}}


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
