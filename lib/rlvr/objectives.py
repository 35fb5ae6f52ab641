"""The recipes: every named objective, a few lines over ratios, trust regions and losses.

    loss, metrics = objectives.nfpo(log_prob, old_log_prob, advantages, response_mask, horizon=4)
    loss, metrics = objectives.get("nfpo")(...)          # the same, by name

Arguments of every objective: ``log_prob``, ``old_log_prob`` [B, T], log-probabilities (nats) of the
sampled tokens under the current policy pi and under the policy that the ratio is taken against (the
rollout policy mu); ``advantages`` [B] (one per response; always per row, also when B == T) or [B, T];
``response_mask`` [B, T], 0/1. Then, by keyword: the objective's own parameters; ``loss_agg_mode`` and
the global counts of :func:`rlvr.losses.aggregation_scale`; ``reduction``: "loss" gives the scalar to
minimise, "none" the per-token loss [B, T], 0 where masked; ``check=False`` skips the input checks.
Everything is a constant but ``log_prob``; half precision is computed in float32, float64 stays.

Metrics are detached 0-d tensors: ``tokens`` is a count, a ``*_max`` a maximum, everything else a mean
over the call's valid tokens (with none, as if every ratio were 1). :func:`merge_metrics` joins those of
several micro-batches.
Common to all: ``kl`` = E[-log rho] (the sampled KL(mu||pi), log rho bounded), ``ratio_mean``,
``ratio_max``, ``ratio_correction_strength`` = E|rho - 1|, ``correction_strength`` = E|w - 1|, w the
weight before trust region and advantage. Then ``clip_fraction`` or ``masked_fraction``, the share of
tokens whose gradient the trust region removed; they stay in every denominator.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr import trust_regions
from rlvr.losses import TokenLoss, attach, clipped_surrogate, masked_policy_gradient
from rlvr.ratios import (
    RATIO_BOUND,
    TraceGradient,
    Window,
    bounded_exp,
    check_trace_clip,
    clip_trace,
    differentiates_trace,
    forward_trace,
    log_forward_trace,
    log_ratio,
)
from rlvr.registry import Batch, Terms, get, list_objectives, merge_metrics, register

__all__ = [
    "NFPO_PRESETS",
    "dppo_kl",
    "dppo_tv",
    "exact_pg",
    "get",
    "grpo",
    "icepop",
    "list_objectives",
    "merge_metrics",
    "nfpo",
    "ppo",
    "uncorrected",
]


_WEIGHT_BOUND = 60.0  # nats: a sum of 1e6 unclipped weights still fits float32 [choice]
_WEIGHT_CAP = math.exp(_WEIGHT_BOUND)


def _clipped(batch: Batch, clip_low: float, clip_high: float, dual_clip: float | None) -> Terms:
    loss, ratio, active = clipped_surrogate(
        batch.log_ratio, batch.advantages, batch.valid, clip_low, clip_high, dual_clip
    )
    return Terms(loss, ratio, ratio, shares={"clip_fraction": ~active & (batch.advantages != 0)})


def _masked(batch: Batch, ratio: Tensor, weight: Tensor, keep: Tensor, **shares: Tensor) -> Terms:
    loss = masked_policy_gradient(batch.log_prob, weight, batch.advantages, keep)
    return Terms(loss, ratio, weight, shares={"masked_fraction": ~keep & batch.valid, **shares})


@register("token-mean")
def ppo(
    batch: Batch, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = 3.0
) -> Terms:
    """Clipped surrogate ``-min(rho A, clip(rho, 1-el, 1+eh) A)``, symmetric clip; use with GAE advantages.

    ``clip_fraction``: share of tokens that lost their gradient to the clip or the dual clip.
    Sources: clip 0.2 [public: PPO]; dual clip 3 [public: verl], None = off.
    """
    return _clipped(batch, clip_low, clip_high, dual_clip)


@register("token-mean")
def grpo(
    batch: Batch, *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float | None = 3.0
) -> Terms:
    """Clipped surrogate as :func:`ppo`, clip-higher; use with group relative advantages.

    Sources: clip 0.2 / 0.28 [text: NFPO App. C]; dual clip 3 and token-mean [public: verl's recipe];
    the original GRPO aggregates by seq-mean-token-mean.
    """
    return _clipped(batch, clip_low, clip_high, dual_clip)


@register("token-mean")
def dppo_tv(batch: Batch, *, delta: float = 0.2, ratio_cap: float = 20.0) -> Terms:
    """``-M sg(min(rho, C)) A log pi``, M: ``pi - mu`` at most ``delta`` in the direction of the push.

    Sources: mask and C = 20 [public: verl ``dppo_tv``]; delta = 0.2 [text: NFPO App. C]; inf = no mask.
    """
    keep = trust_regions.binary_tv(batch.log_prob, batch.old_log_prob, batch.advantages, delta)
    return _dppo(batch, keep & batch.valid, ratio_cap)


@register("token-mean")
def dppo_kl(batch: Batch, *, delta: float = 0.05, ratio_cap: float = 20.0) -> Terms:
    """As :func:`dppo_tv` with M: binary KL at most ``delta``, or the token moves back towards mu.

    Sources: [public: verl ``dppo_kl``]; delta = 0.05 [text: NFPO App. C].
    """
    bounded = batch.log_ratio.clamp(-RATIO_BOUND, RATIO_BOUND)
    keep = trust_regions.binary_kl(batch.log_prob, batch.old_log_prob, bounded, batch.advantages, delta)
    return _dppo(batch, keep & batch.valid, ratio_cap)


def _dppo(batch: Batch, keep: Tensor, ratio_cap: float) -> Terms:
    if not ratio_cap >= 1:
        raise ValueError(
            f"ratio_cap={ratio_cap!r}: allowed are numbers >= 1 (inf = no cap); ratio 1 weighs 1"
        )
    ratio = bounded_exp(batch.log_ratio, RATIO_BOUND)
    return _masked(batch, ratio, ratio.clamp(max=ratio_cap), keep, ratio_cap_fraction=ratio > ratio_cap)


@register("token-mean")
def icepop(batch: Batch, *, band: tuple[float, float] = (1 / 3, 3.0)) -> Terms:
    """``-M sg(rho) A log pi``, M: ``lo <= rho <= hi``. Masked tokens stay in the denominator, as in verl.

    Sources: "ratio threshold 3.0" [text: NFPO App. C]; the band [1/3, 3] is a [choice].
    """
    ratio = bounded_exp(batch.log_ratio, RATIO_BOUND)
    return _masked(batch, ratio, ratio, trust_regions.ratio_band(ratio, band) & batch.valid)


@register("seq-mean-token-sum-norm")
def nfpo(
    batch: Batch,
    *,
    horizon: int = 4,
    trace_clip: tuple[float, float] | None = (0.8, 1.4),
    ratio_clip: float | None = 3.0,
    delta: float = 0.2,
    region: Literal["tv", "kl", "clip", "band", "none"] = "tv",
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    band: tuple[float, float] = (1 / 3, 3.0),
    ratio_bound: float = 10.0,
    rho_clip: float | None = None,
    window: Window = "valid",
    trace_gradient: TraceGradient = "stop",
    rollout_log_prob: Tensor | None = None,
) -> Terms:
    """``-M sg(rho_t Gbar_{t+1}^(N)) A log pi``: DPPO with the N-step forward trace in the weight.

    ``Gbar = clip(prod_{j=t+1}^{t+N-1} clip(rho_j, 1/beta, beta), lo, hi)``; N = ``horizon`` counts the
    current token, so N = 1 is DPPO (up to DPPO's ratio cap).

    region: M, by ``delta`` (tv; kl, which the text runs at 0.05), ``clip_low``/``clip_high`` (the PPO
        clip as a mask), ``band``, or none.
    ratio_clip: beta, on the factors of the trace [official]. rho_clip: also clip rho_t itself to
        [1/rho_clip, rho_clip] (the other reading of Ablation 3; None = off) [choice].
    ratio_bound: bound on |log rho_t| [official: 10].
    window: the trace counts "valid" tokens [choice] or "positions" [official].
    trace_gradient: "stop" [text: the weight is a constant]; "full" adds the gradient of the trace, i.e.
        differentiates ``(rho_t - 1) Gbar``, whose expectation at N = T without clips is J(pi) - J(mu).
    rollout_log_prob: if given, ratio and mask are taken against it and only the trace against
        ``old_log_prob`` (the recomputed log-probs: Ablation 2) [official].

    Metrics: ``masked_fraction``, ``trace_mean``, ``trace_clip_fraction`` (trace outside [lo, hi]).
    Sources: N = 4, [0.8, 1.4], beta = 3, delta = 0.2 [text: App. C]; seq-mean-token-sum-norm [official],
    here divided by the number of sequences, which the release omits. Presets: ``NFPO_PRESETS``.
    """
    mu, log_rho = batch.old_log_prob, batch.log_ratio
    if rollout_log_prob is not None:
        mu = batch.select(rollout_log_prob, "rollout_log_prob")
        log_rho = batch.log_prob - mu
    rho = ratio = bounded_exp(log_rho, ratio_bound)
    if rho_clip is not None:
        if not rho_clip >= 1:
            raise ValueError(f"rho_clip={rho_clip!r}: allowed are None (off) and numbers >= 1")
        rho = ratio.clamp(1 / rho_clip, rho_clip)

    advantages = batch.advantages
    if region == "tv":
        keep = trust_regions.binary_tv(batch.log_prob, mu, advantages, delta)
    elif region == "kl":
        bounded = log_rho.clamp(-ratio_bound, ratio_bound)
        keep = trust_regions.binary_kl(batch.log_prob, mu, bounded, advantages, delta)
    elif region == "clip":
        keep = trust_regions.ppo_clip(ratio, advantages, clip_low, clip_high)
    elif region == "band":
        keep = trust_regions.ratio_band(ratio, band)
    elif region == "none":
        keep = batch.valid
    else:
        raise ValueError(f"region={region!r}: allowed are 'tv', 'kl', 'clip', 'band' and 'none'")
    keep = keep & batch.valid

    dtype = torch.float64 if trace_clip is None else ratio.dtype
    log_trace = log_forward_trace(batch.log_ratio, batch.valid, horizon, ratio_clip, window, dtype)
    log_trace.masked_fill_(~batch.valid, 0.0)  # neutral in the metrics
    if trace_clip is None:
        trace = clip_trace(log_trace, None, ratio.dtype).clamp_(max=_WEIGHT_CAP)
        clipped = torch.zeros_like(keep)
    else:
        raw = log_trace.exp_()
        trace = raw.clamp(*check_trace_clip(trace_clip))
        clipped = trace != raw

    weight = rho * trace if trace_clip else (rho * trace).clamp_(max=_WEIGHT_CAP)
    terms = _masked(batch, ratio, weight, keep, trace_clip_fraction=clipped)
    terms.log_ratio = log_rho
    terms.means["trace_mean"] = trace
    if differentiates_trace(trace_gradient):
        terms.loss = _through_trace(batch, terms.loss, rho, keep, horizon, ratio_clip, trace_clip, window)
    return terms


NFPO_PRESETS: dict[str, dict[str, Any]] = {
    # What the text states (N = 4 at 1.7B, 8 at 8B); where it is silent, the defaults.
    "text": {"horizon": 4, "trace_clip": (0.8, 1.4), "ratio_clip": 3.0, "delta": 0.2, "region": "tv"},
    # What the authors' release runs; its advantage is not divided by the standard deviation.
    "release": {
        "horizon": 8,
        "trace_clip": (0.8, 1.2),
        "ratio_clip": 3.0,
        "delta": 0.2,
        "region": "tv",
        "window": "positions",
        "loss_agg_mode": "seq-mean-token-sum-norm",
    },
}


@register("token-sum")
def exact_pg(
    batch: Batch, *, trace_gradient: TraceGradient = "stop", ratio_bound: float = _WEIGHT_BOUND
) -> Terms:
    """``-sg(rho_t Gamma_{t+1}^(T)) A log pi``: the full forward trace, no clip and no mask.

    trace_gradient: "stop" [the weight is a constant]: exact credit for what follows t, prefixes still
        distributed as under mu. "full" differentiates ``(rho_t - 1) Gamma_{t+1}``, whose expectation is
        J(pi) - J(mu): the exact policy gradient.
    ratio_bound: bound on the log of the whole weight, against overflow only [choice].
    """
    horizon = max(1, batch.valid.shape[1])
    log_trace = log_forward_trace(batch.log_ratio, batch.valid, horizon, ratio_clip=None)
    log_weight = torch.where(batch.valid, batch.log_ratio + log_trace, 0.0)
    ratio = bounded_exp(batch.log_ratio, ratio_bound)
    weight = bounded_exp(log_weight, ratio_bound).to(ratio.dtype)
    terms = _masked(batch, ratio, weight, batch.valid)
    if differentiates_trace(trace_gradient):
        terms.loss = _through_trace(batch, terms.loss, ratio, batch.valid, horizon, None, None, "valid")
    return terms


@register("token-mean")
def uncorrected(batch: Batch) -> Terms:
    """``-A log pi``: weight 1, no mask. The control arm: what no off-policy correction at all does."""
    ratio = bounded_exp(batch.log_ratio, RATIO_BOUND)
    return _masked(batch, ratio, torch.ones_like(ratio), batch.valid)


def _through_trace(
    batch: Batch,
    loss: TokenLoss,
    rho: Tensor,
    keep: Tensor,
    horizon: int,
    ratio_clip: float | None,
    trace_clip: tuple[float, float] | None,
    window: Window,
) -> TokenLoss:
    """Adds ``-M A sg(rho - 1) Gbar`` with the trace's gradient to a masked policy gradient."""
    coefficient = torch.where(keep, (1 - rho) * batch.advantages, 0.0)
    with torch.enable_grad():
        live = log_ratio(batch.live_log_prob, batch.old_log_prob, batch.valid)
        trace = forward_trace(
            live, batch.valid, horizon, ratio_clip, trace_clip, window, trace_gradient="full"
        )
        if trace_clip is None:
            trace = torch.minimum(trace, _WEIGHT_CAP / rho.clamp_min(1))
        return TokenLoss(attach(batch.live_log_prob, *loss) + coefficient * trace, None)
