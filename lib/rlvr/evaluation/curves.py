"""pass@k as a curve over k with its band, and where two curves cross.

At small k the trained policy leads, at large k the base model may. Without bands nobody sees whether a
crossing is there (LeapLabTHU/limit-of-RLVR#12); and with n samples close to k each problem's estimate is
nearly one draw, so n should be several times the largest k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlvr.evaluation.bootstrap import bootstrap_interval
from rlvr.evaluation.inputs import check_resampling, items_of, numbers_of, seeds_of, wholes
from rlvr.evaluation.intervals import Estimate, with_ends
from rlvr.evaluation.metrics import pass_at_ks
from rlvr.evaluation.resampling import Floats, resampled_means

Counts = tuple[ArrayLike, ArrayLike]  # samples present and correct by problem, of count_correct
_ROUNDING = 1e-12


def pass_curve(
    n: ArrayLike,
    c: ArrayLike,
    ks: Sequence[int],
    *,
    resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
) -> pd.DataFrame:
    """Mean pass@k over problems for every k, with a pointwise band: a percentile bootstrap over problems.

    Args:
        n, c: [problems] samples present and correct (:func:`rlvr.evaluation.count_correct`).
        ks: whole numbers, none above the fewest samples of a problem.

    Returns ``k, estimate, value, low, high``. All k share their resamples. Pointwise: each interval holds
    its own value with the stated confidence, not the whole curve.
    """
    check_resampling(resamples, confidence, seed)
    ks = wholes("ks", ks, "k")
    values = _values((n, c), ks, "n and c")
    values = values[:, np.lexsort(values)]  # the draws depend on no order of problems
    draws = resampled_means(values, resamples, np.random.default_rng(seed))
    method = f"bootstrap over problems, percentile, {resamples} resamples, pointwise"
    options = {"confidence": confidence, "seeds": seeds, "n_unit": "problems", "method": method}
    found = [
        bootstrap_interval(value, draw, n=values.shape[1], **options)
        for value, draw in zip(values.mean(1), draws, strict=True)
    ]
    return with_ends(pd.DataFrame({"k": list(ks), "estimate": found}))


@dataclass(frozen=True)
class Crossing:
    """The first k at which the curve that led no longer leads.

    ``value``, ``low``, ``high`` are k; ``inf`` is "not within ``largest_k``", and ``low`` and ``high`` are
    None where the data cannot tell (one problem). ``leader`` is the curve ahead at the smallest k ("a",
    "b"; None: equal everywhere), ``share`` the part of the resamples in which they cross within reach.
    """

    value: float
    low: float | None
    high: float | None
    share: float
    leader: str | None
    largest_k: int
    n: int
    n_unit: str
    seeds: tuple[int, ...]
    method: str

    def estimate(self) -> Estimate:
        """As an Estimate; NaN (not measured) without a crossing, no interval if an end is out of reach."""
        known = self.low is not None and math.isfinite(self.value) and math.isfinite(self.high)
        ends = (self.low, self.high) if known else (None, None)
        value = self.value if math.isfinite(self.value) else math.nan
        return Estimate(value, *ends, self.n, self.n_unit, self.seeds, self.method)

    def format(self) -> str:
        """``k = 12 [5, beyond 64]`` or ``no crossing within k <= 64 [20, beyond 64]``."""
        text = f"k = {self.value:.3g}"
        if math.isinf(self.value):
            text = f"no crossing within k <= {self.largest_k}"
        if self.low is None:
            return f"{text} [unknown]"
        ends = (
            f"{end:.3g}" if math.isfinite(end) else f"beyond {self.largest_k}"
            for end in (self.low, self.high)
        )
        return f"{text} [{', '.join(ends)}]"


def curve_crossing(
    a: Counts,
    b: Counts,
    ks: Sequence[int],
    *,
    resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
) -> Crossing:
    """Where the mean pass@k curves of two policies cross, percentile bootstrap over problems.

    Args:
        a, b: (n, c) by problem, the same problems in the same order: a problem is drawn with both curves.
        ks: increasing whole numbers, at least two; the crossing is sought on this grid, linear in log k
            between two of them [choice].

    A resample in which the other curve leads from the first k on crosses at that k; one that never crosses
    crosses beyond the last. So every resample has its place, and an end of the interval may lie out of
    reach: "no crossing within k <= K" is a possible answer. Only the first crossing counts.
    """
    check_resampling(resamples, confidence, seed)
    ks = wholes("ks", ks, "k")
    if len(ks) < 2 or any(later <= k for k, later in pairwise(ks)):
        raise ValueError(f"ks={list(ks)}: allowed are two or more increasing whole numbers")
    first, second = _values(a, ks, "a"), _values(b, ks, "b")
    if first.shape != second.shape:
        raise ValueError(
            f"a has {first.shape[1]} problems, b {second.shape[1]}: allowed are the same problems"
        )
    difference = first - second
    difference = difference[:, np.lexsort(difference)]
    mean = difference.mean(1)
    apart = np.flatnonzero(np.abs(mean) > _ROUNDING)
    sign = float(np.sign(mean[apart[0]])) if len(apart) else 1.0
    draws = resampled_means(sign * difference, resamples, np.random.default_rng(seed))
    found = _first_crossing(draws, ks)
    value = float(_first_crossing(sign * mean[:, None], ks)[0])
    tail = (1 - confidence) / 2
    # no interpolation: between a k and "beyond" there is nothing
    low, high = np.quantile(found, [tail, 1 - tail], method="inverted_cdf")
    spread = bool(np.ptp(difference, axis=1).max() > _ROUNDING)
    return Crossing(
        value,
        float(low) if spread else None,
        float(high) if spread else None,
        float(np.isfinite(found).mean()),
        None if not len(apart) else "a" if sign > 0 else "b",
        int(ks[-1]),
        first.shape[1],
        "problems",
        seeds_of(seeds),
        f"bootstrap over problems, percentile, {resamples} resamples; linear in log k",
    )


def _first_crossing(lead: Floats, ks: Sequence[int]) -> Floats:
    """``lead`` [k, curves] of the leader over the other -> the k where it falls below 0, else inf."""
    behind = lead < -_ROUNDING
    at = behind.argmax(0)
    columns = np.arange(lead.shape[1])
    before = np.maximum(at - 1, 0)
    start, end = np.maximum(lead[before, columns], 0.0), lead[at, columns]
    log_k = np.log(np.asarray(ks, dtype=np.float64))
    share = np.divide(start, start - end, out=np.zeros(len(columns)), where=behind.any(0) & (at > 0))
    crossing = np.exp(log_k[before] + share * (log_k[at] - log_k[before]))
    return np.where(behind.any(0), crossing, np.inf)


def _values(counts: Counts, ks: Sequence[int], name: str) -> Floats:
    pair = items_of(name, counts, "two arrays, n and c")
    if len(pair) != 2:
        raise ValueError(f"{name} holds {len(pair)} arrays: allowed are two, n and c")
    n, c = (numbers_of(name, x) for x in pair)
    if n.ndim != 1 or n.shape != c.shape:
        raise ValueError(f"{name} has shapes {n.shape} and {c.shape}: allowed is one common shape [problems]")
    return pass_at_ks(n, c, ks)
