"""Public benchmarks: loading, downloading, checking; see docs/data.md.

``load_benchmark("aime24")`` gives problems to evaluate on, ``load_training_set("dapo_math_17k",
exclude=["amc23"])`` problems to train on that an evaluation set does not hold, ``contamination_note`` the
line under a number that a training set touches.
"""

from rlvr.problems.benchmarks.catalogue import Benchmark, get_benchmark, load_catalogue
from rlvr.problems.benchmarks.duplicates import drop_duplicates, duplicate_groups, normalise
from rlvr.problems.benchmarks.livecodebench import all_tests, decode_tests, program_record
from rlvr.problems.benchmarks.loading import BenchmarkWarning, load_benchmark, load_training_set
from rlvr.problems.benchmarks.overlap import (
    Overlap,
    contamination,
    contamination_note,
    decontaminate,
    find_overlaps,
)
from rlvr.problems.benchmarks.problem import BenchmarkProblem
from rlvr.problems.benchmarks.prompts import STYLES, prompt_for
from rlvr.problems.benchmarks.sources import MissingData

__all__ = [
    "STYLES",
    "Benchmark",
    "BenchmarkProblem",
    "BenchmarkWarning",
    "MissingData",
    "Overlap",
    "all_tests",
    "contamination",
    "contamination_note",
    "decode_tests",
    "decontaminate",
    "drop_duplicates",
    "duplicate_groups",
    "find_overlaps",
    "get_benchmark",
    "load_benchmark",
    "load_catalogue",
    "load_training_set",
    "normalise",
    "program_record",
    "prompt_for",
]
