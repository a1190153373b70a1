"""Assessors that know how rare the query's terms are: weighted coverage, and the scorecard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment, Factor
from bounded_retrieval.contracts.scorecard import FactorPoints, ScorecardTable, Sign, shipped_scorecard
from bounded_retrieval.contracts.unchecked import unchecked
from bounded_retrieval.errors import ConfigurationError, quoted
from bounded_retrieval.policies.coverage import absent_identifiers, check_default_threshold, missing_from
from bounded_retrieval.policies.signs import DECIMALS, NEAR, Signs, read_signs

RARE = 3
"""A word that so few units hold names what the query is about: a result without it is beside the point."""

UNKNOWN = 2
"""One word that no unit holds may be chance; with so many a part of what was asked for is not there in these words."""


@dataclass(frozen=True, kw_only=True)
class IdfCoverage:
    """Term coverage in which rare terms count more: by inverse document frequency among the units that may be seen.

    Sufficient when the best unit's share of the weights is at least the threshold, with the vetoes of `Scorecard`.
    Where the lexical searcher gives no weights all terms count alike.

    Attributes:
        default_threshold: 0 to 1; what the share is compared with where nothing else is said.

    Raises:
        RequestError: the threshold is out of bounds.
    """

    name: ClassVar[str] = "idf_coverage"
    is_pure: ClassVar[bool] = True
    needs_weights: ClassVar[bool] = True
    default_threshold: float = 0.9

    def __post_init__(self) -> None:
        check_default_threshold(self.name, self.default_threshold)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the assessor was set to, for the trace."""
        return {"default_threshold": float(self.default_threshold)}

    def assess(self, given: AssessmentInput) -> CoverageAssessment:
        """Compare the best unit's share with ``given.threshold``."""
        signs = read_signs(given)
        factor = Factor(name="coverage", value=signs.coverage, points=signs.coverage, text=_coverage_text(given, signs))
        return _conclude(self, given, signs, signs.coverage, (factor,))


@dataclass(frozen=True, kw_only=True)
class Scorecard:
    """Adds up points for four signs of a good lexical result and compares their share with the threshold.

    The signs: the query's neighbouring words stand together in some unit (``phrases``), the best unit is well ahead of
    the last one (``lead``), the query has many terms to be found by (``terms``), and the returned units are long
    enough to be found by their words (``length``: characters of the shortest); a table of one's own may also count how
    much of the query by weight one unit holds (``coverage``). Each is worth a whole number of points that never falls
    as the sign gets better. An exact identifier of the query that no returned unit holds, or a word that
    one to `RARE` units of the index hold and none of the returned ones does, keeps it from being sufficient, however
    many points there are; so do `UNKNOWN` words or more that no unit holds.

    Attributes:
        table: the points; by default the table that comes with the package.
        setting: which of the table's thresholds to stop at unless told otherwise: ``default``, ``economy`` (fewer
            dense calls) or ``quality`` (more).

    Raises:
        ConfigurationError: the table is none, or has no such setting.
    """

    name: ClassVar[str] = "scorecard"
    is_pure: ClassVar[bool] = True
    needs_weights: ClassVar[bool] = True
    table: ScorecardTable = field(default_factory=shipped_scorecard)
    setting: str = "default"

    def __post_init__(self) -> None:
        if not isinstance(self.table, ScorecardTable):
            raise ConfigurationError(f"table: expected a ScorecardTable (got {quoted(self.table)})")
        if not isinstance(self.setting, str) or self.setting not in self.table.thresholds:
            known = ", ".join(self.table.thresholds)
            raise ConfigurationError(f"setting: one of {known} (got {quoted(self.setting)})")

    @property
    def default_threshold(self) -> float:
        """The threshold of the setting."""
        return self.table.thresholds[self.setting]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The setting and every sign's points, for the trace."""
        points = {factor.name: [list(factor.edges), list(factor.points)] for factor in self.table.factors}
        return {"setting": self.setting, "points": points}

    def assess(self, given: AssessmentInput) -> CoverageAssessment:
        """Compare the share of the points with ``given.threshold``."""
        signs = read_signs(given)
        values = values_of(given, signs)
        texts: dict[Sign, str] = {
            "phrases": _phrases_text(signs),
            "lead": _lead_text(signs),
            "coverage": _coverage_text(given, signs),
            "terms": _terms_text(given),
            "length": f"the shortest returned unit has {signs.shortest} characters",
        }
        factors = tuple(_factor(each, values[each.name], texts[each.name]) for each in self.table.factors)
        share = round(sum(factor.points for factor in factors) / max(1, self.table.most), DECIMALS)
        return _conclude(self, given, signs, share, factors)


