import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.advantages import gae, group_relative, informative_groups, plan_sampling, whiten
from rlvr.rewards import overlong_penalty

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


@pytest.mark.fault("lonely-reward")
def test_missing_rewards():
    # one present of eight: nanstd of one value would be NaN and poison it
    assert group_relative(torch.tensor([1.0] + [NAN] * 7), [0] * 8).tolist() == [0.0] * 8
    assert group_relative(torch.tensor([NAN, NAN]), [0, 0]).tolist() == [0.0, 0.0]
    some = group_relative(torch.tensor([1.0, NAN, 0.0, NAN, 0.0]), [7] * 5)
    np.testing.assert_array_equal(some[[0, 2, 4]], group_relative(torch.tensor([1.0, 0.0, 0.0]), [7] * 3))
    assert some[[1, 3]].tolist() == [0.0, 0.0]


@pytest.mark.fault("variance-by-difference-of-squares", "floor-under-the-variance")
@pytest.mark.parametrize("rewards", [[0.5, 0.5005, 0.5, 0.5], [1.0, 1.00001], [99.99, 100.0, 100.01, 100.02]])
def test_low_variance_groups_have_no_floor(rewards):
    # E[x^2] - mean^2 in float32 loses these; a floor under the variance changes them.
    single = torch.tensor(rewards)
    expected = slow_group_relative(single.tolist(), [0] * len(rewards), "unbiased", 1e-6, False)
    np.testing.assert_allclose(group_relative(single, [0] * len(rewards)), expected, rtol=1e-5)


@pytest.mark.fault("floor-under-the-variance")
def test_low_variance_typed_in():
    # .00025 / .000251 of +-1/2 and 3/2; with a variance floored at 1e-6 the largest would be .37466
    out = group_relative(torch.tensor([0.5, 0.5005, 0.5, 0.5]), [0] * 4)
    np.testing.assert_allclose(out, [-0.498008, 1.494024, -0.498008, -0.498008], rtol=2e-6)
    out = group_relative(torch.tensor([99.99, 100.0, 100.01, 100.02], dtype=torch.float64), [0] * 4)
    np.testing.assert_allclose(out, [-1.161805, -0.387268, 0.387268, 1.161805], rtol=1e-5)


@pytest.mark.fault("variance-by-difference-of-squares")
def test_one_outlier_among_equal_rewards():
    # The seven others deviate by 0; E[x^2] - mean^2 in float32 makes that 4.6e-4 and the advantage -2e3.
    rewards = torch.tensor([0.0] + [0.95] * 7)
    low, high = -7 / math.sqrt(8), 1 / math.sqrt(8)
    np.testing.assert_allclose(group_relative(rewards, [0] * 8), [low] + [high] * 7, rtol=1e-5)
    for_others = group_relative(rewards, [0] * 8, leave_one_out=True)
    np.testing.assert_allclose(for_others, [low * 8 / 7] + [high * 8 / 7] * 7, rtol=1e-5)


def test_eps_is_added_to_the_deviation():
    rewards = torch.tensor([0.0, 0.002], dtype=torch.float64)
    for eps, expected in ((1e-6, 0.7066073), (1e-4, 0.6604085), (0.0, 0.7071068)):
        np.testing.assert_allclose(group_relative(rewards, [0, 0], eps=eps), [-expected, expected], rtol=1e-6)


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
        (lambda: group_relative(torch.zeros(2), torch.zeros(2, 1)), "group_ids"),
        (lambda: group_relative(torch.zeros(2), list(torch.zeros(2))), "group_ids"),
        (lambda: informative_groups(torch.tensor([0.0, 0.0, 0.0, -0.5]), [0] * 4), "accuracy holds -0.5"),
        (lambda: informative_groups(torch.zeros(2, 2), [0, 0]), "accuracy"),
        (lambda: informative_groups([0.0, 1.0], [0, 0]), "accuracy"),
        (lambda: informative_groups(torch.zeros(3), [0, 0]), "group_ids"),
        (lambda: plan_sampling(-1, 4, 1), "kept=-1"),
        (lambda: plan_sampling(1, 0, 1), "target=0"),
        (lambda: plan_sampling(1, 4.0, 1), "target=4.0"),
        (lambda: plan_sampling(1, 4, True), "generated_batches=True"),
        (lambda: plan_sampling(1, 4, 1, 0), r"max_batches=0: allowed are None"),
        (lambda: whiten(torch.zeros(2, 3), torch.ones(2, 2)), "response_mask"),
        (lambda: whiten(torch.zeros(2), torch.ones(2)), "advantages"),
        (lambda: whiten(torch.zeros(2, 3), torch.ones(2, 3), std="sample"), "std='sample'"),
        (lambda: whiten(torch.zeros(2, 3), torch.ones(2, 3), eps=-1e-8), "eps=-1e-08"),
        (lambda: whiten(torch.full((1, 2), NAN), torch.ones(1, 2)), "advantages holds nan"),
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


