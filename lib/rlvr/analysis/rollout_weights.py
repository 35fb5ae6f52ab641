"""NFPO's weights and mask on a rollout under any settings: the trace, rho times trace, and what they come to.

The maths are those of :func:`rlvr.objectives.nfpo`; a test holds the two together. Everything is float64 and
without gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import pandas as pd
import torch
from torch import Tensor

from rlvr import trust_regions
from rlvr.analysis.dynamics import Shares, correction_strength, switch_frequency
from rlvr.analysis.rollout import Rollout
from rlvr.checks import check_choice, check_integer, check_number
from rlvr.ratios import bounded_exp, forward_trace

Region = Literal["tv", "kl", "clip", "band", "none"]
_HIGHER = 1.4  # upper over lower clip distance, 0.28 / 0.2 [text: NFPO App. C]
_RATIO_BOUND = 10.0  # nats [official]


@dataclass(frozen=True)
class Threshold:
    """What the one number of a region means, which are allowed, and the default."""

    meaning: str
    allowed: str
    test: Callable[[float], bool]
    default: float


#: By region; defaults [text: NFPO App. C].
THRESHOLDS: dict[str, Threshold] = {
    "tv": Threshold("change of the token's probability", "numbers > 0", lambda x: x > 0, 0.2),
    "kl": Threshold("binary KL, nats", "numbers > 0", lambda x: x > 0, 0.05),
    "clip": Threshold(
        "ratio within [1 - e, 1 + 1.4 e]", "0 < threshold < 0.71", lambda x: 0 < x < 1 / _HIGHER, 0.2
    ),
    "band": Threshold("ratio within [1/beta, beta]", "numbers > 1", lambda x: 1 < x < float("inf"), 3.0),
    "none": Threshold("not used", "all", lambda x: True, 0.0),
}


@dataclass(frozen=True)
class Settings:
    """What can be moved; the defaults are NFPO's at 1.7B [text: NFPO App. C].

    Args:
        horizon: N >= 1, counts the token itself.
        trace_clip: (low, high) of the trace with low <= 1 <= high; None = off.
        ratio_clip: beta >= 1, of each factor of the trace; None = off.
        region: which tokens keep their gradient.
        threshold: of the region, see ``THRESHOLDS``; None: its default. Unused with "none".
    """

    horizon: int = 4
    trace_clip: tuple[float, float] | None = (0.8, 1.4)
    ratio_clip: float | None = 3.0
    region: Region = "tv"
    threshold: float | None = None


@dataclass(frozen=True)
class Explored:
    """Weights of a rollout under some settings.

    Attributes:
        rho, trace, weight: [B, T] float64; weight = rho * trace. 1 where masked.
        kept: [B, T] bool, True where the token keeps its gradient; False where masked.
        table: a row per quantity: ``rho`` (NaN where there is one value only), ``traced``, ``n``, ``unit``.
    """

    settings: Settings
    rho: Tensor
    trace: Tensor
    weight: Tensor
    kept: Tensor
    table: pd.DataFrame


@torch.no_grad()
def explore_frame(rollout: Rollout, settings: Settings) -> Explored:
    """Trace, weight and mask of every token, and what they come to.

    The table has ``switch frequency`` (strict rule; of adjacent pairs), ``correction strength`` E|w - 1|,
    ``trace at a clip`` and ``masked tokens`` (shares of tokens).

    Raises:
        ValueError: a setting that is not allowed; names it, its value and what is.
    """
    check_integer("horizon", settings.horizon, 1, "integers >= 1 (1 = no trace, T = full trace)")
    valid, log_ratio = rollout.mask.bool(), rollout.log_ratio
    clips = (settings.ratio_clip, settings.trace_clip)
    kept = valid & _keep(rollout, log_ratio, settings).bool()
    rho = torch.where(valid, bounded_exp(log_ratio, _RATIO_BOUND), 1.0)
    raw = forward_trace(log_ratio, valid, settings.horizon, settings.ratio_clip, None)
    trace = torch.where(valid, forward_trace(log_ratio, valid, settings.horizon, *clips), 1.0)
    weight = rho * trace
    at_clip = valid & ((raw - trace).abs() > 1e-9)
    n, pairs = int(valid.sum()), int((valid[:, 1:] & valid[:, :-1]).sum())
    rows: dict[str, tuple[float | None, float, int, str]] = {
        "switch frequency": (*_both(switch_frequency, rho, weight, valid), pairs, "pairs"),
        "correction strength": (*_both(correction_strength, rho, weight, valid), n, "tokens"),
    }
    rows["trace at a clip"] = (None, float(at_clip.sum()) / n, n, "tokens")
    rows["masked tokens"] = (None, float((valid & ~kept).sum()) / n, n, "tokens")
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["rho", "traced", "n", "unit"])
    return Explored(settings, rho, trace, weight, kept, table)


def _both(measure: Callable[..., Shares], rho: Tensor, weight: Tensor, valid: Tensor) -> tuple[float, float]:
    return measure(rho, valid).value, measure(weight, valid).value


def _keep(rollout: Rollout, log_ratio: Tensor, settings: Settings) -> Tensor:
    """1 where the region lets the gradient through, [B, T]; what masked places hold carries no meaning."""
    region = check_choice("region", settings.region, get_args(Region))
    advantages = rollout.advantages.to(log_ratio.dtype)[:, None]
    ratio = bounded_exp(log_ratio, _RATIO_BOUND)
    if region == "none":
        return torch.ones_like(ratio)
    threshold = THRESHOLDS[region].default if settings.threshold is None else settings.threshold
    known = THRESHOLDS[region]
    threshold = check_number("threshold", threshold, known.test, f"{known.allowed} (region {region!r})")
    if region == "tv":
        return trust_regions.binary_tv(rollout.log_prob, rollout.old_log_prob, advantages, threshold)
    if region == "kl":
        bounded = log_ratio.clamp(-_RATIO_BOUND, _RATIO_BOUND)
        return trust_regions.binary_kl(rollout.log_prob, rollout.old_log_prob, bounded, advantages, threshold)
    if region == "clip":
        return trust_regions.ppo_clip(ratio, advantages, threshold, _HIGHER * threshold)
    return trust_regions.ratio_band(ratio, (1 / threshold, threshold))
