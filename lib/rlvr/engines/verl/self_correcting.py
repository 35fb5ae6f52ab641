"""A SCoRe-style baseline as a verl job: ``trainer.v1.trainer_mode=rlvr_self_correction``.

    VERL_USE_EXTERNAL_MODULES=rlvr.engines.verl.self_correcting python -m verl.trainer.main_ppo \\
        trainer.v1.trainer_mode=rlvr_self_correction \\
        '+trainer.v1.rlvr_self_correction={self_correction:{stage1_share:0.5}}' \\
        actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0 ...

Two turns, trained in two stages [public: SCoRe, arXiv 2409.12917], with the rewards of
:mod:`rlvr.engines.local.self_correction`: every response is followed by a second turn under the correction
prompt without references, written in the same step by the same weights. An update has both turns of whole
prompts in one loss, whose means over responses or tokens are over both, as there. The stage is that of the
step, so that a job that is resumed goes on in the stage in which it was killed.

verl has one weight of its KL penalty for all rows. Here each turn has its own: verl computes the log-probs of
the base model (``use_kl_loss``), its own term has the weight 0, and :class:`AnchoredLoss` adds ours.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from rlvr.config_corrections import SelfCorrection
from rlvr.engines.jobs.command import SELF_CORRECTING
from rlvr.engines.local.accounting import Compute
from rlvr.engines.verl.accounting import as_metrics
from rlvr.engines.verl.correction_check import updates_of_step
from rlvr.engines.verl.correction_layout import updates_of
from rlvr.engines.verl.correction_rows import QueueRows
from rlvr.engines.verl.self_correction_check import (
    BLOCK,
    check_self_correction,
    self_correction_of,
    stage_of,
)
from rlvr.engines.verl.two_pass import Step, TwoPassTrainer, TwoPassTrainingWorker, TwoPassWorker
from rlvr.engines.verl.updates import PARTS, parts_of

TURN = "rlvr_turn"  # field of a batch: 1 or 2, the turn that a row is; 0 if it only fills an update up
KL_COEF = "rlvr_kl_coef"  # field of a batch: weight of the row's KL penalty
#: Turn -> (metric, under the local engine's name; tokens of the turn in the whole update, on all ranks).
TURNS = {1: ("anchor_kl", "rlvr_first_tokens"), 2: ("correction_anchor_kl", "rlvr_second_tokens")}


def turn_rewards(stage: int, first: Tensor, second: Tensor, bonus: float) -> tuple[Tensor, Tensor]:
    """What both turns are rewarded by, of verdicts ``first`` r1 and ``second`` r2 of one shape.

    stage 1    0,  r2                      the first turn's advantage is then 0
    stage 2    r1, r2 + bonus (r2 - r1)
    """
    if stage == 1:
        return torch.zeros_like(first), second
    return first, second + bonus * (second - first)


def describe_turns(first: Tensor, second: Tensor) -> dict[str, float]:
    """Shares of the responses with a second turn: it is right, right after a wrong first one, wrong after a
    right one. Nothing where there is none. A verdict that is missing is NaN."""
    there = ~(first.isnan() | second.isnan())
    if not bool(there.any()):
        return {}
    right, then_right = first[there] == 1, second[there] == 1
    shares = {"right": then_right, "repaired": ~right & then_right, "spoilt": right & ~then_right}
    return {f"second_turn_{name}": float(share.double().mean()) for name, share in shares.items()}


class AnchoredLoss:
    """verl's loss of a micro-batch, and a KL penalty against the base model with a weight of each row.

        sum over rows of  coef_row * sum over tokens of (exp(a - l) - (a - l) - 1)  /  tokens of the update

    l, a: log-probs of the sampled tokens under the policy and the base model. That is
    :func:`rlvr.engines.local.update.kl_penalty` of each turn, in the mean over the tokens of both, times the
    data-parallel size, as verl's own terms are: its engines average over ranks.

    Adds ``actor/anchor_kl`` and ``actor/correction_anchor_kl``, the mean over the tokens of the first and of
    the second turns in nats, and their parts to the update's row. Rows without :data:`TURN` (a job without a
    reference policy) are left to verl.
    """

    def __init__(self, loss: Callable):
        self.loss = loss

    def __call__(
        self, model_output: Mapping[str, Any], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict]:
        loss, metrics = self.loss(model_output=model_output, data=data, dp_group=dp_group)
        if data.get(TURN, None) is None:
            return loss, metrics
        log_prob = no_padding_2_padding(model_output["log_probs"], data)
        padded = data.select("response_mask", "ref_log_prob").to_padded_tensor()
        mask = padded["response_mask"].bool()
        turn, coef = (data[name].reshape(-1).to(log_prob.device) for name in (TURN, KL_COEF))
        gap = (padded["ref_log_prob"] - log_prob) * mask
        each = gap.exp() - gap - 1
        loss = loss + (coef[:, None] * each).sum() / data["batch_num_tokens"] * data["dp_size"]
        found, tokens = each.detach(), {}
        for number, (name, count) in TURNS.items():
            of_turn = mask & (turn == number)[:, None]
            value = (found * of_turn).sum() / data[count] * data["dp_size"]
            metrics[f"actor/{name}"] = Metric(value=value, aggregation=AggregationType.SUM)
            tokens[name] = found[of_turn]
        metrics[PARTS] = metrics.get(PARTS, {}) | parts_of(tokens)
        return loss, metrics


class SelfCorrectingTrainingWorker(TwoPassTrainingWorker):
    """As ``TwoPassTrainingWorker``, with :class:`AnchoredLoss`."""

    def set_loss_fn(self, loss_fn: Callable) -> None:
        super().set_loss_fn(AnchoredLoss(loss_fn))

    def train_batch(self, data: TensorDict) -> TensorDict:
        if data.get(TURN, None) is not None:
            mask = data["response_mask"]
            lengths = torch.tensor([int(row.sum()) for row in (mask.unbind() if mask.is_nested else mask)])
            turn = data[TURN].reshape(-1).cpu()
            counts = self._over_ranks([int(lengths[turn == number].sum()) for number in TURNS])
            named = zip((name for _, name in TURNS.values()), counts, strict=True)
            tu.assign_non_tensor(data, **{name: max(1, count) for name, count in named})
        return super().train_batch(data)


class SelfCorrectingWorker(TwoPassWorker):
    actor_worker_cls = SelfCorrectingTrainingWorker


@register_trainer(SELF_CORRECTING)
class SelfCorrectingTrainer(TwoPassTrainer):
    """As ``rlvr_sync``, with a second turn for every response.

    ``trainer.v1.<mode>.self_correction`` is a mapping of :class:`rlvr.config_corrections.SelfCorrection`; for
    the other settings, and what verl's metrics are of, see :class:`.two_pass.TwoPassTrainer`. ``rlvr/...``
    has the local engine's metrics ``stage`` and ``second_turn_...``, and ``second_turns_too_long``: responses
    for which no prompt fitted, and which have no second turn.

    Raises:
        Failed: settings that do not go together (:mod:`.self_correction_check`).
    """

    mode = SELF_CORRECTING
    worker = SelfCorrectingWorker
    block = BLOCK
    method: SelfCorrection

    def __init__(self, config: Any):
        check_self_correction(config)
        self.method = self_correction_of(config)
        super().__init__(config)

    @property
    def stage(self) -> int:
        """1 or 2: of the present step, which verl counts from 1."""
        return stage_of(self.global_steps - 1, self.total_training_steps, self.method)

    def _second_pass(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """A second turn for every response of ``batch``; returns the rows of both turns."""
        size = self.config.actor_rollout_ref.rollout.n
        asked = list(self._asked.values())
        base = QueueRows(list(self._asked), size).fill(batch)
        there = sorted(base.place.values())
        chats = {row: self.prompts(asked[row // size], base.tokens[row], []) for row in there}
        rows = [row for row in there if chats[row] is not None]
        names = [str(uuid.uuid4()) for _ in rows]
        second = self._ask_again(
            [asked[row // size] for row in rows],
            [chats[row] for row in rows],
            names,
            1,
            batch.partition_id,
        )
        found = QueueRows(names, 1).fill(second)
        verdicts, then = base.scores.view(-1), torch.full((base.scores.numel(),), math.nan)
        then[rows] = found.scores.view(-1)
        self._keep(base, rows, found, *turn_rewards(self.stage, verdicts, then, self.method.bonus))
        described = {"stage": float(self.stage), "second_turns_too_long": float(len(there) - len(rows))}
        described |= describe_turns(verdicts, then)
        metrics |= {f"rlvr/{name}": value for name, value in described.items()}
        compute = Compute()
        self._count_second(compute, second)
        metrics |= as_metrics(compute)
        return self._both(batch, second)

    def _keep(
        self, base: QueueRows, rows: list[int], found: QueueRows, first: Tensor, second: Tensor
    ) -> None:
        """Args: ``rows``: those of the responses that have the second turns of ``found``; ``first``,
        ``second``: rewards of both turns of every response."""
        now, size = Step(), base.width
        updates = updates_of(range(len(base.prompts)), len(base.prompts), updates_of_step(self.config))
        for key, place in base.place.items():
            now.update[key], now.order[key] = updates[place // size], place
            now.reward[key] = float(first[place])
        for key, place in found.place.items():
            row = rows[place]
            now.update[key], now.order[key] = updates[row // size], len(first) + row
            now.reward[key] = float(second[row])
            now.group[key] = f"{base.prompts[row // size]}/second"  # each has a prompt of its own
        now.corrections = frozenset(found.place)
        self._now = now

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Of both turns, each relative to the same turns of its problem; and the weight of each row's KL."""
        batch = super()._compute_advantage(batch, metrics)
        if not self.use_reference_policy:
            return batch
        now, own = self._now, self.method
        turns = [(1 + (key in now.corrections)) * (key in now.update) for key in batch.keys]
        weights = {0: 0.0, 1: own.first_turn_kl if self.stage == 1 else own.kl, 2: own.kl}
        fields = TensorDict(
            {TURN: torch.tensor(turns), KL_COEF: torch.tensor([weights[turn] for turn in turns])},
            batch_size=len(turns),
        )
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
