import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rlvr.evaluation import (
    Estimate,
    avg_at_k,
    bootstrap_mean,
    clustered_mean,
    clustered_standard_error,
    count_correct,
    geometric_seed_interval,
    paired_difference,
    pass_at_k,
    ratio_of_means,
    seed_interval,
)

NAN = float("nan")


# --- metrics ------------------------------------------------------------------------------------------


def exact_pass_at_k(n, c, k):
    return float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_exact(case):
    assert pass_at_k([case[0]], [case[1]], case[2])[0] == pytest.approx(exact_pass_at_k(*case), rel=1e-11)


def test_pass_at_k_typed_in():
    np.testing.assert_allclose(pass_at_k([4, 4, 4], [0, 1, 4], 2), [0, 0.5, 1])
    np.testing.assert_allclose(pass_at_k(5, [0, 2, 5], 1), [0, 0.4, 1])
    # tiny pass@k from many samples: 1 - (1 - p) would lose it
    assert pass_at_k([10**9], [1], 2)[0] == pytest.approx(2e-9, rel=1e-12)
    assert pass_at_k([100_000], [50_000], 1000)[0] == 1.0


# openai/human-eval#35, PR#68
@pytest.mark.fault("pass-at-k-beyond-the-samples")
@pytest.mark.parametrize("correct", [[0], [1], [2]])
def test_pass_at_k_needs_k_samples(correct):
    # n < k is undefined; the usual shortcut returns 1.0 even where nothing was right
    with pytest.raises(ValueError, match="k=5 exceeds"):
        pass_at_k([2], correct, 5)


# paiml/aprender PR#2118
@pytest.mark.fault("problems-in-place-of-samples")
def test_problem_counts_are_not_sample_counts():
    # 50 of 164 problems solved by one greedy sample each: pass@1 is 30.5 %, pass@10 undefined, never 97.7 %
    solved = np.arange(164) < 50
    assert pass_at_k(np.ones(164, int), solved.astype(int), 1).mean() == pytest.approx(50 / 164)
    with pytest.raises(ValueError, match="k=10 exceeds"):
        pass_at_k(np.ones(164, int), solved.astype(int), 10)


@pytest.mark.parametrize(
    ("n", "c", "k", "name"),
    [
        ([4], [5], 1, "c=5 of n=4"),
        ([4], [-1], 1, "c=-1"),
        ([4], [1], 0, "k=0"),
        ([4], [1], 1.5, "k=1.5"),
        ([4], [NAN], 1, "c holds nan"),
        ([4], [0.5], 1, "c holds"),
        ([], [], 1, "empty"),
    ],
)
def test_pass_at_k_bad_input(n, c, k, name):
    with pytest.raises(ValueError, match=name):
        pass_at_k(n, c, k)


def test_missing_samples_are_not_wrong_answers():
    correct = [[1, NAN, 0, 1], [NAN] * 4, [0, 0, 0, NAN]]
    n, c = count_correct(correct)
    assert n.tolist() == [3, 0, 3] and c.tolist() == [2, 0, 0]
    np.testing.assert_allclose(avg_at_k(correct), [2 / 3, NAN, 0])
    np.testing.assert_allclose(pass_at_k(n[[0, 2]], c[[0, 2]], 2), [1, 0])
    np.testing.assert_allclose(avg_at_k(pd.DataFrame(correct)), avg_at_k(correct))


@pytest.mark.parametrize("correct", [[1, 0], [[0.5]], [[]], [[2, 0]]])
def test_correct_matrix_bad_input(correct):
    with pytest.raises(ValueError, match="correct"):
        avg_at_k(correct)


# --- intervals ----------------------------------------------------------------------------------------


def aime():
    """30 problems x 32 samples, 10 always right, 20 always wrong: (values, problem) by row."""
    problem = np.repeat(np.arange(30), 32)
    return (problem < 10).astype(float), problem


# UKGovernmentBEIS/inspect_ai#1113, #1251; marin-community/marin PR#9196
@pytest.mark.fault("samples-taken-as-independent")
def test_problems_are_the_clusters():
    values, problem = aime()
    assert clustered_standard_error(values, np.arange(960)) == pytest.approx(0.015, abs=5e-4)  # the wrong one
    assert clustered_standard_error(values, problem) == pytest.approx(0.088, abs=5e-4)
    estimate = clustered_mean(values, problem)
    half = stats.t.ppf(0.975, 29) * 0.08754
    assert estimate.value == pytest.approx(1 / 3)
    assert estimate.high - estimate.value == pytest.approx(half, rel=1e-3)
    assert (estimate.n, estimate.n_unit, estimate.seeds) == (30, "problems", ())
    boot = bootstrap_mean(values, problem)
    rows = bootstrap_mean(values, np.arange(960))
    assert (boot.high - boot.low) / (rows.high - rows.low) == pytest.approx(5.7, rel=0.1)
    assert boot.high - boot.value == pytest.approx(1.96 * 0.0861, rel=0.1)


