import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.advantages import group_relative
from rlvr.losses import AGGREGATIONS, aggregate
from rlvr.objectives import gspo
from rlvr.rewards import (
    accepted_corrections,
    best_correction,
    changed_token_mask,
    correction_reward,
    mask_truncated,
    overlong_penalty,
    recoverability,
    shaped_reward,
    unchanged_share,
)

NAN = float("nan")

# --- overlong -----------------------------------------------------------------------------------------


def test_overlong_typed_in():
    # the paper's lengths: 16384 expected, 4096 more until the punishment is full
    lengths = torch.tensor([0, 1, 16384, 16385, 17408, 18432, 20479, 20480, 20481, 30000])
    out = overlong_penalty(lengths, max_length=20480, buffer=4096)
    expected = [0, 0, 0, -1 / 4096, -0.25, -0.5, -4095 / 4096, -1, -1, -1]
    assert out.tolist() == expected
    assert overlong_penalty(lengths, 20480, 4096, penalty_factor=0.5).tolist() == [e / 2 for e in expected]
    assert out.dtype == torch.float32 and not torch.signbit(out[0])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 900), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_overlong_slow(buffer, more, length, factor):
    max_length = buffer + more - 1
    if length <= max_length - buffer:
        expected = 0.0
    elif length <= max_length:
        expected = (max_length - buffer - length) / buffer * factor
    else:
        expected = -factor
    out = overlong_penalty(torch.tensor([length]), max_length, buffer, factor)
    np.testing.assert_allclose(out, [expected], rtol=1e-6)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32])
def test_truncated_rows_leave_numerator_and_denominator(mode, dtype):
    g = torch.Generator().manual_seed(3)
    loss = torch.randn(6, 5, generator=g, dtype=torch.float64)
    mask = (torch.rand(6, 5, generator=g) < 0.7).to(dtype)
    mask[:, 0] = 1
    truncated = torch.tensor([False, True, True, False, True, False])
    filtered = mask_truncated(mask, truncated)
    assert filtered.dtype == dtype
    assert torch.equal(filtered[~truncated], mask[~truncated]) and not filtered[truncated].any()
    # half the rows truncated is a batch of the other half, not the same loss over twice the tokens
    torch.testing.assert_close(
        aggregate(loss, filtered, mode), aggregate(loss[~truncated], mask[~truncated], mode)
    )
    assert aggregate(loss, mask_truncated(mask, torch.ones(6, dtype=torch.bool)), mode) == 0
    assert torch.equal(mask_truncated(mask, torch.zeros(6, dtype=torch.bool)), mask)


# --- recoverability -----------------------------------------------------------------------------------

ACCURACY = torch.tensor([1.0, 0.0, 0.0, 0.0, NAN, 0.0])
CORRECTED = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [NAN, 1.0]])
REWRITE = torch.tensor([[0, 0], [0, 0], [0, 1], [0, 1], [0, 0], [0, 0]], dtype=torch.bool)
SHARE = torch.tensor([[0.9, 0.9], [0.8, 0.6], [0.7, 0.7], [0.5, 0.1], [0.9, 0.9], [NAN, 0.25]])


@pytest.mark.parametrize(
    ("variant", "reduce", "expected"),
    [
        ("indicator", "best", [0, 0.5, 0, 0, 0, 0.5]),
        ("indicator", "mean", [0, 0.25, 0, 0, 0, 0.5]),
        ("indicator", "first", [0, 0.5, 0, 0, 0, 0]),
        ("ratio", "best", [0, 0.8, 0, 0, 0, 0.25]),
        ("ratio", "mean", [0, 0.4, 0, 0, 0, 0.25]),
        ("ratio", "first", [0, 0.8, 0, 0, 0, 0]),
    ],
)
def test_recoverability_typed_in(variant, reduce, expected):
    phi = recoverability(ACCURACY, CORRECTED, REWRITE, SHARE, variant, reduce=reduce)
    np.testing.assert_allclose(phi, expected, rtol=1e-6)


