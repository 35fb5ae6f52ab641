"""The two loss forms, how per-token losses become one number, and a critic's loss.

A loss form is a pair (value, slope) of constants [B, T]: the per-token loss and its derivative with
respect to the token's own log-prob. :func:`attach` hands both to autograd in one node, so the backward
pass is a single multiplication.

Aggregation is linear in the per-token losses: a mode is a weight per row, and its denominators are
*global* counts, so that losses of micro-batches add up to the loss of the whole batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlvr.checks import check_choice, check_number, refuse
from rlvr.indicators import indicator
from rlvr.ratios import RATIO_BOUND, bounded_exp, compute_dtype
from rlvr.tensor_checks import check_floating, check_mask
from rlvr.trust_regions import clip_bounds

AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)


class TokenLoss(NamedTuple):
    """Per-token loss and its derivative by ``log_prob``, both [B, T] and constant.

    ``share`` None: token t's loss depends on token t's log-prob alone. Otherwise every loss of a row
    depends on ``sum_k share_k l_k`` (a sequence ratio), and ``slope`` is its derivative by that sum.
    ``slope`` None: ``value`` carries its own autograd graph.
    """

    value: Tensor
    slope: Tensor | None
    share: Tensor | None = None


def masked_policy_gradient(
    log_prob: Tensor, weight: Tensor, advantages: Tensor, keep: Tensor | None, overwrite: bool = False
) -> TokenLoss:
    """``-M_t sg(w_t) A_t log pi(y_t|s_t)``: the weight is a constant (DPPO, IcePop, NFPO).

    ``log_prob``, ``weight``, ``keep`` [B, T]; ``advantages`` broadcasts. ``keep`` is the trust region and
    the response mask in one, None for neither. ``overwrite``: the slope may stand in the weight's memory.
    The value equals the surrogate's only up to a constant; gradients compare.
    """
    slope = weight.mul_(advantages) if overwrite else weight * advantages
    if keep is not None:
        slope.mul_(keep)
    return TokenLoss(slope.neg_() * log_prob, slope)


def clipped_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 3.0,
    bound: float = RATIO_BOUND,
) -> tuple[TokenLoss, Tensor, Tensor]:
    """``-min(rho A, clip(rho, 1-el, 1+eh) A)``, for A < 0 at most ``-c A``; gradient through the ratio.

    ``response_mask`` [B, T]; ``log_ratio`` [B, T], 0 where masked, or [B, 1] (a sequence ratio);
    ``advantages`` broadcasts. The slope is the derivative by ``log_ratio``.
    Returns (loss, rho, active): ``active``, of the shape of rho and A joined, is 1.0 where the clips let
    the gradient through and 0.0 elsewhere. A ratio on the clip's bound itself keeps it.
    """
    ratio = bounded_exp(log_ratio, bound)
    lower, upper = clip_bounds(advantages, clip_low, clip_high, dual_clip)
    effective = torch.maximum(torch.minimum(ratio, upper), lower)
    active = indicator(torch.eq, effective, ratio) * indicator(torch.le, log_ratio.abs(), bound)
    value = (effective * advantages) * response_mask
    value.neg_()
    return TokenLoss(value, value * active), ratio, active


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, response_mask: Tensor, clip: float | None = 0.5
) -> tuple[Tensor, Tensor]:
    """A critic's loss, and the share of tokens that lost their gradient to the clip.

        V~_t = clip(V_t, V_old,t - clip, V_old,t + clip)
        loss = 1/2 mean_t max((V_t - R_t)^2, (V~_t - R_t)^2)      over valid tokens

    Args: ``values`` V (differentiable), ``old_values`` V_old of the step's start, ``returns`` R and
    ``response_mask``, [B, T]; what masked places hold (NaN too) does not matter. ``clip`` 0.5
    [public: verl's ``cliprange_value``]; None = off. The clip is pessimistic: a value beyond it, on the far
    side from its return, keeps its gradient back to it. Source: [public: verl ``compute_value_loss``; PPO's
    code].
    """
    check_floating("values", values)
    check_mask("response_mask", response_mask, like=values)
    dtype, valid = compute_dtype(values), response_mask.bool()
    given = [("values", values), ("old_values", old_values.detach()), ("returns", returns.detach())]
    for name, value in given:
        check_floating(name, value, like=values)
    value, old, target = (torch.where(valid, tensor.to(dtype), 0.0) for _, tensor in given)
    count = valid.sum().clamp_min(1)
    error = (value - target).square()
    if clip is None:
        return error.sum() / (2 * count), torch.zeros((), dtype=dtype, device=values.device)
    clip = check_number("clip", clip, lambda x: 0 < x < math.inf, "None (off) and finite numbers > 0")
    bounded = (torch.minimum(torch.maximum(value, old - clip), old + clip) - target).square()
    lost = (bounded > error).detach()
    return torch.maximum(error, bounded).sum() / (2 * count), lost.sum().to(dtype) / count


def aggregation_scale(
    response_mask: Tensor,
    loss_agg_mode: str,
    *,
    batch_num_tokens: int | Tensor | None = None,
    global_batch_size: int | Tensor | None = None,
    loss_scale_factor: int | float | None = None,
    dp_size: int = 1,
    dtype: torch.dtype = torch.float32,
    lengths: Tensor | None = None,
    averaged: Tensor | None = None,
) -> Tensor:
    """Weight of every token's loss in the total: a scalar, or [B, 1] for ``seq-mean-token-mean``.

    With D = dp_size, M = valid tokens, B = rows with at least one valid token, n_i = valid tokens of row
    i, L = loss_scale_factor (default: the width T):

        token-mean               D / M          token-sum            D
        seq-mean-token-sum       D / B          seq-mean-token-mean  D / (B n_i)
        seq-mean-token-sum-norm  D / (B L)

    M and B are those of this batch unless ``batch_num_tokens`` / ``global_batch_size`` give the global
    ones (all micro-batches, all ranks). Fully masked rows are not counted, and with nothing valid every
    loss is 0. ``lengths`` [B, 1] are the valid tokens of each row, if known; ``averaged`` [B, 1], if given,
    stands for n_i where a loss is over some tokens of a row only.
    Source: [public: verl ``agg_loss``]; NFPO's release omits D / B in the last mode.
    """
    check_mask("response_mask", response_mask)
    check_choice("loss_agg_mode", loss_agg_mode, AGGREGATIONS)
    valid = response_mask.bool()
    lengths = valid.sum(-1, keepdim=True) if lengths is None else lengths
    for name, count in (("batch_num_tokens", batch_num_tokens), ("global_batch_size", global_batch_size)):
        if count is not None:
            # a batch with nothing valid counts 0, and its loss is 0 whatever the denominator
            _check_count(name, count, int(lengths.any()), "None (of this batch) and finite numbers >= 1")
    if loss_scale_factor is not None:
        _check_count("loss_scale_factor", loss_scale_factor, 1e-9, "None (the width) and finite numbers > 0")
    _check_count("dp_size", dp_size, 1, "finite numbers >= 1")

    def per(count: int | float | Tensor) -> Tensor:
        count = torch.as_tensor(count, dtype=dtype, device=valid.device)
        return dp_size / count.clamp_min(1)

    if loss_agg_mode == "token-sum":
        return torch.full((), float(dp_size), dtype=dtype, device=valid.device)
    if loss_agg_mode == "token-mean":
        return per(lengths.sum() if batch_num_tokens is None else batch_num_tokens)
    per_row = per((lengths > 0).sum() if global_batch_size is None else global_batch_size)
    if loss_agg_mode == "seq-mean-token-sum":
        return per_row
    if loss_agg_mode == "seq-mean-token-mean":
        return per_row / (lengths if averaged is None else averaged).clamp_min(1)
    return per_row / (valid.shape[-1] if loss_scale_factor is None else loss_scale_factor)


def _number(count: object) -> object:
    """A 0-d tensor's number, anything else as it is. (One transfer from an accelerator.)"""
    if not isinstance(count, Tensor):
        return count
    return count.item() if count.ndim == 0 and count.device.type != "meta" else None


def _check_count(name: str, count: object, least: float, allowed: str) -> None:
    try:
        check_number(name, _number(count), lambda x: least <= x < math.inf, allowed)
    except ValueError:
        raise refuse(name, count, allowed) from None


def aggregate(
    token_loss: Tensor, response_mask: Tensor, loss_agg_mode: str = "token-mean", **counts
) -> Tensor:
    """Weighted sum of a per-token loss [B, T] over valid tokens, a scalar; differentiable.

    In float32 at least. ``counts`` as in :func:`aggregation_scale`. What masked places hold (NaN too) does
    not matter.
    """
    check_floating("token_loss", token_loss)
    check_mask("response_mask", response_mask, like=token_loss)
    dtype = compute_dtype(token_loss)
    scale = aggregation_scale(response_mask, loss_agg_mode, dtype=dtype, **counts)
    return (torch.where(response_mask.bool(), token_loss.to(dtype), 0.0) * scale).sum()


class _KnownSlope(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, log_prob: Tensor, value: Tensor, slope: Tensor, share: Tensor | None, scale: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(slope, share, scale)
        ctx.dtype = log_prob.dtype
        return value.clone()  # no view, so that a caller may add to the loss in place

    @staticmethod
    def backward(ctx, grad: Tensor):
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("create_graph=True: objectives are differentiable in first order only")
        slope, share, scale = ctx.saved_tensors
        grad = (grad if scale is None else grad * scale) * slope
        if share is not None:
            grad = grad.sum(-1, keepdim=True) * share
        return grad.to(ctx.dtype), None, None, None, None


def attach(
    log_prob: Tensor, value: Tensor, slope: Tensor, share: Tensor | None = None, scale: Tensor | None = None
) -> Tensor:
    """``value`` (a scalar, or [B, T]) with the gradient of :class:`TokenLoss` by ``log_prob``.

    ``slope`` is then the derivative of the scalar, or of each token's loss. First order only.
    """
    return _KnownSlope.apply(log_prob, value, slope, share, scale)
