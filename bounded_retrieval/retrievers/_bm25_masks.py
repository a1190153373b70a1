"""Filters over all units at once: metadata by column, and a filter as boolean algebra over the columns.

A field's column is made when a filter first reads the field, in one pass over the metadata; after that a filter costs
a few array operations, however new it is. Which units pass is exactly what `compile_filter` says of each of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from threading import Lock
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.contracts.filters import Filter, Metadata, compile_filter, fields_of, filter_key, is_date

Mask = NDArray[np.bool_]
"""Shape (units,): which units pass. Never written to once made."""

Kind = Literal["truth", "number", "text", "other"]
"""Values of different kinds are never equal or ordered, and others not even among themselves."""

Value = TypeVar("Value")

CACHED_MASK_BYTES = 64 * 2**20
"""Most memory that masks of recent filters take in one searcher."""

_ENTRY_BYTES = 512  # what an entry of the cache takes besides its value and its key, rounded up


class FilterMasks:
    """Turns filters into masks; any number of threads may ask.

    Args:
        read: gives each unit's id and metadata, by row; called once for each filter that reads new fields.
        units: how many units there are.
    """

    def __init__(self, read: Callable[[], Iterable[tuple[str, Metadata]]], units: int) -> None:
        self._read = read
        self._units = units
        self._columns: dict[str, _Column] = {}
        self._fields: frozenset[str] | None = None
        self._nowhere = _Column.of([], units)
        self._lock = Lock()

    def mask(self, filter: Filter) -> Mask:
        """Which units pass, shape (units,).

        Raises:
            RequestError: names the operator, field or value that is not part of the language.
        """
        return self._filter(filter, self._columns_of(fields_of(filter)))

    def _columns_of(self, fields: frozenset[str]) -> Mapping[str, _Column]:
        if self._unread(fields):
            with self._lock:
                missing = self._unread(fields)  # another thread may have read them meanwhile
                if missing:
                    self._add_columns(missing)
        columns = self._columns
        return {field: columns.get(field, self._nowhere) for field in fields}

    def _unread(self, fields: frozenset[str]) -> frozenset[str]:
        missing = fields - self._columns.keys()
        # Names that no unit has cost one pass at most, and are not kept: there is no end of them.
        return missing if self._fields is None else missing & self._fields

    def _add_columns(self, fields: frozenset[str]) -> None:
        held: dict[str, list[tuple[int, Any]]] = {field: [] for field in fields}
        names: set[str] = set()
        for row, (_, metadata) in enumerate(self._read()):
            names.update(metadata)
            for field in fields & metadata.keys():
                held[field].append((row, metadata[field]))
        made = {field: _Column.of(found, self._units) for field, found in held.items() if found}
        # Another dictionary: threads that need no new column read the old one without the lock.
        self._columns = {**self._columns, **made}
        self._fields = frozenset(names)

    def _filter(self, filter: Filter, columns: Mapping[str, _Column]) -> Mask:
        parts = [self._entry(key, value, columns) for key, value in filter.items()]
        return reduce(and_, parts) if parts else np.ones(self._units, dtype=np.bool_)

    def _entry(self, key: str, value: Any, columns: Mapping[str, _Column]) -> Mask:
        if key == "$not":
            return ~self._filter(value, columns)
        if key in ("$and", "$or"):
            parts = [self._filter(part, columns) for part in value]
            return reduce(and_ if key == "$and" else or_, parts)
        tests = value if isinstance(value, Mapping) else {"$eq": value}
        return reduce(and_, [columns[key].test(name, bound) for name, bound in tests.items()])


class ByteBoundCache(Generic[Value]):
    """Keeps the values used last, up to a number of bytes; the newest one whatever its size.

    Args:
        max_bytes: of values, keys and what an entry itself takes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: str) -> Value | None:
        """The value, which counts as used now; None if it is not held."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: str, value: Value, size: int) -> None:
        """Hold a value of ``size`` bytes, and let go of those used longest ago."""
        whole = size + 4 * len(key) + _ENTRY_BYTES
        with self._lock:
            if key in self._held:
                self._bytes -= self._held.pop(key)[1]
            self._held[key] = (value, whole)
            self._bytes += whole
            while self._bytes > self._max_bytes and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._held)


def cached_masks(read: Callable[[], Iterable[tuple[str, Metadata]]], units: int) -> Callable[[Filter], Mask]:
    """A function that gives the mask of a filter, and keeps those used last.

    Args:
        read: see `FilterMasks`.
        units: likewise.
    """
    masks, made = FilterMasks(read, units), ByteBoundCache[Mask](CACHED_MASK_BYTES)

    def mask(filter: Filter) -> Mask:
        compile_filter(filter)  # a filter outside the language may have the key of one that is held
        key = filter_key(filter)
        found = made.get(key)
        if found is None:
            found = masks.mask(filter)
            made.put(key, found, found.nbytes)
        return found

    return mask


@dataclass(frozen=True, kw_only=True)
class _ByValue:
    """Rows by value: those with ``values[i]`` are ``rows[starts[i] : starts[i + 1]]``.

    Attributes:
        values: distinct, ascending.
        starts: shape (values + 1,), ascending from 0.
        rows: int32.
    """

    values: list[Any]
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]

    @classmethod
    def of(cls, found: Sequence[tuple[int, Any]]) -> _ByValue:
        """Sort rows and values of one kind. Numbers stay Python's, whose comparisons are exact at any size."""
        codes: dict[Any, int] = {}
        coded = np.array([codes.setdefault(value, len(codes)) for _, value in found], dtype=np.int64)
        values = sorted(codes)
        ranks = np.empty(len(values), dtype=np.int64)
        ranks[[codes[value] for value in values]] = np.arange(len(values))
        ranked = ranks[coded]
        rows = np.array([row for row, _ in found], dtype=np.int32)[np.argsort(ranked, kind="stable")]
        counts = np.bincount(ranked, minlength=len(values))
        return cls(values=values, starts=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), rows=rows)

    def between(self, first: int, end: int) -> NDArray[np.int32]:
        """The rows with ``values[first:end]``."""
        return self.rows[self.starts[first] : self.starts[max(first, end)]]

    def equal(self, value: Any) -> NDArray[np.int32]:
        """The rows with the value."""
        place = bisect_left(self.values, value)
        return self.between(place, place + (place < len(self.values) and self.values[place] == value))

    def ordered(self, name: str, bound: Any) -> NDArray[np.int32]:
        """The rows with a value on that side of the bound."""
        if name in ("$gt", "$gte"):
            return self.between((bisect_right if name == "$gt" else bisect_left)(self.values, bound), len(self.values))
        return self.between(0, (bisect_left if name == "$lt" else bisect_right)(self.values, bound))


