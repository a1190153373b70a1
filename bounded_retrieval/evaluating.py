"""Evaluate and calibrate on a collection: what the command line runs, index and progress included."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bounded_retrieval.console import ProgressDisplay
from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.calibration import Calibration
from bounded_retrieval.errors import RequestError, SourceError, StoreMissingError, StoreVersionError
from bounded_retrieval.evaluation.collections import Collection, Query
from bounded_retrieval.evaluation.experiment import LIVE_QUERIES, Experiment, run_experiment
from bounded_retrieval.evaluation.slices import slice_fingerprint
from bounded_retrieval.evaluation.summary import summarise, timings
from bounded_retrieval.evaluation.thresholds import CalibrationSettings, Verdict, calibrate, draw_slices
from bounded_retrieval.evaluation.variants import Variant, default_variants, read_variants
from bounded_retrieval.graph.choices import Choices, settle
from bounded_retrieval.retrievers.embeddings import load_embedding
from bounded_retrieval.retrievers.store import Index, build_index, open_index


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """How to evaluate.

    Attributes:
        index: an index of the collection's units; none builds one, which is kept for the next time.
        embedding: name of the built-in embedding to build with.
        policies: names as `read_variants` takes them; none for all.
        budget: limits of every run.
        calibration: adds the policy ``calibrated``; every policy then has the limits that it was certified with.
        part: the slice of that calibration to evaluate on; none for the whole collection.
        live: queries to run again over the real searchers.
    """

    index: Path | None = None
    embedding: str = "minilm"
    policies: Sequence[str] = ()
    budget: Budget | None = None
    resamples: int = 10_000
    seed: int = 0
    confidence: float = 0.95
    calibration: Calibration | None = None
    part: str | None = None
    live: int = LIVE_QUERIES


def evaluate_collection(
    collection: Collection, options: EvaluationOptions, display: ProgressDisplay
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the experiment: the report, and its wall-clock figures apart.

    Raises:
        SourceError: the collection and the index do not belong together.
        RequestError: an option is out of bounds.
        ConfigurationError: the calibration was made with other parts or limits.
    """
    _check(options)
    budget = _limits(options)
    variants = read_variants(options.policies, budget) if options.policies else default_variants(budget)
    variants += () if options.calibration is None else (_calibrated(options.calibration),)
    queries = _queries(collection, options)
    with collection_index(collection, options.index, options.embedding, display) as index:
        if options.calibration is not None:
            index.check_calibration(options.calibration)
        about = _about(collection, index) | ({"slice": options.part} if options.part else {})
        experiment = run_experiment(
            collection,
            index.lexical,
            index.dense,
            index.units,
            variants=variants,
            budget=budget,
            queries=queries,
            live=options.live,
            progress=display.progress,
        )
        report = summarise(
            experiment,
            documents=index.units.fetch(_ranked_units(experiment)),
            about=about,
            resamples=options.resamples,
            seed=options.seed,
            confidence=options.confidence,
        )
    return report, timings(experiment)


def calibrate_collection(
    collection: Collection,
    settings: CalibrationSettings,
    display: ProgressDisplay,
    *,
    index: Path | None = None,
    embedding: str = "minilm",
) -> Verdict:
    """Calibrate on a collection; the lengths of its units are stated before any run.

    Settings and the number of queries are checked before an index is built.

    Raises:
        SourceError, RequestError, ConfigurationError: as `calibrate`.
    """
    settings.checked()
    # Drawn again by `calibrate`; too few queries are said before an index is built.
    draw_slices(collection, settings.fractions, settings.seed)
    with collection_index(collection, index, embedding, display) as opened:
        _about(collection, opened)
        return calibrate(
            collection,
            opened.lexical,
            opened.dense,
            opened.units,
            settings=settings,
            about=opened.built_with,
            progress=display.progress,
            lengths=lambda found: display.say(_lengths_line(found)),
        )


@contextmanager
def collection_index(
    collection: Collection, directory: Path | None, embedding: str, display: ProgressDisplay
) -> Iterator[Index]:
    """An open index of the collection's units: the one given, else one built for it and kept in the user's cache."""
    if directory is not None:
        with open_index(directory) as index:
            yield index
        return
    if not collection.has_documents:
        raise SourceError(f"{collection.name}: holds no documents; give --index DIR")
    chosen = load_embedding(embedding)
    kept = cache_directory() / f"{_safe(collection.name)}-{_digest(collection, embedding)}"
    try:
        index = open_index(kept)
    except (StoreMissingError, StoreVersionError):  # one of an older version is built again; its vectors are kept
        display.say(f"indexing the collection once, in {kept}")
        build_index(collection.documents(), kept, embedding=chosen, progress=display.progress)
        index = open_index(kept)
    with index:
        yield index