def test_clustered_mean_weighs_problems_equally():
    values = [1, 1, 1, 0, 0, NAN]
    estimate = clustered_mean(values, ["a", "a", "a", "b", "b", "b"], seeds=[1, 2])
    assert estimate.value == 0.5 and estimate.n == 2 and estimate.seeds == (1, 2)
    ttest = stats.ttest_1samp([1, 0], 0).confidence_interval(0.95)
    assert (estimate.low, estimate.high) == pytest.approx((ttest.low, ttest.high))


def test_order_of_rows_does_not_matter():
    rng = np.random.default_rng(0)
    values, problem = rng.random(60), rng.integers(0, 9, 60)
    order = rng.permutation(60)
    for interval in (bootstrap_mean, clustered_mean):
        a, b = interval(values, problem), interval(values[order], problem[order])
        assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), rel=1e-12)


# marin-community/marin PR#9196; a renamed column is in evaluation/test_accuracy_table.py
@pytest.mark.fault("unknown-spread-taken-as-known")
def test_unknown_spread_is_not_width_zero():
    one = clustered_mean([0.0, 1.0], [7, 7])
    alike = clustered_mean([1.0] * 10, range(10))
    boot = bootstrap_mean([1.0] * 10, range(10))
    same = paired_difference([0.1, 0.3], [0.1, 0.3])
    for estimate in (one, alike, boot, same, seed_interval([0.5], [0])):
        assert estimate.low is None and estimate.high is None
        assert "unknown" in estimate.method and "unknown" in estimate.format()
    assert clustered_standard_error([0.0, 1.0], [7, 7]) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: clustered_mean([], []),
        lambda: clustered_mean([NAN, NAN], [0, 1]),
        lambda: clustered_mean([1.0], [0, 1]),
        lambda: clustered_mean([1.0, 0.0], [0, 1], confidence=95),
        lambda: bootstrap_mean([], []),
        lambda: bootstrap_mean([1.0], [1], resamples=0),
        lambda: ratio_of_means([0.0, 0.0], [0.0, 0.0], [0, 1]),
        lambda: ratio_of_means([1.0], [1.0, 2.0], [0, 1]),
        lambda: paired_difference([], []),
        lambda: paired_difference([1.0, NAN], [NAN, 1.0]),
        lambda: paired_difference([1.0, 0.0], [1.0]),
        lambda: paired_difference(pd.Series([1.0], index=["a"]), pd.Series([1.0], index=["b"])),
        lambda: seed_interval([], []),
        lambda: seed_interval([1.0, 2.0]),
        lambda: seed_interval([1.0, NAN], [0, 1]),
        lambda: seed_interval([1.0, 2.0], [0, 0]),
        lambda: seed_interval([1.0, 2.0], [0]),
    ],
)
def test_nothing_to_estimate_is_an_error(call):
    with pytest.raises(ValueError):
        call()


def test_paired_difference_is_the_paired_t_test():
    rng = np.random.default_rng(1)
    a = rng.random((20, 4))
    b = a - 0.1 + 0.02 * rng.standard_normal((20, 4))
    a[3, 1] = b[5] = NAN
    estimate = paired_difference(a, b, confidence=0.9, seeds=[0])
    means = np.nanmean(np.delete(a, 5, 0), 1), np.nanmean(np.delete(b, 5, 0), 1)
    ttest = stats.ttest_rel(*means).confidence_interval(0.9)
    assert (estimate.low, estimate.high) == pytest.approx((ttest.low, ttest.high))
    assert estimate.value == pytest.approx((means[0] - means[1]).mean()) and estimate.n == 19
    unpaired = clustered_mean(np.delete(a, 5, 0).mean(1), range(19), confidence=0.9)
    assert estimate.high - estimate.low < (unpaired.high - unpaired.low) / 5


def test_seed_interval():
    values = [0.61, 0.65, 0.60]
    estimate = seed_interval(values, [0, 1, 2])
    ttest = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (estimate.low, estimate.high) == pytest.approx((ttest.low, ttest.high))
    assert (estimate.n, estimate.n_unit, estimate.seeds) == (3, "seeds", (0, 1, 2))