def test_a_rewrite_counts_only_without_the_filter():
    assert accepted_corrections(ACCURACY, CORRECTED, REWRITE)[3].tolist() == [False, False]
    assert accepted_corrections(ACCURACY, CORRECTED)[3].tolist() == [False, True]
    assert recoverability(ACCURACY, CORRECTED)[3] == 0.5
    assert recoverability(ACCURACY, CORRECTED, scale=1.0)[3] == 1.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, NAN]),
            st.lists(
                st.tuples(st.sampled_from([0.0, 1.0, NAN]), st.booleans(), st.floats(0, 1)),
                min_size=3,
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["indicator", "ratio"]),
    st.sampled_from(["best", "mean", "first"]),
)
def test_recoverability_slow_loop(responses, variant, reduce):
    expected = []
    for r, corrections in responses:
        deltas = []
        for r_hat, rewrite, share in corrections:
            if math.isnan(r_hat) and reduce == "mean":
                continue
            good = r == 0 and r_hat == 1 and not rewrite
            deltas.append((share if variant == "ratio" else 0.5) * good)
        total = {"best": max, "first": lambda d: d[0], "mean": lambda d: sum(d) / len(d)}[reduce]
        expected.append(total(deltas) if deltas else 0.0)
    columns = [
        torch.tensor([[c[k] for c in corrections] for _, corrections in responses], dtype=dtype)
        for k, dtype in enumerate((torch.float64, torch.bool, torch.float64))
    ]
    phi = recoverability(torch.tensor([r for r, _ in responses]), *columns, variant=variant, reduce=reduce)
    np.testing.assert_allclose(phi, expected, rtol=1e-6)
    assert phi.dtype == (torch.float64 if variant == "ratio" else torch.float32)


def test_no_corrections_at_all():
    none = torch.zeros(2, 0)
    for variant, reduce in itertools.product(("indicator", "ratio"), ("best", "mean", "first")):
        assert recoverability(torch.zeros(2), none, None, none, variant, reduce=reduce).tolist() == [0, 0]
    assert best_correction(none.bool(), none).tolist() == [-1, -1]


def test_shaped_reward_typed_in():
    reward = torch.tensor([1.0, 0.0, 0.0, NAN])
    phi = torch.tensor([0.0, 0.5, 0.0, 0.0])
    np.testing.assert_allclose(shaped_reward(reward, phi), [1.0, 0.3, 0.0, NAN], rtol=1e-6)
    np.testing.assert_allclose(shaped_reward(reward, phi, 1.0), [1.0, 0.5, 0.0, NAN], rtol=1e-6)
    assert torch.equal(shaped_reward(reward[:3], phi[:3], 0.0), reward[:3])


def test_failed_corrections_are_not_punished():
    accuracy = torch.tensor([0.0, 0.0, 1.0])
    failed = recoverability(accuracy, torch.zeros(3, 4))
    assert torch.equal(shaped_reward(accuracy, failed), accuracy)


def test_shaping_ranks_right_over_recoverable_over_lost():
    accuracy = torch.tensor([1.0, 0.0, 0.0])
    phi = recoverability(accuracy, torch.tensor([[NAN], [1.0], [0.0]]))
    advantages = group_relative(shaped_reward(accuracy, phi), [0] * 3)
    assert advantages[0] > advantages[1] > advantages[2]
    # rewards 1, .3, 0: mean .43333, unbiased deviation .51316
    np.testing.assert_allclose(advantages, [1.104274, -0.259829, -0.844444], rtol=1e-5)


def test_correction_reward_typed_in():
    corrected = torch.tensor([[1.0, 1.0, 0.0, 0.0, NAN]])
    rewrite = torch.tensor([[False, True, False, True, True]])
    out = correction_reward(corrected, rewrite)
    np.testing.assert_array_equal(out, [[1.0, 0.5, 0.0, -0.5, NAN]])
    np.testing.assert_array_equal(correction_reward(corrected, rewrite, 0.0)[0], corrected[0])


# --- which tokens the mask variant trains -------------------------------------------------------------


def test_unchanged_share_counts_valid_tokens():
    unchanged = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(unchanged_share(unchanged, mask), [2 / 3, 1, 0], rtol=1e-6)
    two = torch.stack([unchanged, ~unchanged], dim=1)
    np.testing.assert_allclose(unchanged_share(two, mask), [[2 / 3, 1 / 3], [1, 0], [0, 0]], rtol=1e-6)


def test_best_correction_keeps_most_tokens():
    accepted = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 0], [0, 0, 1]], dtype=torch.bool)
    share = torch.tensor([[0.2, 0.6, 0.4], [0.9, 0.1, 0.1], [0.9, 0.9, 0.9], [0.0, NAN, 0.0]])
    assert best_correction(accepted, share).tolist() == [1, 1, -1, 2]
    # it is the correction that `best` rewards in the ratio variant
    phi = recoverability(torch.zeros(4), accepted.float(), None, share, "ratio")
    np.testing.assert_allclose(phi, [0.6, 0.1, 0.0, 0.0], rtol=1e-6)


