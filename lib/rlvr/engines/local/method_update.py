"""One minibatch update of a method with MTP modules, a critic, or both, beside the policy.

Three vectors of weights, each with its own optimiser: the policy's, the modules' and the critic's. The policy
learns by the objective alone, the modules by their cross entropy, the critic by its value loss; where these
may meet is a setting (``mtp.policy_gradient``, ``critic.network``). All gradients are taken before any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvr import objectives
from rlvr.config_mtp import Critic, Mtp
from rlvr.engines.local.critic import CriticShape, critic_values
from rlvr.engines.local.flat import FlatTrainer
from rlvr.engines.local.mtp import MtpShape, Predictions, predict
from rlvr.engines.local.network import head_logits, packed_states
from rlvr.engines.local.policy import unflatten
from rlvr.engines.local.update import MiniBatch, Updater, token_log_prob
from rlvr.losses import clipped_value_loss
from rlvr.mtp.losses import cross_entropy
from rlvr.ratios import RATIO_BOUND, block_log_ratio, block_mask, block_weights


@dataclass(frozen=True)
class MethodBatch(MiniBatch):
    """A minibatch with what was computed of it at the step's start."""

    old_mtp_log_prob: Tensor | None = None  # [B, T, K-1]
    old_values: Tensor | None = None  # [B, T]
    returns: Tensor | None = None  # [B, T]


@dataclass(frozen=True)
class Modules:
    trainer: FlatTrainer
    shape: MtpShape
    settings: Mtp
    weights: list[float]  # b_1 .. b_K of the block ratio, for its variance


@dataclass(frozen=True)
class ValueNetwork:
    trainer: FlatTrainer
    shape: CriticShape
    settings: Critic


