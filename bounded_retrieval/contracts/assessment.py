"""Facts about returned units (`Observation`) and the inference drawn from them (`CoverageAssessment`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from bounded_retrieval.contracts.candidate import Candidate, Unit
from bounded_retrieval.contracts.normalise import clean_metadata
from bounded_retrieval.contracts.unchecked import unchecked

Places = Mapping[str, Mapping[str, Sequence[int]]]
"""By unit id and by form of a term, the places among the unit's words."""


class QueryTerms(BaseModel):
    """What of a query is looked for.

    Attributes:
        terms: retained terms in query order.
        identifiers: the exact identifiers among them, folded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    terms: tuple[str, ...]
    identifiers: tuple[str, ...]


class QueryWeights(BaseModel):
    """How much the lexical channel lets each term of a query count.

    Attributes:
        terms: by retained term, its inverse document frequency among the units that the caller may see (natural
            logarithm, above 0): the rarer, the higher.
        holding: by retained term, how many of those units hold it.
        attainable: what no unit's lexical score for the query exceeds: the sum over the terms that are searched for.
    """

    # An instance may have been made without any check, as by `model_copy`.
    model_config = ConfigDict(frozen=True, extra="forbid", revalidate_instances="always")

    terms: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    holding: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    attainable: float = Field(ge=0, allow_inf_nan=False)


class Factor(BaseModel):
    """One thing that an assessment rests on.

    Attributes:
        name: stands in the trace.
        value: what was measured.
        points: what it added.
        text: what that means, in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    value: float
    points: float
    text: str


class Observation(BaseModel):
    """Facts about one returned unit, before anything is inferred from them.

    Attributes:
        unit_id: which unit.
        matched_terms: retained query terms that the unit's title or text holds, in query order.
        matched_identifiers: query identifiers that it holds exactly (after NFKC, case and dash folding).
        chars: characters of its text.
        fits: whether it could fit ``max_chars`` alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit_id: str
    matched_terms: tuple[str, ...]
    matched_identifiers: tuple[str, ...]
    chars: int
    fits: bool


class CoverageAssessment(BaseModel):
    """What an assessor infers from the observations.

    Attributes:
        coverage: 0 to 1; what is compared with the threshold.
        threshold: 0 to 1; what it was compared with.
        missing_terms: retained terms, then identifiers, that no returned unit that fits holds.
        sufficient: whether the declared test passed. It says nothing about the evidence being correct.
        best_unit_id: the unit that ``coverage`` was taken from, where there is one.
        reasons: why, in words that a person can check against the observations.
        factors: what ``coverage`` was added up from, where the assessor adds.
        assessor, settings: the assessor's name and everything it was set to.
    """

    # An instance may have been made without any check, as by `model_copy`.
    model_config = ConfigDict(frozen=True, extra="forbid", revalidate_instances="always")

    coverage: float = Field(ge=0, le=1, allow_inf_nan=False)
    threshold: float = Field(ge=0, le=1, allow_inf_nan=False)
    missing_terms: tuple[str, ...]
    sufficient: bool
    best_unit_id: str | None = None
    reasons: tuple[str, ...] = ()
    factors: tuple[Factor, ...] = ()
    assessor: str
    settings: dict[str, Any] = Field(default_factory=dict)

    @field_validator("settings")
    @classmethod
    def _to_json_native(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return clean_metadata(settings)[0]


class AssessmentInput(BaseModel):
    """All that an assessor may see. There is no field through which a judgement could arrive.

    Attributes:
        query: the text of the request.
        query_terms: what of it is looked for.
        observations: facts about the returned units, in the order in which these were first seen.
        candidates: the rows that brought them.
        units: the same units' texts, by id.
        threshold: 0 to 1; what the assessor's figure is to be compared with.
        weights: for an assessor that asks for them (``needs_weights = True``), if the lexical searcher can give them.
        rows_asked: how many lexical rows there would be if the search had found as many as it asked for: those asked
            for, without those that repeat a text, could not be read or are no candidates.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str
    query_terms: QueryTerms
    observations: tuple[Observation, ...]
    candidates: tuple[Candidate, ...]
    units: Mapping[str, Unit]
    threshold: float
    weights: QueryWeights | None = None
    rows_asked: int = 0
    _forms: Mapping[str, str] | None = PrivateAttr(default=None)
    _places: Places = PrivateAttr(default_factory=dict)

    @property
    def forms(self) -> Mapping[str, str] | None:
        """What the lexical channel compares each of the query's terms by; none where the controller did not say."""
        return self._forms

    @property
    def places(self) -> Places:
        """At which words those stand in the units that fit, where that was looked up already."""
        return self._places

    @classmethod
    def prepared(cls, forms: Mapping[str, str], places: Places, **values: Any) -> Self:
        """An input of valid values, every one of them, with those two: what the controller gives an assessor."""
        made = unchecked(cls, **values)
        object.__setattr__(made, "__pydantic_private__", {"_forms": forms, "_places": places})
        return made
