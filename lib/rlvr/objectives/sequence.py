"""One ratio per response: GSPO, its token and masked variants, and the geometric mean of clipped ratios."""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr.checks import check_number, describe
from rlvr.indicators import as_float, indicator
from rlvr.losses import TokenLoss, clipped_surrogate
from rlvr.objectives.clipped import lost_gradient
from rlvr.ratios import bounded_exp, sequence_log_ratio
from rlvr.registry import Batch, Terms, register
from rlvr.tensor_checks import check_binary, usable

SEQUENCE_BOUND = 10.0  # nats, on the mean log ratio [public: verl]


def _sequence(
    batch: Batch, clip_low: float, clip_high: float, ratio_bound: float, token_mask: Tensor | None = None
) -> tuple[TokenLoss, Terms]:
    """(loss with slopes by log s, terms): GSPO's surrogate, one ratio for the whole row."""
    log_ratio, share = sequence_log_ratio(batch.log_ratio, batch.valid, token_mask)
    loss, ratio, active = clipped_surrogate(
        log_ratio, batch.advantages, batch.mask, clip_low, clip_high, None, ratio_bound
    )
    loss = TokenLoss(*loss[:2], share)
    ratio = torch.lerp(torch.ones_like(ratio), ratio, batch.mask)
    clipped = lost_gradient(active, batch.advantages, batch)
    return loss, Terms(loss, ratio, metrics={"clip_fraction": clipped})


@register("seq-mean-token-mean")
def gspo(
    batch: Batch, *, clip_low: float = 3e-4, clip_high: float = 4e-4, ratio_bound: float = SEQUENCE_BOUND
) -> Terms:
    """Clipped surrogate over one length-normalised ratio per response.

    Formula:
        s_i    = exp(1/n_i sum_t l_t),  |log s_i| <= ratio_bound
        loss_t = -min(s_i A_t, clip(s_i, 1 - clip_low, 1 + clip_high) A_t)   the same for all t if A_t = A_i

    In short: s_i | PPO clip on s_i

    Args:
        clip_low: distance of the lower bound from the ratio 1, 3e-4 [public: GSPO 5.1]
        clip_high: distance of the upper bound from the ratio 1, 4e-4 [public: GSPO 5.1]; token clips of 0.2
            never act on a sequence ratio
        ratio_bound: bound on |log s| in nats, 10 [public: verl, above only]
    Detached: the advantage and the decision what is clipped; the gradient of s reaches all tokens of a row.
    Metrics: clip_fraction, the share of tokens in responses whose ratio was clipped; the ratio_* metrics are
        those of s, kl that of the token log ratios.
    Deviations: none. verl's gspo is this method's token variant with the configured aggregation: the same
        gradient where advantages are constant in a row (docs/same-name.md).
    Sources: GSPO (arXiv 2507.18071) Eq. 5-7; [text: IBPO I.2].
    """
    return _sequence(batch, clip_low, clip_high, ratio_bound)[1]


@register("seq-mean-token-mean")
def gspo_token(
    batch: Batch, *, clip_low: float = 3e-4, clip_high: float = 4e-4, ratio_bound: float = SEQUENCE_BOUND
) -> Terms:
    """GSPO for advantages that differ within a response: the value of s, the gradient of the token.

    Formula:
        s_t    = sg(s_i) pi(y_t|s_t) / sg(pi(y_t|s_t))
        loss_t = -min(s_t A_t, clip(s_t, 1 - clip_low, 1 + clip_high) A_t)

    In short: s_i, gradient of token t | PPO clip on s_i

    Args:
        clip_low: distance of the lower bound from the ratio 1, 3e-4 [public: GSPO 5.1]
        clip_high: distance of the upper bound from the ratio 1, 4e-4 [public: GSPO 5.1]
        ratio_bound: bound on |log s| in nats, 10 [public: verl, above only]
    Detached: s_i as a value, the advantage, the decision what is clipped; each token keeps its own gradient.
    Metrics: as gspo.
    Deviations: none. With one advantage per response its gradient is gspo's.
    Sources: GSPO (arXiv 2507.18071) Eq. 13-14.
    """
    loss, terms = _sequence(batch, clip_low, clip_high, ratio_bound)
    terms.loss = TokenLoss(loss.value, loss.slope)
    return terms


