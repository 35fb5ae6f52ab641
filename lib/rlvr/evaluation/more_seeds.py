"""What more training seeds would change about a comparison that is open.

A part of a claim is a mean over seeds with a Student t interval, held against a threshold. If the truth were
what was measured (mean and spread), how often would an interval over n new seeds decide? The noncentral t
distribution says so exactly for normal differences; the measured spread of a few seeds is itself uncertain by
a third or more, so the answer is a plan, not a promise. Of ratios the interval is one of logs, of
correlations one of atanh: then the plan is made there, threshold and all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats

from rlvr.evaluation.inputs import fraction
from rlvr.evaluation.intervals import Estimate

MOST_SEEDS = 1000
#: Scale on which a Student t interval may have been made -> (numbers that it takes, the scale).
SCALES = {
    "plain": (lambda value: True, float),
    "log": (lambda value: value > 0, math.log),
    "atanh": (lambda value: -1 < value < 1, math.atanh),
}


@dataclass(frozen=True)
class MoreSeeds:
    """The chance that ``seeds`` seeds decide a comparison, and how many would with chance ``power``."""

    seeds: int
    decides: float  # probability that the interval lies on one side of the threshold
    needed: int | None  # seeds for probability ``power``; None: more than MOST_SEEDS
    power: float


def more_seeds(
    estimate: Estimate, threshold: float, seeds: int, *, confidence: float = 0.95, power: float = 0.8
) -> MoreSeeds | None:
    """The plan for one comparison, on the scale of its interval (:func:`scale_of`); None where the estimate
    tells no spread over seeds, or the threshold is no number of that scale.

    Args:
        estimate: mean over seeds with its Student t interval at ``confidence``, n counting seeds.
        threshold: what the interval is held against.
        seeds: how many there would be, all new, at least 2.
        power: chance asked of ``needed``.

    Raises:
        ValueError: seeds below 2; confidence or power not in (0, 1).
    """
    fraction("confidence", confidence)
    fraction("power", power)
    if seeds < 2:
        raise ValueError(f"seeds={seeds}: allowed are at least 2, one seed has no spread")
    spread, scale = seed_spread(estimate, confidence), scale_of(estimate)
    if spread is None or scale is None:
        return None
    takes, on = SCALES[scale]
    if not takes(threshold):
        return None
    distance = abs(on(estimate.value) - on(threshold)) / spread

    def decides(n: int) -> float:
        return _decides(distance, n, confidence)

    return MoreSeeds(seeds, decides(seeds), _fewest(decides, power), power)


def seed_spread(estimate: Estimate, confidence: float) -> float | None:
    """Standard deviation over seeds behind a Student t interval: half its width, times sqrt(n), over t;
    on the scale of the interval (:func:`scale_of`).

    None where it tells none: unknown ends, one seed, no width, or ends that are on no scale the same way off
    the mean.
    """
    scale, n = scale_of(estimate), len(estimate.seeds)
    if scale is None or n < 2:
        return None
    on = SCALES[scale][1]
    half = (on(estimate.high) - on(estimate.low)) / 2
    spread = half * math.sqrt(n) / float(stats.t.ppf((1 + confidence) / 2, n - 1))
    return spread if spread > 0 else None


def scale_of(estimate: Estimate) -> str | None:
    """The first of :data:`SCALES` on which the ends are the same way off the mean; None: there is none."""
    numbers = (estimate.low, estimate.value, estimate.high)
    if any(number is None or not math.isfinite(number) for number in numbers):
        return None
    for name, (takes, on) in SCALES.items():
        if all(map(takes, numbers)):
            low, middle, high = map(on, numbers)
            if math.isclose(middle - low, (high - low) / 2, rel_tol=1e-3, abs_tol=1e-12):
                return name
    return None


def _decides(distance: float, n: int, confidence: float) -> float:
    """P(|t| above its critical value) for a true mean ``distance`` standard deviations off."""
    critical = stats.t.ppf((1 + confidence) / 2, n - 1)
    shift = distance * math.sqrt(n)
    return float(stats.nct.sf(critical, n - 1, shift) + stats.nct.cdf(-critical, n - 1, shift))


def _fewest(decides, power: float) -> int | None:
    """Smallest n with ``decides(n) >= power``; it rises with n."""
    low, high = 2, 2
    while decides(high) < power:
        if high >= MOST_SEEDS:
            return None
        low, high = high + 1, min(2 * high, MOST_SEEDS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) >= power else (middle + 1, high)
    return high
