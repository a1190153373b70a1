from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from bounded_retrieval.errors import RequestError
from bounded_retrieval.evaluation.certification import (
    _Bet,
    certify_sequence,
    is_refuted,
    upper_bound,
)

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]
Judge = Callable[[Sequence[Floats], float], Sequence[bool]]

EPSILON = 0.1
GAINS = np.array([0.07, 0.13, 0.25, 0.37, 0.43, 0.5, 0.63, 1.0])
"""How far nDCG@4 moves where a relevant unit comes in, goes out or changes places."""


def two_points(low: float, high: float, mean: float = EPSILON) -> Draw:
    """Losses of two values with a given mean."""
    share = (mean - low) / (high - low)
    return lambda chance, shape: np.where(chance.random(shape) < share, high, low)


def sparse(deviation: float) -> Draw:
    """Losses as nDCG has them: mostly 0, else a symmetric gain or loss; mean 0."""
    share = deviation**2 / (GAINS**2).mean()

    def draw(chance: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        signed = chance.choice(np.concatenate([GAINS, -GAINS]), shape)
        return np.where(chance.random(shape) < share, signed, 0.0)

    return draw


# Of each the true mean is EPSILON exactly, so that every certification is a false one.
AT_EPSILON: dict[str, Draw] = {
    "all or nothing": two_points(-1, 1),
    "one in ten loses everything": two_points(0, 1),
    "small gains, rare large losses": two_points(-0.02, 1),
    "rare large gains": two_points(-1, 0.15),
    "uniform": lambda chance, shape: EPSILON + chance.uniform(-0.4, 0.4, shape),
    "sparse": lambda chance, shape: 0.9 * sparse(0.3)(chance, shape) + EPSILON,
}


def by_the_package(candidates: Sequence[Floats], confidence: float) -> list[bool]:
    """Which candidates are certified at EPSILON."""
    named = [(str(place), losses) for place, losses in enumerate(candidates)]
    certificates = certify_sequence(named, epsilon=EPSILON, confidence=confidence)
    return [certificate.verdict == "certified" for certificate in certificates]


def by_a_bound(bound: Callable[[Floats], float]) -> Judge:
    """The same sequence with another bound."""

    def judge(candidates: Sequence[Floats], _confidence: float) -> list[bool]:
        certified = [bound(losses) <= EPSILON for losses in candidates]
        return [all(certified[: place + 1]) for place in range(len(certified))]

    return judge


def false_share(judge: Judge, draw: Draw, confidence: float, repetitions: int, queries: int = 40) -> float:
    """Share of whole sequences in which a candidate is certified that should not be.

    The first candidate is a good one; the two bad ones share half of their queries' losses.
    """
    chance = np.random.default_rng(11)
    good = chance.uniform(-1, 0, (repetitions, queries))
    bad, own = draw(chance, (2, repetitions, queries))
    other = np.where(np.arange(queries) % 2, bad, own)
    return float(np.mean([any(judge(each, confidence)[1:]) for each in zip(good, bad, other, strict=True)]))


def margin(alpha: float, repetitions: int) -> float:
    """What a share of true mean alpha exceeds less than once in 2,000 experiments."""
    return alpha + 3.3 * math.sqrt(alpha * (1 - alpha) / repetitions)


def power(draw: Draw, queries: int, epsilon: float, repetitions: int) -> float:
    """Share of samples on which a mean of epsilon is refuted at 95%."""
    return float(
        np.mean(
            [is_refuted(losses, epsilon, 0.95) for losses in draw(np.random.default_rng(3), (repetitions, queries))]
        )
    )


@pytest.mark.parametrize("name", AT_EPSILON)
def test_a_sequence_certifies_falsely_at_most_as_often_as_promised(name):
    """Whatever the losses' distribution, bad candidates behind a good one are certified at most one time in ten."""
    share = false_share(by_the_package, AT_EPSILON[name], 0.9, repetitions=800)
    assert share <= margin(0.1, 800)


@pytest.mark.parametrize("name", AT_EPSILON)
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_true_mean_is_refuted_at_most_as_often_as_promised(name, confidence):
    """The share of samples that refute the true mean stays within alpha over thousands of samples."""
    samples = AT_EPSILON[name](np.random.default_rng(7), (4_000, 60))
    share = np.mean([is_refuted(losses, EPSILON, confidence) for losses in samples])
    assert share <= margin(1 - confidence, len(samples))


@pytest.mark.parametrize("deviations", [0, 1.645], ids=["sample mean", "normal approximation"])
def test_bounds_that_do_not_hold_are_convicted_by_the_same_count(deviations):
    """The sample mean and the normal approximation, taken for bounds at 95%, certify falsely too often."""

    def bound(losses):
        return losses.mean() + deviations * losses.std(ddof=1) / math.sqrt(losses.size)

    draw = AT_EPSILON["small gains, rare large losses"]
    assert false_share(by_a_bound(bound), draw, 0.95, repetitions=800, queries=25) > 2 * margin(0.05, 800)


@pytest.mark.parametrize("confidence", [0.6, 0.8, 0.9])
@pytest.mark.parametrize("points", [(-1.0, 1.0), (-0.1, 1.0), (-1.0, 0.3), (0.0, 0.5)])
def test_every_sample_of_ten_counted_the_bound_holds_exactly(points, confidence):
    """Over all 1,024 samples of two points, the probability of a bound below the true mean is at most alpha."""
    samples = np.array(list(product(points, repeat=10)))
    bounds = np.array([upper_bound(sample, confidence) for sample in samples])
    highs = (samples == points[1]).sum(axis=1)
    failures = []
    for share in np.linspace(0.02, 0.98, 49):
        probabilities = share**highs * (1 - share) ** (10 - highs)
        failures.append(probabilities[bounds < points[0] + share * (points[1] - points[0])].sum())
    assert max(failures) <= 1 - confidence + 1e-12
    assert max(failures) > 0  # the bound is no empty one


def test_power_at_five_hundredths():
    """Losses of deviation .26 and mean 0 are certified at epsilon .05 nine times in ten by 400 queries."""
    assert power(sparse(0.26), 400, 0.05, 500) >= 0.9
    assert power(sparse(0.26), 200, 0.05, 500) >= 0.65


@pytest.mark.parametrize(("deviation", "queries"), [(0.15, 540), (0.2, 790), (0.25, 1_170), (0.3, 1_600)])
def test_power_at_two_hundredths(deviation, queries):
    """What the module says about queries needed at epsilon .02 holds, to some per cent."""
    assert 0.75 <= power(sparse(deviation), queries, 0.02, 500) <= 0.9


def test_the_means_refuted_are_those_from_the_bound_up():
    """No mean below the bound is refuted and every one above is, to the stated precision."""
    chance = np.random.default_rng(5)
    for queries in (7, 40, 150):
        losses = sparse(0.4)(chance, (queries,))
        bound = upper_bound(losses, 0.9)
        means = np.linspace(-1, 1, 801)
        refuted = np.array([is_refuted(losses, mean, 0.9) for mean in means])
        assert (refuted == (means >= refuted.argmax() / 400 - 1 - 1e-12)).all()
        assert is_refuted(losses, bound, 0.9)
        assert not is_refuted(losses, bound - 2e-6, 0.9)


def test_more_confidence_never_gives_a_lower_bound():
    """The bound grows with the confidence, on any losses."""
    chance = np.random.default_rng(6)
    confidences = [0.501, 0.6, 0.75, 0.9, 0.95, 0.99, 0.999999]
    for draw in (*AT_EPSILON.values(), sparse(0.2)):
        losses = draw(chance, (60,))
        bounds = [upper_bound(losses, confidence) for confidence in confidences]
        assert bounds == sorted(bounds)
        assert losses.mean() <= bounds[0] < bounds[-1] <= 1


@pytest.mark.parametrize("loss", [-1.0, -0.3, 0.0, 0.5, 1.0])
def test_losses_without_variance_have_a_bound_close_to_them(loss):
    """Equal losses give a bound above their mean by no more than some fixed number over the queries."""
    for queries in (50, 200, 800):
        bound = upper_bound(np.full(queries, loss), 0.95)
        assert loss <= bound <= loss + 8 / queries


def test_the_bound_is_never_below_the_observed_mean():
    """Where most losses come last in the bet, the bound is the observed mean at the least."""
    for seed in range(20):
        order = np.argsort(np.argsort(np.random.PCG64(seed).random_raw(200), kind="stable"))
        losses = np.where(order < 100, -1.0, 1.0)  # all gains are bet on first
        assert is_refuted(losses, -0.5, 0.95, seed=seed)
        assert 0 <= upper_bound(losses, 0.95, seed=seed) <= 1e-6


def test_a_stake_knows_only_the_losses_before_it():
    """Changing a loss and all that come after it changes no stake up to and including its own."""
    losses = np.random.default_rng(8).uniform(-1, 1, 50)
    order = np.argsort(np.random.PCG64(4).random_raw(50), kind="stable")
    before = _Bet.prepared(losses, 4)
    for place in (0, 1, 20, 49):
        changed = losses.copy()
        changed[order[place:]] = -np.sign(changed[order[place:]])
        after = _Bet.prepared(changed, 4)
        assert after.rates[: place + 1] == before.rates[: place + 1]
        assert after.losses[:place] == before.losses[:place]
        assert after.losses[place] != before.losses[place]


def test_the_order_of_the_bet_comes_from_the_seed():
    """One seed gives one bound; another gives another, on the same losses."""
    losses = sparse(0.3)(np.random.default_rng(9), (300,))
    assert len({upper_bound(losses, 0.95, seed=2) for _ in range(3)}) == 1
    assert len({upper_bound(losses, 0.95, seed=seed) for seed in range(5)}) == 5


def test_losses_in_an_order_that_says_something_are_shuffled():
    """Losses that rise along the file give about the bound that they give in a random order."""
    losses = np.sort(sparse(0.3)(np.random.default_rng(10), (600,)))
    shuffled = np.random.default_rng(0).permutation(losses)
    assert abs(upper_bound(losses, 0.95) - upper_bound(shuffled, 0.95)) < 0.02


def test_a_sequence_stops_at_the_first_failure():
    """Candidates behind one that fails are not tested, good as they may be."""
    good, bad = np.full(300, -0.1), np.full(300, 0.2)
    found = certify_sequence([("a", good), ("b", bad), ("c", good)], epsilon=0.05, confidence=0.95)
    assert [(each.name, each.verdict) for each in found] == [
        ("a", "certified"),
        ("b", "not_certified"),
        ("c", "not_tested"),
    ]
    assert [each.mean_loss for each in found] == pytest.approx([-0.1, 0.2, -0.1])
    assert found[0].upper_bound == upper_bound(good, 0.95)
    assert found[1].upper_bound == upper_bound(bad, 0.95)
    assert found[2].upper_bound is None
    assert {(each.epsilon, each.confidence, each.queries) for each in found} == {(0.05, 0.95, 300)}


def test_verdict_and_bound_agree_to_the_last_digit():
    """Certified, the bound is at most epsilon; not certified, above it; even where epsilon is the bound itself."""
    losses = sparse(0.2)(np.random.default_rng(12), (200,))
    bound = upper_bound(losses, 0.95)
    for shift in (-1e-4, -2e-6, -1e-6, -5e-7, 0, 5e-7, 1e-4):
        (found,) = certify_sequence([("a", losses)], epsilon=bound + shift, confidence=0.95)
        assert (found.verdict == "certified") == (found.upper_bound <= bound + shift)
        assert (found.verdict == "certified") == is_refuted(losses, bound + shift, 0.95)


def test_epsilon_at_its_ends():
    """Epsilon 1 certifies anything, and epsilon 0 what is clearly better."""
    lost, gained = np.ones(30), np.full(300, -0.2)
    assert certify_sequence([("a", lost)], epsilon=1, confidence=0.95)[0].verdict == "certified"
    assert certify_sequence([("a", gained)], epsilon=0, confidence=0.95)[0].verdict == "certified"
    assert certify_sequence([("a", np.zeros(300))], epsilon=0, confidence=0.95)[0].verdict == "not_certified"


def test_two_thousand_losses_are_bounded_at_once():
    """A bound on 2,000 losses takes less than 50 ms of computing."""
    losses = sparse(0.3)(np.random.default_rng(13), (2_000,))
    times = []
    for _ in range(5):
        started = time.process_time()
        upper_bound(losses, 0.95)
        times.append(time.process_time() - started)
    assert min(times) < 0.05


def _certify(candidates=(("a", [0.0, 0.1]),), epsilon=0.05, confidence=0.95):
    return certify_sequence(list(candidates), epsilon=epsilon, confidence=confidence)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _certify(epsilon=-0.1), "epsilon: 0 to 1 (got -0.1)"),
        (lambda: _certify(epsilon=math.nan), "epsilon: 0 to 1 (got nan)"),
        (lambda: _certify(confidence=0.5), "confidence: above 0.5 and below 1 (got 0.5)"),
        (lambda: _certify(confidence=1), "confidence: above 0.5 and below 1 (got 1)"),
        (lambda: _certify([]), "candidates: 1 to 8 (got 0)"),
        (lambda: _certify([(str(i), [0.0]) for i in range(9)]), "candidates: 1 to 8 (got 9)"),
        (lambda: _certify([("a", [0.0]), ("a", [0.0])]), "candidates: names must be unique (got 'a' twice)"),
        (
            lambda: _certify([("a", [0.0]), ("b", [0.0, 1.0])]),
            "candidates: losses on the same queries (got different numbers: 'a' has 1, 'b' has 2)",
        ),
        (lambda: _certify([("a", [0.0, 1.5])]), "losses of 'a': between -1 and 1 (got 1.5 at position 1)"),
        (lambda: _certify([("a", [0.0]), ("b", [math.nan])]), "losses of 'b': must be finite (got nan at position 0)"),
        (lambda: _certify([("a", [])]), "losses of 'a': at least one query (got none)"),
        (lambda: upper_bound([], 0.95), "losses: at least one query (got none)"),
        (lambda: upper_bound([0.0], 0.4), "confidence: above 0.5 and below 1 (got 0.4)"),
        (lambda: upper_bound([0.0], 0.95, seed=-1), "seed: at least 0 (got -1)"),
        (lambda: is_refuted([0.0], 1.1, 0.95), "mean: -1 to 1 (got 1.1)"),
        (lambda: is_refuted([-1.01], 0.1, 0.95), "losses: between -1 and 1 (got -1.01 at position 0)"),
        (lambda: is_refuted([0.0], 0.1, math.nan), "confidence: above 0.5 and below 1 (got nan)"),
    ],
)
def test_what_cannot_be_tested_is_refused_in_one_line(call, message):
    """The message names the argument, its limit and the value."""
    with pytest.raises(RequestError) as error:
        call()
    assert str(error.value) == message
