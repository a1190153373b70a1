"""Certify that a candidate's mean loss is at most epsilon, on queries that took no part in choosing it.

A loss lies in [-1, 1]: for each query, what a measure in [0, 1] gives the policy compared with, less what it gives
the candidate. The queries of the slice count as independent draws from those to come. A candidate is certified where
the hypothesis that its true mean loss is above epsilon is rejected at ``alpha = 1 - confidence``; whatever the losses'
distribution, that happens to a candidate that should not be certified with probability at most alpha.

The test is a bet. Somebody begins with a capital of 1 and stakes part of it on each query that the loss will be below
the mean under test, the stake being settled before the loss is looked at. If the true mean is not below that, no way
of staking makes the capital grow on average, and the chance that it ever reaches 1 / alpha is at most alpha (Ville's
inequality; Waudby-Smith and Ramdas, *Estimating Means of Bounded Random Variables by Betting*, JRSS B 86, 2024, arXiv
2010.09686). The stakes are theirs, from the variance seen so far and truncated, with one refinement: the capital still
missing and the queries still to come take the place of the capital and queries that there were at the start (Voráček
and Orabona, *STaR-Bets*, 2025, arXiv 2505.22422).

What it takes: with a true mean of 0 and epsilon .02 at 95%, sparse losses such as those in nDCG are certified four
times in five with about 500 queries at a standard deviation of .15, 750 at .20, 1,110 at .25 and 1,520 at .30. An
empirical Bernstein bound (Maurer and Pontil, 2009) takes about 2,100, 2,700, 3,500 and 4,400, Hoeffding's more than
16,000.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.errors import RequestError
from bounded_retrieval.evaluation.bootstrap import Values, finite, seeded_bits

MOST_CANDIDATES = 8
"""Candidates of one sequence. Each is a way to be lucky on the slice they are chosen on; a declared few will do."""

Verdict = Literal["certified", "not_certified", "not_tested"]

_LARGEST_VARIANCE = 1.0
"""Of a loss in [-1, 1]; counts as one observation of the variance, made before the first."""

_LARGEST_SHARE = 0.9
"""Share of the capital that the largest loss may cost. One would end the bet at the first such loss."""

_PRECISION = 1e-6
_LEAST_CONFIDENCE = 0.5


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What the test says of one candidate.

    Attributes:
        name: the candidate.
        mean_loss: over the slice; says little without the bound.
        upper_bound: of the true mean loss, at ``confidence``; none where the sequence had ended before. At most
            epsilon exactly where the candidate is certified. Bounds of several candidates do not hold together.
        epsilon: the mean loss that is put up with.
        confidence: of the whole sequence.
        queries: how many there were.
        verdict: ``certified``, ``not_certified`` (which shows no mean loss above epsilon) or ``not_tested``.
    """

    name: str
    mean_loss: float
    upper_bound: float | None
    epsilon: float
    confidence: float
    queries: int
    verdict: Verdict


def certify_sequence(
    losses_by_candidate: Sequence[tuple[str, Values]], *, epsilon: float, confidence: float, seed: int = 0
) -> tuple[Certificate, ...]:
    """Test candidates in the order given until one fails; those after it are not tested.

    The order must be settled without these losses. Then the probability that any candidate is certified whose true
    mean loss is above epsilon stays at most ``1 - confidence``, without a correction for their number: it takes a
    false rejection of the first such candidate (fixed-sequence testing; Maurer, Hothorn and Lehmacher, 1995).

    Args:
        losses_by_candidate: 1 to 8 names, each with its losses, shape (queries,), on the same queries in one order.
        epsilon: 0 to 1.
        confidence: above .5 and below 1.
        seed: of the order in which the queries are bet on.

    Raises:
        RequestError: an argument is out of range, a name comes twice, or numbers of queries differ.
    """
    if not 0 <= epsilon <= 1:
        raise RequestError(f"epsilon: 0 to 1 (got {epsilon})")
    _check_confidence(confidence)
    certificates: list[Certificate] = []
    is_open = True
    for name, losses in _checked(losses_by_candidate):
        bound = _bound_at(losses, epsilon, confidence, seed) if is_open else None
        is_certified = bound is not None and bound <= epsilon
        certificates.append(
            Certificate(
                name=name,
                mean_loss=float(losses.mean()),
                upper_bound=bound,
                epsilon=epsilon,
                confidence=confidence,
                queries=len(losses),
                verdict="certified" if is_certified else "not_certified" if is_open else "not_tested",
            )
        )
        is_open = is_certified
    return tuple(certificates)


def upper_bound(losses: Values, confidence: float, *, seed: int = 0) -> float:
    """Upper bound of the true mean loss: with probability ``confidence`` or more, over the draw, not below it.

    The smallest mean that is refuted, from above and to 1e-6; 1 where none is, and never below the observed mean.
    More confidence never gives a lower bound.

    Args:
        losses: each in [-1, 1], shape (queries,), at least one.
        confidence: above .5 and below 1.
        seed: of the order in which the queries are bet on. The order depends on it and on the number of queries
            only; choosing a seed for its bound makes the bound void.

    Raises:
        RequestError: an argument is out of range.
    """
    _check_confidence(confidence)
    given = _losses(losses, "losses")
    bet = _Bet.prepared(given, seed)
    low, high = min(1.0, float(given.mean())), 1.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if bet.is_won(middle, confidence) else (middle, high)
    return high


