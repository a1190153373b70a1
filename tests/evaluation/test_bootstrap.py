from __future__ import annotations

import math
import time

import numpy as np
import pytest

from bounded_retrieval.errors import RequestError
from bounded_retrieval.evaluation import bootstrap
from bounded_retrieval.evaluation.bootstrap import (
    Interval,
    Resampler,
    exact_interval,
    finite,
    mean_interval,
    seeded_bits,
)


def test_an_interval_covers_the_true_mean_about_as_often_as_it_says():
    """Of 400 samples of 60 skewed values, about 95% have an interval that covers the true mean."""
    samples = np.random.default_rng(1).beta(0.6, 1.4, (400, 60))
    resampler = Resampler(60, 1_000, 0)
    intervals = [resampler.interval(sample) for sample in samples]
    covered = np.mean([each.low <= 0.3 <= each.high for each in intervals])
    assert 0.90 <= covered <= 0.985


def test_an_interval_is_that_of_the_normal_approximation_for_many_queries():
    """With 2,000 queries the ends lie 1.96 standard errors from the mean, to a few per cent."""
    values = np.random.default_rng(2).random(2_000)
    error = values.std() / math.sqrt(2_000)
    found = mean_interval(values, resamples=4_000)
    assert found.mean == values.mean()
    assert found.mean - found.low == pytest.approx(1.96 * error, rel=0.06)
    assert found.high - found.mean == pytest.approx(1.96 * error, rel=0.06)


def test_more_confidence_gives_a_wider_interval():
    """An interval at 99% holds that at 80%, and a bootstrap one cannot leave the values' range."""
    values = [0.0, 0.2, 0.2, 0.9, 1.0, 0.4]
    wide, narrow = (mean_interval(values, confidence=confidence) for confidence in (0.99, 0.8))
    assert 0 <= wide.low < narrow.low < narrow.high < wide.high <= 1


def test_each_query_is_drawn_equally_often():
    """The mean over all resamples of one query's indicator is 1 / queries, for odd and even numbers of queries."""
    for queries in (2, 3, 7, 10):
        for query in range(queries):
            share = Resampler(queries, 20_000, 5).means(np.eye(queries)[query]).mean()
            assert share == pytest.approx(1 / queries, abs=4 / math.sqrt(20_000 * queries))


def test_queries_of_a_resample_are_drawn_independently():
    """How often all five draws are the same query is what chance gives: once in 625."""
    queries = 5
    same = np.zeros(40_000, dtype=bool)
    for query in range(queries):
        same |= Resampler(queries, 40_000, 3).means(np.eye(queries)[query]) == 1
    assert same.mean() == pytest.approx(queries**-4, rel=0.4)


def test_the_draws_are_fixed_for_good():
    """The first resamples of two seeds, to the digit: reports made under another numpy must be reproduced."""
    assert Resampler(5, 3, 0).means([0, 1, 2, 3, 4]).tolist() == [2.2, 1.4, 3.0]
    assert Resampler(5, 3, 7).means([0, 1, 2, 3, 4]).tolist() == [3.2, 1.4, 2.0]


def test_fewer_resamples_are_the_first_of_more():
    """How many resamples are asked for does not change those that come first."""
    values = np.arange(9.0)
    assert Resampler(9, 50, 1).means(values).tolist() == Resampler(9, 500, 1).means(values)[:50].tolist()


def test_policies_meet_the_same_draws():
    """The difference of two policies' means is the bootstrap of the paired difference."""
    chance = np.random.default_rng(3)
    one, other = chance.random(100), chance.random(100)
    resampler = Resampler(100, 500, 9)
    assert resampler.means(one) - resampler.means(other) == pytest.approx(resampler.means(one - other), abs=1e-12)
    assert resampler.interval(one - other) == mean_interval(one - other, resamples=500, seed=9)


def test_a_paired_interval_is_narrower_where_queries_agree():
    """Two policies that differ by little on each query differ by little, however hard the queries are."""
    chance = np.random.default_rng(4)
    one = chance.random(200)
    other = one - 0.05 + chance.uniform(-0.01, 0.01, 200)
    found = mean_interval(one - other, resamples=2_000)
    assert 0.045 < found.low < found.mean < found.high < 0.055


def test_indices_too_many_to_keep_are_drawn_again(monkeypatch):
    """Beyond the limit no index is kept, and every use gives the same means as if they were."""
    values = np.random.default_rng(5).random(333)
    kept = Resampler(333, 7_000, 2)
    monkeypatch.setattr(bootstrap, "MOST_KEPT", 333 * 7_000 - 1)
    redrawn = Resampler(333, 7_000, 2)
    assert kept._kept is not None
    assert redrawn._kept is None
    assert redrawn.means(values).tolist() == kept.means(values).tolist() == redrawn.means(values).tolist()


