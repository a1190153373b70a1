from __future__ import annotations

import copy
from collections import deque
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bounded_retrieval.contracts.filters import MAX_FILTER_DEPTH, compile_filter, fields_of, filter_key
from bounded_retrieval.errors import RequestError

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

FIELDS = ("device", "year", "draft", "tags")
scalars = st.one_of(
    st.sampled_from(["HX-200", "HX-210", "", "1"]), st.integers(-1, 2), st.sampled_from([0.0, 1.0, 1.5]), st.booleans()
)
ordered = st.one_of(st.sampled_from(["HX-200", "HX-210", ""]), st.integers(-1, 2), st.sampled_from([0.5, 1.0]))
conditions = st.one_of(
    scalars,
    st.dictionaries(st.sampled_from(["$eq", "$ne"]), scalars, min_size=1),
    st.dictionaries(st.sampled_from(["$in", "$nin"]), st.lists(scalars, max_size=3), min_size=1),
    st.dictionaries(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), ordered, min_size=1),
    st.fixed_dictionaries({"$exists": st.booleans()}),
)
leaves = st.dictionaries(st.sampled_from(FIELDS), conditions, max_size=3)
filters = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(
            lambda name, parts: {name: parts}, st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3)
        ),
        st.builds(lambda part: {"$not": part}, inner),
    ),
    max_leaves=6,
)
metadata = st.dictionaries(st.sampled_from(FIELDS), st.one_of(scalars, st.none(), st.lists(scalars, max_size=3)))


def kind(value: Any) -> str:
    """Text, number, truth value or nothing comparable."""
    names = {str: "text", bool: "truth", int: "number", float: "number"}
    return names.get(type(value), "none")


def evaluate(filter: dict[str, Any], unit: dict[str, Any]) -> bool:
    """The filter language once more, read straight from its documentation."""
    for key, value in filter.items():
        if key == "$and":
            holds = not any(not evaluate(part, unit) for part in value)
        elif key == "$or":
            holds = [evaluate(part, unit) for part in value].count(True) > 0
        elif key == "$not":
            holds = not evaluate(value, unit)
        else:
            tests = value if isinstance(value, dict) else {"$eq": value}
            holds = all(evaluate_test(name, wanted, unit, key) for name, wanted in tests.items())
        if not holds:
            return False
    return True


def evaluate_test(name: str, wanted: Any, unit: dict[str, Any], field: str) -> bool:
    """One test on one field, read straight from the documentation."""
    held = unit.get(field)
    if name == "$exists":
        return wanted if field in unit and held is not None else not wanted
    if name in ("$eq", "$ne", "$in", "$nin"):
        options = wanted if isinstance(wanted, list) else [wanted]
        values = held if isinstance(held, list) else [held]
        matches = any((kind(a), a) == (kind(b), b) for a in values for b in options if kind(a) != "none")
        return matches if name in ("$eq", "$in") else not matches
    if kind(held) != kind(wanted):
        return False
    return {"$gt": held > wanted, "$gte": held >= wanted, "$lt": held < wanted, "$lte": held <= wanted}[name]


@untimed
@given(filters, metadata)
def test_agrees_with_an_independent_evaluator(filter: dict[str, Any], unit: dict[str, Any]) -> None:
    """The compiled predicate and a second reading of the documented language never differ."""
    before = copy.deepcopy((filter, unit))
    assert compile_filter(filter)(unit) is evaluate(filter, unit)
    assert (filter, unit) == before


@untimed
@given(filters, metadata)
def test_not_is_the_opposite(filter: dict[str, Any], unit: dict[str, Any]) -> None:
    """A unit passes a filter or its negation, never both."""
    assert compile_filter({"$not": filter})(unit) is not compile_filter(filter)(unit)


@pytest.mark.parametrize("filter", [None, {}])
def test_no_filter_passes_everything(filter: dict[str, Any] | None) -> None:
    """Nothing asked for is nothing refused."""
    assert compile_filter(filter)({})
    assert compile_filter(filter)({"device": "HX-200"})


