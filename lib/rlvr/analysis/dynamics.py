"""Learning dynamics of NFPO: how often, how far and how noisily the per-token weights leave 1.

Inputs are padded log ratios ``l`` [B, T] and a response mask [B, T] (:func:`pad_records` makes them from
long-form records). Everything is computed in float64 and without gradients. Results are sums per response
(:class:`Shares`, :class:`Moments`), so that a caller can pool batches and bootstrap over responses:

    s = switch_frequency(traced_ratio(l, mask, horizon=4), mask)
    s.value                                                  # pooled
    ratio_of_means(s.numerator, s.denominator, response_id)  # with its interval

Sources: switch frequency and correction strength [text: NFPO section 5]; strictness and denominator of
the switch rule [official].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rlvr.ratios import Window, bounded_exp, forward_trace

SwitchRule = Literal["strict", "dead_zone", "dead_zone_decided"]


@dataclass(frozen=True)
class Shares:
    """A mean as sums per response, both [B] float64: ``value`` = sum numerator / sum denominator."""

    numerator: Tensor
    denominator: Tensor

    @property
    def value(self) -> float:
        """Pooled over all responses; 0 if the denominators are all 0 (look at them before believing it)."""
        total = float(self.denominator.sum())
        return float(self.numerator.sum()) / total if total else 0.0


@dataclass(frozen=True)
class Moments:
    """Sums per response, [B] float64, of x - 1 and its square: around 1, where a trace lives."""

    count: Tensor
    first: Tensor
    second: Tensor

    @property
    def mean(self) -> float:
        return 1 + float(self.first.sum() / self.count.sum()) if self.count.sum() else float("nan")

    @property
    def variance(self) -> float:
        """Population variance over all tokens of all responses; NaN without tokens."""
        n = self.count.sum()
        return float(self.second.sum() / n - (self.first.sum() / n) ** 2) if n else float("nan")


@torch.no_grad()
def traced_ratio(
    log_ratio: Tensor,
    response_mask: Tensor,
    horizon: int,
    ratio_clip: float | None = 3.0,
    trace_clip: tuple[float, float] | None = (0.8, 1.4),
    window: Window = "valid",
    ratio_bound: float = 10.0,
) -> Tensor:
    """NFPO's weight ``rho_t * Gbar_{t+1}^(N)``, [B, T] float64, 1 where masked; ``horizon`` 1 gives rho."""
    valid, log_ratio = _clean(log_ratio, response_mask)
    trace = forward_trace(log_ratio, valid, horizon, ratio_clip, trace_clip, window)
    return torch.where(valid, bounded_exp(log_ratio, ratio_bound) * trace, 1.0)


@torch.no_grad()
def switch_frequency(
    weights: Tensor, response_mask: Tensor, rule: SwitchRule = "strict", dead_zone: float = 0.0
) -> Shares:
    """Share of adjacent token pairs (both valid, positions t and t+1) on opposite sides of 1.

    rule: ``strict``: sides are w < 1 and w > 1, a weight of exactly 1 is on no side; the denominator is all
        pairs [official]. ``dead_zone``: sides are w < 1 - dead_zone and w > 1 + dead_zone, the denominator
        is all pairs. ``dead_zone_decided``: the same sides, the denominator is pairs with both on a side.
        The verdict on the trace can depend on it, so a number needs its rule beside it [choice].
    """
    if rule not in ("strict", "dead_zone", "dead_zone_decided"):
        raise ValueError(f"rule={rule!r}: allowed are 'strict', 'dead_zone' and 'dead_zone_decided'")
    if not 0 <= dead_zone < 1 or (rule == "strict" and dead_zone):
        raise ValueError(
            f"dead_zone={dead_zone!r} with rule={rule!r}: allowed are 0 <= dead_zone < 1, and 0 for 'strict'"
        )
    valid = response_mask.bool()
    off = torch.where(valid, weights.double(), 1.0) - 1
    side = (off > dead_zone).to(torch.int8) - (off < -dead_zone).to(torch.int8)
    product = side[:, 1:] * side[:, :-1]
    pairs = valid[:, 1:] & valid[:, :-1]
    counted = pairs & (product != 0) if rule == "dead_zone_decided" else pairs
    return Shares(((product < 0) & pairs).sum(-1).double(), counted.sum(-1).double())


@torch.no_grad()
def independent_switch_frequency(
    log_ratio: Tensor,
    response_mask: Tensor,
    horizon: int,
    ratio_clip: float | None = 3.0,
    trace_clip: tuple[float, float] | None = (0.8, 1.4),
    window: Window = "valid",
    rule: SwitchRule = "strict",
    dead_zone: float = 0.0,
    permutations: int = 1,
    seed: int = 0,
) -> Shares:
    """Switch frequency of the same log ratios if they were independent along the response.

    Log ratios are permuted over all valid tokens of the batch, which keeps their distribution and the
    mask, and go through the same trace: what a product over N shared factors does to any sequence. Sums
    are averaged over ``permutations``.
    """
    rules = [{"rule": rule, "dead_zone": dead_zone}]
    (found,) = independent_switch_frequencies(
        log_ratio, response_mask, horizon, ratio_clip, trace_clip, window, rules, permutations, seed
    )
    return found


