"""Faults that the fault matrix found in the package, one by one."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

sys.path.insert(0, str(Path(__file__).parent))
from faults_kinds import CANCELLED, DyingMapping, DyingMetadata

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment, QueryTerms, QueryWeights
from bounded_retrieval.contracts.candidate import Candidate, Unit
from bounded_retrieval.contracts.chain import ChainResult
from bounded_retrieval.contracts.eligibility import EligibilityView
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.relationships import EntityName, Relationship
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.graph.chain import create_recursive_retrieval
from bounded_retrieval.policies.coverage import TermCoverage, observe
from bounded_retrieval.policies.signs import read_signs
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.testing import ScriptedSearcher

GOOD = [Document(id="a", page_content="The first battery."), Document(id="b", page_content="The second battery.")]


class Answering:
    """A searcher with fixed rows, which may also fetch, weigh or raise."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = list(rows)

    def search(self, query: str, k: int, filter: Any = None) -> list[Any]:  # noqa: ARG002
        return self.rows


class Source:
    """A unit source whose n-th answer is the n-th given, and the last one from then on."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def fetch(self, unit_ids: Sequence[str]) -> Any:  # noqa: ARG002
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def row(unit: Any, rank: int = 1) -> Candidate:
    """A row that brings its unit."""
    return Candidate(unit_id=unit.id, channel="lexical", rank=rank, score=1.0, unit=unit)


def ask(lexical: Any, **options: Any) -> tuple[EvidencePacket, dict[str, Any]]:
    """The packet and the output of one lexical run."""
    graph = create_bounded_retrieval(lexical, policy="fixed_lexical", **options).compile()
    result = graph.invoke({"query": "battery"})
    return EvidencePacket.from_result(result), result


@pytest.mark.parametrize("fields", [{"score": math.nan}, {"score": math.inf}, {"score": -math.inf}])
def test_a_score_that_is_no_number_stays_out_of_the_output(fields: dict[str, Any]) -> None:
    """A row made without a check of its score counts as one without a score, and the output is strict JSON."""
    packet, result = ask(Answering([row(GOOD[0]).model_copy(update=fields)]))
    assert [item.unit_id for item in packet.items] == ["a"]
    assert packet.items[0].channels["lexical"].score is None
    json.dumps([result["packet"], result["trace"]], allow_nan=False)


@pytest.mark.parametrize("fields", [{"unit_id": 7}, {"unit_id": None}, {"unit": "text"}, {"rank": "first"}])
def test_a_row_made_without_checks_is_no_candidate(fields: dict[str, Any]) -> None:
    """A row whose fields are not what they should be is left out and noted; the rows beside it count."""
    packet, _ = ask(Answering([row(GOOD[0]).model_copy(update=fields), row(GOOD[1], 2)]))
    assert [item.unit_id for item in packet.items] == ["b"]
    assert "invalid_rows" in packet.notes


def broken(**fields: Any) -> Any:
    """A document made without checks."""
    return Document.model_construct(id="a", **{"page_content": "The first battery.", "metadata": {}, **fields})


BROKEN = [
    broken(page_content=None),
    broken(page_content=7),
    broken(metadata=None),
    broken(metadata=DyingMetadata(kind="x")),
    Document.model_construct(id="a"),
]


@pytest.mark.parametrize("document", BROKEN, ids=["no text", "number", "no metadata", "dying metadata", "nothing"])
def test_a_document_that_cannot_be_read_stays_unread(document: Any) -> None:
    """It neither ends the run nor takes the other units with it."""
    packet, _ = ask(Answering([row(GOOD[0]).model_copy(update={"unit": document}), row(GOOD[1], 2)]))
    assert [item.unit_id for item in packet.items] in (["b"], ["b", "a"])
    assert {"units_unread", "invalid_rows"} & set(packet.notes)


@pytest.mark.parametrize("current", [broken(page_content=None), broken(page_content=7), "The first battery."])
def test_a_document_that_cannot_be_read_again_is_dropped(current: Any) -> None:
    """At the recheck such a document vouches for nothing, and the run ends in a packet."""
    packet, _ = ask(Answering([row(GOOD[0]), row(GOOD[1], 2)]), units=Source({"a": current, "b": GOOD[1]}))
    assert [item.unit_id for item in packet.items] == ["b"]
    assert "dropped_at_recheck" in packet.notes


@pytest.mark.parametrize("at_once", [True, False])
def test_a_source_that_dies_while_its_answer_is_read(at_once: bool) -> None:
    """A mapping that raises when it is read is a recheck that could not be made: what it should vouch for is dropped."""
    packet, _ = ask(Answering([row(GOOD[0])]), units=Source(DyingMapping({"a": GOOD[0]}, at_once=at_once)))
    assert packet.items == ()
    assert packet.stop_reason == "policy_complete"
    assert {"recheck_failed", "dropped_at_recheck"} <= set(packet.notes)


def test_an_assessment_made_without_checks_is_a_failed_one() -> None:
    """An assessor that answers with a coverage that is no number has not found the evidence sufficient."""

    class Odd(TermCoverage):
        def assess(self, given: AssessmentInput) -> CoverageAssessment:
            return super().assess(given).model_copy(update={"coverage": math.nan, "sufficient": True})

    graph = create_bounded_retrieval(ScriptedSearcher(GOOD, "lexical"), assessor=Odd()).compile()
    packet = EvidencePacket.from_result(graph.invoke({"query": "battery"}))
    assert packet.stop_reason == "resource_budget_exhausted"
    assert "assessor_failed" in packet.notes


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0])
def test_weights_made_without_checks_are_none(number: float) -> None:
    """A searcher that weighs with numbers which are none is done without, and the run goes on."""
    weights = QueryWeights(terms={"battery": 1.0}, attainable=1.0).model_copy(update={"terms": {"battery": number}})
    lexical = ScriptedSearcher(GOOD, "lexical")
    lexical.weigh = lambda *_: weights  # type: ignore[attr-defined]
    graph = create_bounded_retrieval(lexical).compile()
    packet = EvidencePacket.from_result(graph.invoke({"query": "battery"}))
    assert [item.unit_id for item in packet.items] == ["a", "b"]


def test_weights_whose_sum_is_not_finite_say_nothing() -> None:
    """Weights so large that their sum overflows do not make two held words out of three the whole query."""
    terms = QueryTerms(terms=("battery", "cover", "lamp"), identifiers=())
    unit = Unit.from_document(Document(id="a", page_content="The cover of the battery."))
    given = AssessmentInput(
        query="battery cover lamp",
        query_terms=terms,
        observations=(observe(terms, unit, 4000),),
        candidates=(),
        units={"a": unit},
        threshold=0.5,
        weights=QueryWeights(terms=dict.fromkeys(terms.terms, 1e308), attainable=1.0),
    )
    assert read_signs(given).coverage == 0.0


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_a_cancellation_inside_a_hop_is_no_failed_hop(way: str) -> None:
    """A search of a hop's graph that is cancelled ends the chain as it would end that graph alone."""

    class Cancelled:
        async def asearch(self, query: str, k: int, filter: Any = None) -> Any:  # noqa: ARG002
            raise asyncio.CancelledError

        def search(self, query: str, k: int, filter: Any = None) -> Any:  # noqa: ARG002
            raise asyncio.CancelledError

    search = create_bounded_retrieval(Cancelled())
    chain = create_recursive_retrieval(search, lambda _question, _trail: "battery").compile()

    def run() -> Any:
        given = {"query": "battery"}
        return chain.invoke(given) if way == "invoke" else asyncio.run(chain.ainvoke(given))

    with pytest.raises(CANCELLED):
        run()