@pytest.mark.parametrize("filter", [[], "", 0, False, (), "device", [{"device": "HX-200"}], 5])
def test_what_is_no_mapping_is_refused(filter: Any) -> None:
    """An empty list or text is no filter, and above all not one that passes everything."""
    with pytest.raises(RequestError, match="filter: expected a mapping"):
        compile_filter(filter)


CASES = [
    ({"device": "HX-200"}, {"device": "HX-200"}, True),
    ({"device": "HX-200"}, {"device": "hx-200"}, False),
    ({"device": "HX-200"}, {}, False),
    ({"device": {"$ne": "HX-200"}}, {}, True),
    ({"device": {"$nin": ["HX-200"]}}, {}, True),
    ({"device": {"$in": []}}, {"device": "HX-200"}, False),
    ({"device": {"$nin": []}}, {"device": "HX-200"}, True),
    ({"year": {"$gt": 2024}}, {}, False),
    ({"year": {"$exists": True}}, {"year": 0}, True),
    ({"year": {"$exists": True}}, {"year": None}, False),
    ({"year": {"$exists": True}}, {"years": 1}, False),
    ({"year": {"$exists": False}}, {}, True),
    ({"year": {"$exists": False}}, {"year": None}, True),
    ({"tags": {"$exists": False}}, {"tags": []}, False),
    ({"draft": {"$exists": True}}, {"draft": False}, True),
    ({"$not": {"year": {"$exists": True, "$lt": 3}}}, {"year": 4}, True),
    ({"$not": {"year": {"$gt": 2024}}}, {}, True),
    ({"draft": True}, {"draft": 1}, False),
    ({"draft": 1}, {"draft": True}, False),
    ({"year": 1}, {"year": 1.0}, True),
    ({"year": "2024"}, {"year": 2024}, False),
    ({"year": {"$lt": 2025}}, {"year": "2024"}, False),
    ({"year": {"$gte": 0}}, {"year": True}, False),
    ({"year": {"$gte": 0}}, {"year": float("nan")}, False),
    ({"revised": {"$gte": "2026-01-01"}}, {"revised": "2026-03-01"}, True),
    ({"tags": "radio"}, {"tags": ["usb", "radio"]}, True),
    ({"tags": {"$ne": "radio"}}, {"tags": ["usb", "radio"]}, False),
    ({"tags": {"$in": ["lan", "usb"]}}, {"tags": ["usb"]}, True),
    ({"tags": {"$gt": "a"}}, {"tags": ["usb"]}, False),
    ({"year": {"$gte": 2020, "$lt": 2022}}, {"year": 2022}, False),
    ({"$or": [{"year": 1}, {"year": 2}], "draft": False}, {"year": 2, "draft": False}, True),
    ({"$or": [{"year": 1}, {"year": 2}], "draft": False}, {"year": 2, "draft": True}, False),
]


@pytest.mark.parametrize(("filter", "unit", "passes"), CASES)
def test_worked_cases(filter: dict[str, Any], unit: dict[str, Any], passes: bool) -> None:
    """Each sentence of the language's documentation, as a case worked by hand."""
    assert compile_filter(filter)(unit) is passes


BAD = [
    ({"$nor": [{}]}, r"unknown operator '\$nor'"),
    ({"year": {"$regex": "x"}}, r"unknown operator '\$regex' on 'year'"),
    ({"year": {"$not": 5}}, r"unknown operator '\$not' on 'year'"),
    ({"year": {}}, "field 'year' has no condition"),
    ({"year": None}, "'year' is compared with a NoneType"),
    ({"year": {"$in": 5}}, r"\$in on 'year' takes a list"),
    ({"year": {"$in": "2024"}}, r"\$in on 'year' takes a list"),
    ({"year": {"$in": [[1]]}}, "'year' is compared with a list"),
    ({"year": {"$exists": 1}}, r"\$exists on 'year' takes true or false \(got 1\)"),
    ({"year": {"$exists": None}}, r"\$exists on 'year' takes true or false \(got None\)"),
    ({"year": {"$exists": "true"}}, r"\$exists on 'year' takes true or false \(got 'true'\)"),
    ({"year": {"$gt": True}}, "'year' cannot be ordered against True"),
    ({"year": {"$gt": None}}, "'year' is compared with a NoneType"),
    ({"$and": []}, r"\$and takes a non-empty list"),
    ({"$or": {"year": 1}}, r"\$or takes a non-empty list"),
    ({"$and": "year"}, r"\$and takes a non-empty list"),
    ({"$not": [1]}, "expected a mapping"),
    ({5: 1}, "unknown operator 5"),
]