def test_how_rows_are_blocked_changes_nothing(monkeypatch):
    """Memory is used in blocks whose size is no part of the result."""
    values = np.random.default_rng(6).random(101)
    whole = Resampler(101, 300, 2).means(values)
    monkeypatch.setattr(bootstrap, "_BLOCK", 1_000)
    assert Resampler(101, 300, 2).means(values).tolist() == whole.tolist()


def test_no_query_gives_nan():
    """Without a query there is no mean and no interval."""
    found = mean_interval([])
    assert np.isnan(Resampler(0, 10, 0).means([])).all()
    assert np.isnan([found.mean, found.low, found.high]).all()


def test_one_query_gives_an_interval_without_width():
    """There is only one resample of one query; all equal values behave alike."""
    assert mean_interval([0.3]) == Interval(0.3, 0.3, 0.3)
    assert mean_interval([0.25] * 40) == Interval(0.25, 0.25, 0.25)


def test_a_collection_of_usual_size_is_resampled_at_once():
    """809 queries, 10,000 times, take a fraction of a second of computing."""
    values = np.random.default_rng(7).random(809)
    times = []
    for _ in range(3):
        started = time.process_time()
        Resampler(809).interval(values)
        times.append(time.process_time() - started)
    assert min(times) < 0.4


@pytest.mark.parametrize(
    ("successes", "trials", "confidence", "low", "high"),
    [
        (3, 10, 0.95, 0.06673951117773447, 0.6524528500599973),  # R: binom.test(3, 10)$conf.int
        (1, 2, 0.95, 0.01257911709342505, 0.9874208829065749),
        (0, 10, 0.95, 0.0, 1 - 0.025**0.1),
        (10, 10, 0.95, 0.025**0.1, 1.0),
        (0, 1, 0.8, 0.0, 0.9),
        (50_000, 100_000, 0.95, 0.4968960625583858, 0.5031039374416141),
    ],
)
def test_exact_intervals_are_those_of_the_tables(successes, trials, confidence, low, high):
    """Clopper-Pearson ends agree with published and closed forms."""
    found = exact_interval(successes, trials, confidence)
    assert found.mean == successes / trials
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_an_exact_interval_covers_every_share():
    """Summed over all outcomes of 12 trials, each share is covered with 90% or more."""
    intervals = [exact_interval(successes, 12, 0.9) for successes in range(13)]
    for share in np.linspace(0.001, 0.999, 500):
        covered = sum(
            math.comb(12, k) * share**k * (1 - share) ** (12 - k)
            for k, each in enumerate(intervals)
            if each.low <= share <= each.high
        )
        assert covered >= 0.9


def test_no_trial_leaves_everything_open():
    """Without a trial any share is possible and none is observed."""
    found = exact_interval(0, 0)
    assert np.isnan(found.mean)
    assert (found.low, found.high) == (0.0, 1.0)


def test_finite_gives_an_array_of_floats():
    """Lists, integers and arrays come back as one float each."""
    assert finite([1, 0.5, True], "x").tolist() == [1.0, 0.5, 1.0]
    assert finite(np.array([2], dtype=np.int8), "x").dtype == np.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Resampler(-1), "queries: 0 to 4294967295 (got -1)"),
        (lambda: Resampler(3, 0), "resamples: at least 1 (got 0)"),
        (lambda: Resampler(3, 10, -2), "seed: at least 0 (got -2)"),
        (lambda: seeded_bits(-1), "seed: at least 0 (got -1)"),
        (lambda: Resampler(3, 10).means([1.0, 2.0]), "values: one for each of 3 queries (got 2)"),
        (lambda: Resampler(2, 10).means([1.0, math.inf]), "values: must be finite (got inf at position 1)"),
        (lambda: Resampler(2, 10).interval([1.0, 2.0], 1.0), "confidence: between 0 and 1 (got 1.0)"),
        (lambda: mean_interval([1.0], confidence=math.nan), "confidence: between 0 and 1 (got nan)"),
        (lambda: exact_interval(3, 2), "successes: 0 to 2 trials (got 3)"),
        (lambda: exact_interval(-1, 2), "successes: 0 to 2 trials (got -1)"),
        (lambda: exact_interval(1, 2, 0), "confidence: between 0 and 1 (got 0)"),
        (lambda: finite([1.0, "much"], "gains"), "gains: must be numbers (got something else among them)"),
        (lambda: finite([[1.0], [2.0]], "gains"), "gains: must be one number per query (got 2 dimensions)"),
    ],
)
def test_what_cannot_be_resampled_is_refused_in_one_line(call, message):
    """The message names the argument, its limit and the value."""
    with pytest.raises(RequestError) as error:
        call()
    assert str(error.value) == message
