"""How trace variance and switch frequency differ between horizons, per training seed (nfpo, figure 4)."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlvr.analysis.corrections import Pool, variance_by_step
from rlvr.analysis.dynamics import switch_frequency, trace_variance, traced_ratio
from rlvr.evaluation import Estimate, seed_interval


def variance_difference(
    data: Pool, more: int, less: int, trace: dict[str, Any], confidence: float
) -> Estimate:
    """Variance of the clipped trace with horizon ``more`` minus with ``less``: each seed's median over steps,
    on the same records, then Student's t over seeds."""
    moments = trace_variance(data.log_ratio, data.mask, (more, less), **_clips(trace))
    high, low = (
        [float(np.median(steps)) for steps in variance_by_step(data, moments[n]["clipped"])]
        for n in (more, less)
    )
    return seed_interval(np.subtract(high, low), data.seeds, confidence=confidence)


def switch_difference(data: Pool, a: int, b: int, trace: dict[str, Any], confidence: float) -> Estimate:
    """Switch frequency with horizon ``a`` minus with ``b``, per seed on the same records."""
    rates = []
    for horizon in (a, b):
        shares = switch_frequency(
            traced_ratio(data.log_ratio, data.mask, horizon, **_clips(trace)), data.mask
        )
        numerator, denominator = shares.numerator.numpy(), shares.denominator.numpy()
        of_seed = [data.seed == seed for seed in data.seeds]
        rates.append([numerator[rows].sum() / denominator[rows].sum() for rows in of_seed])
    return seed_interval(np.subtract(*rates), data.seeds, confidence=confidence)


def _clips(trace: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in trace.items() if name != "horizon"}
