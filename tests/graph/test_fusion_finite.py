"""A fusion of one's own whose answer is no ranking: reciprocal ranks take its place, and the trace can be read back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from inventory import QUERY, dense, lexical

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.packet import ChannelResult, EvidencePacket
from bounded_retrieval.contracts.trace import DecisionTrace, EvidencePacked
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.fusion import FusedUnit, Rankings, ReciprocalRankFusion
from bounded_retrieval.policies.replay import replay


class Odd:
    """Ranks as reciprocal rank fusion does, but for the score or the contribution of the last unit."""

    name = "odd"

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def fuse(self, rankings: Rankings) -> list[FusedUnit]:
        """One odd number among the others."""
        *most, last = reversed(ReciprocalRankFusion().fuse(rankings))
        return [*most, replace(last, **self.changes)]


class Answering:
    """Gives what a function makes of the ranking by reciprocal ranks."""

    name = "answering"

    def __init__(self, answer: Callable[[list[FusedUnit]], Any]) -> None:
        self.answer = answer

    def fuse(self, rankings: Rankings) -> Any:
        """That."""
        return self.answer(ReciprocalRankFusion().fuse(rankings))


def run(fusion: Any, **options: Any) -> tuple[EvidencePacket, DecisionTrace]:
    """One run over both channels."""
    builder = create_bounded_retrieval(lexical(), dense(), policy="always_continue", fusion=fusion, **options)
    result = builder.compile().invoke({"query": QUERY})
    return EvidencePacket.from_result(result), DecisionTrace.from_result(result)


def last(trace: DecisionTrace) -> EvidencePacked:
    """The trace's last event."""
    event = trace.events[-1]
    assert isinstance(event, EvidencePacked)
    return event


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["score", "contributions"])
def test_ranks_decide_instead_of_a_fusion_that_gives_no_finite_number(field: str, number: float) -> None:
    """The packet's order is that of reciprocal ranks, its notes say so, and trace and replay agree."""
    odd = Odd(**{field: number if field == "score" else {"lexical": number}})
    packet, trace = run(odd)
    by_rank, _ = run(ReciprocalRankFusion())
    assert [item.unit_id for item in packet.items] == [item.unit_id for item in by_rank.items]
    assert packet.notes == (*by_rank.notes, "fused_by_rank")
    assert last(trace).fused_by == "rrf"
    again = DecisionTrace.model_validate_json(trace.to_json())
    assert again == trace
    read = (Unit.from_document(d) for d in (*lexical().documents, *dense().documents))
    units = {unit.unit_id: unit for unit in read}
    assert replay(again, units, odd) == packet


def test_a_fusion_of_finite_numbers_stands() -> None:
    """The odd order is kept where every number is finite, with no note."""
    packet, trace = run(Odd(score=0.25))
    assert last(trace).fused_by == "odd"
    assert packet.notes == run(ReciprocalRankFusion())[0].notes
    assert [item.unit_id for item in packet.items] == [
        unit.unit_id for unit in last(trace).ranking[: len(packet.items)]
    ]


def fail(_: Any) -> None:
    """Raises."""
    raise ZeroDivisionError("no weights")


@pytest.mark.parametrize(
    "answer",
    [
        lambda ranking: ranking * 5,
        lambda ranking: ranking[:-1],
        lambda ranking: [replace(ranking[0], unit_id="nobody"), *ranking[1:]],
        lambda ranking: [ranking[0], *ranking[:-1]],
        lambda ranking: [replace(ranking[0], channels={"other": ChannelResult(rank=1, score=None)}), *ranking[1:]],
        lambda ranking: [replace(ranking[0], channels={"dense": 1}), *ranking[1:]],
        lambda ranking: [replace(ranking[0], channels=None), *ranking[1:]],
        lambda ranking: [replace(ranking[0], contributions={"other": 0.5}), *ranking[1:]],
        lambda _: None,
        lambda ranking: [unit.unit_id for unit in ranking],
        fail,
    ],
    ids=[
        "repeated",
        "one left out",
        "unknown",
        "one twice, one left out",
        "unknown channel",
        "no place",
        "no channels",
        "part of an unknown channel",
        "nothing",
        "ids",
        "raises",
    ],
)
def test_ranks_decide_instead_of_a_fusion_that_does_not_rank_what_was_returned(answer: Any) -> None:
    """Every unit exactly once, or the order is that of reciprocal ranks; no limit is passed and the run says so."""
    packet, trace = run(Answering(answer))
    by_rank, _ = run(ReciprocalRankFusion())
    assert packet.items == by_rank.items
    assert packet.usage == by_rank.usage
    assert len(packet.items) == packet.usage.units == 4
    assert packet.notes == (*by_rank.notes, "fused_by_rank")
    assert last(trace).fused_by == "rrf"


def test_what_a_fusion_raised_is_told_to_the_diagnostics_alone() -> None:
    """The sink gets the error; the packet and the trace do not."""
    told: list[Any] = []
    packet, trace = run(Answering(fail), diagnostics=told.append)
    (record,) = told
    assert (record["event"], type(record["error"])) == ("fusion_failed", ZeroDivisionError)
    assert "no weights" not in trace.to_json() + packet.model_dump_json()
