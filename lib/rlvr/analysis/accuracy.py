"""Held-out accuracy of trained arms: by arm and lag, against the base, and paired between arms.

Every problem of a benchmark counts once, and so does every benchmark; generated problems are one benchmark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlvr.evaluation import (
    Estimate,
    aggregate,
    clustered_mean,
    count_correct,
    paired_difference,
    pass_at_k,
    seed_interval,
)

KEYS = ["arm", "seed", "lag"]


def correct_matrix(samples: pd.DataFrame) -> pd.DataFrame:
    """Problems x samples of one run, 1.0 / 0.0 / NaN (undecided or missing), problems in sorted order.

    Raises:
        ValueError: ``samples`` holds more than one run.
    """
    if samples.duplicated(["problem", "sample"]).any():
        raise ValueError("samples repeat a (problem, sample): select one arm, seed and lag first")
    wide = samples.pivot(index="problem", columns="sample", values="correct")
    return wide.astype("Float64").astype("float64")


def select(samples: pd.DataFrame, arm: str, lag: int, seed: int | None = None) -> pd.DataFrame:
    rows = samples[(samples["arm"] == arm) & (samples["lag"] == lag)]
    return rows if seed is None else rows[rows["seed"] == seed]


def seeds_of(samples: pd.DataFrame) -> tuple[int, ...]:
    return tuple(sorted(int(s) for s in samples["seed"].unique()))


def pass1(samples: pd.DataFrame, confidence: float) -> Estimate:
    """Mean accuracy over problems, all seeds and samples of a problem in one cluster."""
    values = samples["correct"].astype("Float64").astype("float64")
    return _over_problems(samples, values, confidence)


def pass1_by_seed(samples: pd.DataFrame) -> pd.Series:
    """One accuracy per training seed, sorted by seed; problems and benchmarks count as in :func:`pass1`."""
    by_problem = samples.groupby(["seed", "benchmark", "problem"])["correct"].mean().astype("float64")
    return by_problem.groupby(["seed", "benchmark"]).mean().groupby("seed").mean().sort_index()


def pass_k(samples: pd.DataFrame, k: int, confidence: float) -> Estimate:
    """Unbiased pass@k of each run and problem, averaged over problems; the problem is the cluster."""
    benchmark_of = samples.drop_duplicates("problem").set_index("problem")["benchmark"]
    frames, values = [], []
    for (_, seed, _), run in samples.groupby(KEYS):
        wide = correct_matrix(run)
        values.append(pass_at_k(*count_correct(wide), k))
        frames.append(
            pd.DataFrame(
                {"seed": seed, "problem": wide.index, "benchmark": benchmark_of[wide.index].to_numpy()}
            )
        )
    return _over_problems(pd.concat(frames, ignore_index=True), np.concatenate(values), confidence)


def _over_problems(rows: pd.DataFrame, values: ArrayLike, confidence: float) -> Estimate:
    """Mean of one value per row of ``seed``, ``benchmark`` and ``problem``.

    One benchmark: Student's t over problems. Several, each counting once: bootstrap over problems within
    benchmarks, a problem drawn with all its seeds.
    """
    seeds, names = seeds_of(rows), list(dict.fromkeys(rows["benchmark"]))
    if len(names) <= 1:
        return clustered_mean(values, rows["problem"], confidence=confidence, seeds=seeds)
    by_problem = rows.assign(value=values).groupby(["benchmark", "seed", "problem"])["value"].mean()
    scores = {name: by_problem[name].unstack("problem") for name in names}
    return aggregate(scores, unit="problems", confidence=confidence, seeds=seeds)


def gain(samples: pd.DataFrame, base: pd.DataFrame, confidence: float) -> Estimate:
    """Accuracy of trained runs minus the base model's, paired by problem."""
    trained = samples.groupby("problem")["correct"].mean().astype("float64")
    start = base.groupby("problem")["correct"].mean().astype("float64")
    return paired_difference(trained, start, confidence=confidence, seeds=seeds_of(samples))


def seed_difference(samples: pd.DataFrame, a: str, b: str, lag: int, confidence: float) -> Estimate:
    """Mean over seeds of ``a - b``, paired by seed (same training problems) and by problem; every benchmark
    counts once."""
    found = difference_by_seed(samples, a, b, lag)
    return seed_interval(found.to_numpy(), found.index.tolist(), confidence=confidence)


def difference_by_seed(samples: pd.DataFrame, a: str, b: str, lag: int) -> pd.Series:
    """``a - b`` of every seed of ``a``, as :func:`seed_difference` takes it.

    Raises:
        ValueError: other problems.
    """
    benchmark_of = samples.drop_duplicates("problem").set_index("problem")["benchmark"]
    differences, seeds = [], []
    for seed in seeds_of(select(samples, a, lag)):
        first, second = (correct_matrix(select(samples, arm, lag, seed)).mean(axis=1) for arm in (a, b))
        if not first.index.equals(second.index):
            raise ValueError(f"{a} and {b} with seed {seed} were evaluated on different problems")
        by_benchmark = (first - second).groupby(benchmark_of[first.index].to_numpy())
        differences.append(float(np.mean([part.mean() for _, part in by_benchmark])))
        seeds.append(seed)
    return pd.Series(differences, index=seeds)


def accuracy_frame(
    samples: pd.DataFrame, arms: Iterable[str], lags: Sequence[int], ks: Sequence[int], confidence: float
) -> pd.DataFrame:
    """One row per arm and lag: Estimates of pass@1 (by problem, and over seeds), its gain and pass@k.

    The gain is that over the arm ``base``; without samples of it there is no such column.
    """
    base = select(samples, "base", 0)
    rows = []
    for lag in lags:
        for arm in arms:
            runs = select(samples, arm, lag)
            by_seed = pass1_by_seed(runs)
            rows.append(
                {
                    "arm": arm,
                    "lag": lag,
                    "pass@1": pass1(runs, confidence),
                    "over seeds": seed_interval(by_seed, confidence=confidence),
                }
                | ({} if base.empty else {"gain over base": gain(runs, base, confidence)})
                | {f"pass@{k}": pass_k(runs, k, confidence) for k in ks if k > 1}
            )
    return pd.DataFrame(rows)
