"""Proposition 1 and Theorem 1: the bounds hold where all is exact, and their constants are not slack."""

from collections import defaultdict

import numpy as np
import pytest
from scipy.stats import binom

from rlvr.analysis.bounds import (
    check_bounds,
    check_many,
    coverage,
    hoeffding_penalty,
    max_ratio_deviation,
    max_reward,
    max_state_tv,
    refined_truncation_bound,
    sample_bound,
    sharp_process,
    state_tv,
    theorem_total,
    truncation_bound,
)
from rlvr.analysis.enumerated import Enumerated, profile, random_process, random_processes, trace_sum
from rlvr.analysis.token_mdp import READINGS, TokenMDP, demonstration_pattern

SLACK = 1 + 1e-9  # rounding in sums that cancel


@pytest.fixture(scope="module")
def random_checks():
    """300 random processes other than the notebook's, both sides of every bound at every horizon."""
    return check_many({str(i): process for i, process in enumerate(random_processes(300, seed=11))})


@pytest.fixture(scope="module")
def coin():
    """One token, X = +-eps with equal chance: the variable for which Hoeffding's range is exact."""
    return Enumerated(
        np.array([[0], [1]]), np.array([0.5, 0.5]), np.log1p(np.array([[0.3], [-0.3]])), np.ones(2)
    )


def slow_state_tv(process):
    """Total variation per reached prefix, from dictionaries of next-token probabilities."""
    tables = defaultdict(lambda: defaultdict(lambda: np.zeros(2)))
    for row, p_mu, p_pi in zip(process.tokens, process.prob_mu, process.prob_pi, strict=True):
        for t in range(int((row >= 0).sum())):
            tables[tuple(row[:t])][row[t]] += (p_mu, p_pi)
    by_position = defaultdict(list)
    for prefix, table in tables.items():
        both = np.array(list(table.values()))
        mu, pi = (both / both.sum(axis=0)).T
        by_position[len(prefix)].append(np.abs(mu - pi).sum() / 2)
    return by_position


@pytest.mark.parametrize("ends", [False, True])
def test_total_variation_matches_next_token_tables(ends):
    process = random_process(np.random.default_rng(5), vocabulary=3, length=4, distance=0.7, ends=ends)
    slow = slow_state_tv(process)
    for t, fast in enumerate(state_tv(process)):
        np.testing.assert_allclose(np.sort(fast), np.sort(slow[t]), rtol=0, atol=1e-12)
    assert max_state_tv(process) == pytest.approx(max(map(max, slow.values())), abs=1e-12)


@pytest.mark.parametrize("reading", READINGS)
def test_distances_of_the_papers_mdp(reading):
    mdp = TokenMDP((0, 1, 2), after_completion=reading)
    assert max_state_tv(mdp) == pytest.approx(0.3, abs=1e-12)
    assert max_ratio_deviation(mdp) == pytest.approx(0.6, abs=1e-12)
    assert max_reward(mdp) == 1


def test_typed_bounds():
    stated = [truncation_bound(1, 0.3, 7, n) for n in range(1, 8)]
    np.testing.assert_allclose(stated, [7.56, 5.4, 3.6, 2.16, 1.08, 0.36, 0], rtol=0, atol=1e-12)
    assert refined_truncation_bound(1, 0.3, 7, 6) == pytest.approx(0.18)
    assert refined_truncation_bound(1, 0.3, 7, 5) == pytest.approx(0.6 * (0.3 + 0.51))
    assert sample_bound(1, 0.6, 7, 3) == pytest.approx(10.752)
    assert hoeffding_penalty(1, 0.6, 7, 1, samples=64, eta=0.05) == pytest.approx(1.42600, abs=5e-5)
    assert hoeffding_penalty(2, 0.6, 7, 2, samples=256, eta=0.05) == pytest.approx(1.6 * 1.42600, abs=1e-4)


def test_truncation_bound_holds_on_random_processes(random_checks):
    inner = random_checks[random_checks["N"] < random_checks["T"]]
    assert len(inner) > 600 and inner["delta"].min() < 0.02 and inner["delta"].max() > 0.9
    assert (inner["ratio"] <= SLACK).all()
    assert (inner["worst_ratio"] <= SLACK).all()
    assert (inner["gap"] <= inner["worst_gap"] * SLACK).all()
    assert (inner["gap"] <= inner["refined"] * SLACK).all()
    assert (inner["refined"] <= inner["bound"] * SLACK).all()
    exact = random_checks[random_checks["N"] == random_checks["T"]]
    assert exact[["gap", "worst_gap", "bound"]].to_numpy().max() < 1e-12


def test_samples_stay_within_their_bound(random_checks):
    assert (random_checks["sample_ratio"] <= SLACK).all()


