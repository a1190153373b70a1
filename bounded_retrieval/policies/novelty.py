"""Mechanical rules of the recursive chain: is the next query new, and did a hop find anything new."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bounded_retrieval.policies.tokenize import STOP_WORDS, fold, words_and_parts

_ROUNDING = 1e-9

# Function words without which two questions can be opposites.
_TELLING = frozenset(
    """
    above after against before below down during first last least less more most no nor not off over under until up
    without
    """.split()  # noqa: SIM905 - a list of quoted words would be harder to read
)

DEFAULT_SIMILARITY = 0.9
"""Share of terms in common from which two queries count as the same, by default."""


def normalise_query(query: str) -> str:
    """What two spellings of one query share: folded, white space as one space, no punctuation at the end."""
    return " ".join(fold(query).split()).rstrip(" .?!;:,")


def similarity(left: str, right: str) -> float:
    """Jaccard similarity of the queries' terms without stop words, 0 to 1; 1 for equal normalised queries."""
    if normalise_query(left) == normalise_query(right):
        return 1.0
    mine, theirs = _terms(left), _terms(right)
    return len(mine & theirs) / len(mine | theirs) if mine and theirs else 0.0


def find_repeat(query: str, earlier: Sequence[str], threshold: float) -> tuple[int, float] | None:
    """The earlier query (its number from 1) that this one repeats, and how similar it is; none when it is new.

    A query with a term that the earlier one lacks is no repeat, however much else they share: a sub-answer put into a
    long question is one term more.
    """
    repeats = ((number, other) for number, other in enumerate(earlier, 1) if not _terms(query) - _terms(other))
    found = [(similarity(query, other), number) for number, other in repeats]
    closest, number = max(found, key=lambda pair: (pair[0], -pair[1]), default=(0.0, 0))
    return (number, closest) if number and closest >= threshold else None


def count_new(unit_ids: Collection[str], known: Collection[str]) -> int:
    """How many of the units were not known."""
    return len(set(unit_ids) - set(known))


def is_novel(new_units: int, units: int, min_new_share: float) -> bool:
    """Whether a hop found at least one new unit, and at least the given share of new ones."""
    return new_units >= 1 and new_units >= min_new_share * units - _ROUNDING


def _terms(query: str) -> frozenset[str]:
    terms = frozenset(words_and_parts(query))
    return (terms - (STOP_WORDS - _TELLING)) or terms
