"""What a survey of gradients says over its policies: bias, direction and variance, each with an interval.

A policy whose gradient nearly vanishes would carry a mean of ratios. So the bias is a ratio of means, and the
variance, which spans decades, a geometric mean with Student's t; the cosine is a plain mean. Bias and cosine
have a bootstrap over policies within kinds. What is the same for every policy has an interval of no width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from rlvr.analysis.exactness import CASE
from rlvr.evaluation import Estimate, bootstrap_mean, clustered_mean, ratio_of_means, with_ends

SAME = 1e-9  # values that differ by less are one number


def summarise(frame: pd.DataFrame, confidence: float, resamples: int) -> pd.DataFrame:
    """Bias, cosine and variance of every setting and case, over policies.

    Args:
        frame: from :func:`rlvr.analysis.exactness.survey_gradients`.
        confidence, resamples: of the intervals.

    Returns:
        A row per case, setting and ``quantity`` (bias, cosine, variance): ``estimate, value, low, high``.
    """
    number = frame.groupby(["kind", "seed"], sort=False).ngroup().to_numpy()
    kind = frame["kind"].to_numpy(str)
    columns = [frame[name].to_numpy() for name in ("error", "exact", "cosine", "spread")]
    shared = _shared(frame, confidence)
    rows = []
    for key, index in frame.groupby(list(CASE), sort=False).indices.items():
        error, exact, cosine, spread = (values[index] for values in columns)
        options = {"clusters": number[index], **shared}
        drawn = {"strata": kind[index], "resamples": resamples, **options}
        found = {
            "bias": _estimate(error / exact, ratio_of_means, error, exact, **drawn),
            "cosine": _estimate(cosine, bootstrap_mean, cosine, **drawn),
            "variance": _estimate(spread, _geometric_mean, spread / exact**2, **options),
        }
        rows += [(*key, quantity, estimate) for quantity, estimate in found.items()]
    return with_ends(pd.DataFrame(rows, columns=[*CASE, "quantity", "estimate"]))


def lay_out(summary: pd.DataFrame, columns: Mapping[str, tuple[str, str, float]]) -> pd.DataFrame:
    """Estimates of :func:`summarise` as a table, a row per setting.

    ``columns``: heading -> (quantity, drift, distance).
    """
    settings = pd.MultiIndex.from_frame(summary[["objective", "label"]].drop_duplicates())
    keys = ["quantity", "drift", "distance", "objective", "label"]
    cells = summary.set_index(keys)["estimate"].sort_index()
    table = pd.DataFrame({name: cells.loc[case].reindex(settings) for name, case in columns.items()})
    return table.rename_axis(["objective", "setting"])


def remaining_bias(frame: pd.DataFrame, confidence: float, resamples: int) -> pd.DataFrame:
    """How much of the bias of N = 1 a longer trace leaves, without clips and with random drift.

    A ratio of means, paired by policy. Rows: distance and N; columns: ``constant`` and ``differentiated``
    trace.
    """
    frame = frame[(frame["drift"] == "random") & (frame["distance"] > 0)]
    shared = _shared(frame, confidence)
    wide = frame.pivot_table("error", ["distance", "kind", "seed"], ["series", "horizon"])
    rows = {}
    for distance, errors in wide.groupby(level="distance"):
        kinds = errors.index.get_level_values("kind").to_numpy(str)
        drawn = {"clusters": np.arange(len(errors)), "strata": kinds, "resamples": resamples, **shared}
        local = errors[("no clips", 1)].to_numpy()
        for horizon in sorted(h for h in errors["no clips"].columns if h > 1):
            cells = {}
            for name, column in (("constant", "no clips"), ("differentiated", "no clips, full gradient")):
                left = errors[(column, horizon)].to_numpy()
                cells[name] = _estimate(left / local, ratio_of_means, left, local, **drawn)
            rows[(distance, horizon)] = cells
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["max TV", "N"])


def _shared(frame: pd.DataFrame, confidence: float) -> dict[str, Any]:
    seeds = tuple(sorted(int(s) for s in frame["seed"].unique()))
    return {"confidence": confidence, "seeds": seeds, "n_unit": "policies"}


def _estimate(
    each: np.ndarray, how: Callable[..., Estimate], *values: np.ndarray, **options: Any
) -> Estimate:
    """``how(*values)``, or the one value that ``each`` policy has."""
    if np.ptp(each) >= SAME:
        return how(*values, **options)
    value, unit = round(float(each.mean()), 9) + 0.0, options["n_unit"]
    return Estimate(value, value, value, len(each), unit, options["seeds"], f"the same for all {unit}")


def _geometric_mean(values: np.ndarray, **options: Any) -> Estimate:
    of_log = clustered_mean(np.log(values), **options)
    ends = {
        name: None if (end := getattr(of_log, name)) is None else float(np.exp(end))
        for name in ("value", "low", "high")
    }
    return replace(of_log, method=f"geometric mean, {of_log.method} of the logarithm", **ends)
