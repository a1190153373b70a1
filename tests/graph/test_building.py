"""What a builder accepts, what it refuses, and the graph it makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from inventory import HITS, QUERY, Outcome, ask, dense, lexical
from langchain_core.documents import Document
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment
from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.settings import BoundedContext
from bounded_retrieval.errors import ConfigurationError, RequestError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.coverage import TermCoverage
from bounded_retrieval.policies.fusion import ReciprocalRankFusion

ALL_KEYS = {"packet", "documents", "stop_reason", "trace"}


def test_the_builder_is_an_uncompiled_graph() -> None:
    """The caller compiles the graph, with the checkpointer and the name of their choice."""
    builder = create_bounded_retrieval(lexical(), dense())
    assert isinstance(builder, StateGraph)
    assert builder.compile(name="bounded_retrieval").name == "bounded_retrieval"


def test_the_drawing_shows_nodes_and_both_decisions() -> None:
    """The graph has its six nodes, and conditional edges exactly where the design draws them."""
    drawing = create_bounded_retrieval(lexical(), dense()).compile().get_graph()
    assert set(drawing.nodes) == {
        "__start__",
        "inspect_request",
        "lexical_search",
        "assess_coverage",
        "dense_search",
        "follow_path",
        "recheck_and_pack",
        "__end__",
    }
    assert {(edge.source, edge.target, edge.conditional) for edge in drawing.edges} == {
        ("__start__", "inspect_request", False),
        ("inspect_request", "lexical_search", True),
        ("inspect_request", "dense_search", True),
        ("inspect_request", "follow_path", True),
        ("follow_path", "recheck_and_pack", False),
        ("lexical_search", "assess_coverage", False),
        ("dense_search", "assess_coverage", False),
        ("assess_coverage", "dense_search", True),
        ("assess_coverage", "recheck_and_pack", True),
        ("recheck_and_pack", "__end__", False),
    }


def test_output_is_four_keys() -> None:
    """A run returns packet, documents, stop reason and trace, and nothing private."""
    result = create_bounded_retrieval(lexical(HITS)).compile().invoke({"query": QUERY})
    assert set(result) == ALL_KEYS
    assert isinstance(result["packet"], dict)
    assert result["stop_reason"] == result["packet"]["stop_reason"] == "proxy_sufficient"
    assert all(isinstance(document, Document) for document in result["documents"])
    assert result["documents"] == EvidencePacket.from_result(result).to_documents()


@pytest.mark.parametrize("keys", [["documents"], ["packet", "stop_reason"], tuple(ALL_KEYS)])
def test_output_keys_limit_what_is_returned(keys: Any) -> None:
    """Only the named keys come out of the graph."""
    result = create_bounded_retrieval(lexical(HITS), output_keys=keys).compile().invoke({"query": QUERY})
    assert set(result) == set(keys)


def test_output_keys_limit_what_a_parent_receives() -> None:
    """As a node of a parent with the same keys, the graph writes the named ones only."""

    class Parent(TypedDict, total=False):
        query: str
        documents: list[Document]
        stop_reason: str
        trace: dict[str, Any]

    parent = StateGraph(Parent)
    parent.add_node("retrieve", create_bounded_retrieval(lexical(HITS), output_keys=["documents"]).compile())
    parent.add_edge(START, "retrieve")
    parent.add_edge("retrieve", END)
    result = parent.compile().invoke({"query": QUERY, "stop_reason": "mine"})
    assert set(result) == {"query", "documents", "stop_reason"}
    assert result["stop_reason"] == "mine"
    assert [document.id for document in result["documents"]] == ["hit"]


@dataclass
class AppContext:
    user: str
    policy: str | None = None
    budget: Any = None


CONTEXTS = [
    ({"context_schema": BoundedContext}, BoundedContext(policy="fixed_dense", budget=Budget(max_rows=2))),
    ({}, {"policy": "fixed_dense", "budget": {"max_rows": 2}}),
    ({"context_schema": AppContext}, AppContext("ann", "fixed_dense", Budget(max_rows=2))),
    ({"context_schema": AppContext}, {"user": "ann", "policy": "fixed_dense", "budget": {"max_rows": 2}}),
    ({"context_schema": dict}, {"user": "ann", "policy": "fixed_dense", "budget": {"max_rows": 2}}),
]


@pytest.mark.parametrize(("options", "context"), CONTEXTS)
def test_settings_come_from_any_context(options: dict[str, Any], context: Any) -> None:
    """Our context model, a dict and an application's own class all carry policy and limits into the run."""
    outcome = ask(lexical(), dense(), context=context, **options)
    assert (outcome.reason, outcome.usage.rows, outcome.packet.limits.max_rows) == ("policy_complete", 2, 2)


def test_a_context_without_our_settings_changes_nothing() -> None:
    """An application's context that knows nothing of this package leaves the builder's settings alone."""
    outcome = ask(lexical(), dense(), context=AppContext("ann"), context_schema=AppContext)
    assert outcome.packet == ask(lexical(), dense()).packet


def test_a_bad_setting_in_an_applications_context_is_named() -> None:
    """A field that is ours and holds something else is refused before anything is searched."""
    words = lexical()
    with pytest.raises(RequestError, match=r"context\.policy: .*'fixed_lexical'.*\(got 'hr'\)"):
        ask(words, dense(), context=AppContext("ann", policy="hr"), context_schema=AppContext)
    assert words.calls == []


def test_the_reference_preset_is_the_declared_one() -> None:
    """The preset is term coverage at .8, RRF, 3 + 3 rows."""
    words, vectors = lexical(), dense()
    request = ask(words, vectors, preset="reference").trace.request
    assert (request.assessor, request.threshold, request.fusion, request.first_hop_rows) == (
        "term_coverage",
        0.8,
        "rrf",
        3,
    )
    assert (words.calls, vectors.calls) == ([(QUERY, 3)], [(QUERY, 3)])


