"""What BM25 has to know of all units: how many there are, how long they are, and how many of them hold a term.

They stand in a second collection, one row a term, so that a query reads as many rows by key as it has terms; Milvus has
them for itself and tells nobody. Under a filter they are counted: one count for the units, one a term, and one for each
binary digit of a length.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Lock
from typing import Any

from bounded_retrieval.contracts.filters import Filter, filter_key
from bounded_retrieval.errors import StoreError
from bounded_retrieval.retrievers import _milvus_rows as rows
from bounded_retrieval.retrievers._bm25_index import SCORE_DECIMALS
from bounded_retrieval.retrievers._bm25_postings import idf
from bounded_retrieval.retrievers._milvus_client import MilvusConnection
from bounded_retrieval.retrievers._server_units import within_deadline

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

    def rows(self) -> dict[str, int]:
        """What it adds to each row; to those of the units last, so that no term is held by more than there are."""
        return {
            **{term: count for term, count in self.holding.items() if count},
            _LENGTH: self.length,
            _UNITS: self.units,
        }


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

    def __post_init__(self) -> None:
        """What was counted while a writer was at work still makes sense."""
        self.units, self.length = max(0, self.units), max(0, self.length)
        self.holding = {term: min(max(0, count), self.units) for term, count in self.holding.items()}

    def agrees(self, units: int, holding: Mapping[str, int]) -> bool:
        """Whether what was counted anew is what was counted then."""
        return units == self.units and all(self.holding.get(term, count) == count for term, count in holding.items())

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
        self._changes = 0
        self._lock = Lock()

    def create(self, *, is_new: bool) -> None:
        """Make the collection, if it is not there.

        Args:
            is_new: the units' collection is still to be made; statistics of one that is there are counted.
        """
        from pymilvus import DataType

        schema, indexes = self._terms.schema(), self._terms.indexes()
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=rows.ID_BYTES)
        schema.add_field("holding", DataType.INT64)
        schema.add_field("point", DataType.FLOAT_VECTOR, dim=len(_POINT))
        indexes.add_index("point", index_type="FLAT", metric_type="L2")
        if self._terms.make(schema, indexes) is is_new:
            return
        self._put({_UNSETTLED: 1})
        if not is_new:
            with self.changing():
                pass

    def drop(self) -> None:
        """Delete the collection."""
        self._terms.on_collection("drop_collection")

    def of(self, terms: Sequence[str], filter: Filter | None) -> Statistics:
        """The statistics of the units that pass a filter, ``holding`` of at least these encoded terms."""
        passing = rows.narrowed(filter).text
        if passing is False:
            return Statistics(0, 0, dict.fromkeys(terms, 0), time.monotonic())
        key = filter_key(filter) if filter else ""
        with self._lock:
            kept, changes = self._still_kept(key), self._changes
        if kept is not None and all(term in kept.holding for term in terms):
            return kept
        # All of them, not those that are missing alone: what is kept may be older than what is counted now.
        found = self._count(terms, passing, kept) if filter else self._read(terms, kept)
        with self._lock:
            if changes == self._changes:
                self._keep(key, found)
        return found

    def _still_kept(self, key: str) -> Statistics | None:
        kept = self._kept.get(key)
        if kept is None or kept.until < time.monotonic() or len(kept.holding) > _KEPT_TERMS:
            return None
        self._kept.move_to_end(key)
        return kept

    def _keep(self, key: str, found: Statistics) -> None:
        # A term that nobody holds is asked for again: it may be new.
        self._kept[key] = replace(found, holding={term: count for term, count in found.holding.items() if count})
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT_FILTERS:
            self._kept.popitem(last=False)

    @contextmanager
    def changing(self) -> Iterator[Change]:
        """Collect the change of an addition or a removal, and write it down at the end.

        Should that fail or the process die meanwhile, the next change counts everything anew: nobody knows what the
        server did of a call that broke off. What is known of the change is written down until then.
        """
        was_settled = not self._values([_UNSETTLED]).get(_UNSETTLED)
        self._put({_UNSETTLED: 1})
        change = Change()
        try:
            with self._known_on_error(change):
                yield change
            if was_settled:
                self._apply(change)
            else:
                self._recount()
            self._put({_UNSETTLED: 0})
        finally:
            with self._lock:
                self._changes += 1
                self._kept.clear()

    @contextmanager
    def _known_on_error(self, change: Change) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(StoreError):
                self._apply(change)
            raise

    def _recount(self) -> None:
        everything = Change()
        for batch in all_rows(self._units, ["terms"]):
            for row in batch:
                everything.add(row["terms"], 1)
        counted = everything.rows()
        held = {row["id"] for batch in all_rows(self._terms, ["id"]) for row in batch}
        for part in _parts(counted):
            self._put({key: counted[key] for key in part})
        # Overwritten and then tidied: somebody may be reading them.
        for part in _parts(held - counted.keys() - {_UNSETTLED}):
            self._terms.on_collection("delete", ids=part)

    def _apply(self, change: Change) -> None:
        changed = change.rows()
        for part in _parts(changed):
            before = self._values(part)
            self._put({key: before.get(key, 0) + changed[key] for key in part})

    def _values(self, keys: Sequence[str], timeout: float | None = None) -> dict[str, int]:
        options = {"output_fields": ["holding"], "filter": rows.one_of(keys)}
        found = self._terms.on_collection("query", timeout, **options) if keys else []
        return {row["id"]: int(row["holding"]) for row in found}

    def _put(self, values: Mapping[str, int]) -> None:
        data = [{"id": key, "holding": value, "point": _POINT} for key, value in values.items()]
        self._terms.on_collection("upsert", data=data)

    def _read(self, terms: Sequence[str], kept: Statistics | None) -> Statistics:
        found = self._values([_UNITS, _LENGTH, *terms], within_deadline(self._terms.timeout))
        units, length, holding = (
            found.get(_UNITS, 0),
            found.get(_LENGTH, 0),
            {term: found.get(term, 0) for term in terms},
        )
        if kept is not None and kept.agrees(units, holding) and kept.length == length:
            return replace(kept, holding={**kept.holding, **holding})
        return Statistics(units, length, holding, time.monotonic() + self._ttl)

    def _count(self, terms: Sequence[str], passing: str | bool, kept: Statistics | None) -> Statistics:
        condition = passing if isinstance(passing, str) else ""

        def count(*more: str) -> int:
            asked = " and ".join([*([condition] if condition else []), *more])
            limit = within_deadline(self._units.timeout)
            (answer,) = self._units.on_collection("query", limit, filter=asked, output_fields=["count(*)"])
            return int(answer["count(*)"])

        units, holding = count(), {term: count(f'text_match(terms, "{term}")') for term in dict.fromkeys(terms)}
        if kept is not None and kept.agrees(units, holding):
            return replace(kept, holding={**kept.holding, **holding})
        length = sum(count(rows.held([rows.length_facet(bit)])) << bit for bit in range(rows.LENGTH_BITS))
        return Statistics(units, length, holding, time.monotonic() + self._ttl)


def _parts(keys: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(keys)
    while part := list(islice(remaining, _BATCH)):
        yield part


def all_rows(connection: MilvusConnection, fields: list[str], condition: str = "") -> Iterator[list[dict[str, Any]]]:
    """All rows of a collection that meet a condition, in batches, by id."""
    asked = condition
    while batch := connection.first_rows(fields, asked, _BATCH):
        yield batch
        # Milvus' iterator would go on by itself, but not past an id with a quote.
        asked = " and ".join([*([condition] if condition else []), f"id > {rows.quoted_id(batch[-1]['id'])}"])
