"""Advantages: group relative rewards, the groups worth training on, and GAE for objectives with a critic."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rlvr.checks import check_choice, check_number, describe
from rlvr.rewards import check_accuracy
from rlvr.tensor_checks import check_floating, check_mask, usable

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
    check_floating("rewards", rewards, ndim=1)
    eps = _check_std(std, eps)
    group, groups = _index_groups(group_ids, rewards)
    if torch.isinf(rewards).any():
        raise ValueError("rewards hold an infinity: allowed are finite numbers and NaN (missing)")

    dtype = torch.float64 if rewards.dtype == torch.float64 else torch.float32
    if not len(rewards):
        return rewards.to(dtype)
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


class InformativeGroups(NamedTuple):
    """What :func:`informative_groups` found."""

    mask: Tensor  # [B] bool: present responses of informative groups
    group_ids: tuple[Hashable, ...]  # of the informative groups, in order of first appearance


def informative_groups(accuracy: Tensor, group_ids: Tensor | Sequence[Hashable]) -> InformativeGroups:
    """Dynamic sampling: groups with a right and a wrong answer, ``0 < sum r < n`` [public: DAPO Eq. 11].

    Args:
        accuracy: the verdict per response [B], in {0, 1}, never a shaped reward: under an overlong penalty
            a group of wrong answers has a spread, would pass, and teach to be wrong briefly. Other values
            are an error. NaN is a missing sample: not counted, and False in the mask.
        group_ids: as in :func:`group_relative`, unique over all generated batches.

    A group with one response present is not informative, its advantage being 0; verl's recipe keeps it.
    That recipe asks for a standard deviation > 0 of any metric, which rounding can fake.
    """
    right, present = check_accuracy("accuracy", accuracy, 1)
    group, groups = _index_groups(group_ids, accuracy)

    def per_group(flags: Tensor) -> Tensor:
        return torch.zeros(groups, dtype=torch.long, device=flags.device).index_add_(0, group, flags.long())

    correct = per_group(right)
    kept = ((correct > 0) & (correct < per_group(present)))[group]
    names = group_ids.tolist() if isinstance(group_ids, Tensor) else group_ids
    return InformativeGroups(
        kept & present, tuple(dict.fromkeys(n for n, k in zip(names, kept.tolist(), strict=True) if k))
    )


class SamplingPlan(NamedTuple):
    """What to do after a generated batch."""

    status: Literal["done", "sample", "exhausted"]
    missing: int  # informative prompts still needed
    message: str  # why sampling ended short of the target; "" unless exhausted


def plan_sampling(
    kept: int, target: int, generated_batches: int, max_batches: int | None = None
) -> SamplingPlan:
    """Whether dynamic sampling needs another generated batch [public: verl's DAPO recipe].

    Args:
        kept: informative prompts collected so far, over all generated batches of this step.
        target: prompts in a training batch. Of a surplus the recipe trains on the first ``target``.
        generated_batches: batches generated for this step, that of the latest prompts included.
        max_batches: after so many, an unfilled batch is an error. None: no limit (verl writes 0).
    """
    for name, value, lowest in (
        ("kept", kept, 0),
        ("target", target, 1),
        ("generated_batches", generated_batches, 0),
        ("max_batches", max_batches, 1),
    ):
        if value is None and name == "max_batches":
            continue
        try:
            allowed = not isinstance(value, bool) and operator.index(value) >= lowest
        except TypeError:
            allowed = False
        if not allowed:
            no_limit = "None (no limit) and " if name == "max_batches" else ""
            raise ValueError(f"{name}={value!r}: allowed are {no_limit}integers >= {lowest}")
    missing = max(0, target - kept)
    if not missing:
        return SamplingPlan("done", 0, "")
    if max_batches is None or generated_batches < max_batches:
        return SamplingPlan("sample", missing, "")
    return SamplingPlan(
        "exhausted",
        missing,
        f"{generated_batches} generated batches gave {kept} of target={target} prompts with right and wrong "
        f"answers: raise max_batches={max_batches} (None: no limit), lower target, or take prompts that the "
        "policy solves sometimes",
    )


def _check_std(std: StdKind, eps: float) -> float:
    check_choice("std", std, ("unbiased", "biased", "none"))
    return check_number("eps", eps, lambda x: 0 <= x < math.inf, "finite numbers >= 0")


def _index_groups(group_ids: Tensor | Sequence[Hashable], per: Tensor) -> tuple[Tensor, int]:
    """Group ids, one per entry of ``per`` [B], as indices 0..groups-1."""
    if isinstance(group_ids, Tensor):
        usable_ids = group_ids.ndim == 1 and usable(group_ids, group_ids)
    else:
        usable_ids = isinstance(group_ids, Sequence) or hasattr(group_ids, "__array__")
    if not usable_ids:
        raise ValueError(
            f"group_ids is {describe(group_ids)}: allowed are a dense tensor [B] and a sequence of hashable "
            "values, one id per response"
        )
    if len(group_ids) != len(per):
        raise ValueError(f"group_ids has {len(group_ids)} entries: allowed is one per response, {len(per)}")
    if isinstance(group_ids, Tensor):
        unique, index = torch.unique(group_ids.to(per.device), return_inverse=True)
        return index, len(unique)
    if any(isinstance(name, Tensor) for name in group_ids):  # each hashes as itself: all groups of one
        raise ValueError("group_ids is a sequence of tensors: allowed are one tensor [B] and hashable values")
    known: dict[Hashable, int] = {}
    try:
        index = [known.setdefault(name, len(known)) for name in group_ids]
    except TypeError:
        raise ValueError(f"group_ids is {describe(group_ids)}: allowed are hashable values") from None
    return torch.tensor(index, dtype=torch.long, device=per.device), len(known)


def gae(
    rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over valid tokens only.

    ``delta_t = r_t + gamma V_{t'} - V_t`` and ``A_t = delta_t + gamma lam A_{t'}``, where t' is the next
    *valid* token after t; V and A are 0 past the last one. Masked tokens (holes, padding) are skipped as
    if they were not there, and whatever they hold (NaN, a reward) is ignored.

    Args: ``rewards``, ``values``, ``response_mask`` [B, T]. gamma = lam = 1 [text: terminal reward].
    Returns (advantages, returns), both [B, T], 0 where masked; returns = advantages + values. verl whitens
    the advantages next, after it took the returns: :func:`whiten`.
    """
    check_floating("rewards", rewards)
    check_floating("values", values, like=rewards)
    check_mask("response_mask", response_mask, like=rewards)
    gamma, lam = (
        check_number(name, value, lambda x: 0 <= x <= 1, f"0 <= {name} <= 1")
        for name, value in (("gamma", gamma), ("lam", lam))
    )
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


def whiten(advantages: Tensor, response_mask: Tensor, std: StdKind = "unbiased", eps: float = 1e-8) -> Tensor:
    """``(A - mean A) / sqrt(Var A + eps)`` over all valid tokens, [B, T], 0 where masked.

    Args:
        advantages: [B, T], of the *whole* batch: whitening micro-batches one by one gives other numbers.
        response_mask: [B, T], 0/1. What masked places hold (NaN too) does not matter; verl whitens them
            along, here they are 0.
        std: ``unbiased`` variance, M / (M - 1) with M valid tokens [public: verl], ``biased``, or ``none``
            to centre only.
        eps: inside the root [public: verl], unlike that of :func:`group_relative`.

    Equal advantages, a single valid token and none at all give exactly 0 (verl raises at one token, and
    leaves the rounding of the mean at equal ones). Deviations are taken from the mean in float64, in two
    passes. Returns the dtype of ``advantages``, at least float32.
    """
    check_floating("advantages", advantages)
    check_mask("response_mask", response_mask, like=advantages)
    eps = _check_std(std, eps)
    dtype = torch.float64 if advantages.dtype == torch.float64 else torch.float32
    valid = response_mask.bool()
    values = advantages[valid].double()
    if not values.isfinite().all():
        wrong = values[~values.isfinite()][0].item()
        raise ValueError(f"advantages holds {wrong} at a valid token: allowed are finite numbers")
    whitened = torch.zeros_like(advantages, dtype=dtype)
    if len(values) and values.min() < values.max():
        values = values - values.mean()
        if std != "none":
            count = len(values) - 1 if std == "unbiased" else len(values)
            values = values / (values.square().sum() / count + eps).sqrt()
        whitened[valid] = values.to(dtype)
    return whitened
