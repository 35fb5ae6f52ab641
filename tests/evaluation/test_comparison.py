"""Tests of a difference: against SciPy and slow loops, their size under the null, margins and many tests."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from rlvr.evaluation import (
    Estimate,
    bootstrap_mean,
    bootstrap_test,
    equivalent,
    half_width,
    holm,
    mcnemar_test,
    multiplicity_note,
    non_inferior,
    normal_test,
    paired_difference,
    seed_interval,
    seed_tests,
    sign_flip_test,
)
from rlvr.reporting.verdicts import judge

NAN = float("nan")


def interval(low, high, seeds=(0, 1)):
    return Estimate((low + high) / 2, low, high, 30, "problems", seeds, "m")


# --- sign flips -----------------------------------------------------------------------------------------


def slow_sign_flips(difference):
    observed = abs(sum(difference))
    sums = [
        abs(sum(s * d for s, d in zip(signs, difference, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(difference))
    ]
    return sum(s >= observed - 1e-9 for s in sums) / len(sums)


@pytest.mark.parametrize("n", [1, 2, 5, 10])
def test_sign_flips_exact(n):
    rng = np.random.default_rng(n)
    a, b = rng.integers(0, 5, (2, n)) / 4  # many ties between patterns
    found = sign_flip_test(a, b, seeds=[0])
    assert found.p_value == pytest.approx(slow_sign_flips(a - b))
    assert found.method == f"sign flips of problems, all {2**n}"
    assert found.difference == paired_difference(a, b, seeds=[0])


def test_sign_flips_typed_in():
    assert sign_flip_test([1, 1, 1], [0, 0, 0]).p_value == 0.25  # +++ and --- of 8
    assert sign_flip_test([1, 1, 0], [0, 0, 0]).p_value == 0.5  # a problem without difference says nothing
    assert sign_flip_test([0.1, 0.3], [0.1, 0.3]).p_value == 1


def test_sign_flips_drawn():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 12, 4))
    exact, drawn = sign_flip_test(a, b), sign_flip_test(a, b, draws=3000)
    assert exact.method.endswith("all 4096") and drawn.method.endswith("3000 draws")
    assert drawn.p_value == pytest.approx(exact.p_value, abs=0.03)
    by_scipy = stats.permutation_test(
        (a.mean(1), b.mean(1)),
        lambda x, y, axis: (x - y).mean(axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
    )
    assert exact.p_value == pytest.approx(by_scipy.pvalue)
    # never 0: nothing is as extreme as 60 wins of 60
    assert sign_flip_test(np.ones(60), np.zeros(60), draws=199).p_value == 1 / 200
    order = rng.permutation(12)
    assert sign_flip_test(a[order], b[order], draws=3000).p_value == drawn.p_value
    assert sign_flip_test(b, a, draws=3000).p_value == drawn.p_value  # two-sided


def noisy_runs(rng, effect, problems=30, samples=8):
    """Two runs whose problems share their difficulty; returns [problems, samples] each."""
    p = rng.beta(1, 1, problems)
    q = np.clip(p + effect, 0, 1)
    return (rng.random((problems, samples)) < p[:, None], rng.random((problems, samples)) < q[:, None])


@pytest.mark.parametrize("test", [sign_flip_test, bootstrap_test])
def test_size_under_the_null_and_power(test):
    rng = np.random.default_rng(1)
    settings = {"draws": 199} if test is sign_flip_test else {"resamples": 199}
    rejected = [test(*noisy_runs(rng, 0.0), seed=i, **settings).p_value <= 0.05 for i in range(400)]
    assert 0.02 <= np.mean(rejected) <= 0.085
    found = [test(*noisy_runs(rng, 0.12), seed=i, **settings).p_value <= 0.05 for i in range(100)]
    assert np.mean(found) > 0.7


# --- bootstrap ------------------------------------------------------------------------------------------


def test_bootstrap_test_slow_loop():
    rng = np.random.default_rng(2)
    a, b = noisy_runs(rng, 0.08)
    found = bootstrap_test(a, b, seeds=[4])
    difference = a.mean(1) - b.mean(1)
    means = np.array([difference[rng.integers(30, size=30)].mean() for _ in range(5000)])
    assert (found.difference.low, found.difference.high) == pytest.approx(
        tuple(np.quantile(means, [0.025, 0.975])), abs=0.006
    )
    slow = np.mean(np.abs(means - difference.mean()) >= abs(difference.mean()))
    assert found.p_value == pytest.approx(slow, abs=0.02)
    assert found.difference.value == pytest.approx(difference.mean()) and found.difference.seeds == (4,)
    order = rng.permutation(30)
    again = bootstrap_test(a[order], b[order], seeds=[4])
    assert again.p_value == found.p_value and again.difference.low == pytest.approx(found.difference.low)


def test_bootstrap_test_is_never_zero_and_knows_no_difference():
    assert bootstrap_test([1.0, 0.9, 1.0], [0, 0, 0], resamples=99).p_value == 1 / 100
    same = bootstrap_test([0.1, 0.3], [0.1, 0.3])
    assert same.p_value == 1 and same.difference.low is None


# --- McNemar --------------------------------------------------------------------------------------------


def test_mcnemar_typed_in():
    a = [1] * 8 + [0] * 2 + [1] * 5 + [0] * 5 + [1, NAN]
    b = [0] * 8 + [1] * 2 + [1] * 5 + [0] * 5 + [NAN, 0]
    found = mcnemar_test(a, b)
    # 8 of 10 discordant: 2 * (C(10,0) + C(10,1) + C(10,2)) / 2^10
    assert found.p_value == pytest.approx(2 * (1 + 10 + 45) / 1024)
    assert "8 problems solved by a alone, 2 by b alone" in found.method
    assert found.difference.value == pytest.approx(6 / 20) and found.difference.n == 20
    assert mcnemar_test([1, 0], [1, 0]).p_value == 1


def test_mcnemar_is_the_sign_flip_test_of_single_samples():
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 2, (2, 12)).astype(float)
    assert mcnemar_test(a, b).p_value == pytest.approx(sign_flip_test(a, b).p_value)


@pytest.mark.parametrize("a", [[0.5, 1], [[1, 0], [0, 1]]])
def test_mcnemar_needs_single_samples(a):
    with pytest.raises(ValueError, match="a: allowed is one sample per problem"):
        mcnemar_test(a, [1, 0])


# --- normal approximation and seeds ---------------------------------------------------------------------

# IBPO's table 1 (data/paper/ibpo.yaml): mean and half width on three benchmarks, for two models
IBPO = [(85.3, 1.2), (75.3, 1.1), (62.6, 1.4), (93.8, 1.5), (75.3, 1.3), (80.4, 1.6)]
BASELINES = [
    [(77.1, 1.4), (64.6, 1.5), (55.6, 1.3), (90.1, 1.1), (70.9, 1.7), (75.9, 1.4)],
    [(78.2, 0.8), (65.3, 0.9), (56.4, 1.6), (90.6, 1.2), (71.4, 1.3), (76.5, 1.8)],
    [(78.3, 1.2), (65.2, 1.2), (56.7, 0.8), (90.7, 1.5), (71.9, 1.2), (76.3, 0.9)],
    [(77.9, 0.9), (66.1, 1.7), (57.1, 0.9), (91.5, 0.9), (71.6, 1.5), (77.2, 1.4)],
]


def printed(mean, half):
    return Estimate(mean, mean - half, mean + half, 5, "seeds", (0, 1, 2, 3, 4), "bootstrap over seeds")


def test_the_reading_of_ibpo_gives_what_it_states():
    # "statistically significant against all baselines under a normal-approximation test (p<0.01)"
    p = [
        normal_test(printed(*ours), printed(*theirs)).p_value
        for row in BASELINES
        for ours, theirs in zip(IBPO, row, strict=True)
    ]
    assert len(p) == 24 and max(p) == pytest.approx(0.00997, abs=1e-5) and max(p) < 0.01
    assert max(holm(p)) < 0.01  # and it survives the correction for 24 tests
    # with Student's t for 5 + 5 seeds, which the text does not use, the weakest would not be below 0.01
    z = stats.norm.isf(max(p) / 2)
    assert 2 * stats.t.sf(z, 8) == pytest.approx(0.0328, abs=1e-3)


def test_normal_test_typed_in():
    found = normal_test(interval(0.4, 0.6), interval(0.25, 0.35))
    error = math.hypot(0.1, 0.05) / 1.959964
    assert found.p_value == pytest.approx(math.erfc(0.2 / error / math.sqrt(2)))
    assert found.difference.value == pytest.approx(0.2)
    assert half_width(found.difference) == pytest.approx(math.hypot(0.1, 0.05))
    assert normal_test(interval(0.4, 0.6), interval(0.4, 0.6)).p_value == 1
    wider = normal_test(
        interval(0.4, 0.6), interval(0.25, 0.35), confidence=0.9
    )  # the same widths mean more noise
    assert wider.p_value > found.p_value


def test_a_test_needs_known_intervals():
    unknown = seed_interval([0.5], [0])
    for pair in ((unknown, interval(0, 1)), (interval(0, 1), interval(0.5, 0.5))):
        with pytest.raises(ValueError, match="unknown"):
            normal_test(*pair)


def test_seeds_alike_but_for_rounding_are_nothing_to_test(recwarn):
    """0.1 + 0.2 and 0.3: scipy would compute a p-value of their last bits, and warn."""
    with pytest.raises(ValueError, match="a test needs its width"):
        seed_tests([0.5, 0.6], [0.1 + 0.2, 0.3], [0, 1], [0, 1])
    assert not recwarn.list


def test_seed_tests():
    a, b = [0.61, 0.65, 0.60, 0.66, 0.63], [0.58, 0.61, 0.57, 0.60]
    found = seed_tests(a, b, range(5), [7, 8, 9, 10])
    welch = stats.ttest_ind(a, b, equal_var=False)
    assert found["welch"].p_value == pytest.approx(welch.pvalue)
    ends = welch.confidence_interval()
    assert (found["welch"].difference.low, found["welch"].difference.high) == pytest.approx(
        (ends.low, ends.high)
    )
    arms = [bootstrap_mean(x, range(len(x)), resamples=9999, n_unit="seeds") for x in (a, b)]
    assert found["normal"].p_value == pytest.approx(normal_test(*arms).p_value, rel=0.2)
    for name, test in found.items():
        assert test.difference.value == pytest.approx(np.mean(a) - np.mean(b)), name
        assert test.difference.n == 4 and test.difference.seeds == (0, 1, 2, 3, 4, 7, 8, 9, 10)
    rng = np.random.default_rng(0)
    slow = [rng.choice(a, 5).mean() - rng.choice(b, 4).mean() for _ in range(5000)]
    boot = found["bootstrap"].difference
    assert (boot.low, boot.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=0.003)
    # few seeds: the bootstrap and the normal approximation are bolder than they may be
    assert max(found["bootstrap"].p_value, found["normal"].p_value) < found["welch"].p_value
    # 64 evaluations of a seed are one value
    many = np.array(a)[:, None] + np.linspace(-0.1, 0.1, 64)
    assert seed_tests(many, b, range(5), range(4))["welch"].p_value == pytest.approx(welch.pvalue)


@pytest.mark.fault("interval-that-does-not-cover")
def test_five_seeds_by_bootstrap_reject_too_often():
    rng = np.random.default_rng(5)
    rejected = {"bootstrap": 0, "normal": 0, "welch": 0}
    for i in range(300):
        for name, test in seed_tests(
            *rng.normal(0.6, 0.02, (2, 5)), range(5), range(5), resamples=199, seed=i
        ).items():
            rejected[name] += test.p_value <= 0.05
    assert rejected["welch"] / 300 <= 0.075 < 0.08 <= rejected["normal"] / 300
    assert rejected["bootstrap"] > rejected["welch"]


@pytest.mark.parametrize("seeds", [[0], [0, 0], [0, 1, 2]])
def test_seed_tests_bad_input(seeds):
    with pytest.raises(ValueError, match="a has shape"):
        seed_tests([0.5, 0.6], [0.5, 0.6], seeds, [0, 1])
    with pytest.raises(ValueError, match="a: a seed has no value"):
        seed_tests([0.5, NAN], [0.5, 0.6], [0, 1], [0, 1])


# --- margins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "inferior", "same"),
    [
        (-0.01, 0.01, "supported", "supported"),
        (-0.02, 0.02, "supported", "supported"),
        (0.01, 0.05, "supported", "open"),
        (0.03, 0.05, "supported", "contradicted"),
        (-0.03, 0.05, "open", "open"),
        (-0.05, -0.03, "contradicted", "contradicted"),
    ],
)
def test_margins(low, high, inferior, same):
    estimate = interval(low, high)
    assert non_inferior(estimate, 0.02) == inferior and equivalent(estimate, 0.02) == same
    assert judge(estimate, at_least=-0.02) == inferior  # the rule that claims are judged by


def test_margins_of_the_unknown():
    for estimate in (seed_interval([0.5], [0]), interval(NAN, NAN)):
        assert non_inferior(estimate, 0.02) == equivalent(estimate, 0.02) == "open"
    for margin in (0, -0.02, math.inf, NAN):
        with pytest.raises(ValueError, match="margin"):
            non_inferior(interval(0, 1), margin)


def test_equivalence_is_two_one_sided_tests():
    rng = np.random.default_rng(6)
    for _ in range(40):
        difference = rng.normal(0.0, 0.05, 25)
        estimate = paired_difference(difference, np.zeros(25), confidence=0.9)
        below = stats.ttest_1samp(difference, -0.02, alternative="greater").pvalue
        above = stats.ttest_1samp(difference, 0.02, alternative="less").pvalue
        assert (equivalent(estimate, 0.02) == "supported") == (max(below, above) <= 0.05)


# --- many tests -----------------------------------------------------------------------------------------


def test_holm_typed_in():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.5, 0.9]), [1, 1])
    np.testing.assert_allclose(holm([0.2]), [0.2])
    assert holm(pd.Series([0.01, 0.02])).tolist() == [0.02, 0.02]
    for bad in ([], [1.5], [NAN], [[0.1]]):
        with pytest.raises(ValueError, match="p_values"):
            holm(bad)


def test_holm_holds_the_family():
    rng = np.random.default_rng(8)
    p = rng.random((2000, 12))
    assert np.mean([(holm(row) <= 0.05).any() for row in p]) == pytest.approx(0.05, abs=0.015)
    assert np.mean((p <= 0.05).any(1)) == pytest.approx(1 - 0.95**12, abs=0.03)


def test_multiplicity_note():
    assert (
        multiplicity_note(24, "holm") == "24 tests; p-values are adjusted by Holm's method over all of them."
    )
    assert "24 tests, not adjusted" in (note := multiplicity_note(24, "none")) and "0.71" in note
    for call in (lambda: multiplicity_note(0, "holm"), lambda: multiplicity_note(3, "bonferoni")):
        with pytest.raises(ValueError):
            call()
