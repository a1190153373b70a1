"""Train the shipped scorecard: points for four signs of a good lexical result, and three thresholds.

Reads test collections in BEIR layout, of which the package holds none. Every collection's judged queries are divided
into three slices before anything is run: the points come from ``points``; what the thresholds cost from ``points`` and
``thresholds`` together, since the mean over the 50 queries of one slice says little; ``final`` is looked at only with
``--final``, once, after everything is settled.

The target is what stopping gains over going on in nDCG@4 (usually a loss), at the package's own fusion and depths. The
fit is a least squares one with weights of at least 0, every collection counting alike, drawn towards equal shares of
the points; each sign's share is then spread evenly over ten steps.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bounded_retrieval.console import ProgressDisplay
from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment
from bounded_retrieval.contracts.scorecard import COUNTS, ScorecardTable, Sign
from bounded_retrieval.evaluating import collection_index
from bounded_retrieval.evaluation.bootstrap import Resampler
from bounded_retrieval.evaluation.certification import upper_bound
from bounded_retrieval.evaluation.collections import Collection, load_collection
from bounded_retrieval.evaluation.experiment import run_experiment
from bounded_retrieval.evaluation.slices import slice_fingerprint
from bounded_retrieval.evaluation.summary import versions
from bounded_retrieval.evaluation.thresholds import draw_slices
from bounded_retrieval.evaluation.variants import ALWAYS, OWN_ROWS, Variant
from bounded_retrieval.policies.registry import DEFAULT_FUSION
from bounded_retrieval.policies.signs import read_signs
from bounded_retrieval.policies.weighted import IdfCoverage, Scorecard, values_of

COLLECTIONS = ("hotpotqa_train100", "musique_train100", "scifact_train")
FRACTIONS = {"points": 0.5, "thresholds": 0.3, "final": 0.2}
SEED = 0
SIGNS: tuple[Sign, ...] = ("phrases", "lead", "terms", "length")
STEPS = 10
RANGES = {"phrases": 1.0, "lead": 0.3, "terms": 12.0, "length": 2000.0}
"""Where a sign stops counting more: all pairs, this share of the highest possible score, so many terms, characters."""
SHRINKAGE = 1.0
"""How strongly the shares are drawn towards equal ones."""
THRESHOLDS = {"default": 0.27, "economy": 0.17, "quality": 0.37}
"""At them public collections that have no part in this make 57%, 40% and 76% of the dense calls of going on always,
each counting alike: at most 60% and 80% are the aims for two of them, and other collections differ. To count calls
takes no judgement."""
RESAMPLES = 10_000


@dataclass
class Recorder:
    """An assessor that keeps the signs of every first search and never stops."""

    name: str = "recorder"
    needs_weights: bool = True
    default_threshold: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    seen: dict[str, dict[Sign, float]] = field(default_factory=dict)
    vetoed: dict[str, bool] = field(default_factory=dict)

    def assess(self, given: AssessmentInput) -> CoverageAssessment:
        """Keep the signs of a query's first search, and never find them sufficient."""
        self.seen.setdefault(given.query, values_of(given, read_signs(given)))
        judged = IdfCoverage().assess(given.model_copy(update={"threshold": 0.0}))
        self.vetoed.setdefault(given.query, not judged.sufficient)
        return judged.model_copy(update={"sufficient": False})

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True)
class Observed:
    """One collection's queries of one slice.

    Attributes:
        signs: shape (queries, 4).
        vetoed: where stopping is forbidden, shape (queries,) like all that follow.
        stop, further, ranks: nDCG@4 when stopping, when going on, and when going on with reciprocal ranks, 3 + 3 rows.
    """

    name: str
    signs: np.ndarray
    vetoed: np.ndarray
    stop: np.ndarray
    further: np.ndarray
    ranks: np.ndarray

    def __add__(self, other: Observed) -> Observed:
        """Two slices of one collection as one."""
        columns = ("signs", "vetoed", "stop", "further", "ranks")
        return Observed(self.name, *(np.concatenate([getattr(self, each), getattr(other, each)]) for each in columns))

    def losses(self, stops: np.ndarray) -> np.ndarray:
        """What going on always is above stopping at ``stops``, shape (queries,)."""
        return self.further - np.where(stops, self.stop, self.further)