FIXED = [{"assessor": TermCoverage()}, {"fusion": ReciprocalRankFusion()}, {"threshold": 0.8}, {"first_hop_rows": 2}]


@pytest.mark.parametrize("other", FIXED, ids=lambda other: next(iter(other)))
def test_the_reference_preset_cannot_be_mixed(other: dict[str, Any]) -> None:
    """What the preset fixes cannot be given beside it; the message names it."""
    with pytest.raises(ConfigurationError, match=f"preset: 'reference' fixes {next(iter(other))}"):
        create_bounded_retrieval(lexical(), preset="reference", **other)


class Own(TermCoverage):
    """An application's assessor, which takes any threshold."""

    name = "own_coverage"

    def __post_init__(self) -> None:
        """Check nothing."""


REFUSED = [
    ({}, ConfigurationError, "lexical, dense: at least one of the two searchers is needed"),
    ({"lexical": 5}, ConfigurationError, r"lexical: expected a searcher.*\(got builtins\.int\)"),
    ({"lexical": lexical(), "policy": "fixed_dense"}, ConfigurationError, "policy: fixed_dense needs a dense searcher"),
    (
        {"dense": dense(), "policy": "always_continue"},
        ConfigurationError,
        "policy: always_continue needs a lexical searcher",
    ),
    ({"lexical": lexical(), "preset": "best"}, ConfigurationError, "preset: unknown preset 'best'"),
    (
        {"lexical": lexical(), "output_keys": ["answer"]},
        ConfigurationError,
        r"output_keys: choose from packet, .*\(got \['answer'\]\)",
    ),
    ({"lexical": lexical(), "output_keys": []}, ConfigurationError, "output_keys: choose from"),
    (
        {"lexical": lexical(), "units": 5},
        ConfigurationError,
        r"units: expected an object with fetch\(unit_ids\) \(got int\)",
    ),
    (
        {"lexical": lexical(), "assessor": 5},
        ConfigurationError,
        r"assessor: expected an object with assess\(given\) \(got int\)",
    ),
    (
        {"lexical": lexical(), "assessor": Own(default_threshold=7)},
        RequestError,
        r"own_coverage\.default_threshold: .*\(got 7\)",
    ),
    (
        {"lexical": lexical(), "assessor": Own(default_threshold=float("nan"))},
        RequestError,
        r"own_coverage\.default_threshold: ",
    ),
    ({"lexical": lexical(), "threshold": 1.5}, RequestError, r"create_bounded_retrieval\.threshold: .*\(got 1\.5\)"),
    ({"lexical": lexical(), "policy": "greedy"}, RequestError, r"create_bounded_retrieval\.policy: .*\(got 'greedy'\)"),
    (
        {"lexical": lexical(), "budget": {"max_rows": 201}},
        RequestError,
        r"create_bounded_retrieval\.budget\.max_rows: .*\(got 201\)",
    ),
    ({"lexical": lexical(), "budget": 5}, RequestError, r"create_bounded_retrieval\.budget: "),
    (
        {"lexical": lexical(), "first_hop_rows": 0},
        RequestError,
        r"create_bounded_retrieval\.first_hop_rows: .*\(got 0\)",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_what_cannot_work_is_refused_when_building(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Parts that cannot work together and settings out of bounds are named in one line, before any run."""
    with pytest.raises(error, match=message) as caught:
        create_bounded_retrieval(**options)
    assert "\n" not in str(caught.value)


class Own:
    """An application's assessor that takes any answer."""

    name: ClassVar[str] = "own"
    default_threshold: ClassVar[float] = 0.25
    settings: ClassVar[dict[str, Any]] = {}

    def assess(self, given: AssessmentInput) -> Any:
        return CoverageAssessment(
            coverage=1,
            threshold=given.threshold,
            missing_terms=(),
            sufficient=bool(given.observations),
            assessor=self.name,
            settings={"weight": np.float32(0.5)},
        )


def test_an_assessor_is_a_port() -> None:
    """Another assessor decides, with its own default threshold, and its settings stand in the trace as plain values."""
    outcome = ask(lexical(), dense(), assessor=Own())
    assert (outcome.reason, outcome.usage.calls) == ("proxy_sufficient", 1)
    assert (outcome.trace.request.assessor, outcome.trace.request.threshold) == ("own", 0.25)
    assert outcome.trace.decisions[0].assessment is not None
    assert outcome.trace.decisions[0].assessment.settings == {"weight": 0.5}


@pytest.mark.parametrize("answer", [None, True, {"coverage": 2}])
def test_an_assessor_that_fails_has_not_found_sufficiency(answer: Any) -> None:
    """An assessor that answers with something else counts as not sufficient, and the packet notes it."""
    own = Own()
    own.assess = lambda _given: answer
    outcome = ask(lexical(HITS), dense(), assessor=own)
    assert (outcome.reason, outcome.usage.calls, outcome.notes) == (
        "resource_budget_exhausted",
        2,
        ("assessor_failed",),
    )


def test_the_custom_stream_gives_one_event_a_step() -> None:
    """Streaming in custom mode emits the trace's events, one for each of the six steps, as they happen."""
    graph = create_bounded_retrieval(lexical(), dense()).compile()
    chunks = list(graph.stream({"query": QUERY}, stream_mode=["custom", "updates"]))
    events = [chunk for mode, chunk in chunks if mode == "custom"]
    assert events == Outcome(graph.invoke({"query": QUERY})).trace.model_dump(mode="json")["events"]
    assert [mode for mode, _ in chunks] == ["custom", "updates"] * 6
