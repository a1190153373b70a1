"""Fuzz targets for what comes as a value: text, filters, requests, paths, tables of points.

A target takes bytes, hands what they stand for to the reader, and lets pass what the reader is documented to raise. It
fails on any other exception and where a property does not hold: the same twice, there and back again, one answer on
two ways.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from fuzz_choices import Choices, edited, text_of, to_json
from langchain_core.documents import Document
from pydantic import ValidationError

from bounded_retrieval.contracts.filters import compile_filter, fields_of, filter_key
from bounded_retrieval.contracts.normalise import clean_metadata, clean_text
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.request import PathRequest, RetrievalRequest
from bounded_retrieval.contracts.scorecard import ScorecardTable, shipped_scorecard
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.errors import BoundedRetrievalError, RequestError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.settings import read_request
from bounded_retrieval.policies.tokenize import (
    find_identifiers,
    fold,
    index_terms,
    search_terms,
    tokenize,
    words_and_parts,
)
from bounded_retrieval.retrievers._bm25_masks import FilterMasks
from bounded_retrieval.retrievers._chroma_filter import compile_where, decides_whole, pack_metadata, unpack_metadata
from bounded_retrieval.testing.fakes import ScriptedSearcher

MAX_MESSAGE_CHARS = 3_000
"""Longest message of an error that a person can still read."""


@contextmanager
def refusing() -> Iterator[None]:
    """Let the package's own errors pass, and see that each is one line of bearable length."""
    try:
        yield
    except BoundedRetrievalError as error:
        message = str(error)
        if not message or message.splitlines() != [message] or len(message) > MAX_MESSAGE_CHARS:
            shown = f"{len(message)} characters in {len(message.splitlines())} lines: {message[:300]!r}"
            raise AssertionError(shown) from error


def tokenizer(data: bytes) -> None:
    """Terms are the same every time and hold no white space; identifiers are among them, and each has a stem."""
    text = text_of(data)
    terms = tokenize(text)
    assert terms == tokenize(text)
    assert all(term and not any(char.isspace() for char in term) for term in terms)
    assert set(find_identifiers(text)) <= set(terms)
    assert fold(text).casefold() == fold(text)
    assert words_and_parts(text)[: len(terms)] == terms
    stems = index_terms(text)
    assert all(stems)
    assert len(stems) == len(words_and_parts(text))
    asked = search_terms(text)
    assert len(asked) == len(set(asked))
    assert set(asked) <= set(stems)


def filters(data: bytes) -> None:
    """A filter lets the same units pass whether it is evaluated, made a mask or given to Chroma beforehand."""
    choices = Choices(data)
    units = [clean_metadata(_metadata(choices))[0] for _ in range(choices.below(5))]
    asked = _filter(choices, 0)
    with refusing():
        passes = compile_filter(asked)
        expected = [passes(unit) for unit in units]
        masks = FilterMasks(lambda: ((str(row), unit) for row, unit in enumerate(units)), len(units))
        assert masks.mask(asked).tolist() == expected
        assert fields_of(asked) <= fields_of({"$and": [asked, {"more": 1}]})
        assert filter_key(asked) == filter_key(dict(reversed(asked.items())))
        where = compile_where(asked)
        assert where is not False or not any(expected)
        assert where is not True or not decides_whole(asked) or all(expected)
    for unit in units:
        assert unpack_metadata(pack_metadata(unit)) == unit


def path(data: bytes) -> None:
    """A path that can be read is written as it is read."""
    with refusing():
        found = PathRequest.parse(text_of(data))
        assert PathRequest.parse(str(found)) == found
        assert PathRequest.model_validate_json(found.model_dump_json()) == found


def request(data: bytes) -> None:
    """A request that is accepted goes to JSON and back, and holds nothing that cannot be stored."""
    document = _document(data, REQUESTS)
    with refusing():
        found = read_request(None, document)
        assert RetrievalRequest.model_validate_json(found.model_dump_json()) == found
        assert RetrievalRequest.model_validate(found.model_dump(mode="json")) == found
        assert read_request(found.query, document) == found
        assert clean_text(found.query) == found.query
        assert clean_text(found.query_id) == found.query_id