def cache_directory() -> Path:
    """Where indexes of collections are kept: ``$XDG_CACHE_HOME``, else ``~/.cache``, under ``bounded-retrieval``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "bounded-retrieval" / "collections"


def verdict_to_dict(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON-native data."""
    return {
        "certified": verdict.calibration is not None,
        "baseline": verdict.baseline,
        "best_fixed": {"policy": verdict.best_fixed[0], "selection_mean": verdict.best_fixed[1]},
        "candidates": [candidate.model_dump() for candidate in verdict.candidates],
        "unit_lengths": dict(verdict.unit_lengths),
        "calibration": None if verdict.calibration is None else verdict.calibration.model_dump(mode="json"),
    }


def with_final(fractions: Mapping[str, float], final: float) -> dict[str, float]:
    """The same slices with a share of the queries set apart; the others keep their proportions.

    Raises:
        RequestError: the share is not from 0 to .5.
    """
    if not 0 <= final <= 0.5:  # noqa: PLR2004 - the limit stands in the message
        raise RequestError(f"final: 0 to 0.5 (got {final})")
    if final == 0:
        return dict(fractions)
    return {name: share * (1 - final) for name, share in fractions.items()} | {"final": final}


def settings_with(settings: CalibrationSettings, **changes: Any) -> CalibrationSettings:
    """Settings with those of ``changes`` that are not none."""
    return replace(settings, **{name: value for name, value in changes.items() if value is not None})


def _check(options: EvaluationOptions) -> None:
    if not 100 <= options.resamples <= 1_000_000:  # noqa: PLR2004 - the two limits stand in the message
        raise RequestError(f"resamples: 100 to 1,000,000 (got {options.resamples})")
    if not 0.5 < options.confidence < 1:  # noqa: PLR2004 - likewise
        raise RequestError(f"confidence: above .5 and below 1 (got {options.confidence})")
    if options.live < 0:
        raise RequestError(f"live: 0 or more (got {options.live})")
    if options.seed < 0:
        raise RequestError(f"seed: 0 or more (got {options.seed})")
    if options.part is not None and options.calibration is None:
        raise RequestError("slice: needs the calibration that drew it (--calibration FILE)")


def _limits(options: EvaluationOptions) -> Budget | None:
    """The limits of every run; beside a calibration its own, once it is known to fit this version."""
    if options.calibration is None:
        return options.budget
    limits: Budget = settle(Choices(budget=options.budget), None, options.calibration, {}).budget
    return limits


def _calibrated(calibration: Calibration) -> Variant:
    return Variant(
        name="calibrated",
        policy="adaptive",
        assessor=calibration.assessor,
        fusion=calibration.fusion,
        first_hop_rows=calibration.first_hop_rows,
        threshold=calibration.threshold,
    )


def _queries(collection: Collection, options: EvaluationOptions) -> tuple[Query, ...] | None:
    calibration = options.calibration
    if options.part is None or calibration is None:
        return None
    if calibration.collection.get("fingerprint") != collection.fingerprint:
        raise SourceError(f"{collection.name}: not the collection that the calibration was made on")
    slices = draw_slices(collection, calibration.fractions, calibration.seed)
    if options.part not in slices or options.part not in calibration.slices:
        raise RequestError(f"slice: one of {', '.join(slices)} (got {options.part!r})")
    drawn = slices[options.part]
    if slice_fingerprint([query.query_id for query in drawn]) != calibration.slices[options.part].fingerprint:
        raise SourceError(f"{collection.name}: slice {options.part} holds other queries than when it was drawn")
    return drawn


def _about(collection: Collection, index: Index) -> dict[str, Any]:
    survey = collection.survey(lambda unit_ids: index.lexical.units.rows_of(list(unit_ids)).keys()).to_dict()
    judged = {unit for grades in collection.judgements.values() for unit, grade in grades.items() if grade > 0}
    if judged and not index.lexical.units.rows_of(sorted(judged)):
        raise SourceError(f"{collection.name}: the index holds none of the {len(judged):,} units judged relevant")
    return {"units": len(index.units), **index.built_with, "survey": survey}


def _ranked_units(experiment: Experiment) -> list[str]:
    runs = (outcome for outcomes in experiment.outcomes.values() for outcome in outcomes.values())
    rows = (row.unit_id for channels in experiment.answers.values() for rows in channels.values() for row in rows)
    return sorted({unit_id for outcome in runs for unit_id in outcome.ranking} | set(rows))


def _lengths_line(found: Mapping[str, Any]) -> str:
    if not found["units"]:
        return "the selection queries find no unit"
    return (
        f"units that the selection queries find: {found['units']:,}, median {found['median']:,} characters, "
        f"90% up to {found['p90']:,}, longest {found['max']:,}; {found['fits_alone']:.1%} fit {found['max_chars']:,} "
        f"alone, the best of one query fit together for {found['all_fit']:.1%}"
    )


def _digest(collection: Collection, embedding: str) -> str:
    digest = hashlib.sha256(embedding.encode())
    for document in collection.documents():
        record = [document.id, document.page_content, document.metadata]
        digest.update(json.dumps(record, sort_keys=True, default=str).encode("utf-8", "replace"))
    return digest.hexdigest()[:16]


def _safe(name: str) -> str:
    return "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in name)[:60]
