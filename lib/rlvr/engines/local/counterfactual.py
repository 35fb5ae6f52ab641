"""IBPO in the local engine: responses and their corrections in one loss [text: IBPO I.2 C].

A step has a second generation pass (:mod:`rlvr.engines.local.corrections`). A correction group is trained in
the minibatch of the response that it corrects [choice], so that both are seen by the same updates. The
reward curve is that of the raw terminal reward.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from rlvr.engines.local.corrections import CORRECTIONS, Corrected, CorrectedRollout, correct
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import derive_seed
from rlvr.engines.local.training import Update, _Run
from rlvr.engines.local.update import MiniBatch
from rlvr.problems import Problem


class CounterfactualRun(_Run):
    """A run whose steps correct what was wrong."""

    def _collect(self, behaviour: Policy, problems: list[Problem]) -> CorrectedRollout:
        config = self.job.train
        rollout = correct(
            behaviour,
            self.codec,
            problems,
            super()._collect(behaviour, problems),
            self.job.counterfactual,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            advantage_std=config.advantage_std,
            seed=derive_seed(CORRECTIONS, self.job.seed, self.done),
        )
        corrected = rollout.corrected
        if corrected.samples is not None:
            self.compute.sampled("correction", corrected.prompts, corrected.samples)
            self.compute.add("correction", "compare", corrected.samples.lengths.tolist())
        return rollout

    def _describe(self, rollout: CorrectedRollout) -> dict[str, float]:
        return super()._describe(rollout) | describe(rollout)

    def _updates(self, rollout: CorrectedRollout) -> list[Update]:
        settings, out = self.job.counterfactual, []
        for batch, _ in super()._updates(rollout):
            others = ()
            if settings.joint and (other := correction_batch(rollout, batch, settings.corrections)):
                others = (self._recomputed(other, "correction"),)
            if rollout.token_mask is not None:
                rows, width = batch.packed.size
                mask = rollout.token_mask[batch.first_row : batch.first_row + rows, :width]
                batch = replace(batch, token_mask=mask)
                # corrections are updated as a whole
                others = tuple(replace(o, token_mask=o.packed.response_mask.bool()) for o in others)
            out.append((batch, others))
        return out


def correction_batch(rollout: CorrectedRollout, batch: MiniBatch, count: int) -> MiniBatch | None:
    """The corrections of the responses in ``batch``, a group per target; None if there are none."""
    corrected = rollout.corrected
    rows = batch.first_row + batch.packed.size[0]
    targets = ((corrected.rows >= batch.first_row) & (corrected.rows < rows)).nonzero().squeeze(-1)
    if not len(targets):
        return None
    first, last = int(targets[0]), int(targets[-1]) + 1  # targets are in the order of their rows
    samples, own = corrected.samples, slice(first * count, last * count)
    packed = pack(corrected.prompts[first:last], samples.tokens[own], samples.lengths[own], count)
    log_prob = samples.log_prob[own, : packed.size[1]]
    return MiniBatch(packed, log_prob, corrected.advantages[own], own.start)


def describe(rollout: CorrectedRollout) -> dict[str, float]:
    """What the corrections of a step did; a mean over nothing is left out.

    ``corrections_right`` is the correction success rate, over all corrections; ``recoverable`` the share of
    targets with an accepted one; ``rewrites`` the share of corrections that are full rewrites; ``copies``
    that of corrections equal to a reference.

    ``reward_spread``, ``phi_spread`` and ``phi_reward_covariance`` are moments within groups, of centred R
    and phi. The variance of the centred advantage is then, for any lambda [text: IBPO E.2, Prop. E.4],
    ``reward_spread + 2 lambda phi_reward_covariance + lambda^2 phi_spread``.
    """
    c, size = rollout.corrected, rollout.group_size
    phi, rewards = rollout.phi.view(-1, size).double(), rollout.rewards.view(-1, size).double()
    wrong = rewards == 0
    centred_phi, centred = (values - values.mean(1, keepdim=True) for values in (phi, rewards))
    values = {
        "targets": float(len(c.rows)),
        "phi_mean": float(phi.mean()),
        "phi_of_wrong": _mean(phi[wrong]),
        "reward_spread": float(centred.square().mean()),
        "phi_spread": float(centred_phi.square().mean()),
        "phi_reward_covariance": float((centred * centred_phi).mean()),
    }
    values |= _of_corrections(c) if len(c.rows) else {}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _of_corrections(c: Corrected) -> dict[str, float]:
    right, known = c.accuracy.double(), ~c.reference_distance.isnan()
    any_known = known.any(1)
    return {
        "corrections_right": float(right.mean()),
        "corrections_right_of_right_reference": _mean(right[any_known & c.reference_right]),
        "corrections_right_of_wrong_reference": _mean(right[any_known & ~c.reference_right]),
        "right_references": _mean(c.reference_right[any_known].double()),
        "recoverable": float(c.accepted.any(1).double().mean()),
        "rewrites": float(c.rewrite.double().mean()),
        "copies": _mean((c.reference_distance[known] == 0).double()),
        "unchanged_of_accepted": _mean(c.share[c.accepted].double()),
        "correction_distance": float(c.distance.mean()),
        "correction_length": float(c.samples.lengths.double().mean()),
        "correction_truncated": float((~c.samples.finished).double().mean()),
    }


def _mean(values: Tensor) -> float:
    return float(values.mean()) if values.numel() else math.nan
