"""What BM25 has to know of all units: how many there are, how long they are, and how many of them hold a term.

They stand in a second collection, one row a term, so that a query reads as many rows by key as it has terms; Milvus has
them for itself and tells nobody. Under a filter they are counted: one count for the units, one a term, and one for each
binary digit of a length.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import Any

from bounded_retrieval.contracts.filters import Filter, filter_key
from bounded_retrieval.retrievers import _milvus_rows as rows
from bounded_retrieval.retrievers._bm25_index import SCORE_DECIMALS
from bounded_retrieval.retrievers._bm25_postings import idf
from bounded_retrieval.retrievers._milvus_client import MilvusConnection

_BATCH = 1_000
_KEPT_FILTERS = 256
_KEPT_TERMS = 100_000
_UNITS, _LENGTH, _UNSETTLED = "#units", "#length", "#unsettled"  # no term has that sign
_POINT = [1.0, 0.0]  # a collection has to have vectors


@dataclass
class Change:
    """What an addition or a removal does to the statistics.

    Attributes:
        units: how many more units.
        length: how many more terms in all.
        holding: by encoded term, how many more units hold it.
    """

    units: int = 0
    length: int = 0
    holding: Counter[str] = field(default_factory=Counter)

    def add(self, terms: str, sign: int) -> None:
        """Count a row's terms in (1) or out (-1)."""
        counts = rows.counts_in(terms)
        self.units += sign
        self.length += sign * counts.total()
        for term in counts:
            self.holding[term] += sign


@dataclass
class Statistics:
    """What is known so far of the units that pass one filter.

    Attributes:
        units: how many there are.
        length: their terms in all.
        holding: by encoded term, how many of them hold it.
        until: when to ask again, as `time.monotonic` tells it.
    """

    units: int
    length: int
    holding: dict[str, int]
    until: float

    @property
    def average(self) -> float:
        """Mean number of terms; 1 where there are none."""
        return max(1, self.length) / max(1, self.units)


class Scores:
    """Scores rows for a query of encoded terms, by the formula in ``_bm25_backends.py``, in the order of the terms."""

    def __init__(self, counted: Statistics, terms: Sequence[str]) -> None:
        self.terms = [term for term in terms if counted.holding[term] > 0]
        self._weights = [float(idf(counted.units, counted.holding[term])) for term in self.terms]
        self._average = counted.average

    def of(self, terms: str) -> float:
        """The score of a row with these encoded terms, rounded; 0 where none is the query's."""
        return round(sum(self.gains(terms)), SCORE_DECIMALS)

    def gains(self, terms: str) -> list[float]:
        """What each of `Scores.terms` adds to it."""
        counts = rows.counts_in(terms)
        norm = rows.K1 * (1 - rows.B + rows.B * counts.total() / self._average)
        weights = zip(self.terms, self._weights, strict=True)
        return [weight * (counts[term] / (counts[term] + norm)) if counts[term] else 0.0 for term, weight in weights]


