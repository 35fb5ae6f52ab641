"""Rewards and advantages against verl's, and each place where the two differ on purpose."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer", reason="verl is not installed: pip install -e '.[verl]'")

from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.utils.torch_functional import masked_whiten
from verl.workers.reward_manager.dapo import DAPORewardManager

from rlvr.advantages import gae, group_relative, whiten
from rlvr.rewards import overlong_penalty

pytestmark = pytest.mark.verl
DTYPES = [torch.float32, torch.float64]


def by_verl(estimator, rewards, groups, **settings):
    """Advantage per response, as verl computes it from rewards on the last of three tokens."""
    on_tokens = torch.zeros(len(rewards), 3, dtype=rewards.dtype)
    on_tokens[:, -1] = rewards
    mask = torch.ones(len(rewards), 3, dtype=torch.long)
    function = getattr(core_algos, f"compute_{estimator}_outcome_advantage")
    advantages, _ = function(on_tokens, mask, np.array(groups, dtype=object), **settings)
    assert torch.equal(advantages[:, 0], advantages[:, -1])
    return advantages[:, 0]


def random_groups(seed, dtype, binary=False):
    """Rewards of groups of 2 to 5 responses in random order, none of them without spread."""
    g = torch.Generator().manual_seed(seed)
    groups = [f"prompt {k}" for k, size in enumerate((4, 2, 3, 5, 2)) for _ in range(size)]
    rewards = torch.randn(len(groups), generator=g, dtype=torch.float64)
    if binary:
        rewards = torch.tensor([float(k == 0 or name != groups[k - 1]) for k, name in enumerate(groups)])
    order = torch.randperm(len(groups), generator=g)
    return rewards[order].to(dtype), [groups[k] for k in order]


def random_tokens(seed, dtype, holes=True):
    g = torch.Generator().manual_seed(seed)
    rewards, values = (torch.randn(6, 9, generator=g, dtype=torch.float64).to(dtype) for _ in range(2))
    lengths = torch.tensor([9, 1, 4, 7, 0, 9]).unsqueeze(-1)
    mask = torch.arange(9) < lengths
    if holes:
        mask &= torch.rand(6, 9, generator=g) < 0.7
        mask[0, :2] = True
    return rewards, values, mask


# --- the same numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("estimator", "settings", "ours"),
    [
        ("grpo", {}, {}),
        ("grpo", {"norm_adv_by_std_in_grpo": False}, {"std": "none"}),
        ("grpo", {"epsilon": 1e-4}, {"eps": 1e-4}),
        ("grpo_vectorized", {}, {}),
        ("rloo", {}, {"std": "none", "leave_one_out": True}),
        ("rloo_vectorized", {}, {"std": "none", "leave_one_out": True}),
    ],
    ids=["grpo", "grpo-centred", "grpo-eps", "grpo_vectorized", "rloo", "rloo_vectorized"],
)
def test_group_relative(estimator, settings, ours, seed, binary, dtype):
    rewards, groups = random_groups(seed, dtype, binary)
    expected = by_verl(estimator, rewards, groups, **settings)
    # grpo_vectorized works in float32 whatever it is given
    out = group_relative(rewards, groups, **ours)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0)])
def test_gae_and_whitening(gamma, lam, holes, dtype):
    rewards, values, mask = random_tokens(1, dtype, holes)
    expected, expected_returns = core_algos.compute_gae_advantage_return(
        rewards, values, mask.to(dtype), gamma, lam
    )
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    torch.testing.assert_close(returns[mask], expected_returns[mask], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(whiten(advantages, mask)[mask], expected[mask], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_whitening(seed, dtype):
    advantages, _, mask = random_tokens(seed, dtype)
    expected = masked_whiten(advantages, mask.to(dtype))
    torch.testing.assert_close(whiten(advantages, mask)[mask], expected[mask], rtol=1e-6, atol=1e-6)


def verl_penalties(lengths, max_length, buffer, factor):
    """What verl's DAPO reward manager adds to a score of 0, for responses of these lengths."""
    width = max(lengths)
    attention = (torch.arange(width) < torch.tensor(lengths).unsqueeze(-1)).long()
    rows = len(lengths)
    batch = DataProto.from_dict(
        tensors={
            "prompts": torch.ones(rows, 1, dtype=torch.long),
            "responses": torch.ones(rows, width, dtype=torch.long),
            "attention_mask": torch.cat([torch.ones(rows, 1, dtype=torch.long), attention], dim=1),
        },
        non_tensors={
            "reward_model": np.array([{"ground_truth": ""}] * rows, dtype=object),
            "data_source": np.array(["none"] * rows, dtype=object),
        },
    )
    manager = DAPORewardManager(
        tokenizer=SimpleNamespace(decode=lambda *_, **__: "", eos_token="</s>"),
        num_examine=0,
        compute_score=lambda **_: 0.0,
        max_resp_len=max_length,
        overlong_buffer_cfg=SimpleNamespace(enable=True, len=buffer, penalty_factor=factor, log=False),
    )
    return manager(batch).sum(-1)


