"""Arms by benchmarks: the form of NFPO's Table 1, from graded responses."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from rlvr.analysis.accuracy import pass1_by_seed, seeds_of
from rlvr.analysis.held_out_sets import relative_gain
from rlvr.evaluation import clustered_mean, seed_interval
from rlvr.reporting.bundle import NOT_MEASURED
from rlvr.reporting.style import objective_label

LABELS = {"dppo": "dppo_tv"}  # as the experiments call it


def benchmark_table(samples: pd.DataFrame, arms: Sequence[str], confidence: float) -> pd.DataFrame:
    """One row per arm: pass@1 on each benchmark (over problems), their mean (over training seeds), and by how
    many percent the last arm's mean lies above the row's.

    Args:
        samples: ``arm``, ``seed`` (of training), ``benchmark``, ``problem``, ``sample``, ``correct``.
        arms: rows, in order; the last one is the method.

    Raises:
        ValueError: an arm without samples, or one that was evaluated on other benchmarks or problems.
    """
    samples = samples.assign(set=samples["benchmark"])
    names = list(dict.fromkeys(samples["set"]))
    asked = {arm: set(samples.loc[samples["arm"] == arm, "problem"]) for arm in arms}
    for arm in arms:
        if not asked[arm]:
            raise ValueError(f"samples hold no rows of arm {arm!r}")
        if asked[arm] != asked[arms[-1]]:
            raise ValueError(f"{arm} and {arms[-1]} were evaluated on different problems")
    rows = {}
    for arm in arms:
        own = samples[samples["arm"] == arm]
        parts = {name: own[own["set"] == name] for name in names}
        row = {
            name: clustered_mean(
                part["correct"].astype("Float64").astype("float64"),
                part["problem"],
                confidence=confidence,
                seeds=seeds_of(part),
            )
            for name, part in parts.items()
        }
        averages = pd.concat([pass1_by_seed(part) for part in parts.values()], axis=1).mean(axis=1)
        row["average"] = seed_interval(averages.to_numpy(), averages.index.tolist(), confidence=confidence)
        common = set(seeds_of(own)) & set(seeds_of(samples[samples["arm"] == arms[-1]]))
        shared = samples[samples["seed"].isin(common)]
        gain = (
            relative_gain(shared, arms[-1], arm, confidence) if common and arm != arms[-1] else NOT_MEASURED
        )
        row[f"{objective_label(LABELS.get(arms[-1], arms[-1]))}'s gain over it, %"] = gain
        rows[objective_label(LABELS.get(arm, arm))] = row
    return pd.DataFrame(rows).T.rename_axis("arm")
