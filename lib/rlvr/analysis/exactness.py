"""Bias and variance of every objective's gradient, without sampling error.

For a response ``y`` of the rollout policy mu, an objective's estimate of the policy gradient is
``g(y) = -d loss(y) / d theta``, here through the objective itself. On a policy small enough to list
(:mod:`rlvr.analysis.small_policies`) its moments are sums over all responses:

    E g      = sum_y mu(y) g(y)
    bias     = |E g - d J(pi)/d theta|           in units of |d J(pi)/d theta|
    variance = sum_y mu(y) |g(y) - E g|^2        in units of |d J(pi)/d theta|^2, of one response

Conventions. The advantage is centred by the exact mean, ``A(y) = R(y) - J(mu)`` [choice: a large group,
without division by its spread]. Losses are those of a large batch in units of its plain sum over tokens:
"token-mean", "token-sum" and the other sums differ by a constant there and are the same;
"seq-mean-token-mean" weighs a response by ``E_mu n / n_i``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import binom
from torch import Tensor

from rlvr import objectives
from rlvr.advantages import StdKind, group_relative
from rlvr.analysis.small_policies import KINDS, SmallPolicy, at_distance, random_policy
from rlvr.losses import aggregation_scale

FULL = 64  # a horizon that covers every response
CASE = ("drift", "distance", "objective", "label", "series", "horizon")


@dataclass(frozen=True)
class Setting:
    """One objective with its parameters, as one row of the table."""

    objective: str
    label: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    loss_agg_mode: str | None = None  # None: the objective's own
    modules: int = 1  # K: tokens in a block; above 1 the objective gets MTP log-probs
    noisy: bool = False  # those of imperfect modules
    marked: bool = False  # the objective gets a token mask: every second token
    series: str = ""  # settings that differ in the horizon only


_NO_CLIPS = {"region": "none", "trace_clip": None, "ratio_clip": None, "ratio_bound": 60.0}
_WIDE = {"clip_low": 0.999, "clip_high": 0.999}  # the widest there is; it acts above a ratio of 1.999
_SERIES = {
    "no clips": _NO_CLIPS,
    "no clips, full gradient": {**_NO_CLIPS, "trace_gradient": "full"},
    "default clips": {},
}


def _settings() -> Iterator[Setting]:
    for series, parameters in _SERIES.items():
        for n in (1, 2, 4, FULL):
            label = f"N = {'T' if n == FULL else n}, {series}"
            yield Setting("nfpo", label, {"horizon": n, **parameters}, series=series)
    yield Setting("nfpo", "N = 4, TV mask alone", {"trace_clip": None, "ratio_clip": None})
    yield Setting("nfpo", "N = 4, trace clip alone", {"region": "none", "ratio_clip": None})
    yield Setting("nfpo", "N = 4, ratio clip alone", {"region": "none", "trace_clip": None})
    yield Setting("nfpo", "N = 4, default clips, full gradient", {"trace_gradient": "full"})
    yield Setting("exact_pg", "default")
    yield Setting("exact_pg", "full gradient", {"trace_gradient": "full"})
    yield Setting("uncorrected", "default")
    yield Setting("dppo_tv", "no mask, no cap", {"delta": float("inf"), "ratio_cap": float("inf")})
    for name in ("dppo_tv", "dppo_kl", "icepop", "cispo"):
        yield Setting(name, "default")
    yield Setting("cispo", "weight in [0.8, 1.28]", {"ratio_floor": 0.8, "ratio_cap": 1.28})
    yield Setting("ppo", "widest clip", {**_WIDE, "dual_clip": None})
    for name in ("ppo", "grpo"):
        yield Setting(name, "default")
    yield Setting("grpo", "seq-mean-token-mean", loss_agg_mode="seq-mean-token-mean")
    for name in ("dr_grpo", "dapo", "fipo"):
        yield Setting(name, "default")
    yield Setting("fipo", "preset text", objectives.FIPO_PRESETS["text"])
    yield Setting("gspo", "default")
    yield Setting("gspo", "widest clip", _WIDE)
    yield Setting("gspo", "widest clip, token-mean", _WIDE, "token-mean")
    yield Setting("gspo_token", "default")
    yield Setting("gspo_token", "widest clip, token-mean", _WIDE, "token-mean")
    yield Setting("masked_gspo", "default", marked=True)
    yield Setting("masked_gspo", "widest clip, token-mean", _WIDE, "token-mean", marked=True)
    yield Setting("gmpo", "default")
    yield Setting("gmpo", "token-mean", loss_agg_mode="token-mean")
    wide = {**_WIDE, "dual_clip": None}
    for k in (1, 2, 3):
        yield Setting("mpo", f"K = {k}, widest clip", wide, modules=k)
    for k in (2, 3):
        label = f"K = {k}, widest clip, full gradient"
        yield Setting("mpo", label, {**wide, "mtp_gradient": "full"}, modules=k)
    yield Setting("mpo", "K = 3, widest clip, imperfect modules", wide, modules=3, noisy=True)
    yield Setting("mpo", "K = 3, default", modules=3)
    yield Setting("mpo_grpo", "K = 3, default", modules=3)


#: Every objective in the settings that the table shows.
SETTINGS: tuple[Setting, ...] = tuple(_settings())
#: One setting of each objective as it runs by default, in the order of the figure.
DEFAULTS: tuple[Setting, ...] = tuple(
    s for s in SETTINGS if s.label in ("default", "N = 4, default clips", "K = 3, default")
)


def gradients(
    policy: SmallPolicy, mu_logits: Tensor, setting: Setting, advantages: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``mu(y)`` [C, R] and ``g(y)`` [C, R, P] of every response, for C rollout policies in one call.

    Args:
        policy: pi, with its responses.
        mu_logits: [C, S, V], the rollout policies.
        setting: the objective.
        advantages: [C, R]; None: ``R(y) - J(mu)``.
    """
    cases, responses, blocks = len(mu_logits), len(policy.tokens), setting.modules
    new = policy.log_prob(policy.logits, blocks, setting.noisy)
    old = policy.log_prob(mu_logits, blocks, setting.noisy)
    prob = old[..., 0].sum(-1).exp()
    if advantages is None:
        advantages = policy.reward - (prob @ policy.reward)[:, None]
    live = new.repeat(cases, 1, 1, 1).flatten(0, 1).requires_grad_()
    old = old.flatten(0, 1)
    mask = policy.mask.repeat(cases, 1)

    extra: dict[str, Tensor] = {}
    if blocks > 1:
        extra = {"mtp_log_prob": live[..., 1:], "old_mtp_log_prob": old[..., 1:]}
    if setting.marked:
        extra["token_mask"] = (torch.arange(mask.shape[1]) % 2 == 0).expand_as(mask).long()
    objective = objectives.get(setting.objective)
    loss, _ = objective(
        live[..., 0], old[..., 0], advantages.flatten(), mask, reduction="none", **setting.parameters, **extra
    )
    weight = response_weight(prob, policy.mask, setting.loss_agg_mode or objective.loss_agg_mode)
    (slope,) = torch.autograd.grad((loss * weight.reshape(-1, 1)).sum(), live)
    slope = slope.view(cases, responses, -1, blocks)
    gradient = torch.zeros(cases, responses, policy.logits.numel(), dtype=slope.dtype)
    for k in range(blocks):
        if slope[..., k].any():  # modules get none unless the setting asks for it
            gradient -= torch.einsum("crt,rtp->crp", slope[..., k], policy.features(k + 1, setting.noisy))
    return prob, gradient


