"""One rollout batch: problems answered, graded and turned into advantages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlvr.advantages import group_relative
from rlvr.config import Problems, Train
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.sampling import Samples, sample
from rlvr.problems import Problem, get_task
from rlvr.problems.tokenizer import Codec


@dataclass(frozen=True)
class Rollout:
    """Responses of one step with what training needs of them; B = prompts * group_size rows.

    Attributes:
        prompts: token ids, one list per group.
        samples: the responses and their log-probabilities under the policy that sampled them.
        rewards: [B] raw verifier rewards, 0 or 1.
        advantages: [B] group relative.
        group_size: responses per prompt.
    """

    prompts: list[list[int]]
    samples: Samples
    rewards: Tensor
    advantages: Tensor
    group_size: int

    @property
    def groups_with_signal(self) -> float:
        """Share of groups whose rewards differ; only these move the policy."""
        rewards = self.rewards.view(-1, self.group_size)
        return float((rewards.amax(1) != rewards.amin(1)).double().mean())


def grade(codec: Codec, samples: Samples, problems: list[Problem], group_size: int) -> list[float]:
    """Verifier rewards of all responses, in order."""
    texts, _ = codec.responses(samples.responses())
    golds = [p.answer for p in problems for _ in range(group_size)]
    return get_task(problems[0].kind).rewards(texts, golds, samples.finished.tolist())


def collect(policy: Policy, codec: Codec, problems: list[Problem], train: Train, seed: int) -> Rollout:
    """Sample and grade ``train.group_size`` responses to each problem."""
    prompts = codec.encode_batch(p.prompt for p in problems)
    size = train.group_size
    samples = sample(policy, prompts, size, train.max_new_tokens, seed, train.temperature)
    rewards = torch.tensor(grade(codec, samples, problems, size))
    groups = torch.arange(len(problems)).repeat_interleave(size)
    advantages = group_relative(rewards, groups, std=train.advantage_std)
    return Rollout(prompts, samples, rewards, advantages, size)


def training_problems(problems: Problems, count: int, seed: int, step: int) -> list[Problem]:
    """The problems of one step: a function of (seed, step), so resuming needs no data-loader state."""
    return get_task(problems.task).generate("train", count, (seed, step), problems.operations)


def validation_problems(problems: Problems, count: int) -> list[Problem]:
    return get_task(problems.task).generate("validation", count, problems.seed, problems.operations)


def pass1(policy: Policy, codec: Codec, problems: list[Problem], max_new_tokens: int, seed: int) -> float:
    """Share of right answers, one sampled response (temperature 1) per problem."""
    prompts = codec.encode_batch(p.prompt for p in problems)
    rewards = grade(codec, sample(policy, prompts, 1, max_new_tokens, seed), problems, 1)
    return sum(rewards) / len(rewards)


def derive_seed(*parts: int) -> int:
    """A 63-bit seed from whole numbers, so that streams of different purposes never coincide.

    The count comes first because numpy's SeedSequence takes (3, 0) and (3,) for the same.
    """
    return int(np.random.SeedSequence([len(parts), *parts]).generate_state(1, np.uint64)[0] >> np.uint64(1))