def values_of(given: AssessmentInput, signs: Signs) -> dict[Sign, float]:
    """Every sign that a table may count, by its name there."""
    return {
        "phrases": signs.phrases,
        "lead": signs.lead,
        "coverage": signs.coverage,
        "terms": float(len(given.query_terms.terms)),
        "length": float(signs.shortest),
    }


def _factor(table: FactorPoints, value: float, text: str) -> Factor:
    points = table.of(value)
    return unchecked(
        Factor, name=table.name, value=value, points=points, text=f"{text}: {points} of {table.points[-1]} points"
    )


def _conclude(
    assessor: IdfCoverage | Scorecard,
    given: AssessmentInput,
    signs: Signs,
    coverage: float,
    factors: tuple[Factor, ...],
) -> CoverageAssessment:
    fitting = tuple(observation for observation in given.observations if observation.fits)
    vetoes = _vetoes(given, signs) if fitting and given.query_terms.terms else ("nothing to go by",)
    relation = "reaches" if coverage >= given.threshold else "is below"
    reasons = [*(factor.text for factor in factors), f"{coverage:.3f} {relation} {given.threshold:g}", *vetoes]
    if not signs.is_weighed:
        reasons.append("the lexical searcher gives no weights: all terms count alike and the lead does not count")
    # Numbers, texts and lists of them throughout: to validate the settings alone took a tenth of the controller's time.
    return unchecked(
        CoverageAssessment,
        coverage=coverage,
        threshold=given.threshold,
        missing_terms=missing_from(given.query_terms, fitting),
        sufficient=coverage >= given.threshold and not vetoes,
        best_unit_id=None,
        reasons=tuple(reasons),
        factors=factors,
        assessor=assessor.name,
        settings=dict(assessor.settings),
    )


def _vetoes(given: AssessmentInput, signs: Signs) -> tuple[str, ...]:
    fitting = tuple(observation for observation in given.observations if observation.fits)
    absent = absent_identifiers(given.query_terms, fitting)
    vetoes = [f"identifiers held exactly by no returned unit: {', '.join(absent)}"] if absent else []
    if given.weights is not None:
        holding = given.weights.holding
        rare = [t for t in given.query_terms.terms if 1 <= holding.get(t, 0) <= RARE and t not in signs.anywhere]
        unknown = [t for t in given.query_terms.terms if holding.get(t) == 0 and t not in signs.anywhere]
        if rare:
            vetoes.append(f"rare words (in 1 to {RARE} units) held by no returned unit: {', '.join(rare)}")
        if len(unknown) >= UNKNOWN:
            vetoes.append(f"words that no unit holds ({UNKNOWN} or more): {', '.join(unknown)}")
    return tuple(vetoes)


def _coverage_text(given: AssessmentInput, signs: Signs) -> str:
    share = f"one unit holds {len(signs.held)} of {len(given.query_terms.terms)} terms"
    return f"{share}, {signs.coverage:.0%} by weight" if signs.is_weighed else share


def _phrases_text(signs: Signs) -> str:
    if not signs.pairs:
        return "the query has one term"
    named = ", ".join(f"{first} {second}" for first, second in signs.together)
    count = f"{len(signs.together)} of {signs.pairs} neighbouring pairs within {NEAR} words"
    return f"{count} ({named}), {signs.phrases:.0%} by weight" if named else count


def _terms_text(given: AssessmentInput) -> str:
    count = len(given.query_terms.terms)
    return f"the query has {count} term{'' if count == 1 else 's'}"


def _lead_text(signs: Signs) -> str:
    return f"the best score is ahead of the last by {signs.lead:.1%} of the highest possible"
