"""What each kind of fault makes of the answers of a chain's parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from faults_kinds import FAILED, SECRET, DyingMapping, Row, Shape, broken, held_of
from langchain_core.documents import Document

from bounded_retrieval.contracts.chain import MAX_HOP_QUERY_CHARS, NextQuery, SubAnswer, Sufficiency
from bounded_retrieval.contracts.normalise import content_id

MAX_ANSWER = 500


class Planned(NamedTuple):
    """What a plan is worth: the next query or none, whether something stays open, and the tokens it took."""

    query: str | None
    leaves_open: bool = False
    tokens: int = 0


class Answered(NamedTuple):
    """What a sub-answer is worth: its text, the units that it came from, and the tokens it took."""

    text: str
    unit_ids: tuple[str, ...] = ()
    tokens: int = 0


def plan_shape(query: str | None, tokens: int) -> Shape:
    """An honest plan: a bare query where it took no tokens."""
    return Shape(NextQuery(query=query, tokens=tokens) if tokens else query, Planned(query, tokens=tokens))


def shape_plan(kind: str, variant: int, first_query: str) -> Shape:  # noqa: PLR0911 - one for each kind
    """A planner's answer under a kind of fault; ``first_query`` is what it asked at the first hop."""
    if kind == "too_many":
        return Shape("lamp " * MAX_HOP_QUERY_CHARS, Planned(None, leaves_open=True))
    if kind == "too_few":
        return Shape(("", "  \n", {"query": " "})[variant % 3], Planned(None, leaves_open=True))
    if kind == "duplicates":
        spelled = (first_query, f"  {first_query.upper()} ?", " ".join(reversed(first_query.split())))[variant % 3]
        return Shape(spelled, Planned(spelled.strip()))
    if kind == "changes":
        return Shape(None, Planned(None))
    if kind == "dies_midway":
        return Shape(DyingMapping({"query": first_query}, at_once=bool(variant % 2)), FAILED)
    if kind == "bad_scores":
        return Shape({"query": first_query, "tokens": (-1, math.nan, 10**13, math.inf)[variant % 4]}, FAILED)
    odd = (7, [first_query], {"query": 7}, {"question": first_query}, object(), b"query", NextQuery)
    return Shape(odd[variant % len(odd)], FAILED)


def answer_shape(unit: str, tokens: int, variant: int) -> Shape:
    """An honest sub-answer, which names the unit that it came from."""
    text = f"the answer from {unit}"
    if variant % 5 == 0:
        return Shape(None, None)
    if variant % 2 and not tokens:
        return Shape(text, Answered(text))
    return Shape(SubAnswer(text=text, unit_ids=(unit,), tokens=tokens), Answered(text, (unit,), tokens))


def shape_answer(kind: str, variant: int, documents: Sequence[Document]) -> Shape:  # noqa: PLR0911 - one for each kind
    """A reader's answer under a kind of fault."""
    unit = documents[0].id or ""
    if kind == "too_many":
        text = f"the answer from {unit} " * MAX_ANSWER
        return Shape(text, Answered(text[:MAX_ANSWER].strip()))
    if kind == "too_few":
        return Shape(("", "  ", {"text": "\n "})[variant % 3], None)
    if kind == "duplicates":
        return Shape({"text": "twice", "unit_ids": [unit, unit]}, Answered("twice", (unit, unit)))
    if kind == "unknown_ids":
        return Shape({"text": "from nowhere", "unit_ids": ["ghost-1", unit]}, Answered("from nowhere", (unit,)))
    if kind == "changes":
        for document in documents:
            document.page_content, document.id = SECRET, SECRET
            document.metadata.clear()
        return Shape("read", Answered("read"))
    if kind == "dies_midway":
        return Shape(DyingMapping({"text": "x"}, at_once=bool(variant % 2)), FAILED)
    if kind == "bad_scores":
        return Shape({"text": "x", "tokens": (-1, math.nan, 10**13)[variant % 3]}, FAILED)
    odd = (7, ["x"], {"answer": "x"}, {"text": None}, object(), SubAnswer)
    return Shape(odd[variant % len(odd)], FAILED)


def shape_sufficiency(kind: str, variant: int) -> Shape:
    """A sufficiency test's answer under a kind of fault; its truth is a pair of whether it passed and its tokens."""
    if kind == "changes":
        return Shape(Sufficiency(sufficient=True, tokens=1), (True, 1))
    if kind == "dies_midway":
        return Shape(DyingMapping({"sufficient": True}, at_once=bool(variant % 2)), FAILED)
    if kind == "bad_scores":
        return Shape({"sufficient": True, "tokens": (-1, math.nan)[variant % 2]}, FAILED)
    odd = (None, "perhaps", [True], {"passed": True}, {"sufficient": None}, object())
    return Shape(odd[variant % len(odd)], FAILED)


def documents_shape(documents: Any) -> Shape:
    """A list of documents with its truth: all of it counts, or nothing does."""
    rows = [row_of_document(document) for document in documents]
    return Shape(documents, FAILED if None in rows else rows)


def row_of_document(document: Any) -> Row | None:
    """What a careful reader makes of a document that a hop's search returned; none where it spoils the answer."""
    held = held_of(document)
    if held is None or not held.readable:
        return None
    return Row(document.id or content_id(held.text or ""), held)


def _dying(documents: Sequence[Document]) -> Iterator[Document]:
    yield from documents[:1]
    raise OSError(SECRET)


def shape_documents(kind: str, variant: int, documents: list[Document]) -> Shape:  # noqa: PLR0911 - one for each kind
    """A hop's search's answer under a kind of fault."""
    if kind == "too_many":
        return documents_shape(documents * 40)
    if kind == "too_few":
        return documents_shape(documents[: variant % 2])
    if kind == "duplicates":
        return documents_shape([each for each in documents for _ in range(3)])
    if kind == "unknown_ids":
        return documents_shape([each.model_copy(update={"id": None}) for each in documents])
    if kind == "changes":
        return documents_shape([d.model_copy(update={"page_content": d.page_content + " stale"}) for d in documents])
    if kind == "dies_midway":
        return Shape(_dying(documents), FAILED)
    if variant % 2 and documents:
        return documents_shape([*documents, broken(documents[0], variant // 2)])
    odd = (None, "documents", 7, [*documents, "row"], {"documents": documents}, Document)
    return Shape(odd[variant % len(odd)], FAILED)
