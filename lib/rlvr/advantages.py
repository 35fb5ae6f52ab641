"""Advantages: group relative rewards, and GAE for objectives with a critic."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from torch import Tensor

StdKind = Literal["unbiased", "biased", "none"]


def group_relative(
    rewards: Tensor,
    group_ids: Tensor | Sequence[Hashable],
    std: StdKind = "unbiased",
    eps: float = 1e-6,
    leave_one_out: bool = False,
) -> Tensor:
    """``A_i = (R_i - mean R) / (std R + eps)`` within each group, [B].

    Args:
        rewards: one reward per response, [B]. NaN is a missing sample: not counted, advantage 0.
        group_ids: [B], one id per response (the prompt it answers), in any order.
        std: ``unbiased`` divides by n-1 [public: verl], ``biased`` by n, ``none`` leaves the scale alone
            (Dr. GRPO; NFPO's release).
        eps: added to the standard deviation (1e-6 in verl, 1e-4 in TRL).
        leave_one_out: the baseline is the mean of the *other* responses, i.e. the centred reward times
            n / (n-1) (RLOO); combines with any ``std``.

    A group of one and a group of equal rewards give exactly 0, whatever the rounding of their mean.
    Deviations are taken from the mean in float64, in two passes. Returns the dtype of ``rewards``,
    at least float32.
    """
    if not isinstance(rewards, Tensor) or rewards.ndim != 1 or not rewards.is_floating_point():
        shape = tuple(getattr(rewards, "shape", ()))
        raise ValueError(
            f"rewards with shape {shape}, {getattr(rewards, 'dtype', type(rewards))}: allowed is a floating "
            "tensor [B], one reward per response"
        )
    if std not in ("unbiased", "biased", "none"):
        raise ValueError(f"std={std!r}: allowed are 'unbiased', 'biased' and 'none'")
    if not eps >= 0:
        raise ValueError(f"eps={eps!r}: allowed are numbers >= 0")
    if len(group_ids) != len(rewards):
        raise ValueError(f"group_ids has {len(group_ids)} entries: allowed is one per reward, {len(rewards)}")
    if torch.isinf(rewards).any():
        raise ValueError("rewards hold an infinity: allowed are finite numbers and NaN (missing)")

    dtype = torch.float64 if rewards.dtype == torch.float64 else torch.float32
    if not len(rewards):
        return rewards.to(dtype)
    group, groups = _index_groups(group_ids, rewards.device)
    present = ~rewards.isnan()
    value = torch.where(present, rewards.double(), 0.0)

    def per_group(values: Tensor) -> Tensor:
        """Sum of ``values`` in each response's group, back at the responses."""
        return values.new_zeros(groups).index_add_(0, group, values)[group]

    n = per_group(present.double())
    centred = torch.where(present, value - per_group(value) / n.clamp_min(1), 0.0)
    scale = torch.ones_like(centred)
    if std != "none":
        spread = per_group(centred.square()) / (n - 1 if std == "unbiased" else n).clamp_min(1)
        scale = spread.sqrt() + eps
    if leave_one_out:
        centred = centred * n / (n - 1).clamp_min(1)

    lowest = value.new_full((groups,), torch.inf).scatter_reduce_(
        0, group, torch.where(present, value, torch.inf), "amin"
    )
    highest = value.new_full((groups,), -torch.inf).scatter_reduce_(
        0, group, torch.where(present, value, -torch.inf), "amax"
    )
    informative = present & (lowest < highest)[group]
    return torch.where(informative, centred / scale, 0.0).to(dtype)


def _index_groups(group_ids: Tensor | Sequence[Hashable], device: torch.device) -> tuple[Tensor, int]:
    """Group ids as indices 0..groups-1."""
    if isinstance(group_ids, Tensor):
        unique, index = torch.unique(group_ids.to(device), return_inverse=True)
        return index, len(unique)
    known: dict[Hashable, int] = {}
    index = torch.tensor([known.setdefault(name, len(known)) for name in group_ids], device=device)
    return index, len(known)


def gae(
    rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over valid tokens only.

    ``delta_t = r_t + gamma V_{t'} - V_t`` and ``A_t = delta_t + gamma lam A_{t'}``, where t' is the next
    *valid* token after t; V and A are 0 past the last one. Masked tokens (holes, padding) are skipped as
    if they were not there, and whatever they hold (NaN too) is ignored.

    Args: ``rewards``, ``values``, ``response_mask`` [B, T]. gamma = lam = 1 [text: terminal reward].
    Returns (advantages, returns), both [B, T], 0 where masked; returns = advantages + values; not whitened.
    """
    if not (rewards.shape == values.shape == response_mask.shape) or rewards.ndim != 2:
        raise ValueError(
            f"rewards {tuple(rewards.shape)}, values {tuple(values.shape)}, response_mask "
            f"{tuple(response_mask.shape)}: allowed is one common shape [B, T]"
        )
    for name, value in (("gamma", gamma), ("lam", lam)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value!r}: allowed are 0 <= {name} <= 1")
    dtype = torch.float64 if torch.float64 in (rewards.dtype, values.dtype) else torch.float32
    valid = response_mask.bool()
    rewards = torch.where(valid, rewards.to(dtype), 0.0)
    values = torch.where(valid, values.to(dtype), 0.0)
    advantages = torch.zeros_like(values)
    next_value = next_advantage = values.new_zeros(len(values))
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        advantages[:, t] = torch.where(valid[:, t], advantage, 0.0)
        next_value = torch.where(valid[:, t], values[:, t], next_value)
        next_advantage = torch.where(valid[:, t], advantage, next_advantage)
    return advantages, torch.where(valid, advantages + values, 0.0)