def observe(collection: Collection, part: str) -> Observed:
    """Run both arms over one slice."""
    queries = draw_slices(collection, FRACTIONS, SEED)[part]
    recorder = Recorder()
    variant = Variant(
        name="recorded", policy="adaptive", assessor=recorder, fusion=DEFAULT_FUSION, first_hop_rows=OWN_ROWS
    )
    with ProgressDisplay() as display, collection_index(collection, None, "minilm", display) as index:
        experiment = run_experiment(
            collection, index.lexical, index.dense, index.units, variants=[variant, ALWAYS], queries=queries, live=0
        )
    arms = [experiment.outcomes[arm.name] for arm in (variant.stop_arm(), variant.continue_arm(), ALWAYS)]
    stop, further, ranks = (np.array([arm[q.query_id].measures["ndcg@4"] for q in queries]) for arm in arms)
    signs = np.array([[recorder.seen[q.text][name] for name in SIGNS] for q in queries])
    vetoed = np.array([recorder.vetoed[q.text] for q in queries])
    return Observed(collection.name, signs, vetoed, stop, further, ranks)


def steps_of(signs: np.ndarray) -> np.ndarray:
    """Each sign in whole steps, 0 to 10, shape (queries, 4)."""
    ranges = np.array([RANGES[name] for name in SIGNS])
    return np.floor(np.clip(signs / ranges, 0, 1) * STEPS + 1e-9)


def fit(observed: Sequence[Observed]) -> np.ndarray:
    """The share of the points of each sign, shape (4,), together 1."""
    weights = np.concatenate([np.full(len(each.stop), 1 / len(each.stop)) for each in observed])
    weights /= weights.sum()
    values = np.concatenate([steps_of(each.signs) / STEPS for each in observed])
    target = np.concatenate([each.stop - each.further for each in observed])
    values, target = values - weights @ values, target - weights @ target
    gram, moments = values.T @ (weights[:, None] * values), values.T @ (weights * target)
    # The prior: equal shares that explain as much of the target as equal shares can.
    equal = np.full(len(SIGNS), max(0.0, moments.sum() / gram.sum() if gram.sum() > 0 else 0.0))
    gram = gram + SHRINKAGE * np.eye(len(SIGNS))
    moments = moments + SHRINKAGE * equal
    found = equal.copy()
    for _ in range(1000):  # coordinate descent on a convex problem of four variables
        for place in range(len(SIGNS)):
            rest = gram[place] @ found - gram[place, place] * found[place]
            found[place] = max(0.0, (moments[place] - rest) / gram[place, place])
    # Where going on gains nothing anywhere, nothing tells the signs apart.
    return found / found.sum() if found.sum() > 0 else np.full(len(SIGNS), 1 / len(SIGNS))


def edge(name: str, step: int) -> float:
    """The least value of a sign that reaches a step; of a count, a whole one."""
    least = RANGES[name] * step / STEPS
    return math.ceil(round(least, 6)) if name in COUNTS else round(least, 3)


def table_of(shares: np.ndarray, thresholds: Mapping[str, float], provenance: Mapping[str, Any]) -> ScorecardTable:
    """Whole points: each sign's share of 100, spread over its steps."""
    factors = [
        {
            "name": name,
            "edges": [edge(name, step) for step in range(1, STEPS + 1)],
            "points": [math.floor(100 * share * step / STEPS + 0.5) for step in range(1, STEPS + 1)],
        }
        for name, share in zip(SIGNS, shares, strict=True)
    ]
    return ScorecardTable.model_validate(
        {"factors": factors, "thresholds": dict(thresholds), "provenance": dict(provenance)}
    )


def share_of_points(table: ScorecardTable, observed: Observed) -> np.ndarray:
    """What the assessor compares with the threshold, shape (queries,)."""
    points = [
        sum(factor.of(value) for factor, value in zip(table.factors, signs, strict=True)) for signs in observed.signs
    ]
    return np.array(points) / table.most


def at_threshold(table: ScorecardTable, observed: Sequence[Observed], threshold: float) -> dict[str, Any]:
    """Dense calls for each query, nDCG@4 and its loss, per collection and over all of them alike."""
    found = {}
    for each in observed:
        stops = (share_of_points(table, each) >= threshold) & ~each.vetoed
        found[each.name] = {
            "dense_share": float(1 - stops.mean()),
            "ndcg@4": float(np.where(stops, each.stop, each.further).mean()),
            "loss": float(each.losses(stops).mean()),
        }
    macro = {name: float(np.mean([one[name] for one in found.values()])) for name in ("dense_share", "ndcg@4", "loss")}
    return {
        name: {key: round(value, 4) for key, value in one.items()} for name, one in (found | {"all": macro}).items()
    }


