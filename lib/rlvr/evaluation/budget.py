"""Compute that a reward takes, ratios of it between methods, and steps that a budget pays for.

A run that never reaches a threshold has no compute to it, only a bound; neither is a number made up for it
nor is it left out, which would keep the lucky runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlvr.checks import check_number, refuse
from rlvr.evaluation.inputs import items_of, numbers_of, seeds_of
from rlvr.evaluation.intervals import Estimate, seed_interval


@dataclass(frozen=True)
class Reached:
    """Where a curve reaches ``threshold``, in the units of its compute.

    ``state``: ``reached``, ``never`` (the run ended at ``bound`` below it) or ``at start`` (the first value,
    at ``bound``, is there already). ``compute`` is None unless reached. ``best``: the highest reward seen.
    """

    compute: float | None
    state: Literal["reached", "never", "at start"]
    bound: float
    threshold: float
    best: float

    def interval(self) -> tuple[float, float]:
        """The least and the most that it may be: the same number twice if reached."""
        if self.compute is not None:
            return self.compute, self.compute
        return (self.bound, math.inf) if self.state == "never" else (0.0, self.bound)

    def format(self) -> str:
        """``3.1e+15``, ``above 8e+15 (best 0.71)`` or ``at most 1e+14 (at start)``."""
        if self.compute is not None:
            return f"{self.compute:.3g}"
        if self.state == "never":
            return f"above {self.bound:.3g} (best {self.best:.2f})"
        return f"at most {self.bound:.3g} (at start)"


def compute_to_threshold(curve: tuple[ArrayLike, ArrayLike], threshold: float) -> Reached:
    """First compute at which the reward reaches ``threshold``, linear between points.

    Args:
        curve: compute [n], not falling, and reward [n]; NaN rewards are steps without a measurement, left
            out. The reward is the raw terminal one, never a shaped one [text: IBPO 5]. It is taken as it is:
            the first crossing of a noisy curve comes early, so smooth all methods alike if at all [choice].
    """
    pair = items_of("curve", curve, "two arrays, compute and reward")
    if len(pair) != 2:
        raise ValueError(f"curve holds {len(pair)} arrays: allowed are two, compute and reward")
    compute, reward = numbers_of("curve's compute", pair[0]), numbers_of("curve's reward", pair[1])
    threshold = check_number("threshold", threshold, math.isfinite, "finite numbers")
    if compute.shape != reward.shape or compute.ndim != 1:
        raise ValueError(
            f"curve has shapes {compute.shape} and {reward.shape}: allowed is one common shape [n]"
        )
    if np.isnan(compute).any() or (np.diff(compute) < 0).any() or (compute < 0).any():
        raise ValueError("curve's compute falls, is negative or missing: allowed are rising numbers >= 0")
    there = ~np.isnan(reward)
    compute, reward = compute[there], reward[there]
    if not len(reward):
        raise ValueError("curve's reward is empty or all missing: there is nothing to cross")
    best = float(reward.max())
    at = int((reward >= threshold).argmax())
    if reward[at] < threshold:
        return Reached(None, "never", float(compute[-1]), threshold, best)
    if at == 0:
        return Reached(None, "at start", float(compute[0]), threshold, best)
    share = (threshold - reward[at - 1]) / (reward[at] - reward[at - 1])
    value = compute[at - 1] + share * (compute[at] - compute[at - 1])
    return Reached(float(value), "reached", float(compute[-1]), threshold, best)


@dataclass(frozen=True)
class ComputeRatio:
    """Compute of a method over that of a baseline, to the same threshold.

    ``estimate``: geometric mean over seeds, Student's t on logarithms; None where a seed has only a bound.
    ``low``, ``high``: what the geometric mean must lie between for these seeds (equal if all reached).
    ``by_seed``: ``seed, method, baseline, low, high`` of each seed's ratio.
    """

    estimate: Estimate | None
    low: float
    high: float
    by_seed: pd.DataFrame

    def format(self, digits: int = 2) -> str:
        if self.estimate is not None:
            return self.estimate.format(digits)
        if math.isinf(self.high) and self.low == 0:
            return "not known: bounded on neither side"
        if math.isinf(self.high):
            return f"above {self.low:.{digits}f}"
        if self.low == 0:
            return f"below {self.high:.{digits}f}"
        return f"between {self.low:.{digits}f} and {self.high:.{digits}f}"


def compute_ratio(
    method: Mapping[int, Reached], baseline: Mapping[int, Reached], *, confidence: float = 0.95
) -> ComputeRatio:
    """``method / baseline`` over training seeds, paired by seed.

    Args:
        method, baseline: by seed; the same seeds, the same threshold, the same units of compute.
    """
    for name, found in (("method", method), ("baseline", baseline)):
        if not isinstance(found, Mapping) or not all(isinstance(run, Reached) for run in found.values()):
            raise refuse(name, found, "dictionaries of Reached by seed")
        seeds_of(found, name)
    if set(method) != set(baseline) or not method:
        raise ValueError(
            f"method has seeds {sorted(method)}, baseline {sorted(baseline)}: allowed are the same ones"
        )
    runs = [*method.values(), *baseline.values()]
    if len(thresholds := {run.threshold for run in runs}) > 1:
        raise ValueError(f"thresholds {sorted(thresholds)} differ: allowed is one")
    if any(run.interval()[1] == 0 for run in runs):
        raise ValueError("a run has compute 0 to the threshold: allowed are numbers > 0")
    seeds = sorted(method)
    rows = []
    for seed in seeds:
        (low, high), (base_low, base_high) = method[seed].interval(), baseline[seed].interval()
        least = 0.0 if math.isinf(base_high) else low / base_high
        most = math.inf if base_low == 0 or math.isinf(high) else high / base_low
        rows.append((seed, method[seed].format(), baseline[seed].format(), least, most))
    table = pd.DataFrame(rows, columns=["seed", "method", "baseline", "low", "high"])
    with np.errstate(divide="ignore"):
        low, high = (float(np.exp(np.log(table[end].to_numpy()).mean())) for end in ("low", "high"))
    estimate = None
    if all(run.state == "reached" for run in runs):
        logs = seed_interval(np.log(table["low"].to_numpy()), seeds, confidence=confidence)
        ends = (None, None) if logs.low is None else (math.exp(logs.low), math.exp(logs.high))
        how = f"geometric mean; {logs.method} of logarithms, paired"
        estimate = Estimate(math.exp(logs.value), *ends, logs.n, logs.n_unit, logs.seeds, how)
    return ComputeRatio(estimate, low, high, table)


def match_budget(costs_per_step: Mapping[str, float | Sequence[float]], budget: float) -> dict[str, int]:
    """Steps of each method that ``budget`` pays for: the most whose cost does not exceed it.

    Args:
        costs_per_step: by method, one number for all steps, or the measured cost of every step in order
            (responses grow in training, and corrections become fewer).
        budget: in the same units, as of :meth:`rlvr.evaluation.compute.Ledger.flops`.

    Raises:
        ValueError: a budget below one step of a method, or above all the steps whose costs are known: what
            comes after them is not guessed.
    """
    if not isinstance(costs_per_step, Mapping):
        raise refuse("costs_per_step", costs_per_step, "dictionaries of costs by method")
    budget = check_number("budget", budget, lambda x: 0 < x < math.inf, "finite numbers > 0")
    out = {}
    for name, cost in costs_per_step.items():
        costs = numbers_of(f"costs_per_step[{name!r}]", cost)
        if costs.ndim > 1 or not costs.size or not (costs > 0).all():
            raise ValueError(
                f"costs_per_step[{name!r}]={cost!r:.80}: allowed are numbers > 0, one or [steps]"
            )
        limit = budget * (1 + 1e-12)  # ten steps of 0.1 fit into 1
        if costs.ndim == 0:
            steps = int(limit // float(costs))
        else:
            total = np.cumsum(costs)
            steps = int((total <= limit).sum())
            if steps == len(costs) and total[-1] < budget * (1 - 1e-12):
                raise ValueError(
                    f"budget={budget:.3g} is above the {len(costs)} steps of {name!r} whose cost is known: "
                    f"allowed is {total[-1]:.3g} or less"
                )
        if not steps:
            raise ValueError(
                f"budget={budget:.3g} is below one step of {name!r}: allowed is {costs.flat[0]:.3g} or more"
            )
        out[name] = steps
    return out