@pytest.mark.parametrize(("filter", "message"), BAD)
def test_what_is_not_in_the_language_is_named(filter: Any, message: str) -> None:
    """An operator, field or value outside the language is refused by name when the filter is compiled."""
    with pytest.raises(RequestError, match=message):
        compile_filter(filter)


@pytest.mark.parametrize("excess", [0, 1])
def test_nesting_is_bounded(excess: int) -> None:
    """16 levels compile; one more is refused instead of exhausting the stack."""
    nested: dict[str, Any] = {"year": 1}
    for _ in range(MAX_FILTER_DEPTH - 1 + excess):
        nested = {"$not": nested}
    if excess:
        with pytest.raises(RequestError, match="nested deeper than 16 levels"):
            compile_filter(nested)
    else:
        assert compile_filter(nested)({"year": 1}) is False


def test_later_changes_to_the_filter_do_not_reach_the_predicate() -> None:
    """A compiled filter keeps its meaning when the caller edits the mapping it came from."""
    wanted = ["HX-200"]
    passes = compile_filter({"device": {"$in": wanted}})
    wanted.append("HX-210")
    assert not passes({"device": "HX-210"})


def test_key_is_canonical() -> None:
    """Equal filters have equal keys whatever their order, and different ones different keys."""
    assert filter_key({"a": 1, "b": {"$in": [1, 2]}}) == filter_key({"b": {"$in": [1, 2]}, "a": 1})
    assert len({filter_key({"a": value}) for value in (1, True, "1", 2)}) == 4


def test_a_key_never_stands_for_another_filter() -> None:
    """A mapping or sequence of another type has the key of the plain one, not that of its text."""
    frozen = MappingProxyType({"a": MappingProxyType({"$in": deque([1, 2])})})
    assert filter_key(frozen) == filter_key({"a": {"$in": [1, 2]}})
    assert filter_key(frozen) != filter_key({"a": str(frozen["a"])})


def test_fields_are_found_at_any_depth() -> None:
    """Every field that a part of the filter reads is named once, and operators are not."""
    nested = {"a": 1, "$or": [{"b": {"$exists": False}}, {"$not": {"$and": [{"c": {"$gt": 1, "$lt": 3}}, {"a": 2}]}}]}
    assert fields_of(nested) == {"a", "b", "c"}
    assert fields_of({}) == fields_of(None) == frozenset()
    with pytest.raises(RequestError, match="unknown operator"):
        fields_of({"$nor": []})


@untimed
@given(filters, metadata)
def test_other_fields_do_not_matter(filter: dict[str, Any], unit: dict[str, Any]) -> None:
    """Whether a unit passes depends on nothing but the fields that are named."""
    read = {field: value for field, value in unit.items() if field in fields_of(filter)}
    assert compile_filter(filter)(read) is compile_filter(filter)(unit)


@pytest.mark.parametrize(
    "text",
    ["2026-12-01", "2024-02-29", "2026-12-01T23:59:59", "2026-12-01T00:00:00Z", "2026-12-01T00:00:00.123456789+00:00"],
)
def test_a_day_that_exists_is_a_date(text: str) -> None:
    """With or without a time, in UTC."""
    assert compile_filter({"until": {"$date": True}})({"until": text})


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-01",
        "2026-00-01",
        "2026-12-00",
        "2026-11-31",
        "2025-02-29",
        "0000-01-01",
        "2099-19-39T29:59:59",
        "2026-12-01T24:00:00",
        "2026-12-01T23:60:00",
        "2026-12-01 10:00:00",
        "2026-12-01T10:00:00+01:00",
        "20261201",
        "\uff12026-12-01",
        "soon",
    ],
)
def test_a_day_that_does_not_exist_is_no_date(text: str) -> None:
    """Whatever its form, it is ordered against no other day, so that a view denies what carries it."""
    assert not compile_filter({"until": {"$date": True}})({"until": text})
    assert compile_filter({"until": {"$date": False}})({"until": text})
