"""The forward trace in the weight: NFPO, and the exact policy gradient as its full, unclipped case."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr import trust_regions
from rlvr.batch import extent
from rlvr.checks import check_choice, check_number
from rlvr.losses import TokenLoss, attach
from rlvr.objectives.masked import masked_terms
from rlvr.ratios import (
    EXP_LIMIT,
    TraceGradient,
    Window,
    bounded_exp,
    check_trace_clip,
    differentiates_trace,
    forward_trace,
    log_forward_trace,
    log_ratio,
    log_trace_dtype,
)
from rlvr.registry import Batch, Metrics, Terms, register

DELTAS = {"tv": 0.2, "kl": 0.05}  # by region [text: NFPO App. C]
_WEIGHT_BOUND = EXP_LIMIT
_WEIGHT_CAP = math.exp(_WEIGHT_BOUND)


@register("seq-mean-token-sum-norm")
def nfpo(
    batch: Batch,
    *,
    horizon: int = 4,
    trace_clip: tuple[float, float] | None = (0.8, 1.4),
    ratio_clip: float | None = 3.0,
    delta: float | None = None,
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
    """DPPO with the N-step forward trace in the weight: a token's credit looks at the next N-1 ratios.

    Formula:
        Gbar_t = clip(prod_{j=t+1}^{t+N-1} clip(rho_j, 1/beta, beta), trace_clip)   empty product = 1
        loss_t = -M_t sg(rho_t Gbar_t) A_t log pi(y_t|s_t)
        M_t    = DPPO's mask (or another region) of token t

    In short: sg(rho_t Gbar_t) | binary TV

    Args:
        horizon: N, counts the current token: N = 1 is DPPO (up to DPPO's ratio cap), N >= T the full trace.
            4 at 1.7B, 8 at 8B [text: NFPO App. C]
        trace_clip: (low, high) of the trace, [0.8, 1.4] [text: NFPO App. C]; None = off. The weight never
            exceeds e^60
        ratio_clip: beta, clips each factor of the trace on both sides [official], 3 [text: NFPO App. C];
            None = off
        delta: of the region; None: 0.2 for "tv", 0.05 nats for "kl" [text: NFPO App. C]
        region: M: "tv", "kl", "clip" (the PPO clip as a mask), "band", "none" [text: Ablation 4]
        clip_low: lower distance of region "clip", 0.2 [text: NFPO App. C]
        clip_high: upper distance of region "clip", 0.28 [text: NFPO App. C]
        band: (low, high) of region "band" [choice]
        ratio_bound: bound on abs(log rho_t) in nats, 10 [official]
        rho_clip: also clip rho_t itself to [1/rho_clip, rho_clip]: the other reading of Ablation 3 [choice];
            None = off
        window: the trace counts "valid" tokens [choice] or "positions" [official]
        trace_gradient: "stop" [text: the weight is a constant]; "full" adds the gradient of the trace, i.e.
            differentiates (rho_t - 1) Gbar_t, whose expectation at N = T without clips is J(pi) - J(mu)
        rollout_log_prob: [B, T]; if given, ratio and mask are taken against it and only the trace against
            old_log_prob, the recomputed log-probs (Ablation 2) [official]
    Detached: the weight and the mask; with trace_gradient="full" the trace carries its gradient.
    Metrics: masked_fraction; trace_mean; trace_clip_fraction, the share of tokens whose trace lay outside
        trace_clip.
    Deviations: the release does not divide by the number of sequences, so its loss scale follows the
        micro-batch; this one does. Its other settings are the preset "release" (NFPO_PRESETS).
    Sources: NFPO (arXiv 2605.20865) sections 1, 3, App. C; aggregation [official].
    """
    mu, log_rho, reach = batch.old_log_prob, batch.log_ratio, batch.extent
    if rollout_log_prob is not None:
        mu = batch.select(rollout_log_prob, "rollout_log_prob")
        log_rho = batch.zero_masked_(batch.log_prob - mu)
        reach = extent(log_rho)
    rho = ratio = bounded_exp(log_rho, ratio_bound, reach)
    if rho_clip is not None:
        rho_clip = check_number("rho_clip", rho_clip, lambda x: x >= 1, "None (off) and numbers >= 1")
        rho = ratio.clamp(1 / rho_clip, rho_clip)

    check_choice("region", region, ("tv", "kl", "clip", "band", "none"))
    trust_regions.check_clips(clip_low, clip_high)
    trust_regions.check_band(band)
    delta = DELTAS.get(region, 0.2) if delta is None else trust_regions.check_delta(delta)

    trace, metrics = _clipped_trace(batch, horizon, ratio_clip, trace_clip, window)
    weight = trace.mul_(rho)  # in place: memory that is at hand is faster than new
    if trace_clip is None or ratio_bound + math.log(trace_clip[1]) > _WEIGHT_BOUND:
        weight.clamp_(max=_WEIGHT_CAP)
    weight = weight.to(rho.dtype)

    advantages = batch.advantages
    if region == "tv":
        exact = ratio if reach <= ratio_bound else None
        keep = trust_regions.binary_tv(batch.log_prob, mu, advantages, delta, exact)
    elif region == "kl":
        bounded = log_rho.clamp(-ratio_bound, ratio_bound)
        keep = trust_regions.binary_kl(batch.log_prob, mu, bounded, advantages, delta)
    elif region == "clip":
        keep = trust_regions.ppo_clip(ratio, advantages, clip_low, clip_high)
    elif region == "band":
        keep = trust_regions.ratio_band(ratio, band)
    else:
        keep = None

    terms = masked_terms(batch, ratio, weight, keep, **metrics)
    if rollout_log_prob is not None:
        terms.log_ratio = log_rho
    if differentiates_trace(trace_gradient):
        keep = batch.mask if keep is None else keep
        terms.loss = _through_trace(batch, terms.loss, rho, keep, horizon, ratio_clip, trace_clip, window)
    return terms


def _clipped_trace(
    batch: Batch,
    horizon: int,
    ratio_clip: float | None,
    trace_clip: tuple[float, float] | None,
    window: Window,
) -> tuple[Tensor, Metrics]:
    """The constant trace [B, T], 1 where masked, and its metrics; in float64 if it may be far from 1, so
    that a ratio may bring it back into range."""
    check_choice("window", window, ("valid", "positions"))
    if batch.full:
        window = "positions"  # without holes the same, and nobody looks for them
    dtype = log_trace_dtype(trace_clip, batch.log_ratio.dtype)
    log_trace = log_forward_trace(
        batch.log_ratio, batch.valid, horizon, ratio_clip, window, dtype, True, batch.extent
    )
    batch.zero_masked_(log_trace)  # neutral in the metrics
    factors = min(horizon, batch.valid.shape[1]) - 1
    limit = math.log(torch.finfo(dtype).max) - 1e-3
    if ratio_clip is None or factors * math.log(ratio_clip) > limit:
        log_trace.clamp_(max=limit)
    raw = log_trace.exp_()
    if trace_clip is None:
        trace, clipped = raw, batch.count.new_zeros(())
    else:
        trace = raw.clamp(*check_trace_clip(trace_clip))
        clipped = torch.ne(trace, raw, out=raw)
    shown = trace.clamp(max=_WEIGHT_CAP) if trace_clip is None or trace_clip[1] > _WEIGHT_CAP else trace
    mean = batch.mean(shown.to(batch.log_ratio.dtype))
    return trace, {"trace_clip_fraction": batch.share(clipped), "trace_mean": mean}


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


@register("token-sum", advantages="centred")
def exact_pg(
    batch: Batch, *, trace_gradient: TraceGradient = "stop", ratio_bound: float = _WEIGHT_BOUND
) -> Terms:
    """Policy gradient weighted by the ratio of the whole rest of the response; no clip and no mask.

    Formula:
        loss_t = -sg(prod_{j=t}^T rho_j) A_t log pi(y_t|s_t)

    In short: sg(rho_t Gamma_t) | none

    Args:
        trace_gradient: "stop" [the weight is a constant]: exact credit for what follows t, prefixes still
            distributed as under mu. "full" differentiates (rho_t - 1) Gamma_t, whose expectation is
            J(pi) - J(mu): the exact policy gradient [text: NFPO Lemma 1]
        ratio_bound: bound on the log of the whole weight in nats, 60, against overflow only [choice]
    Detached: the weight; with trace_gradient="full" the trace carries its gradient.
    Metrics: masked_fraction is 0.
    Deviations: none.
    Sources: NFPO (arXiv 2605.20865) Eq. 1 and Lemma 1.
    """
    horizon = max(1, batch.valid.shape[1])
    log_trace = log_forward_trace(batch.log_ratio, batch.valid, horizon, ratio_clip=None, zeroed=True)
    log_weight = batch.zero_masked_(log_trace.add_(batch.log_ratio))
    ratio = bounded_exp(batch.log_ratio, ratio_bound, batch.extent)
    weight = bounded_exp(log_weight, ratio_bound).to(ratio.dtype)
    terms = masked_terms(batch, ratio, weight, None)
    if differentiates_trace(trace_gradient):
        terms.loss = _through_trace(batch, terms.loss, ratio, batch.valid, horizon, None, None, "valid")
    return terms


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
    coefficient = (1 - rho) * batch.advantages * keep
    with torch.set_grad_enabled(batch.grad_enabled):
        live = log_ratio(batch.live_log_prob, batch.old_log_prob, batch.valid)
        trace = forward_trace(
            live, batch.valid, horizon, ratio_clip, trace_clip, window, trace_gradient="full"
        )
        trace = torch.minimum(trace, _WEIGHT_CAP / rho.clamp_min(1))
        return TokenLoss(attach(batch.live_log_prob, *loss) + coefficient * trace, None)
