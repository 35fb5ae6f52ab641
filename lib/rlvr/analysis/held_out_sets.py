"""Held-out problems in sets of several kinds and difficulties: what stands for a paper's seven benchmarks.

A set is a kind (how many of its steps multiply: none, one, several) and a length (short, long). It follows
from the prompt, so that nothing can be sorted by who solved it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlvr.analysis.accuracy import pass1_by_seed, seeds_of
from rlvr.evaluation import Estimate, clustered_mean, seed_interval
from rlvr.problems import get_task

KINDS = ("plain", "one product", "products")
LENGTHS = ("short", "long")
SETS = tuple(f"{kind}, {length}" for kind in KINDS for length in LENGTHS)


def set_of(content: str, operations: tuple[int, int]) -> str:
    """The set of a problem by its content, ``11+6-4*2``; long is more steps than half of the range."""
    signs = [sign for sign in content if sign in "+-*"]
    kind = KINDS[min(2, signs.count("*"))]
    return f"{kind}, {LENGTHS[len(signs) > sum(operations) // 2]}"


def with_sets(samples: pd.DataFrame, task: str, operations: tuple[int, int]) -> pd.DataFrame:
    """Samples with a column ``set``."""
    content_of = get_task(task).content_of
    by_prompt = {prompt: set_of(content_of(prompt), operations) for prompt in samples["prompt"].unique()}
    return samples.assign(set=samples["prompt"].map(by_prompt))


def set_frame(samples: pd.DataFrame, confidence: float) -> dict[str, Estimate]:
    """pass@1 of one arm on every set that occurs (over problems), and ``average``, the mean over the sets
    with an interval over training seeds."""
    row: dict[str, Estimate] = {}
    by_set = []
    for name in SETS:
        rows = samples[samples["set"] == name]
        if rows.empty:
            continue
        correct = rows["correct"].astype("Float64").astype("float64")
        row[name] = clustered_mean(correct, rows["problem"], confidence=confidence, seeds=seeds_of(rows))
        by_set.append(pass1_by_seed(rows))
    averages = pd.concat(by_set, axis=1).mean(axis=1)
    return row | {
        "average": seed_interval(averages.to_numpy(), averages.index.tolist(), confidence=confidence)
    }


def relative_gain(samples: pd.DataFrame, a: str, b: str, confidence: float) -> Estimate:
    """By how many percent the mean over sets of arm ``a`` lies above that of ``b``: per seed, then over
    seeds (nfpo, table 1)."""
    values, seeds = [], []
    for seed in seeds_of(samples[samples["arm"] == a]):
        means = []
        for arm in (a, b):
            rows = samples[(samples["arm"] == arm) & (samples["seed"] == seed)]
            means.append(np.mean([pass1_by_seed(part).item() for _, part in rows.groupby("set")]))
        if not means[1] > 0:
            raise ValueError(f"{b} with seed {seed} solves nothing: no gain relative to it")
        values.append(100 * (means[0] / means[1] - 1))
        seeds.append(seed)
    return seed_interval(values, seeds, confidence=confidence)
