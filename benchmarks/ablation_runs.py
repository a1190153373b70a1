"""Runs of the ablation: what each policy gives for each query, with means, intervals and curves over collections."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.console import ProgressDisplay
from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.evaluating import collection_index
from bounded_retrieval.evaluation.bootstrap import Resampler
from bounded_retrieval.evaluation.collections import Collection
from bounded_retrieval.evaluation.experiment import Experiment, run_experiment
from bounded_retrieval.evaluation.variants import ALWAYS, OWN_ROWS, Variant, read_variants
from bounded_retrieval.policies.registry import ASSESSORS, DEFAULT_FUSION, FUSIONS

DEPTHS = (2, 3, 4)
MEASURES = ("ndcg@4", "packet_ndcg@4")
DENSE = "dense_calls"
RESAMPLES = 10_000
SEED = 0
MOST_POINTS = 60
"""Points of a curve that are reported; the table is read off all of them."""
MACRO = "all"
LIMITS = Budget()

Floats = NDArray[np.float64]


def adaptive(assessor: str, fusion: str, rows: int) -> Variant:
    """One cell of the ablation, at the assessor's own threshold."""
    name = f"{assessor}, {fusion}, {rows} rows"
    return Variant(name=name, policy="adaptive", assessor=assessor, fusion=fusion, first_hop_rows=rows)


OWN = adaptive("scorecard", DEFAULT_FUSION, OWN_ROWS)
FIXED = read_variants(["fixed_lexical", "fixed_dense"])
STOPS = tuple(adaptive("scorecard", DEFAULT_FUSION, rows).stop_arm() for rows in DEPTHS)
BOTH = tuple(adaptive("scorecard", fusion, rows).continue_arm() for fusion in FUSIONS for rows in DEPTHS)
ALWAYS_OWN = OWN.continue_arm()
UNDECIDED = (*FIXED, ALWAYS, ALWAYS_OWN)
"""Policies that decide nothing and that a user would otherwise choose among."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An assessor that stops at a threshold, over one fusion and depth."""

    assessor: str
    threshold: float
    fusion: str = DEFAULT_FUSION
    rows: int = OWN_ROWS

    @property
    def variant(self) -> Variant:
        """What is run where the threshold is the assessor's own."""
        return adaptive(self.assessor, self.fusion, self.rows)


def default_rule(assessor: str, fusion: str = DEFAULT_FUSION, rows: int = OWN_ROWS) -> Rule:
    return Rule(assessor=assessor, threshold=ASSESSORS[assessor]().default_threshold, fusion=fusion, rows=rows)


# Observing


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One collection.

    Attributes:
        runs: by variant, then by measure (dense calls among them), one value for each query, shape (queries,).
        reach: by assessor and depth, the coverage of each query's first result; minus infinity where a veto forbids
            stopping. Shape (queries,).
    """

    about: Mapping[str, Any]
    runs: Mapping[str, Mapping[str, Floats]]
    reach: Mapping[tuple[str, int], Floats]

    @property
    def queries(self) -> int:
        """How many were run."""
        return int(self.about["queries"])

    def values(self, policy: Variant | Rule, measure: str) -> Floats:
        """A policy's measure of each query, shape (queries,)."""
        if isinstance(policy, Variant):
            return self.runs[policy.name][measure]
        arms = (policy.variant.stop_arm(), policy.variant.continue_arm())
        stops = self.reach[policy.assessor, policy.rows] >= policy.threshold
        return np.where(stops, *(self.runs[arm.name][measure] for arm in arms))


def observe(collection: Collection, limit: int | None) -> Observed:
    """Search once for each query and channel, and run every arm and assessor over what was found."""
    rules = [default_rule(assessor, rows=rows) for assessor in ASSESSORS for rows in DEPTHS]
    with ProgressDisplay() as display, collection_index(collection, None, "minilm", display) as index:
        display.say(collection.name)
        experiment = run_experiment(
            collection,
            index.lexical,
            index.dense,
            index.units,
            variants=[*FIXED, *STOPS, *BOTH, *(rule.variant for rule in rules)],
            budget=LIMITS,
            queries=collection.judged()[:limit],
            live=0,
            progress=display.progress,
        )
        about = {"queries": len(experiment.queries), "units": len(index.units), **index.built_with}
    observed = Observed(
        about=about | {"split": collection.split, "fingerprint": collection.fingerprint},
        runs={variant.name: _values(experiment, variant) for variant in experiment.variants},
        reach={(rule.assessor, rule.rows): _reach(experiment, rule.variant) for rule in rules},
    )
    for rule in rules:
        check_composed(observed, rule)
    return observed


def _values(experiment: Experiment, variant: Variant) -> dict[str, Floats]:
    runs = [experiment.outcomes[variant.name][query.query_id] for query in experiment.queries]
    measures = {name: np.array([run.measures[name] for run in runs]) for name in MEASURES}
    return measures | {DENSE: np.array([float(run.usage[DENSE]) for run in runs])}


def _reach(experiment: Experiment, variant: Variant) -> Floats:
    reached = [experiment.reached[variant.name][query.query_id] for query in experiment.queries]
    return np.array([each.coverage if each.may_stop else -math.inf for each in reached])


