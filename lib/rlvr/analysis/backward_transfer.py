"""Positive backward transfer of IBPO: does learning to correct improve the base task, to first order?

The text claims that the correction task, trained jointly, "improves performance on an earlier task", the base
task, and defines no measurement [text: IBPO 3.4, D.1]. The one here is local: at one policy, with ``g_base``
and ``g_corr`` the gradients of the two losses that joint training adds up, a step ``-eta g_corr`` changes the
base loss by

    -eta <g_base, g_corr> + O(eta^2)

so transfer is positive iff the inner product is. Where the base loss is minus the reward's policy gradient
(advantages centred and not divided by the group's spread, summed over tokens), its negative is the change of
the base reward. Three numbers:

    change   eta <g_base, g_corr>                     what one step on corrections gives the base task
    ratio    <g_base, g_corr> / <g_base, g_base>      ... in parts of what a step of that size on the base
                                                      task itself gives
    cosine   <g_base, g_corr> / (|g_base| |g_corr|)   free of both losses' scales

All are of *expected* gradients, and batches give noisy ones. Two traps, both tested: correction prompts are
made of the base task's own responses, so gradients of one batch share their noise, and their product is not
that of the expectations; and noise lengthens gradients, so the cosine of averages is too small. Products are
therefore taken between *different* batches only, norms too, which is unbiased. Intervals: jackknife over
batches, Student's t; of the cosine in Fisher's z, so that they lie within [-1, 1]. What training with and
without the task gives in the end is another question, for runs of several seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from rlvr.checks import check_number, describe
from rlvr.evaluation import Estimate
from rlvr.evaluation.inputs import fraction
from rlvr.evaluation.intervals import with_interval
from rlvr.tensor_checks import check_floating, usable

_CHUNK = 1 << 20  # parameters converted to float64 at a time


@dataclass(frozen=True)
class Products:
    """Inner products of the gradients of B batches, float64 [B, B]; blocks of parameters add up.

    ``cross[i, j]`` is of batch i's base gradient and batch j's correction gradient.
    """

    base: Tensor
    cross: Tensor
    correction: Tensor

    def __add__(self, other: Products) -> Products:
        return Products(self.base + other.base, self.cross + other.cross, self.correction + other.correction)


def inner_products(base: Tensor, correction: Tensor, preconditioner: Tensor | None = None) -> Products:
    """Products of all batches' gradients, for one block of parameters or all of them.

    Args:
        base, correction: [B, D] floating, gradients of the two losses on B batches, one row each: the
            same batch of prompts in the same row, so that what shares its noise can be told apart.
        preconditioner: [D], positive: what the optimiser multiplies gradients with (Adam's
            ``1 / (sqrt(v) + eps)``). Steps are then ``-eta P g``. None: all 1.
    """
    check_floating("base", base)
    check_floating("correction", correction, like=base)
    if preconditioner is not None:
        good = isinstance(preconditioner, Tensor) and preconditioner.is_floating_point()
        if not good or preconditioner.shape != base.shape[1:] or not usable(preconditioner, base):
            raise ValueError(
                f"preconditioner={describe(preconditioner)}: allowed is a floating tensor [{base.shape[1]}]"
            )
        if not (preconditioner > 0).all():
            raise ValueError("preconditioner holds numbers <= 0 or NaN: allowed are numbers > 0")
    batches = len(base)
    out = Products(*(base.new_zeros(batches, batches, dtype=torch.float64) for _ in range(3)))
    for start in range(0, base.shape[1], _CHUNK):
        part = slice(start, start + _CHUNK)
        g, h = base[:, part].double(), correction[:, part].double()
        p = 1.0 if preconditioner is None else preconditioner[part].double()
        out = out + Products(g @ (p * g).T, g @ (p * h).T, h @ (p * h).T)
    for name, value in (("base", out.base), ("correction", out.correction)):
        if not value.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinities, or overflows: allowed are finite gradients")
    return out


@dataclass(frozen=True)
class Transfer:
    """Estimates over batches; ``ratio`` and ``cosine`` are None where noise hides a gradient's length (its
    estimated square is not positive)."""

    change: Estimate
    ratio: Estimate | None
    cosine: Estimate | None


def transfer(products: Products, learning_rate: float = 1.0, *, confidence: float = 0.95) -> Transfer:
    """First-order effect of the correction task on the base task, by products of different batches [choice].

    Positive: learning to correct helps. The interval is for the policy at which the gradients were taken,
    over batches; it is unknown with fewer than three.

    Args:
        products: of :func:`inner_products`, two batches or more.
        learning_rate: eta, the size of the step that ``change`` speaks of.
    """
    fraction("confidence", confidence)
    rate = check_number("learning_rate", learning_rate, lambda x: 0 < x < math.inf, "finite numbers > 0")
    shape = tuple(products.cross.shape)
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2:
        raise ValueError(f"products of {shape}: allowed are those of two batches or more")
    base, cross, correction = (x.cpu().numpy() for x in (products.base, products.cross, products.correction))

    def moments(keep: np.ndarray) -> np.ndarray:
        """Unbiased <g_base, g_base>, <g_base, g_corr>, <g_corr, g_corr>."""
        return np.array([_between(matrix[np.ix_(keep, keep)]) for matrix in (base, cross, correction)])

    every = np.arange(shape[0])
    value = moments(every)
    without = [moments(np.delete(every, b)) for b in every] if shape[0] > 2 else []

    def estimate(statistic: Callable[[np.ndarray], float]) -> Estimate | None:
        found = statistic(value)
        if math.isnan(found):
            return None
        left = np.array([statistic(m) for m in without])
        jackknife = _jackknife_of_cosine if statistic is cosine else _jackknife
        return jackknife(found, left, shape[0], confidence)

    def cosine(m: np.ndarray) -> float:
        return m[1] / math.sqrt(m[0] * m[2]) if m[0] > 0 and m[2] > 0 else math.nan

    change = estimate(lambda m: rate * m[1])
    assert change is not None  # gradients are finite
    return Transfer(
        change,
        estimate(lambda m: m[1] / m[0] if m[0] > 0 else math.nan),
        estimate(cosine),
    )


def _between(matrix: np.ndarray) -> float:
    """Mean of the products of different batches."""
    n = len(matrix)
    return float((matrix.sum() - np.trace(matrix)) / (n * (n - 1)))


def _jackknife(value: float, without: np.ndarray, n: int, confidence: float) -> Estimate:
    """Student's t on the n pseudo-values; unknown where one cannot be computed."""
    half, method = 0.0, "jackknife over batches, Student t"
    if not len(without):
        method += "; unknown: two batches leave one"
    elif np.isnan(without).any():
        method += "; unknown: without one of the batches a gradient's length is hidden by noise"
    else:
        pseudo = n * value - (n - 1) * without
        half = stats.t.ppf((1 + confidence) / 2, n - 1) * pseudo.std(ddof=1) / math.sqrt(n)
        return with_interval(value, value - half, value + half, n, "batches", (), method)
    return Estimate(value, None, None, n, "batches", (), method)


def _jackknife_of_cosine(value: float, without: np.ndarray, n: int, confidence: float) -> Estimate:
    """:func:`_jackknife` of Fisher's ``z = atanh``, back on the scale of the cosine; the value stays.

    Unknown where an estimate is no cosine (beyond 1, which products of different batches may give).
    """
    if (np.abs([value, *without]) >= 1).any():
        method = "jackknife over batches; unknown: an estimate reaches 1, beyond which there is no cosine"
        return Estimate(value, None, None, n, "batches", (), method)
    found = _jackknife(math.atanh(value), np.arctanh(without), n, confidence)
    low, high = (None if end is None else math.tanh(end) for end in (found.low, found.high))
    return replace(found, value=value, low=low, high=high, method=f"{found.method} of Fisher's z")