# --- dynamic sampling ---------------------------------------------------------------------------------


def test_informative_groups_typed_in():
    accuracy = torch.tensor([1, 0, 0, 0, 1, 1, 0, 1.0])
    found = informative_groups(accuracy, ["b", "a", "b", "a", "c", "c", "d", "d"])
    assert found.mask.tolist() == [True, False, True, False, False, False, True, True]
    assert found.group_ids == ("b", "d")


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0, NAN]), st.integers(0, 3)), max_size=20),
    st.booleans(),
)
def test_informative_groups_slow_loop(responses, as_tensor):
    accuracy = torch.tensor([a for a, _ in responses])
    groups = [g for _, g in responses]
    found = informative_groups(accuracy, torch.tensor(groups) if as_tensor else groups)
    kept = []
    for group in groups:
        answers = {a for a, g in responses if g == group and not math.isnan(a)}
        if answers == {0.0, 1.0} and group not in kept:
            kept.append(group)
    assert list(found.group_ids) == kept
    assert found.mask.tolist() == [g in kept and not math.isnan(a) for a, g in responses]
    # what is dropped has no advantage, whatever the estimator
    assert torch.equal(found.mask, group_relative(accuracy.reshape(-1), groups) != 0)


@pytest.mark.fault("filter-on-the-shaped-reward")
def test_all_wrong_group_does_not_pass_by_its_overlong_penalty():
    accuracy, group = torch.zeros(4), ["hard"] * 4
    shaped = accuracy + overlong_penalty(torch.tensor([10, 20, 30, 95]), max_length=100, buffer=10)
    assert shaped.tolist() == [0.0, 0.0, 0.0, -0.5]
    assert group_relative(shaped, group)[0] > 0  # the harm: a short wrong answer is encouraged
    assert informative_groups(accuracy, group).group_ids == ()
    with pytest.raises(ValueError, match=r"accuracy holds -0\.5"):
        informative_groups(shaped, group)


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32, torch.float64])
def test_informative_groups_takes_any_verdict(dtype):
    found = informative_groups(torch.tensor([1, 0, 1, 1], dtype=dtype), torch.tensor([7, 7, 3, 3]))
    assert found.mask.tolist() == [True, True, False, False]
    assert found.group_ids == (7,)


def test_groups_of_one_and_missing_mates_are_not_informative():
    found = informative_groups(torch.tensor([1.0, NAN, 1.0, 0.0, NAN]), [0, 0, 1, 2, 2])
    assert not found.mask.any() and found.group_ids == ()


@pytest.mark.parametrize(
    ("arguments", "status", "missing"),
    [
        ((0, 4, 0), "sample", 4),
        ((3, 4, 9), "sample", 1),
        ((4, 4, 1), "done", 0),
        ((6, 4, 1), "done", 0),
        ((3, 4, 2, 3), "sample", 1),
        ((3, 4, 3, 3), "exhausted", 1),
        ((4, 4, 3, 3), "done", 0),
        ((0, 1, 7, 3), "exhausted", 1),
    ],
)
def test_plan_sampling(arguments, status, missing):
    plan = plan_sampling(*arguments)
    assert (plan.status, plan.missing) == (status, missing)
    assert bool(plan.message) == (status == "exhausted")


def test_exhausted_sampling_says_why():
    message = plan_sampling(3, 32, 10, max_batches=10).message
    for part in ("10 generated batches", "3 of target=32", "max_batches=10"):
        assert part in message