@register("seq-mean-token-mean", needs=("token_mask",))
def masked_gspo(
    batch: Batch,
    *,
    token_mask: Tensor | None = None,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    ratio_bound: float = SEQUENCE_BOUND,
) -> Terms:
    """GSPO whose ratio, and so its gradient, holds marked tokens only (IBPO's mask variant).

    Formula:
        s_i    = exp(1/M_i sum_t m'_t l_t),  M_i = max(1, sum_t m'_t)
        loss_t = -min(s_i A_t, clip(s_i, 1 - clip_low, 1 + clip_high) A_t)

    In short: masked s_i | PPO clip on s_i

    Args:
        token_mask: m' [B, T], 0/1, the tokens to update; None: all of them, which is gspo
        clip_low: distance of the lower bound from the ratio 1, 3e-4 [public: GSPO 5.1]
        clip_high: distance of the upper bound from the ratio 1, 4e-4 [public: GSPO 5.1]
        ratio_bound: bound on |log s| in nats, 10 [public: verl, above only]
    Detached: the advantage, the mask and the decision what is clipped; unmarked tokens get no gradient.
    Metrics: as gspo; marked_fraction, the share of tokens that token_mask marks.
    Deviations: none. A response's mean is over its marked tokens, so that an unmarked token's advantage has
        no say; one without a mark adds 0 and stays in the mean over responses. token-mean divides by all
        valid tokens: those are the counts that trainers have.
    Sources: [text: IBPO Eq. 7, G.2, I.2].
    """
    if token_mask is not None:
        shape = list(batch.valid.shape)
        if (
            not isinstance(token_mask, Tensor)
            or list(token_mask.shape) != shape
            or not usable(token_mask, batch.valid)
            or token_mask.is_complex()
        ):
            raise ValueError(
                f"token_mask is {describe(token_mask)}: allowed are None and a dense real tensor "
                f"of response_mask's shape {shape} on its device"
            )
        if batch.check:
            check_binary("token_mask", torch.where(batch.valid, token_mask, torch.zeros_like(token_mask)))
        token_mask = batch.valid & token_mask.bool()  # whatever stands where nothing is valid
    terms = _sequence(batch, clip_low, clip_high, ratio_bound, token_mask)[1]
    marks = batch.mask if token_mask is None else as_float(token_mask, batch.mask.dtype)
    terms.metrics["marked_fraction"] = batch.share(marks)
    if token_mask is not None:
        value, slope, share = terms.loss
        terms.loss = TokenLoss(value * marks, slope * marks, share)
        terms.averaged = marks.sum(-1, keepdim=True)
    return terms


@register("seq-mean-token-mean")
def gmpo(
    batch: Batch, *, clip_low: float = 0.4, clip_high: float = 0.4, ratio_bound: float = SEQUENCE_BOUND
) -> Terms:
    """Geometric mean of token ratios that are clipped one by one, one-sided, in log space.

    Formula:
        c_t    = min(l_t, clip_high)                      where A_t > 0
        c_t    = max(l_t, -clip_low)                      elsewhere
        R_i    = exp(1/n_i sum_t c_t),  |log R_i| <= ratio_bound
        loss_t = -R_i A_t

    In short: R_i of clipped rho_t | PPO clip, per token, in log space

    Args:
        clip_low: smallest log ratio is -clip_low (nats) where the push is down, 0.4 [public: GMPO]
        clip_high: largest log ratio (nats) where the push is up, 0.4 [public: GMPO]
        ratio_bound: bound on |log R| in nats, 10 [choice: as gspo; verl has none]
    Detached: the advantage and the decision what is clipped; the gradient of R reaches the unclipped tokens.
    Metrics: clip_fraction, the share of clipped tokens; the ratio_* metrics are those of R, kl that of the
        token log ratios.
    Deviations: averaged over responses with at least one valid token; verl divides by all rows of the batch,
        whatever aggregation is configured, and its n_i by n_i + 1e-8.
    Sources: GMPO (arXiv 2507.20673) Eq. 4.
    """
    clip_low, clip_high = (
        check_number(name, value, lambda x: x > 0, "numbers > 0 (nats; inf = no clip)")
        for name, value in (("clip_low", clip_low), ("clip_high", clip_high))
    )
    up = indicator(torch.gt, batch.advantages, 0)
    # upper bound inf where pushed down, lower where pushed up
    big = torch.finfo(up.dtype).max
    clipped = torch.minimum(batch.log_ratio, (1 - up).mul_(big).add_(up, alpha=min(clip_high, big)))
    clipped = torch.maximum(clipped, (1 - up).mul_(-min(clip_low, big)).sub_(up, alpha=big))
    kept = indicator(torch.eq, clipped, batch.log_ratio).mul_(batch.mask)
    log_ratio, share = sequence_log_ratio(clipped, batch.valid)
    ratio = bounded_exp(log_ratio, ratio_bound)
    value = (ratio * batch.advantages * batch.mask).neg_()
    slope = value * indicator(torch.le, log_ratio.abs(), ratio_bound)
    ratio = torch.lerp(torch.ones_like(ratio), ratio, batch.mask)
    loss = TokenLoss(value, slope, share * kept)
    return Terms(loss, ratio, metrics={"clip_fraction": lost_gradient(kept, batch.advantages, batch)})