def test_changed_token_mask_typed_in():
    unchanged = torch.tensor([[1, 0, 1, 0], [1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)
    recoverable = torch.tensor([True, False, True, True])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]])
    assert changed_token_mask(unchanged, recoverable, mask).int().tolist() == [
        [0, 1, 0, 0],
        [1, 1, 1, 0],  # not recoverable: all of it
        [0, 0, 0, 0],  # nothing changed: no gradient
        [1, 0, 1, 1],
    ]


def test_masked_gradient_spares_unchanged_tokens():
    old = torch.full((2, 3), -1.0)
    mask = torch.ones(2, 3, dtype=torch.bool)
    unchanged = torch.tensor([[True, True, False], [True, True, False]])
    tokens = changed_token_mask(unchanged, torch.tensor([True, False]), mask)
    log_prob = old.clone().requires_grad_()
    loss, _ = gspo(log_prob, old, torch.tensor([-1.0, -1.0]), tokens)
    loss.backward()
    assert (log_prob.grad != 0).tolist() == [[False, False, True], [True, True, True]]


# --- the paper's variance identity (E.2) --------------------------------------------------------------


def groups_with_probability(size, p, recover, recover_alone, scale):
    """All groups of ``size`` responses: (rewards r, phi, probability). Exchangeable, not independent.

    A response is right with probability ``p``; a wrong one is recovered with ``recover`` where the group
    has a right reference, else with ``recover_alone``.
    """
    for kinds in itertools.product("+r-", repeat=size):  # right, recovered, lost
        right = kinds.count("+")
        q = recover if right else recover_alone
        probability = p**right * (1 - p) ** (size - right)
        probability *= q ** kinds.count("r") * (1 - q) ** kinds.count("-")
        yield [float(k == "+") for k in kinds], [scale * (k == "r") for k in kinds], probability


@pytest.mark.parametrize("coding", [1.0, 2.0])  # r in {0, 1}, Y in {-1, 1}
@pytest.mark.parametrize(
    ("size", "p", "recover", "recover_alone"), [(2, 0.3, 0.6, 0.1), (4, 0.5, 0.7, 0.2), (5, 0.1, 0.4, 0.4)]
)
def test_variance_identity(coding, size, p, recover, recover_alone):
    outcomes = list(groups_with_probability(size, p, recover, recover_alone, scale=0.5))
    weight = np.array([w for *_, w in outcomes])
    assert weight.sum() == pytest.approx(1)
    rewards = coding * torch.tensor([r for r, _, _ in outcomes], dtype=torch.float64) - (coding - 1)
    phi = torch.tensor([f for _, f, _ in outcomes], dtype=torch.float64)
    groups = torch.arange(len(outcomes)).repeat_interleave(size)

    def covariance(a, b):
        return weight @ (a * b) - (weight @ a) * (weight @ b)

    def advantage_variance(weight_of_phi):
        shaped = shaped_reward(rewards.flatten(), phi.flatten(), weight_of_phi)
        advantages = group_relative(shaped, groups, std="none").reshape(-1, size)[:, 0].numpy()
        return covariance(advantages, advantages)

    y, f = rewards.numpy().T, phi.numpy().T
    c = covariance(y[0], f[1]) - covariance(y[0], f[0])
    v = covariance(f[0], f[0]) - covariance(f[0], f[1])
    base, factor = advantage_variance(0.0), 1 - 1 / size
    for lam in (0.1, 0.6, 1.2, 5.0):
        expected = base + factor * (lam**2 * v - 2 * lam * c)
        assert advantage_variance(lam) == pytest.approx(expected, abs=1e-12)
        assert (advantage_variance(lam) < base) == (lam < 2 * c / v)
    assert advantage_variance(2 * c / v) == pytest.approx(base, abs=1e-12)
    if (
        recover == recover_alone
    ):  # the local case: C_out = 0, Cov(Y, phi) = -2 p (1-p) m in the paper's coding
        m = 0.5 * recover
        assert covariance(y[0], f[1]) == pytest.approx(0, abs=1e-12)
        assert covariance(y[0], f[0]) == pytest.approx(-coding * p * (1 - p) * m, abs=1e-12)


