"""Block ratios: a token's own ratio joined with those of the next tokens under the MTP modules."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlvr.checks import check_choice, describe
from rlvr.losses import TokenLoss, attach
from rlvr.objectives.clipped import clipped_terms
from rlvr.ratios import RATIO_BOUND, block_log_ratio, block_mask, block_weights, bounded_exp
from rlvr.registry import Batch, Terms, register

MtpGradient = Literal["stop", "full"]


@register("token-mean", needs=("mtp_log_prob", "old_mtp_log_prob"), advantages="critic")
def mpo(
    batch: Batch,
    *,
    mtp_log_prob: Tensor | None = None,
    old_mtp_log_prob: Tensor | None = None,
    mtp_weight: float = 0.2,
    decay: float = 0.8,
    mtp_gradient: MtpGradient = "stop",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> Terms:
    """PPO whose ratio is that of a block of K tokens; use with a critic's GAE advantages.

    Formula:
        r_t    = exp(sum_{k=1}^K b_k l_t^(k)),  sum_k b_k = 1,  b_{k+1} = decay b_k for k >= 2
        l_t^(1) the backbone's log ratio of y_t;  l_t^(k) module k's of y_{t+k-1}, 0 past the end
        loss_t = dual-clipped surrogate on r_t

    In short: block r_t | PPO clip on r_t

    Args:
        mtp_log_prob: [B, T, K-1] nats, entry [i, t, k-2]: log-prob of y_{t+k-1} under module k from position
            t; what stands where t or t+k-1 is masked does not matter. None: K = 1, which is ppo
        old_mtp_log_prob: the same under the policy of old_log_prob; both come from the trainer
        mtp_weight: S = sum of b_k over k >= 2, 0.2 (10-20 % is best [text: MPO 5.4]); b_1 = 1 - S
        decay: lambda, 0.8 [text: MPO 5.4]
        mtp_gradient: "stop": module log-probs act on r_t and its clip as values only [choice]; "full": they
            get the gradient b_k r_t A_t too
        clip_low: distance of the lower bound from the ratio 1, 0.2 [public: PPO]
        clip_high: distance of the upper bound from the ratio 1, 0.2 [public: PPO]
        dual_clip: upper bound of the ratio where A < 0, 3 [public: verl]; None = off
    Detached: the advantage, the decision what is clipped, and with "stop" every l_t^(k), k >= 2. Then the
        gradient by log pi(y_t) is b_1 times PPO's: compare at equal learning rate with care.
    Metrics: clip_fraction; ratio_* are those of r_t, kl that of the backbone; token_ratio_mean is rho's.
    Deviations: the recursion of the weights and what the gradient reaches are choices; a hole of the mask
        breaks a block as the response's end does.
    Sources: MPO (arXiv 2602.14386) Eq. 8-10 as read in its OpenReview discussion: a weighted log-sum.
    """
    return _block(
        batch, mtp_log_prob, old_mtp_log_prob, mtp_weight, decay, mtp_gradient, clip_low, clip_high, dual_clip
    )


@register("token-mean", needs=("mtp_log_prob", "old_mtp_log_prob"))
def mpo_grpo(
    batch: Batch,
    *,
    mtp_log_prob: Tensor | None = None,
    old_mtp_log_prob: Tensor | None = None,
    mtp_weight: float = 0.2,
    decay: float = 0.8,
    mtp_gradient: MtpGradient = "stop",
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 3.0,
) -> Terms:
    """MPO's block ratio in GRPO; use with group relative advantages.

    Formula:
        r_t    = exp(sum_{k=1}^K b_k l_t^(k)),  sum_k b_k = 1,  b_{k+1} = decay b_k for k >= 2
        loss_t = dual-clipped surrogate on r_t

    In short: block r_t | PPO clip on r_t

    Args:
        mtp_log_prob: [B, T, K-1] nats, as in mpo. None: K = 1, which is grpo
        old_mtp_log_prob: the same under the policy of old_log_prob; both come from the trainer
        mtp_weight: S = sum of b_k over k >= 2, 0.2 (10-20 % is best [text: MPO 5.4]); b_1 = 1 - S
        decay: lambda, 0.8 [text: MPO 5.4]
        mtp_gradient: "stop" or "full", as in mpo [choice]
        clip_low: distance of the lower bound from the ratio 1, 0.2 [choice: as grpo]
        clip_high: distance of the upper bound from the ratio 1, 0.28 [choice: as grpo]
        dual_clip: upper bound of the ratio where A < 0, 3 [public: verl]; None = off
    Detached: as in mpo.
    Metrics: as in mpo.
    Deviations: as in mpo; the paper runs MPO on PPO with a critic, this variant stands beside it [choice].
    Sources: MPO (arXiv 2602.14386) Eq. 8-10 as read in its OpenReview discussion.
    """
    return _block(
        batch, mtp_log_prob, old_mtp_log_prob, mtp_weight, decay, mtp_gradient, clip_low, clip_high, dual_clip
    )


def _block(
    batch: Batch,
    mtp_log_prob: Tensor | None,
    old_mtp_log_prob: Tensor | None,
    mtp_weight: float,
    decay: float,
    mtp_gradient: MtpGradient,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> Terms:
    check_choice("mtp_gradient", mtp_gradient, ("stop", "full"))
    if (mtp_log_prob is None) != (old_mtp_log_prob is None):
        missing = "mtp_log_prob" if mtp_log_prob is None else "old_mtp_log_prob"
        raise ValueError(f"{missing}=None: allowed are both MTP log-probs, or neither (a block of one token)")
    if mtp_log_prob is None:
        block_weights(2, mtp_weight, decay)  # checked all the same
        mtp = batch.log_ratio.new_zeros(*batch.log_ratio.shape, 0)
    else:
        if not isinstance(mtp_log_prob, Tensor) or mtp_log_prob.ndim != 3:
            raise ValueError(
                f"mtp_log_prob is {describe(mtp_log_prob)}: allowed is a tensor "
                "[B, T, K-1], one entry per MTP module"
            )
        exists = block_mask(batch.valid, mtp_log_prob.shape[-1] + 1)
        new = batch.select(mtp_log_prob, "mtp_log_prob", exists)
        old = batch.select(old_mtp_log_prob, "old_mtp_log_prob", exists)
        mtp = (new - old).nan_to_num_(0.0, RATIO_BOUND, -RATIO_BOUND).clamp_(-RATIO_BOUND, RATIO_BOUND)
    weights = block_weights(mtp.shape[-1] + 1, mtp_weight, decay)
    token = batch.log_ratio.clamp(-RATIO_BOUND, RATIO_BOUND) if len(weights) > 1 else batch.log_ratio
    log_ratio = block_log_ratio(token, mtp, weights)
    terms = clipped_terms(batch, log_ratio, batch.advantages, clip_low, clip_high, dual_clip)
    terms.metrics["token_ratio_mean"] = batch.mean(bounded_exp(token, RATIO_BOUND))

    value, slope, _ = terms.loss  # the slope by log r_t
    own = slope * weights[0]
    if len(weights) > 1:
        own = torch.where(batch.log_ratio.abs() <= RATIO_BOUND, own, 0.0)
    terms.loss = TokenLoss(value, own)
    if mtp_gradient == "full" and mtp_log_prob is not None:
        # by module k: b_k times the slope by log r_t, where l^(k) exists and is not bounded
        coefficient = slope[..., None] * slope.new_tensor(weights[1:])
        inside = exists & ((new - old).abs() <= RATIO_BOUND)
        coefficient = torch.where(inside, coefficient, 0.0)
        with torch.set_grad_enabled(batch.grad_enabled):
            live = torch.where(inside, mtp_log_prob.to(slope.dtype), 0.0)
            through = (coefficient * (live - live.detach())).sum(-1)
            terms.loss = TokenLoss(attach(batch.live_log_prob, value, own) + through, None)
    return terms
