"""Arms by sets of problems: the form of NFPO's Table 1, whose sets are seven benchmarks.

Samples have a column ``set``; every set counts once in an average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from rlvr.analysis.accuracy import pass1_by_seed, seeds_of
from rlvr.analysis.held_out_sets import SETS, with_sets
from rlvr.analysis.study import Study
from rlvr.evaluation import Estimate, clustered_mean, seed_interval
from rlvr.reporting.bundle import NOT_MEASURED

AVERAGE = "average"


def in_sets(study: Study, samples: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """(samples with a column ``set``, the sets that occur, in order): kinds of generated problems, or the
    benchmarks."""
    if study.embedded:
        samples, order = with_sets(samples, study.problems.task, study.problems.operations), SETS
    else:
        samples = samples.assign(set=samples["benchmark"])
        order = tuple(dict.fromkeys(samples["set"]))
    found = set(samples["set"])
    return samples, [name for name in order if name in found]


def set_frame(samples: pd.DataFrame, names: Sequence[str], confidence: float) -> dict[str, Estimate]:
    """pass@1 of one arm on each of ``names`` that occurs (over problems), and ``average``, the mean over the
    sets with an interval over training seeds."""
    row: dict[str, Estimate] = {}
    by_set = []
    for name in names:
        rows = samples[samples["set"] == name]
        if rows.empty:
            continue
        correct = rows["correct"].astype("Float64").astype("float64")
        row[name] = clustered_mean(correct, rows["problem"], confidence=confidence, seeds=seeds_of(rows))
        by_set.append(pass1_by_seed(rows))
    averages = pd.concat(by_set, axis=1).mean(axis=1)
    return row | {AVERAGE: seed_interval(averages, confidence=confidence)}


def relative_gain(samples: pd.DataFrame, a: str, b: str, confidence: float) -> Estimate:
    """By how many percent the mean over sets of arm ``a`` lies above that of ``b``: per seed, then over
    seeds (nfpo, table 1).

    Raises:
        ValueError: an arm without samples; a seed with which ``b`` solves nothing.
    """
    values, seeds = [], []
    for seed in seeds_of(samples[samples["arm"] == a]):
        means = []
        for arm in (a, b):
            rows = samples[(samples["arm"] == arm) & (samples["seed"] == seed)]
            if rows.empty:
                raise ValueError(f"samples hold no rows of arm {arm!r} with seed {seed}")
            means.append(np.mean([pass1_by_seed(part).item() for _, part in rows.groupby("set")]))
        if not means[1] > 0:
            raise ValueError(f"{b} with seed {seed} solves nothing: no gain relative to it")
        values.append(100 * (means[0] / means[1] - 1))
        seeds.append(seed)
    return seed_interval(values, seeds, confidence=confidence)


def table_by_set(
    samples: pd.DataFrame,
    rows: Mapping[str, str],
    names: Sequence[str],
    method: str,
    others: Sequence[str],
    confidence: float,
) -> pd.DataFrame:
    """One row per arm: pass@1 on every set, their average, and by how many percent that of ``method`` lies
    above it.

    Args:
        samples: ``arm``, ``seed`` (of training), ``set``, ``benchmark``, ``problem``, ``correct``.
        rows: arm -> its label, in order.
        names: sets, in order.
        method, others: arms; the gain is that of the first over each of the others.

    Raises:
        ValueError: an arm without samples.
    """
    if missing := [arm for arm in rows if arm not in set(samples["arm"])]:
        raise ValueError(f"samples hold no rows of arms {missing}")
    found = {
        label: set_frame(samples[samples["arm"] == arm], names, confidence) for arm, label in rows.items()
    }
    gains = dict.fromkeys(found, NOT_MEASURED)
    gains |= {rows[other]: relative_gain(samples, method, other, confidence) for other in others}
    table = pd.DataFrame(found).T.rename_axis("arm")
    table[f"{rows[method]}'s gain over it, %"] = pd.Series(gains)
    return table.where(table.notna(), NOT_MEASURED)
