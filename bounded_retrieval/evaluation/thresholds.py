"""Choose a threshold on one slice of the queries and certify it on another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.calibration import Calibration, CandidateFigures, Slice
from bounded_retrieval.contracts.packet import SEPARATOR
from bounded_retrieval.contracts.ports import UnitSource
from bounded_retrieval.errors import RequestError, SourceError
from bounded_retrieval.evaluation.certification import MOST_CANDIDATES, Certificate, certify_sequence, upper_bound
from bounded_retrieval.evaluation.collections import Collection, Query
from bounded_retrieval.evaluation.experiment import Answers, Experiment, Progress, run_experiment
from bounded_retrieval.evaluation.measures import MEASURES, PACKET_MEASURES
from bounded_retrieval.evaluation.slices import DEFAULT_FRACTIONS, divide, slice_fingerprint
from bounded_retrieval.evaluation.summary import versions
from bounded_retrieval.evaluation.variants import Variant
from bounded_retrieval.policies.registry import (
    DEFAULT_ASSESSOR,
    DEFAULT_FUSION,
    assessor_named,
    default_first_hop_rows,
    fusion_named,
)

MIN_SLICE = 10
"""Fewest queries of a slice; below that nothing can be said."""

Against = Literal["always_continue", "best_fixed"]


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """What is declared before any result is seen.

    Attributes:
        assessor, fusion: names of what decides and of what ranks.
        first_hop_rows: rows of the lexical call; by default what a builder takes under this budget.
        thresholds: the candidates, 1 to 8; by default the assessor's own and the one half-way from there to 1.
        measure: what a loss is taken in; nDCG@4 of the ranking by default.
        against: the baseline: never stopping (with the same fusion and depths), or the best of the policies that
            decide nothing, as the selection slice has it.
        epsilon: the mean loss that is tolerated, 0 to 1.
        confidence: of the certificate, above .5 and below 1.
        fractions: shares of the slices: ``selection``, ``certification`` and, if wanted, ``final``, left alone.
        seed: of the division into slices and of the test's order of queries.
        budget: limits of every run.
    """

    assessor: str = DEFAULT_ASSESSOR
    fusion: str = DEFAULT_FUSION
    first_hop_rows: int | None = None
    thresholds: tuple[float, ...] = ()
    measure: str = "ndcg@4"
    against: Against = "always_continue"
    epsilon: float = 0.02
    confidence: float = 0.95
    fractions: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_FRACTIONS))
    seed: int = 0
    budget: Budget = field(default_factory=Budget)

    def checked(self) -> CalibrationSettings:
        """The settings with the default candidates filled in.

        Raises:
            RequestError, ConfigurationError: a setting is out of bounds; names it.
        """
        fusion_named(self.fusion)
        own = assessor_named(self.assessor).default_threshold
        candidates = tuple(dict.fromkeys(self.thresholds or (own, round((1 + own) / 2, 6))))
        if len(candidates) > MOST_CANDIDATES:
            raise RequestError(f"threshold: at most {MOST_CANDIDATES} candidates (got {len(candidates)})")
        for value in candidates:
            if not 0 <= value <= 1:
                raise RequestError(f"threshold: 0 to 1 (got {value!r})")
        self._check_names()
        self._check_numbers()
        return replace(self, thresholds=candidates, first_hop_rows=self.variant.first_hop_rows)

    def _check_names(self) -> None:
        measures, baselines = (*MEASURES, *PACKET_MEASURES), get_args(Against)
        if self.measure not in measures:
            raise RequestError(f"measure: one of {', '.join(measures)} (got {self.measure!r})")
        if self.against not in baselines:
            raise RequestError(f"against: one of {', '.join(baselines)} (got {self.against!r})")
        if not {"selection", "certification"} <= set(self.fractions) <= {"selection", "certification", "final"}:
            raise RequestError(
                f"slices: selection, certification and, if wanted, final (got {', '.join(self.fractions)})"
            )

    def _check_numbers(self) -> None:
        # All of it before the experiment, which may take long; the test itself would complain only afterwards.
        if not 0 <= self.epsilon <= 1:
            raise RequestError(f"epsilon: 0 to 1 (got {self.epsilon})")
        if not 0.5 < self.confidence < 1:  # noqa: PLR2004 - the two limits stand in the message
            raise RequestError(f"confidence: above .5 and below 1 (got {self.confidence})")
        if self.seed < 0:
            raise RequestError(f"seed: 0 or more (got {self.seed})")
        if self.first_hop_rows is not None and self.first_hop_rows < 1:
            raise RequestError(f"first_hop_rows: at least 1 (got {self.first_hop_rows})")

    @property
    def variant(self) -> Variant:
        """The adaptive policy whose threshold is sought."""
        return Variant(
            name="adaptive",
            policy="adaptive",
            assessor=self.assessor,
            fusion=self.fusion,
            first_hop_rows=self.first_hop_rows or default_first_hop_rows(self.budget.max_rows),
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a calibration.

    Attributes:
        calibration: the artefact; none where no candidate could be certified.
        candidates: every candidate in the order of the test.
        baseline: name of the policy that losses are taken against.
        best_fixed: the best policy that decides nothing, on the selection slice, with its measure there.
        unit_lengths: see `Calibration`.
    """

    calibration: Calibration | None
    candidates: tuple[CandidateFigures, ...]
    baseline: str
    best_fixed: tuple[str, float]
    unit_lengths: Mapping[str, Any]