def response_weight(prob: Tensor, mask: Tensor, loss_agg_mode: str) -> Tensor:
    """Weight [C, R] of a response's token losses in a large batch of mu, where their plain sum weighs 1."""
    counts = {"batch_num_tokens": 1, "global_batch_size": 1, "loss_scale_factor": 1}
    scale = aggregation_scale(mask, loss_agg_mode, dtype=prob.dtype, **counts)
    if scale.ndim == 0:
        return scale.expand_as(prob)
    return scale[:, 0] * (prob @ mask.sum(-1).to(prob.dtype))[:, None]


def moments(
    policy: SmallPolicy, mu_logits: Tensor, setting: Setting, **options: Any
) -> dict[str, np.ndarray]:
    """``error`` = |E g - exact|, ``exact`` = |exact|, ``cosine`` between them, ``spread``; each [C].

    ``spread`` is the trace of the covariance of one response's g. ``options`` as in :func:`gradients`.
    """
    prob, gradient = gradients(policy, mu_logits, setting, **options)
    mean, exact = torch.einsum("cr,crp->cp", prob, gradient), policy.gradient
    lengths = mean.norm(dim=-1)
    second = (prob * gradient.square().sum(-1)).sum(-1)
    return {
        "error": (mean - exact).norm(dim=-1).numpy(),
        "exact": exact.norm().expand(len(mean)).numpy(),
        "cosine": (mean @ exact / (lengths * exact.norm())).numpy(),
        "spread": (second - lengths.square()).numpy(),
    }