@pytest.mark.parametrize(("max_length", "buffer", "factor"), [(40, 16, 1.0), (40, 40, 0.5), (37, 3, 2.0)])
def test_overlong_penalty(max_length, buffer, factor):
    lengths = list(range(1, max_length + 1))
    out = overlong_penalty(torch.tensor(lengths), max_length, buffer, factor)
    expected = verl_penalties(lengths, max_length, buffer, factor)
    assert expected.min() == -factor
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)


# --- other numbers, on purpose ------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["grpo", "grpo_vectorized", "rloo", "rloo_vectorized"])
def test_group_of_one(estimator):
    rewards, groups = torch.tensor([9.1, 1.0, 0.0]), ["one", "two", "two"]
    ours = group_relative(rewards, groups, leave_one_out="rloo" in estimator)
    # the raw score, as if it were an advantage; only rloo_vectorized gives 0
    expected = 0.0 if estimator == "rloo_vectorized" else 9.1
    assert by_verl(estimator, rewards, groups)[0].item() == pytest.approx(expected, rel=1e-5)
    assert ours[0] == 0


EQUAL = [(value, count) for value in (0.7, 0.3, 0.95) for count in range(5, 14)]


@pytest.mark.parametrize("estimator", ["grpo", "grpo_vectorized"])
def test_equal_rewards(estimator):
    # The rounding of the mean over std + 1e-6: .106 for .7 eleven times. Which of them suffer follows the
    # order of summation, hence several.
    verl, ours = [], []
    for value, count in EQUAL:
        rewards = torch.full((count,), value)
        verl.append(by_verl(estimator, rewards, [0] * count).abs().max().item())
        ours += group_relative(rewards, [0] * count).tolist()
    assert max(verl) > 0.02
    assert set(ours) == {0.0}


def test_equal_advantages():
    verl, ours = [], []
    for value, count in EQUAL:
        advantages, mask = torch.full((1, count), value), torch.ones(1, count)
        verl.append(masked_whiten(advantages, mask).abs().max().item())
        ours += whiten(advantages, mask)[0].tolist()
    assert max(verl) > 1e-4  # rounding over the root of eps
    assert set(ours) == {0.0}


def test_low_variance_group():
    # verl rounds the mean to float32 before it takes the deviations: 1.49408, 4e-5 too much
    rewards = torch.tensor([0.5, 0.5005, 0.5, 0.5])
    exact = 1.5 * 0.00025 / 0.000251
    assert group_relative(rewards, [0] * 4)[1].item() == pytest.approx(exact, abs=1e-6)
    assert 1e-5 < abs(by_verl("grpo", rewards, [0] * 4)[1].item() - exact) < 2e-4


def test_padding_and_holes_are_whitened():
    rewards, values, mask = random_tokens(2, torch.float64)
    expected, _ = core_algos.compute_gae_advantage_return(rewards, values, mask.double(), 1.0, 1.0)
    assert (expected[~mask] != 0).all()
    assert not whiten(gae(rewards, values, mask)[0], mask)[~mask].any()


def test_returns_at_holes():
    # verl: the advantage carried over the hole, plus the value that stands in it
    rewards, values = torch.tensor([[0.0, 5.0, 1.0]]), torch.tensor([[0.5, 7.0, 0.25]])
    mask = torch.tensor([[1, 0, 1]])
    _, expected = core_algos.compute_gae_advantage_return(rewards, values, mask, 1.0, 1.0)
    _, returns = gae(rewards, values, mask)
    assert expected.tolist() == [[1.0, 7.75, 1.0]]
    assert returns.tolist() == [[1.0, 0.0, 1.0]]


def test_nan_in_padding():
    rewards, values, mask = random_tokens(3, torch.float32)
    dirty = values.masked_fill(~mask, float("nan"))
    expected, _ = core_algos.compute_gae_advantage_return(rewards, dirty, mask.long(), 1.0, 1.0)
    assert expected[mask].isnan().any()
    clean = whiten(gae(rewards, values, mask)[0], mask)
    assert torch.equal(whiten(gae(rewards, dirty, mask)[0], mask), clean)


def test_one_valid_token():
    mask = torch.tensor([[1, 0]])
    with pytest.raises(ValueError, match="sum of the mask is one"):
        masked_whiten(torch.ones(1, 2), mask)
    assert whiten(torch.ones(1, 2), mask).tolist() == [[0.0, 0.0]]


def test_integer_mask_rounds_float64():
    # verl's counts of an integer mask are float32 tensors: M / (M - 1) is off by up to 6e-8
    advantages, _, mask = random_tokens(4, torch.float64)
    ours = whiten(advantages, mask)[mask]

    def difference(kind):
        return ((masked_whiten(advantages, mask.to(kind))[mask] - ours) / ours).abs().max().item()

    assert 1e-10 < difference(torch.long) < 1e-7
    # what is left is the 1e-8 that verl adds to the count in its means
    assert difference(torch.float64) < 1e-8


def test_penalty_beyond_the_maximum():
    assert verl_penalties([50], 40, 16, 1.0).tolist() == [-26 / 16]
    assert overlong_penalty(torch.tensor([50]), 40, 16).tolist() == [-1.0]