def slow_bootstrap(numerator, denominator, clusters, strata, resamples, seed):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(resamples):
        top = bottom = 0.0
        for s in sorted(set(strata)):
            members = sorted({c for c, t in zip(clusters, strata, strict=True) if t == s})
            for c in rng.choice(members, len(members)):
                rows = [i for i in range(len(clusters)) if clusters[i] == c and strata[i] == s]
                top += sum(numerator[i] for i in rows)
                bottom += sum(denominator[i] for i in rows)
        out.append(top / bottom)
    return np.quantile(out, [0.025, 0.975])


def test_ratio_of_means_against_a_slow_bootstrap():
    rng = np.random.default_rng(2)
    denominator = rng.integers(1, 40, 50)
    numerator = rng.binomial(denominator, rng.beta(2, 5, 50))
    clusters, strata = rng.integers(0, 12, 50), rng.integers(0, 2, 50)
    estimate = ratio_of_means(numerator, denominator, clusters, strata, resamples=20_000)
    assert estimate.value == pytest.approx(numerator.sum() / denominator.sum())
    assert estimate.n == len(set(zip(clusters.tolist(), strata.tolist(), strict=True)))
    slow = slow_bootstrap(numerator, denominator, clusters.tolist(), strata.tolist(), 4000, 3)
    assert (estimate.low, estimate.high) == pytest.approx(tuple(slow), abs=0.01)
    again = ratio_of_means(numerator, denominator, clusters, strata, resamples=20_000)
    other = ratio_of_means(numerator, denominator, clusters, strata, resamples=20_000, seed=1)
    assert again == estimate and other != estimate
    assert "within strata" in estimate.method


def test_a_series_has_its_seeds_in_its_index():
    values = pd.Series([0.5, 0.7, 0.6], index=[3, 1, 2])
    assert seed_interval(values) == seed_interval([0.5, 0.7, 0.6], [3, 1, 2])
    ratio = geometric_seed_interval(values)
    logs = seed_interval(np.log([0.5, 0.7, 0.6]), [3, 1, 2])
    assert ratio.value == pytest.approx((0.5 * 0.7 * 0.6) ** (1 / 3))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(logs.low), math.exp(logs.high)))
    assert ratio.method == "Student t over seeds of the log" and (ratio.n, ratio.seeds) == (3, logs.seeds)
    assert geometric_seed_interval(pd.Series([2.0], index=[0])).low is None


def test_strata_remove_the_spread_between_seeds():
    rng = np.random.default_rng(3)
    seed = np.repeat([0, 1], 100)
    values = seed + 0.1 * rng.standard_normal(200)
    pooled = bootstrap_mean(values, np.arange(200))
    within = bootstrap_mean(values, np.arange(200) % 100, seed, seeds=(0, 1))
    assert within.n == 200  # the same id in two strata is two clusters
    assert (within.high - within.low) * 4 < pooled.high - pooled.low


def test_missing_rows_are_left_out():
    full = ratio_of_means([1, 2, 3.0], [2, 4, 4.0], [0, 1, 2])
    holed = ratio_of_means([1, 2, NAN, 3.0, 9], [2, 4, 5, 4.0, NAN], [0, 1, 7, 2, 8])
    assert holed == full and full.value == 0.6


@pytest.mark.parametrize("interval", ["clustered", "bootstrap"])
def test_coverage(interval):
    # 40 problems of unequal difficulty, 8 samples: the interval must hold the truth about 95 times in 100.
    rng = np.random.default_rng(4)
    hits = 0
    for trial in range(300):
        p = rng.beta(0.5, 0.5, 40)
        values = (rng.random((40, 8)) < p[:, None]).astype(float).ravel()
        problem = np.repeat(np.arange(40), 8)
        if interval == "clustered":
            e = clustered_mean(values, problem)
        else:
            e = bootstrap_mean(values, problem, resamples=400, seed=trial)
        hits += e.low <= 0.5 <= e.high
    assert 0.91 <= hits / 300 <= 0.98


def test_format():
    estimate = Estimate(0.65512, 0.6412, 0.669, 1024, "problems", (0, 1, 2), "m")
    assert estimate.format() == "0.655 [0.641, 0.669]"
    assert estimate.format(1) == "0.7 [0.6, 0.7]"
    assert Estimate(0.5, None, None, 1, "seeds", (0,), "m").format(2) == "0.50 [unknown]"
