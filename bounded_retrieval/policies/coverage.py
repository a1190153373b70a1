"""Observe which query terms and exact identifiers a unit holds, and the reference assessor over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment, Observation, QueryTerms
from bounded_retrieval.contracts.candidate import Unit, searchable_text
from bounded_retrieval.contracts.ports import Stem, Tokenizer
from bounded_retrieval.contracts.request import Threshold
from bounded_retrieval.contracts.unchecked import unchecked
from bounded_retrieval.errors import RequestError
from bounded_retrieval.policies.tokenize import STOP_WORDS, WantedStems, find_identifiers, stems_of, tokenize

_THRESHOLD: TypeAdapter[float] = TypeAdapter(Threshold)


def retain_terms(query: str, tokenizer: Tokenizer = tokenize) -> QueryTerms:
    """What of a query is looked for: its distinct terms without stop words, in order, and its identifiers.

    A query of stop words only retains them all: then they are what was asked for.
    """
    terms = tuple(dict.fromkeys(tokenizer(query)))
    kept = tuple(term for term in terms if term not in STOP_WORDS)
    return QueryTerms(terms=kept or terms, identifiers=find_identifiers(query))


def observe(
    query_terms: QueryTerms, unit: Unit, max_chars: int, tokenizer: Tokenizer = tokenize, stem: Stem | None = None
) -> Observation:
    """State the facts about one unit: terms and identifiers held by its title or text, characters, whether it fits.

    With ``stem`` a term is held where another form of it is: as the lexical index has it, so that no term is missing
    here that was found there. Identifiers are compared exactly. A unit too long to fit ``max_chars`` alone cannot
    become evidence; its terms are not looked at.
    """
    return Observer(query_terms, max_chars, tokenizer, stem).observe(unit)


class Observer:
    """Observes units for one query, as `observe` does, and remembers where its terms stand in those that fit.

    Attributes:
        places: by unit id, at which words each form of a term stands; a form that stands nowhere is left out.
    """

    def __init__(self, query_terms: QueryTerms, max_chars: int, tokenizer: Tokenizer, stem: Stem | None) -> None:
        self._query_terms = query_terms
        self._max_chars = max_chars
        self._tokenizer = tokenizer
        self._stem = stem
        self._wanted: WantedStems | None = None
        self.places: dict[str, dict[str, list[int]]] = {}

    @cached_property
    def forms(self) -> dict[str, str]:
        """What each term is compared by: its stem, or itself where the lexical index has every form for itself."""
        terms = list(self._query_terms.terms)
        forms = terms if self._stem is None else self._stem(terms)
        if self._stem is stems_of:
            self._wanted = WantedStems(forms)
        return dict(zip(terms, forms, strict=True))

    def observe(self, unit: Unit) -> Observation:
        """State the facts about one unit."""
        fits = len(unit.text) <= self._max_chars
        text = searchable_text(unit.title, unit.text) if fits else ""
        forms = self.forms
        held = self.places[unit.unit_id] = self._held(text, forms)
        names = self._query_terms.identifiers
        held_names = set(find_identifiers(text)) if names else set()
        return unchecked(
            Observation,
            unit_id=unit.unit_id,
            matched_terms=tuple(term for term, form in forms.items() if form in held),
            matched_identifiers=tuple(name for name in names if name in held_names),
            chars=len(unit.text),
            fits=fits,
        )

    def _held(self, text: str, forms: Mapping[str, str]) -> dict[str, list[int]]:
        words = self._tokenizer(text)
        if self._wanted is not None:
            return self._wanted.places(words)
        wanted = set(forms.values())
        places: dict[str, list[int]] = {}
        for place, form in enumerate(words if self._stem is None else self._stem(words)):
            if form in wanted:
                places.setdefault(form, []).append(place)
        return places


def missing_from(query_terms: QueryTerms, observations: tuple[Observation, ...]) -> tuple[str, ...]:
    """Terms in query order, then identifiers that are no term themselves, that no observed unit holds."""
    held = {term for observation in observations for term in observation.matched_terms}
    held_identifiers = {name for observation in observations for name in observation.matched_identifiers}
    missing = [term for term in query_terms.terms if term not in held]
    missing += [name for name in query_terms.identifiers if name not in held_identifiers]
    return tuple(dict.fromkeys(missing))


@dataclass(frozen=True, kw_only=True)
class TermCoverage:
    """The reference assessor: the largest fraction of the retained terms that one returned unit holds.

    Sufficient when that fraction is at least the threshold and every identifier of the query is held exactly by
    some returned unit that fits. Without a unit that fits, or without a term to look for, it is never sufficient.

    Attributes:
        default_threshold: 0 to 1; what the fraction is compared with where nothing else is said.

    Raises:
        RequestError: the threshold is out of bounds.
    """

    name: ClassVar[str] = "term_coverage"
    is_pure: ClassVar[bool] = True
    default_threshold: float = 0.8

    def __post_init__(self) -> None:
        check_default_threshold(self.name, self.default_threshold)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the assessor was set to, for the trace."""
        return {"default_threshold": self.default_threshold}

    def assess(self, given: AssessmentInput) -> CoverageAssessment:
        """Compare the best unit's fraction with ``given.threshold``."""
        fitting = tuple(observation for observation in given.observations if observation.fits)
        terms = len(given.query_terms.terms)
        best = max(fitting, key=lambda observation: len(observation.matched_terms), default=None)
        coverage = len(best.matched_terms) / terms if best is not None and terms else 0.0
        absent = absent_identifiers(given.query_terms, fitting)
        sufficient = best is not None and terms > 0 and coverage >= given.threshold and not absent
        return CoverageAssessment(
            coverage=coverage,
            threshold=given.threshold,
            missing_terms=missing_from(given.query_terms, fitting),
            sufficient=sufficient,
            best_unit_id=best.unit_id if best is not None and best.matched_terms else None,
            reasons=_reasons(coverage, given.threshold, terms, best, absent),
            assessor=self.name,
            settings=dict(self.settings),
        )


def check_default_threshold(assessor: str, threshold: object) -> None:
    """Refuse a default threshold that is no number from 0 to 1.

    Raises:
        RequestError: names the assessor and the value.
    """
    try:
        _THRESHOLD.validate_python(threshold)
    except ValidationError as error:
        raise RequestError.from_validation(error, f"{assessor}.default_threshold") from None


def absent_identifiers(query_terms: QueryTerms, fitting: tuple[Observation, ...]) -> tuple[str, ...]:
    """The query's identifiers that no unit that fits holds exactly."""
    held = {name for observation in fitting for name in observation.matched_identifiers}
    return tuple(name for name in query_terms.identifiers if name not in held)


def _reasons(
    coverage: float, threshold: float, terms: int, best: Observation | None, absent: tuple[str, ...]
) -> tuple[str, ...]:
    if best is None:
        return ("no returned unit fits the packet",)
    if not terms:
        return ("the query holds no term to look for",)
    relation = "reaches" if coverage >= threshold else "is below"
    reasons = [f"{len(best.matched_terms)} of {terms} terms in one unit: {coverage:.3f} {relation} {threshold:g}"]
    if absent:
        reasons.append(f"identifiers held exactly by no returned unit: {', '.join(absent)}")
    return tuple(reasons)