def is_refuted(losses: Values, mean: float, confidence: float, *, seed: int = 0) -> bool:
    """Whether the hypothesis that the true mean loss is ``mean`` (-1 to 1) or more is rejected.

    Arguments and errors are those of `upper_bound`. A mean above a refuted one is refuted too.
    """
    _check_confidence(confidence)
    if not -1 <= mean <= 1:
        raise RequestError(f"mean: -1 to 1 (got {mean})")
    return _Bet.prepared(_losses(losses, "losses"), seed).is_won(mean, confidence)


@dataclass(frozen=True)
class _Bet:
    """The losses in the order of the bet, and for each the square of a stake per unit of missing log capital."""

    losses: Sequence[float]
    rates: Sequence[float]

    @classmethod
    def prepared(cls, losses: NDArray[np.float64], seed: int) -> _Bet:
        """Shuffle, and estimate the variance before each loss from those before it."""
        queries = len(losses)
        order = np.argsort(seeded_bits(seed).random_raw(queries), kind="stable")
        shuffled = losses[order]
        seen = np.arange(1, queries + 1)
        squares = np.cumsum((shuffled - np.cumsum(shuffled) / (seen + 1)) ** 2)
        variances = (_LARGEST_VARIANCE + np.concatenate([[0.0], squares[:-1]])) / seen
        rates = 2 / (variances * seen[::-1])
        return cls(shuffled.tolist(), rates.tolist())

    def is_won(self, mean: float, confidence: float) -> bool:
        """Whether the capital reaches ``1 / (1 - confidence)``.

        With x of log capital missing, r losses to come and variance v, the stake ``sqrt(2 * x / (r * v))`` is the one
        that reaches the goal at the smallest distance between the true mean and ``mean``.

        A bet won at one mean is won at every higher one, and one lost at some confidence is lost at every higher
        one. For who misses more capital goes on missing more: take x above y missing, and the same mean and loss.
        The stake grows with what is missing, but no faster than in proportion, and as the logarithm is concave, so
        does what it wins: g(x) <= g(y) * x / y. Short of the goal g(y) < y, so that x - g(x) >= (x / y) * (y - g(y)),
        which is above y - g(y). Where the stake loses, the larger one loses more. And of two means, with as much
        missing, the higher one wins more or loses less, the largest stake included.
        """
        missing = -math.log1p(-confidence)
        largest = _LARGEST_SHARE / max(1 - mean, _PRECISION)
        for loss, rate in zip(self.losses, self.rates, strict=True):
            missing -= math.log1p(min(math.sqrt(missing * rate), largest) * (mean - loss))
            if missing <= 0:
                return True
        return False


def _bound_at(losses: NDArray[np.float64], epsilon: float, confidence: float, seed: int) -> float:
    """The upper bound; epsilon itself where that is refuted and only the bound's precision lies between."""
    bound = upper_bound(losses, confidence, seed=seed)
    if epsilon < bound <= epsilon + _PRECISION and losses.mean() <= epsilon:
        return epsilon if is_refuted(losses, epsilon, confidence, seed=seed) else bound
    return bound


def _checked(losses_by_candidate: Sequence[tuple[str, Values]]) -> list[tuple[str, NDArray[np.float64]]]:
    if not 1 <= len(losses_by_candidate) <= MOST_CANDIDATES:
        raise RequestError(f"candidates: 1 to {MOST_CANDIDATES} (got {len(losses_by_candidate)})")
    checked: dict[str, NDArray[np.float64]] = {}
    for name, losses in losses_by_candidate:
        if name in checked:
            raise RequestError(f"candidates: names must be unique (got {name!r} twice)")
        checked[name] = _losses(losses, f"losses of {name!r}")
    queries = {name: len(losses) for name, losses in checked.items()}
    if len(set(queries.values())) > 1:
        listed = ", ".join(f"{name!r} has {count}" for name, count in queries.items())
        raise RequestError(f"candidates: losses on the same queries (got different numbers: {listed})")
    return list(checked.items())


def _losses(losses: Values, where: str) -> NDArray[np.float64]:
    given = finite(losses, where)
    if not given.size:
        raise RequestError(f"{where}: at least one query (got none)")
    beyond = np.flatnonzero(np.abs(given) > 1)
    if beyond.size:
        raise RequestError(f"{where}: between -1 and 1 (got {given[beyond[0]]} at position {beyond[0]})")
    return given


def _check_confidence(confidence: float) -> None:
    if not _LEAST_CONFIDENCE < confidence < 1:
        raise RequestError(f"confidence: above {_LEAST_CONFIDENCE} and below 1 (got {confidence})")
