"""Retrieval measures of rankings, per query, computed by ir-measures.

nDCG with graded gains and a log2 discount; recall over the units with a grade above 0. Judged units that the
collection does not hold stay in the ideal ranking and among the relevant ones, as trec_eval has it; units without a
judgement count as not relevant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

Judgements = Mapping[str, Mapping[str, int]]
Rankings = Mapping[str, Sequence[str]]

MEASURES = ("ndcg@3", "ndcg@4", "recall@4")
"""Taken of every ranking."""

PACKET_MEASURES = ("packet_ndcg@4", "packet_recall")
"""Taken of what was packed: what is left of the ranking once whole units had to fit the packet."""


def measure(judgements: Judgements, rankings: Rankings) -> dict[str, dict[str, float]]:
    """`MEASURES` of each query's ranking, best unit first; an empty ranking has 0 in each.

    Args:
        judgements: query id, unit id, grade; queries without a grade above 0 are left out by the caller.
        rankings: query id, unit ids; only queries that are judged.
    """
    named = {"ndcg@3": "nDCG@3", "ndcg@4": "nDCG@4", "recall@4": "R@4"}
    return _measure(judgements, rankings, named)


def measure_packets(judgements: Judgements, packed: Rankings) -> dict[str, dict[str, float]]:
    """`PACKET_MEASURES` of each query's packed units: recall is over the whole packet, whatever its size."""
    depth = max([4, *(len(units) for units in packed.values())])
    return _measure(judgements, packed, {"packet_ndcg@4": "nDCG@4", "packet_recall": f"R@{depth}"})


def _measure(judgements: Judgements, rankings: Rankings, named: Mapping[str, str]) -> dict[str, dict[str, float]]:
    import ir_measures

    measures = {_parsed(text): name for name, text in named.items()}
    values = {query_id: dict.fromkeys(named, 0.0) for query_id in rankings}
    qrels = [
        ir_measures.Qrel(query_id, unit_id, grade)
        for query_id in rankings
        # A grade below 0 says as much as 0 here; nDCG has no negative gains.
        for unit_id, grade in ((unit, max(0, given)) for unit, given in judgements[query_id].items())
    ]
    run = [
        ir_measures.ScoredDoc(query_id, unit_id, float(-place))
        for query_id, units in rankings.items()
        for place, unit_id in enumerate(units)
    ]
    if not run:
        return values
    for result in ir_measures.iter_calc(list(measures), qrels, run):
        values[result.query_id][measures[result.measure]] = round(float(result.value), 6)
    return values


@cache
def _parsed(text: str) -> Any:
    import ir_measures

    return ir_measures.parse_measure(text)
