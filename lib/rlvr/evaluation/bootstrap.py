"""Percentile intervals of a bootstrap over clusters, within strata.

Whole clusters are drawn, so what is dependent stays together; NaN is a missing value and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlvr.evaluation.inputs import check_function, check_resampling, items_of, labels_of, numbers_of
from rlvr.evaluation.intervals import Estimate, with_interval
from rlvr.evaluation.resampling import Floats, percentiles, resampled_sums, resamples_of


def bootstrap_mean(
    values: ArrayLike,
    clusters: ArrayLike,
    strata: ArrayLike | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
    n_unit: str = "problems",
) -> Estimate:
    """Mean over rows, percentile interval of a bootstrap over clusters within strata.

    As :func:`ratio_of_means` with a denominator of 1 for every present row.
    """
    values = numbers_of("values", values)
    present = np.where(np.isnan(values), np.nan, 1.0)
    return ratio_of_means(
        values,
        present,
        clusters,
        strata,
        resamples=resamples,
        seed=seed,
        confidence=confidence,
        seeds=seeds,
        n_unit=n_unit,
    )


def ratio_of_means(
    numerator: ArrayLike,
    denominator: ArrayLike,
    clusters: ArrayLike,
    strata: ArrayLike | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
    n_unit: str = "responses",
) -> Estimate:
    """``sum numerator / sum denominator``, percentile interval of a bootstrap over clusters within strata.

    Args:
        numerator, denominator: one pair per row, e.g. switches and pairs of a response; NaN in either
            leaves the row out.
        clusters: the row's cluster, drawn as a whole. strata: the row's stratum (training seed): each is
            resampled to its own number of clusters, so that no resample loses one; a cluster belongs to
            the stratum it is in, the same id in two strata is two clusters.
        resamples, seed: number of resamples; of the generator, so the same input gives the same interval.

    ``n`` counts clusters over all strata.
    """
    numerator, denominator = numbers_of("numerator", numerator), numbers_of("denominator", denominator)
    clusters = labels_of("clusters", clusters)
    strata = np.zeros(clusters.shape, dtype=np.int64) if strata is None else labels_of("strata", strata)
    if not numerator.shape == denominator.shape == clusters.shape == strata.shape or numerator.ndim != 1:
        raise ValueError(
            f"numerator {numerator.shape}, denominator {denominator.shape}, clusters {clusters.shape}, "
            f"strata {strata.shape}: allowed is one common shape [rows]"
        )
    check_resampling(resamples, confidence, seed)
    present = ~(np.isnan(numerator) | np.isnan(denominator))
    if not present.any() or not (total := denominator[present].sum()) > 0:
        raise ValueError("nothing to estimate: no row is present, or the denominators add up to 0")

    rng = np.random.default_rng(seed)
    sums = np.zeros((2, resamples))
    n = 0
    for stratum in np.unique(strata[present]):
        rows = present & (strata == stratum)
        _, index = np.unique(clusters[rows], return_inverse=True)
        pair = np.stack([np.bincount(index, x[rows]) for x in (numerator, denominator)])
        n += pair.shape[1]
        sums += resampled_sums(pair, resamples, rng)
    kept = sums[1] > 0  # a resample of empty clusters has no ratio
    ratios = sums[0, kept] / sums[1, kept]
    low, high = percentiles(ratios, confidence) if len(ratios) else (0.0, 0.0)
    method = f"bootstrap over {n_unit}, percentile, {resamples} resamples"
    if len(np.unique(strata[present])) > 1:
        method += ", within strata"
    return with_interval(numerator[present].sum() / total, low, high, n, n_unit, seeds, method)


def bootstrap_statistic(
    strata: Sequence[ArrayLike],
    statistic: Callable[[Floats], Floats],
    *,
    resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
    n_unit: str = "problems",
) -> Estimate:
    """Any statistic of independent values, percentile interval of a bootstrap within strata.

    Args:
        strata: one array [n_s] of values per stratum, none missing; each is resampled to its own length.
        statistic: maps values [..., n], all strata side by side, to [...]; e.g. a median along the last axis.

    The interval is unknown where every resample has the same statistic.
    """
    parts = [numbers_of("strata", values) for values in items_of("strata", strata, "arrays [n_s]")]
    check_function("statistic", statistic, "values [..., n]")
    if not parts or any(values.ndim != 1 or not len(values) for values in parts):
        raise ValueError(f"strata={[v.shape for v in parts]}: allowed are one or more arrays [n_s], n_s >= 1")
    if any(np.isnan(values).any() for values in parts):
        raise ValueError("strata hold NaN: leave missing values out")
    check_resampling(resamples, confidence, seed)
    drawn = [statistic(values) for values in resamples_of(parts, resamples, np.random.default_rng(seed))]
    low, high = percentiles(np.concatenate(drawn), confidence)
    method = f"bootstrap over {n_unit}, percentile, {resamples} resamples"
    if len(parts) > 1:
        method += ", within strata"
    pooled = np.concatenate(parts)
    return with_interval(
        float(statistic(pooled)), low, high, len(pooled), n_unit, seeds, method, tolerance=0.0
    )


def bootstrap_interval(
    value: float,
    draws: Floats,
    *,
    n: int,
    method: str,
    n_unit: str = "problems",
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
) -> Estimate:
    """An Estimate from a statistic and its resamples [resamples]: percentiles, or unknown without spread."""
    check_resampling(len(draws), confidence)
    return with_interval(value, *percentiles(draws, confidence), n, n_unit, seeds, method)
