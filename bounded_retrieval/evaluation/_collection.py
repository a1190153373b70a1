"""What a test collection is: queries, judgements, and what a survey of them found."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Collection as Ids
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from langchain_core.documents import Document

from bounded_retrieval.errors import SourceError

Kind = Literal["beir", "trec", "ir_datasets", "shipped", "table"]
"""Where a collection was read from."""

Judgements = Mapping[str, Mapping[str, int]]
"""Grade of each judged unit, by query id and unit id; a grade above 0 is relevant."""

MAX_NAMED = 5
"""Most ids that a finding names."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query of a collection.

    Attributes:
        query_id: as the collection names it.
        text: without blanks around it, never empty.
        metadata: what else the collection says of it.
    """

    query_id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class Found:
    """How many ids a survey found, and the first of them."""

    count: int
    first: tuple[str, ...]

    @classmethod
    def of(cls, ids: Iterable[str]) -> Found:
        """Count ids, and keep the first `MAX_NAMED` in the order given."""
        listed = tuple(ids)
        return cls(count=len(listed), first=listed[:MAX_NAMED])

    def to_dict(self) -> dict[str, Any]:
        """JSON-native form."""
        return {"count": self.count, "first": list(self.first)}


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a collection holds, and what in it cannot be measured.

    Attributes:
        queries: queries of the collection.
        judged: queries with at least one relevant unit; measures are taken over these.
        other_splits: queries left out, since only another split judges them.
        without_judgements: queries that no judgement names.
        nothing_relevant: queries whose judgements are all 0 or below.
        judged_without_query: query ids that are judged but have no query.
        missing_units: units relevant to a judged query that the index does not hold.
        grades: judgements by grade, ascending.
        duplicate_query_texts: queries whose text an earlier query has too.
    """

    queries: int
    judged: int
    other_splits: int
    without_judgements: Found
    nothing_relevant: Found
    judged_without_query: Found
    missing_units: Found
    grades: Mapping[int, int] = field(hash=False)
    duplicate_query_texts: int

    @property
    def graded(self) -> bool:
        """Whether relevance has degrees: more than one grade above 0."""
        return sum(grade > 0 for grade in self.grades) > 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-native form, ``graded`` included; the keys of ``grades`` are text."""
        return {
            "queries": self.queries,
            "judged": self.judged,
            "other_splits": self.other_splits,
            "without_judgements": self.without_judgements.to_dict(),
            "nothing_relevant": self.nothing_relevant.to_dict(),
            "judged_without_query": self.judged_without_query.to_dict(),
            "missing_units": self.missing_units.to_dict(),
            "grades": {str(grade): count for grade, count in self.grades.items()},
            "graded": self.graded,
            "duplicate_query_texts": self.duplicate_query_texts,
        }


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Queries with judgements, and the documents where the source brings them.

    Attributes:
        name: of the folder, the file or the data set.
        kind: where it was read from.
        split: whose judgements these are; empty where the source has no splits.
        queries: in the order of the file.
        judgements: grade by query id and unit id; may name queries that are not here.
        has_documents: whether `documents` can be read.
        left_out: queries of the source that are not here, since only another split judges them.
        reader: what `documents` calls.
    """

    name: str
    kind: Kind
    split: str
    queries: tuple[Query, ...] = field(repr=False)
    judgements: Judgements = field(repr=False, hash=False)
    has_documents: bool
    left_out: int = 0
    reader: Callable[[], Iterator[Document]] | None = field(default=None, repr=False, compare=False)

    def documents(self) -> Iterator[Document]:
        """Stream the units, each whole and under the id that the judgements use.

        Raises:
            SourceError: the collection has no documents, or a file of them is not what it should be.
        """
        if not self.has_documents or self.reader is None:
            raise SourceError(f"{self.name}: has no documents, only queries and judgements")
        return self.reader()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the ids and texts of all queries and of all judgements.

        Neither the order nor the format of the files counts, nor metadata, nor the documents.
        """
        queries = sorted((query.query_id, query.text) for query in self.queries)
        rows = ((query_id, *judged) for query_id, units in self.judgements.items() for judged in units.items())
        judgements = sorted(rows)
        canonical = json.dumps({"queries": queries, "judgements": judgements}, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def judged(self) -> tuple[Query, ...]:
        """The queries with at least one relevant unit, in the order of the file."""
        return tuple(query for query in self.queries if self._relevant(query.query_id))

    def survey(self, held: Ids[str] | Callable[[Sequence[str]], Ids[str]]) -> Survey:
        """Count what is here, and find what cannot be measured.

        Args:
            held: ids of the units that an index holds, or a function that gives those of some ids that it holds.
        """
        judged = self.judged()
        known = {query.query_id for query in self.queries}
        needed = list(dict.fromkeys(unit_id for query in judged for unit_id in self._relevant(query.query_id)))
        present = frozenset(held(needed) if callable(held) else held)
        graded = [query.query_id for query in self.queries if self.judgements.get(query.query_id)]
        grades = Counter(grade for units in self.judgements.values() for grade in units.values())
        return Survey(
            queries=len(self.queries),
            judged=len(judged),
            other_splits=self.left_out,
            without_judgements=Found.of(q.query_id for q in self.queries if not self.judgements.get(q.query_id)),
            nothing_relevant=Found.of(query_id for query_id in graded if not self._relevant(query_id)),
            judged_without_query=Found.of(query_id for query_id in self.judgements if query_id not in known),
            missing_units=Found.of(unit_id for unit_id in needed if unit_id not in present),
            grades=dict(sorted(grades.items())),
            duplicate_query_texts=len(self.queries) - len({query.text for query in self.queries}),
        )

    def _relevant(self, query_id: str) -> list[str]:
        return [unit_id for unit_id, grade in self.judgements.get(query_id, {}).items() if grade > 0]
