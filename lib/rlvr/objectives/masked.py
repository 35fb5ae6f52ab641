"""Masked policy gradient over one token's ratio: the weight is a constant, a mask says who is updated."""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr import trust_regions
from rlvr.checks import check_number
from rlvr.indicators import indicator
from rlvr.losses import masked_policy_gradient
from rlvr.ratios import RATIO_BOUND, bounded_exp
from rlvr.registry import Batch, Terms, register


def masked_terms(
    batch: Batch, ratio: Tensor, weight: Tensor, keep: Tensor | None, **metrics: Tensor
) -> Terms:
    """``-M sg(w) A log pi`` as the terms of an objective.

    ``weight`` is 1 where masked; one that is not ``ratio`` itself is used up. ``keep`` is the trust region,
    0 where masked afterwards; None keeps every token.
    """
    masked = batch.count.new_zeros(())
    if keep is not None:
        keep = batch.zero_masked_(keep)
        masked = batch.count - keep.sum()
    elif not batch.full:
        keep = batch.mask
    own = weight is not ratio
    strength = batch.mean_distance(weight) if own else None
    loss = masked_policy_gradient(batch.log_prob, weight, batch.advantages, keep, overwrite=own)
    metrics = {"masked_fraction": batch.share(masked), **metrics}
    return Terms(loss, ratio, strength=strength, metrics=metrics)


def token_ratio(batch: Batch, bound: float = RATIO_BOUND) -> Tensor:
    return bounded_exp(batch.log_ratio, bound, batch.extent)


@register("token-mean")
def dppo_tv(batch: Batch, *, delta: float = 0.2, ratio_cap: float = 20.0) -> Terms:
    """Policy gradient weighted by a truncated ratio, masked by the binary total variation.

    Formula:
        M_t    = [pi(y_t) - mu(y_t) <= delta]             where A_t > 0
        M_t    = [pi(y_t) - mu(y_t) >= -delta]            elsewhere
        loss_t = -M_t sg(min(rho_t, ratio_cap)) A_t log pi(y_t|s_t)

    In short: sg(min(rho_t, C)) | binary TV

    Args:
        delta: largest change of the sampled token's probability in the direction of the push, 0.2
            [text: NFPO App. C]; inf = no mask
        ratio_cap: C, upper bound of the weight, 20 [public: verl]; inf = no cap but |log rho| <= 20
    Detached: the weight and the mask; the gradient is that of log pi times constants.
    Metrics: masked_fraction; ratio_cap_fraction, the share of tokens whose ratio was above the cap.
    Deviations: verl reads C from clip_ratio_c, whose default 3 always wins over the 20 of its function.
    Sources: DPPO (arXiv 2602.04879), mask and cap as in verl 0.9.1.
    """
    ratio = token_ratio(batch)
    exact = ratio if batch.extent <= RATIO_BOUND else None
    keep = trust_regions.binary_tv(batch.log_prob, batch.old_log_prob, batch.advantages, delta, exact)
    return _dppo(batch, ratio, keep, ratio_cap)


@register("token-mean")
def dppo_kl(batch: Batch, *, delta: float = 0.05, ratio_cap: float = 20.0) -> Terms:
    """DPPO with the binary KL divergence as its trust region.

    Formula:
        D_t    = KL(Bern(mu(y_t)) || Bern(pi(y_t)))
        M_t    = [D_t <= delta]  or  the push moves pi(y_t) back towards mu(y_t)
        loss_t = -M_t sg(min(rho_t, ratio_cap)) A_t log pi(y_t|s_t)

    In short: sg(min(rho_t, C)) | binary KL

    Args:
        delta: largest divergence in nats, 0.05 [text: NFPO App. C]; inf = no mask
        ratio_cap: C, upper bound of the weight, 20 [public: verl]; inf = no cap but |log rho| <= 20
    Detached: the weight and the mask; the gradient is that of log pi times constants.
    Metrics: masked_fraction; ratio_cap_fraction, the share of tokens whose ratio was above the cap.
    Deviations: 1 - p is kept above 1e-8, where verl adds 1e-8 to it; a probability that rounding puts above
        1 is judged like 1, where verl gets a NaN and drops the token.
    Sources: DPPO (arXiv 2602.04879), mask and cap as in verl 0.9.1.
    """
    bounded = batch.log_ratio.clamp(-RATIO_BOUND, RATIO_BOUND)
    keep = trust_regions.binary_kl(batch.log_prob, batch.old_log_prob, bounded, batch.advantages, delta)
    return _dppo(batch, token_ratio(batch), keep, ratio_cap)