def calibrate(  # noqa: PLR0913 - all but the parts are keywords with defaults
    collection: Collection,
    lexical: Any,
    dense: Any,
    units: UnitSource | None = None,
    *,
    settings: CalibrationSettings | None = None,
    about: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    lengths: Callable[[Mapping[str, Any]], None] | None = None,
) -> Verdict:
    """Choose among the declared thresholds on the selection slice; certify on the certification slice.

    The candidates are put in order by the selection slice alone, the one with the lowest bound on its loss first, and
    tested in that order until one fails. Of the certified ones, that with the fewest dense calls on the selection slice
    is taken.

    Args:
        collection: queries and judgements.
        lexical: a synchronous searcher over the collection's units.
        dense: likewise.
        units: where the recheck reads current text.
        settings: what is declared beforehand.
        about: ``tokenizer`` and ``embedding`` of the index, for the artefact.
        progress: told how far it is.
        lengths: given the lengths of the units that the selection queries found, before any run.

    Raises:
        RequestError, ConfigurationError: a setting is out of bounds.
        SourceError: too few queries for the slices.
    """
    declared = (settings or CalibrationSettings()).checked()
    slices = draw_slices(collection, declared.fractions, declared.seed)
    measured: dict[str, Any] = {}

    def state_lengths(answers: Answers) -> None:
        chosen = {query.query_id: answers[query.query_id] for query in slices["selection"]}
        measured.update(unit_lengths(chosen, units, declared.budget))
        if lengths is not None:
            lengths(measured)

    parts = (lexical, dense, units)
    experiment = run_experiment(
        collection,
        *parts,
        variants=_policies(declared),
        budget=declared.budget,
        queries=[*slices["selection"], *slices["certification"]],
        live=0,
        progress=progress,
        retrieved=state_lengths,
    )
    bench = _Bench(experiment=experiment, settings=declared, slices=slices)
    candidates = bench.test()
    return Verdict(
        calibration=bench.artefact(candidates, measured, about or {}),
        candidates=candidates,
        baseline=bench.baseline,
        best_fixed=bench.best_fixed(),
        unit_lengths=measured,
    )


