"""Trust regions: which tokens keep their gradient.

Each mask is a tensor in the dtype of its inputs: 1 where the token keeps its gradient, else 0. ``A`` is the
advantage; a token with ``A > 0`` is pushed up, any other down [public: verl puts A = 0 with the latter].
All are constants: no gradient passes through the decision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr.checks import check_number, check_pair
from rlvr.indicators import indicator


def check_clips(clip_low: float, clip_high: float) -> tuple[float, float]:
    return tuple(
        check_number(
            name, value, lambda x: 0 < x < 1, f"0 < {name} < 1 (a distance from the ratio 1, not a ratio)"
        )
        for name, value in (("clip_low", clip_low), ("clip_high", clip_high))
    )


@torch.no_grad()
def clip_bounds(
    advantages: Tensor, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float | None = 3.0
) -> tuple[Tensor, Tensor]:
    """Bounds (lower, upper) between which the pessimistic PPO surrogate lets the ratio act.

    ``min(rho A, clip(rho, 1-el, 1+eh) A)`` is ``A * clamp(rho, lower, upper)`` with
    A > 0: (0, 1+eh), a ratio being positive; A <= 0: (1-el, c), without dual clip (1-el, the largest number).
    Shapes follow ``advantages``. Source: [text] el=0.2, eh=0.28; dual clip c=3 [public: verl].
    """
    clip_low, clip_high = check_clips(clip_low, clip_high)
    if dual_clip is not None:
        dual_clip = check_number("dual_clip", dual_clip, lambda x: x > 1, "None (off) and numbers > 1")
    up = indicator(torch.gt, advantages, 0)
    down = 1 - up
    top = torch.finfo(advantages.dtype).max
    cap = top if dual_clip is None else min(dual_clip, top)
    return down * (1 - clip_low), down.mul(cap).add_(up, alpha=1 + clip_high)


@torch.no_grad()
def ppo_clip(ratio: Tensor, advantages: Tensor, clip_low: float = 0.2, clip_high: float = 0.28) -> Tensor:
    """The PPO clip as a mask: A > 0: ``rho <= 1+eh``; A <= 0: ``rho >= 1-el``. ``advantages`` broadcasts."""
    lower, upper = clip_bounds(advantages, clip_low, clip_high, dual_clip=None)
    return indicator(torch.ge, ratio, lower) * indicator(torch.le, ratio, upper)


@torch.no_grad()
def binary_tv(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    delta: float = 0.2,
    ratio: Tensor | None = None,
) -> Tensor:
    """DPPO's total variation mask: A > 0: ``pi - mu <= delta``; A <= 0: ``pi - mu >= -delta``.

    ``pi - mu`` is the change of the sampled token's own probability, the total variation between the two
    Bernoulli policies "this token or not". delta = inf: no mask. ``ratio``: pi / mu without any bound, if
    the caller has it: ``mu (ratio - 1)`` saves an exponential.
    Source: [public: verl ``dppo_tv``]; delta = 0.2 [text: NFPO App. C].
    """
    delta = check_delta(delta)
    if ratio is None:
        change = log_prob.exp().sub_(old_log_prob.exp())
    else:
        change = torch.sub(ratio, 1).mul_(old_log_prob.exp())
    return change.mul_(_half_push(advantages)).le_(delta / 2)


def _half_push(advantages: Tensor) -> Tensor:
    """0.5 where A > 0, else -0.5."""
    return indicator(torch.gt, advantages, 0).sub_(0.5)


@torch.no_grad()
def binary_kl(
    log_prob: Tensor, old_log_prob: Tensor, log_ratio: Tensor, advantages: Tensor, delta: float = 0.05
) -> Tensor:
    """DPPO's KL mask: ``KL(Bern(mu) || Bern(pi)) <= delta``, or the token moves back towards mu.

    Moving back: A > 0 with pi <= mu, or A <= 0 with pi >= mu. ``log_ratio`` is the bounded log ratio, so
    that mu = 0 gives 0 and not NaN. 1 - p is kept above 1e-8 [public: verl adds 1e-8].
    Source: [public: verl ``dppo_kl``]; delta = 0.05 [text: NFPO App. C].
    """
    delta = check_delta(delta)
    mu = old_log_prob.exp()
    rest_mu = (1 - mu).clamp_min_(1e-8)
    rest_pi = torch.expm1(log_prob).neg_().clamp_min_(1e-8)
    divergence = (rest_mu / rest_pi).log_().mul_(rest_mu).sub_(mu * log_ratio)
    back = (log_ratio * _half_push(advantages)).le_(0)
    return torch.maximum(divergence.le_(delta), back)


@torch.no_grad()
def ratio_band(ratio: Tensor, band: tuple[float, float] = (1 / 3, 3.0)) -> Tensor:
    """IcePop's mask: ``lo <= rho <= hi``. Source: "ratio threshold 3.0" [text]; [1/3, 3] is a [choice]."""
    low, high = check_band(band)
    return indicator(torch.ge, ratio, low).mul_(indicator(torch.le, ratio, high))


def check_delta(delta: float) -> float:
    return check_number("delta", delta, lambda x: x > 0, "numbers > 0 (inf = no mask)")


def check_band(band: tuple[float, float]) -> tuple[float, float]:
    return check_pair(
        "band", band, lambda low, high: 0 <= low < 1 < high, "pairs (low, high) with 0 <= low < 1 < high"
    )
