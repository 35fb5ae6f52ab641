"""A SCoRe-style baseline in the local engine: two turns, trained in two stages [public: arXiv 2409.12917].

Every response ``y1`` is followed by a second turn ``y2`` under the correction prompt without references; what
is trained is the second turn. With r1, r2 the verdicts:

    stage 1    second turn: r2                        first turn: held by a KL penalty against the base model
    stage 2    second turn: r2 + bonus (r2 - r1)      first turn: r1

"The sum of both turns' rewards plus alpha (r2 - r1)" is read turn by turn, the bonus being the second's:
credited to the whole trajectory, one above 1 would train the first turn to be wrong [choice]. Advantages are
relative to the group of trajectories of a problem [choice: SCoRe has REINFORCE]; the KL is estimated from
the sampled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlvr.advantages import group_relative
from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.engines.local.job import Job
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import Rollout, derive_seed, grade
from rlvr.engines.local.sampling import Samples, sample
from rlvr.engines.local.training import Update, _Run
from rlvr.engines.local.update import MiniBatch
from rlvr.problems import Problem
from rlvr.problems.tokenizer import Codec

_SECOND = 6  # purpose of a random stream, beside those of training


@dataclass(frozen=True)
class TwoTurns(Rollout):
    """A rollout with a second turn per response; B rows in both."""

    second_prompts: list[list[int]]
    second: Samples
    second_rewards: Tensor  # [B]
    second_advantages: Tensor  # [B]


class SelfCorrectionRun(_Run):
    """A run in two stages."""

    def __init__(self, job: Job, policy: Policy, codec: Codec, identity: str):
        super().__init__(job, policy, codec, identity)
        self.settings = job.self_correction
        self.first_stage = max(1, round(self.settings.stage1_share * job.train.steps))

    @property
    def stage(self) -> int:
        if self.job.train.budget is not None:
            return 1 if self.share < self.settings.stage1_share else 2
        return 1 if self.done < self.first_stage else 2

    def _collect(self, behaviour: Policy, problems: list[Problem]) -> TwoTurns:
        config, first = self.job.train, super()._collect(behaviour, problems)
        build = TokenPrompts(self.settings.template, self.codec.encode, self.codec.eos_id)
        prompts = [
            build(first.prompts[row // first.group_size], response)
            for row, response in enumerate(first.samples.responses())
        ]
        seed = derive_seed(_SECOND, self.job.seed, self.done)
        second = sample(behaviour, prompts, 1, config.max_new_tokens, seed, config.temperature)
        asked = [problem for problem in problems for _ in range(first.group_size)]
        rewards = torch.tensor(grade(self.codec, second, asked, 1))
        self.compute.sampled("correction", prompts, second)
        groups = torch.arange(len(problems)).repeat_interleave(first.group_size)
        gain = self.settings.bonus * (rewards - first.rewards) if self.stage == 2 else 0.0
        return TwoTurns(
            first.prompts,
            first.samples,
            first.rewards,
            first.advantages if self.stage == 2 else torch.zeros_like(first.advantages),
            first.group_size,
            second_prompts=prompts,
            second=second,
            second_rewards=rewards,
            second_advantages=group_relative(rewards + gain, groups, std=config.advantage_std),
        )

    def _describe(self, rollout: TwoTurns) -> dict[str, float]:
        row = super()._describe(rollout)
        right, then_right = rollout.rewards == 1, rollout.second_rewards == 1
        return row | {
            "stage": float(self.stage),
            "second_turn_right": float(then_right.double().mean()),
            "second_turn_repaired": float((~right & then_right).double().mean()),
            "second_turn_spoilt": float((right & ~then_right).double().mean()),
        }

    def _updates(self, rollout: TwoTurns) -> list[Update]:
        hold = self.settings.first_turn_kl if self.stage == 1 else self.settings.kl
        out = []
        for batch, _ in super()._updates(rollout):
            second = self._anchored(self._second(rollout, batch), self.settings.kl, "correction")
            out.append((self._anchored(batch, hold, "base"), (second,)))
        return out

    def _second(self, rollout: TwoTurns, batch: MiniBatch) -> MiniBatch:
        """The second turns of a minibatch; each has a prompt of its own."""
        rows = slice(batch.first_row, batch.first_row + batch.packed.size[0])
        samples = rollout.second
        packed = pack(rollout.second_prompts[rows], samples.tokens[rows], samples.lengths[rows], 1)
        log_prob = samples.log_prob[rows, : packed.size[1]]
        advantages = rollout.second_advantages[rows]
        return self._recomputed(MiniBatch(packed, log_prob, advantages, rows.start), "correction")

    def _anchored(self, batch: MiniBatch, kl_coef: float, purpose: str) -> MiniBatch:
        """With the base model's log-probs, if they are needed."""
        if not kl_coef:
            return batch
        anchor = self._scored(self.policy.theta, batch, purpose)
        return replace(batch, anchor_log_prob=anchor, kl_coef=kl_coef)
