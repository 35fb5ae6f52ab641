"""The surrogate's gradient by enumeration: by hand, by a slow loop, and through the objective itself."""

import itertools
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest

from rlvr.analysis.bounds import check_bounds
from rlvr.analysis.enumerated import Enumerated, profile, random_process
from rlvr.analysis.exactness import SETTINGS, moments
from rlvr.analysis.small_policies import token_mdp_policies
from rlvr.analysis.surrogate_gradient import credit, gradient_bias, prefix_states, surrogate_gradient
from rlvr.analysis.token_mdp import TokenMDP
from rlvr.reporting.figures_theory import figure_bounds, figure_gradient_bias, figure_lengths

ALL_THREE = TokenMDP((0, 0, 0), alpha_pi=0.75, vocabulary=2, length=3)  # reward 1 for aaa alone
ANY_ONE = TokenMDP((0,), alpha_pi=0.75, vocabulary=2, length=3)  # reward 1 but for bbb


def test_three_tokens_by_hand():
    """mu writes a with 1/2, pi with 3/4: the numbers that the theory notebook derives."""
    hard, easy = profile(ALL_THREE), profile(ANY_ONE)
    assert np.allclose(hard["value"], [3 / 16, 1 / 4, 19 / 64], atol=1e-15)
    assert np.allclose(easy["value"], [3 / 16, 1 / 8, 7 / 64], atol=1e-15)
    assert (hard.j_mu[1], easy.j_mu[1]) == pytest.approx((1 / 8, 7 / 8))
    assert (hard.j_pi[1], easy.j_pi[1]) == pytest.approx((27 / 64, 63 / 64))
    assert np.allclose(hard["variance"], [63 / 256, 7 / 16, 7 / 64 * (19 / 8) ** 2])
    bounds = check_bounds(ALL_THREE)
    assert np.allclose(bounds["bound"], [3 / 4, 1 / 4, 0])
    assert np.allclose(bounds["refined"], [11 / 32, 1 / 8, 0])


@pytest.mark.parametrize(
    ("horizon", "shares"), [(1, (4 / 9, 4 / 9, 4 / 9)), (2, (2 / 3, 2 / 3, 4 / 9)), (3, (1, 2 / 3, 4 / 9))]
)
def test_the_constant_trace_leaves_the_prefix_to_mu(horizon, shares):
    """Share of the exact gradient that the logits before tokens 1, 2 and 3 of aaa get; by hand."""
    exact = surrogate_gradient(ALL_THREE, 3, True)
    assert exact[[0, 1, 3]] == pytest.approx(27 / 256 * np.array([[1, -1]] * 3))  # states: nothing, a, aa
    found = surrogate_gradient(ALL_THREE, horizon)
    assert found[[0, 1, 3], 0] / exact[[0, 1, 3], 0] == pytest.approx(shares)
    assert not np.delete(found, [0, 1, 3], axis=0).any()  # what follows a b earns nothing


def slow_gradient(process, states, horizon, differentiated):
    """From the definitions alone, in plain Python: finite differences would need pi as a function."""
    rho, out = np.exp(process.log_ratio), {}
    n, length = rho.shape
    total, seen = {}, {}
    for i, t in itertools.product(range(n), range(length)):
        if process.tokens[i, t] >= 0:
            s, v = states[i, t], process.tokens[i, t]
            total[s] = total.get(s, 0.0) + process.prob_pi[i]
            seen[s, v] = seen.get((s, v), 0.0) + process.prob_pi[i]

    def trace(i, t):
        return math.prod(rho[i, j] for j in range(t + 1, min(t + horizon, length)))

    for i, t in itertools.product(range(n), range(length)):
        if process.tokens[i, t] < 0:
            continue
        weight = rho[i, t] * trace(i, t)
        if differentiated:
            weight += sum((rho[i, k] - 1) * trace(i, k) for k in range(max(0, t - horizon + 1), t))
        for s, v in seen:
            if s == states[i, t]:
                score = (v == process.tokens[i, t]) - seen[s, v] / total[s]
                out[s, v] = out.get((s, v), 0.0) + process.prob_mu[i] * process.reward[i] * weight * score
    return out


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("differentiated", [False, True])
def test_against_a_slow_loop(ends, differentiated):
    process = random_process(np.random.default_rng(4), vocabulary=3, length=4, distance=0.7, ends=ends)
    states = prefix_states(process)
    assert not credit(process, 2, differentiated)[~process.mask].any()
    for horizon in (1, 2, 3, 4, 9):
        found = surrogate_gradient(process, horizon, differentiated)
        slow = slow_gradient(process, states, horizon, differentiated)
        assert found.shape == (states[process.mask].max() + 1, 3)
        expected = np.zeros_like(found)
        for cell, value in slow.items():
            expected[cell] = value
        assert np.abs(found - expected).max() < 1e-13


