"""The actor's worker with MTP modules: :class:`~rlvr.engines.verl.mtp_engine.MtpEngine`, and what the modules
say handed to the objective.

:class:`rlvr.engines.verl.recording.RecordingWorker` takes it where ``policy_loss.mtp`` asks for modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import TrainingWorkerConfig
from verl.workers.utils.padding import no_padding_2_padding

from rlvr.engines.jobs.updates import Part, value_of
from rlvr.engines.verl.config import PolicyLossConfig
from rlvr.engines.verl.losses import handed
from rlvr.engines.verl.mtp_engine import MODEL_TYPE
from rlvr.engines.verl.mtp_stack import COUNTS, OLD, RANKS, SAID, padded, padded_mask
from rlvr.engines.verl.recording import RecordingTrainingWorker
from rlvr.engines.verl.updates import PARTS, parts_of
from rlvr.mtp.settings import ModuleSettings
from rlvr.ratios import RATIO_BOUND, block_log_ratio, block_mask, block_weights


class MtpLoss:
    """verl's loss of a micro-batch, with the modules' log-probs at the objective's hand.

    Adds, under ``actor/``, what the local engine logs of modules: per module k ``mtp_rank_<k>``,
    ``mtp_top1_<k>``, ``mtp_log_ratio_<k>``, means over the mini-batch; and, means over its micro-batches,
    ``ratio_variance``, that of the token's ratio (``token_``) and of its scaled log (``scaled_``), with the
    clip fractions that the same update has with these two. The update's row gets the parts of all of these,
    and of each module's cross entropy, ``mtp_loss_<k>``.
    """

    def __init__(self, loss: Callable, modules: ModuleSettings, weights: list[float], objective: Callable):
        self.loss, self.modules, self.weights, self.objective = loss, modules, weights, objective

    def __call__(
        self, model_output: Mapping[str, Any], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict]:
        if self.modules.blocks == 1:
            with handed(mtp_log_prob=None, old_mtp_log_prob=None):
                return self.loss(model_output=model_output, data=data, dp_group=dp_group)
        new = self._of_responses(model_output[SAID], data)
        old = padded(data[OLD], self.modules.blocks).to(new.device)
        live = new if self.modules.policy_gradient == "modules" else new.detach()
        with handed(mtp_log_prob=live, old_mtp_log_prob=old):
            loss, metrics = self.loss(model_output=model_output, data=data, dp_group=dp_group)
        return loss, metrics | self._metrics(model_output, data, new.detach(), old)

    def _of_responses(self, field: Tensor, data: TensorDict) -> Tensor:
        return no_padding_2_padding(field.values().view(-1, self.modules.blocks - 1), data)

    def _metrics(
        self, model_output: Mapping[str, Any], data: TensorDict, new: Tensor, old_said: Tensor
    ) -> dict[str, Any]:
        change = new - old_said
        mask = padded_mask(data).to(change.device)
        exists = block_mask(mask, self.modules.blocks)
        change = torch.where(exists, change, 0.0)
        advantages, old = (
            torch.nested.to_padded_tensor(data[name], 0.0).to(change.device)
            for name in ("advantages", "old_log_probs")
        )
        log_prob = no_padding_2_padding(model_output["log_probs"].detach(), data)
        token = torch.where(mask, log_prob - old, 0.0).clamp(-RATIO_BOUND, RATIO_BOUND)
        logs = {
            "ratio_variance": block_log_ratio(token, change, self.weights),
            "token_ratio_variance": token,
            "scaled_ratio_variance": self.weights[0] * token,
        }
        parts = parts_of({name: log[mask].double().exp() for name, log in logs.items()})
        values = {name: _variance(parts.get(name)) for name in logs}
        unmoved = torch.zeros_like(change)
        others = {"token": {}, "scaled": {"mtp_log_prob": unmoved, "old_mtp_log_prob": unmoved}}
        for name, said in others.items():
            _, metrics = self.objective(log_prob, old, advantages, mask, **said)
            values[clip := f"{name}_clip_fraction"] = float(metrics["clip_fraction"])
            parts[clip] = (int(mask.sum()), values[clip], 0.0)
        found = {name: Metric(AggregationType.MEAN, value) for name, value in values.items()}
        rank = self._of_responses(model_output[RANKS], data)
        columns = {"rank": rank, "top1": rank == 1, "log_ratio": change.abs()}
        each = columns | {"loss": -new}
        parts |= parts_of(
            {
                f"mtp_{name}_{k}": values[..., k - 2][exists[..., k - 2]]
                for name, values in each.items()
                for k in range(2, self.modules.blocks + 1)
            }
        )
        share = data["dp_size"] / model_output[COUNTS].clamp_min(1).double()  # [K-1]: verl averages the ranks
        for name, values in columns.items():
            sums = torch.where(exists, values.double(), 0.0).sum((0, 1)) * share
            for k, value in enumerate(sums.tolist(), start=2):
                found[f"mtp_{name}_{k}"] = Metric(AggregationType.SUM, value)
        return {f"actor/{name}": metric for name, metric in found.items()} | {PARTS: parts}


def _variance(part: Part | None) -> float:
    """Unbiased; 0 of fewer than two values."""
    return value_of("_variance", part) if part is not None and part[0] > 1 else 0.0


class MtpTrainingWorker(RecordingTrainingWorker):
    """As a :class:`RecordingTrainingWorker`, with the modules of ``policy_loss.mtp`` beside the actor.

    Adds ``mtp_grad_norm``, that of the modules.
    """

    def __init__(self, config: TrainingWorkerConfig, policy_loss: PolicyLossConfig):
        self.modules = ModuleSettings.model_validate(policy_loss.mtp)
        objective = get_policy_loss_fn(policy_loss.loss_mode).objective
        self.objective = partial(objective, **policy_loss.parameters)
        of_block = objective.parameters | policy_loss.parameters
        self.weights = block_weights(self.modules.blocks, of_block["mtp_weight"], of_block["decay"])
        if self.modules.blocks > 1:
            config = replace(config, model_type=MODEL_TYPE)
        super().__init__(config)
        if self.modules.blocks > 1:
            self.engine.modules = self.modules

    def set_loss_fn(self, loss_fn: Callable) -> None:
        super().set_loss_fn(MtpLoss(loss_fn, self.modules, self.weights, self.objective))

    def train_batch(self, data: TensorDict) -> TensorDict:
        output = super().train_batch(data)
        if output is not None and self.modules.blocks > 1:
            tu.get(output, "metrics")["mtp_grad_norm"] = self.engine.modules_grad_norm
        return output

    def _of_update(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        own = self.modules.blocks > 1 and self.modules.learns
        return super()._of_update(metrics) | ({"mtp_grad_norm": self.engine.modules_grad_norm} if own else {})
