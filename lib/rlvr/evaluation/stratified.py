"""Several benchmarks and training seeds at once: aggregates whose intervals draw what is independent.

Scores are accuracies, one array [seeds, problems] per benchmark, NaN = missing; a benchmark's score of a
seed is its mean over problems. What is drawn is the question asked:

- ``problems``: other problems of the same benchmarks, for these trained policies. A problem of a benchmark
  is drawn with all its seeds.
- ``seeds``: another training. A trained policy answers *all* benchmarks, so a seed is drawn as a whole.
- ``seeds within benchmark``: another training, seeds of each benchmark drawn by themselves, as rliable does
  [public: rliable]. Right where every benchmark has trainings of its own (Atari); where one policy answers
  all, it takes what the benchmarks share for independent, and is too narrow.
- ``seeds and problems``: both; errs on the wide side, since the noise of the samples enters twice.

A bootstrap of few seeds is too narrow: with 5 seeds a 95 % interval holds the truth about 85 % of the time.
For the mean, :func:`rlvr.evaluation.seed_interval` on one aggregate per seed does not have that fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlvr.evaluation.bootstrap import bootstrap_interval
from rlvr.evaluation.inputs import check_function, check_resampling, numbers_of
from rlvr.evaluation.intervals import Estimate, with_ends
from rlvr.evaluation.resampling import Floats

Unit = Literal["problems", "seeds", "seeds within benchmark", "seeds and problems"]
UNITS: tuple[str, ...] = ("problems", "seeds", "seeds within benchmark", "seeds and problems")
Scores = Mapping[str, ArrayLike]
#: Scores [..., seeds, benchmarks] -> [...].
Statistic = Callable[[Floats], Floats]


def benchmark_mean(scores: ArrayLike) -> Floats:
    """Mean over benchmarks of the mean over seeds, [..., seeds, benchmarks] -> [...]."""
    return _matrix(scores).mean((-2, -1))


def interquartile_mean(scores: ArrayLike) -> Floats:
    """Mean of the middle half of the (seed x benchmark) scores, [..., seeds, benchmarks] -> [...].

    A quarter of them, rounded down, is cut from each end [public: rliable].
    """
    scores = _matrix(scores)
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    return flat[..., cut : flat.shape[-1] - cut].mean(-1)


def aggregate(
    scores: Scores,
    statistic: Statistic = benchmark_mean,
    *,
    unit: Unit,
    resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
) -> Estimate:
    """``statistic`` of the (seed x benchmark) scores, percentile interval of a stratified bootstrap.

    Args:
        scores: benchmark -> [seeds, problems], or [seeds] where the score itself is given; the same number of
            seeds, in the same order, for all.
        statistic: :func:`benchmark_mean`, :func:`interquartile_mean` or any like them.
        unit: what is drawn, see above. ``n`` counts problems of all benchmarks, or seeds.
    """
    arrays = _arrays(scores)
    check_function("statistic", statistic, "scores [..., seeds, benchmarks]")
    drawn = _draw([arrays], unit, resamples, confidence, seed)[0]
    return _interval(statistic, [arrays], [drawn], unit, confidence, seeds)


def performance_profile(
    scores: Scores,
    thresholds: Sequence[float],
    *,
    unit: Unit,
    resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
) -> pd.DataFrame:
    """Share of the (seed x benchmark) scores above each threshold, with a pointwise band [public: rliable].

    Arguments as in :func:`aggregate`. Returns ``threshold, estimate, value, low, high``.
    """
    arrays, thresholds = _arrays(scores), numbers_of("thresholds", thresholds)
    if thresholds.ndim != 1 or np.isnan(thresholds).any():
        raise ValueError(f"thresholds={thresholds!r:.80}: allowed is a list of numbers")
    drawn = _draw([arrays], unit, resamples, confidence, seed)[0]
    found = [
        _interval(lambda x, at=at: (x > at).mean((-2, -1)), [arrays], [drawn], unit, confidence, seeds)
        for at in thresholds
    ]
    return with_ends(pd.DataFrame({"threshold": list(thresholds), "estimate": found}))


def probability_of_improvement(
    a: Scores,
    b: Scores,
    *,
    unit: Unit,
    resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
) -> Estimate:
    """How often a random seed of ``a`` beats one of ``b``, a tie counting half, averaged over benchmarks.

    Arguments as in :func:`aggregate`, the same benchmarks for both [public: rliable]. Seeds of ``a`` and
    ``b`` are drawn independently; problems, which must then be the same, are drawn for both at once. It says
    how often ``a`` wins, not by how much.
    """
    first, second = _arrays(a, "a"), _arrays(b, "b")
    if list(first) != list(second):
        raise ValueError(f"b has benchmarks {list(second)}: allowed are those of a, {list(first)}")
    for name in first:
        columns = [getattr(scores[name], "columns", None) for scores in (a, b)]
        if not any(c is None for c in columns) and not columns[0].equals(columns[1]):
            raise ValueError(f"{name}: a and b have different problems: allowed are the same, in one order")
    drawn = _draw([first, second], unit, resamples, confidence, seed)
    return _interval(_wins, [first, second], drawn, unit, confidence, seeds)


def _wins(a: Floats, b: Floats) -> Floats:
    """[..., seeds of a, benchmarks] and [..., seeds of b, benchmarks] -> [...]."""
    difference = a[..., :, None, :] - b[..., None, :, :]
    return ((difference > 0) + 0.5 * (difference == 0)).mean((-3, -2, -1))


def _interval(
    statistic: Callable[..., Floats],
    arrays: list[dict[str, Floats]],
    drawn: list[Floats],
    unit: Unit,
    confidence: float,
    seeds: Sequence[int],
) -> Estimate:
    n_seeds = sum(len(next(iter(a.values()))) for a in arrays)
    problems = sum(values.shape[1] for values in arrays[0].values())
    per = " within benchmarks" if unit == "problems" else ""
    return bootstrap_interval(
        float(statistic(*(_scores(a) for a in arrays))),
        statistic(*drawn),
        n=problems if unit == "problems" else n_seeds,
        method=f"bootstrap over {unit}{per}, percentile, {len(drawn[0])} resamples",
        n_unit="problems" if unit == "problems" else "seeds",
        confidence=confidence,
        seeds=seeds,
    )


def _draw(
    groups: list[dict[str, Floats]], unit: Unit, resamples: int, confidence: float, seed: int
) -> list[Floats]:
    """Scores of every group, [resamples, seeds, benchmarks]; all groups draw the same problems."""
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r}: allowed are {', '.join(UNITS)}")
    check_resampling(resamples, confidence, seed)
    rng = np.random.default_rng(seed)
    shape = [(resamples, *_scores(g).shape) for g in groups]
    out = [np.broadcast_to(_scores(g), s).copy() for g, s in zip(groups, shape, strict=True)]
    if "problems" in unit:
        for column, name in enumerate(groups[0]):
            sizes = {g[name].shape[1] for g in groups}
            if len(sizes) > 1:
                raise ValueError(
                    f"{name}: {sorted(sizes)} problems: allowed are the same problems in a and b"
                )
            size = sizes.pop()
            times = rng.multinomial(size, np.full(size, 1 / size), size=resamples)
            for g, scores in zip(groups, out, strict=True):
                scores[..., column] = _weighted(g[name], times)
    if "seeds" in unit:
        for i, scores in enumerate(out):
            of_each = scores.shape if unit == "seeds within benchmark" else (*scores.shape[:2], 1)
            picked = rng.integers(scores.shape[1], size=of_each)
            out[i] = np.take_along_axis(scores, np.broadcast_to(picked, scores.shape), axis=1)
    whole = ~np.any([np.isnan(scores).any((1, 2)) for scores in out], axis=0)
    return [scores[whole] for scores in out]  # a resample may hold only problems that a seed lacks


def _weighted(values: Floats, times: np.ndarray) -> Floats:
    """Means over present problems drawn ``times`` [resamples, problems]: -> [resamples, seeds]."""
    present = ~np.isnan(values)
    total, count = times @ np.where(present, values, 0.0).T, times @ present.T.astype(np.float64)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)


def _scores(arrays: dict[str, Floats]) -> Floats:
    """[seeds, benchmarks], means over problems."""
    return np.stack([np.nanmean(values, axis=1) for values in arrays.values()], axis=1)


def _matrix(scores: ArrayLike) -> Floats:
    values = numbers_of("scores", scores)
    if values.ndim < 2 or not values.size:
        raise ValueError(f"scores has shape {values.shape}: allowed is [..., seeds, benchmarks], not empty")
    return values


def _arrays(scores: Scores, argument: str = "scores") -> dict[str, Floats]:
    """Checked arrays [seeds, problems], benchmarks in sorted order."""
    if not isinstance(scores, Mapping) or not all(isinstance(name, str) for name in scores):
        raise ValueError(f"{argument}={scores!r:.80}: allowed is a mapping of benchmarks to scores")
    if not scores:
        raise ValueError(f"{argument} is empty: allowed is at least one benchmark")
    out = {}
    for name in sorted(scores):
        values = numbers_of(name, scores[name])
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or not values.size:
            raise ValueError(f"{name} has shape {values.shape}: allowed are [seeds, problems] and [seeds]")
        if np.isnan(values).all(1).any():
            raise ValueError(f"{name}: a seed has no score at all; leave the benchmark or the seed out")
        out[name] = values
    if len(counts := {len(values) for values in out.values()}) > 1:
        raise ValueError(f"benchmarks have {sorted(counts)} seeds: allowed are the same seeds for all")
    return out