def test_sampling_loop_fills_a_batch():
    accuracies = [[1, 1, 0, 0], [1, 0, 1, 1], [0, 1, 1, 0]]  # two prompts of two responses each
    kept, batches = [], 0
    while (plan := plan_sampling(len(kept), 3, batches, max_batches=3)).status == "sample":
        groups = [(batches, prompt) for prompt in (0, 0, 1, 1)]
        kept += informative_groups(torch.tensor(accuracies[batches]), groups).group_ids
        batches += 1
    assert plan.status == "done" and batches == 3
    assert kept == [(1, 0), (2, 0), (2, 1)]


# --- whitening ----------------------------------------------------------------------------------------


def test_whiten_typed_in():
    advantages = torch.tensor([[1.0, 2.0, NAN], [3.0, 6.0, 99.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    # mean 3, squares 4 + 1 + 0 + 9 = 14
    for std, scale in (("unbiased", math.sqrt(14 / 3)), ("biased", math.sqrt(14 / 4)), ("none", 1.0)):
        out = whiten(advantages, mask, std)
        expected = [[-2 / scale, -1 / scale, 0.0], [0.0, 3 / scale, 0.0]]
        np.testing.assert_allclose(out, expected, rtol=1e-8, atol=0)
    # eps stands inside the root: sqrt(14 / 4 + 5.5) = 3
    np.testing.assert_allclose(
        whiten(advantages, mask, "biased", eps=5.5)[0], [-2 / 3, -1 / 3, 0], rtol=1e-12
    )


@pytest.mark.parametrize("std", ["unbiased", "biased", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_whiten_without_spread_is_exactly_zero(std, dtype):
    def zeros(advantages, mask):
        out = whiten(advantages, mask, std)
        assert out.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        return out.shape == advantages.shape and not out.any()

    ones = torch.ones(3, 4, dtype=torch.long)
    for value in (0.7, 0.1, 100.1, 0.0):
        assert zeros(torch.full((3, 4), value, dtype=dtype), ones)
    one_token = torch.zeros(3, 4)
    one_token[1, 2] = 1
    noise = torch.arange(12.0).reshape(3, 4).to(dtype)
    assert zeros(noise, one_token)
    assert zeros(noise, torch.zeros(3, 4))
    assert zeros(noise[:, :0], ones[:, :0])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["unbiased", "biased"]))
def test_whiten_slow_loop_and_moments(seed, std):
    g = torch.Generator().manual_seed(seed)
    advantages = 5 + 3 * torch.randn(4, 7, generator=g, dtype=torch.float64)
    mask = torch.rand(4, 7, generator=g) < 0.6
    mask[0, :3] = True
    out = whiten(advantages.masked_fill(~mask, NAN), mask, std)
    kept = advantages[mask].tolist()
    mean = math.fsum(kept) / len(kept)
    variance = (statistics.variance if std == "unbiased" else statistics.pvariance)(kept)
    np.testing.assert_allclose(
        out[mask], [(a - mean) / math.sqrt(variance + 1e-8) for a in kept], rtol=1e-9, atol=1e-12
    )
    assert not out[~mask].any()
    # neither an offset, a scale nor padding changes it
    wider = torch.nn.functional.pad(100 + 7 * advantages, (0, 5), value=1e9)
    padded = whiten(wider, torch.nn.functional.pad(mask, (0, 5)), std)
    torch.testing.assert_close(padded[:, :7], out, rtol=1e-7, atol=1e-9)


def test_whiten_far_from_zero():
    # steps of 1/64 around 1e5 in float32: E[x^2] - mean^2 would lose all of them
    advantages = torch.tensor([[1e5 + k / 64 for k in range(4)]])
    expected = (np.arange(4) - 1.5) / math.sqrt(5 / 3)
    np.testing.assert_allclose(whiten(advantages, torch.ones(1, 4), eps=0.0)[0], expected, rtol=1e-6)


def test_gae_then_whiten_keeps_the_returns():
    g = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(3, 5, generator=g), torch.randn(3, 5, generator=g)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]])
    advantages, returns = gae(rewards, values, mask, 0.9, 0.8)
    whitened = whiten(advantages, mask)
    valid = mask.bool()
    torch.testing.assert_close(returns[valid], (advantages + values)[valid])
    assert abs(whitened[valid].mean()) < 1e-6 and abs(whitened[valid].std() - 1) < 1e-6
