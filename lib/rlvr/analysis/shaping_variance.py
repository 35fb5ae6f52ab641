"""Prop. E.4 of IBPO three ways: by closed form, by simulation, and on groups that policies wrote.

The closed form with a group's own moments is an identity (:mod:`rlvr.analysis.advantage_variance`). What real
groups can contradict is the local case: responses that are independent given nothing but the accuracy p, and
a shaping with mean m on wrong ones. Its curve is drawn beside the measured one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from rlvr.analysis.advantage_variance import (
    condition,
    group_moments,
    local_moments,
    shaped_variance,
    variance_by_weight,
    weight_limit,
)
from rlvr.analysis.enumerated_groups import enumerate_groups, recoverable

#: (group size, accuracy, chance of a repair, the same with a right response beside it). In the last pair
#: only groups without a right response are repaired, where verdicts have no spread: C = 0 and V > 0.
CASES = tuple(
    (size, p, chance, other)
    for size in (2, 3, 4)
    for p in (0.05, 0.2, 0.5, 0.8)
    for chance, other in ((0.12, 0.12), (0.67, 0.67), (0.1, 0.6), (0.6, 0.1), (0.6, 0.0))
)
#: Weights tested, in parts of a case's own bound (of 1 where it is 0): below 0, within, and above.
MULTIPLES = (-2.0, -1.01, -0.5, -0.01, 0.01, 0.1, 0.5, 0.9, 0.99, 1.01, 1.1, 2.0, 5.0)
_ROUNDING = 1e-12


def proposition(
    phi: float = 0.5, cases: Iterable = CASES, multiples: Sequence[float] = MULTIPLES
) -> pd.DataFrame:
    """Per case and reward convention: ``error`` of the closed form; ``agrees``, the share of weights at which
    the variance is below GSPO's exactly where ``0 < lambda < 2C/V`` says so; ``inside`` and ``outside``,
    how many weights lie within and not; ``local_error`` of the covariance (NaN where the shaping depends on
    the group); ``C`` and the bound ``limit``."""
    rows = []
    for size, p, chance, other in cases:
        for convention in ("signed", "binary"):
            groups = enumerate_groups(size, p, recoverable(chance, other, phi))
            found = groups.covariances(convention)
            plain = groups.variance(0.0, convention)
            limit = weight_limit(found["C"] if abs(found["C"]) > _ROUNDING else 0.0, found["V"])
            weights = (limit or 1.0) * np.array(multiples)
            true = np.array([groups.variance(w, convention) for w in weights])
            closed = shaped_variance(plain, found["C"], found["V"], size, weights)
            below = true < plain - _ROUNDING
            inside = (weights > 0) & (weights < limit)
            local = np.nan
            if chance == other:
                expected, *_ = local_moments(p, (phi, 0.0), (chance, 1 - chance), convention)
                local = abs(found["C_in"] - expected)
            rows.append(
                {
                    "size": size, "accuracy": p, "chance": chance, "chance_with_right": other,
                    "convention": convention, "C": found["C"], "limit": limit,
                    "error": float(np.abs(true - closed).max()), "agrees": float((below == inside).mean()),
                    "inside": int(inside.sum()), "outside": int((~inside).sum()), "local_error": local,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def simulated(
    accuracies: Sequence[float],
    chance: float,
    phi: float,
    size: int,
    weights: Sequence[float],
    groups: int,
    seed: int,
) -> pd.DataFrame:
    """``accuracy, weight, closed, value, low, high``: variance over GSPO's in the local case, by formula and
    of groups drawn at random (bootstrap over groups); rewards as in training, 0 and 1."""
    frames = []
    for number, p in enumerate(accuracies):
        rng = np.random.default_rng((seed, number))
        right = rng.random((groups, size)) < p
        shaped = np.where(right, 0.0, phi * (rng.random((groups, size)) < chance))
        moments = group_moments(right.astype(float), shaped, "binary")
        found = variance_by_weight(moments, weights, seeds=(seed,), resamples=300)
        ratio = found[found["quantity"] == "ratio"]
        frames.append(
            pd.DataFrame(
                {
                    "accuracy": p,
                    "weight": list(weights),
                    "closed": local_ratio(p, phi * chance, phi**2 * chance, size, weights),
                    **{name: ratio[name].to_numpy() for name in ("value", "low", "high")},
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def local_ratio(
    accuracy: float, mean: float, square: float, size: int, weights: Sequence[float]
) -> np.ndarray:
    """Variance over GSPO's in the local case: by mean and mean square of phi on wrong ones; reward 0/1."""
    c = accuracy * (1 - accuracy) * mean
    v = (1 - accuracy) * square - ((1 - accuracy) * mean) ** 2
    plain = (1 - 1 / size) * accuracy * (1 - accuracy)
    return np.asarray(shaped_variance(plain, c, v, size, np.asarray(weights))) / plain


def measured(
    groups: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]],
    weights: Sequence[float],
    seeds: Mapping[str, Sequence[int]],
    confidence: float,
    resamples: int,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of real groups of several policies, by name: a list of runs each, verdicts and phi [N, G] and the
    problems [N].

    Policies that are measured on the same problems are not independent: a problem is drawn with all of its
    groups, of whatever policies. Which policies there are is taken as given.

    Returns ``policy, weight, value, low, high, local`` (``local``: the local case with the pooled accuracy
    and shaping) and, per policy, ``accuracy``, ``recoverable`` and the Estimates ``C``, ``V``, ``2C/V``.
    """
    lines, tables = [], []
    for name, runs in groups.items():
        accuracy, phi = (np.concatenate([run[part] for run in runs]) for part in (0, 1))
        problems = np.concatenate([run[2] for run in runs])
        moments = group_moments(accuracy, phi, "binary")
        options = {"clusters": problems[moments.index], "seeds": tuple(seeds[name])}
        options |= {"confidence": confidence, "resamples": resamples, "n_unit": "problems"}
        found = variance_by_weight(moments, weights, **options)
        ratio = found[found["quantity"] == "ratio"]
        wrong = accuracy == 0
        p, of_wrong = float(accuracy.mean()), phi[wrong]
        local = local_ratio(p, of_wrong.mean(), (of_wrong**2).mean(), accuracy.shape[1], weights)
        lines.append(ratio[["weight", "value", "low", "high"]].assign(policy=name, local=local))
        tables.append(
            {
                "policy": name,
                "groups": len(accuracy),
                "problems": len(np.unique(problems)),
                "accuracy": p,
                "recoverable": float((of_wrong > 0).mean()),
            }
            | condition(moments, **options)
        )
    return pd.concat(lines, ignore_index=True), pd.DataFrame(tables)


def beside_local(lines: pd.DataFrame, weight: float) -> str:
    """Where the measured ratio lies beside the local case at one weight, of every policy, in words.

    Args:
        lines: of :func:`measured`. weight: one of its weights.
    """
    parts = []
    for row in lines[np.isclose(lines["weight"], weight)].itertuples():
        where = "below" if row.high < row.local else "above" if row.low > row.local else "not told apart from"
        value = f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]"
        parts.append(f"{row.policy} {value}, {where} the local case's {row.local:.3f}")
    return "; ".join(parts)