@pytest.mark.parametrize("reading", READINGS)
def test_bounds_hold_on_the_papers_mdp(reading):
    for length in range(1, 8):
        frame = check_bounds(TokenMDP(demonstration_pattern(length), after_completion=reading))
        assert (frame[["ratio", "worst_ratio", "sample_ratio"]].fillna(0) <= SLACK).all().all()
        assert (frame["gap"].iloc[:-1] <= frame["refined"].iloc[:-1]).all()


def test_worst_reward_is_attained_and_not_exceeded():
    rng = np.random.default_rng(2)
    process = random_process(rng, vocabulary=3, length=4, distance=1)
    omitted = trace_sum(process, 4) - trace_sum(process, 2)
    for reward in [np.sign(omitted), *rng.choice([-1.0, 1.0], size=(50, len(omitted)))]:
        row = check_bounds(Enumerated(process.tokens, process.prob_mu, process.log_ratio, reward)).loc[2]
        assert row["gap"] <= row["worst_gap"] * SLACK
        if np.array_equal(reward, np.sign(omitted)):
            assert row["gap"] == pytest.approx(row["worst_gap"], rel=1e-12)


def test_constant_of_the_truncation_bound_cannot_be_improved():
    for horizon in (1, 2, 3):
        ratios = [
            check_bounds(sharp_process(4, delta, rare=delta**2, horizon=horizon)).loc[horizon, "ratio"]
            for delta in (0.1, 0.01, 0.001)
        ]
        assert 0.85 < ratios[0] <= ratios[1] * SLACK and ratios[1] <= ratios[2] * SLACK
        assert 0.998 < ratios[2] <= SLACK
    papers = check_bounds(TokenMDP((0, 1, 2)))
    assert papers.loc[6, "worst_ratio"] == pytest.approx(1, abs=1e-12)


def test_range_of_a_sample_is_attained_at_the_first_horizon(coin):
    assert check_bounds(coin).loc[1, "sample_ratio"] == pytest.approx(1, abs=1e-12)
    assert check_bounds(TokenMDP((0, 1, 2))).loc[1, "sample_ratio"] == pytest.approx(1, abs=1e-12)


def test_simulated_coverage_of_a_coin_is_its_binomial_probability(coin):
    result = coverage(coin, 1, samples=64, eta=0.05, repeats=20_000, seed=0)
    heads = np.arange(65)
    within = np.abs(2 * heads - 64) / 64 <= np.sqrt(2 * np.log(40) / 64)
    exact = binom.pmf(heads, 64, 0.5)[within].sum()
    assert 0.95 < exact < 0.999
    assert result["covered"] == pytest.approx(exact, abs=0.004)
    assert 0.6 < result["quantile"] < 0.8


def test_theorem_covers_on_the_papers_mdp():
    for horizon in (1, 4, 7):
        result = coverage(TokenMDP((0, 1, 2)), horizon, samples=64, eta=0.05, repeats=1000, seed=0)
        assert result["covered"] >= 0.95 and result["improvement"] >= 0.95
        assert result == coverage(TokenMDP((0, 1, 2)), horizon, samples=64, eta=0.05, repeats=1000, seed=0)
    assert result["quantile"] < 0.05  # at N = T the penalty overstates the error more than 20 times


def test_theorem_total_adds_its_parts():
    total = theorem_total(TokenMDP((0, 1, 2)), samples=64, eta=0.05)
    assert total[1] == pytest.approx(7.56 + 1.42600, abs=5e-5)
    assert [int(theorem_total(TokenMDP((0, 1, 2)), m, 0.05).idxmin()) for m in (64, 256, 1024)] == [3, 4, 5]


def test_neither_bias_nor_variance_is_monotone_in_general():
    rng = np.random.default_rng(0)
    frames = [profile(random_process(rng, vocabulary=3, length=4, distance=0.05)) for _ in range(60)]
    variance_falls = np.mean([f["variance"][2] < f["variance"][1] for f in frames])
    bias_rises = np.mean([(np.diff(f["bias"].abs()) > 1e-9).any() for f in frames])
    assert 0.2 < variance_falls < 0.8 and bias_rises > 0.2


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="horizon=8: must be 1"):
        truncation_bound(1, 0.3, 7, 8)
    with pytest.raises(ValueError, match="horizon=0"):
        sample_bound(1, 0.3, 7, 0)
    with pytest.raises(ValueError, match="samples=0"):
        hoeffding_penalty(1, 0.3, 7, 1, samples=0, eta=0.05)
    with pytest.raises(ValueError, match="eta=1"):
        hoeffding_penalty(1, 0.3, 7, 1, samples=5, eta=1)
    with pytest.raises(ValueError, match="sum to less than 1"):
        sharp_process(3, 0.9, rare=0.2)
