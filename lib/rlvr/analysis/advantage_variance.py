"""Prop. E.4 of IBPO: the variance of centred advantages with and without shaping, by formula and measured.

With terminal reward ``Y``, shaping ``phi`` and ``A_i = (Y_i + lambda phi_i) - mean_j (Y_j + lambda phi_j)``,
lambda = 0 being GSPO's:

    Var(A_ibpo) = Var(A_gspo) + (1 - 1/G) (lambda^2 V - 2 lambda C)              [text: IBPO E.2]
    C = C_out - C_in,  C_in = Cov(Y_i, phi_i),  C_out = Cov(Y_i, phi_j)
    V = Var(phi_i) - Cov(phi_i, phi_j)  =  E (phi_i - phi_j)^2 / 2  >=  0

so shaping lowers it iff ``0 < lambda < 2 C / V``. Averaged over the G positions this needs no assumption at
all: sample covariances within a group (divided by n - 1) have the expectations ``-C`` and ``V``, and put into
the formula they give the group's mean square ``A_i^2`` exactly. The formula cannot be wrong on data, then;
what data decide is the sign of C and the size of 2 C / V.

Three things to know before reading anything into it, each of them tested:

- ``Y = 2 r - 1`` in the text's appendix, ``r`` in its training [text: E.2]: C halves with ``r``, and so does
  the bound on lambda. With ``r`` and independent responses, where a wrong one is recoverable with chance
  ``q`` and then has ``phi = c``, the bound is ``2 p / (c (1 - (1-p) q))``: it goes to 0 with the accuracy
  ``p``. On hard problems (p below about 0.13 at lambda = 0.6, c = 0.5, q = 0.12) shaping *raises* the
  variance; where all responses are wrong, GSPO's is 0.
- The condition says nothing about information. A ``phi`` that is 1 on every wrong response, or tossed for
  each of them by a coin, has C > 0 too (E.3 asks for no more than a mean on wrong responses). The first only
  narrows the gap between right and wrong and changes no normalised advantage.
- Divided by the group's standard deviation, as GSPO does, squared advantages sum to n - 1 in every group that
  has a spread, whatever lambda. The variance of what is trained on does not fall; it rises with the number of
  groups that shaping gives a spread. The text restricts its proposition accordingly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlvr.checks import check_choice, check_integer, check_number
from rlvr.evaluation import Estimate, bootstrap_mean, ratio_of_means, with_ends
from rlvr.evaluation.inputs import numbers_of
from rlvr.evaluation.resampling import Floats

#: How a verdict r in {0, 1} becomes a reward Y: 2 r - 1 in the text's appendix E, r in its training.
Convention = Literal["signed", "binary"]
CONVENTIONS = ("signed", "binary")


def shaped_variance(
    gspo_variance: ArrayLike, c: ArrayLike, v: ArrayLike, group_size: int, shaping_weight: ArrayLike
) -> Floats:
    """``Var(A_ibpo)`` by the closed form; arrays broadcast."""
    group_size = check_integer("group_size", group_size, 1, "whole numbers >= 1")
    weight, c, v = (np.asarray(x, dtype=np.float64) for x in (shaping_weight, c, v))
    return np.asarray(gspo_variance) + (1 - 1 / group_size) * (weight**2 * v - 2 * weight * c)


def weight_limit(c: float, v: float) -> float:
    """Upper end ``2 C / V`` of the weights that lower the variance; 0 where none does (C <= 0).

    ``V = 0`` (no spread of phi within groups) implies C = 0 and no change at all: NaN.
    """
    if v == 0:
        return math.nan
    return max(0.0, 2 * c / v)


def local_moments(
    accuracy: float, phi: Sequence[float], probabilities: Sequence[float], convention: Convention = "signed"
) -> tuple[float, float, float]:
    """``(Cov(Y_i, phi_i), C, V)`` where responses are independent and phi depends on its own response alone.

    [text: IBPO, Lemma E.3]: ``Cov(Y, phi) = -2 p (1-p) m``, m the mean of phi on wrong responses; half of it
    with ``Y = r``. C_out and Cov(phi_i, phi_j) are 0.

    Args:
        accuracy: p, chance of a right response, whose phi is 0.
        phi, probabilities: values of phi on a wrong response and their chances, which sum to 1.
    """
    p = check_number("accuracy", accuracy, lambda x: 0 <= x <= 1, "0 <= accuracy <= 1")
    values, chances = numbers_of("phi", phi), numbers_of("probabilities", probabilities)
    if values.shape != chances.shape or values.ndim != 1 or (chances < 0).any():
        raise ValueError(f"phi={phi}, probabilities={probabilities}: allowed is one chance >= 0 per value")
    if not math.isclose(chances.sum(), 1, abs_tol=1e-9):
        raise ValueError(f"probabilities sum to {chances.sum()}: allowed is 1")
    mean = float(values @ chances)
    covariance = -reward_scale(convention) * p * (1 - p) * mean
    variance = (1 - p) * float(values**2 @ chances) - ((1 - p) * mean) ** 2
    return covariance, -covariance, variance


@dataclass(frozen=True)
class GroupMoments:
    """Of every group with two or more responses present, float64 [groups]; covariances divide by n - 1."""

    index: np.ndarray  # its row in the input
    size: Floats  # n, responses present
    reward: Floats  # sample variance of Y: expectation Var(Y_i) - Cov(Y_i, Y_j)
    phi: Floats  # of phi: expectation V
    cross: Floats  # sample covariance of Y and phi: expectation -C

    def mean_square(self, shaping_weight: float) -> Floats:
        """Mean of ``A_i^2`` in each group: the closed form, which on data is an identity."""
        weight = check_number("shaping_weight", shaping_weight, math.isfinite, "finite numbers")
        return (1 - 1 / self.size) * (self.reward + weight**2 * self.phi + 2 * weight * self.cross)


def group_moments(accuracy: ArrayLike, phi: ArrayLike, convention: Convention = "signed") -> GroupMoments:
    """Moments within groups, for the estimates below.

    Args:
        accuracy: verdicts r [groups, G] in {0, 1}; NaN is a missing response, left out.
        phi: shaping [groups, G], read where a response is present.
        convention: ``signed`` is Y = 2 r - 1, ``binary`` is Y = r.
    """
    r, phi = numbers_of("accuracy", accuracy), numbers_of("phi", phi)
    if r.ndim != 2 or r.shape != phi.shape:
        raise ValueError(f"accuracy {r.shape}, phi {phi.shape}: allowed is one common shape [groups, G]")
    present = ~np.isnan(r)
    if (wrong := present & (r != 0) & (r != 1)).any():
        raise ValueError(f"accuracy holds {r[wrong][0]}: allowed are 0, 1 and NaN (missing)")
    if np.isnan(phi[present]).any():
        raise ValueError("phi holds NaN at a response that is present: allowed are numbers")
    index = np.flatnonzero(present.sum(1) > 1)
    present = present[index]
    n = present.sum(1, keepdims=True)

    def centred(values: Floats) -> Floats:
        values = np.where(present, values[index], 0.0)
        return np.where(present, values - values.sum(1, keepdims=True) / n, 0.0)

    y, f = reward_scale(convention) * centred(r), centred(phi)
    moments = ((a * b).sum(1) / (n[:, 0] - 1) for a, b in ((y, y), (f, f), (y, f)))
    return GroupMoments(index, n[:, 0].astype(np.float64), *moments)


def condition(
    moments: GroupMoments,
    clusters: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    **bootstrap: object,
) -> dict[str, Estimate]:
    """Estimates of ``C``, ``V`` and the bound ``2C/V`` of Condition E.2, by a bootstrap over groups.

    Groups of different sizes weigh by 1 - 1/n, as in the variance. A bound below 0 says that no weight
    lowers the variance; it is left out where phi has no spread in any group.

    Args:
        clusters: [groups of ``moments``], what is drawn as a whole (the problem, where several groups answer
            it); None: the group. strata: the training seed.
        bootstrap: ``resamples``, ``seed``, ``confidence``, ``seeds`` of
            :func:`rlvr.evaluation.bootstrap_mean`.
    """
    clusters = moments.index if clusters is None else clusters
    options = {"n_unit": "groups", **bootstrap}
    out = {
        "C": bootstrap_mean(-moments.cross, clusters, strata, **options),
        "V": bootstrap_mean(moments.phi, clusters, strata, **options),
    }
    share = 1 - 1 / moments.size
    if (moments.phi > 0).any():
        numerator, denominator = -2 * share * moments.cross, share * moments.phi
        out["2C/V"] = ratio_of_means(numerator, denominator, clusters, strata, **options)
    return out


def variance_by_weight(
    moments: GroupMoments,
    shaping_weights: Sequence[float],
    clusters: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    **bootstrap: object,
) -> pd.DataFrame:
    """``Var(A_ibpo)`` and its ratio to GSPO's over lambda; arguments as in :func:`condition`.

    Returns ``weight, quantity, estimate, value, low, high``; quantity is "variance" or "ratio". Below 1 the
    shaping lowers the variance. Ratios are of the same groups, so their intervals are narrower than those
    of the variances; they are left out where GSPO's variance is 0.
    """
    clusters = moments.index if clusters is None else clusters
    options = {"n_unit": "groups", **bootstrap}
    plain = moments.mean_square(0.0)
    rows = []
    for weight in shaping_weights:
        shaped = moments.mean_square(weight)
        rows.append((weight, "variance", bootstrap_mean(shaped, clusters, strata, **options)))
        if (plain > 0).any():
            rows.append((weight, "ratio", ratio_of_means(shaped, plain, clusters, strata, **options)))
    return with_ends(pd.DataFrame(rows, columns=["weight", "quantity", "estimate"]))


def reward_scale(convention: Convention) -> float:
    """dY / dr."""
    return {"signed": 2.0, "binary": 1.0}[check_choice("convention", convention, CONVENTIONS)]
