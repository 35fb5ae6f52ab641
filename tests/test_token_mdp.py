"""The N-step surrogate by enumeration: against a slow loop, a closed form, and typed-in numbers."""

import itertools
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.stats import binom

from rlvr.analysis.enumerated import (
    Enumerated,
    as_verifiable,
    best_horizon,
    interactions,
    is_bias_monotone,
    is_variance_monotone,
    monotone_shares,
    profile,
    random_process,
    random_processes,
    root_mean_square_error,
    surrogate,
    trace_sum,
)
from rlvr.analysis.token_mdp import (
    READINGS,
    TokenMDP,
    demonstration_pattern,
    interactions_closed_form,
    survey,
)
from rlvr.reporting.figures_theory import figure_forward_trace, figure_token_mdp, trace_weights


@pytest.fixture(scope="module")
def all_patterns():
    """All 117 patterns of length 2-4 under both readings."""
    return survey([2, 3, 4])


@pytest.fixture(scope="module")
def processes():
    return random_processes(60, seed=7)


def slow_moments(mdp: TokenMDP, horizon: int):
    """L^(N), variance, J(mu), J(pi) in plain Python, trajectory by trajectory, from the definition alone."""

    def policy(alpha, prefix):
        seen = 0
        for symbol in prefix:
            if seen < len(mdp.pattern) and symbol == mdp.pattern[seen]:
                seen += 1
        if seen == len(mdp.pattern) and mdp.after_completion == "uniform":
            return [1 / mdp.vocabulary] * mdp.vocabulary
        favoured = mdp.pattern[min(seen, len(mdp.pattern) - 1)]
        rest = (1 - alpha) / (mdp.vocabulary - 1)
        return [alpha if symbol == favoured else rest for symbol in range(mdp.vocabulary)]

    def is_subsequence(sequence):
        position = iter(sequence)
        return all(symbol in position for symbol in mdp.pattern)

    first = second = j_mu = j_pi = 0.0
    for sequence in itertools.product(range(mdp.vocabulary), repeat=mdp.length):
        p_mu, p_pi, rho = 1.0, 1.0, []
        for t, symbol in enumerate(sequence):
            mu, pi = (policy(a, sequence[:t])[symbol] for a in (mdp.alpha_mu, mdp.alpha_pi))
            p_mu, p_pi = p_mu * mu, p_pi * pi
            rho.append(pi / mu)
        if not is_subsequence(sequence):
            continue
        sample = 0.0
        for t in range(mdp.length):
            trace = 1.0
            for j in range(t + 1, min(t + horizon, mdp.length)):
                trace *= rho[j]
            sample += (rho[t] - 1) * trace
        first, second = first + p_mu * sample, second + p_mu * sample**2
        j_mu, j_pi = j_mu + p_mu, j_pi + p_pi
    return first, second - first**2, j_mu, j_pi


@pytest.mark.parametrize(
    "mdp",
    [
        TokenMDP((0, 1, 2), length=5),
        TokenMDP((2, 2), length=5, after_completion="uniform"),
        TokenMDP((1, 0), alpha_mu=0.6, alpha_pi=0.3, vocabulary=2, length=4, after_completion="uniform"),
        TokenMDP((3,), alpha_mu=0.2, alpha_pi=0.9, vocabulary=4, length=4),
    ],
)
def test_enumeration_matches_a_slow_loop(mdp):
    for horizon in range(1, mdp.length + 1):
        fast = surrogate(mdp, horizon)
        moments = (fast.value, fast.variance, fast.j_mu, fast.j_pi)
        np.testing.assert_allclose(moments, slow_moments(mdp, horizon), rtol=1e-12, atol=1e-13)


def test_demonstration_gives_the_typed_numbers():
    frame = profile(TokenMDP((0, 1, 2)))
    assert frame["j_mu"].iloc[0] == pytest.approx(0.773438, abs=5e-7)
    assert frame["j_pi"].iloc[0] == pytest.approx(0.995328, abs=5e-7)
    bias = [(0.270, 3), (0.186, 3), (0.107, 3), (0.0496, 4), (0.0177, 4), (0.0040, 4), (0, 12)]
    for value, (typed, digits) in zip(frame["bias"], bias, strict=True):
        assert value == pytest.approx(typed, abs=0.5 * 10**-digits)
    variance = [1.12, 2.31, 3.55, 4.72, 5.80, 6.73, 7.34]
    np.testing.assert_allclose(frame["variance"], variance, rtol=0, atol=0.005)


def test_rewards_are_binomial_tails():
    for length in range(1, 8):
        frame = profile(TokenMDP(demonstration_pattern(length)))
        assert frame["j_mu"].iloc[0] == pytest.approx(binom.sf(length - 1, 7, 0.5), abs=1e-14)
        assert frame["j_pi"].iloc[0] == pytest.approx(binom.sf(length - 1, 7, 0.8), abs=1e-14)


