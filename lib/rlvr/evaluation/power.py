"""What a benchmark cannot see: the smallest difference that n problems with k samples each can detect.

With p_i the true accuracy on problem i, an accuracy over n problems with k samples has variance
``(between + within / k) / n``: between = Var_i(p_i), within = E_i[p_i (1 - p_i)]. More samples shrink the
second part only. A *difference* on the same problems has the same form, and its between part is that of the
differences of p_i: small where two policies find the same problems hard. This is what pairing is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from rlvr.evaluation.inputs import fraction, whole
from rlvr.evaluation.metrics import outcome_matrix
from rlvr.evaluation.resampling import Floats


@dataclass(frozen=True)
class DifferenceVariance:
    """``between`` problems and ``within`` (per sample) variance of a difference of two runs, both >= 0."""

    between: float
    within: float
    design: Literal["paired", "unpaired"]


def unpaired_variance(a: ArrayLike, b: ArrayLike | None = None) -> DifferenceVariance:
    """Variance of the difference of two runs on different problems of one kind.

    Args:
        a, b: [problems, samples] in {0, 1, NaN}, two samples or more for some problems; b None: as ``a``.
    """
    parts = [_components(*_rates(x, name)) for x, name in ((a, "a"), (a if b is None else b, "b"))]
    return DifferenceVariance(sum(p[0] for p in parts), sum(p[1] for p in parts), "unpaired")


def paired_variance(a: ArrayLike, b: ArrayLike | None = None) -> DifferenceVariance:
    """Variance of the difference of two runs on the same problems, in the same order.

    Args:
        a, b: as in :func:`unpaired_variance`; ``b`` None: no second run yet. Then the best case is assumed, a
            difference equal on all problems (between = 0): the real test sees less.
    """
    rate, within, n = _rates(a, "a")
    if b is None:
        return DifferenceVariance(0.0, 2 * _components(rate, within, n)[1], "paired")
    rate_b, within_b, n_b = _rates(b, "b")
    if rate.shape != rate_b.shape:
        raise ValueError(f"a has {len(rate)} problems, b has {len(rate_b)}: allowed are the same problems")
    noise = within / np.maximum(n, 1) + within_b / np.maximum(n_b, 1)
    between = _without_noise(rate - rate_b, noise)
    return DifferenceVariance(between, float(np.nanmean(within) + np.nanmean(within_b)), "paired")


def detectable_difference(
    variance: DifferenceVariance,
    problems: int,
    samples: int,
    *,
    confidence: float = 0.95,
    power: float = 0.8,
) -> float:
    """The smallest true difference that a two-sided test finds with probability ``power``.

    ``(t_{(1+confidence)/2} + t_power) * sqrt((between + within / samples) / problems)``, Student's t with
    n - 1 degrees of freedom paired, 2n - 2 unpaired (the usual approximation). The variance is taken as
    known; from a pilot of 30 problems it is itself uncertain by a quarter.
    """
    problems, samples = whole("problems", problems), whole("samples", samples)
    if problems < 2:
        raise ValueError(f"problems={problems}: allowed are integers >= 2")
    if not isinstance(variance, DifferenceVariance):
        raise ValueError(
            f"variance={variance!r:.80}: allowed is what paired_variance and unpaired_variance return"
        )
    fraction("confidence", confidence), fraction("power", power, 0.5, closed=True)
    freedom = (problems - 1) * (1 if variance.design == "paired" else 2)
    quantiles = stats.t.ppf((1 + confidence) / 2, freedom) + stats.t.ppf(power, freedom)
    return float(quantiles * np.sqrt((variance.between + variance.within / samples) / problems))


def power_note(
    a: ArrayLike, b: ArrayLike | None = None, *, confidence: float = 0.95, power: float = 0.8
) -> str:
    """One line under a table: what a comparison on these problems, with these samples, cannot see.

    ``a``, ``b``: [problems, samples] as in :func:`paired_variance`; unpaired is for other problems.
    """
    values = outcome_matrix(a, "a")
    used = (~np.isnan(values)).sum(1)
    problems, samples = int((used > 0).sum()), max(1, round(float(used[used > 0].mean())))
    sizes = {"confidence": confidence, "power": power}
    paired, unpaired = (
        100 * detectable_difference(variance, problems, samples, **sizes)
        for variance in (paired_variance(a, b), unpaired_variance(a, b))
    )
    best = "at best " if b is None else ""
    return (
        f"{problems} problems x {samples} samples: a true difference is found with {power:.0%} power from "
        f"{best}{paired:.1f} points on (paired; {unpaired:.1f} against a run on other problems), two-sided "
        f"at {1 - confidence:.0%}."
    )


def _rates(correct: ArrayLike, name: str) -> tuple[Floats, Floats, np.ndarray]:
    """Accuracy and unbiased variance of one sample [problems], NaN where unknown; samples present."""
    values = outcome_matrix(correct, name)
    n = (~np.isnan(values)).sum(1)
    if not (n > 1).any():
        raise ValueError(f"{name} has one sample per problem: two are needed to tell problems from samples")
    rate = np.divide(np.nansum(values, axis=1), n, out=np.full(len(n), np.nan), where=n > 0)
    within = np.divide(n * rate * (1 - rate), n - 1, out=np.full(len(n), np.nan), where=n > 1)
    return rate, within, n


def _components(rate: Floats, within: Floats, n: np.ndarray) -> tuple[float, float]:
    return _without_noise(rate, within / np.maximum(n, 1)), float(np.nanmean(within))


def _without_noise(rate: Floats, noise: Floats) -> float:
    """Variance between problems of rates less that of their noise, 0 where the noise explains it all."""
    known = ~np.isnan(rate)
    if known.sum() < 2:
        raise ValueError("fewer than two problems are present: their variance is unknown")
    return max(0.0, float(rate[known].var(ddof=1) - np.nanmean(noise)))
