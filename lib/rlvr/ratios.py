"""Likelihood ratios: how far ahead a token's credit looks.

With rollout policy mu, current policy pi and response mask m:

    l_t = log pi(y_t|s_t) - log mu(y_t|s_t)      log ratio, 0 where m_t = 0
    rho_t = exp(l_t)                             token ratio
    Gamma_{t+1}^(N) = prod_{j=t+1}^{min(t+N-1, T)} rho_j     N-step forward trace, empty product = 1
    s = exp(sum_t m'_t l_t / max(1, sum_t m'_t))              (masked) sequence ratio
    r_t = exp(sum_{k=1}^K b_k l_t^(k))                        block ratio over K tokens

Everything is computed in log space, in float32 at least; products are differences of float64 prefix
sums, so their cost does not depend on N and no [B, T, N] tensor exists.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from rlvr.checks import check_choice, check_integer, check_number, check_pair, describe, refuse
from rlvr.indicators import as_bits, as_float, select
from rlvr.tensor_checks import check_floating, check_mask

Window = Literal["valid", "positions"]
TraceGradient = Literal["stop", "full"]

RATIO_BOUND = 20.0  # |log rho| of every objective but NFPO (public: verl clamps there)
EXP_LIMIT = 60.0  # nats: a sum of 1e6 unclipped weights still fits float32 [choice]
_LOG_LIMIT = 700.0  # keeps an infinite log ratio finite in a float64 prefix sum; exp(700) < float64 max


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any input is float64, else float32: bfloat16 cannot tell log-probs -5.00 and -5.01 apart."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def log_ratio(log_prob: Tensor, old_log_prob: Tensor, response_mask: Tensor) -> Tensor:
    """``l_t = log_prob - old_log_prob``, exactly 0 where ``response_mask`` is 0.

    Args: three tensors [B, T] (nats; mask 0/1). Returns [B, T] in float32 or float64.
    NaN or -inf at masked places reaches neither the value nor the gradient: ``where`` hands the
    subtraction a gradient of 0 there, and the gradient of a subtraction does not read its inputs.
    """
    check_floating("log_prob", log_prob)
    check_floating("old_log_prob", old_log_prob, like=log_prob)
    check_mask("response_mask", response_mask, like=log_prob)
    dtype = compute_dtype(log_prob, old_log_prob)
    difference = log_prob.to(dtype) - old_log_prob.to(dtype)
    return torch.where(response_mask.bool(), difference, 0.0)


def token_ratio(
    log_prob: Tensor, old_log_prob: Tensor, response_mask: Tensor, bound: float = RATIO_BOUND
) -> Tensor:
    """``rho_t = exp(clamp(l_t, -bound, bound))``, [B, T]; exactly 1 where masked.

    ``bound`` is in nats: 20 [public: verl], 10 in NFPO [official]. Outside it the gradient is 0.
    """
    return bounded_exp(log_ratio(log_prob, old_log_prob, response_mask), bound)


def bounded_exp(value: Tensor, bound: float, extent: float = math.inf) -> Tensor:
    """``exp`` of ``value`` clamped to +-``bound`` nats (0 < bound <= 80, so that float32 stays finite).

    ``extent``: the largest magnitude in ``value``, if known; within the bound nothing is clamped.
    """
    bound = check_number(
        "ratio_bound", bound, lambda x: 0 < x <= 80, "0 < bound <= 80 nats (exp(88) overflows float32)"
    )
    return value.exp() if extent <= bound else value.clamp(-bound, bound).exp_()


def forward_trace(
    log_ratio: Tensor,
    response_mask: Tensor,
    horizon: int,
    ratio_clip: float | None = 3.0,
    trace_clip: tuple[float, float] | None = (0.8, 1.4),
    window: Window = "valid",
    trace_gradient: TraceGradient = "stop",
) -> Tensor:
    """Clipped N-step forward trace ``clip(prod_{j=t+1}^{t+N-1} clip(rho_j, 1/beta, beta), lo, hi)``, [B, T].

    Args:
        log_ratio: ``l`` [B, T]; what it holds at masked places does not matter.
        response_mask: [B, T], 0/1. A masked token is a factor 1 and never a reason for a NaN.
        horizon: N, counting the current token, so N-1 factors: N=1 is 1 everywhere, N >= T is the
            full trace [text: NFPO, sections 1 and 3].
        ratio_clip: beta >= 1, clips each factor on both sides [official; text: App. C names beta = 3].
            None = no clip.
        trace_clip: (lo, hi) with lo <= 1 <= hi [text: App. C]. None = no clip, only overflow is capped.
        window: ``valid`` counts the next N-1 valid tokens, ``positions`` the next N-1 positions
            [choice; the authors' release counts positions]. They differ only at holes of the mask.
        trace_gradient: ``stop`` computes a constant, ``full`` lets autograd through.

    Values at masked places are finite and carry no meaning.
    """
    check_floating("log_ratio", log_ratio)
    check_mask("response_mask", response_mask, like=log_ratio)
    with torch.set_grad_enabled(differentiates_trace(trace_gradient) and torch.is_grad_enabled()):
        out = compute_dtype(log_ratio)
        dtype = log_trace_dtype(trace_clip, out)
        log_trace = log_forward_trace(log_ratio, response_mask, horizon, ratio_clip, window, dtype)
        return clip_trace(log_trace, trace_clip, out)


def log_trace_dtype(trace_clip: tuple[float, float] | None, dtype: torch.dtype) -> torch.dtype:
    """In which the logarithm of a trace of ``dtype`` is exponentiated: float64 unless its clips are near 1.
    A log of 16 rounded to float32 is off by 1e-6."""
    if trace_clip is None:
        return torch.float64
    low, high = check_trace_clip(trace_clip)
    return dtype if low > math.exp(-1) and high < math.exp(1) else torch.float64


def log_forward_trace(
    log_ratio: Tensor,
    response_mask: Tensor,
    horizon: int,
    ratio_clip: float | None = 3.0,
    window: Window = "valid",
    dtype: torch.dtype = torch.float64,
    zeroed: bool = False,
    extent: float = math.inf,
) -> Tensor:
    """Logarithm of the trace before its own clip, [B, T] in ``dtype``; see :func:`forward_trace`.

    ``zeroed``: ``log_ratio`` is 0 where masked; ``extent``: its largest magnitude, if known.
    """
    horizon = _check_horizon(horizon)
    limit = _LOG_LIMIT
    if ratio_clip is not None:
        ratio_clip = check_number(
            "ratio_clip", ratio_clip, lambda x: x >= 1, "None (no clip) and numbers >= 1"
        )
        limit = min(limit, math.log(ratio_clip))
    valid = response_mask.bool()
    # float64 before the clip: log 3 rounded to float32, 255 times over, is an error of 6e-6.
    if zeroed:
        factors = log_ratio.to(torch.float64, copy=True)
    else:
        factors = torch.where(valid, log_ratio, 0.0).double()
    if extent > limit:
        factors = factors.clamp_(-limit, limit)
    return _sum_of_next(factors, valid, horizon - 1, window, dtype)


def clip_trace(log_trace: Tensor, trace_clip: tuple[float, float] | None, dtype: torch.dtype) -> Tensor:
    """``clip(exp(log_trace), lo, hi)`` in ``dtype``; without a clip, capped at the largest finite number."""
    if trace_clip is None:
        return log_trace.clamp(max=math.log(torch.finfo(dtype).max) - 1e-6).exp().to(dtype)
    low, high = check_trace_clip(trace_clip)
    limit = math.log(torch.finfo(dtype).max) - 1e-6
    return log_trace.clamp(max=limit).exp().clamp(low, min(high, torch.finfo(dtype).max)).to(dtype)


def check_trace_clip(trace_clip: tuple[float, float]) -> tuple[float, float]:
    return check_pair(
        "trace_clip",
        trace_clip,
        lambda low, high: 0 <= low <= 1 <= high,
        "None (no clip) and pairs (low, high) with 0 <= low <= 1 <= high (an empty trace keeps its value 1)",
    )


def _check_horizon(horizon: int) -> int:
    return check_integer("horizon", horizon, 1, "integers >= 1 (1 = no trace, T = full trace)")


def differentiates_trace(trace_gradient: TraceGradient) -> bool:
    """Whether ``trace_gradient`` asks for the trace's own gradient."""
    return check_choice("trace_gradient", trace_gradient, ("stop", "full")) == "full"


def _sum_of_next(values: Tensor, valid: Tensor, count: int, window: Window, dtype: torch.dtype) -> Tensor:
    """Sum of the ``count`` entries after each position, [B, T]; ``values`` (float64) is 0 where masked and
    is used up."""
    check_choice("window", window, ("valid", "positions"))
    width = values.shape[-1]
    count = min(count, width)
    if count == 0:
        return torch.zeros_like(values, dtype=dtype)
    prefix = values.cumsum_(-1)
    total = prefix[:, -1:]
    if window == "positions" or not _has_holes(valid):
        if not prefix.requires_grad:
            out = torch.empty(prefix.shape, dtype=dtype, device=prefix.device)
            torch.sub(prefix[:, count:], prefix[:, :-count], out=out[:, :-count])
            torch.sub(total, prefix[:, -count:], out=out[:, -count:])
            return out
        inner, last = prefix[:, count:] - prefix[:, :-count], total - prefix[:, -count:]
        return torch.cat([inner.to(dtype), last.to(dtype)], dim=-1)
    # Prefix sum by ordinal (from 1) of the valid token; masked positions go to slot 0, which nobody reads.
    ordinal = valid.cumsum(-1)
    by_ordinal = total.repeat(1, width + 1).scatter(-1, ordinal * valid, prefix)
    return (by_ordinal.gather(-1, (ordinal + count).clamp(max=width)) - prefix).to(dtype)


def _has_holes(valid: Tensor) -> bool:
    """Whether a row has a masked position between two valid ones."""
    starts = (valid[:, 1:] > valid[:, :-1]).view(torch.uint8)
    if not starts.numel() or not starts.amax():  # padding on the right only
        return False
    return bool((starts.sum(-1) + valid[:, 0] > 1).any())


def sequence_log_ratio(
    log_ratio: Tensor, response_mask: Tensor, token_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``log s = sum_t m'_t l_t / max(1, sum_t m'_t)`` of each row, and the share of each token in it.

    Args: three tensors [B, T]; ``log_ratio`` is 0 where masked. ``token_mask`` m' marks the tokens that
    count (None: every valid token, GSPO's length-normalised ratio); masked tokens never do.
    Returns (log s [B, 1], share [B, T] with ``d log s / d l_t``). A row without a marked token has
    ``log s = 0`` and no share. Source: [text: IBPO I.2].
    """
    check_floating("log_ratio", log_ratio)
    check_mask("response_mask", response_mask, like=log_ratio)
    if token_mask is not None:
        check_mask("token_mask", token_mask, like=log_ratio)
    marked = response_mask.bool() if token_mask is None else response_mask.bool() & token_mask.bool()
    dtype = compute_dtype(log_ratio)
    count = marked.sum(-1, keepdim=True).clamp_min(1).to(dtype)
    total = log_ratio.to(dtype)
    if token_mask is not None:  # an infinite log ratio times 0 is NaN
        if total.requires_grad:
            total = torch.where(marked, total, 0.0)
        else:
            total = select(total, as_bits(marked, dtype))
    marked = as_float(marked, dtype)
    return total.sum(-1, keepdim=True) / count, marked / count


def block_weights(blocks: int, mtp_weight: float = 0.2, decay: float = 0.8) -> list[float]:
    """Weights ``b_1 .. b_K`` of MPO's block ratio, which sum to 1.

    ``b_1 = 1 - S``, ``b_{k+1} = decay * b_k`` for k >= 2, ``sum_{k>=2} b_k = S``; K = 1 gives [1].

    Args: ``blocks`` = K >= 1, the tokens in a block; ``mtp_weight`` = S in [0, 1), the share of the MTP
    modules (10-20 % is best, below 30 % always [text: MPO 5.4, 5.5]); ``decay`` in (0, 1], 0.8 [text: 5.4].
    The recursion itself is a [choice].
    """
    blocks = check_integer("blocks", blocks, 1, "integers >= 1 (1 = the token's own ratio)")
    mtp_weight = check_number("mtp_weight", mtp_weight, lambda x: 0 <= x < 1, "0 <= mtp_weight < 1")
    decay = check_number("decay", decay, lambda x: 0 < x <= 1, "0 < decay <= 1")
    if blocks == 1:
        return [1.0]
    raw = [decay**k for k in range(blocks - 1)]
    total = sum(raw)
    return [1 - mtp_weight] + [mtp_weight * weight / total for weight in raw]


def block_mask(response_mask: Tensor, blocks: int) -> Tensor:
    """Which MTP log ratios exist, [B, T, K-1] bool: position t and its target t+k-1 (k = 2..K) are valid."""
    check_mask("response_mask", response_mask)
    blocks = check_integer("blocks", blocks, 1, "integers >= 1 (1 = the token's own ratio)")
    valid = response_mask.bool()
    width = valid.shape[-1]
    ahead = [torch.nn.functional.pad(valid, (0, k))[:, k : k + width] & valid for k in range(1, blocks)]
    if not ahead:
        return valid.new_zeros(*valid.shape, 0)
    return torch.stack(ahead, -1)


def block_log_ratio(log_ratio: Tensor, mtp_log_ratio: Tensor, weights: list[float]) -> Tensor:
    """``sum_k b_k l_t^(k)``, the logarithm of MPO's block ratio, [B, T].

    Args: ``log_ratio`` [B, T], the backbone's, and ``mtp_log_ratio`` [B, T, K-1], entry [i, t, k-2] that of
    token ``y_{t+k-1}`` predicted by module k from position t; both 0 where they do not exist, so that a
    position past the end contributes nothing. ``weights`` = K numbers (:func:`block_weights`).
    Source: [public: the weighted log-sum of MPO's OpenReview discussion].
    """
    check_floating("log_ratio", log_ratio)
    check_floating("mtp_log_ratio", mtp_log_ratio, ndim=3)
    if mtp_log_ratio.shape[:2] != log_ratio.shape:
        raise ValueError(
            f"mtp_log_ratio is {describe(mtp_log_ratio)}: allowed is [B, T, K-1] with [B, T] = "
            f"{list(log_ratio.shape)}, log_ratio's shape"
        )
    if not isinstance(weights, (list, tuple)):
        raise refuse("weights", weights, "lists of K numbers")
    if len(weights) != mtp_log_ratio.shape[-1] + 1:
        raise ValueError(
            f"weights has {len(weights)} entries: allowed is one per token of the block, "
            f"{mtp_log_ratio.shape[-1] + 1}"
        )
    weights = [check_number("weights", w, math.isfinite, "finite numbers, one per token") for w in weights]
    dtype = compute_dtype(log_ratio, mtp_log_ratio)
    total = weights[0] * log_ratio.to(dtype)
    for k, weight in enumerate(weights[1:]):  # no matrix product: autocast would run it in half precision
        total = total + weight * mtp_log_ratio[..., k]
    return total


def discounted_future(values: Tensor, response_mask: Tensor, half_life: float) -> Tensor:
    """``F_t = sum_{k>=t} g^(k-t) v_k`` over valid tokens, ``g = 2^(-1/half_life)``, [B, T] float64.

    ``k - t`` counts valid tokens [choice]. ``values`` [B, T] is 0 where masked; what the result holds at
    masked places carries no meaning. ``half_life`` > 0 in tokens, inf = no discount.
    Source: [public: FIPO's discounted future KL].
    """
    half_life = check_number(
        "half_life", half_life, lambda x: x > 0, "numbers > 0 (tokens; inf = no discount)"
    )
    check_floating("values", values)
    check_mask("response_mask", response_mask, like=values)
    valid = response_mask.bool()
    holes = _has_holes(valid)
    # without holes positions count like tokens, and the powers of g are one row
    ordinal = (
        valid.cumsum(-1).double()
        if holes
        else torch.arange(values.shape[-1], device=values.device).double()[None]
    )
    # g^-k is a factor inside a suffix sum; chunks keep it within float64's range.
    width = values.shape[-1]
    chunk = width if math.isinf(half_life) else max(1, int(900 * half_life))
    parts, carry = [], values.new_zeros(len(values), 1, dtype=torch.float64)
    for end in range(width, 0, -chunk):
        at = slice(max(0, end - chunk), end)
        age = (ordinal[:, at] - ordinal[:, at.start : at.start + 1]) / half_life
        power = torch.exp2(age)
        weighted = values[:, at].double() / power
        ahead = weighted.flip(-1).cumsum(-1).flip(-1)
        # carry is F at the next chunk's first position, one token further if that is valid
        step = (valid[:, end : end + 1].double() if holes else 1.0) / half_life if end < width else 0.0
        part = ahead.mul_(power)
        if end < width:
            part += torch.exp2(age - age[:, -1:] - step) * carry
        parts.append(part)
        carry = parts[-1][:, :1]
    return parts[0] if len(parts) == 1 else torch.cat(parts[::-1], -1)