def draw_slices(collection: Collection, fractions: Mapping[str, float], seed: int) -> dict[str, tuple[Query, ...]]:
    """The collection's judged queries in their slices, by id.

    Raises:
        SourceError: a slice would have fewer than 10 queries; names how many are enough.
    """
    queries = collection.judged()
    drawn = divide([(query.query_id, query.text) for query in queries], fractions=fractions, seed=seed)
    by_id = {query.query_id: query for query in queries}
    # By id and not as the file has them: the certificate depends on the order, and a file may be shuffled.
    slices = {name: tuple(by_id[query_id] for query_id in ids) for name, ids in drawn.items()}
    for name, members in slices.items():
        if len(members) < MIN_SLICE:
            enough = math.ceil(MIN_SLICE / min(fractions.values()) - 1e-9)
            found = f"got {len(members)} of {len(queries)}, for a share of {fractions[name]:g}"
            raise SourceError(
                f"{collection.name}: slice {name} needs at least {MIN_SLICE} judged queries ({found}); {enough} in all "
                "are enough where none are nearly alike"
            )
    return slices


def unit_lengths(answers: Answers, units: UnitSource | None, budget: Budget) -> dict[str, Any]:
    """Characters of the distinct units that both channels returned, and what share of them fits; no judgement is read.

    ``fits_alone`` is the share of units no longer than ``max_chars``; ``all_fit`` the share of queries whose best
    units of the lexical channel, ``max_units`` of them, fit together.
    """
    texts = _texts(answers, units)
    chars = sorted(len(text) for text in texts.values())
    if not chars:
        return {"units": 0}
    together = [_together(channels["lexical"][: budget.max_units], texts) for channels in answers.values()]
    return {
        "units": len(chars),
        "min": chars[0],
        "median": statistics.median_low(chars),
        "p90": chars[min(len(chars) - 1, int(0.9 * len(chars)))],
        "max": chars[-1],
        "max_chars": budget.max_chars,
        "fits_alone": round(sum(length <= budget.max_chars for length in chars) / len(chars), 6),
        "all_fit": round(sum(total <= budget.max_chars for total in together) / len(together), 6),
    }


def _texts(answers: Answers, units: UnitSource | None) -> dict[str, str]:
    rows = [row for channels in answers.values() for found in channels.values() for row in found]
    texts = {row.unit_id: row.unit.page_content for row in rows if row.unit is not None}
    lacking = sorted({row.unit_id for row in rows} - texts.keys())
    fetched = units.fetch(lacking) if units is not None and lacking else {}
    if not isinstance(fetched, Mapping):
        raise TypeError("units: an experiment needs a synchronous source")
    return texts | {unit_id: document.page_content for unit_id, document in fetched.items()}


def _together(rows: Sequence[Any], texts: Mapping[str, str]) -> int:
    lengths = [len(texts[row.unit_id]) for row in rows if row.unit_id in texts]
    return sum(lengths) + len(SEPARATOR) * max(0, len(lengths) - 1)


