"""Numbers with their doubt: per-problem metrics, intervals that respect what is independent, comparisons.

docs/statistics.md says which interval answers which question.
"""

from rlvr.evaluation.bootstrap import bootstrap_mean, bootstrap_statistic, ratio_of_means
from rlvr.evaluation.budget import ComputeRatio, Reached, compute_ratio, compute_to_threshold, match_budget
from rlvr.evaluation.comparison import (
    Comparison,
    bootstrap_test,
    equivalent,
    half_width,
    holm,
    mcnemar_test,
    multiplicity_note,
    non_inferior,
    normal_test,
    seed_tests,
    sign_flip_test,
)
from rlvr.evaluation.compute import Ledger, ModelShape
from rlvr.evaluation.curves import Crossing, curve_crossing, pass_curve
from rlvr.evaluation.intervals import (
    Estimate,
    clustered_mean,
    clustered_standard_error,
    geometric_seed_interval,
    paired_difference,
    seed_interval,
    with_ends,
)
from rlvr.evaluation.metrics import avg_at_k, best_of_n, count_correct, pass_at_k, pass_at_ks
from rlvr.evaluation.notes import notes_under
from rlvr.evaluation.power import detectable_difference, paired_variance, power_note, unpaired_variance
from rlvr.evaluation.proportions import proportion_mean
from rlvr.evaluation.stratified import (
    aggregate,
    benchmark_mean,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)
from rlvr.evaluation.tables import accuracy_table, benchmark_scores, coverage, coverage_note
from rlvr.evaluation.voting import by_equivalence, majority_at_k, same_string

__all__ = [
    "Comparison",
    "ComputeRatio",
    "Crossing",
    "Estimate",
    "Ledger",
    "ModelShape",
    "Reached",
    "accuracy_table",
    "aggregate",
    "avg_at_k",
    "benchmark_mean",
    "benchmark_scores",
    "best_of_n",
    "bootstrap_mean",
    "bootstrap_statistic",
    "bootstrap_test",
    "by_equivalence",
    "clustered_mean",
    "clustered_standard_error",
    "compute_ratio",
    "compute_to_threshold",
    "count_correct",
    "coverage",
    "coverage_note",
    "curve_crossing",
    "detectable_difference",
    "equivalent",
    "geometric_seed_interval",
    "half_width",
    "holm",
    "interquartile_mean",
    "majority_at_k",
    "match_budget",
    "mcnemar_test",
    "multiplicity_note",
    "non_inferior",
    "normal_test",
    "notes_under",
    "paired_difference",
    "paired_variance",
    "pass_at_k",
    "pass_at_ks",
    "pass_curve",
    "performance_profile",
    "power_note",
    "probability_of_improvement",
    "proportion_mean",
    "ratio_of_means",
    "same_string",
    "seed_interval",
    "seed_tests",
    "sign_flip_test",
    "unpaired_variance",
    "with_ends",
]
