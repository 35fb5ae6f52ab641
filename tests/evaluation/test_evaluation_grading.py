"""Verdicts by kind of problem: whole numbers, mathematics, programs."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pandas as pd
import pytest
from evaluation_fixtures import small_repository, write_file

from rlvr.evaluation import accuracy_table
from rlvr.evaluation.grading import grade
from rlvr.evaluation.requests import EmbeddedProblem, evaluation_of_file
from rlvr.problems.benchmarks import load_benchmark, prompt_for
from rlvr.verifiers import programs
from rlvr.verifiers.programs import IsolationError, ProgramPool

# A catalogue with a benchmark of functions and one of programs that read and print; all of it written here.
CATALOGUE = """
functions:
  {title: Own functions, role: evaluation, kind: program, form: humaneval, count: 2, id: "{id}",
   prompt: function, licence: none,
   source: {hub: none/none, splits: [test], download_mb: 1, fields: {id: id}}}
contest:
  {title: Own contest, role: evaluation, kind: program, form: livecodebench, count: 1, id: "{id}",
   prompt: livecodebench, licence: none,
   source: {hub: none/none, splits: [test], download_mb: 1, fields: {id: id}}}
"""
FUNCTIONS = [
    {"id": f"own/{name}", "entry_point": name, "canonical_solution": f"    return {solution}\n",
     "prompt": f'def {name}(n):\n    """{text}"""\n', "test": f"def check(candidate):\n    assert {test}\n"}
    for name, text, solution, test in [
        ("double", "Twice n.", "2 * n", "candidate(3) == 6 and candidate(-1) == -2"),
        ("digits", "How many decimal digits n has.", "len(str(n))", "candidate(10 ** 30) == 31"),
    ]
]  # fmt: skip
CONTEST = {
    "id": "own/total", "problem": "Print the sum of the numbers on the line.", "difficulty": "easy",
    "contest_date": "2024-01-01T00:00:00", "starter_code": "", "metadata": "{}",
    "public_tests": [
        {"input": f"{a} {b}\n", "output": f"{a + b}\n", "testtype": "stdin"} for a, b in [(1, 2), (9, 8)]
    ],
}  # fmt: skip
RIGHT = {
    "own/double": "```python\ndef double(n):\n    return n + n\n```",
    "own/digits": "    return len(f'{n}')\n",
    "own/total": "```python\nprint(sum(map(int, input().split())))\n```",
}
WRONG = {
    "own/double": "```python\ndef double(n):\n    return n * n\n```",
    "own/digits": "I do not know.",
    "own/total": "```python\nprint(3)\n```",
}

try:
    ProgramPool(1).close()
    ISOLATION = ""
except IsolationError as error:
    ISOLATION = str(error)
needs_isolation = pytest.mark.skipif(bool(ISOLATION), reason=f"programs cannot be isolated here: {ISOLATION}")


def frame(pairs, finished=True):
    """Samples from (problem id, text) pairs."""
    ids, texts = zip(*pairs, strict=True)
    return pd.DataFrame({"problem": ids, "sample": range(len(ids)), "text": texts, "finished": finished})


@pytest.fixture
def code(tmp_path, monkeypatch):
    """The evaluation of a file that names the two benchmarks."""
    monkeypatch.chdir(small_repository(tmp_path))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/benchmarks.yaml").write_text(CATALOGUE)
    (tmp_path / "functions.jsonl").write_text("".join(json.dumps(r) + "\n" for r in FUNCTIONS))
    (tmp_path / "contest.jsonl").write_text(json.dumps(CONTEST) + "\n")
    monkeypatch.setenv("RLVR_DATA", str(tmp_path))
    return evaluation_of_file(
        write_file(tmp_path, problems=[{"benchmark": "functions"}, {"benchmark": "contest"}])
    )


# --- numbers and formulas ----------------------------------------------------------------------------------


def test_each_problem_has_its_grader_and_undecided_samples_stay_missing():
    problems = [
        EmbeddedProblem("sum", "1+1=", "2", 1),
        SimpleNamespace(id="half", kind="math", golds=("\\frac{1}{2}",), grading="auto"),
        SimpleNamespace(id="late", kind="math", golds=("7",), grading="integer"),
        SimpleNamespace(id="none", kind="math", golds=("",), grading="auto"),
    ]
    texts = ["1+1=2", "The answer is $0.5$.", "The answer is 7.", "The answer is 7."]
    samples = frame(list(zip(["sum", "half", "late", "none"], texts, strict=True)), [True, True, False, True])
    graded = grade(samples, problems)
    assert graded["grader"].tolist() == ["integer", "rlvr", "rlvr", "rlvr"]
    assert graded["correct"].isna().tolist() == [False, False, False, True]
    assert graded["correct"].fillna(False).tolist() == [True, True, False, False]
    assert graded["reason"].tolist() == ["correct", "correct", "truncated", "bad_gold"]
    assert graded.attrs["notes"] == []
    with pytest.raises(ValueError, match="1 problems that are not given"):
        grade(samples.head(1), problems[1:])
    with pytest.raises(
        ValueError, match="kind='essay': allowed are problems of kind integer, expression, math, function"
    ):
        grade(samples.head(1), [SimpleNamespace(id="sum", kind="essay")])


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_a_missing_text_has_no_verdict_whatever_grades_it(missing):
    problems = [
        EmbeddedProblem("sum", "1+1=", "2", 1),
        SimpleNamespace(id="nan", kind="math", golds=("nan",), grading="auto"),
        SimpleNamespace(id="late", kind="math", golds=("7",), grading="integer"),
    ]
    samples = frame([(p.id, missing) for p in problems], [True, True, False])
    graded = grade(pd.concat([samples, frame([("sum", "2")])]), problems)
    assert graded["reason"].tolist() == ["no_response"] * 3 + ["correct"]
    assert graded["correct"].isna().tolist() == [True] * 3 + [False]
    lost = samples.assign(finished=[None, True, False])  # of a response that is not there nothing is known
    assert set(grade(lost, problems)["reason"]) == {"no_response"}
    table = accuracy_table(graded.assign(benchmark="b", model="m", grader="g", seed=0, sample=[0, 0, 0, 1]))
    assert table["undecided"].tolist() == [3] and table["avg@k"].iloc[0].value == 1


def test_columns_that_hold_something_else_are_refused_by_name():
    problems = [EmbeddedProblem("sum", "1+1=", "2", 1)]
    good = frame([("sum", "2")])
    for spoilt, message in [
        (good.drop(columns="text"), r"samples lack the columns \['text'\]"),
        (good.drop(columns="finished"), r"samples lack the columns \['finished'\]"),
        (good.assign(text=2), r"text holds 2 \(int\)"),
        (good.assign(finished="False"), "finished holds 'False'"),
        (good.assign(finished=None), "finished is missing beside a text"),
    ]:
        with pytest.raises(ValueError, match=message):
            grade(spoilt, problems)


# --- programs ----------------------------------------------------------------------------------------------


def test_an_evaluation_file_takes_benchmarks_of_programs(code):
    assert [p.kind for p in code.problems] == ["function", "function", "stdin"]
    assert code.benchmarks == ("functions", "contest")
    assert "```python" in prompt_for(code.problems[0])


@needs_isolation
def test_programs_are_run_against_their_tests(code):
    pairs = [*RIGHT.items(), *WRONG.items(), ("own/double", RIGHT["own/double"])]
    graded = grade(frame(pairs, [True] * 6 + [False]), code.problems)
    assert graded["correct"].tolist() == [True] * 3 + [False] * 4
    assert set(graded["grader"]) == {"program"}
    assert graded["reason"].tolist()[:3] == ["correct"] * 3 and graded["reason"].iloc[-1] == "truncated"
    assert graded["extracted"].iloc[0] == "def double(n):\n    return n + n\n"


@needs_isolation
def test_a_missing_program_is_no_response_and_is_told_of(code):
    graded = grade(frame([("own/double", None), *RIGHT.items()], [False, True, True, True]), code.problems)
    assert graded["correct"].isna().tolist() == [True, False, False, False]
    assert graded["reason"].iloc[0] == "no_response"
    assert graded.attrs["notes"] == ["1 programs have no verdict (no_response)."]


@needs_isolation
def test_tests_that_cannot_judge_leave_a_program_undecided(code):
    double, *others = code.problems
    broken = SimpleNamespace(id=double.id, kind="function", tests={**double.tests, "test": "def check(c): ("})
    graded = grade(frame(RIGHT.items()), [broken, *others])
    assert graded["correct"].isna().tolist() == [True, False, False]
    (note,) = graded.attrs["notes"]
    assert note.startswith("1 programs have no verdict (bad_tests")


def test_where_programs_cannot_be_isolated_nothing_is_judged_and_the_reader_is_told(code, monkeypatch):
    def refuse(*_):
        raise IsolationError("programs cannot be isolated on this machine: it takes namespaces")

    monkeypatch.setattr(programs, "ProgramPool", refuse)
    graded = grade(frame([*RIGHT.items(), *WRONG.items()]), code.problems)
    assert graded["correct"].isna().all() and set(graded["reason"]) == {"not_isolated"}
    (note,) = graded.attrs["notes"]
    assert note.startswith("6 programs were not run and have no verdict: programs cannot be isolated")
    assert "it takes namespaces" in note and "rlvr.evaluation.grading.grade" in note


@needs_isolation
@pytest.mark.skipif(
    not os.environ.get("RLVR_DATA"), reason="RLVR_DATA is not set: the folder with humaneval.jsonl"
)
def test_humanevals_own_solutions_pass_and_empty_ones_do_not():
    problems = load_benchmark("humaneval")[::20]
    solutions = [(p.id, p.tests["canonical_solution"]) for p in problems]
    empty = [(p.id, "    pass\n") for p in problems]
    graded = grade(frame(solutions + empty), problems)
    assert graded["correct"].tolist() == [True] * len(problems) + [False] * len(problems)