def survey_gradients(
    policies: int,
    vocabulary: int,
    length: int,
    distances: Sequence[float],
    seed: int,
    settings: Iterable[Setting] = SETTINGS,
    on_progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """:func:`moments` of every setting on random policies, at every distance between mu and pi.

    pi is fixed and mu moves away from it: in a random direction, or with pi "uphill" of it, i.e. mu's logits
    lie against the exact gradient at pi, as after good updates. At distance 0 both are the same case.

    Args:
        policies: random policies of each kind (``KINDS``).
        vocabulary, length, seed: of :func:`random_policy`.
        distances: largest total variation over the states.

    Returns:
        Columns ``kind, seed, drift, distance, objective, label, series, horizon`` and those of moments;
        ``horizon`` is at most ``length``, 0 where there is none.
    """
    settings = tuple(settings)
    cases = [("random", d) for d in distances] + [("uphill", d) for d in distances if d > 0]
    facts: list[tuple] = []
    found: dict[str, list[np.ndarray]] = {}
    for i in range(policies):
        for kind in KINDS:
            policy, direction = random_policy(seed + i, kind, vocabulary, length)
            ways = {"random": direction, "uphill": -policy.gradient.view_as(direction)}
            mu = torch.stack([at_distance(policy.logits, ways[drift], d) for drift, d in cases])
            for setting in settings:
                horizon = min(setting.parameters.get("horizon", 0), length)
                own = (setting.objective, setting.label, setting.series, horizon)
                facts += [(kind, seed + i, *case, *own) for case in cases]
                for name, values in moments(policy, mu, setting).items():
                    found.setdefault(name, []).append(values)
        if on_progress:
            on_progress(i + 1, policies)
    frame = pd.DataFrame(facts, columns=["kind", "seed", *CASE])
    return frame.assign(**{name: np.concatenate(values) for name, values in found.items()})


def expected_group_advantage(accuracy: float, group_size: int, std: StdKind) -> tuple[float, float]:
    """``E[A | R = 0]`` and ``E[A | R = 1]`` of a group-relative advantage, over the other responses.

    The others are right with probability ``accuracy`` each, independently: binomial. On-policy the mean
    gradient is then ``(E[A | R = 1] - E[A | R = 0]) dJ/dtheta``: a factor that depends on the prompt.
    """
    others = np.arange(group_size)  # right answers among the other G - 1
    groups = [[own, *[1] * k, *[0] * (group_size - 1 - k)] for own in (0, 1) for k in others]
    rewards = torch.tensor(groups, dtype=torch.float64)
    ids = torch.arange(len(groups)).repeat_interleave(group_size)
    advantage = group_relative(rewards.flatten(), ids, std).view(2, group_size, group_size)[..., 0].numpy()
    low, high = advantage @ binom.pmf(others, group_size - 1, accuracy)
    return float(low), float(high)