def check_composed(observed: Observed, rule: Rule) -> None:
    """Make sure that a rule put together from its arms equals the runs that were really made.

    Raises:
        RuntimeError: it does not; names the rule and the measure.
    """
    for measure in (*MEASURES, DENSE):
        if not np.array_equal(observed.values(rule, measure), observed.values(rule.variant, measure)):
            raise RuntimeError(f"{rule.variant.name}: {measure} put together from the arms is not that of the runs")


# Means and intervals


@dataclass(frozen=True, kw_only=True)
class Pool:
    """All collections, with the bootstrap samples of each; every figure is given by collection and for ``all``."""

    observed: Mapping[str, Observed]
    resamplers: Mapping[str, Resampler]
    _kept: dict[tuple[Variant | Rule, str, str], Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, observed: Mapping[str, Observed]) -> Pool:
        """Draw the samples: each collection its own, so that the collections' luck is independent."""
        drawn = {
            name: Resampler(each.queries, RESAMPLES, SEED + place)
            for place, (name, each) in enumerate(observed.items())
        }
        return cls(observed=observed, resamplers=drawn)

    def means(self, policy: Variant | Rule, measure: str) -> dict[str, float]:
        """The mean over queries, and over collections."""
        found = {name: float(each.values(policy, measure).mean()) for name, each in self.observed.items()}
        return {MACRO: float(np.mean(list(found.values()))), **found}

    def intervals(
        self, policy: Variant | Rule, measure: str, less: Variant | Rule | None = None
    ) -> dict[str, list[float]]:
        """Mean, low and high end; of the paired difference to another policy where one is given."""
        found = self._with_samples(policy, measure)
        if less is not None:
            others = self._with_samples(less, measure)
            found = {name: values - others[name] for name, values in found.items()}
        found = {MACRO: np.mean(list(found.values()), axis=0), **found}
        return {
            name: [rounded(value) for value in (values[0], *np.quantile(values[1:], [0.025, 0.975]))]
            for name, values in found.items()
        }

    def _with_samples(self, policy: Variant | Rule, measure: str) -> dict[str, Floats]:
        """By collection the mean and those of its samples, shape (1 + resamples,)."""
        for name, each in self.observed.items():
            if (policy, measure, name) not in self._kept:
                values = each.values(policy, measure)
                means = self.resamplers[name].means(values)
                self._kept[policy, measure, name] = np.concatenate([[values.mean()], means])
        return {name: self._kept[policy, measure, name] for name in self.observed}


def rounded(value: float) -> float:
    """As figures are reported, to four decimals."""
    return round(float(value), 4) + 0.0  # no negative zero


# Curves


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Macro nDCG@4 against macro dense calls per query, ascending, each of shape (points,)."""

    calls: Floats
    values: Floats
    thresholds: Sequence[float] = ()

    def at(self, calls: float) -> float | None:
        """Read off between two points; none outside of the curve, where vetoes alone make more calls."""
        if not self.calls[0] <= calls <= self.calls[-1]:
            return None
        return rounded(np.interp(calls, self.calls, self.values))

    def points(self) -> list[dict[str, Any]]:
        """At most `MOST_POINTS`, both ends among them; a threshold of none never stops."""
        last = len(self.calls) - 1
        kept = np.unique(np.linspace(0, last, MOST_POINTS).round().astype(int)).tolist()
        found: list[dict[str, Any]] = [
            {DENSE: rounded(self.calls[at]), "ndcg@4": rounded(self.values[at])} for at in kept
        ]
        bars = [self.thresholds[at] for at in kept] if self.thresholds else []
        for point, bar in zip(found, bars, strict=False):
            point["threshold"] = None if math.isinf(bar) else round(bar, 6)
        return found


def swept(pool: Pool, assessor: str) -> Curve:
    """One assessor at every threshold that changes anything, over all collections at once."""
    reach = np.concatenate([each.reach[assessor, OWN_ROWS] for each in pool.observed.values()])
    bars = [*sorted({0.0, *reach[np.isfinite(reach)].tolist()}), math.inf]
    rules = [Rule(assessor=assessor, threshold=bar) for bar in bars]
    calls, values = ([pool.means(rule, name)[MACRO] for rule in rules] for name in (DENSE, "ndcg@4"))
    return Curve(calls=np.array(calls), values=np.array(values), thresholds=bars)


def floor(pool: Pool) -> Curve:
    """Stopping at random: the straight line between the arms."""
    arms = (OWN.stop_arm(), ALWAYS_OWN)
    calls, values = (np.array([pool.means(arm, name)[MACRO] for arm in arms]) for name in (DENSE, "ndcg@4"))
    return Curve(calls=calls, values=values)


def ceiling(pool: Pool) -> Curve:
    """The oracle: of all queries of all collections, it goes on first where that gains most, and never at a loss."""
    arms = (OWN.stop_arm(), ALWAYS_OWN)
    pairs = [[each.values(arm, "ndcg@4") for arm in arms] for each in pool.observed.values()]
    gains = np.concatenate([further - stop for stop, further in pairs])
    # A query's share of the macro mean is that of its dense call, so that the order by gain is the best one.
    weights = np.concatenate([np.full(len(stop), 1 / len(stop) / len(pairs)) for stop, _ in pairs])
    order = np.argsort(-gains, kind="stable")
    calls = np.concatenate([[0.0], np.cumsum(weights[order])])
    gained = np.concatenate([[0.0], np.cumsum(weights[order] * np.maximum(0.0, gains[order]))])
    return Curve(calls=calls, values=pool.means(arms[0], "ndcg@4")[MACRO] + gained)
