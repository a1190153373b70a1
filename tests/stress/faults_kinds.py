"""What each kind of fault makes of an honest answer, and what a careful reader could still make of it.

Every shape takes an honest answer and gives two things: the answer as the faulty part gives it, and the truth that the
model of a run goes by (``FAILED`` where nothing of the answer counts).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple

import langgraph.errors
from langchain_core.documents import Document

from bounded_retrieval.contracts.assessment import CoverageAssessment, QueryWeights
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.eligibility import EligibilityView

CANCELLED: type[BaseException] = getattr(langgraph.errors, "NodeCancelledError", asyncio.CancelledError)
"""What LangGraph makes of a CancelledError that a node raises; older versions let it pass as it is."""

FAILED = "failed"
"""The truth of a call of which nothing counts."""

SECRET = "raw-error-text"
"""Stands in every raised error and nowhere else."""


class Held(NamedTuple):
    """A unit's text and level as a document has them, and whether a unit can be made of it at all."""

    text: str | None
    level: str | None
    readable: bool


class Row(NamedTuple):
    """A row that counts: which unit, what it brought of it, and its score, if that is a number."""

    unit_id: str
    held: Held | None
    score: float | None = None


class Shape(NamedTuple):
    """An answer and its truth."""

    answer: Any
    truth: Any


class EscapingError(BaseException):
    """No ``Exception``: nothing may catch it."""


class UnspeakableError(Exception):
    """An error that cannot even be written down."""

    def __str__(self) -> str:
        raise ValueError(SECRET)

    __repr__ = __str__


ERRORS: Sequence[Callable[[], Exception]] = (
    lambda: ConnectionError(SECRET),
    lambda: ValueError(SECRET),
    lambda: StopIteration(SECRET),
    lambda: TimeoutError(SECRET),
    lambda: KeyError(SECRET),
    lambda: RecursionError(SECRET),
    lambda: MemoryError(SECRET),
    lambda: ExceptionGroup(SECRET, [OSError(SECRET)]),
    lambda: StopAsyncIteration(SECRET),
    UnspeakableError,
)
ESCAPES: Sequence[Callable[[], BaseException]] = (
    lambda: SystemExit(SECRET),
    lambda: EscapingError(SECRET),
    lambda: KeyboardInterrupt(SECRET),
    lambda: asyncio.CancelledError(SECRET),
)


@dataclass
class DyingList(Sequence[Any]):
    """A list that raises once so many of its items were read, or below 0 already when asked for its length."""

    items: Sequence[Any]
    alive: int

    def __len__(self) -> int:
        if self.alive < 0:
            raise OSError(SECRET)
        return len(self.items) + 1

    def __getitem__(self, index: Any) -> Any:
        if index >= min(self.alive, len(self.items)):
            raise OSError(SECRET)
        return self.items[index]


class DyingMapping(Mapping[Any, Any]):
    """A mapping that raises when it is read beyond its keys, or (``at_once``) already when its keys are."""

    def __init__(self, items: Mapping[Any, Any], *, at_once: bool) -> None:
        self._items, self._at_once = items, at_once

    def __getitem__(self, key: Any) -> Any:
        raise OSError(SECRET)

    def __iter__(self) -> Iterator[Any]:
        if self._at_once:
            raise OSError(SECRET)
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items) + 1

    def __contains__(self, key: object) -> bool:
        return True


class DyingSet(AbstractSet[Any]):
    """A set that raises at the last of so many questions."""

    def __init__(self, members: AbstractSet[str], questions: int) -> None:
        self._members, self._left = members, questions

    def __contains__(self, item: object) -> bool:
        self._left -= 1
        if self._left < 1:
            raise OSError(SECRET)
        return item in self._members

    def __iter__(self) -> Iterator[Any]:
        raise OSError(SECRET)

    def __len__(self) -> int:
        return 1


class DyingMetadata(dict[str, Any]):
    """Metadata that raises when it is read."""

    def items(self) -> Any:
        raise OSError(SECRET)


def held_of(document: Any) -> Held | None:
    """What a careful reader makes of a document."""
    if not isinstance(document, Document):
        return None
    text = document.page_content if isinstance(document.page_content, str) else None
    metadata = document.metadata
    if not isinstance(metadata, dict) or isinstance(metadata, DyingMetadata):
        return Held(text, None, readable=False)
    return Held(text, metadata.get("level"), readable=text is not None)


def row_of(row: Any) -> Row | None:
    """What a careful reader makes of a row; none where it is no candidate."""
    if not isinstance(row, Candidate) or not isinstance(row.unit_id, str):
        return None
    if row.unit is not None and not isinstance(row.unit, Document):
        return None
    score = row.score if row.score is not None and math.isfinite(row.score) else None
    return Row(row.unit_id, None if row.unit is None else held_of(row.unit), score)


def rows_shape(rows: Any) -> Shape:
    """A list of rows with its truth."""
    return Shape(rows, [row_of(row) for row in rows])