@torch.no_grad()
def independent_switch_frequencies(
    log_ratio: Tensor,
    response_mask: Tensor,
    horizon: int,
    ratio_clip: float | None = 3.0,
    trace_clip: tuple[float, float] | None = (0.8, 1.4),
    window: Window = "valid",
    rules: Sequence[Mapping[str, Any]] = ({"rule": "strict"},),
    permutations: int = 1,
    seed: int = 0,
) -> list[Shares]:
    """:func:`independent_switch_frequency` under several rules, on the same permutations; a permutation costs
    much more than a count."""
    if permutations < 1:
        raise ValueError(f"permutations={permutations!r}: allowed are integers >= 1")
    valid, log_ratio = _clean(log_ratio, response_mask)
    generator = torch.Generator().manual_seed(seed)
    values = log_ratio[valid]
    zero = torch.zeros(len(valid), dtype=torch.float64)
    sums = [(zero, zero)] * len(rules)
    for _ in range(permutations):
        order = torch.randperm(len(values), generator=generator).to(values.device)
        shuffled = torch.zeros_like(log_ratio).masked_scatter_(valid, values[order])
        weights = traced_ratio(shuffled, valid, horizon, ratio_clip, trace_clip, window)
        counts = [switch_frequency(weights, valid, **rule) for rule in rules]
        sums = [(a + c.numerator, b + c.denominator) for (a, b), c in zip(sums, counts, strict=True)]
    return [Shares(numerator / permutations, denominator / permutations) for numerator, denominator in sums]


@torch.no_grad()
def correction_strength(weights: Tensor, response_mask: Tensor) -> Shares:
    """``E|w - 1|`` over valid tokens."""
    valid = response_mask.bool()
    distance = torch.where(valid, weights.double() - 1, 0.0).abs()
    return Shares(distance.sum(-1), valid.sum(-1).double())


@torch.no_grad()
def trace_variance(
    log_ratio: Tensor,
    response_mask: Tensor,
    horizons: Iterable[int],
    ratio_clip: float | None = 3.0,
    trace_clip: tuple[float, float] = (0.8, 1.4),
    window: Window = "valid",
) -> dict[int, dict[Literal["raw", "clipped"], Moments]]:
    """Moments of the trace over valid tokens, for every horizon.

    ``raw`` has no clip at all and is heavy-tailed: report the median over batches. ``clipped`` is what
    NFPO uses.
    """
    valid, log_ratio = _clean(log_ratio, response_mask)

    def moments(*clips) -> Moments:
        off = torch.where(valid, forward_trace(log_ratio, valid, horizon, *clips, window) - 1, 0.0)
        return Moments(valid.sum(-1).double(), off.sum(-1), off.square().sum(-1))

    out: dict[int, dict[Literal["raw", "clipped"], Moments]] = {}
    for horizon in horizons:
        out[horizon] = {"raw": moments(None, None), "clipped": moments(ratio_clip, trace_clip)}
    return out


def pad_records(
    response: ArrayLike, position: ArrayLike, columns: Mapping[str, ArrayLike]
) -> tuple[list, Tensor, dict[str, Tensor]]:
    """Long-form records (one row per token) as padded tensors.

    Args: ``response`` id and ``position`` (0-based, in the response) of every row, in any order; ``columns``
        by name, one value per row.
    Returns (response ids in sorted order, mask [B, T] bool, columns [B, T] float64 with 0 where no record
    is). ValueError if two rows share response and position.
    """
    ids, row = np.unique(np.asarray(response), return_inverse=True)
    position = np.asarray(position)
    if position.shape != row.shape or not len(row) or position.min() < 0:
        raise ValueError(
            f"position has shape {position.shape} for {len(row)} records: allowed is one position >= 0 per "
            "record, and at least one record"
        )
    shape: Sequence[int] = (len(ids), int(position.max()) + 1)
    mask = torch.zeros(shape, dtype=torch.bool)
    at = (torch.from_numpy(row.reshape(-1)), torch.from_numpy(position.astype(np.int64)))
    mask[at] = True
    if int(mask.sum()) != len(row):
        raise ValueError("response and position repeat: allowed is one record per token")
    padded = {}
    for name, values in columns.items():
        values = np.asarray(values, dtype=np.float64)
        if values.shape != row.shape:
            raise ValueError(f"columns[{name!r}] has shape {values.shape}: allowed is {row.shape}")
        padded[name] = torch.zeros(shape, dtype=torch.float64)
        padded[name][at] = torch.from_numpy(values)
    return ids.tolist(), mask, padded


def _clean(log_ratio: Tensor, response_mask: Tensor) -> tuple[Tensor, Tensor]:
    if log_ratio.ndim != 2 or log_ratio.shape != response_mask.shape:
        raise ValueError(
            f"log_ratio {list(log_ratio.shape)}, response_mask {list(response_mask.shape)}: allowed is one "
            "common shape [B, T]"
        )
    valid = response_mask.bool()
    return valid, torch.where(valid, log_ratio.double(), 0.0)