def test_full_horizon_is_exact_for_every_pattern(all_patterns):
    assert len(all_patterns) == 2 * 117
    assert all_patterns["identity_error"].max() < 1e-12


def test_only_the_length_of_the_pattern_matters(all_patterns):
    numbers = [c for c in all_patterns if c.startswith(("bias_", "variance_")) and c[-1].isdigit()]
    spread = all_patterns.groupby(["after_completion", "length"])[numbers].agg(np.ptp)
    assert spread.to_numpy().max() < 1e-12


def test_renaming_symbols_changes_nothing():
    one, two = (profile(TokenMDP(p, length=6)) for p in ((0, 1, 1, 2), (2, 0, 0, 1)))
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-13)


def test_where_the_monotone_picture_holds(all_patterns):
    holds = all_patterns.groupby("after_completion")[["bias_monotone", "variance_monotone"]].mean()
    assert holds.loc["stay"].tolist() == [1.0, 1.0]
    assert holds.loc["uniform"].tolist() == [1.0, 0.0]
    tie = profile(TokenMDP((0, 1, 2, 0)))["bias"]
    assert tie[1] == pytest.approx(tie[2], abs=1e-13) and tie[2] > tie[3] + 0.01
    long = {length: profile(TokenMDP(demonstration_pattern(length))) for length in (5, 6, 7)}
    assert [is_bias_monotone(frame) for frame in long.values()] == [False, True, True]
    assert np.sign(long[5]["bias"].iloc[:6]).tolist() == [-1, -1, 1, 1, 1, 1]


@pytest.mark.parametrize("alphas", [(0.5, 0.8), (0.3, 0.9), (0.7, 0.4)])
@pytest.mark.parametrize("reading", READINGS)
def test_bias_has_a_closed_form(alphas, reading):
    for length in range(1, 7):
        mdp = TokenMDP(demonstration_pattern(length), *alphas, after_completion=reading, length=6)
        frame = profile(mdp)
        closed = interactions_closed_form(mdp)
        np.testing.assert_allclose(interactions(frame), closed, rtol=0, atol=1e-13)
        np.testing.assert_allclose(
            frame["bias"].iloc[:-1], -np.cumsum(closed[::-1])[::-1], rtol=0, atol=1e-13
        )


def test_ratios_telescope_on_every_trajectory(processes):
    for process in processes:
        ratio = np.exp(process.log_ratio.sum(axis=1))
        np.testing.assert_allclose(trace_sum(process, process.length), ratio - 1, rtol=1e-12, atol=1e-12)
        assert surrogate(process, process.length).bias == pytest.approx(0, abs=1e-12)


def test_first_horizon_is_the_local_surrogate(processes):
    for process in processes:
        local = process.prob_mu @ (process.reward * (np.exp(process.log_ratio) - 1).sum(axis=1))
        assert surrogate(process, 1).value == pytest.approx(local, abs=1e-13)


def test_a_constant_reward_adds_nothing(processes):
    for process in processes[:10]:
        shifted = Enumerated(process.tokens, process.prob_mu, process.log_ratio, process.reward + 5)
        np.testing.assert_allclose(profile(shifted)["value"], profile(process)["value"], rtol=0, atol=1e-11)


def test_equal_policies_give_zero():
    process = random_process(np.random.default_rng(0), vocabulary=3, length=3, distance=0)
    assert profile(process)[["value", "variance", "bias"]].abs().to_numpy().max() < 1e-15


def test_ended_responses_are_whole_trajectories():
    process = random_process(np.random.default_rng(3), vocabulary=3, length=4, distance=1, ends=True)
    assert len(process.tokens) == 2**4 + sum(
        2**t for t in range(4)
    )  # never ended, or ended after 1..4 tokens
    lengths = process.mask.sum(axis=1)
    assert set(lengths) == {1, 2, 3, 4}
    for horizon in (1, 2, 3, 4):
        sums = []
        for row, length in zip(np.exp(process.log_ratio), lengths, strict=True):
            rho = row[:length]
            sums.append(sum((rho[t] - 1) * math.prod(rho[t + 1 : t + horizon]) for t in range(length)))
        np.testing.assert_allclose(trace_sum(process, horizon), sums, rtol=0, atol=1e-13)


def test_padding_changes_nothing():
    process = random_process(np.random.default_rng(4), vocabulary=2, length=4, distance=1, ends=True)
    n = len(process.tokens)
    padded = Enumerated(
        np.hstack([process.tokens, np.full((n, 3), -1)]),
        process.prob_mu,
        np.hstack([process.log_ratio, np.zeros((n, 3))]),
        process.reward,
    )
    np.testing.assert_allclose(profile(padded).iloc[:4], profile(process), rtol=0, atol=1e-14)


def test_best_horizon_grows_with_the_sample():
    frame = profile(TokenMDP((0, 1, 2)))
    assert [best_horizon(frame, samples) for samples in (64, 256, 1024)] == [3, 4, 5]