def broken(document: Document, variant: int) -> Any:
    """A document whose fields are not what they should be."""
    fields = (
        {"page_content": None, "metadata": dict(document.metadata)},
        {"page_content": document.page_content, "metadata": DyingMetadata(document.metadata)},
        {"page_content": 7, "metadata": {}},
        {"page_content": document.page_content, "metadata": None},
    )[variant % 4]
    return Document.model_construct(id=document.id, type="Document", **fields)


def unchecked(row: Candidate, **fields: Any) -> Candidate:
    """A row that was made without any check of its fields."""
    return row.model_copy(update=fields)


def odd_rows(rows: Sequence[Candidate], variant: int) -> Shape:
    """Answers that are no list of candidates, or one with rows that are none."""
    foreign: list[Any] = [None, 7, "row", {"unit_id": "x"}, object()]
    if variant % 8 < 5:
        return Shape((None, "rows", {"rows": list(rows)}, (row for row in rows), set())[variant % 8], FAILED)
    if variant % 8 == 5:
        return rows_shape([part for pair in zip(foreign, rows, strict=False) for part in pair] + foreign)
    if variant % 8 == 6:
        fields: list[Any] = [{}, {"unit_id": 7}, {"unit": "text"}, {"unit_id": None}]
        return rows_shape([unchecked(row, **fields[at % 4]) for at, row in enumerate(rows)])
    return rows_shape(
        [unchecked(row, unit=broken(row.unit, variant // 8)) if row.unit is not None else row for row in rows]
    )


def scored_oddly(rows: Sequence[Candidate], variant: int) -> Shape:
    """Rows whose scores are no numbers to count with; they count as rows without one."""
    odd = (math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324)
    scores = [odd[(at + variant) % len(odd)] for at in range(len(rows))]
    if variant % 2:
        return rows_shape([unchecked(row, score=score) for row, score in zip(rows, scores, strict=True)])
    return rows_shape(
        [Candidate(**{**dict(row), "score": score}) for row, score in zip(rows, scores, strict=True)],
    )


def ghosts(rows: Sequence[Candidate], variant: int) -> Shape:
    """Rows of units that nobody knows, with or without a text of their own, among known ones."""
    text = Document(id="x", page_content="Replace the HX-200 battery of a ghost", metadata={"level": "open"})
    unit = text if variant % 3 == 1 else None
    made = [unchecked(row, unit_id=f"ghost-{at}", unit=unit) for at, row in enumerate(rows)]
    return rows_shape(made if variant % 2 else [part for pair in zip(made, rows, strict=True) for part in pair])


def stale(rows: Sequence[Candidate]) -> Shape:
    """Rows that bring texts which are no longer those of the units."""
    return rows_shape(
        [
            row
            if row.unit is None
            else unchecked(row, unit=row.unit.model_copy(update={"page_content": row.unit.page_content + " stale"}))
            for row in rows
        ]
    )


def dying(rows: Sequence[Candidate], variant: int, k: int) -> Shape:
    """An answer that raises while it is read, unless so few rows are wanted that nobody gets there."""
    alive = variant % 4 - 1
    survives = 0 < k <= min(alive, len(rows))
    return Shape(DyingList(rows, alive), [row_of(row) for row in rows[:k]] if survives else FAILED)


def shape_rows(kind: str, variant: int, rows: Sequence[Candidate], k: int) -> Shape:
    """A search's answer under a kind of fault; ``k`` rows were asked for."""
    if kind == "too_many":
        return rows_shape(list(rows) * (2 + variant % 9))
    if kind == "too_few":
        return rows_shape(list(rows)[: variant % 2])
    if kind == "duplicates":
        return rows_shape([row for row in rows for _ in range(2)] if variant % 2 else list(rows)[:1] * 9)
    if kind == "dies_midway":
        return dying(rows, variant, k)
    made = {"unknown_ids": ghosts, "wrong_types": odd_rows, "bad_scores": scored_oddly}
    return made[kind](rows, variant) if kind in made else stale(rows)


def units_shape(found: Mapping[str, Any]) -> Shape:
    """A mapping of documents with its truth."""
    truth = {unit: held_of(document) for unit, document in found.items()}
    return Shape(found, {unit: held for unit, held in truth.items() if held is not None})


def shape_units(kind: str, variant: int, found: Mapping[str, Document], shelf: Mapping[str, Document]) -> Shape:  # noqa: PLR0911 - one for each kind
    """A unit source's answer under a kind of fault."""
    if kind == "too_many":
        return units_shape({**shelf, **found})
    if kind == "too_few":
        return units_shape(dict(list(found.items())[: len(found) // 2]))
    if kind == "duplicates":
        # Not a closed one's text: no check could tell that it is not the open unit's own.
        text = next((d.page_content for d in found.values() if d.metadata["level"] == "open"), "closed")
        return units_shape({u: d.model_copy(update={"page_content": text}) for u, d in found.items()})
    if kind == "unknown_ids":
        return units_shape({unit.upper(): document for unit, document in found.items()})
    if kind == "dies_midway":
        return Shape(DyingMapping(found, at_once=bool(variant % 2)), FAILED if found or variant % 2 else {})
    if kind == "changes":
        changed = {u: d.model_copy(update={"page_content": d.page_content + " changed"}) for u, d in found.items()}
        return units_shape(changed if variant % 2 else {})
    answers = (None, list(found.values()), "units", 7)
    if variant % 2:
        return Shape(answers[variant // 2 % 4], FAILED)
    return units_shape({u: "text" if variant % 4 else broken(d, variant // 4) for u, d in found.items()})


def shape_scores(kind: str, variant: int, scores: Mapping[str, float]) -> Shape:
    """A scorer's answer under a kind of fault; its truth is only whether it can be used."""
    is_usable = kind in {"too_many", "too_few", "unknown_ids", "changes"} or (kind == "bad_scores" and variant % 5 > 2)
    odd: Any = {
        "too_many": {**scores, **{f"ghost-{n}": 1.0 for n in range(50)}},
        "too_few": dict(list(scores.items())[: variant % 2]),
        "unknown_ids": {unit.upper(): score for unit, score in scores.items()},
        "dies_midway": DyingMapping(scores, at_once=False),
        "changes": {unit: -score for unit, score in scores.items()},
        "bad_scores": dict.fromkeys(scores, (math.nan, math.inf, -math.inf, 1e308, -1e308)[variant % 5]),
        "wrong_types": (None, [*scores], "scores", dict.fromkeys(scores, "high"), dict.fromkeys(scores))[variant % 5],
    }
    return Shape(odd[kind], None if is_usable else FAILED)


def shape_weights(kind: str, variant: int, weights: QueryWeights) -> Shape:
    """A weigher's answer under a kind of fault."""
    number = (math.nan, math.inf, 1e308, -1.0, 0.0)[variant % 5]
    fields = weights.model_dump()
    numbers = fields | {"terms": dict.fromkeys(weights.terms, number), "attainable": abs(number)}
    odd: Any = {
        "too_many": fields | {"terms": weights.terms | {f"ghost{n}": 1.0 for n in range(50)}},
        "too_few": {"terms": {}, "holding": {}, "attainable": 0.0},
        "unknown_ids": fields | {"terms": {"ghost": 1.0}, "holding": {"ghost": 0}},
        "dies_midway": DyingMapping(fields, at_once=False),
        "bad_scores": numbers if variant % 2 else weights.model_copy(update=numbers),
        "wrong_types": (None, "weights", [weights], {"terms": "all"}, QueryWeights)[variant % 5],
    }
    return Shape(odd[kind], None)


def shape_assessment(kind: str, variant: int, honest: CoverageAssessment) -> Shape:
    """An assessor's answer under a kind of fault; its truth is whether the test was passed."""
    if kind == "dies_midway":
        return Shape(DyingMapping(honest.model_dump(), at_once=False), FAILED)
    if kind == "bad_scores":
        number = (math.nan, math.inf, 1.5, -0.5)[variant % 4]
        fields = {"coverage": number, "sufficient": True}
        changed: Any = honest.model_dump() | fields if variant % 2 else honest.model_copy(update=fields)
        return Shape(changed, FAILED)
    return Shape((None, True, "sufficient", {"sufficient": True}, [honest], CoverageAssessment)[variant % 6], FAILED)


class DyingView:
    """A view that raises when it is asked what it is."""

    view_id = "ann"

    @property
    def version(self) -> str:
        raise OSError(SECRET)


def shape_view(kind: str, variant: int, view: EligibilityView) -> Shape:
    """A resolver's answer under a kind of fault; its truth is the view's id."""
    if kind == "dies_midway":
        return Shape(DyingView(), FAILED)
    if kind == "changes":
        other = EligibilityView(view.view_id + "-other"[: 6 * (variant % 2)], "2", view.allowed, view.search_filter)
        return Shape(other, other.view_id)
    odd = (None, "view", {"view_id": "ann"}, EligibilityView, EligibilityView("", "1", view.allowed))
    more = (EligibilityView("ann", "1"), EligibilityView("x" * 300, "1", view.allowed), [view])
    return Shape((*odd, *more)[variant % 8], FAILED)


def shape_allowed(kind: str, variant: int, allowed: AbstractSet[str], questions: int) -> Shape:
    """A view's answer to which units may be seen, under a kind of fault; its truth is the set."""
    if kind == "too_many":
        return Shape({*allowed, *(f"ghost-x{n}" for n in range(50))}, set(allowed))
    if kind == "too_few":
        kept = set(sorted(allowed)[: len(allowed) // 2])
        return Shape(kept, kept)
    if kind == "unknown_ids":
        return Shape({unit.upper() for unit in allowed}, set())
    if kind == "dies_midway":
        return Shape(DyingSet(allowed, questions), FAILED if questions else set())
    if kind == "changes":
        return Shape(set(), set())
    return Shape((None, sorted(allowed), True, dict.fromkeys(allowed), "all", iter(allowed))[variant % 6], FAILED)
