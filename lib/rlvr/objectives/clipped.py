"""Clipped surrogate over one token's ratio: PPO, and what changes its clip, advantage or aggregation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rlvr.checks import check_integer, check_number, check_pair
from rlvr.indicators import indicator
from rlvr.losses import TokenLoss, clipped_surrogate
from rlvr.ratios import RATIO_BOUND, discounted_future
from rlvr.registry import Batch, Terms, register


def clipped_terms(
    batch: Batch,
    log_ratio: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    bound: float = RATIO_BOUND,
) -> Terms:
    """The clipped surrogate over a ratio [B, T] as the terms of an objective."""
    loss, ratio, active = clipped_surrogate(
        log_ratio, advantages, batch.mask, clip_low, clip_high, dual_clip, bound
    )
    return Terms(loss, ratio, metrics={"clip_fraction": lost_gradient(active, advantages, batch)})


def lost_gradient(active: Tensor, advantages: Tensor, batch: Batch) -> Tensor:
    """Share of tokens with an advantage whose gradient is cut off."""
    lost = indicator(torch.ne, advantages, 0) * (1 - active)
    return batch.share(batch.zero_masked_(lost) if lost.shape == batch.valid.shape else lost * batch.mask)


def _token(batch: Batch, clip_low: float, clip_high: float, dual_clip: float | None) -> Terms:
    return clipped_terms(batch, batch.log_ratio, batch.advantages, clip_low, clip_high, dual_clip)


@register("token-mean", advantages="critic")
def ppo(
    batch: Batch, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = 3.0
) -> Terms:
    """Clipped surrogate with a symmetric clip; use with a critic's GAE advantages.

    Formula:
        rho_t  = exp(log pi(y_t|s_t) - log mu(y_t|s_t)),  |log rho_t| <= 20
        loss_t = -min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)
        loss_t = min(loss_t, -dual_clip A_t)              where A_t < 0

    In short: rho_t | PPO clip

    Args:
        clip_low: distance of the lower bound from the ratio 1, 0.2 [public: PPO]
        clip_high: distance of the upper bound from the ratio 1, 0.2 [public: PPO]
        dual_clip: upper bound of the ratio where A < 0, 3 [public: verl]; None = off
    Detached: the advantage and the decision what is clipped; the gradient runs through the ratio.
    Metrics: clip_fraction, the share of tokens that lost their gradient to the clip or the dual clip.
    Deviations: the dual clip is not in the PPO paper. clip_high is PPO's own, 0.2: the 0.28 of the NFPO
        paper's baselines is clip-higher (data/decisions.yaml).
    Sources: PPO (arXiv 1707.06347) Eq. 7; dual clip (arXiv 1912.09729) as in verl.
    """
    return _token(batch, clip_low, clip_high, dual_clip)


@register("token-mean")
def grpo(
    batch: Batch, *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float | None = 3.0
) -> Terms:
    """Clipped surrogate with clip-higher; use with group relative advantages.

    Formula:
        A_i    = (R_i - mean R) / (std R + 1e-6)          within the responses to one prompt
        loss_t = -min(rho_t A_i, clip(rho_t, 1 - clip_low, 1 + clip_high) A_i)
        loss_t = min(loss_t, -dual_clip A_i)              where A_i < 0

    In short: rho_t | PPO clip

    Args:
        clip_low: distance of the lower bound from the ratio 1, 0.2 [text: NFPO App. C]
        clip_high: distance of the upper bound from the ratio 1, 0.28 [text: NFPO App. C]
        dual_clip: upper bound of the ratio where A < 0, 3 [public: verl]; None = off
    Detached: the advantage and the decision what is clipped; the gradient runs through the ratio.
    Metrics: clip_fraction, the share of tokens that lost their gradient to the clip or the dual clip.
    Deviations: aggregated by token-mean as in verl's recipe, the original GRPO by seq-mean-token-mean; the
        original's KL term to a reference policy is the trainer's business.
    Sources: GRPO (arXiv 2402.03300); clips as the NFPO paper runs it.
    """
    return _token(batch, clip_low, clip_high, dual_clip)


@register("seq-mean-token-sum-norm", advantages="centred")
def dr_grpo(
    batch: Batch, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = 3.0
) -> Terms:
    """GRPO without its two biases: no division by the std, none by the response's own length.

    Formula:
        A_i    = R_i - mean R                             (group_relative(..., std="none"))
        loss_t = -min(rho_t A_i, clip(rho_t, 1 - clip_low, 1 + clip_high) A_i)
        loss   = 1/(B L) sum_i sum_t loss_t               L a constant: loss_scale_factor, default T

    In short: rho_t | PPO clip

    Args:
        clip_low: distance of the lower bound from the ratio 1, 0.2 [public: Dr. GRPO]
        clip_high: distance of the upper bound from the ratio 1, 0.2 [public: Dr. GRPO]
        dual_clip: upper bound of the ratio where A < 0, 3 [public: verl]; None = off
    Detached: the advantage and the decision what is clipped; the gradient runs through the ratio.
    Metrics: clip_fraction, the share of tokens that lost their gradient to the clip or the dual clip.
    Deviations: the divisor L differs by framework (docs/same-name.md); give loss_scale_factor the constant
        you mean, e.g. the longest response allowed, or the padded width of the batch enters the loss.
    Sources: Dr. GRPO (arXiv 2503.20783); the advantage is the caller's.
    """
    return _token(batch, clip_low, clip_high, dual_clip)


@register("token-mean")
def dapo(
    batch: Batch, *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float | None = 10.0
) -> Terms:
    """The loss of DAPO: clip-higher and one mean over all tokens; sampling and shaping are outside.

    Formula:
        loss_t = -min(rho_t A_i, clip(rho_t, 1 - clip_low, 1 + clip_high) A_i)
        loss_t = min(loss_t, -dual_clip A_i)              where A_i < 0
        loss   = 1/M sum_i sum_t loss_t                   M = all valid tokens of the global batch

    In short: rho_t | PPO clip

    Args:
        clip_low: distance of the lower bound from the ratio 1, 0.2 [public: DAPO]
        clip_high: distance of the upper bound from the ratio 1, 0.28 [public: DAPO]
        dual_clip: upper bound of the ratio where A < 0, 10 [public: DAPO's script in verl]; None = off
    Detached: the advantage and the decision what is clipped; the gradient runs through the ratio.
    Metrics: clip_fraction, the share of tokens that lost their gradient to the clip or the dual clip.
    Deviations: none in the loss. Dynamic sampling and overlong shaping act on the batch and the rewards
        before it (rlvr.rewards); the filter reads raw accuracy, not the shaped reward.
    Sources: DAPO (arXiv 2503.14476) Eq. 8.
    """
    return _token(batch, clip_low, clip_high, dual_clip)


@register("token-mean")
def fipo(
    batch: Batch,
    *,
    half_life: float = 32.0,
    influence_clip: tuple[float, float] = (1.0, 1.2),
    ratio_limit: float = 10.0,
    unsafe_influence_clip: tuple[float, float] | None = (0.8, 1.0),
    max_dual_clipped: int | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 10.0,
) -> Terms:
    """DAPO's loss on advantages that are weighted by the discounted log ratio of what follows.

    Formula:
        F_t    = sum_{k>=t} g^(k-t) l_k [rho_k <= ratio_limit],   g = 2^(-1/half_life)
        f_t    = clip(exp(F_t), influence_clip)
        f_t    = clip(exp(F_t), unsafe_influence_clip)            where A_t < 0 and rho_t > ratio_limit
        loss_t = dual-clipped surrogate on the advantage f_t A_t

    In short: rho_t, advantage f_t A_t | PPO clip

    Args:
        half_life: tokens after which a later log ratio counts half, 32 [public: g = 2^(-1/32)]
        influence_clip: (low, high) of the weight f; the released script clips high only, [1, 1.2] [public];
            the paper's formula is [0.8, 1.2]
        ratio_limit: tokens with a larger ratio are left out of the sum, 10 [public]
        unsafe_influence_clip: (low, high) of f for A < 0 and ratio > ratio_limit, [0.8, 1]: such a token is
            never pushed down harder [public: in the released code, not in its formula]; None = off
        max_dual_clipped: responses with more dual-clipped tokens than this give no gradient; 1 in the
            released code, though in no formula; None = off [choice]
        clip_low: distance of the lower bound from the ratio 1, 0.2 [public: DAPO]
        clip_high: distance of the upper bound from the ratio 1, 0.28 [public: DAPO]
        dual_clip: upper bound of the ratio where A < 0, 10 [public: DAPO's script in verl]; None = off
    Detached: f, the advantage and the decision what is clipped; the gradient runs through rho_t only.
    Metrics: clip_fraction; influence_mean, the mean of f; influence_clip_fraction, the share of tokens whose
        exp(F) lay outside its bounds; dropped_fraction, the share of tokens in dropped responses.
    Deviations: k - t counts valid tokens, the fork counts positions: they differ only at holes of the mask
        [choice]. Presets: FIPO_PRESETS.
    Sources: FIPO [public fork of verl]; no other paper here runs it as a baseline.
    """
    bounds = [_check_influence("influence_clip", influence_clip)]
    if unsafe_influence_clip is not None:
        bounds.append(_check_influence("unsafe_influence_clip", unsafe_influence_clip))
    ratio_limit = check_number("ratio_limit", ratio_limit, lambda x: x > 1, "numbers > 1 (inf = no limit)")
    if max_dual_clipped is not None:
        max_dual_clipped = min(
            check_integer("max_dual_clipped", max_dual_clipped, 0, "None (off) and integers >= 0"), 2**31
        )

    log_ratio = batch.log_ratio.clamp(-RATIO_BOUND, RATIO_BOUND)
    extreme = indicator(torch.gt, log_ratio, math.log(ratio_limit))
    future = discounted_future(log_ratio * (1 - extreme), batch.valid, half_life)
    raw = future.clamp_(-60, 60).to(log_ratio.dtype)
    raw = batch.zero_masked_(raw).exp_()
    influence = raw.clamp(*bounds[0])
    if unsafe_influence_clip is not None:
        unsafe = extreme * indicator(torch.lt, batch.advantages, 0)
        influence = torch.lerp(influence, raw.clamp(*bounds[1]), unsafe)
    terms = clipped_terms(
        batch, batch.log_ratio, batch.advantages * influence, clip_low, clip_high, dual_clip
    )
    terms.metrics["influence_mean"] = batch.mean(influence)
    terms.metrics["influence_clip_fraction"] = batch.share(indicator(torch.ne, influence, raw))
    dropped = batch.count.new_zeros(())
    if max_dual_clipped is not None and dual_clip is not None:
        hit = (terms.ratio > dual_clip) & (batch.advantages < 0) & batch.valid
        dropped = (hit.sum(-1, keepdim=True) > max_dual_clipped) & batch.valid
        value, slope, _ = terms.loss
        terms.loss = TokenLoss(value.masked_fill(dropped, 0.0), slope.masked_fill(dropped, 0.0))
        dropped = dropped.to(raw.dtype)
    terms.metrics["dropped_fraction"] = batch.share(dropped)
    return terms


FIPO_PRESETS: dict[str, dict[str, Any]] = {
    "text": {"influence_clip": (0.8, 1.2), "unsafe_influence_clip": None},
    "release": {"influence_clip": (1.0, 1.2), "unsafe_influence_clip": (0.8, 1.0), "max_dual_clipped": 1},
}


def _check_influence(name: str, bounds: tuple[float, float]) -> tuple[float, float]:
    return check_pair(
        name, bounds, lambda low, high: 0 <= low <= 1 <= high, "pairs (low, high) with 0 <= low <= 1 <= high"
    )
