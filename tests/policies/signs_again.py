"""The scorecard's signs once more, written from their definitions in another way; slow and without the package's code.

Only `tokenize` and `stems_of` are shared: that all parts take words alike is what their own tests are for.
"""

from __future__ import annotations

from itertools import combinations

from bounded_retrieval.policies.tokenize import stems_of, tokenize

Weights = dict[str, float] | None
"""What each term counts; none where all count alike."""


def stem_list(text: str) -> list[str]:
    """The words of a text, in order, by their stems."""
    return stems_of(tokenize(text))


def total(terms: list[str], weights: Weights) -> float:
    """What some terms count together."""
    return sum(1.0 if weights is None else weights.get(term, 0.0) for term in terms)


def share(part: float, whole: float) -> float:
    """One of the other, to six decimals; 0 of nothing."""
    return round(min(1.0, part / whole), 6) if whole > 0 else 0.0


def coverage(terms: list[str], texts: list[str], weights: Weights) -> float:
    """The largest share, by weight, of the terms that one text holds."""
    held = [[term for term in terms if stem_list(term)[0] in stem_list(text)] for text in texts]
    return share(max((total(found, weights) for found in held), default=0.0), total(terms, weights))


def is_near(first: str, second: str, text: str) -> bool:
    """Whether the second word comes one, two or three words after the first somewhere in a text."""
    wanted = (stem_list(first)[0], stem_list(second)[0])
    words = list(enumerate(stem_list(text)))
    return any((left, right) == wanted and 1 <= j - i <= 3 for (i, left), (j, right) in combinations(words, 2))


def phrases(terms: list[str], texts: list[str], weights: Weights) -> float:
    """The share, by weight, of neighbouring terms that some text holds together."""
    pairs = [terms[place : place + 2] for place in range(len(terms) - 1)]
    if not pairs:
        return coverage(terms, texts, weights)
    together = [pair for pair in pairs if any(is_near(*pair, text) for text in texts)]
    return share(sum(total(pair, weights) for pair in together), sum(total(pair, weights) for pair in pairs))


def lead(scores: list[float | None], fits: list[bool], asked: int, attainable: float | None) -> float:
    """How far the best row is ahead of the last one asked for, against the most that is possible.

    Rows without a score do not count; the best one must be of a unit that fits, the last one may be any.
    """
    rows = [(score, fitting) for score, fitting in zip(scores, fits, strict=True) if score is not None]
    best = max([score for score, fitting in rows if fitting], default=0.0)
    if attainable is None or attainable <= 0 or best <= 0:
        return 0.0
    last = rows[asked - 1][0] if 0 < asked <= len(rows) else 0.0
    return round(min(1.0, max(0.0, (best - last) / attainable)), 6)


def shortest(texts: list[str]) -> int:
    """The characters of the shortest text; 0 where there is none."""
    return min([sum(1 for _ in text) for text in texts] or [0])
