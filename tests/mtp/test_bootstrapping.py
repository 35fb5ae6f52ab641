"""Bias of n-step estimates: exact numbers, the slow sum over paths, and what the paper's B.2 gets wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlvr.analysis.bootstrapping import Process, bias_by_horizon, decay_per_step, decay_table, examples

HORIZONS = (1, 2, 3, 5, 8)


def random_process(seed, states=3, actions=2, gamma=0.9, ends=0.0):
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet(np.ones(states), (states, actions)) * (1 - ends)
    policy = rng.dirichlet(np.ones(actions), states)
    return Process(policy, transition, rng.normal(size=(states, actions)), gamma), rng.normal(size=states)


def paths(process, value, state, action, horizon):
    """Expected n-step return by listing every path of states and actions."""
    states, actions = process.policy.shape
    total = process.reward[state, action]
    for steps in itertools.product(itertools.product(range(states), range(actions)), repeat=horizon - 1):
        chance, at = 1.0, (state, action)
        for s, a in steps:
            chance *= process.transition[*at, s] * process.policy[s, a]
            at = (s, a)
        if steps:
            total += chance * process.gamma ** len(steps) * process.reward[at]
        for s in range(states):
            total += chance * process.transition[*at, s] * process.gamma**horizon * value[s]
    for length in range(1, horizon - 1):  # rewards on the way
        for steps in itertools.product(itertools.product(range(states), range(actions)), repeat=length):
            chance, at = 1.0, (state, action)
            for s, a in steps:
                chance *= process.transition[*at, s] * process.policy[s, a]
                at = (s, a)
            total += chance * process.gamma**length * process.reward[at]
    return total


@pytest.mark.parametrize("ends", [0.0, 0.3])
def test_the_expected_return_is_the_sum_over_paths(ends):
    process, value = random_process(0, ends=ends)
    for horizon in (1, 2, 3, 4):
        found = process.n_step(value, horizon)
        for s, a in itertools.product(range(3), range(2)):
            assert found[s, a] == pytest.approx(paths(process, value, s, a, horizon))


def test_the_exact_value_is_the_limit_of_long_returns():
    process, error = random_process(1)
    exact = process.action_value(process.value)
    assert (process.policy * exact).sum(-1) == pytest.approx(process.value)
    assert process.n_step(error, 400) == pytest.approx(exact)
    for horizon in HORIZONS:
        assert process.n_step(process.value, horizon) == pytest.approx(exact), "no error, no bias"


@pytest.mark.parametrize("seed", range(8))
def test_bias_is_the_formula_and_within_its_bounds(seed):
    process, error = random_process(seed, gamma=0.8)
    frame = bias_by_horizon(process, error, HORIZONS)
    for n, row in frame.iterrows():
        tail = 0.8**n * process.transition @ np.linalg.matrix_power(process.chain, n - 1) @ error
        assert row["return_bias"] == pytest.approx(np.abs(tail).max())
        off = tail - error[:, None]
        assert row["advantage_bias"] == pytest.approx(np.abs(off).max())
        centred = process.policy * (tail - (process.policy * tail).sum(-1, keepdims=True))
        assert row["gradient_bias"] == pytest.approx(np.abs(centred).max(), abs=1e-12)
        assert row["return_bias"] <= row["tail_bound"] + 1e-12
        assert row["advantage_bias"] <= row["stated_bound"] + 1e-12
    assert frame["tail_bound"].tolist() == pytest.approx([0.8**n * np.abs(error).max() for n in HORIZONS])


def test_one_error_everywhere_attains_the_rate_while_the_advantage_gets_worse():
    frame = bias_by_horizon(*examples(gamma=0.9)["same error"], HORIZONS)
    assert frame["return_bias"].tolist() == pytest.approx([0.9**n for n in HORIZONS])
    assert decay_per_step(frame["return_bias"]) == pytest.approx(0.9)
    assert frame["advantage_bias"].tolist() == pytest.approx([1 - 0.9**n for n in HORIZONS])
    assert frame["gradient_bias"].max() < 1e-12


def test_opposite_errors_mix_and_the_tail_falls_faster():
    """Action 0 keeps an error's sign 0.6 of the time net, the chain 0.4: 0.9^n 0.6 0.4^(n-1)."""
    frame = bias_by_horizon(*examples(gamma=0.9)["opposite errors"], HORIZONS)
    assert frame["return_bias"].tolist() == pytest.approx([0.9**n * 0.6 * 0.4 ** (n - 1) for n in HORIZONS])
    # of the two actions 0.6 and 0.2: half their difference, times the chance 1/2 of each
    assert frame["gradient_bias"].tolist() == pytest.approx([0.9**n * 0.1 * 0.4 ** (n - 1) for n in HORIZONS])
    assert frame["advantage_bias"].iloc[-1] > frame["advantage_bias"].iloc[0] > 0.8


def test_without_a_discount_survival_decides():
    """Episodes go on with chance 0.8 or 0.6: 0.8 * 0.7^(n-1), whatever gamma^n = 1 says."""
    frame = bias_by_horizon(*examples()["episode, gamma = 1"], HORIZONS)
    assert frame["return_bias"].tolist() == pytest.approx([0.8 * 0.7 ** (n - 1) for n in HORIZONS])
    assert (frame["tail_bound"] == 1).all()


def test_the_table():
    table = decay_table((1, 2, 4, 8), gamma=0.9)
    assert table["return"].tolist() == pytest.approx([0.9, 0.36, 0.7])
    assert np.isnan(table.loc["same error", "gradient"])
    assert table["gradient"].tolist()[1:] == pytest.approx([0.36, 0.7])
    assert (table["advantage_last"] > table["advantage_first"]).all(), "no example's advantage gets better"


def test_what_is_no_process_is_refused():
    good = dict(policy=[[1.0]], transition=[[[0.5]]], reward=[[1.0]], gamma=1.0)
    assert Process(**good).value.tolist() == [2.0]
    for change, message in (
        ({"policy": [[0.5]]}, "policy: allowed"),
        ({"transition": [[[1.5]]]}, "transition: allowed are rows"),
        ({"transition": [[[1.0]]]}, "gamma=1.0: allowed is 1 only where every episode ends"),
        ({"reward": [1.0]}, r"reward \(1,\): allowed are \[S, A, S\]"),
        ({"gamma": 1.1}, "gamma=1.1"),
    ):
        with pytest.raises(ValueError, match=message):
            Process(**{**good, **change})
    with pytest.raises(ValueError, match=r"error=.*allowed are 1 finite numbers"):
        bias_by_horizon(Process(**good), [1.0, 2.0], (1,))
    with pytest.raises(ValueError, match="horizons=0"):
        bias_by_horizon(Process(**good), [1.0], (0,))
    with pytest.raises(ValueError, match="nothing to fall"):
        decay_per_step(bias_by_horizon(Process(**good), [0.0], (1, 2))["return_bias"])
    with pytest.raises(ValueError, match="stay=1"):
        examples(stay=1)
