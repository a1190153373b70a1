"""The metadata filter language that every searcher understands.

A filter is a mapping. A plain value means equality; several keys mean *and*::

    {"device": "HX-200"}
    {"device": {"$in": ["HX-200", "HX-210"]}, "revised": {"$gte": "2026-01-01"}}
    {"$or": [{"kind": "note"}, {"$not": {"device": "HX-200"}}]}

    {"$or": [{"expires": {"$exists": False}}, {"expires": {"$gt": "2026-01-01"}}]}

Operators: ``$eq $ne $in $nin $gt $gte $lt $lte $exists $date`` on a field, ``$and $or $not`` on filters. A field
*exists* when it is there and not None; it is a *date* when it is text of the form ``YYYY-MM-DD`` or
``YYYY-MM-DDTHH:MM:SS``, also with a fraction of a second and with ``Z`` or ``+00:00``. A unit without the field matches
only ``$ne``, ``$nin``, ``{"$exists": False}``, ``{"$date": False}`` and negations. Values of different types never
compare equal or ordered (``True`` is not ``1``); a list-valued field matches ``$eq`` or ``$in`` when any of its
elements does.
"""

from __future__ import annotations

import datetime as dt
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bounded_retrieval.errors import RequestError, quoted

Filter = Mapping[str, Any]
Metadata = Mapping[str, Any]
Predicate = Callable[[Metadata], bool]

_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|\+00:00)?)?", re.ASCII)

MAX_FILTER_DEPTH = 16

_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def compile_filter(filter: Filter | None) -> Predicate:
    """Turn a filter into a predicate over one unit's metadata.

    Raises:
        RequestError: names the operator, field or value that is not part of the language.
    """
    return _compile({} if filter is None else filter, 1)


def filter_key(filter: Filter) -> str:
    """Canonical text of a filter, equal for equal filters; usable as a cache key."""
    return json.dumps(filter, sort_keys=True, default=_plain)


def fields_of(filter: Filter | None) -> frozenset[str]:
    """The metadata fields that a filter reads, at any depth; none for no filter.

    Raises:
        RequestError: names the operator, field or value that is not part of the language.
    """
    compile_filter(filter)
    return fields_named(filter)


def fields_named(filter: Filter | None) -> frozenset[str]:
    """The same of a filter that is known to be part of the language."""
    return frozenset(_fields(filter or {}))


def _fields(filter: Filter) -> Iterator[str]:
    for key, value in filter.items():
        if key in ("$and", "$or"):
            for part in value:
                yield from _fields(part)
        elif key == "$not":
            yield from _fields(value)
        else:
            yield key


def _plain(value: Any) -> Any:
    # Other mappings and sequences are written as JSON's own: as text, one could stand for a filter by that text.
    return dict(value) if isinstance(value, Mapping) else list(value)


def _compile(filter: Any, depth: int) -> Predicate:
    if not isinstance(filter, Mapping):
        raise RequestError(f"filter: expected a mapping (got {type(filter).__name__})")
    if depth > MAX_FILTER_DEPTH:
        raise RequestError(f"filter: nested deeper than {MAX_FILTER_DEPTH} levels")
    parts = [_compile_entry(key, value, depth) for key, value in filter.items()]
    if len(parts) == 1:
        return parts[0]
    return lambda metadata: all(part(metadata) for part in parts)


def _compile_entry(key: Any, value: Any, depth: int) -> Predicate:
    if key in ("$and", "$or"):
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not value:
            raise RequestError(f"filter: {key} takes a non-empty list of filters (got {quoted(value)})")
        parts = [_compile(part, depth + 1) for part in value]
        gather = all if key == "$and" else any
        return lambda metadata: gather(part(metadata) for part in parts)
    if key == "$not":
        inner = _compile(value, depth + 1)
        return lambda metadata: not inner(metadata)
    if not isinstance(key, str) or key.startswith("$"):
        raise RequestError(f"filter: unknown operator {quoted(key)}")
    return _compile_field(key, value)


def _compile_field(field: str, condition: Any) -> Predicate:
    if not isinstance(condition, Mapping):
        return _compile_test(field, "$eq", condition)
    if not condition:
        raise RequestError(f"filter: field {quoted(field)} has no condition")
    tests = [_compile_test(field, name, value) for name, value in condition.items()]
    return lambda metadata: all(test(metadata) for test in tests)


def _compile_test(field: str, name: str, value: Any) -> Predicate:
    if name in ("$in", "$nin"):
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise RequestError(f"filter: {name} on {quoted(field)} takes a list (got {quoted(value)})")
        wanted = _by_kind([_check_scalar(field, item) for item in value])
    elif name in ("$eq", "$ne"):
        wanted = _by_kind([_check_scalar(field, value)])
    elif name in _ORDERINGS:
        return _ordering(field, _ORDERINGS[name], _check_scalar(field, value))
    elif name in ("$exists", "$date"):
        return _property(field, name, value)
    else:
        raise RequestError(f"filter: unknown operator {quoted(name)} on {quoted(field)}")
    negated = name in ("$ne", "$nin")
    return lambda metadata: _holds_any(metadata.get(field), wanted) is not negated


def is_date(value: Any) -> bool:
    """Whether a value is text that states an ISO 8601 date in UTC, which is ordered as it is written.

    The day must exist: ``2026-13-01`` would otherwise last until the end of the year.
    """
    found = _DATE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return False
    try:
        dt.date.fromisoformat(found[1])
    except ValueError:
        return False
    return True


def _property(field: str, name: str, wanted: Any) -> Predicate:
    if not isinstance(wanted, bool):
        raise RequestError(f"filter: {name} on {quoted(field)} takes true or false (got {quoted(wanted)})")
    if name == "$date":
        return lambda metadata: is_date(metadata.get(field)) is wanted
    return lambda metadata: (metadata.get(field) is not None) is wanted


def _ordering(field: str, compare: Callable[[Any, Any], bool], bound: Any) -> Predicate:
    if isinstance(bound, bool) or bound is None:
        raise RequestError(f"filter: {quoted(field)} cannot be ordered against {quoted(bound)}")

    def test(metadata: Metadata) -> bool:
        value = metadata.get(field)
        return _same_kind(value, bound) and compare(value, bound)

    return test


def _check_scalar(field: str, value: Any) -> Any:
    if isinstance(value, (str, bool, int, float)):
        return value
    raise RequestError(
        f"filter: {quoted(field)} is compared with a {type(value).__name__}; use text, a number or a boolean"
    )


def _by_kind(values: list[Any]) -> dict[str, set[Any]]:
    groups: dict[str, set[Any]] = {"truth": set(), "number": set(), "text": set()}
    for value in values:
        groups[_kind(value)].add(value)
    return groups


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else ""


def _holds_any(held: Any, wanted: Mapping[str, set[Any]]) -> bool:
    values = held if isinstance(held, list) else [held]
    return any(value in wanted[kind] for value in values if (kind := _kind(value)))


def _same_kind(left: Any, right: Any) -> bool:
    return _kind(left) == _kind(right) != ""
