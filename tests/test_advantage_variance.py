"""Proposition E.4 of IBPO against exact enumeration, slow simulation, and what the algorithm does with it."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.advantages import group_relative
from rlvr.analysis.advantage_variance import (
    condition,
    group_moments,
    local_moments,
    shaped_variance,
    variance_by_weight,
    weight_limit,
)
from rlvr.analysis.enumerated_groups import EnumeratedGroups, enumerate_groups, recoverable
from rlvr.rewards import shaped_reward

NAN = float("nan")
WEIGHTS = (0.0, 0.3, 0.6, 1.2, 5.0)
conventions = st.sampled_from(["signed", "binary"])
unit = st.floats(0.0, 1.0)


def random_joint(seed, outcomes=12, size=3, exchangeable=True):
    """A joint distribution without structure; exchangeable ones hold every order of each outcome."""
    rng = np.random.default_rng(seed)
    accuracy = rng.integers(0, 2, (outcomes, size)).astype(float)
    phi, prob = rng.random((outcomes, size)), rng.dirichlet(np.ones(outcomes))
    if exchangeable:
        orders = [np.roll(np.arange(size), k)[::step] for k in range(size) for step in (1, -1)]
        accuracy = np.concatenate([accuracy[:, order] for order in orders])
        phi = np.concatenate([phi[:, order] for order in orders])
        prob = np.tile(prob, len(orders)) / len(orders)
    return EnumeratedGroups(accuracy, phi, prob)


def slow_variance(joint, weight, scale, i):
    """Var(A_i) by sums over outcomes."""
    values = []
    for r, f in zip(joint.accuracy, joint.phi, strict=True):
        shaped = [scale * a + (scale == 2) * -1 + weight * b for a, b in zip(r, f, strict=True)]
        values.append(shaped[i] - sum(shaped) / len(shaped))
    mean = sum(p * v for p, v in zip(joint.prob, values, strict=True))
    return sum(p * (v - mean) ** 2 for p, v in zip(joint.prob, values, strict=True))


# --- the closed form ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans(), conventions, st.floats(-3, 3))
def test_closed_form_is_exact(seed, size, exchangeable, convention, weight):
    joint = random_joint(seed, size=size, exchangeable=exchangeable)
    found = joint.covariances(convention)
    expected = shaped_variance(joint.variance(0.0, convention), found["C"], found["V"], size, weight)
    np.testing.assert_allclose(joint.variance(weight, convention), expected, rtol=1e-9, atol=1e-12)
    scale = {"signed": 2, "binary": 1}[convention]
    slow = [slow_variance(joint, weight, scale, i) for i in range(size)]
    np.testing.assert_allclose(np.mean(slow), expected, rtol=1e-9, atol=1e-12)
    if exchangeable:  # then every position has the same
        np.testing.assert_allclose(slow, expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), conventions)
def test_variance_falls_below_the_bound_and_rises_above(seed, convention):
    joint = random_joint(seed)
    found, plain = joint.covariances(convention), joint.variance(0.0, convention)
    assert found["V"] >= 0
    limit = weight_limit(found["C"], found["V"])
    if found["C"] <= 1e-6:
        for weight in (0.01, 1.0):
            assert joint.variance(weight, convention) > plain - 1e-9
        return
    for share, sign in ((0.01, -1), (0.5, -1), (0.99, -1), (1.01, 1), (3.0, 1)):
        assert np.sign(joint.variance(share * limit, convention) - plain) == sign
    np.testing.assert_allclose(joint.variance(limit, convention), plain)
    # the least variance is at C / V
    least = joint.variance(limit / 2, convention)
    assert all(joint.variance(w * limit, convention) >= least for w in (0.3, 0.49, 0.51, 0.8))


def test_conventions_halve_the_bound_and_say_the_same():
    joint = random_joint(3)
    signed, binary = joint.covariances("signed"), joint.covariances("binary")
    assert signed["V"] == binary["V"] and signed["C"] == pytest.approx(2 * binary["C"])
    # Y = 2 r - 1 with weight 2 lambda is twice Y = r with lambda
    for weight in WEIGHTS:
        assert joint.variance(2 * weight, "signed") == pytest.approx(4 * joint.variance(weight, "binary"))


def test_slow_simulation():
    # responses right with chance 0.3; a wrong one is recoverable with 0.6 if another is right, else 0.1
    rng = np.random.default_rng(7)
    size, groups, weight = 4, 20000, 0.6
    squares = {0.0: [], weight: []}
    for _ in range(groups):
        right = [rng.random() < 0.3 for _ in range(size)]
        chance = 0.6 if any(right) else 0.1
        phi = [0.0 if r else 0.5 * (rng.random() < chance) for r in right]
        for w, out in squares.items():
            reward = [(1 if r else -1) + w * f for r, f in zip(right, phi, strict=True)]
            mean = sum(reward) / size
            out.append(sum((x - mean) ** 2 for x in reward) / size)
    joint = enumerate_groups(size, 0.3, recoverable(0.1, 0.6))
    for w, out in squares.items():
        error = np.std(out) / groups**0.5
        assert abs(np.mean(out) - joint.variance(w)) < 4 * error
    accuracy, phi = joint.simulate(groups, 1)
    measured = group_moments(accuracy, phi).mean_square(weight)
    assert abs(measured.mean() - joint.variance(weight)) < 4 * measured.std() / groups**0.5


def test_references_couple_the_responses():
    # a right response helps the others: C_out > 0, which the local case leaves out
    coupled = enumerate_groups(3, 0.3, recoverable(0.1, 0.6)).covariances()
    assert coupled["C_out"] > 0.01 > 0 > coupled["C_in"]
    local = enumerate_groups(3, 0.3, recoverable(0.3)).covariances()
    assert local["C_out"] == pytest.approx(0, abs=1e-15)


# --- the local case -------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(unit, unit, unit, st.integers(1, 3), conventions)
def test_lemma_against_enumeration(p, q, value, size, convention):
    joint = enumerate_groups(size, p, recoverable(q, phi=value))
    found = joint.covariances(convention)
    c_in, c, v = local_moments(p, [value, 0.0], [q, 1 - q], convention)
    scale = {"signed": 2, "binary": 1}[convention]
    assert c_in == pytest.approx(-scale * p * (1 - p) * q * value, abs=1e-12)  # -2 p (1-p) m
    np.testing.assert_allclose(found["C_in"], c_in, atol=1e-12)
    if size > 1:
        np.testing.assert_allclose([found["C"], found["V"]], [c, v], atol=1e-12)


def test_lemma_typed_in():
    # p = 1/4, m = 1/2: E Y phi = -3/8, E Y = -1/2, E phi = 3/8
    covariance, c, v = local_moments(0.25, [1.0, 0.0], [0.5, 0.5])
    assert covariance == -3 / 8 + 1 / 2 * 3 / 8 == -2 * 0.25 * 0.75 * 0.5
    assert c == -covariance and v == 3 / 8 - (3 / 8) ** 2
    assert local_moments(0.25, [1.0, 0.0], [0.5, 0.5], "binary")[0] == covariance / 2
    assert weight_limit(c, v) == 2 * c / v and weight_limit(-1.0, 2.0) == 0 and np.isnan(weight_limit(0, 0))


def bound(p, q, value=0.5):
    """The docstring's formula, for Y = r."""
    return 2 * p / (value * (1 - (1 - p) * q))


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_bound_of_the_local_case(p, q):
    _, c, v = local_moments(p, [0.5, 0.0], [q, 1 - q], "binary")
    np.testing.assert_allclose(weight_limit(c, v), bound(p, q))