@dataclass(frozen=True, kw_only=True)
class _Column:
    """One field of all units.

    Attributes:
        present: where the field is there and not None.
        dated: where it is a date.
        scalars: its values, lists left out; what an ordering is held against.
        elements: the same with the elements of lists; what equality is held against.
    """

    present: Mask
    dated: Mask
    scalars: Mapping[Kind, _ByValue]
    elements: Mapping[Kind, _ByValue]

    @classmethod
    def of(cls, found: Sequence[tuple[int, Any]], units: int) -> _Column:
        """Make the column of a field from the rows that have it."""
        present = np.zeros(units, dtype=np.bool_)
        present[[row for row, value in found if value is not None]] = True
        dated = np.zeros(units, dtype=np.bool_)
        dated[[row for row, value in found if is_date(value)]] = True
        listed = [(row, item) for row, value in found if isinstance(value, list) for item in value]
        scalars = _by_kind(found)
        elements = _by_kind([*found, *listed]) if listed else scalars
        return cls(present=present, dated=dated, scalars=scalars, elements=elements)

    def test(self, name: str, bound: Any) -> Mask:
        """Where a test of the filter language holds."""
        if name in ("$exists", "$date"):
            held = self.present if name == "$exists" else self.dated
            return held if bound else ~held
        mask = np.zeros(len(self.present), dtype=np.bool_)
        if name in ("$gt", "$gte", "$lt", "$lte"):
            sorted_by_value = self.scalars.get(_kind(bound))
            if sorted_by_value is not None:
                mask[sorted_by_value.ordered(name, bound)] = True
            return mask
        for value in bound if name in ("$in", "$nin") else [bound]:
            by_value = self.elements.get(_kind(value))
            if by_value is not None:
                mask[by_value.equal(value)] = True
        return ~mask if name in ("$ne", "$nin") else mask


def _by_kind(found: Iterable[tuple[int, Any]]) -> dict[Kind, _ByValue]:
    groups: dict[Kind, list[tuple[int, Any]]] = {}
    for row, value in found:
        kind = _kind(value)
        if kind != "other":
            groups.setdefault(kind, []).append((row, value))
    return {kind: _ByValue.of(group) for kind, group in groups.items()}


def _kind(value: Any) -> Kind:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, (int, float)):
        # NaN equals nothing and is ordered against nothing.
        return "other" if isinstance(value, float) and math.isnan(value) else "number"
    return "text" if isinstance(value, str) else "other"