def _policies(settings: CalibrationSettings) -> tuple[Variant, ...]:
    fixed = (
        Variant(name="fixed_lexical", policy="fixed_lexical"),
        Variant(name="fixed_dense", policy="fixed_dense"),
    )
    return (*fixed, settings.variant)


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """One calibration's observations, asked for slice by slice."""

    experiment: Experiment
    settings: CalibrationSettings
    slices: Mapping[str, tuple[Query, ...]]

    @property
    def baseline(self) -> str:
        if self.settings.against == "always_continue":
            return self.settings.variant.continue_arm().name
        return self.best_fixed()[0]

    def best_fixed(self) -> tuple[str, float]:
        names = ["fixed_lexical", "fixed_dense", self.settings.variant.continue_arm().name]
        means = {name: float(self.values(name, "selection").mean()) for name in names}
        best = max(names, key=lambda name: means[name])
        return best, round(means[best], 6)

    def values(self, name: str, part: str) -> NDArray[np.float64]:
        """A policy's measure of each query of a slice, shape (queries,)."""
        outcomes = self.experiment.outcomes[name]
        return np.array([outcomes[query.query_id].measures[self.settings.measure] for query in self.slices[part]])

    def stops(self, threshold: float, part: str) -> NDArray[np.bool_]:
        """Whether each query of a slice stops after its first search, shape (queries,)."""
        reached = self.experiment.reached[self.settings.variant.name]
        return np.array([reached[query.query_id].stops_at(threshold) for query in self.slices[part]])

    def losses(self, threshold: float, part: str) -> NDArray[np.float64]:
        """What the baseline's measure is above the candidate's, shape (queries,)."""
        variant = self.settings.variant
        arms = [self.values(arm.name, part) for arm in (variant.stop_arm(), variant.continue_arm())]
        return self.values(self.baseline, part) - np.where(self.stops(threshold, part), *arms)

    def dense_share(self, threshold: float, part: str) -> float:
        """Dense calls for each query; one that goes on makes those that the limits allow it."""
        further = self.experiment.outcomes[self.settings.variant.continue_arm().name]
        calls = np.array([further[query.query_id].usage["dense_calls"] for query in self.slices[part]])
        return round(float(np.where(self.stops(threshold, part), 0, calls).mean()), 6)

    def test(self) -> tuple[CandidateFigures, ...]:
        order = sorted(self.settings.thresholds, key=self._by_selection)
        certificates = certify_sequence(
            [(str(threshold), self.losses(threshold, "certification")) for threshold in order],
            epsilon=self.settings.epsilon,
            confidence=self.settings.confidence,
            seed=self.settings.seed,
        )
        return tuple(self._figures(*pair) for pair in zip(order, certificates, strict=True))

    def _by_selection(self, threshold: float) -> tuple[float, float]:
        bound = upper_bound(self.losses(threshold, "selection"), self.settings.confidence)
        return bound, -threshold

    def _figures(self, threshold: float, certificate: Certificate) -> CandidateFigures:
        figures = CandidateFigures(
            threshold=threshold,
            selection_loss=_mean(self.losses(threshold, "selection")),
            selection_dense_share=self.dense_share(threshold, "selection"),
            verdict=certificate.verdict,
        )
        if certificate.upper_bound is None:
            return figures
        told = math.ceil(certificate.upper_bound * 1e6) / 1e6
        if certificate.verdict == "certified":
            told = min(told, self.settings.epsilon)  # rounded up, a bound at epsilon could be told as above it
        return figures.model_copy(
            update={
                "certification_loss": _mean(self.losses(threshold, "certification")),
                "certification_dense_share": self.dense_share(threshold, "certification"),
                "upper_bound": told,
            }
        )

    def artefact(
        self, candidates: Sequence[CandidateFigures], lengths: Mapping[str, Any], about: Mapping[str, str]
    ) -> Calibration | None:
        certified = [candidate for candidate in candidates if candidate.verdict == "certified"]
        if not certified:
            return None
        settings, collection = self.settings, self.experiment.collection
        chosen = min(certified, key=lambda candidate: (candidate.selection_dense_share, candidate.threshold))
        return Calibration(
            assessor=settings.assessor,
            assessor_settings=dict(assessor_named(settings.assessor).settings),
            threshold=chosen.threshold,
            fusion=settings.fusion,
            first_hop_rows=settings.variant.first_hop_rows,
            limits=settings.budget,
            tokenizer=about.get("tokenizer", ""),
            embedding=about.get("embedding", ""),
            measure=settings.measure,
            against=self.baseline,
            epsilon=settings.epsilon,
            confidence=settings.confidence,
            collection={
                "name": collection.name,
                "kind": collection.kind,
                "split": collection.split,
                "fingerprint": collection.fingerprint,
            },
            slices={name: _described(members) for name, members in self.slices.items()},
            fractions=dict(settings.fractions),
            seed=settings.seed,
            candidates=tuple(candidates),
            figures=self._policy_figures(),
            unit_lengths=dict(lengths),
            versions=versions(),
        )

    def _policy_figures(self) -> dict[str, Any]:
        parts = ("selection", "certification")
        return {
            variant.name: {part: _mean(self.values(variant.name, part)) for part in parts}
            for variant in self.experiment.variants
            if variant.policy != "adaptive"
        }


def _described(members: Sequence[Query]) -> Slice:
    return Slice(queries=len(members), fingerprint=slice_fingerprint([query.query_id for query in members]))


def _mean(values: NDArray[Any]) -> float:
    return round(float(values.mean()), 6)
