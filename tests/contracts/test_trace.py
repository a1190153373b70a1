from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from bounded_retrieval.contracts.assessment import CoverageAssessment
from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import CoverageAssessed, DecisionTrace, EvidencePacked
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.testing import FixedClock, ScriptedSearcher

TEXT = "Replace the battery of the probe with a small screwdriver."


def run(query: str = "replace the HX-200 battery", **options: Any) -> dict[str, Any]:
    """The output of one run over two small channels."""
    lexical = ScriptedSearcher(
        [Document(id="a", page_content=TEXT), Document(id="b", page_content="Parcels.")], "lexical"
    )
    dense = ScriptedSearcher([Document(id="c", page_content="The HX-200 has no battery.")], "dense")
    graph = create_bounded_retrieval(lexical, dense, **options).compile()
    return graph.invoke({"query": query})


def test_a_trace_has_one_typed_event_a_step() -> None:
    """A run over both channels records request, search, decision, search, decision and packing, in this order."""
    trace = DecisionTrace.from_result(run())
    assert [event.event for event in trace.events] == [
        "request_inspected",
        "search_attempted",
        "coverage_assessed",
        "search_attempted",
        "coverage_assessed",
        "evidence_packed",
    ]
    assert trace.request is trace.events[0]
    assert [search.channel for search in trace.searches] == ["lexical", "dense"]
    assert [decision.action for decision in trace.decisions] == ["dense_search", "recheck_and_pack"]


def test_json_round_trip() -> None:
    """A trace read back from its JSON is equal and writes the same bytes again, also through a plain dict."""
    result = run()
    trace = DecisionTrace.from_result(result)
    text = trace.to_json()
    assert DecisionTrace.model_validate_json(text) == trace
    assert DecisionTrace.model_validate_json(text).to_json() == text
    assert json.loads(text) == result["trace"] == json.loads(trace.to_json(indent=2))


def test_same_run_same_bytes() -> None:
    """Equal requests over equal answers give the same bytes, whatever the wall clock says."""
    assert (
        DecisionTrace.from_result(run()).to_json() == DecisionTrace.from_result(run(clock=FixedClock(99.0))).to_json()
    )


def test_clock_values_appear_only_with_a_deadline() -> None:
    """Running time is recorded exactly when the run has a deadline."""
    without = DecisionTrace.from_result(run())
    with_deadline = DecisionTrace.from_result(run(budget=Budget(deadline_ms=1000), clock=FixedClock()))
    assert {search.elapsed_ms for search in without.searches} == {None}
    assert {search.elapsed_ms for search in with_deadline.searches} == {0.0}


def test_the_trace_holds_no_text_of_a_unit() -> None:
    """Ids, scores and matched query terms stand in the trace; what the units say does not."""
    text = DecisionTrace.from_result(run()).to_json()
    assert "screwdriver" not in text
    assert "Parcels" not in text
    assert '"a"' in text


def test_state_and_trace_hold_what_a_decision_is_made_of() -> None:
    """The first event names the query, its identity, terms, identifiers, channels and limits; a decision names what is left."""
    trace = DecisionTrace.from_result(run())
    request, decision = trace.request, trace.decisions[0]
    assert request.query == "replace the HX-200 battery"
    assert request.query_id.startswith("q-")
    assert request.terms == ("replace", "hx-200", "battery")
    assert request.identifiers == ("hx-200",)
    assert request.channels == ("lexical", "dense")
    assert request.limits == Budget()
    assert (request.assessor, request.fusion, request.tokenizer) == ("term_coverage", "rrf", "unicode-1")
    assert decision.remaining == {"calls": 1, "iterations": 1, "rows": 4, "reads": 4, "units": 4, "chars": 4000}
    assert [reference.unit_id for reference in trace.searches[0].returned] == ["a", "b"]
    assert decision.assessment is not None
    assert decision.assessment.missing_terms == ("hx-200",)


def test_the_last_event_says_what_was_packed() -> None:
    """Packing records the fused ranking, the packed ids, the characters, the stop reason and the final spend."""
    result = run()
    packed = DecisionTrace.from_result(result).events[-1]
    assert isinstance(packed, EvidencePacked)
    assert packed.stop_reason is StopReason.RESOURCE_BUDGET_EXHAUSTED
    assert [ranked.unit_id for ranked in packed.ranking] == list(packed.packed) == ["a", "c", "b"]
    assert packed.chars == packed.usage.chars == sum(len(document.page_content) for document in result["documents"]) + 4


def test_from_result_without_a_trace_names_what_is_there() -> None:
    """An output without a trace gives an error that lists what it has instead."""
    with pytest.raises(KeyError, match=r"trace: not in the graph's output, which has \['packet'\]"):
        DecisionTrace.from_result({"packet": {}})


def test_an_event_of_another_kind_is_refused() -> None:
    """A trace holds only the declared events."""
    with pytest.raises(ValidationError, match="answer_generated"):
        DecisionTrace.model_validate({"events": [{"event": "answer_generated"}]})


def test_events_are_frozen() -> None:
    """What has been recorded cannot be edited."""
    decision = DecisionTrace.from_result(run()).decisions[0]
    assert isinstance(decision, CoverageAssessed)
    with pytest.raises(ValidationError, match="frozen"):
        decision.stop_reason = StopReason.POLICY_COMPLETE


def test_an_assessors_settings_become_json_native() -> None:
    """Whatever an assessor declares as its settings can be written into the trace."""
    assessment = CoverageAssessment(
        coverage=np.float64(0.5),
        threshold=1,
        missing_terms=(),
        sufficient=False,
        assessor="own",
        settings={"weights": (np.float32(0.5),), "model": object},
    )
    assert json.loads(assessment.model_dump_json())["settings"] == {"weights": [0.5], "model": "<class 'object'>"}
