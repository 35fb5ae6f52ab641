"""One minibatch update: log-probabilities, the objective's loss, a clipped AdamW step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.engines.local.network import packed_logits
from rlvr.engines.local.packing import PackedGroups, pack
from rlvr.engines.local.policy import Shape, unflatten
from rlvr.engines.local.rollout import Rollout


@dataclass(frozen=True)
class MiniBatch:
    """Some groups of a rollout; padded tensors are [B, T]."""

    packed: PackedGroups
    old_log_prob: Tensor
    advantages: Tensor  # [B], or [B, T] of a critic
    first_row: int  # row of the rollout that row 0 is
    #: The sampler's, where ``old_log_prob`` was recomputed for the trace alone.
    rollout_log_prob: Tensor | None = None


def minibatches(rollout: Rollout, count: int) -> list[MiniBatch]:
    """Split a rollout into ``count`` batches of whole groups, in order (prompts come shuffled already)."""
    groups, size = len(rollout.prompts) // count, rollout.group_size
    out = []
    for index in range(count):
        rows = slice(index * groups * size, (index + 1) * groups * size)
        samples = rollout.samples
        packed = pack(
            rollout.prompts[index * groups : (index + 1) * groups],
            samples.tokens[rows],
            samples.lengths[rows],
            size,
        )
        width = packed.size[1]
        out.append(MiniBatch(packed, samples.log_prob[rows, :width], rollout.advantages[rows], rows.start))
    return out


def response_log_prob(
    theta: Tensor, shape: Shape, packed: PackedGroups, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [B, T] (0 at padding; differentiable) and the mean entropy in nats (detached)."""
    return token_log_prob(packed_logits(unflatten(theta, shape), shape, packed), packed, temperature)


def token_log_prob(logits: Tensor, packed: PackedGroups, temperature: float) -> tuple[Tensor, Tensor]:
    """The same, from the logits [response tokens, vocab]."""
    log_probs = (logits if temperature == 1 else logits / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy = -torch.linalg.vecdot(log_probs.exp(), log_probs).mean()
    chosen = log_probs.gather(1, packed.targets[:, None]).squeeze(1)
    return packed.pad(chosen), entropy


class Updater:
    """AdamW on the flat weight vector, with the gradient clipped to a global norm.

    Args:
        theta: [parameters]; a copy is trained.
        shape: sizes of the policy.
        loss: ``loss(log_prob, old_log_prob, advantages, response_mask) -> (loss, metrics)``.
        lr, betas, weight_decay, grad_clip: as usual.
        temperature: of the sampling distribution whose log-probabilities are trained.
    """

    def __init__(
        self,
        theta: Tensor,
        shape: Shape,
        loss: Callable,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        grad_clip: float,
        temperature: float,
    ):
        self.theta = theta.detach().clone().requires_grad_()
        self.shape, self.loss, self.grad_clip, self.temperature = shape, loss, grad_clip, temperature
        self.optimizer = torch.optim.AdamW(
            [self.theta], lr=lr, betas=betas, weight_decay=weight_decay, fused=True
        )

    def step(self, batch: MiniBatch) -> tuple[dict[str, float], Tensor, Tensor]:
        """One update.

        Returns:
            metrics; the log-probabilities [B, T] before the update; the loss's gradient by them [B, T].

        Raises:
            FloatingPointError: the gradient is not finite; the weights are left as they were.
        """
        log_prob, entropy = response_log_prob(self.theta, self.shape, batch.packed, self.temperature)
        leaf = log_prob.detach().requires_grad_()
        more = {} if batch.rollout_log_prob is None else {"rollout_log_prob": batch.rollout_log_prob}
        mask = batch.packed.response_mask
        loss, metrics = self.loss(leaf, batch.old_log_prob, batch.advantages, mask, **more)
        (slope,) = torch.autograd.grad(loss, leaf)
        (gradient,) = torch.autograd.grad(log_prob, self.theta, slope)
        norm = self._descend(gradient, loss, leaf, batch)
        values = {name: float(value) for name, value in metrics.items()}
        values |= {"loss": float(loss.detach()), "entropy": float(entropy), "grad_norm": norm}
        return values, leaf.detach(), slope

    def _descend(self, gradient: Tensor, loss: Tensor, leaf: Tensor, batch: MiniBatch) -> float:
        """The optimiser's step; the gradient's norm before its clip."""
        norm = torch.linalg.vector_norm(gradient)
        if not bool(torch.isfinite(norm)):
            raise FloatingPointError(
                f"gradient norm is {float(norm)}; loss {float(loss.detach())}, largest |log ratio| "
                f"{float((leaf - batch.old_log_prob).detach().abs().max()):.3g}"
            )
        self.theta.grad = gradient.mul_(self.grad_clip / norm.clamp(min=self.grad_clip))
        self.optimizer.step()
        return float(norm)