def test_root_mean_square_error_is_what_sampling_gives():
    process = TokenMDP((0, 1, 2)).enumerate()
    sample = process.reward * trace_sum(process, 3)
    counts = np.random.default_rng(0).multinomial(64, process.prob_mu, size=4000)
    simulated = np.sqrt(np.mean((counts @ sample / 64 - process.gain) ** 2))
    assert root_mean_square_error(profile(process), 64)[3] == pytest.approx(simulated, rel=0.03)


def test_random_processes_repeat_and_differ():
    first, again, other = (
        random_processes(4, seed=1),
        random_processes(4, seed=1),
        random_processes(4, seed=2),
    )
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.log_ratio, two.log_ratio)
        np.testing.assert_array_equal(one.reward, two.reward)
    assert not np.array_equal(first[0].reward[:4], other[0].reward[:4])


def test_verifiable_reward_is_binary_and_never_lost(processes):
    for process in processes:
        solved = as_verifiable(process)
        assert set(np.unique(solved.reward)) <= {0.0, 1.0} and solved.gain >= 0
        positive = process.reward > 0
        assert np.array_equal(solved.reward, positive) or np.array_equal(solved.reward, ~positive)


def test_shares_count_what_the_checks_say(processes):
    shares = monotone_shares(processes)
    assert shares["processes"].sum() == len(processes)
    for length, row in shares.iterrows():
        frames = [profile(p) for p in processes if p.length == length]
        assert row["bias_never_rises"] == pytest.approx(np.mean([is_bias_monotone(f) for f in frames]))
        higher = [f["variance"][length] > f["variance"][1] for f in frames]
        assert row["variance_higher_at_T"] == pytest.approx(np.mean(higher))


def test_variance_check_is_strict_and_bias_check_allows_ties():
    frame = profile(TokenMDP((0, 1, 2)))
    flat = frame.assign(variance=1.0, bias=0.5)
    assert not is_variance_monotone(flat) and is_bias_monotone(flat)
    assert not is_bias_monotone(frame.iloc[::-1]) and not is_variance_monotone(frame.iloc[::-1])


def test_figures_draw_what_they_are_given():
    ratios = (1.1, 0.5, 4.0, 1.25)
    weights = trace_weights(ratios, (1, 2, 4))
    for row in weights.itertuples():
        trace = math.prod(ratios[row.t : row.t + row.N - 1])
        assert (row.ratio, row.trace) == pytest.approx((ratios[row.t - 1], trace))
        assert row.weight == pytest.approx(ratios[row.t - 1] * trace)
    schematic = figure_forward_trace(weights, token=2)
    shown = [text.get_text() for text in schematic.axes[1].texts]
    assert shown == [f"{weight:.2f}" for weight in weights["weight"]]
    with pytest.raises(ValueError, match="token=5"):
        figure_forward_trace(weights, token=5)
    profiles = {
        reading: profile(TokenMDP((0, 1), after_completion=reading, length=4)) for reading in READINGS
    }
    left, right = figure_token_mdp(profiles).axes
    np.testing.assert_allclose(left.lines[0].get_ydata(), profiles["stay"]["value"] + 11 / 16, rtol=1e-14)
    for line, reading in zip(right.lines, READINGS, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), profiles[reading]["variance"])
    plt.close("all")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pattern": ()}, "pattern="),
        ({"pattern": (0, 3)}, "0..2"),
        ({"pattern": (0,) * 8}, "must be 1..7"),
        ({"pattern": (0,), "alpha_mu": 1.0}, "alpha_mu=1.0"),
        ({"pattern": (0,), "after_completion": "stop"}, "after_completion='stop'"),
        ({"pattern": (0,), "vocabulary": 1}, "vocabulary=1"),
    ],
)
def test_bad_token_mdps_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        TokenMDP(**settings)


def test_bad_processes_are_named():
    tokens, ratio = np.array([[0], [1]]), np.log([[1.2], [0.8]])
    half, reward = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    Enumerated(tokens, half, ratio, reward)
    with pytest.raises(ValueError, match="under mu"):
        Enumerated(tokens, half / 2, ratio, reward)
    with pytest.raises(ValueError, match="under pi"):
        Enumerated(tokens, half, ratio + 0.1, reward)
    with pytest.raises(ValueError, match="reward has shape"):
        Enumerated(tokens, half, ratio, reward[:1])
    with pytest.raises(ValueError, match="finite"):
        Enumerated(tokens, half, np.array([[np.inf], [0.0]]), reward)
    with pytest.raises(ValueError, match="tokens is -1"):
        Enumerated(np.array([[0], [-1]]), half, ratio, reward)
    with pytest.raises(ValueError, match="samples=0"):
        root_mean_square_error(profile(Enumerated(tokens, half, ratio, reward)), 0)
    with pytest.raises(ValueError, match="distance=-1"):
        random_process(np.random.default_rng(0), vocabulary=2, length=2, distance=-1)
