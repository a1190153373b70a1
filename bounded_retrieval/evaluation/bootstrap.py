"""Intervals for means over queries (percentile bootstrap) and for shares (Clopper-Pearson).

A collection's queries stand for those that could have been asked. Resampling them says how far a mean, or the mean
of paired differences between two policies, would move with another draw; it says nothing about other collections or
wrong judgements. Source: Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.errors import RequestError

Values = NDArray[np.float64] | Sequence[float]
"""One figure per query, shape (queries,)."""

Indices = NDArray[np.uint32]

RESAMPLES = 10_000
MOST_KEPT = 20_000_000
"""Drawn indices that a resampler keeps (4 bytes each); beyond that they are drawn again for every use."""

_BLOCK = 1 << 20
_HALVINGS = 60


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its interval; NaN where there was nothing to take a mean of."""

    mean: float
    low: float
    high: float


class Resampler:
    """Draws queries with replacement, once for every policy of an experiment.

    All policies meet the same draws, so the difference between two policies' `means` is the bootstrap of their
    paired difference. The draws depend on the arguments alone: they are made from the generator's raw words, which
    numpy keeps stable across releases (its distributions it does not).

    Attributes:
        queries: how many queries there are; 0 is allowed and gives NaN throughout.
        resamples: how many times they are drawn, at least 1.
        seed: at least 0.

    Raises:
        RequestError: an argument is out of range.
    """

    def __init__(self, queries: int, resamples: int = RESAMPLES, seed: int = 0) -> None:
        if not 0 <= queries < 1 << 32:
            raise RequestError(f"queries: 0 to 4294967295 (got {queries})")
        if resamples < 1:
            raise RequestError(f"resamples: at least 1 (got {resamples})")
        seeded_bits(seed)  # a bad seed is refused here, not at the first use
        self.queries, self.resamples, self.seed = queries, resamples, seed
        self._kept = tuple(self._drawn()) if queries * resamples <= MOST_KEPT else None

    def means(self, values: Values) -> NDArray[np.float64]:
        """The mean of each resample, shape (resamples,), in the order of the draws.

        Raises:
            RequestError: there is not one finite value per query.
        """
        given = finite(values, "values")
        if len(given) != self.queries:
            raise RequestError(f"values: one for each of {self.queries} queries (got {len(given)})")
        if not self.queries:
            return np.full(self.resamples, np.nan)
        blocks = self._drawn() if self._kept is None else self._kept
        return np.concatenate([given[block].mean(axis=1) for block in blocks])

    def interval(self, values: Values, confidence: float = 0.95) -> Interval:
        """The mean, and the percentiles between which ``confidence`` of the resampled means lie."""
        check_confidence(confidence)
        means = self.means(values)
        if not self.queries:
            return Interval(math.nan, math.nan, math.nan)
        low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
        return Interval(float(np.mean(np.asarray(values, dtype=np.float64))), float(low), float(high))

    def _drawn(self) -> Iterator[Indices]:
        """Blocks of rows of the index matrix, together of shape (resamples, queries)."""
        bits = seeded_bits(self.seed)
        rows = max(1, _BLOCK // max(1, self.queries))
        for start in range(0, self.resamples if self.queries else 0, rows):
            yield _draw(bits, min(rows, self.resamples - start), self.queries)


def mean_interval(values: Values, *, resamples: int = RESAMPLES, seed: int = 0, confidence: float = 0.95) -> Interval:
    """Percentile bootstrap interval of the mean of ``values``, shape (queries,); see `Resampler`."""
    return Resampler(len(values), resamples, seed).interval(values, confidence)


def exact_interval(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Clopper-Pearson interval of a share: covers with at least ``confidence``, whatever the share and the trials.

    Without a trial nothing is known: (0, 1) around NaN. Ends are right to 1e-9 for up to 100,000 trials. Source:
    Clopper and Pearson, *Biometrika* 26, 1934.

    Raises:
        RequestError: more successes than trials, a negative count, or a confidence not between 0 and 1.
    """
    check_confidence(confidence)
    if not 0 <= successes <= trials:
        raise RequestError(f"successes: 0 to {trials} trials (got {successes})")
    if not trials:
        return Interval(math.nan, 0.0, 1.0)
    tail = (1 - confidence) / 2
    low, high = 0.0, 1.0
    if successes:
        low = _last(lambda share: _at_least(successes, trials, share) <= tail)
    if successes < trials:
        high = 1 - _last(lambda share: _at_least(trials - successes, trials, share) <= tail)
    return Interval(successes / trials, low, high)


def finite(values: Values, where: str) -> NDArray[np.float64]:
    """The values as an array of shape (n,).

    Raises:
        RequestError: they are no plain sequence of finite numbers; the message names ``where`` and the first culprit.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise RequestError(f"{where}: must be numbers (got something else among them)") from None
    if array.ndim != 1:
        raise RequestError(f"{where}: must be one number per query (got {array.ndim} dimensions)")
    wrong = np.flatnonzero(~np.isfinite(array))
    if wrong.size:
        raise RequestError(f"{where}: must be finite (got {array[wrong[0]]} at position {wrong[0]})")
    return array


def seeded_bits(seed: int) -> np.random.PCG64:
    """A source of raw 64-bit words.

    Raises:
        RequestError: the seed is negative.
    """
    if seed < 0:
        raise RequestError(f"seed: at least 0 (got {seed})")
    return np.random.PCG64(seed)


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that is not between 0 and 1, ends excluded."""
    if not 0 < confidence < 1:
        raise RequestError(f"confidence: between 0 and 1 (got {confidence})")


def _draw(bits: np.random.PCG64, rows: int, queries: int) -> Indices:
    # Each 64-bit word gives two draws by multiplying and shifting; their bias is below queries / 2**32. Every row
    # begins a new word, so that rows do not depend on how they are blocked.
    words = np.asarray(bits.random_raw(rows * ((queries + 1) // 2)), dtype="<u8")
    halves = words.view("<u4").reshape(rows, -1)[:, :queries]
    return ((halves.astype(np.uint64) * np.uint64(queries)) >> np.uint64(32)).astype(np.uint32)


def _at_least(successes: int, trials: int, share: float) -> float:
    """Probability of so many successes or more, for a share strictly between 0 and 1."""
    counts = np.arange(trials + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])  # of the factorials
    terms = logs[-1] - logs - logs[::-1] + counts * math.log(share) + counts[::-1] * math.log1p(-share)
    return float(np.exp(terms[successes:]).sum())


def _last(holds: Callable[[float], bool]) -> float:
    """The greatest share, to 2**-60, of which something holds that holds up to some share and not beyond."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