class TermStatistics:
    """Reads and writes them. Any number of threads may read; one writer at a time, in all processes together.

    What was read is kept for ``ttl`` seconds, and not beyond a change that is made through this object.
    """

    def __init__(self, connection: MilvusConnection, ttl: float) -> None:
        self._units = connection
        self._terms = connection.of(f"{connection.collection}_terms")
        self._ttl = ttl
        self._kept: OrderedDict[str, Statistics] = OrderedDict()
        self._lock = Lock()

    def create(self) -> None:
        """Make the collection, if it is not there."""
        if self._terms.call("has_collection", self._terms.collection):
            return
        from pymilvus import DataType

        schema, indexes = self._terms.schema(), self._terms.indexes()
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=rows.ID_BYTES)
        schema.add_field("holding", DataType.INT64)
        schema.add_field("point", DataType.FLOAT_VECTOR, dim=len(_POINT))
        indexes.add_index("point", index_type="FLAT", metric_type="L2")
        options = {"schema": schema, "index_params": indexes, "consistency_level": "Strong"}
        self._terms.call("create_collection", self._terms.collection, **options)

    def drop(self) -> None:
        """Delete the collection."""
        self._terms.on_collection("drop_collection")

    def of(self, terms: Sequence[str], filter: Filter | None, timeout: float) -> Statistics:
        """The statistics of the units that pass a filter, ``holding`` of at least these encoded terms."""
        key = filter_key(filter) if filter else ""
        now = time.monotonic()
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
        if kept is None or kept.until < now or len(kept.holding) > _KEPT_TERMS:
            kept = None
        missing = [term for term in terms if kept is None or term not in kept.holding]
        if kept is not None and not missing:
            return kept
        found = self._count(missing, filter, timeout, kept) if filter else self._read(missing, timeout, kept)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > _KEPT_FILTERS:
                self._kept.popitem(last=False)
        return found

    @contextmanager
    def changing(self) -> Iterator[Change]:
        """Collect the change of an addition or a removal, and write it down at the end, also where that failed.

        Should the process die meanwhile, the next change counts everything anew.
        """
        was_settled = not self._values([_UNSETTLED]).get(_UNSETTLED)
        self._put({_UNSETTLED: 1})
        change = Change()
        try:
            yield change
        finally:
            if was_settled:
                self._apply(change)
            else:
                self._recount()
            self._put({_UNSETTLED: 0})
            with self._lock:
                self._kept.clear()

    def _recount(self) -> None:
        everything = Change()
        for batch in all_rows(self._units, ["terms"]):
            for row in batch:
                everything.add(row["terms"], 1)
        self.drop()
        self.create()
        self._put({_UNSETTLED: 1})
        self._apply(everything)

    def _apply(self, change: Change) -> None:
        changed = {term: count for term, count in change.holding.items() if count}
        changed |= {_UNITS: change.units, _LENGTH: change.length}
        remaining = iter(changed)
        while batch := list(islice(remaining, _BATCH)):
            before = self._values(batch)
            self._put({key: before.get(key, 0) + changed[key] for key in batch})

    def _values(self, keys: Sequence[str], timeout: float | None = None) -> dict[str, int]:
        options = {"output_fields": ["holding"], "filter": rows.one_of(keys)}
        found = self._terms.on_collection("query", timeout, **options) if keys else []
        return {row["id"]: int(row["holding"]) for row in found}

    def _put(self, values: Mapping[str, int]) -> None:
        data = [{"id": key, "holding": value, "point": _POINT} for key, value in values.items()]
        self._terms.on_collection("upsert", data=data)

    def _read(self, terms: Sequence[str], timeout: float, kept: Statistics | None) -> Statistics:
        found = self._values([_UNITS, _LENGTH, *terms], timeout)
        holding = {**(kept.holding if kept else {}), **{term: found.get(term, 0) for term in terms}}
        until = kept.until if kept else time.monotonic() + self._ttl
        return Statistics(found.get(_UNITS, 0), found.get(_LENGTH, 0), holding, until)

    def _count(self, terms: Sequence[str], filter: Filter, timeout: float, kept: Statistics | None) -> Statistics:
        passing = rows.narrowed(filter).text
        condition = passing if isinstance(passing, str) else ""

        def count(*more: str) -> int:
            asked = " and ".join([*([condition] if condition else []), *more])
            (answer,) = self._units.on_collection("query", timeout, filter=asked, output_fields=["count(*)"])
            return int(answer["count(*)"])

        holding = {term: count(f'text_match(terms, "{term}")') for term in terms}
        if kept is not None:
            return Statistics(kept.units, kept.length, {**kept.holding, **holding}, kept.until)
        length = sum(count(rows.held([rows.length_facet(bit)])) << bit for bit in range(rows.LENGTH_BITS))
        return Statistics(count(), length, holding, time.monotonic() + self._ttl)


def all_rows(connection: MilvusConnection, fields: list[str], condition: str = "") -> Iterator[list[dict[str, Any]]]:
    """All rows of a collection that meet a condition, in batches, by id."""
    asked = condition
    while batch := connection.first_rows(fields, asked, _BATCH):
        yield batch
        # Milvus' iterator would go on by itself, but not past an id with a quote.
        asked = " and ".join([*([condition] if condition else []), f"id > {rows.quoted_id(batch[-1]['id'])}"])
