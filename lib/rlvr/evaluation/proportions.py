"""Intervals for accuracies: within [0, 1], right near its ends, and never without width.

Student's t over problems is symmetric: one solved problem of 32 makes it [-0.03, 0.10], and where no problem
is solved it has no width at all. An exact binomial interval has neither fault, but takes the samples of a
problem for independent evidence. :func:`proportion_mean` is the exact interval of as many independent samples
as the spread between problems allows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from rlvr.evaluation.inputs import fraction, numbers_of, whole
from rlvr.evaluation.intervals import Estimate, cluster_means, with_interval
from rlvr.evaluation.resampling import Floats

#: Share of a problem, half solved and half not, with which the spread is measured: the smallest of those
#: simulated for docs/statistics.md with which the interval covers at all settings [choice].
PSEUDO = 0.25
ROUNDING = 1e-9


def proportion_mean(
    values: ArrayLike,
    clusters: ArrayLike,
    *,
    samples: int | None = None,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
    n_unit: str = "problems",
) -> Estimate:
    """Mean over clusters of the mean within a cluster, for values in [0, 1]; the interval is asymmetric.

    Clopper and Pearson's interval for ``m n*`` successes of the effective number of independent samples
    [public: Korn and Graubard's interval for surveys, without their degrees of freedom],

        n* = m (1 - m) / (s^2 / G), kept within [G, samples],

    with G cluster means of mean m and variance s^2. Both are taken with a quarter of a cluster more, half of
    it at 0 and half at 1: near the ends a few clusters carry the mean, and without it their spread is
    underestimated. Where all clusters are 0, or all 1, n* is G.

    Args:
        values: one per row, in [0, 1], NaN = missing: verdicts, or pass@k of a problem. clusters: the row's
            cluster (problem id), as in :func:`rlvr.evaluation.clustered_mean`, whose value this is.
        samples: independent samples if the clusters did not matter; None: the present rows.

    The interval is unknown for one cluster: a problem says nothing about others.

    Raises:
        ValueError: values outside of [0, 1], none present, or shapes that differ; a confidence outside of
            (0, 1); samples < 1.
    """
    fraction("confidence", confidence)
    values = numbers_of("values", values)
    present = values[~np.isnan(values)]
    if (outside := (present < -ROUNDING) | (present > 1 + ROUNDING)).any():
        bad = present[outside][0]
        raise ValueError(f"values holds {bad:g}: allowed are 0 <= values <= 1 and NaN (missing)")
    samples = None if samples is None else whole("samples", samples)
    means = cluster_means(np.clip(values, 0, 1), clusters)
    count, mean = len(means), float(means.mean())
    low = high = mean
    if count > 1:
        most = max(count, len(present) if samples is None else samples)
        low, high = _clopper_pearson(mean, effective_samples(means, most), confidence)
    method = f"Clopper-Pearson, effective sample size from the spread of {n_unit}"
    return with_interval(mean, low, high, count, n_unit, seeds, method)


def effective_samples(means: Floats, most: int) -> float:
    """n* of :func:`proportion_mean` for cluster means [G] in [0, 1], within [G, ``most``]."""
    count = len(means)
    total = count + PSEUDO
    centre = (means.sum() + PSEUDO / 2) / total
    squares = ((means - centre) ** 2).sum() + PSEUDO / 2 * (centre**2 + (1 - centre) ** 2)
    return float(np.clip(centre * (1 - centre) * (total - 1) * count / squares, count, most))


def _clopper_pearson(mean: float, n: float, confidence: float) -> tuple[float, float]:
    """The exact binomial interval; the number of successes need not be whole."""
    tail, right = (1 - confidence) / 2, mean * n
    low = float(stats.beta.ppf(tail, right, n - right + 1)) if mean > 0 else 0.0
    high = float(stats.beta.isf(tail, right + 1, n - right)) if mean < 1 else 1.0
    return low, high