# --- what it does not say -------------------------------------------------------------------------------


def test_on_hard_problems_shaping_raises_the_variance():
    # the weight and success rate of the text: lambda = 0.6 with r in {0, 1}, 12 % of corrections succeed
    for p, falls in ((0.02, False), (0.1, False), (0.13, False), (0.14, True), (0.5, True)):
        joint = enumerate_groups(6, p, recoverable(0.12))
        assert (joint.variance(0.6, "binary") < joint.variance(0.0, "binary")) == falls, p
    nobody = enumerate_groups(6, 0.0, recoverable(0.12))
    assert nobody.variance(0.0) == 0 < nobody.variance(0.6)
    # late in training, 67 %, it takes fewer right responses
    assert bound(0.05, 0.67) < 0.6 < bound(0.06, 0.67)


@pytest.mark.parametrize("q", [0.5, 1.0], ids=["a coin", "always"])
def test_the_condition_needs_no_information(q):
    # phi that knows of a wrong response nothing but that it is wrong
    joint = enumerate_groups(4, 0.4, recoverable(q, phi=1.0))
    found = joint.covariances()
    assert found["C"] == pytest.approx(2 * 0.4 * 0.6 * q) and found["2C/V"] > 1
    assert joint.variance(0.6) < joint.variance(0.0)


def test_a_constant_phi_changes_no_normalised_advantage():
    accuracy = torch.tensor([1.0, 0, 0, 1, 0, 0, 0, 1], dtype=torch.float64)
    groups, phi = [0] * 4 + [1] * 4, 1 - accuracy
    plain = group_relative(accuracy, groups, eps=0.0)
    shaped = group_relative(shaped_reward(accuracy, phi, 0.6), groups, eps=0.0)
    torch.testing.assert_close(shaped, plain)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 0.6, 1.2]))
