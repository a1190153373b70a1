"""What stops cost: each early stop beside what one more search would have given, and the best that any stop rule could.

All of it is retrospective: it reads judgements, which no decision ever sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.evaluation.bootstrap import Resampler, exact_interval
from bounded_retrieval.evaluation.experiment import Experiment, Outcome
from bounded_retrieval.evaluation.variants import Variant

CUTOFFS = (3, 4)
"""Cutoffs at which early stops are compared with going on."""

MAX_POINTS = 60
"""Points of one curve, at most; spread evenly over the thresholds that change anything."""

_EQUAL = 1e-9


def early_stops(experiment: Experiment, variant: Variant, confidence: float) -> dict[str, Any]:
    """Of each run that stopped after its first search, what one more search would have changed.

    ``improved`` counts the stops where going on would have ranked better, so that the stop did harm; ``harm_rate`` is
    their share with its exact (Clopper-Pearson) interval. ``held_relevant`` counts the stops that already held a
    relevant unit.
    """
    runs = experiment.outcomes[variant.name]
    further = experiment.outcomes[variant.continue_arm().name]
    stopped = [query.query_id for query in experiment.queries if stopped_early(runs[query.query_id])]
    held = sum(runs[query_id].measures["packet_recall"] > 0 for query_id in stopped)
    return {
        "queries": len(experiment.queries),
        "stops": len(stopped),
        "held_relevant": held,
        "cutoffs": {str(k): _compare(stopped, runs, further, (f"ndcg@{k}", confidence)) for k in CUTOFFS},
    }


def stopped_early(outcome: Outcome) -> bool:
    """Whether a run stopped provisionally after one search."""
    return outcome.stop_reason == StopReason.PROXY_SUFFICIENT and outcome.usage["calls"] == 1


def change(run: Outcome, further: Outcome, name: str) -> str:
    """What going on would have changed in a measure: ``improved``, ``unchanged`` or ``reduced``."""
    gain = further.measures[name] - run.measures[name]
    return "improved" if gain > _EQUAL else "reduced" if gain < -_EQUAL else "unchanged"


def _compare(
    stopped: Sequence[str], runs: Mapping[str, Outcome], further: Mapping[str, Outcome], how: tuple[str, float]
) -> dict[str, Any]:
    name, confidence = how
    counts = Counter(change(runs[query_id], further[query_id], name) for query_id in stopped)
    gains = [further[query_id].measures[name] - runs[query_id].measures[name] for query_id in stopped]
    harm = exact_interval(counts["improved"], len(stopped), confidence)
    return {
        **{word: counts[word] for word in ("improved", "unchanged", "reduced")},
        "mean_change": _mean(gains),
        "harm_rate": round(counts["improved"] / len(stopped), 6) if stopped else None,
        "harm_interval": [round(harm.low, 6), round(harm.high, 6)],
    }


def outcomes_by_reason(runs: Mapping[str, Outcome]) -> dict[str, Any]:
    """Per stop reason: how many runs it ended, what they ranked, and how much of what is relevant they found."""
    grouped: dict[str, list[Outcome]] = {}
    for outcome in runs.values():
        grouped.setdefault(outcome.stop_reason, []).append(outcome)
    return {reason: _outcome_of(grouped[reason]) for reason in sorted(grouped)}


def _outcome_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    recalls = [outcome.measures["packet_recall"] for outcome in outcomes]
    return {
        "queries": len(outcomes),
        "ndcg@4": _mean([outcome.measures["ndcg@4"] for outcome in outcomes]),
        "recall@4": _mean([outcome.measures["recall@4"] for outcome in outcomes]),
        "packet_holds_all": sum(recall >= 1 - _EQUAL for recall in recalls),
        "packet_holds_some": sum(0 < recall < 1 - _EQUAL for recall in recalls),
        "packet_holds_none": sum(recall <= 0 for recall in recalls),
    }


def ceiling(experiment: Experiment, variant: Variant, resampler: Resampler, confidence: float) -> dict[str, Any]:
    """The oracle that knows when to stop: it goes on exactly where that ranks better.

    No rule that chooses between the same two rankings can do better in nDCG@4, and none as good makes fewer dense
    calls. A policy that ranks otherwise (a fixed one, say) may stand above it.
    """
    stop, further = _arms(experiment, variant, "ndcg@4")
    best = [max(pair) for pair in zip(stop, further, strict=True)]
    interval = resampler.interval(best, confidence)
    calls = sum(after - before > _EQUAL for before, after in zip(stop, further, strict=True))
    return {
        "ndcg@4": round(interval.mean, 6),
        "interval": [round(interval.low, 6), round(interval.high, 6)],
        "dense_calls": calls,
    }


def curve(experiment: Experiment, variant: Variant) -> dict[str, Any]:
    """Quality against dense calls at every threshold, beside random stopping (floor) and the oracle (ceiling).

    Points run from stopping always (as far as vetoes allow) to never stopping. ``random`` is the straight line between
    the two arms: what stopping on a coin's toss gives on average. A run that goes on counts for the dense calls that
    the limits allow it, which may be none.
    """
    reached = [experiment.reached[variant.name][query.query_id] for query in experiment.queries]
    bars = sorted({0.0, *(value.coverage for value in reached if value.may_stop)})
    names = ("ndcg@4", "recall@4")
    arms = {name: _arms(experiment, variant, name) for name in names}
    further = experiment.outcomes[variant.continue_arm().name]
    calls = [further[query.query_id].usage["dense_calls"] for query in experiment.queries]
    points = []
    for bar in [*_thinned(bars), None]:
        stops = [bar is not None and value.stops_at(bar) for value in reached]
        made = sum(count for stop, count in zip(stops, calls, strict=True) if not stop)
        point: dict[str, Any] = {"threshold": bar, "dense_calls": made}
        point |= {
            name: _mean([pair[not stop] for stop, *pair in zip(stops, *arms[name], strict=True)]) for name in names
        }
        points.append(point)
    return {"points": points, **_bounds(*arms["ndcg@4"], calls)}


def _bounds(stop: Sequence[float], further: Sequence[float], calls: Sequence[int]) -> dict[str, Any]:
    gains = [after - before for before, after, made in zip(stop, further, calls, strict=True) if made]
    totals = [sum(stop)]
    for gain in sorted(gains, reverse=True):
        totals.append(totals[-1] + gain)
    most = len(gains)
    kept = range(0, most + 1, max(1, most // MAX_POINTS))
    return {
        "random": [[0, _mean(stop)], [most, _mean(further)]],
        "oracle": [[made, round(totals[made] / len(stop), 6)] for made in sorted({*kept, most})],
    }


def _arms(experiment: Experiment, variant: Variant, name: str) -> tuple[list[float], list[float]]:
    stop, further = (experiment.outcomes[arm.name] for arm in (variant.stop_arm(), variant.continue_arm()))
    order = [query.query_id for query in experiment.queries]
    return [stop[i].measures[name] for i in order], [further[i].measures[name] for i in order]


def _thinned(bars: Sequence[float]) -> list[float]:
    if len(bars) <= MAX_POINTS:
        return list(bars)
    places = {round(place * (len(bars) - 1) / (MAX_POINTS - 1)) for place in range(MAX_POINTS)}
    return [bars[place] for place in sorted(places)]


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 6) if values else None
