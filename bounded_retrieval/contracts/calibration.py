"""A calibrated threshold with what it was chosen by and certified for: the artefact of ``calibrate``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.json_objects import parse_object
from bounded_retrieval.contracts.regular_file import read_text
from bounded_retrieval.contracts.request import FirstHopRows, Threshold
from bounded_retrieval.errors import RequestError, SourceError, quoted

MAX_FILE_BYTES = 4 * 2**20
"""Largest calibration file that is read."""

Confidence = Annotated[float, Field(gt=0.5, lt=1, strict=True)]
Loss = Annotated[float, Field(ge=-1, le=1)]
DenseShare = Annotated[float, Field(ge=0)]


class Slice(BaseModel):
    """Queries set apart for one purpose.

    Attributes:
        queries: how many.
        fingerprint: SHA-256 of their ids.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    queries: int = Field(ge=1)
    fingerprint: str


class CandidateFigures(BaseModel):
    """What a candidate threshold did on both slices, and how it fared in the test.

    Attributes:
        threshold: the candidate.
        selection_loss, certification_loss: mean of what the baseline's measure is above the candidate's, -1 to 1.
        selection_dense_share, certification_dense_share: dense calls for each query.
        upper_bound: the loss lies below it with the declared confidence; only where it was tested.
        verdict: how it fared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    threshold: Threshold
    selection_loss: Loss
    selection_dense_share: DenseShare
    certification_loss: Loss | None = None
    certification_dense_share: DenseShare | None = None
    upper_bound: Loss | None = None
    verdict: Literal["certified", "not_certified", "not_tested"]


class Calibration(BaseModel):
    """A threshold that was certified: who decides with it, how, and what was shown on which queries.

    What contradicts that is refused: the threshold must be a candidate whose verdict is ``certified``, both slices
    must be there, and each verdict must be what `certify_sequence` gives for its bound and its place in the test.

    The claim: on queries like those of the collection, the mean loss in ``measure`` against ``against`` is at most
    ``epsilon``; a collection for which this is false passes with a probability of at most 1 - ``confidence``. It holds
    for the searchers, the limits and the settings named here, and for queries drawn as those were.

    Attributes:
        format: name and version of the file's format.
        assessor, assessor_settings, threshold: what decides.
        fusion, first_hop_rows, limits: what it was certified with.
        tokenizer, embedding: what the index was built with.
        measure, against: what the loss is a difference in, and from which policy.
        epsilon, confidence: the largest mean loss that was asked for, and how surely.
        collection: its name, kind, split and fingerprint.
        slices: ``selection``, ``certification`` and, where some queries were set apart, ``final``.
        fractions, seed: what the slices were drawn by.
        candidates: every declared threshold, in the order of the test.
        figures: means of the arms and the fixed policies on both slices.
        unit_lengths: characters of the units that the selection queries found, and what share of them fits.
        versions: of Python and of the packages that decide the figures.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal["bounded-retrieval-calibration-1"] = "bounded-retrieval-calibration-1"
    assessor: str
    assessor_settings: dict[str, Any]
    threshold: Threshold
    fusion: str
    first_hop_rows: FirstHopRows
    limits: Budget
    tokenizer: str
    embedding: str
    measure: str
    against: str
    epsilon: Annotated[float, Field(ge=0, le=1, strict=True)]
    confidence: Confidence
    collection: dict[str, Any]
    slices: dict[str, Slice]
    fractions: dict[str, float]
    seed: int
    candidates: tuple[CandidateFigures, ...]
    figures: dict[str, Any]
    unit_lengths: dict[str, Any]
    versions: dict[str, str]

    @field_validator("slices")
    @classmethod
    def _check_slices(cls, slices: dict[str, Slice]) -> dict[str, Slice]:
        missing = next((name for name in ("selection", "certification") if name not in slices), None)
        if missing is not None:
            raise ValueError(f"slice {missing} is missing (got {quoted(', '.join(slices))})")
        return slices

    @field_validator("candidates")
    @classmethod
    def _check_candidates(
        cls, candidates: tuple[CandidateFigures, ...], info: ValidationInfo
    ) -> tuple[CandidateFigures, ...]:
        # A field that was refused is not among the data, and has an error of its own.
        if (epsilon := info.data.get("epsilon")) is not None:
            _check_verdicts(candidates, epsilon)
        if (threshold := info.data.get("threshold")) is not None:
            _check_chosen(candidates, threshold)
        return candidates

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read what ``calibrate`` wrote.

        Raises:
            SourceError: the file cannot be read, is no JSON object, or no calibration; names the file and the field.
        """
        file = Path(path)
        text = read_text(file, MAX_FILE_BYTES, "calibration")
        named, expected = parse_object(text, str(file)).get("format"), cls.model_fields["format"].default
        if named != expected:
            raise SourceError(f"{file}: no calibration (format: expected {expected}, got {quoted(named)})")
        try:
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise SourceError(f"{file}: {RequestError.from_validation(error, 'calibration')}") from None

    def to_json(self) -> str:
        """JSON text, the same bytes for the same calibration."""
        return self.model_dump_json(indent=2) + "\n"


def _check_verdicts(candidates: Sequence[CandidateFigures], epsilon: float) -> None:
    """Candidates are tested until one fails; one is certified where its bound is at most epsilon."""
    is_open = True
    for each in candidates:
        named, bound = f"the candidate {each.threshold} is {each.verdict}", each.upper_bound
        if (each.verdict != "not_tested") is not is_open:
            raise ValueError(f"{named}, but the candidates are tested in this order until one is not certified")
        if (bound is None) is is_open:
            raise ValueError(f"{named}, so upper_bound must be {'a number' if is_open else 'null'} (got {bound})")
        # A bound is told rounded, so one that is above epsilon may be told as equal to it.
        if bound is not None and (bound > epsilon if each.verdict == "certified" else bound < epsilon):
            raise ValueError(f"{named} with upper_bound {bound}, which contradicts epsilon {epsilon}")
        is_open = each.verdict == "certified"


def _check_chosen(candidates: Sequence[CandidateFigures], threshold: float) -> None:
    verdicts = {each.threshold: each.verdict for each in candidates}
    if len(verdicts) < len(candidates):
        raise ValueError("two candidates have one threshold")
    if verdicts.get(threshold) != "certified":
        found = verdicts.get(threshold, "none of the candidates").replace("_", " ")
        raise ValueError(f"threshold must be that of a certified candidate ({threshold} is {found})")