def test_normalised_advantages_keep_their_square(seed, weight):
    rng = np.random.default_rng(seed)
    accuracy = torch.tensor(rng.random((5, 6)) < 0.25).double()
    phi = 0.5 * (1 - accuracy) * torch.tensor(rng.random((5, 6)) < 0.4)
    ids = torch.arange(5).repeat_interleave(6)

    def squares(reward):
        return group_relative(reward.flatten(), ids, eps=0.0).view(5, 6).square().sum(1)

    plain, shaped = squares(accuracy), squares(accuracy + weight * phi)
    for before, after, r, f in zip(plain, shaped, accuracy, phi, strict=True):
        spread = len(set(zip(r.tolist(), f.tolist(), strict=True))) > 1
        assert after == pytest.approx(5.0 if spread else 0.0)  # n - 1
        assert before == pytest.approx(5.0 if 0 < r.sum() < 6 else 0.0)
        assert after >= before - 1e-9  # shaping takes no group's spread, and gives some one


# --- estimates ------------------------------------------------------------------------------------------


def data(seed, groups=40, size=5, missing=0.2):
    rng = np.random.default_rng(seed)
    accuracy = (rng.random((groups, size)) < rng.random((groups, 1))).astype(float)
    phi = (1 - accuracy) * rng.random((groups, size))
    accuracy[rng.random((groups, size)) < missing] = NAN
    return accuracy, phi


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), conventions, st.sampled_from(WEIGHTS))
def test_identity_on_data_slow_loop(seed, convention, weight):
    accuracy, phi = data(seed)
    moments = group_moments(accuracy, phi, convention)
    expected, rows = [], []
    for g, (row, shaping) in enumerate(zip(accuracy, phi, strict=True)):
        reward = [
            (2 * r - 1 if convention == "signed" else r) + weight * f
            for r, f in zip(row, shaping, strict=True)
            if not np.isnan(r)
        ]
        if len(reward) > 1:
            mean = sum(reward) / len(reward)
            expected.append(sum((x - mean) ** 2 for x in reward) / len(reward))
            rows.append(g)
    assert moments.index.tolist() == rows
    np.testing.assert_allclose(moments.mean_square(weight), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("convention", ["signed", "binary"])
def test_estimates_are_unbiased(convention):
    # expectation over every group that can occur
    for joint in (random_joint(4, exchangeable=False), enumerate_groups(4, 0.3, recoverable(0.2, 0.7))):
        moments = group_moments(joint.accuracy, joint.phi, convention)
        exact = joint.covariances(convention)
        # not exchangeable: the difference of means at two positions is no covariance
        shift = np.cov(np.stack([joint.prob @ joint.accuracy, joint.prob @ joint.phi]))
        shift = shift * np.array([[1, {"signed": 2, "binary": 1}[convention]]] * 2)
        assert joint.prob @ -moments.cross == pytest.approx(exact["C"] - shift[0, 1])
        assert joint.prob @ moments.phi == pytest.approx(exact["V"] + np.cov(joint.prob @ joint.phi))


def test_intervals_cover():
    joint = enumerate_groups(4, 0.3, recoverable(0.2, 0.7))
    exact, hits = joint.covariances("binary"), {"C": 0, "V": 0, "2C/V": 0}
    exact["ratio"], hits["ratio"] = joint.variance(0.6, "binary") / joint.variance(0.0, "binary"), 0
    for seed in range(120):
        moments = group_moments(*joint.simulate(80, seed), "binary")
        found = condition(moments, resamples=200, seed=seed)
        table = variance_by_weight(moments, [0.6], resamples=200, seed=seed)
        found["ratio"] = table[table.quantity == "ratio"].estimate.item()
        for name, estimate in found.items():
            hits[name] += estimate.low <= exact[name] <= estimate.high
    assert all(0.87 <= count / 120 <= 1 for count in hits.values()), hits


def test_prompts_of_different_difficulty_are_not_one_group():
    # between prompts Y and phi fall and rise together, whatever happens within one: pooled they mislead
    rng = np.random.default_rng(0)
    p = rng.choice([0.02, 0.98], size=(4000, 1))
    accuracy = (rng.random((4000, 4)) < p).astype(float)
    phi = (1 - accuracy) * (rng.random((4000, 4)) < 0.5)
    within = condition(group_moments(accuracy, phi, "binary"), resamples=200)["2C/V"]
    y, f = accuracy.ravel(), phi.ravel()
    pooled = -2 * np.cov(y, f)[0, 1] / np.var(f, ddof=1)
    assert pooled > 1 > 0.6 > within.high  # pooled: any weight up to 1 lowers it; in truth 0.6 raises it
    table = variance_by_weight(group_moments(accuracy, phi, "binary"), [0.6], resamples=200)
    assert table[table.quantity == "ratio"].low.item() > 1


def test_table_typed_in():
    # one group (right, wrong recoverable), one (wrong, wrong recoverable), one without spread
    accuracy, phi = np.array([[1.0, 0], [0, 0], [1, 1]]), np.array([[0.0, 1], [0, 1], [0, 0]])
    moments = group_moments(accuracy, phi, "binary")
    np.testing.assert_allclose(moments.cross, [-1 / 2, 0, 0])
    np.testing.assert_allclose(moments.phi, [1 / 2, 1 / 2, 0])
    table = variance_by_weight(moments, [0.0, 1.0, 2.0])
    values = table.pivot(index="weight", columns="quantity", values="value")
    # weight 1: the first group becomes (1, 1), the second (0, 1); weight 2: (1, 2) and (0, 2)
    np.testing.assert_allclose(values["variance"], [1 / 12, 1 / 12, 5 / 12])
    np.testing.assert_allclose(values["ratio"], values["variance"] * 12)
    found = condition(moments)
    assert found["C"].value == 1 / 6 and found["V"].value == 1 / 3 and found["2C/V"].value == 1


def test_order_and_missing_responses_change_nothing():
    accuracy, phi = data(5)
    moments = group_moments(accuracy, phi)
    columns = [3, 1, 0, 4, 2]
    wide = np.full((40, 3), NAN)
    for other in (
        group_moments(accuracy[:, columns], phi[:, columns]),
        group_moments(np.hstack([accuracy, wide]), np.hstack([phi, wide])),
        group_moments(1.0 * accuracy, phi + 10.0),  # the same shaping for all
    ):
        for name in ("size", "reward", "phi", "cross"):
            np.testing.assert_allclose(getattr(other, name), getattr(moments, name), atol=1e-12)
    order = np.random.default_rng(0).permutation(40)
    shuffled = group_moments(accuracy[order], phi[order])
    assert shuffled.mean_square(0.6).mean() == pytest.approx(moments.mean_square(0.6).mean())


def test_without_spread():
    moments = group_moments(np.ones((3, 4)), np.zeros((3, 4)))
    found = condition(moments)
    assert set(found) == {"C", "V"} and found["V"].low is None
    assert set(variance_by_weight(moments, [0.6]).quantity) == {"variance"}


def test_enumeration_lists_every_group():
    joint = enumerate_groups(3, 0.25, recoverable(0.5, 1.0, phi=0.5))
    seen = {}
    for r, f, chance in zip(joint.accuracy, joint.phi, joint.prob, strict=True):
        seen[tuple(r), tuple(f)] = seen.get((tuple(r), tuple(f)), 0) + chance
    assert seen[(0, 0, 0), (0.5, 0, 0)] == pytest.approx(0.75**3 / 8)
    assert seen[(1, 0, 0), (0, 0.5, 0.5)] == pytest.approx(0.25 * 0.75**2)
    assert seen[(1, 0, 0), (0, 0.0, 0.5)] == 0
    assert len({key[0] for key in seen}) == len(list(product((0, 1), repeat=3)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: group_moments([[0.5, 1]], [[0, 0]]), "accuracy holds 0.5"),
        (lambda: group_moments([[0, 1]], [[NAN, 0]]), "phi holds NaN"),
        (lambda: group_moments([0, 1], [0, 1]), "one common shape"),
        (lambda: group_moments([[0, 1]], [[0, 1]], "plain"), "convention='plain': allowed are 'signed'"),
        (lambda: group_moments([[0, 1]], [[0, 1]]).mean_square(NAN), "shaping_weight=nan"),
        (lambda: local_moments(1.5, [1], [1]), "accuracy=1.5"),
        (lambda: local_moments(0.5, [1, 0], [1]), "probabilities="),
        (lambda: local_moments(0.5, [1, 0], [0.5, 0.6]), "sum to 1.1"),
        (lambda: shaped_variance(1, 1, 1, 0, 0.6), "group_size=0"),
        (lambda: enumerate_groups(0, 0.5, recoverable(0.5)), "group_size=0"),
        (lambda: recoverable(1.5), "without=1.5"),
        (lambda: EnumeratedGroups(np.ones((1, 2)), np.ones((1, 2)), np.array([0.5])), "prob sums to 0.5"),
        (lambda: EnumeratedGroups(np.full((1, 2), 2.0), np.ones((1, 2)), np.ones(1)), "accuracy holds other"),
        (lambda: EnumeratedGroups(np.ones((1, 2)), np.ones((1, 3)), np.ones(1)), "one shape"),
        (lambda: EnumeratedGroups(np.ones((1, 2)), np.ones((1, 2)), np.ones(2)), "prob"),
        (lambda: enumerate_groups(2, 0.5, recoverable(0.5)).simulate(0, 1), "groups=0"),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
