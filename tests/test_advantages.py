import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.advantages import gae, group_relative

NAN = float("nan")


def slow_group_relative(rewards, groups, std, eps, leave_one_out):
    out = []
    for reward, group in zip(rewards, groups, strict=True):
        mates = [r for r, g in zip(rewards, groups, strict=True) if g == group and not math.isnan(r)]
        if math.isnan(reward) or len(set(mates)) < 2:
            out.append(0.0)
            continue
        n = len(mates)
        centred = reward - math.fsum(mates) / n
        if leave_one_out:
            centred = reward - (math.fsum(mates) - reward) / (n - 1)
        scale = {"unbiased": statistics.stdev, "biased": statistics.pstdev}.get(std)
        out.append(centred / (scale(mates) + eps) if scale else centred)
    return out


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 0.3, -0.5, NAN]), st.integers(0, 3)), min_size=1, max_size=20
    ),
    st.sampled_from(["unbiased", "biased", "none"]),
    st.booleans(),
)
def test_slow_loop(responses, std, leave_one_out):
    rewards, groups = [r for r, _ in responses], [g for _, g in responses]
    fast = group_relative(
        torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), std, leave_one_out=leave_one_out
    )
    np.testing.assert_allclose(
        fast, slow_group_relative(rewards, groups, std, 1e-6, leave_one_out), rtol=1e-9, atol=1e-12
    )


def test_typed_in():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0])
    half = 0.5
    for std, scale in (("unbiased", math.sqrt(1 / 3)), ("biased", 0.5)):
        out = group_relative(rewards, ["a"] * 4, std)
        np.testing.assert_allclose(out, [half / scale, -half / scale, -half / scale, half / scale], rtol=1e-5)
    np.testing.assert_allclose(group_relative(rewards, ["a"] * 4, "none"), [0.5, -0.5, -0.5, 0.5])
    loo = group_relative(rewards, ["a"] * 4, "none", leave_one_out=True)
    np.testing.assert_allclose(loo, [2 / 3, -2 / 3, -2 / 3, 2 / 3], rtol=1e-6)


@pytest.mark.parametrize("std", ["unbiased", "biased", "none"])
@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize(("value", "count"), [(0.7, 11), (0.7, 8), (0.3, 6), (0.95, 8), (100.1, 7), (5.0, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_are_exactly_zero(std, leave_one_out, value, count, dtype):
    # 0.7 eleven times in float32 gives 0.106 where the mean's rounding is divided by std + 1e-6.
    out = group_relative(
        torch.full((count,), value, dtype=dtype), [0] * count, std, leave_one_out=leave_one_out
    )
    assert out.tolist() == [0.0] * count
    mixed = group_relative(torch.tensor([value] * count + [1.0, 0.0]), [0] * count + [1, 1], std)
    assert mixed[:count].tolist() == [0.0] * count
    assert mixed[count] > 0


def test_missing_rewards():
    # one present of eight: nanstd of one value would be NaN and poison it
    assert group_relative(torch.tensor([1.0] + [NAN] * 7), [0] * 8).tolist() == [0.0] * 8
    assert group_relative(torch.tensor([NAN, NAN]), [0, 0]).tolist() == [0.0, 0.0]
    some = group_relative(torch.tensor([1.0, NAN, 0.0, NAN, 0.0]), [7] * 5)
    np.testing.assert_array_equal(some[[0, 2, 4]], group_relative(torch.tensor([1.0, 0.0, 0.0]), [7] * 3))
    assert some[[1, 3]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rewards", [[0.5, 0.5005, 0.5, 0.5], [1.0, 1.00001], [99.99, 100.0, 100.01, 100.02]])
def test_low_variance_groups_have_no_floor(rewards):
    # E[x^2] - mean^2 in float32 loses these; a floor under the variance changes them.
    single = torch.tensor(rewards)
    expected = slow_group_relative(single.tolist(), [0] * len(rewards), "unbiased", 1e-6, False)
    np.testing.assert_allclose(group_relative(single, [0] * len(rewards)), expected, rtol=1e-5)


def test_order_and_names_of_groups_do_not_matter():
    rewards = torch.tensor([1.0, 0.0, 0.2, 0.9, 0.4, 0.4])
    by_name = group_relative(rewards, ["x", "y", "x", "y", "x", "y"])
    by_number = group_relative(rewards, torch.tensor([50, -3, 50, -3, 50, -3]))
    assert torch.equal(by_name, by_number)
    order = torch.tensor([4, 1, 0, 5, 3, 2])
    torch.testing.assert_close(
        group_relative(rewards[order], torch.tensor([0, 1, 0, 1, 0, 1])[order]), by_name[order]
    )


def test_dtype():
    for given_dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        assert group_relative(torch.tensor([0.0, 1.0], dtype=given_dtype), [0, 0]).dtype == expected


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: group_relative(torch.zeros(2, 3), [0, 0]), "rewards"),
        (lambda: group_relative(torch.tensor([1, 0]), [0, 0]), "rewards"),
        (lambda: group_relative(torch.tensor([1.0, float("inf")]), [0, 0]), "rewards"),
        (lambda: group_relative(torch.zeros(3), [0, 0]), "group_ids"),
        (lambda: group_relative(torch.zeros(2), [0, 0], std="sample"), "std='sample'"),
        (lambda: group_relative(torch.zeros(2), [0, 0], eps=-1.0), "eps"),
        (lambda: gae(torch.zeros(2, 3), torch.zeros(2, 2), torch.ones(2, 3)), "values"),
        (lambda: gae(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 3), gamma=1.1), "gamma=1.1"),
    ],
)
def test_bad_input(call, name):
    with pytest.raises(ValueError, match=name):
        call()


def slow_gae(rewards, values, gamma, lam):
    """Sum of discounted temporal differences, one response without masked tokens."""
    values = [*values, 0.0]
    deltas = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(len(rewards))]
    return [
        sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))
    ]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.5, 1.0)])
def test_gae_skips_masked_tokens(gamma, lam):
    generator = torch.Generator().manual_seed(1)
    rewards = torch.randn(5, 9, generator=generator, dtype=torch.float64)
    values = torch.randn(5, 9, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 9, generator=generator) < 0.6
    mask[0], mask[1] = True, False
    dirty = [x.masked_fill(~mask, NAN) for x in (rewards, values)]
    advantages, returns = gae(*dirty, mask, gamma, lam)
    for i in range(5):
        valid = mask[i]
        expected = slow_gae(rewards[i, valid].tolist(), values[i, valid].tolist(), gamma, lam)
        np.testing.assert_allclose(advantages[i, valid], expected, rtol=1e-12)
        np.testing.assert_allclose(returns[i, valid], advantages[i, valid] + values[i, valid], rtol=1e-12)
    assert not advantages[~mask].any() and not returns[~mask].any()


def test_gae_with_terminal_reward_is_reward_minus_value():
    values = torch.tensor([[0.1, 0.2, 0.3]])
    advantages, returns = gae(torch.tensor([[0.0, 0.0, 1.0]]), values, torch.ones(1, 3))
    torch.testing.assert_close(advantages, 1 - values)
    torch.testing.assert_close(returns, torch.ones(1, 3))
