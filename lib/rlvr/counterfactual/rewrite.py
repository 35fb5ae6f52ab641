"""Full rewrites: corrections that drop the response instead of repairing it [text: IBPO G.3].

    rewrite(y, y_hat, y_ref)  =  d(y, y_hat) > alpha  and  d(y, y_hat) > d(y_hat, y_ref)

``d`` is the normalised token edit distance of :mod:`rlvr.counterfactual.alignment`. A rewrite that happens
to be right says nothing about the response that it replaced; it earns no shaping reward.

``alpha`` is 0.6, or adaptive: ``mean + 2 std`` of the distances of the batch. What the adaptive threshold
cannot do follows from the text's own argument: by Cantelli's inequality at most 1/5 of a batch lies above it
whatever the batch, and where rewrites are many they raise it, beyond 1 even, where it flags nothing (a
quarter of the distances at 1 and the rest at 0.1 give 1.10). It finds outliers, not rewrites.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from rlvr.checks import check_number, describe
from rlvr.tensor_checks import check_floating, usable

THRESHOLD = 0.6  # [text: IBPO G.3, Table 5]
DEVIATIONS = 2.0  # [text: IBPO G.3]


def full_rewrites(
    distance_to_original: Tensor,
    distance_to_reference: Tensor,
    threshold: float | Literal["adaptive"] = THRESHOLD,
) -> Tensor:
    """Which corrections are full rewrites, bool [B, C]; for :func:`rlvr.rewards.accepted_corrections`.

    Args:
        distance_to_original: ``d(y, y_hat)`` [B, C] in [0, 1]; NaN is a missing correction: never flagged.
        distance_to_reference: ``d(y_hat, y_ref)`` [B, C]
            (:func:`rlvr.counterfactual.alignment.reference_distances`). NaN: there was no reference (K = 1),
            and the first condition decides alone [choice].
        threshold: ``alpha`` in [0, 1], or "adaptive" (:func:`adaptive_threshold`).

    Both comparisons are strict: a distance of exactly ``alpha`` is no rewrite.
    """
    _check_distance("distance_to_original", distance_to_original)
    check_floating("distance_to_reference", distance_to_reference, like=distance_to_original)
    _check_distance("distance_to_reference", distance_to_reference)
    if threshold == "adaptive":
        alpha = adaptive_threshold(distance_to_original)
    else:
        alpha = check_number("threshold", threshold, lambda x: 0 <= x <= 1, "0 <= threshold <= 1, 'adaptive'")
    far = distance_to_original > alpha  # in the tensor's precision: 0.6 in float32 is not above 0.6
    nearer = (distance_to_original > distance_to_reference) | distance_to_reference.isnan()
    return far & nearer


def adaptive_threshold(distance_to_original: Tensor) -> float:
    """``alpha = mean + 2 std`` over the distances that are there [text: IBPO G.3]; NaN without any.

    Over all corrections of the batch, right or wrong; the standard deviation is that of the batch itself
    (divided by n), for which the text's bound by Chebyshev's inequality is exact [choice]. In float64.
    """
    _check_distance("distance_to_original", distance_to_original)
    found = distance_to_original[~distance_to_original.isnan()].double()
    if not len(found):
        return math.nan
    return float(found.mean() + DEVIATIONS * found.std(correction=0))


def flagged_share(rewrite: Tensor, distance_to_original: Tensor) -> float:
    """Share of rewrites among the corrections that are there (Table 5's first column); NaN without any.

    The text does not say of what its shares are: of all corrections, right or wrong [choice].
    """
    _check_distance("distance_to_original", distance_to_original)
    if (
        not isinstance(rewrite, Tensor)
        or rewrite.shape != distance_to_original.shape
        or rewrite.dtype != torch.bool
        or not usable(rewrite, distance_to_original)
    ):
        raise ValueError(f"rewrite={describe(rewrite)}: allowed is bool {list(distance_to_original.shape)}")
    present = ~distance_to_original.isnan()
    return float((rewrite & present).sum() / present.sum()) if present.any() else math.nan


def _check_distance(name: str, value: Tensor) -> None:
    check_floating(name, value)
    outside = (value < 0) | (value > 1)
    if outside.any():
        raise ValueError(f"{name} holds {value[outside][0].item()}: allowed are 0..1 and NaN (missing)")
