"""The peers' losses on plain tensors: verl's registered ones, TRL's ``_compute_loss``, the NFPO release's.

Every call takes a :class:`Batch` and returns a :class:`Result`. verl and TRL run their own code. The release
(oh-lab/NFPO dc6df1fb, a fork of verl) cannot be installed next to verl: it is restated here from its
formulas, as are the two of its advantages that differ.
"""

from collections import defaultdict
from dataclasses import fields
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from rlvr import objectives
from rlvr.losses import aggregate

COUNTS = ("batch_num_tokens", "global_batch_size", "loss_scale_factor", "dp_size")
INF, NAN = float("inf"), float("nan")


class Batch(NamedTuple):
    log_prob: Tensor  # [B, T]
    old_log_prob: Tensor  # [B, T]
    advantages: Tensor  # [B] or [B, T]
    mask: Tensor  # [B, T] bool

    def split(self, sizes) -> list["Batch"]:
        return [Batch(*part) for part in zip(*(x.split(sizes) for x in self), strict=True)]

    def per_token(self) -> Tensor:
        """The advantages, [B, T]."""
        return (
            self.advantages if self.advantages.ndim == 2 else self.advantages[:, None].expand(self.mask.shape)
        )


class Result(NamedTuple):
    loss: float
    grad: Tensor  # by log_prob, [B, T]
    metrics: dict
    size: float = 0.0  # of ours: the loss if no term cancelled another


def differentiate(function, batch: Batch) -> Result:
    """``function(log_prob) -> (loss, metrics)`` at the batch's log-probs."""
    log_prob = batch.log_prob.detach().clone().requires_grad_()
    loss, metrics = function(log_prob)
    loss.backward()
    return Result(loss.item(), log_prob.grad, {name: float(value) for name, value in metrics.items()})


def rlvr(name: str, batch: Batch, **parameters) -> Result:
    objective = objectives.get(name)
    result = differentiate(lambda log_prob: objective(log_prob, *batch[1:], **parameters), batch)
    matrix, _ = objective(*batch, **parameters | {"reduction": "none"})
    counts = {name: parameters[name] for name in COUNTS if name in parameters}
    mode = parameters.get("loss_agg_mode", objective.loss_agg_mode)
    return result._replace(size=aggregate(matrix.abs(), batch.mask, mode, **counts).item())


# --- verl ---------------------------------------------------------------------------------------------


def verl(name: str, batch: Batch, mode: str | None = None, counts: dict | None = None, **config) -> Result:
    """verl's registered loss; ``counts`` is its ``global_batch_info``. mode None: as ActorConfig says."""
    actor = ActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, global_batch_info=counts or {}, **config
    )
    return differentiate(
        lambda log_prob: get_policy_loss_fn(name)(
            old_log_prob=batch.old_log_prob,
            log_prob=log_prob,
            advantages=batch.per_token(),
            response_mask=batch.mask,
            loss_agg_mode=mode or actor.loss_agg_mode,
            config=actor,
        ),
        batch,
    )


# --- TRL ----------------------------------------------------------------------------------------------

_TRL = {field.name: field.default for field in fields(GRPOConfig)}


class TensorTrainer(GRPOTrainer):
    """What ``_compute_loss`` reads of a trainer, with the log-probs given instead of a model."""

    def __init__(self, loss_type: str, width: int, accumulation: int, per_generation: int, **config):
        args = SimpleNamespace(**(_TRL | {"steps_per_generation": per_generation} | config))
        self.args = args
        self.loss_type = loss_type
        self.importance_sampling_level = args.importance_sampling_level
        self.epsilon_low = args.epsilon
        self.epsilon_high = args.epsilon if args.epsilon_high is None else args.epsilon_high
        self.max_completion_length = width
        self.current_gradient_accumulation_steps = accumulation
        self.beta = 0.0
        self.top_entropy_quantile = 1.0
        self.off_policy_mask_threshold = None
        self.use_vllm = self.use_adaptive_entropy = self._entropy_bonus_enabled = self.aux_loss_enabled = (
            False
        )
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
        )
        self._metrics = {"train": defaultdict(list)}

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        return model, torch.zeros_like(model), None