def without_loss(table: ScorecardTable, observed: Sequence[Observed], against: str) -> float:
    """The lowest threshold, in hundredths, at which, and above which, no loss can be measured.

    None can where the 95% bootstrap interval of the mean loss against an arm of `Observed` (``further``, ``ranks``)
    holds 0.
    """
    steps = range(101)
    lows = [lowest_loss(table, observed, step / 100, against) for step in steps]
    return next(step for step in steps if max(lows[step:]) <= 0) / 100


def lowest_loss(table: ScorecardTable, observed: Sequence[Observed], threshold: float, against: str) -> float:
    """The low end of the interval of the mean loss, every collection counting alike."""
    samples = np.zeros(RESAMPLES)
    for place, each in enumerate(observed):
        stops = (share_of_points(table, each) >= threshold) & ~each.vetoed
        losses = getattr(each, against) - np.where(stops, each.stop, each.further)
        samples += Resampler(len(each.stop), RESAMPLES, SEED + place).means(losses) / len(observed)
    return float(np.quantile(samples, 0.025))


def certify(table: ScorecardTable, observed: Sequence[Observed], threshold: float) -> dict[str, Any]:
    """Bounds on the mean loss at a threshold, at 95%, collection by collection."""
    bounds = {}
    for each in observed:
        stops = (share_of_points(table, each) >= threshold) & ~each.vetoed
        bounds[each.name] = round(upper_bound(each.losses(stops), 0.95), 4)
    return bounds


def transfer(fitted: Sequence[Observed], chosen: Sequence[Observed]) -> dict[str, Any]:
    """Points from all collections but one, figures at the default threshold on that one."""
    found = {}
    for tested in chosen:
        shares = fit([each for each in fitted if each.name != tested.name])
        table = table_of(shares, THRESHOLDS, {})
        found[tested.name] = {
            "shares": [round(float(share), 3) for share in shares],
            **at_threshold(table, [tested], THRESHOLDS["default"])[tested.name],
            "stop": round(float(tested.stop.mean()), 4),
            "always": round(float(tested.further.mean()), 4),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collections", type=Path, required=True, metavar="DIR", help="folder of BEIR folders")
    parser.add_argument("--out", type=Path, help="where to write the table; by default it is printed")
    parser.add_argument("--final", action="store_true", help="evaluate the shipped table on the final slices instead")
    arguments = parser.parse_args()
    collections = [load_collection(arguments.collections / name) for name in COLLECTIONS]
    if arguments.final:
        shipped = Scorecard().table
        observed = [observe(collection, "final") for collection in collections]
        for setting, threshold in shipped.thresholds.items():
            bounds = certify(shipped, observed, threshold)
            print(json.dumps({setting: at_threshold(shipped, observed, threshold), "bounds": bounds}))
        return
    fitted = [observe(collection, "points") for collection in collections]
    chosen = [first + observe(collection, "thresholds") for first, collection in zip(fitted, collections, strict=True)]
    shares = fit(fitted)
    draft = table_of(shares, THRESHOLDS, {})
    provenance = {
        "command": "python benchmarks/train_scorecard.py --collections DIR --out bounded_retrieval/data/scorecard.json",
        "collections": [describe(collection) for collection in collections],
        "fractions": FRACTIONS,
        "seed": SEED,
        "target": "nDCG@4 of stopping less that of going on; score_fusion, 4 + 2 rows",
        "shares": {name: round(float(share), 4) for name, share in zip(SIGNS, shares, strict=True)},
        "chosen": {name: at_threshold(draft, chosen, value) for name, value in THRESHOLDS.items()},
        "without_measurable_loss": {
            against: without_loss(draft, chosen, arm)
            for against, arm in (("score_fusion", "further"), ("rrf", "ranks"))
        },
        "transfer": transfer(fitted, chosen),
        "versions": versions(),
    }
    text = table_of(shares, THRESHOLDS, provenance).model_dump_json(indent=2) + "\n"
    if arguments.out is None:
        print(text)
    else:
        arguments.out.write_text(text, encoding="utf-8")
        print(f"wrote {arguments.out}")


def describe(collection: Collection) -> dict[str, Any]:
    """What a collection was, down to the slices."""
    slices = draw_slices(collection, FRACTIONS, SEED)
    return {
        "name": collection.name,
        "fingerprint": collection.fingerprint,
        "slices": {
            name: {"queries": len(members), "fingerprint": slice_fingerprint([q.query_id for q in members])}
            for name, members in slices.items()
        },
    }


if __name__ == "__main__":
    main()