class MethodUpdater(Updater):
    """An :class:`Updater` with ``modules`` and ``critic``, either of them None if the method has none.

    ``log`` keeps the metrics of every update since it was last emptied.
    """

    def __init__(self, *args, modules: Modules | None = None, critic: ValueNetwork | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.modules, self.critic = modules, critic
        self.log: list[dict[str, float]] = []

    def step(
        self, batch: MethodBatch, others: Sequence[MiniBatch] = ()
    ) -> tuple[dict[str, float], Tensor, Tensor]:
        """One update of everything; returns what :meth:`Updater.step` does, with further metrics.

        Raises:
            ValueError: ``others``, which no method with modules or a critic trains on.
            FloatingPointError: a gradient is not finite; all weights are left as they were.
        """
        if others:
            raise ValueError(f"others: {len(others)} minibatches; allowed here are none")
        mask, modules, critic = batch.packed.response_mask, self.modules, self.critic
        weights = unflatten(self.theta, self.shape)
        states = packed_states(weights, self.shape, batch.packed)
        logits = head_logits(states.last.index_select(0, batch.packed.predicts_from), weights, self.shape)
        log_prob, entropy = token_log_prob(logits, batch.packed, self.temperature)
        leaf = log_prob.detach().requires_grad_()
        leaves, more, said = [leaf], {}, None
        if batch.rollout_log_prob is not None:
            more["rollout_log_prob"] = batch.rollout_log_prob
        if modules:
            reach = modules.settings.policy_gradient
            said = predict(
                modules.trainer.weights, modules.shape, weights, states, batch.packed, self.temperature,
                backbone_gradient=reach == "full",
            )  # fmt: skip
            mtp_leaf = said.log_prob.detach().requires_grad_(reach != "stop")
            scaled = modules.settings.ratio == "scaled"  # the control: no log ratio of a module
            old_mtp = mtp_leaf if scaled else batch.old_mtp_log_prob
            more |= {"mtp_log_prob": mtp_leaf, "old_mtp_log_prob": old_mtp}
            leaves += [mtp_leaf] if reach != "stop" else []

        loss, metrics = self.loss(leaf, batch.old_log_prob, batch.advantages, mask, **more)
        slope, *mtp_slope = torch.autograd.grad(loss, leaves)
        values = {name: float(value) for name, value in metrics.items()}
        values |= {"loss": float(loss.detach()), "entropy": float(entropy)}

        # (outputs, what their gradients are multiplied with) by whose weights they train
        policy = [(log_prob, slope)]
        updates: list[tuple[FlatTrainer, Tensor, float]] = []
        if modules and said:
            values |= self._describe(modules, said, logits.detach(), batch, leaf.detach())
            values |= self._other_clips(leaf.detach(), mtp_leaf.detach(), batch)
            ce, each = cross_entropy(said.log_prob, mask)
            values |= {f"mtp_loss_{k}": float(each[k - 2]) for k in _predicted(said)}
            own = [(ce, torch.ones_like(ce))] if modules.settings.train == "cross_entropy" else []
            own += [(said.log_prob, s) for s in mtp_slope]
            if modules.settings.policy_gradient == "full":
                policy += [(said.log_prob, s) for s in mtp_slope]
            if own:
                updates.append(self._update("mtp", modules.trainer, own, values))
        else:
            values |= _variances(leaf.detach() - batch.old_log_prob, mask)
        if critic:
            found = critic_values(critic.trainer.weights, critic.shape, critic.settings, batch.packed, states)
            value_loss, lost = clipped_value_loss(
                found, batch.old_values, batch.returns, mask, critic.settings.value_clip
            )
            values |= {"value_loss": float(value_loss.detach()), "value_clip_fraction": float(lost)}
            one = torch.ones_like(value_loss)
            updates.append(self._update("critic", critic.trainer, [(value_loss, one)], values))
            if not critic.shape.separate and critic.settings.shared_weight:
                policy.append((value_loss, critic.settings.shared_weight * one))

        gradient = _gradient(policy, self.theta)
        values["grad_norm"] = self._descend(gradient, float(loss.detach()), leaf.detach(), batch)
        for trainer, own_gradient, norm in updates:
            trainer.apply(own_gradient, norm)
        self.log.append(dict(values))
        return values, leaf.detach(), slope

    def _update(
        self, name: str, trainer: FlatTrainer, outputs: list[tuple[Tensor, Tensor]], values: dict[str, float]
    ) -> tuple[FlatTrainer, Tensor, float]:
        gradient = _gradient(outputs, trainer.weights)
        values[f"{name}_grad_norm"] = norm = trainer.norm(gradient)
        return trainer, gradient, norm

    def _other_clips(self, log_prob: Tensor, mtp: Tensor, batch: MethodBatch) -> dict[str, float]:
        """Clip fraction that the same update has with the token's ratio, and with that of its scaled log."""
        given = (log_prob, batch.old_log_prob, batch.advantages, batch.packed.response_mask)
        more = {} if batch.rollout_log_prob is None else {"rollout_log_prob": batch.rollout_log_prob}
        _, token = self.loss(*given, **more)
        _, scaled = self.loss(*given, **more, mtp_log_prob=mtp, old_mtp_log_prob=mtp)
        return {
            "token_clip_fraction": float(token["clip_fraction"]),
            "scaled_clip_fraction": float(scaled["clip_fraction"]),
        }

    def _describe(
        self, modules: Modules, said: Predictions, logits: Tensor, batch: MethodBatch, log_prob: Tensor
    ) -> dict[str, float]:
        """Variance of the block ratio, and what the modules' predictions are worth."""
        mask = batch.packed.response_mask
        exists = block_mask(mask, modules.shape.blocks)
        change = torch.where(exists, said.log_prob.detach() - batch.old_mtp_log_prob, 0.0)
        used = torch.zeros_like(change) if modules.settings.ratio == "scaled" else change
        values = _variances(log_prob - batch.old_log_prob, mask, used, modules.weights)
        for index, rank in enumerate(said.ranks(logits)):
            k, count = index + 2, len(rank)
            if not count:  # every response is shorter than k: nothing to say of this module
                continue
            values[f"mtp_rank_{k}"] = float(rank.double().mean())
            values[f"mtp_top1_{k}"] = float((rank == 1).double().mean())
            values[f"mtp_log_ratio_{k}"] = float(change[..., index].abs().sum() / count)
        return values


def _predicted(said: Predictions) -> list[int]:
    """The k of the modules that had a token to predict: of a response shorter than k there is none."""
    return [k for k, logits in enumerate(said.logits, start=2) if len(logits)]


def _gradient(outputs: list[tuple[Tensor, Tensor]], weights: Tensor) -> Tensor:
    """d/d weights of the outputs, each times its slope; the graph stays for the next owner."""
    tensors, slopes = zip(*outputs, strict=True)
    (gradient,) = torch.autograd.grad(list(tensors), weights, list(slopes), retain_graph=True)
    return gradient


def _variances(
    log_ratio: Tensor, mask: Tensor, change: Tensor | None = None, weights: list[float] | None = None
) -> dict[str, float]:
    """Unbiased variance over valid tokens of the token's ratio, and of the block's (the same without one);
    of a block also that of ``exp(b_1 l)``, l the token's log ratio: what its weights do without modules."""
    token = torch.where(mask.bool(), log_ratio, 0.0).clamp(-RATIO_BOUND, RATIO_BOUND)
    block = token if change is None else block_log_ratio(token, change, weights)
    named = {"ratio_variance": block, "token_ratio_variance": token}
    if weights is not None:
        named["scaled_ratio_variance"] = weights[0] * token
    return {name: float(log[mask.bool()].exp().double().var()) for name, log in named.items()}


def ratio_weights(settings: Mtp, objective: str, parameters: dict[str, Any]) -> list[float]:
    """``b_1 .. b_K`` of a recipe's block ratio; what it does not say is the objective's default."""
    every = objectives.get(objective).parameters | parameters
    return block_weights(settings.blocks, every["mtp_weight"], every["decay"])
