from __future__ import annotations

import copy
import datetime as dt
import enum
import json
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Candidate, Unit, searchable_text
from bounded_retrieval.contracts.normalise import (
    clean_metadata,
    clean_text,
    content_id,
    fingerprint,
    part_id,
    source_of_part,
)

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Colour(str, enum.Enum):  # noqa: UP042 - the older form is the one whose str() is not its value
    RED = "red"


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


AS_THEY_ARE = [None, True, False, 0, -(2**63), 2**63 - 1, 0.5, "text", "", "مرحبا", [1, ["a", None]], {"a": {"b": 1}}]
CONVERTED = [
    (np.int64(7), 7),
    (np.float32(0.5), 0.5),
    (np.bool_(True), True),
    (np.str_("a"), "a"),
    (np.array(3), 3),
    (np.array([3]), 3),
    (np.datetime64("2026-01-02"), "2026-01-02"),
    (np.datetime64("2026-01-02T03:04:05", "s"), "2026-01-02T03:04:05"),
    (np.datetime64("2026-01-02T03:04:05", "ns"), "2026-01-02T03:04:05.000000000"),
    (dt.date(2026, 1, 2), "2026-01-02"),
    (dt.time(3, 4), "03:04:00"),
    (dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), "2026-01-02T03:00:00+00:00"),
    ((1, (2,)), [1, [2]]),
    (Colour.RED, "red"),
    ("a\x00b\ud800c\udfff", "a\ufffdb\ufffdc\ufffd"),
]
AS_TEXT = [
    (2**63, "9223372036854775808"),
    (-(2**63) - 1, "-9223372036854775809"),
    (np.uint64(2**64 - 1), "18446744073709551615"),
    (float("nan"), "nan"),
    (float("-inf"), "-inf"),
    (np.float64("nan"), "nan"),
    (Decimal("1.50"), "1.50"),
    (PurePosixPath("a/b"), "a/b"),
    (dt.timedelta(seconds=5), "0:00:05"),
    (b"x", "b'x'"),
    (np.array([1, 2]), "[1 2]"),
    (Unprintable(), "<Unprintable>"),
]


@pytest.mark.parametrize("value", AS_THEY_ARE)
def test_json_values_stay(value: Any) -> None:
    """What JSON can hold is kept, and nothing is noted."""
    assert clean_metadata({"key": value}) == ({"key": value}, False)


@pytest.mark.parametrize(("value", "cleaned"), CONVERTED, ids=lambda value: ascii(value)[:30])
def test_close_relatives_are_converted_silently(value: Any, cleaned: Any) -> None:
    """Scalars of numpy, dates and tuples become what they stand for, of the exact built-in type, without a note."""
    result, noted = clean_metadata({"key": value})
    assert result == {"key": cleaned}
    assert type(result["key"]) is type(cleaned)
    assert not noted


@pytest.mark.parametrize(("value", "text"), AS_TEXT, ids=lambda value: f"{type(value).__name__}")
def test_the_rest_becomes_text_and_is_noted(value: Any, text: str) -> None:
    """Integers beyond 64 bits, numbers that are none, and anything else become text; the caller is told."""
    assert clean_metadata({"key": value}) == ({"key": text}, True)


def test_astronomic_integers_are_written_in_hexadecimal() -> None:
    """An integer that Python refuses to write in decimal is still written, at any depth."""
    huge = 10**5000
    assert clean_metadata({"key": huge}) == ({"key": hex(huge)}, True)
    deep: Any = huge
    for _ in range(10):
        deep = [deep]
    cleaned, noted = clean_metadata({"key": deep})
    assert noted
    json.dumps(cleaned)


def test_keys_become_clean_text() -> None:
    """Keys of any type become text without NUL and lone surrogates."""
    assert clean_metadata({1: "a", "b\x00": {None: "c\ud800"}}) == ({"1": "a", "b\ufffd": {"None": "c\ufffd"}}, False)


def test_cycles_end() -> None:
    """Metadata that contains itself is cut at a depth instead of recursing for ever."""
    loop: dict[str, Any] = {}
    loop["self"] = loop
    cleaned, noted = clean_metadata(loop)
    assert noted
    json.dumps(cleaned)


def test_the_callers_metadata_is_not_changed() -> None:
    """The argument keeps its values, nested ones too, and shares no container with the copy."""
    given_metadata = {"a": [1, {"b": np.int64(2)}], "c": ("x\x00",)}
    before = copy.deepcopy(given_metadata)
    cleaned, _ = clean_metadata(given_metadata)
    cleaned["a"][1]["b"] = 99
    cleaned["a"].append(5)
    assert given_metadata == before


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters(codec=None)),
        st.binary(),
        st.dates(),
        st.datetimes(),
        st.decimals(),
        st.complex_numbers(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3), st.sets(st.integers(), max_size=2)
    ),
    max_leaves=10,
)