def run(data: bytes) -> None:
    """Whatever is asked, a run ends in a packet within its limits, and packet and trace go to JSON and back."""
    choices = Choices(data)
    query: Any = choices.text() if choices.below(4) else choices.value()
    asked = edited(choices.pick(REQUESTS), choices) if choices.below(4) else choices.value()
    if isinstance(asked, dict) and choices.below(4):
        asked.pop("query", None)
    with refusing():
        result = _graph().invoke({"query": query, "request": asked})
        packet, trace = EvidencePacket.from_result(result), DecisionTrace.from_result(result)
        assert EvidencePacket.model_validate_json(packet.model_dump_json()) == packet
        assert DecisionTrace.model_validate_json(trace.to_json()) == trace
        for name, limit in packet.limits.model_dump(exclude={"deadline_ms"}).items():
            assert getattr(packet.usage, name.removeprefix("max_")) <= limit


def scorecard(data: bytes) -> None:
    """A table that is accepted writes the same JSON whenever it is read, and gives points that rise with the value."""
    text = data if data[:1] == b"{" else to_json(_document(data, [shipped_scorecard().model_dump(mode="json")]))
    try:
        table = ScorecardTable.model_validate_json(text)
    except ValidationError as error:
        with refusing():
            raise RequestError.from_validation(error, "scorecard") from None
        return
    written = table.model_dump_json()
    assert ScorecardTable.model_validate_json(written).model_dump_json() == written
    for factor in table.factors:
        points = [factor.of(step / 8) for step in range(-1, 10)]
        assert points == sorted(points)
        assert points[-1] <= table.most


REQUESTS: list[dict[str, Any]] = [
    {"query": "replace the HX-200 battery"},
    {"query": "q", "query_id": "7", "policy": "adaptive", "threshold": 0.5, "first_hop_rows": 2},
    {"query": "q", "policy": "fixed_dense", "budget": {"max_calls": 1, "max_rows": 3, "max_chars": 10}},
    {"query": "q", "policy": "always_continue", "budget": {"max_units": 1, "max_reads": 2, "deadline_ms": 600000}},
    {"query": "q", "path": {"start": "HX-200", "relations": ["maintained by", "led by"]}},
]


def _document(data: bytes, bases: list[Any]) -> Any:
    """JSON as it stands, where the bytes are that, else an edited copy of one of the documents."""
    if data[:1] in (b"{", b"["):
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return None
    choices = Choices(data)
    return edited(choices.pick(bases), choices)


@cache
def _graph() -> Any:
    documents = [
        Document(id="a", page_content="Replace the HX-200 battery.", metadata={"title": "Battery", "year": 2024}),
        Document(id="b", page_content="A note on charging."),
    ]
    lexical = ScriptedSearcher(documents, "lexical")
    dense = ScriptedSearcher([*documents[1:], Document(id="c", page_content="The battery \u6771\u4eac.")], "dense")
    return create_bounded_retrieval(lexical, dense).compile()


_FIELDS = ("a", "b", "title", "", "$x")
_TESTS = ("$eq", "$ne", "$in", "$nin", "$gt", "$gte", "$lt", "$lte", "$exists", "$date", "$regex")


def _metadata(choices: Choices) -> dict[str, Any]:
    return {choices.pick(_FIELDS): choices.value(2) for _ in range(choices.below(4))}


def _filter(choices: Choices, depth: int) -> dict[str, Any]:
    """A filter, mostly a valid one, up to deeper than is allowed."""
    found: dict[str, Any] = {}
    for _ in range(choices.below(4)):
        kind = choices.below(8)
        if kind < 2 and depth < 18:
            found[choices.pick(("$and", "$or"))] = [_filter(choices, depth + 1) for _ in range(choices.below(4))]
        elif kind == 2 and depth < 18:
            found["$not"] = _filter(choices, depth + 1)
        else:
            found[choices.pick(_FIELDS)] = _condition(choices)
    return found


def _condition(choices: Choices) -> Any:
    if choices.below(4) == 0:
        return choices.value(1)
    return {choices.pick(_TESTS): _bound(choices) for _ in range(1 + choices.below(2))}


def _bound(choices: Choices) -> Any:
    kind = choices.below(4)
    if kind == 0:
        return [choices.scalar() for _ in range(choices.below(4))]
    return choices.value(2) if kind == 1 else choices.scalar()
