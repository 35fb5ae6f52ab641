"""DAPO's rollouts: the length penalty, and groups that are sampled until the batch is full."""

from __future__ import annotations

import pytest
import torch
from local_fixtures import train_config

from rlvr.advantages import group_relative
from rlvr.config_mtp import Sampling
from rlvr.engines.local.method_rollout import sample_until_full, shape_rewards
from rlvr.engines.local.rollout import Rollout
from rlvr.engines.local.sampling import Samples

CONFIG = train_config(group_size=2, max_new_tokens=10)


def rollout(rewards, lengths, first=0):
    """Groups of two; group g's prompt is [first + g], and its responses repeat the number of their row."""
    rows, width = len(rewards), max(lengths)
    numbers = 100 * first + torch.arange(rows)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    samples = Samples(
        tokens=torch.where(mask, numbers[:, None], 0),
        lengths=torch.tensor(lengths),
        log_prob=torch.where(mask, -numbers[:, None] / 10, 0.0),
        finished=torch.tensor(lengths) < 10,
    )
    rewards = torch.tensor(rewards)
    groups = torch.arange(rows // 2).repeat_interleave(2)
    return Rollout(
        [[first + g] for g in range(rows // 2)], samples, rewards, group_relative(rewards, groups), 2
    )


def test_without_a_penalty_everything_stays():
    plain = rollout([1.0, 0.0, 0.0, 0.0], [4, 6, 10, 9])
    for sampling in (None, Sampling(), Sampling(dynamic=True)):
        shaped = shape_rewards(plain, CONFIG, sampling)
        assert torch.equal(shaped.shaped, plain.rewards) and torch.equal(shaped.advantages, plain.advantages)
        assert shaped.generated == (plain,)


def test_the_penalty_shapes_advantages_and_leaves_the_verdicts():
    """Buffer 4 of 10 tokens: 6 tokens cost nothing, 8 cost half, 10 cost 1."""
    plain = rollout([1.0, 1.0, 0.0, 0.0], [6, 8, 10, 9])
    shaped = shape_rewards(plain, CONFIG, Sampling(overlong_buffer=4))
    assert shaped.shaped.tolist() == [1.0, 0.5, -1.0, -0.75]
    assert shaped.rewards.tolist() == [1.0, 1.0, 0.0, 0.0] and shaped.groups_with_signal == 0
    expected = group_relative(shaped.shaped, torch.tensor([0, 0, 1, 1]))
    assert torch.equal(shaped.advantages, expected) and expected.abs().min() > 0.5
    half = shape_rewards(plain, CONFIG, Sampling(overlong_buffer=4, overlong_factor=0.5))
    assert half.shaped.tolist() == [1.0, 0.75, -0.5, -0.375]


PARTS = [
    rollout([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], [2, 3, 4, 5, 6, 7], first=0),
    rollout([0.0, 0.0, 0.0, 0.0, 1.0, 1.0], [2, 2, 2, 2, 2, 2], first=10),
    rollout([0.0, 1.0, 1.0, 0.0, 1.0, 0.0], [3, 1, 2, 9, 8, 7], first=20),
]


def generate(asked, sampling=None):
    def one(number):
        asked.append(number)
        return shape_rewards(PARTS[number], CONFIG, sampling)

    return one


def test_sampling_goes_on_until_the_batch_is_full_and_no_further():
    asked = []
    full = sample_until_full(generate(asked), 3, 5)
    assert asked == [0, 1, 2]
    assert full.prompts == [[1], [20], [21]]  # the surplus group 22 is left out
    assert full.rewards.tolist() == [1, 0, 0, 1, 1, 0] and full.groups_with_signal == 1
    assert full.samples.lengths.tolist() == [4, 5, 3, 1, 2, 9] and full.samples.tokens.shape == (6, 9)
    rows = [2, 3, 2000, 2001, 2002, 2003]
    for row, number in enumerate(rows):
        length = int(full.samples.lengths[row])
        assert full.samples.tokens[row, :length].eq(number).all()
        assert not full.samples.tokens[row, length:].any() and not full.samples.log_prob[row, length:].any()
        assert full.samples.log_prob[row, 0] == -number / 10
    assert full.samples.finished.all() and full.samples.num_tokens == 24
    assert [len(part.rewards) for part in full.generated] == [6, 6, 6]
    groups = torch.arange(3).repeat_interleave(2)
    assert torch.equal(full.advantages, group_relative(full.rewards, groups))


def test_one_batch_may_do():
    asked = []
    full = sample_until_full(generate(asked), 1, None)
    assert asked == [0] and full.prompts == [[1]] and full.samples.tokens.shape == (2, 5)
    assert len(full.generated) == 1


@pytest.mark.fault("filter-on-the-shaped-reward")
def test_the_filter_reads_the_verdict_not_the_shaped_reward():
    """Two wrong answers of different lengths have different shaped rewards, and teach nothing."""
    asked = []
    full = sample_until_full(generate(asked, Sampling(overlong_buffer=9)), 2, 5)
    assert full.prompts == [[1], [20]] and asked == [0, 1, 2]
    assert full.shaped.tolist() != full.rewards.tolist()


def test_too_few_batches_are_an_error():
    asked = []
    with pytest.raises(RuntimeError, match=r"2 generated batches gave 1 of target=3 .* max_batches=2"):
        sample_until_full(generate(asked), 3, 2)
    assert asked == [0, 1]


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="overlong_factor=0: no penalty"):
        Sampling(overlong_buffer=3, overlong_factor=0)
    with pytest.raises(ValueError, match="max_batches"):
        Sampling(dynamic=True, max_batches=0)