def test_bound_on_the_weight_halves_with_rewards_in_0_1():
    # Local case with phi = s * Bernoulli(q) on wrong responses: 2 C / V = coding * p / (s (1 - (1-p) q)).
    # At p = .1, q = .12 it is .448 for r in {0, 1}: the default weight .6 raises the variance there.
    p, q, s = 0.1, 0.12, 0.5
    outcomes = list(groups_with_probability(3, p, q, q, s))
    weight = np.array([w for *_, w in outcomes])

    def variance(lam, coding):
        total = 0.0
        for (r, f, _), w in zip(outcomes, weight, strict=True):
            shaped = shaped_reward(coding * torch.tensor(r).double(), torch.tensor(f).double(), lam)
            total += w * float(group_relative(shaped, [0] * 3, std="none")[0]) ** 2
        return total

    bound = 2 * p / (s * (1 - (1 - p) * q))
    assert bound == pytest.approx(0.4484, abs=1e-4)
    assert variance(bound, 1.0) == pytest.approx(variance(0.0, 1.0), abs=1e-12)
    assert variance(2 * bound, 2.0) == pytest.approx(variance(0.0, 2.0), abs=1e-12)
    assert variance(0.6, 1.0) > variance(0.0, 1.0)
    assert variance(0.6, 2.0) < variance(0.0, 2.0)


# --- errors -------------------------------------------------------------------------------------------

MASK, LENGTHS = torch.ones(2, 3), torch.tensor([3, 5])
ZERO, FLAGS, ROWS = torch.zeros(2), torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: overlong_penalty(LENGTHS, 10, 0), "buffer=0"),
        (lambda: overlong_penalty(LENGTHS, 10, 11), "buffer=11"),
        (lambda: overlong_penalty(LENGTHS, 10, 5, -1.0), "penalty_factor=-1.0"),
        (lambda: overlong_penalty(LENGTHS, 10, 5, math.inf), "penalty_factor=inf"),
        (lambda: overlong_penalty(LENGTHS - 4, 10, 5), "lengths holds -1"),
        (lambda: overlong_penalty(LENGTHS.float(), 10, 5), "lengths"),
        (lambda: overlong_penalty([3, 5], 10, 5), "lengths"),
        (lambda: mask_truncated(MASK, torch.ones(3, dtype=torch.bool)), "truncated"),
        (lambda: mask_truncated(MASK, LENGTHS), "truncated"),
        (lambda: mask_truncated(MASK[0], torch.ones(3, dtype=torch.bool)), "response_mask"),
        (lambda: accepted_corrections(ZERO - 1, ROWS), "accuracy holds -1.0"),
        (lambda: accepted_corrections(ZERO, ROWS + 0.5), "corrected holds 0.5"),
        (lambda: accepted_corrections(ZERO, ROWS[:1]), "corrected"),
        (lambda: accepted_corrections(ZERO, ROWS, ROWS), "rewrite"),
        (lambda: recoverability(ZERO, ROWS, variant="mask"), "variant='mask'"),
        (lambda: recoverability(ZERO, ROWS, reduce="any"), "reduce='any'"),
        (lambda: recoverability(ZERO, ROWS, scale=1.5), "scale=1.5"),
        (lambda: recoverability(ZERO, ROWS, variant="ratio"), "unchanged_share is None"),
        (lambda: recoverability(ZERO, ROWS + 1, None, ROWS + 2, "ratio"), "unchanged_share holds 2.0"),
        (lambda: recoverability(ZERO, ROWS + 1, None, ROWS + NAN, "ratio"), "unchanged_share holds nan"),
        (lambda: unchanged_share(MASK, MASK), "unchanged"),
        (lambda: unchanged_share(FLAGS[:, :2], MASK), "unchanged"),
        (lambda: shaped_reward(ZERO, ROWS), "phi"),
        (lambda: shaped_reward(ZERO, ZERO + 2), "phi holds 2.0"),
        (lambda: shaped_reward(ZERO.long(), ZERO), "reward"),
        (lambda: shaped_reward(ZERO, ZERO, -0.1), "shaping_weight=-0.1"),
        (lambda: correction_reward(ROWS, FLAGS, -0.1), "rewrite_penalty=-0.1"),
        (lambda: correction_reward(ROWS, FLAGS[:1]), "rewrite"),
        (lambda: best_correction(ROWS, ROWS), "accepted"),
        (lambda: best_correction(FLAGS, ZERO), "unchanged_share"),
        (lambda: changed_token_mask(MASK, FLAGS[:, 0], MASK), "unchanged"),
        (lambda: changed_token_mask(FLAGS, FLAGS, MASK), "recoverable"),
    ],
)
def test_bad_input(call, name):
    with pytest.raises(ValueError, match=name):
        call()