def test_every_prefix_is_a_state():
    """Numbered position by position, in lexicographic order of the prefixes."""
    assert prefix_states(ALL_THREE).tolist() == [
        [0, 1, 3], [0, 1, 3], [0, 1, 4], [0, 1, 4], [0, 2, 5], [0, 2, 5], [0, 2, 6], [0, 2, 6],
    ]  # fmt: skip


def test_against_the_objective_itself():
    """Same means as the gradients of `objectives.nfpo`, whose advantage has the exact baseline."""
    mdp = TokenMDP((0, 1), alpha_pi=0.7, length=5)
    policy, mu = token_mdp_policies(mdp)
    frame = gradient_bias(mdp, policy.states.numpy())
    compared = 0
    for setting in SETTINGS:
        if setting.series in ("no clips", "no clips, full gradient"):
            found = moments(policy, mu[None], setting)
            column = "constant" if setting.series == "no clips" else "differentiated"
            horizon = min(setting.parameters["horizon"], 5)
            assert found["error"][0] / found["exact"][0] == pytest.approx(
                frame.loc[horizon, column], abs=1e-10
            )
            compared += 1
    assert compared == 8


def test_where_the_two_agree_and_what_is_left():
    mdp = TokenMDP((0, 1, 2), alpha_pi=0.6)
    states = token_mdp_policies(mdp)[0].states.numpy()
    frame = gradient_bias(mdp, states)
    assert frame.loc[1, "constant"] == frame.loc[1, "differentiated"]  # N = 1 has no trace
    assert frame.loc[7, "differentiated"] < 1e-12
    assert frame.loc[7, "left by constant"] == pytest.approx(0.5022, abs=5e-5)
    assert frame.loc[7, "constant"] == pytest.approx(0.3492, abs=5e-5)
    assert (frame.loc[1, ["left by constant", "left by differentiated"]] == 1).all()
    same = TokenMDP((0, 1), alpha_pi=0.5, length=4)  # pi = mu: any horizon is exact
    assert gradient_bias(same)[["constant", "differentiated"]].to_numpy().max() < 1e-12


def test_a_constant_reward_pushes_nothing():
    """So a baseline changes no mean here, and R stands for R - J(mu)."""
    mdp = TokenMDP((0, 1), length=4).enumerate()
    flat = Enumerated(mdp.tokens, mdp.prob_mu, mdp.log_ratio, np.ones(len(mdp.tokens)))
    for horizon, differentiated in itertools.product((1, 2, 4), (False, True)):
        assert np.abs(surrogate_gradient(flat, horizon, differentiated)).max() < 1e-15


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (np.zeros((3, 3), dtype=int), r"states has shape \(3, 3\): allowed is \(16, 4\), one per token"),
        (np.zeros((16, 4), dtype=int), "states: allowed are numberings of which pi is a function"),
    ],
)
def test_states_that_are_refused(states, message):
    mdp = TokenMDP((0, 1), vocabulary=2, length=4)
    with pytest.raises(ValueError, match=message):
        surrogate_gradient(mdp, 2, states=states)


def test_the_figures_draw_what_came_in():
    frames = {0.6: gradient_bias(TokenMDP((0, 1), alpha_pi=0.6, length=4))}
    fig = figure_gradient_bias(frames)
    (ax,) = fig.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert drawn["constant trace"] == pytest.approx(list(frames[0.6]["constant"]))
    assert drawn["differentiated trace"] == pytest.approx(list(frames[0.6]["differentiated"]))

    checked = check_bounds(ALL_THREE)
    fig = figure_bounds(checked, largest_gain=1.0)
    drawn = {line.get_label(): list(line.get_ydata()) for line in fig.axes[0].lines}
    assert drawn["stated bound"] == pytest.approx([3 / 4, 1 / 4])  # N = T, where all are 0, has no logarithm
    assert drawn["actual gap"] == pytest.approx([7 / 64, 3 / 64])

    panels = {title: {1: profile(ANY_ONE)["bias"], 3: profile(ALL_THREE)["bias"]} for title in "xy"}
    fig = figure_lengths(panels, "bias", neutral=0.0)
    for ax in fig.axes:
        assert [line.get_label() for line in ax.lines[1:]] == ["1", "3"]
        assert ax.lines[1].get_ydata() == pytest.approx([5 / 64, 1 / 64, 0])
    assert figure_lengths(panels, "bias", neutral=1.0, log=True).axes[0].get_yscale() == "log"
    plt.close("all")