def _dppo(batch: Batch, ratio: Tensor, keep: Tensor, ratio_cap: float) -> Terms:
    ratio_cap = check_ratio_cap(ratio_cap)
    capped = batch.share(indicator(torch.gt, ratio, ratio_cap))
    return masked_terms(batch, ratio, ratio.clamp(max=ratio_cap), keep, ratio_cap_fraction=capped)


def check_ratio_cap(ratio_cap: float) -> float:
    return check_number(
        "ratio_cap", ratio_cap, lambda x: x >= 1, "numbers >= 1 (absolute, inf = no cap); ratio 1 weighs 1"
    )


@register("token-mean")
def cispo(batch: Batch, *, ratio_cap: float = 5.0, ratio_floor: float = 0.0) -> Terms:
    """Policy gradient weighted by a clipped ratio; the clip bounds the weight and silences no token.

    Formula:
        loss_t = -sg(clip(rho_t, ratio_floor, ratio_cap)) A_t log pi(y_t|s_t)

    In short: sg(clip(rho_t)) | none

    Args:
        ratio_cap: largest weight, absolute, 5 [public: TRL's paper index]; verl's 1 + clip_ratio_high
        ratio_floor: smallest weight, absolute, 0 = none [public: MiniMax-M1]; verl's 1 - clip_ratio_low
    Detached: the weight; the gradient is that of log pi times a constant.
    Metrics: masked_fraction is 0; ratio_cap_fraction, the share of weights that the clip changed.
    Deviations: both bounds are absolute, since the same "epsilon_high" means 1 + eps in verl and eps itself
        in TRL, where 0.2 silently divides every on-policy gradient by 5.
    Sources: MiniMax-M1 (arXiv 2506.13585) Eq. 4-5, whose value of the cap is not stated.
    """
    ratio_cap = check_ratio_cap(ratio_cap)
    ratio_floor = check_number(
        "ratio_floor", ratio_floor, lambda x: 0 <= x <= 1, "0 <= ratio_floor <= 1 (absolute, 0 = none)"
    )
    ratio = token_ratio(batch)
    weight = ratio.clamp(ratio_floor, ratio_cap)
    changed = batch.share(indicator(torch.ne, weight, ratio))
    return masked_terms(batch, ratio, weight, None, ratio_cap_fraction=changed)


@register("token-mean")
def icepop(batch: Batch, *, band: tuple[float, float] = (1 / 3, 3.0)) -> Terms:
    """Policy gradient weighted by the ratio; tokens whose ratio leaves a band are dropped.

    Formula:
        loss_t = -[low <= rho_t <= high] sg(rho_t) A_t log pi(y_t|s_t)

    In short: sg(rho_t) | ratio band

    Args:
        band: (low, high), absolute. [1/3, 3] is a [choice] for "ratio threshold 3.0" [text: NFPO App. C]
    Detached: the weight and the mask; the gradient is that of log pi times constants.
    Metrics: masked_fraction.
    Deviations: masked tokens stay in the denominator, as in verl (whose band is [0.5, 5]).
    Sources: IcePop as a baseline of the NFPO paper.
    """
    ratio = token_ratio(batch)
    return masked_terms(batch, ratio, ratio, trust_regions.ratio_band(ratio, band))


@register("token-mean")
def uncorrected(batch: Batch) -> Terms:
    """The control arm: what no off-policy correction at all does.

    Formula:
        loss_t = -A_t log pi(y_t|s_t)

    In short: 1 | none

    Detached: everything but log pi.
    Metrics: masked_fraction is 0; the ratio's own metrics show how far off-policy the batch is.
    Deviations: none.
    Sources: REINFORCE; a control of this project [choice].
    """
    ratio = token_ratio(batch)
    return masked_terms(batch, ratio, torch.ones_like(ratio), None)
