"""One minibatch update: log-probabilities, the objective's loss, a clipped AdamW step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
    token_mask: Tensor | None = None  # [B, T] bool, the tokens to update, for objectives that take it
    #: Log-probs [B, T] of the policy that a KL penalty of weight ``kl_coef`` keeps these responses near.
    anchor_log_prob: Tensor | None = None
    kl_coef: float = 0.0


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

    def set_learning_rate(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def step(self, batch: MiniBatch, more: Sequence[MiniBatch] = ()) -> tuple[dict[str, Any], Tensor, Tensor]:
        """One update, on ``batch`` and, in the same loss, on ``more`` (groups of another size).

        The loss is that of all responses together: means over responses or tokens have one denominator.

        Returns:
            metrics of ``batch``, and under ``more`` a list of those of the others; the log-probabilities
            [B, T] of ``batch`` before the update; the loss's gradient by them [B, T].

        Raises:
            FloatingPointError: the gradient is not finite; the weights are left as they were.
        """
        counts = joint_counts([batch, *more]) if more else {}
        first, *others = (self._part(part, counts) for part in (batch, *more))
        gradient = first.gradient
        for other in others:
            gradient = gradient.add_(other.gradient)
        loss = sum(other.loss for other in others) + first.loss
        norm = self._descend(gradient, loss, first.log_prob, batch)
        values = first.metrics | {"loss": loss, "entropy": first.entropy, "grad_norm": norm}
        if others:
            values["more"] = [other.metrics | {"entropy": other.entropy} for other in others]
        return values, first.log_prob, first.slope

    def _descend(self, gradient: Tensor, loss: float, log_prob: Tensor, batch: MiniBatch) -> float:
        """The optimiser's step; the gradient's norm before its clip."""
        norm = torch.linalg.vector_norm(gradient)
        if not bool(torch.isfinite(norm)):
            raise FloatingPointError(
                f"gradient norm is {float(norm)}; loss {loss}, largest |log ratio| "
                f"{float((log_prob - batch.old_log_prob).abs().max()):.3g}"
            )
        self.theta.grad = gradient.mul_(self.grad_clip / norm.clamp(min=self.grad_clip))
        self.optimizer.step()
        return float(norm)

    def _part(self, batch: MiniBatch, counts: dict[str, int]) -> _Part:
        log_prob, entropy = response_log_prob(self.theta, self.shape, batch.packed, self.temperature)
        leaf = log_prob.detach().requires_grad_()
        given = {} if batch.rollout_log_prob is None else {"rollout_log_prob": batch.rollout_log_prob}
        if batch.token_mask is not None:
            given["token_mask"] = batch.token_mask
        mask = batch.packed.response_mask
        loss, metrics = self.loss(leaf, batch.old_log_prob, batch.advantages, mask, **given, **counts)
        if batch.anchor_log_prob is not None:
            penalty = kl_penalty(leaf, batch.anchor_log_prob, mask, counts.get("batch_num_tokens"))
            loss = loss + batch.kl_coef * penalty
            metrics = metrics | {"anchor_kl": _mean_kl(leaf, batch.anchor_log_prob, mask)}
        (slope,) = torch.autograd.grad(loss, leaf)
        (gradient,) = torch.autograd.grad(log_prob, self.theta, slope)
        values = {name: float(value) for name, value in metrics.items()}
        return _Part(gradient, values, float(loss.detach()), float(entropy), leaf.detach(), slope)


@dataclass
class _Part:
    """What one minibatch adds to an update."""

    gradient: Tensor
    metrics: dict[str, float]
    loss: float
    entropy: float
    log_prob: Tensor
    slope: Tensor


def joint_counts(batches: Sequence[MiniBatch]) -> dict[str, int]:
    """Tokens and responses of all of them, for objectives that average over both."""
    return {
        "batch_num_tokens": sum(len(batch.packed.targets) for batch in batches),
        "global_batch_size": sum(batch.packed.size[0] for batch in batches),
    }


def kl_penalty(
    log_prob: Tensor, anchor_log_prob: Tensor, response_mask: Tensor, tokens: int | None
) -> Tensor:
    """Mean per token of an estimate of ``KL(pi || anchor)``, never negative; differentiable.

        k3 = exp(a - l) - (a - l) - 1,   l = log pi, a = log anchor of the sampled token

    [public: the estimator of GRPO's penalty.] ``tokens``: the mean's denominator; None: those of the mask.
    """
    gap = (anchor_log_prob - log_prob) * response_mask
    count = response_mask.sum() if tokens is None else tokens
    return (gap.exp() - gap - 1).sum() / count


def _mean_kl(log_prob: Tensor, anchor_log_prob: Tensor, response_mask: Tensor) -> Tensor:
    return kl_penalty(log_prob.detach(), anchor_log_prob, response_mask, None)
