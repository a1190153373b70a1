"""Signs of a good lexical result, read from the query, the returned units and their scores; nothing else is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bounded_retrieval.contracts.assessment import AssessmentInput
from bounded_retrieval.contracts.candidate import Unit, searchable_text
from bounded_retrieval.policies.tokenize import WantedStems, stems_of, tokenize

NEAR = 3
"""Words from one term to the next within which two terms of a query stand together."""

DECIMALS = 6
"""Signs are rounded to so many decimals before anything is made of them, so that what is shown is what counted."""


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What speaks for a lexical result, shares from 0 to 1 but for the length, with what a person needs to check it.

    Attributes:
        coverage: the largest share, by weight, of the query's terms that one unit holds.
        held: the terms that this unit holds.
        anywhere: the terms that some unit holds.
        phrases: the share, by weight, of the pairs of neighbouring query terms that stand together, in that order and
            at most `NEAR` words apart, in some unit.
        together: those pairs.
        pairs: how many there are.
        lead: how far the best lexical score is above the last one asked for, as a share of the highest score that any
            unit could have; 0 where that is not known.
        shortest: characters of the shortest returned unit, its title not counted; 0 where none is returned.
        is_weighed: whether rare terms counted more.
    """

    coverage: float
    held: tuple[str, ...]
    anywhere: frozenset[str]
    phrases: float
    together: tuple[tuple[str, str], ...]
    pairs: int
    lead: float
    shortest: int
    is_weighed: bool


def read_signs(given: AssessmentInput) -> Signs:
    """Read the signs; terms are compared as the lexical channel compares them, by stems where that is not known."""
    terms = given.query_terms.terms
    weights = {term: 1.0 if given.weights is None else given.weights.terms.get(term, 0.0) for term in terms}
    forms = dict(zip(terms, stems_of(list(terms)), strict=True)) if given.forms is None else given.forms
    fitting = {observation.unit_id for observation in given.observations if observation.fits}
    texts = [
        given.places[unit_id] if unit_id in given.places else _places(unit, forms)
        for unit_id, unit in given.units.items()
        if unit_id in fitting
    ]
    holdings = [tuple(term for term, form in forms.items() if form in text) for text in texts]
    held = max(holdings, key=lambda found: _sum(weights, found), default=())
    pairs = list(pairwise(terms))
    together = tuple(pair for pair in pairs if any(_stand_together(pair, forms, text) for text in texts))
    coverage = _share(_sum(weights, held), _sum(weights, terms))
    found, whole = (sum(weights[first] + weights[second] for first, second in each) for each in (together, pairs))
    return Signs(
        coverage=coverage,
        held=held,
        anywhere=frozenset(term for holding in holdings for term in holding),
        # Where a query has one term, there is nothing more to ask for than that it is there.
        phrases=_share(found, whole) if pairs else coverage,
        together=together,
        pairs=len(pairs),
        lead=_lead(given, fitting),
        shortest=min((observation.chars for observation in given.observations if observation.fits), default=0),
        is_weighed=given.weights is not None,
    )


def _lead(given: AssessmentInput, fitting: set[str]) -> float:
    rows = [row for row in given.candidates if row.channel == "lexical" and row.score is not None]
    best = max((row.score or 0.0 for row in rows if row.unit_id in fitting), default=0.0)
    if given.weights is None or given.weights.attainable <= 0 or best <= 0:
        return 0.0
    last = (rows[given.rows_asked - 1].score or 0.0) if len(rows) >= given.rows_asked > 0 else 0.0
    return round(max(0.0, min(1.0, (best - last) / given.weights.attainable)), DECIMALS)


def _places(unit: Unit, forms: Mapping[str, str]) -> Mapping[str, Sequence[int]]:
    """Where the query's stems stand in a unit's title and text, by word."""
    return WantedStems(forms.values()).places(tokenize(searchable_text(unit.title, unit.text)))


def _stand_together(pair: tuple[str, str], forms: Mapping[str, str], text: Mapping[str, Sequence[int]]) -> bool:
    first, second = text.get(forms[pair[0]]), text.get(forms[pair[1]])
    # Most pairs end here, and they are looked up in every unit.
    if not first or not second:
        return False
    following = set(second)
    return any(place + step in following for place in first for step in range(1, NEAR + 1))


def _sum(weights: Mapping[str, float], terms: Sequence[str]) -> float:
    return sum(weights[term] for term in terms)


def _share(part: float, whole: float) -> float:
    # Weights are finite one by one; their sum may not be, and then says nothing.
    return round(min(1.0, part / whole), DECIMALS) if 0 < whole < math.inf else 0.0
