"""Turn an experiment into its report: one JSON-native mapping, the same bytes for the same observations."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.evaluation.bootstrap import Interval, Resampler
from bounded_retrieval.evaluation.collections import Query
from bounded_retrieval.evaluation.diagnosis import (
    ceiling,
    change,
    curve,
    early_stops,
    outcomes_by_reason,
    stopped_early,
)
from bounded_retrieval.evaluation.experiment import Experiment, Outcome
from bounded_retrieval.evaluation.measures import MEASURES, PACKET_MEASURES
from bounded_retrieval.evaluation.variants import Variant

FORMAT = "bounded-retrieval-evaluation-1"
"""Changes whenever a reader of an older report would be misled."""

BASELINES = ("fixed_lexical", "fixed_dense", "always_continue")
"""What every policy is compared with."""

EXCERPT_CHARS = 300
"""Characters of a unit's text that a report quotes."""

_PACKAGES = ("bounded-retrieval", "langgraph", "langchain-core", "bm25s", "chromadb", "numpy", "ir-measures")
_SPENT = ("calls", "dense_calls", "rows", "reads", "scored_units", "units", "chars")


def summarise(  # noqa: PLR0913 - all but the experiment are keywords with defaults
    experiment: Experiment,
    *,
    documents: Mapping[str, Document] | None = None,
    about: Mapping[str, Any] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """The report: measures with bootstrap intervals, paired differences, what stops cost, and every query.

    Args:
        experiment: what was observed.
        documents: texts of the units in the rankings, of which excerpts are quoted; none quotes nothing.
        about: what else the report should state of the index (embedding, units, survey of the collection).
        resamples: bootstrap samples of queries.
        seed: of the bootstrap.
        confidence: of every interval.
    """
    resampler = Resampler(len(experiment.queries), resamples, seed)
    adaptive = [variant for variant in experiment.variants if variant.policy == "adaptive"]
    return {
        "format": FORMAT,
        "collection": {
            "name": experiment.collection.name,
            "kind": experiment.collection.kind,
            "split": experiment.collection.split,
            "fingerprint": experiment.collection.fingerprint,
            **(about or {}),
        },
        "settings": {
            "limits": experiment.budget.model_dump(),
            "resamples": resamples,
            "seed": seed,
            "confidence": confidence,
        },
        "versions": versions(),
        "policies": {
            variant.name: _policy(experiment, variant, resampler, confidence) for variant in experiment.variants
        },
        "differences": _differences(experiment, resampler, confidence),
        "early_stops": {variant.name: early_stops(experiment, variant, confidence) for variant in adaptive},
        "stop_reasons": {v.name: outcomes_by_reason(experiment.outcomes[v.name]) for v in experiment.variants},
        "arms": {v.name: {"stop": v.stop_arm().name, "continue": v.continue_arm().name} for v in adaptive},
        "ceilings": {variant.name: ceiling(experiment, variant, resampler, confidence) for variant in adaptive},
        "curves": {variant.name: curve(experiment, variant) for variant in adaptive},
        "live_check": {
            "queries": experiment.live.queries,
            "runs": experiment.live.runs,
            "different": [list(pair) for pair in experiment.live.different],
        },
        "queries": [_query(experiment, query) for query in experiment.queries],
        "units": _excerpts(documents or {}),
    }


def timings(experiment: Experiment) -> dict[str, Any]:
    """Wall-clock figures, kept out of the report: seconds per stage, and milliseconds of the live runs per policy."""
    return {
        "seconds": dict(experiment.seconds),
        "latency_ms": {
            name: {"runs": len(values), "p50": _percentile(values, 0.5), "p95": _percentile(values, 0.95)}
            for name, values in experiment.latencies.items()
            if values
        },
    }


def versions() -> dict[str, str]:
    """Of this package, and of those that rankings and measures come from."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


def _policy(experiment: Experiment, variant: Variant, resampler: Resampler, confidence: float) -> dict[str, Any]:
    outcomes = [experiment.outcomes[variant.name][query.query_id] for query in experiment.queries]
    intervals = {
        name: resampler.interval([outcome.measures[name] for outcome in outcomes], confidence)
        for name in (*MEASURES, *PACKET_MEASURES)
    }
    return {
        **{name: round(interval.mean, 6) for name, interval in intervals.items()},
        "intervals": {name: _bounds(interval) for name, interval in intervals.items()},
        "queries": len(outcomes),
        **{name: sum(outcome.usage[name] for outcome in outcomes) for name in _SPENT},
        "stop_reasons": dict(sorted(Counter(outcome.stop_reason for outcome in outcomes).items())),
        **variant.describe(experiment.budget),
    }


def _bounds(interval: Interval) -> list[float]:
    return [round(interval.low, 6), round(interval.high, 6)]


def _differences(experiment: Experiment, resampler: Resampler, confidence: float) -> list[dict[str, Any]]:
    present = [name for name in BASELINES if name in experiment.outcomes]
    return [
        _difference(experiment, (variant.name, baseline, name), resampler, confidence)
        for variant in experiment.variants
        for baseline in dict.fromkeys([*present, *_own_arm(variant)])
        for name in ("ndcg@4", "packet_ndcg@4")
        if variant.name != baseline
    ]


def _own_arm(variant: Variant) -> list[str]:
    return [variant.continue_arm().name] if variant.policy == "adaptive" else []


def _difference(
    experiment: Experiment, compared: tuple[str, str, str], resampler: Resampler, confidence: float
) -> dict[str, Any]:
    name, baseline, measure = compared
    runs, others = experiment.outcomes[name], experiment.outcomes[baseline]
    values = [
        runs[query.query_id].measures[measure] - others[query.query_id].measures[measure]
        for query in experiment.queries
    ]
    interval = resampler.interval(values, confidence)
    words = Counter(change(others[q.query_id], runs[q.query_id], measure) for q in experiment.queries)
    return {
        "policy": name,
        "against": baseline,
        "measure": measure,
        "mean": round(interval.mean, 6),
        "interval": _bounds(interval),
        "better": words["improved"],
        "equal": words["unchanged"],
        "worse": words["reduced"],
    }


def _query(experiment: Experiment, query: Query) -> dict[str, Any]:
    runs = {variant.name: experiment.outcomes[variant.name][query.query_id] for variant in experiment.variants}
    matched: dict[str, tuple[str, ...]] = {}
    for outcome in runs.values():
        matched |= outcome.matched
    return {
        "query_id": query.query_id,
        "text": query.text,
        "relevant": {
            unit: grade for unit, grade in experiment.collection.judgements[query.query_id].items() if grade > 0
        },
        "channels": {
            channel: [_row(row) for row in rows] for channel, rows in experiment.answers[query.query_id].items()
        },
        "matched": {unit_id: list(terms) for unit_id, terms in matched.items()},
        "runs": {variant.name: _run(variant, runs) for variant in experiment.variants},
    }


def _row(row: Candidate) -> dict[str, Any]:
    return {"unit_id": row.unit_id, "rank": row.rank, "score": row.score}


def _run(variant: Variant, runs: Mapping[str, Outcome]) -> dict[str, Any]:
    outcome = runs[variant.name]
    run: dict[str, Any] = {
        "ranking": list(outcome.ranking),
        "packed": list(outcome.packed),
        "stop_reason": outcome.stop_reason,
        "calls": outcome.usage["calls"],
        "dense_calls": outcome.usage["dense_calls"],
        **dict(outcome.measures),
    }
    if variant.policy == "adaptive":
        decision = outcome.decision
        run["decision"] = decision and {
            "coverage": decision.coverage,
            "threshold": decision.threshold,
            "sufficient": decision.sufficient,
            "reasons": list(decision.reasons),
            "missing_terms": list(decision.missing_terms),
        }
        run["stopped_early"] = stopped_early(outcome)
        run["one_more_call"] = change(runs[variant.stop_arm().name], runs[variant.continue_arm().name], "ndcg@4")
    return run


def _excerpts(documents: Mapping[str, Document]) -> dict[str, Any]:
    return {
        unit_id: {
            "title": str(document.metadata.get("title", "")),
            "text": document.page_content[:EXCERPT_CHARS],
            "chars": len(document.page_content),
        }
        for unit_id, document in sorted(documents.items())
    }