@untimed
@given(st.dictionaries(st.one_of(st.text(st.characters(codec=None)), st.integers()), anything, max_size=4))
def test_the_copy_is_json_native_and_stays_so(metadata: dict[Any, Any]) -> None:
    """Any metadata gives strict JSON that UTF-8 can hold, and cleaning it again changes nothing."""
    cleaned, _ = clean_metadata(metadata)
    text = json.dumps(cleaned, allow_nan=False, ensure_ascii=False)
    assert json.loads(text) == cleaned
    assert "\x00" not in text.encode().decode()
    assert clean_metadata(cleaned) == (cleaned, False)


def test_clean_text_keeps_everything_else() -> None:
    """Only NUL and lone surrogates are replaced; other control characters, marks and emoji stay."""
    kept = "a\x01\n\u200f\u0301😀한"
    assert clean_text(kept) == kept
    assert clean_text("\x00\ud83d") == "\ufffd\ufffd"


def test_fingerprint_is_of_the_cleaned_text() -> None:
    """Texts that are cleaned alike have one fingerprint; any other difference gives another."""
    assert fingerprint("a\x00") == fingerprint("a\ufffd")
    assert fingerprint("a") == "ca978112ca1bbdcafac231b39a23dc4d"
    assert fingerprint("a") != fingerprint("A") != fingerprint("a ")
    assert content_id("a") == f"sha256:{fingerprint('a')}"


def test_unit_from_document() -> None:
    """A unit copies a document: clean text, title apart from the other metadata, fingerprint, and a note of conversions."""
    document = Document(id="u1", page_content="a\x00", metadata={"title": "T\ud800", "price": Decimal(1)})
    unit = Unit.from_document(document)
    assert (unit.unit_id, unit.text, unit.title) == ("u1", "a\ufffd", "T\ufffd")
    assert (unit.metadata, unit.metadata_converted) == ({"price": "1"}, True)
    assert unit.fingerprint == fingerprint("a\ufffd")
    assert document.metadata == {"title": "T\ud800", "price": Decimal(1)}
    assert unit.to_document().metadata == {"title": "T\ufffd", "price": "1"}


def test_unit_without_an_id_takes_one_from_its_text() -> None:
    """A document without an id gets the same id every time, and a given id wins over the document's own."""
    assert Unit.from_document(Document(page_content="a")).unit_id == content_id("a")
    assert Unit.from_document(Document(id="own", page_content="a"), "given").unit_id == "given"


@pytest.mark.parametrize(
    ("score", "kept"), [(np.float32(1.5), 1.5), (float("nan"), None), (float("inf"), None), (-3, -3.0), (None, None)]
)
def test_scores_are_finite_or_none(score: Any, kept: float | None) -> None:
    """A candidate's score is a finite Python float or none."""
    candidate = Candidate(unit_id="u\x00\ud800", channel="dense", rank=1, score=score)
    assert candidate.score == kept
    assert type(candidate.score) in (float, type(None))
    assert candidate.unit_id == "u\ufffd\ufffd"


def test_searchable_text_is_title_and_text() -> None:
    """Both channels index the title, a line break and the text; without a title the text alone."""
    assert searchable_text("T", "text") == "T\ntext"
    assert searchable_text("", "text") == "text"


def test_sets_become_sorted_lists() -> None:
    """A set comes in another order in every process; its list does not."""
    assert clean_metadata({"groups": {"b", "a"}, "codes": frozenset({2, 1})}) == (
        {"groups": ["a", "b"], "codes": [1, 2]},
        False,
    )


@pytest.mark.parametrize("source", ["guide.md", "a/b#c.md", "a-0123456789abcdef.md", "line\nbreak.md"])
@pytest.mark.parametrize("slug", ["", "install", "two-words"])
def test_a_parts_id_names_its_source(source: str, slug: str) -> None:
    """Whatever the source and the heading, and equal for equal text only."""
    made = part_id(source, slug, "text")
    assert source_of_part(made) == source
    assert (made == part_id(source, slug, "text"), made == part_id(source, slug, "other")) == (True, False)


@pytest.mark.parametrize(
    "unit_id", ["guide.md", "guide.md#install", "guide.md#0123", "#0123456789abcdef", "guide.md#x-0123456789abcdeF", ""]
)
def test_other_ids_name_no_source(unit_id: str) -> None:
    """No digest of that length, or nothing before it."""
    assert source_of_part(unit_id) is None
