"""IBPO in the local engine: responses and their corrections in one loss [text: IBPO I.2 C].

A step has a second generation pass (:mod:`rlvr.engines.local.corrections`). A correction group is trained in
the minibatch of the response that it corrects [choice], so that both are seen by the same updates. The
reward curve is that of the raw terminal reward.
"""

from __future__ import annotations

from dataclasses import replace

from rlvr.counterfactual import second_pass
from rlvr.engines.local.accounting import compared
from rlvr.engines.local.corrections import CORRECTIONS, CorrectedRollout, correct
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
            texts, fixes = rollout.samples.responses(), corrected.samples.responses()
            handed = compared(texts, corrected.rows.tolist(), fixes, range(len(fixes)))
            self.compute.add("correction", "compare", handed)
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
    """:func:`rlvr.counterfactual.second_pass.describe` of a rollout."""
    return second_pass.describe(rollout.corrected, rollout.rewards, rollout.phi, rollout.group_size)
