from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.errors import RequestError
from bounded_retrieval.retrievers._bm25_masks import ByteBoundCache, FilterMasks

NUMBERS = st.one_of(
    st.integers(-2, 3),
    st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2**60, -(2**63), 2**63 - 1]),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 2.0**53, 2.0**53 + 2, 2.0**60, 1e300, 5e-324]),
)
WORDS = st.sampled_from(["", "1", "a", "b", "ab", "A", "é", "true", "2026-01-01", "2026-06-30"])
SCALARS = st.one_of(st.booleans(), NUMBERS, WORDS)
ITEMS = st.one_of(SCALARS, st.none(), st.just([1]), st.just({"x": 1}))
VALUES = st.one_of(SCALARS, st.none(), st.lists(ITEMS, max_size=4), st.just({"x": 1}), st.just(()))
FIELDS = st.sampled_from(["a", "b", "c", "title", ""])
BOUNDS = st.one_of(SCALARS, st.sampled_from([10**40, -(10**40), math.inf, -math.inf, math.nan, "\x00", "\ud800"]))
TESTS = st.one_of(
    st.dictionaries(st.sampled_from(["$eq", "$ne"]), BOUNDS, min_size=1),
    st.dictionaries(st.sampled_from(["$in", "$nin"]), st.lists(BOUNDS, max_size=4), min_size=1),
    st.dictionaries(
        st.sampled_from(["$gt", "$gte", "$lt", "$lte"]),
        BOUNDS.filter(lambda bound: not isinstance(bound, bool)),
        min_size=1,
    ),
    st.fixed_dictionaries({"$exists": st.booleans()}),
    st.fixed_dictionaries({"$date": st.booleans()}),
)
FILTERS = st.recursive(
    st.dictionaries(FIELDS, st.one_of(BOUNDS, TESTS, st.builds(lambda *t: t[0] | t[1], TESTS, TESTS)), max_size=3),
    lambda inner: st.one_of(
        st.builds(
            lambda name, parts: {name: parts}, st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3)
        ),
        st.builds(lambda part: {"$not": part}, inner),
        st.builds(lambda part, field, bound: {"$not": part, field: bound}, inner, FIELDS, TESTS),
    ),
    max_leaves=8,
)


def masks_of(metadatas):
    """Masks over these units' metadata."""
    return FilterMasks(lambda: ((str(row), metadata) for row, metadata in enumerate(metadatas)), len(metadatas))


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.dictionaries(FIELDS, VALUES, max_size=4), max_size=12),
    st.lists(FILTERS, min_size=1, max_size=6),
)
def test_a_mask_is_what_the_predicate_says_of_each_unit(metadatas, filters):
    """For any metadata, any filter and any order of filters, the mask and the compiled filter never differ."""
    masks = masks_of(metadatas)
    expected = [list(map(compile_filter(each), metadatas)) for each in filters]
    for _ in range(2):
        for each, wanted in zip(filters, expected, strict=True):
            found = masks.mask(each)
            assert found.dtype == np.bool_
            assert found.tolist() == wanted


EDGES = [None, True, False, 0, 1, 2**53, 2**53 + 1, 2.0**53, 0.5, "", "a", "1", [], [None], [1, "a"], [True], [[1]], {}]


@pytest.mark.parametrize("name", ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"])
@pytest.mark.parametrize("bound", [True, 0, 1, 2**53 + 1, 2.0**53, 0.5, math.nan, math.inf, "", "a", "1"])
def test_each_kind_of_value_against_each_kind_of_bound(name, bound):
    """Truth values, whole numbers beyond a float's reach, texts, lists and nothing at all are told apart."""
    metadatas = [{}, *({"x": value} for value in EDGES)]
    if isinstance(bound, bool) and name not in ("$eq", "$ne"):
        with pytest.raises(RequestError):
            masks_of(metadatas).mask({"x": {name: bound}})
        return
    accepts = compile_filter({"x": {name: bound}})
    assert masks_of(metadatas).mask({"x": {name: bound}}).tolist() == [accepts(each) for each in metadatas]


def test_later_filters_do_not_change_earlier_masks():
    """A mask is the caller's to keep: combining it further makes others."""
    masks = masks_of([{"x": 1}, {"x": None}, {}])
    first = masks.mask({"x": {"$exists": True}})
    masks.mask({"$not": {"x": {"$exists": True}}})
    masks.mask({"x": {"$exists": True, "$eq": 2}})
    assert first.tolist() == [True, False, False]


def test_a_filter_outside_the_language_is_refused():
    """The error is the one of the compiled filter."""
    with pytest.raises(RequestError, match="unknown operator"):
        masks_of([{"x": 1}]).mask({"x": {"$regex": "a"}})


def test_threads_read_a_field_once():
    """Threads that ask for one new field at once share one pass over the metadata, and all get its masks."""
    metadatas = [{"x": n % 5, "y": n} for n in range(2_000)]
    reads = []

    def read():
        reads.append(1)
        return ((str(row), metadata) for row, metadata in enumerate(metadatas))

    masks = FilterMasks(read, len(metadatas))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: int(masks.mask({"x": n % 5, "y": {"$lt": 1_000}}).sum()), range(64)))
    assert found == [200] * 64
    assert len(reads) == 1


def test_a_filter_on_fields_already_read_waits_for_nobody():
    """While one thread reads the metadata for a new field, others go on with the fields there are."""
    begun, go_on = threading.Event(), threading.Event()
    go_on.set()

    def read():
        begun.set()
        assert go_on.wait(10)
        yield "0", {"x": 1, "y": 2}

    masks = FilterMasks(read, 1)
    assert masks.mask({"x": 1}).tolist() == [True]
    begun.clear()
    go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(masks.mask, {"y": 2})
        try:
            assert begun.wait(10)
            assert masks.mask({"x": 2, "z": 1}).tolist() == [False]
            assert not reading.done()
        finally:
            go_on.set()
        assert reading.result().tolist() == [True]


def test_a_read_that_fails_is_made_again():
    """An error while metadata is read reaches the caller and leaves nothing half made."""
    broken = [True]

    def read():
        yield "0", {"x": 1}
        if broken:
            raise OSError("broken")

    masks = FilterMasks(read, 1)
    with pytest.raises(OSError, match="broken"):
        masks.mask({"x": 1})
    broken.clear()
    assert masks.mask({"x": 1}).tolist() == [True]


def test_the_cache_lets_go_of_what_was_used_longest_ago():
    """Values go by size, oldest use first; one that is larger than the bound is held until the next."""
    cache = ByteBoundCache(4_000)
    cache.put("a", 1, 1_000)
    cache.put("b", 2, 1_000)
    assert cache.get("a") == 1
    cache.put("c", 3, 1_000)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    cache.put("c", 4, 1_000)
    assert (cache.get("a"), cache.get("c"), len(cache)) == (1, 4, 2)
    cache.put("large", 5, 9_000)
    assert (cache.get("large"), len(cache)) == (5, 1)
    cache.put("d", 6, 0)
    assert (cache.get("large"), cache.get("d")) == (None, 6)
