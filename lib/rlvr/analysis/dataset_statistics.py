"""Sizes and lengths of problem sets (MPO, Table 4), counted from the problems themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from rlvr.problems.base import Problem
from rlvr.problems.benchmarks import BenchmarkProblem, MissingData, load_benchmark

AnyProblem = Problem | BenchmarkProblem

#: The paper's sets [text: A.2]: name -> (use, benchmarks that make it up). MBPP is "the sanitized and
#: original data combined".
MPO_SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "GSM8K train": ("training", ("gsm8k_train",)),
    "GSM8K test": ("evaluation", ("gsm8k_test",)),
    "MATH train": ("training", ("math_train",)),
    "MATH test": ("evaluation", ("math_test",)),
    "MBPP": ("training", ("mbpp", "mbpp_sanitized")),
    "HumanEval": ("evaluation", ("humaneval",)),
}


def words(text: str) -> int:
    """Length in words and signs: runs of letters and digits, and every other mark that is no space."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def describe_problems(
    problems: Iterable[AnyProblem], length: Callable[[str], int] = words
) -> dict[str, float | int]:
    """Counts and lengths of one set.

    ``problems``; ``distinct`` prompts; ``prompt_mean``, ``prompt_median``, ``prompt_max`` in units of
    ``length``; and where problems have a solution, ``with_solution``, ``solution_mean`` and ``solution_max``
    (NaN otherwise). ``length`` may be a tokenizer's count, ``lambda text: len(tokenizer.encode(text))``.

    Raises:
        ValueError: an empty set.
    """
    problems = list(problems)
    if not problems:
        raise ValueError("problems is empty: there is nothing to describe")
    prompts = np.array([length(p.prompt) for p in problems])
    solutions = np.array([length(s) for p in problems if (s := solution_of(p)) is not None])
    return {
        "problems": len(problems),
        "distinct": len({p.prompt for p in problems}),
        "prompt_mean": float(prompts.mean()),
        "prompt_median": float(np.median(prompts)),
        "prompt_max": int(prompts.max()),
        "with_solution": len(solutions),
        "solution_mean": float(solutions.mean()) if len(solutions) else np.nan,
        "solution_max": int(solutions.max()) if len(solutions) else np.nan,
    }


def solution_of(problem: AnyProblem) -> str | None:
    """A worked solution or a reference program, where the set publishes one."""
    if isinstance(problem, Problem):
        return problem.solution
    found = problem.metadata.get("solution") or (problem.tests or {}).get("canonical_solution")
    return found if isinstance(found, str) else None


def statistics_table(
    sets: Mapping[str, Sequence[AnyProblem] | None], length: Callable[[str], int] = words
) -> pd.DataFrame:
    """One row per set, columns of :func:`describe_problems`; None, a set that is not here, is NaN."""
    rows = {}
    for name, problems in sets.items():
        rows[name] = {} if problems is None else describe_problems(problems, length)
    columns = list(describe_problems([Problem("", "", "", None, "", 0, "")]))
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("set")


def load_mpo_sets(data_dir=None) -> dict[str, list[BenchmarkProblem] | None]:
    """The paper's sets from ``data_dir``, else ``$RLVR_DATA``; None for one that is not on this machine.

    A problem that two benchmarks of a set share, by its number there, is in it once, as the first has it: the
    427 sanitized problems of MBPP are among its 974.
    """
    found: dict[str, list[BenchmarkProblem] | None] = {}
    for name, (_, benchmarks) in MPO_SETS.items():
        problems: dict[str, BenchmarkProblem] = {}
        try:
            for benchmark in benchmarks:
                for problem in load_benchmark(benchmark, data_dir, window="all"):
                    problems.setdefault(problem.id.rpartition("/")[2], problem)
            found[name] = list(problems.values())
        except MissingData:
            found[name] = None
    return found