def trl(
    loss_type: str,
    batch: Batch,
    *,
    items: int | None = None,
    width: int | None = None,
    accumulation: int = 1,
    per_generation: int = 1,
    **config,
) -> Result:
    """TRL's loss. ``items``: tokens of the generation batch (default: this batch); ``width``:
    max_completion_length (default: T); then gradient_accumulation_steps and steps_per_generation."""
    mask = batch.mask.long()
    trainer = TensorTrainer(loss_type, width or mask.shape[1], accumulation, per_generation, **config)
    inputs = {
        "prompt_ids": mask[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": mask,
        "completion_mask": mask,
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old_log_prob,
        "num_items_in_batch": mask.sum() if items is None else torch.tensor(items),
    }
    result = differentiate(lambda log_prob: (trainer._compute_loss(log_prob, inputs), {}), batch)
    return result._replace(metrics={name: values[0] for name, values in trainer._metrics["train"].items()})


# --- the NFPO release, from its formulas --------------------------------------------------------------


def release_aggregate(matrix: Tensor, mask: Tensor, mode: str, dp_size=1, tokens=None, rows=None) -> Tensor:
    """As verl's, but ``seq-mean-token-sum-norm`` is a sum over 1/T: no rows, no dp_size."""
    weight = mask.to(matrix.dtype)
    if mode == "token-mean":
        total = torch.where(mask, matrix, 0.0).sum()
        return total / (weight.sum() if tokens is None else tokens) * dp_size
    per_row = (matrix * weight).sum(-1)
    if mode == "seq-mean-token-sum-norm":
        return per_row.sum() / mask.shape[1]
    if mode == "seq-mean-token-mean":
        per_row = per_row / (weight.sum(-1) + 1e-8)
    return (
        torch.where(mask.any(-1), per_row, 0.0).sum()
        / (mask.any(-1).sum() if rows is None else rows)
        * dp_size
    )


def release(
    batch: Batch,
    mode: str = "seq-mean-token-sum-norm",
    *,
    rollout: Tensor | None = None,
    horizon: int = 1,
    ratio_clip: float = 3.0,
    trace_clip: tuple[float, float] = (0.8, 1.2),
    delta: float = 0.2,
    kl: bool = False,
    **counts,
) -> Result:
    """``-A q F V log pi``: q and V against the rollout log-probs (default: the old ones), F against old."""
    old, mask, advantages = batch.old_log_prob, batch.mask, batch.per_token()
    anchor = old if rollout is None else rollout

    def loss(log_prob: Tensor) -> tuple[Tensor, dict]:
        now = log_prob.detach()
        bounded = (now - anchor).clamp(-10, 10)
        q = bounded.exp()
        factor = torch.where(mask, (now - old).clamp(-20, 20).exp().clamp(1 / ratio_clip, ratio_clip), 1.0)
        trace = torch.ones_like(factor)
        for t in range(mask.shape[1]):  # positions, holes included
            trace[:, t] = factor[:, t + 1 : t + horizon].prod(-1)
        trace = trace.clamp(*trace_clip)
        pi, mu = now.exp(), anchor.exp()
        if kl:
            gap = mu * (anchor - now) + (1 - mu) * ((1 - mu + 1e-8) / (1 - pi + 1e-8)).log()
            dropped = torch.where(advantages > 0, (gap > delta) & (pi > mu), (gap > delta) & (pi < mu))
        else:
            dropped = ~torch.where(advantages > 0, pi - mu <= delta, pi - mu >= -delta)
        matrix = -advantages * q * log_prob * trace * ~dropped
        weight = q * trace
        pairs = mask[:, 1:] & mask[:, :-1]
        metrics = {
            "pg_clipfrac": _mean(dropped, mask),
            "ppo_kl": _mean(-bounded, mask),
            "trace_mean": _mean(trace, mask),
            "switching": _mean((q[:, 1:] - 1) * (q[:, :-1] - 1) < 0, pairs),
            "trace_switching": _mean((weight[:, 1:] - 1) * (weight[:, :-1] - 1) < 0, pairs),
        }
        return release_aggregate(matrix, mask, mode, **counts), metrics

    return differentiate(loss, batch)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return values[mask].double().mean() if mask.any() else torch.zeros(())


def release_grpo_vectorized(rewards: list[float]) -> Tensor:
    """One group's advantages: the variance is a difference of sums, floored at 1e-6, all in float32."""
    r = torch.tensor(rewards, dtype=torch.float32)
    variance = (r.square().sum() - r.sum().square() / len(r)) / (len(r) - 1)
    return (r - r.mean()) / (variance.clamp_min(1e-6).sqrt() + 1e-6)


# --- batches ------------------------------------------------------------------------------------------

KINDS = ("typical", "wide", "holes", "ragged", "extreme", "beyond")


def random_batch(kind: str, seed: int, dtype=torch.float64, per_token: bool = False) -> Batch:
    """8 x 24, with finite junk in the padding.

    typical: log ratios of spread .05; wide: .5; holes: wide, rows of 2 to 24 tokens with holes; ragged: so,
    but rows of 19, 1, 1, 0, 7, 19, 13 and 2 tokens; extreme: wide, 16 tokens with log ratios of 5 to 12;
    beyond: wide, 6 tokens beyond the clamp at 20.
    """
    g = torch.Generator().manual_seed(1000 * KINDS.index(kind) + seed)
    rows, width = 8, 24

    def uniform(*shape):
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    log_ratio = torch.randn(rows, width, generator=g, dtype=torch.float64) * (
        0.05 if kind == "typical" else 0.5
    )
    mask = torch.ones(rows, width, dtype=torch.bool)
    if kind in ("holes", "ragged"):
        lengths = (19, 1, 1, 0, 7, 19, 13, 2) if kind == "ragged" else (24, 2, 9, 17, 3, 24, 12, 5)
        mask = torch.arange(width) < torch.tensor(lengths)[:, None]
        holes = uniform(rows, width) < 0.15
        holes[:, 0] = False
        mask &= ~holes
    odd = {"extreme": (16, 5, 12), "beyond": (6, 21, 30)}.get(kind)
    if odd:
        count, low, high = odd
        at = torch.randperm(rows * width, generator=g)[:count]
        size = low + (high - low) * uniform(count)
        log_ratio.view(-1)[at] = torch.where(torch.arange(count) % 2 == 0, size, -size)
    top = -0.02 - 2 * uniform(rows, width)  # the larger of the two log-probs
    new, old = top + log_ratio.clamp(max=0), top - log_ratio.clamp(min=0)
    advantages = torch.randn((rows, width) if per_token else (rows,), generator=g, dtype=torch.float64)
    return Batch(new.to(dtype), old.to(dtype), advantages.to(dtype), mask)


def typed(ratios, advantages, mask=None, old: float | list = -5.0, dtype=torch.float64) -> Batch:
    """A batch by hand: token ratios [B, T], advantages [B] or [B, T], mask [B, T], old log-probs."""
    ratios = torch.tensor(ratios, dtype=torch.float64)
    old = torch.tensor(old, dtype=torch.float64).expand_as(ratios).clone()
    mask = torch.ones_like(ratios) if mask is None else torch.tensor(mask)
    advantages = torch.tensor(advantages, dtype=dtype)
    return Batch((old + ratios.log()).to(dtype), old.to(dtype), advantages, mask.bool())


def close(ours: Result, theirs: Result) -> None:
    """Equal within 1e-6 (float64: 5e-8, since verl adds 1e-8 to its counts): the gradient relative to its
    largest entry, the loss to the sum of its absolute terms, which float32 rounds, if that is above 1."""
    tolerance = 1e-6 if theirs.grad.dtype == torch.float32 else 5e-8
    assert theirs.grad.any() or theirs.loss, "nothing to compare"
    torch.testing.assert_close(
        ours.grad, theirs.grad, rtol=0, atol=tolerance * theirs.grad.abs().max().item()
    )
    assert theirs.loss == pytest.approx(ours.loss, rel=0, abs=tolerance * max(1.0, ours.size))
