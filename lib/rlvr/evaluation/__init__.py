"""Numbers with their doubt: per-problem metrics, and intervals that respect what is independent."""

from rlvr.evaluation.intervals import (
    Estimate,
    bootstrap_mean,
    clustered_mean,
    clustered_standard_error,
    paired_difference,
    ratio_of_means,
    seed_interval,
)
from rlvr.evaluation.metrics import avg_at_k, count_correct, pass_at_k

__all__ = [
    "Estimate",
    "avg_at_k",
    "bootstrap_mean",
    "clustered_mean",
    "clustered_standard_error",
    "count_correct",
    "paired_difference",
    "pass_at_k",
    "ratio_of_means",
    "seed_interval",
]
