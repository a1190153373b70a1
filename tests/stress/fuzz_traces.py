"""Fuzz targets for recorded runs: reading them, writing them again, replaying and showing them."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

from fuzz_choices import Choices, edited, to_json
from fuzz_files import _file
from fuzz_values import refusing
from langchain_core.documents import Document
from pydantic import ValidationError

from bounded_retrieval.console import render_trace
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.chain import ChainLimits
from bounded_retrieval.contracts.relationships import Relationship
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.errors import RequestError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.graph.chain import create_recursive_retrieval
from bounded_retrieval.policies.replay import replay
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.statistics import RunStatistics, read_runs
from bounded_retrieval.testing.fakes import ScriptedSearcher

HIT = Document(id="hit", page_content="Replace the HX-200 battery.")
PART = Document(id="part", page_content="A battery part.")
OTHER = Document(id="other", page_content="A note on charging.")
QUERY = "replace the HX-200 battery"
UNITS = {document.id: Unit.from_document(document) for document in (HIT, PART, OTHER)}


def traces(data: bytes) -> None:
    """A trace that is accepted writes the same bytes whenever it is read, can be shown, and replays or is refused."""
    text = data if data[:1] == b"{" else to_json(_edited(data, _traces()))
    try:
        trace = DecisionTrace.model_validate_json(text)
    except ValidationError as error:
        with refusing():
            raise RequestError.from_validation(error, "trace") from None
        return
    if _is_finite(trace.model_dump()):  # JSON has no other numbers, and no run of the package's own parts makes any
        written = trace.to_json()
        assert DecisionTrace.model_validate_json(written).to_json() == written
    render_trace(trace)
    assert trace._repr_html_()
    with refusing():
        replay(trace, UNITS)


def runs(data: bytes) -> None:
    """A file of runs, one JSON document or lines, is counted or refused with its line."""
    choices = Choices(data)
    name = choices.pick(("runs.json", "runs.jsonl"))
    if choices.below(2):
        values = [edited(choices.pick(_runs()), choices) for _ in range(choices.below(4))]
        lines = b"\n".join(map(to_json, values))
        text = lines if name == "runs.jsonl" else to_json(values)
    else:
        text = choices.rest()
    path = _file(name, text)
    with refusing():
        report = RunStatistics(read_runs(path)).report()
        json.dumps(report, allow_nan=False)


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _edited(data: bytes, documents: list[Any]) -> Any:
    choices = Choices(data)
    return edited(choices.pick(documents), choices)


@cache
def _traces() -> list[Any]:
    return [run["trace"] for run in _runs() if "trace" in run]


@cache
def _runs() -> list[Any]:
    """One run of each of several endings, as the graphs gave it."""
    links = RelationshipStore([Relationship(subject="HX-200", relation="led by", object="ann", source_unit="hit")])
    path = {"start": "HX-200", "relations": ["led by"]}
    return [
        _bounded([HIT], [OTHER]),
        _bounded([PART], [OTHER]),
        _bounded([PART], [PART], request={"policy": "always_continue"}),
        _bounded([PART], [OTHER], request={"budget": {"deadline_ms": 600000}}),
        _bounded([HIT], [OTHER], request={"path": path}, relationships=links),
        _bounded([HIT], [OTHER], request={"policy": "fixed_dense"}),
        _chain(["alpha", "beta"], None),
        _chain(["alpha", "beta"], ChainLimits(max_hops=1)),
    ]


def _bounded(
    lexical: list[Document], dense: list[Document], request: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    graph = create_bounded_retrieval(ScriptedSearcher(lexical, "lexical"), ScriptedSearcher(dense, "dense"), **options)
    return _plain(graph.compile().invoke({"query": QUERY, "request": request or {}}))


def _chain(planned: list[str], limits: ChainLimits | None) -> dict[str, Any]:
    def search(query: str) -> list[Document]:
        return [Document(id=query, page_content=f"All about {query}.")]

    def plan(_question: str, trail: Any) -> str | None:
        return planned[len(trail)] if len(trail) < len(planned) else None

    graph = create_recursive_retrieval(search, plan, lambda _query, _documents: "an answer", limits=limits)
    return _plain(graph.compile().invoke({"query": QUERY}))


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "documents"}
