"""Statistics of problem sets: typed-in, of generated problems, and of the public sets where they are here."""

from __future__ import annotations

import os

import numpy as np
import pytest

from rlvr.analysis.dataset_statistics import (
    MPO_SETS,
    describe_problems,
    load_mpo_sets,
    solution_of,
    statistics_table,
    words,
)
from rlvr.problems import get_task
from rlvr.problems.base import Problem
from rlvr.problems.benchmarks import BenchmarkProblem
from rlvr.problems.tokenizer import Codec, build_tokenizer


def problem(prompt, solution=None):
    return Problem(prompt, prompt, "1", solution, "word", 1, "train")


def test_words():
    assert words("Anna has 11 pens, buys 6.") == 8
    assert words("") == 0
    assert words("\\frac{1}{2}") == 8  # \ frac { 1 } { 2 }


def test_a_set_typed_in():
    found = describe_problems([problem("a b", "c"), problem("a b", "c d e"), problem("a b c d e")])
    assert found == {
        "problems": 3, "distinct": 2, "prompt_mean": 3.0, "prompt_median": 2.0, "prompt_max": 5,
        "with_solution": 2, "solution_mean": 2.0, "solution_max": 3,
    }  # fmt: skip
    assert describe_problems([problem("abc")], len)["prompt_max"] == 3
    none = describe_problems([problem("a")])
    assert none["with_solution"] == 0 and np.isnan(none["solution_mean"])
    with pytest.raises(ValueError, match="problems is empty"):
        describe_problems([])


def test_where_solutions_are():
    assert solution_of(problem("a", "b")) == "b" and solution_of(problem("a")) is None
    math = BenchmarkProblem("x/1", "x", "a", metadata={"solution": "s"})
    program = BenchmarkProblem("x/1", "x", "a", kind="function", tests={"canonical_solution": "def f(): ..."})
    assert solution_of(math) == "s" and solution_of(program) == "def f(): ..."
    assert solution_of(BenchmarkProblem("x/1", "x", "a")) is None


def test_generated_problems_in_tokens_of_their_tokenizer():
    task = get_task("word")
    codec = Codec(build_tokenizer(task.words))
    problems = task.generate("validation", 50, 0, (3, 6))
    found = describe_problems(problems, lambda text: len(codec.encode(text)))
    lengths = [len(codec.encode(p.prompt)) for p in problems]
    assert found["prompt_mean"] == pytest.approx(sum(lengths) / 50) and found["prompt_max"] == max(lengths)
    assert found["problems"] == found["distinct"] == found["with_solution"] == 50
    assert found["solution_max"] < task.max_response_tokens((3, 6))


def test_a_set_that_is_not_here_is_a_row_without_numbers(tmp_path):
    table = statistics_table({"here": [problem("a b", "c")], "gone": None})
    assert table.index.tolist() == ["here", "gone"] and table.loc["here", "prompt_max"] == 2
    assert table.loc["gone"].isna().all()
    assert load_mpo_sets(tmp_path) == dict.fromkeys(MPO_SETS)


@pytest.mark.skipif(not os.environ.get("RLVR_DATA"), reason="RLVR_DATA names no folder with public data")
def test_the_public_sets():
    sets = load_mpo_sets()
    sizes = {"GSM8K train": 7473, "GSM8K test": 1319, "MATH train": 7500, "MATH test": 5000, "MBPP": 974,
             "HumanEval": 164}  # fmt: skip
    assert list(sets) == list(sizes)
    table = statistics_table(sets)
    for name, problems in sets.items():
        if problems is not None:
            assert table.loc[name, "problems"] == sizes[name]
            assert table.loc[name, "with_solution"] == sizes[name]
