"""Estimates, and Student's t over what is really independent.

Samples of one problem are not independent (known trap: 30 problems x 32 samples treated as 960 rows
give a standard error six times too small), and neither are tokens of one response: the cluster is the
problem or the response. NaN is a missing value and is left out. Where the data cannot tell the spread
(one cluster, one seed, all clusters alike) the interval is None, i.e. unknown; it is never of width zero
and never a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from rlvr.evaluation.inputs import check_frame, fraction, labels_of, numbers_of, seeds_of
from rlvr.evaluation.resampling import Floats


@dataclass(frozen=True)
class Estimate:
    """A number, its interval, and what it rests on.

    ``low`` and ``high`` are both None where the interval is unknown. ``n`` counts ``n_unit`` (the
    independent units), ``seeds`` are the training seeds behind it, ``method`` says how the interval was
    made.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    n_unit: str
    seeds: tuple[int, ...]
    method: str

    def format(self, digits: int = 3) -> str:
        """``0.655 [0.641, 0.669]`` with ``digits`` decimals, ``0.655 [unknown]`` without an interval."""
        if self.low is None or self.high is None:
            return f"{self.value:.{digits}f} [unknown]"
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def with_interval(
    value: float,
    low: float,
    high: float,
    n: int,
    n_unit: str,
    seeds: Sequence[int],
    method: str,
    tolerance: float = 1e-12,
) -> Estimate:
    """An Estimate; ends closer than rounding come from data without spread, which tell no interval."""
    known = high - low > tolerance * max(1.0, abs(value))
    ends = (float(low), float(high)) if known else (None, None)
    if not known:
        method += "; unknown: " + (f"one of {n_unit}" if n == 1 else f"no spread among {n_unit}")
    return Estimate(float(value), *ends, int(n), n_unit, seeds_of(seeds), method)


def check_estimate(name: str, value: object) -> Estimate:
    """Raise ValueError unless ``value`` is an Estimate."""
    if not isinstance(value, Estimate):
        raise ValueError(f"{name}={value!r:.80}: allowed is an Estimate")
    return value


def with_ends(frame: pd.DataFrame, column: str = "estimate") -> pd.DataFrame:
    """``frame`` with ``value``, ``low`` and ``high`` of a column of Estimates, float64; unknown: NaN."""
    for estimate in check_frame("frame", frame, [column])[column]:
        check_estimate(column, estimate)
    parts = {name: [getattr(e, name) for e in frame[column]] for name in ("value", "low", "high")}
    return frame.assign(**parts).astype(dict.fromkeys(parts, "float64"))


def clustered_standard_error(values: ArrayLike, clusters: ArrayLike) -> float | None:
    """Standard error of :func:`clustered_mean`: unbiased sd of cluster means / sqrt(G); None if G < 2."""
    means = cluster_means(values, clusters)
    return float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else None


def clustered_mean(
    values: ArrayLike,
    clusters: ArrayLike,
    *,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
    n_unit: str = "problems",
) -> Estimate:
    """Mean over clusters of the mean within a cluster (avg@k), with Student's t over the G clusters.

    ``values``: one per row, NaN = missing; ``clusters``: the row's cluster (problem id). A problem counts
    once however many of its samples are missing. The clusters must be independent of each other: rows of
    several seeds on the same problems share the problem as their cluster.
    """
    means = cluster_means(values, clusters)
    return _student(means, confidence, seeds, n_unit, f"Student t over {n_unit}")


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
    n_unit: str = "problems",
) -> Estimate:
    """Mean of ``a - b`` over the problems that both runs answered, Student's t over problems.

    ``a``, ``b``: [problems] or [problems, samples] (averaged over present samples), same problems in the
    same order; data frames must have equal indexes. A problem missing in either run is left out; ``n``
    counts what is left. The interval is conditional on the trained runs: for what another training seed
    would give, use :func:`seed_interval` on the differences by seed.
    """
    return _student(problem_differences(a, b), confidence, seeds, n_unit, f"paired, Student t over {n_unit}")


