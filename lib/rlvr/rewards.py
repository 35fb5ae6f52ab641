"""Rewards on their way to advantages: overlong answers, and what a correction earns a wrong answer.

The accuracy ``r`` in {0, 1} and the shaped reward ``R'`` stay apart: filters
(:func:`rlvr.advantages.informative_groups`), reward curves and evaluation read ``r``, advantages ``R'``.
Shapes: B responses, C corrections of each, T tokens. NaN is a missing sample.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from rlvr.checks import check_choice, check_number, describe
from rlvr.tensor_checks import check_floating, check_mask, usable

Variant = Literal["indicator", "ratio"]
Reduce = Literal["best", "mean", "first"]


def overlong_penalty(lengths: Tensor, max_length: int, buffer: int, penalty_factor: float = 1.0) -> Tensor:
    """Soft overlong punishment, to be added to the reward: [B], from 0 down to ``-penalty_factor``.

    0 up to ``max_length - buffer`` tokens, then linear, ``-penalty_factor`` from ``max_length`` on
    [public: DAPO Eq. 13, with factor 1]. verl's reward manager keeps falling beyond ``max_length``.

    Args:
        lengths: [B] tokens per response, whole numbers >= 0. verl counts every token up to the padding,
            also those that the model did not write.
        max_length: tokens at which the punishment is full; verl's ``max_resp_len``.
        buffer: tokens over which it grows, 0 < buffer <= max_length; verl's ``overlong_buffer.len``.

    Returns float32. Wrong answers of different lengths get different rewards: filter groups on accuracy.
    """
    if not isinstance(lengths, Tensor) or lengths.ndim != 1 or not _integers(lengths):
        raise ValueError(f"lengths={describe(lengths)}: allowed is a tensor of integers, [B]")
    if len(lengths) and lengths.min() < 0:
        raise ValueError(f"lengths holds {int(lengths.min())}: allowed are integers >= 0")
    max_length = check_number("max_length", max_length, lambda x: 0 < x < math.inf, "finite numbers > 0")
    allowed = f"0 < buffer <= max_length={max_length:g}"
    buffer = check_number("buffer", buffer, lambda x: 0 < x <= max_length, allowed)
    penalty_factor = _check_weight("penalty_factor", penalty_factor)
    excess = (lengths.double() - (max_length - buffer)).clamp(0, buffer)
    return (excess * (-penalty_factor / buffer) + 0.0).float()  # + 0.0: no negative zero


def mask_truncated(response_mask: Tensor, truncated: Tensor) -> Tensor:
    """Overlong filtering: ``response_mask`` [B, T] with truncated responses masked out whole [public: DAPO].

    ``truncated`` [B] bool: responses cut at the length limit, before they ended. The result is *the* mask:
    give it to the objective and count ``batch_num_tokens`` and ``global_batch_size`` on it, so that such
    responses leave numerator and denominator alike. Advantages still count them in their group; a reward
    of NaN takes them out there too.
    """
    check_mask("response_mask", response_mask)
    _check_flags("truncated", truncated, response_mask.sum(-1))
    return torch.where(truncated.unsqueeze(-1), torch.zeros_like(response_mask), response_mask)


def accepted_corrections(accuracy: Tensor, corrected: Tensor, rewrite: Tensor | None = None) -> Tensor:
    """``r(y) = 0 and r(y_hat) = 1 and not rewrite``, bool [B, C] [text: IBPO G.2, G.3].

    Args:
        accuracy: ``r(y)`` [B], in {0, 1}; NaN is missing.
        corrected: ``r(y_hat)`` [B, C], in {0, 1}; NaN where there is no such correction.
        rewrite: bool [B, C], corrections that are a new solution instead of a repair. None: no filter.
    """
    right, present = check_accuracy("accuracy", accuracy, 1)
    repaired, _ = check_accuracy("corrected", corrected, 2)
    if len(corrected) != len(accuracy):
        raise ValueError(
            f"corrected={describe(corrected)}: allowed is one row per response, [{len(accuracy)}, C]"
        )
    accepted = (present & ~right).unsqueeze(-1) & repaired
    if rewrite is None:
        return accepted
    _check_flags("rewrite", rewrite, corrected)
    return accepted & ~rewrite


def recoverability(
    accuracy: Tensor,
    corrected: Tensor,
    rewrite: Tensor | None = None,
    unchanged_share: Tensor | None = None,
    variant: Variant = "indicator",
    scale: float = 0.5,
    reduce: Reduce = "best",
) -> Tensor:
    """Shaping term ``phi`` in [0, 1] of every response, [B]; 0 for right and for missing ones.

        indicator    Delta = scale * 1[accepted]        ratio    Delta = |U| / T * 1[accepted]

    [text: IBPO 3.2, G.2, scale = 0.5]. A failed correction costs nothing: Delta = 0 [text G.2]. That
    phi = Delta [choice]: a recoverable failure then earns 0.3 with the weight 0.6. That rewrites earn
    nothing in the ratio variant either [text 4; the formula of G.2 precedes the filter of G.3].

    Args:
        accuracy, corrected, rewrite: as in :func:`accepted_corrections`.
        unchanged_share: ``|U| / T`` [B, C], of :func:`unchanged_share`; read by ``ratio`` only, and only
            where a correction is accepted.
        reduce: how C corrections make one phi. The text shapes with one correction and trains on ``G_c``
            of them; how these meet is a [choice]. ``best``: the largest Delta, so with ``indicator``
            whether any was accepted. ``mean``: over those that exist. ``first``: only the first.

    Returns float64 if ``unchanged_share`` is float64, else float32.
    """
    check_choice("variant", variant, ("indicator", "ratio"))
    check_choice("reduce", reduce, ("best", "mean", "first"))
    scale = check_number("scale", scale, lambda x: 0 <= x <= 1, "0 <= scale <= 1")
    accepted = accepted_corrections(accuracy, corrected, rewrite)
    if variant == "ratio":
        delta = _accepted_share(accepted, unchanged_share)
    else:
        delta = torch.where(accepted, scale, 0.0)
    if not corrected.shape[1]:
        return delta.sum(-1)
    if reduce == "first":
        return delta[:, 0]
    if reduce == "best":
        return delta.amax(-1)
    _, exists = check_accuracy("corrected", corrected, 2)
    return delta.sum(-1) / exists.sum(-1).clamp_min(1)


def unchanged_share(unchanged: Tensor, response_mask: Tensor) -> Tensor:
    """``|U| / T`` over the valid tokens of each response: [B] of [B, T], or [B, C] of [B, C, T].

    ``unchanged``: bool, tokens of ``y`` that the correction kept. ``response_mask`` [B, T] is that of
    ``y``: padding counts neither in U nor in T. A response without tokens gives 0.
    """
    check_mask("response_mask", response_mask)
    rows, width = response_mask.shape
    if (
        not isinstance(unchanged, Tensor)
        or not usable(unchanged, response_mask)
        or unchanged.dtype != torch.bool
        or unchanged.ndim not in (2, 3)
        or (unchanged.shape[0], unchanged.shape[-1]) != (rows, width)
    ):
        raise ValueError(
            f"unchanged={describe(unchanged)}: allowed is bool [{rows}, {width}] or [{rows}, C, {width}]"
        )
    valid = response_mask.bool()
    if unchanged.ndim == 3:
        valid = valid.unsqueeze(1)
    return (unchanged & valid).sum(-1) / valid.sum(-1).clamp_min(1)


def shaped_reward(reward: Tensor, phi: Tensor, shaping_weight: float = 0.6) -> Tensor:
    """``R' = R + lambda phi``, [B]; lambda = 0.6 [text: IBPO 3.3, Table 4]. A missing ``R`` stays NaN.

    ``reward`` [B] floating: the terminal reward, with other terms (:func:`overlong_penalty`) if any.
    ``phi`` [B] in [0, 1]. The weight is for rewards in {0, 1}: with the text's Y = 2 r - 1 (E.2) the same
    shaping has twice the lambda, so that E's bound 2 C / V on it halves here.
    """
    check_floating("reward", reward, ndim=1)
    check_floating("phi", phi, like=reward)
    _check_unit_interval("phi", phi)
    shaping_weight = _check_weight("shaping_weight", shaping_weight)
    return reward + shaping_weight * phi


def correction_reward(corrected: Tensor, rewrite: Tensor, rewrite_penalty: float = 0.5) -> Tensor:
    """Reward of the corrections themselves, ``r(y_hat) - penalty * 1[rewrite]``, float32 [B, C]; NaN stays.

    That a full rewrite is punished, right or wrong: [text: IBPO G.3]. Its size is not stated; any
    0 < penalty < 1 ranks repairs above right rewrites above failures that stayed local [choice].
    """
    right, present = check_accuracy("corrected", corrected, 2)
    _check_flags("rewrite", rewrite, corrected)
    rewrite_penalty = _check_weight("rewrite_penalty", rewrite_penalty)
    return torch.where(present, right.float() - rewrite_penalty * rewrite.float(), math.nan)


def best_correction(accepted: Tensor, unchanged_share: Tensor) -> Tensor:
    """Index in 0..C-1 of the accepted correction that keeps most of ``y``, -1 where none is accepted: [B].

    ``accepted`` bool, ``unchanged_share`` float, both [B, C]. The smallest repair says best which tokens
    were wrong; among equals the first [choice].
    """
    if (
        not isinstance(accepted, Tensor)
        or accepted.dtype != torch.bool
        or accepted.ndim != 2
        or not usable(accepted, accepted)
    ):
        raise ValueError(f"accepted={describe(accepted)}: allowed is dense bool [B, C]")
    if not accepted.shape[1]:
        return torch.full((len(accepted),), -1, device=accepted.device)
    share = torch.where(accepted, _accepted_share(accepted, unchanged_share), -1.0)
    first = (share == share.amax(-1, keepdim=True)).int().argmax(-1)
    return torch.where(accepted.any(-1), first, -1)


def changed_token_mask(unchanged: Tensor, recoverable: Tensor, response_mask: Tensor) -> Tensor:
    """Token mask ``m'`` of IBPO's mask variant, bool [B, T]: 0 on U of recoverable responses, else 1.

    Only tokens that the correction changed keep a gradient [text: IBPO G.2, I.2]; right responses and
    wrong ones without an accepted correction keep all of theirs [choice]. 0 wherever ``response_mask``
    is. A row may end up without any token: its sequence ratio divides by M = max(1, sum m').

    Args: ``unchanged`` bool [B, T], U of one correction each (:func:`best_correction`), read where
    ``recoverable`` (bool [B]) alone; ``response_mask`` [B, T].
    """
    check_mask("response_mask", response_mask)
    _check_flags("unchanged", unchanged, response_mask)
    _check_flags("recoverable", recoverable, response_mask.sum(-1))
    return response_mask.bool() & ~(unchanged & recoverable.unsqueeze(-1))


def check_accuracy(name: str, value: Tensor, ndim: int) -> tuple[Tensor, Tensor]:
    """(is 1, is present), bool tensors of ``value``'s shape; ValueError unless it holds 0, 1 and NaN only.

    Strict on purpose: a shaped or partial reward has a spread of its own and must not pass for accuracy.
    """
    if not isinstance(value, Tensor) or value.ndim != ndim or value.is_complex() or not usable(value, value):
        shape = "[B]" if ndim == 1 else "[B, C]"
        raise ValueError(f"{name}={describe(value)}: allowed is a dense tensor {shape}")
    right, present = value == 1, ~value.isnan()
    wrong = present & ~right & (value != 0)
    if wrong.any():
        raise ValueError(
            f"{name} holds {value[wrong][0].item()}: allowed are 0, 1 and NaN (missing), the verdict itself "
            "and not a shaped or partial reward"
        )
    return right, present


def _integers(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex()) and usable(value, value)


def _check_weight(name: str, value: float) -> float:
    return check_number(name, value, lambda x: 0 <= x < math.inf, "finite numbers >= 0")


def _accepted_share(accepted: Tensor, share: Tensor | None) -> Tensor:
    check_floating("unchanged_share", share, like=accepted)
    share = torch.where(accepted, share.to(torch.promote_types(share.dtype, torch.float32)), 0.0)
    _check_unit_interval("unchanged_share", share)
    return share


def _check_unit_interval(name: str, value: Tensor) -> None:
    outside = ~((value >= 0) & (value <= 1))
    if outside.any():
        raise ValueError(f"{name} holds {value[outside][0].item()}: allowed are 0 <= {name} <= 1")


def _check_flags(name: str, value: Tensor, like: Tensor) -> None:
    if (
        not isinstance(value, Tensor)
        or value.shape != like.shape
        or value.dtype != torch.bool
        or not usable(value, like)
    ):
        raise ValueError(f"{name}={describe(value)}: allowed is bool {list(like.shape)}")