def test_a_hop_that_fails_by_any_other_error_is_a_failed_hop() -> None:
    """The errors that pass are no more than those: a search that raises is charged, and the chain ends in a result."""

    def fail(_query: str) -> Any:
        raise ConnectionError("down")

    chain = create_recursive_retrieval(fail, lambda _question, _trail: "battery").compile()
    result = ChainResult.from_result(chain.invoke({"query": "battery"}))
    assert (result.stop_reason, result.usage.calls) == ("retrieval_failed", 1)


def test_a_hidden_document_that_cannot_be_read_does_not_end_a_path() -> None:
    """A broken document of a unit that the caller may not see leaves the path as if that unit did not exist."""
    links = RelationshipStore(
        relationships=[
            Relationship(subject="x", relation="led by", object="y", source_unit="b"),
            Relationship(subject="x", relation="led by", object="z", source_unit="a"),
        ],
        names=[EntityName(entity_id="x", name="X", source_unit="b")],
    )
    view = EligibilityView("ann", "1", allowed=lambda unit_ids: set(unit_ids) - {"a"})
    graph = create_bounded_retrieval(
        ScriptedSearcher(GOOD, "lexical"),
        units=Source({"a": broken(page_content=None), "b": GOOD[1]}),
        relationships=links,
        eligibility=lambda _runtime: view,
    ).compile()
    result = graph.invoke({"query": "battery", "request": {"path": {"start": "X", "relations": ["led by"]}}})
    assert result["stop_reason"] == "path_followed"