def problem_differences(a: ArrayLike, b: ArrayLike) -> Floats:
    """``a - b`` of every problem that both runs answered; inputs as in :func:`paired_difference`."""
    index_a, index_b = getattr(a, "index", None), getattr(b, "index", None)
    if hasattr(index_a, "equals") and hasattr(index_b, "equals") and not index_a.equals(index_b):
        raise ValueError("a and b have different indexes: allowed are runs on the same problems, same order")
    first, second = _per_problem(a, "a"), _per_problem(b, "b")
    if len(first) != len(second):
        raise ValueError(f"a has {len(first)} problems, b has {len(second)}: allowed are the same problems")
    difference = first - second
    difference = difference[~np.isnan(difference)]
    if not len(difference):
        raise ValueError("a and b have no problem in common that both answered")
    return difference


def seed_interval(
    values: ArrayLike, seeds: Sequence[int] | None = None, *, confidence: float = 0.95
) -> Estimate:
    """Mean of one value per training seed, Student's t over seeds; one seed: interval unknown.

    This is the interval for "what another training run would give". Without ``seeds``, ``values`` is a Series
    and they are its index.
    """
    if seeds is None:
        if not isinstance(values, pd.Series):
            raise ValueError(f"seeds=None with values of type {type(values).__name__}: allowed is a Series")
        values, seeds = values.to_numpy(), values.index.tolist()
    values, seeds = numbers_of("values", values), seeds_of(seeds)
    if values.ndim != 1 or len(values) != len(seeds) or not len(values):
        raise ValueError(
            f"values has shape {values.shape} for {len(seeds)} seeds: allowed is one value per seed"
        )
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds={list(seeds)}: allowed are distinct seeds")
    if np.isnan(values).any():
        raise ValueError("values holds NaN: a seed without a value is not a seed; leave it out of both")
    return _student(values, confidence, seeds, "seeds", "Student t over seeds")


def geometric_seed_interval(ratios: pd.Series, *, confidence: float = 0.95) -> Estimate:
    """Geometric mean of one ratio above 0 per training seed, the index; :func:`seed_interval` of the logs."""
    if not isinstance(ratios, pd.Series):
        raise ValueError(f"ratios is of type {type(ratios).__name__}: allowed is a Series, by seed")
    values = numbers_of("ratios", ratios)
    if not (values > 0).all():
        raise ValueError(f"ratios={values.tolist()}: allowed are numbers above 0")
    e = seed_interval(np.log(values), ratios.index.tolist(), confidence=confidence)
    low, high = (None if end is None else float(np.exp(end)) for end in (e.low, e.high))
    return replace(e, value=float(np.exp(e.value)), low=low, high=high, method=f"{e.method} of the log")


def cluster_means(values: ArrayLike, clusters: ArrayLike) -> Floats:
    values, clusters = numbers_of("values", values), labels_of("clusters", clusters)
    if values.shape != clusters.shape or values.ndim != 1:
        raise ValueError(
            f"values {values.shape}, clusters {clusters.shape}: allowed is one common shape [rows]"
        )
    present = ~np.isnan(values)
    if not present.any():
        raise ValueError("values is empty or all missing: there is nothing to estimate")
    _, index = np.unique(clusters[present], return_inverse=True)
    return np.bincount(index, values[present]) / np.bincount(index)


def _per_problem(values: ArrayLike, name: str) -> Floats:
    values = numbers_of(name, values)
    if values.ndim not in (1, 2) or not values.size:
        raise ValueError(
            f"{name} has shape {values.shape}: allowed are [problems] and [problems, samples], not empty"
        )
    values = values.reshape(len(values), -1)
    present = ~np.isnan(values)
    n = present.sum(1)
    return np.divide(np.where(present, values, 0).sum(1), n, out=np.full(len(n), np.nan), where=n > 0)


def _student(values: Floats, confidence: float, seeds: Sequence[int], n_unit: str, method: str) -> Estimate:
    fraction("confidence", confidence)
    n, mean = len(values), float(values.mean())
    half = 0.0
    if n > 1:
        half = stats.t.ppf((1 + confidence) / 2, n - 1) * values.std(ddof=1) / np.sqrt(n)
    return with_interval(mean, mean - half, mean + half, n, n_unit, seeds, method)
