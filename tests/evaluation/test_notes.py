"""The lines under an accuracy table: each is there, or says why it is not."""

import re

import numpy as np
import pandas as pd
import pytest

from rlvr.evaluation import accuracy_table, coverage, notes_under
from rlvr.problems.benchmarks import BenchmarkProblem
from rlvr.verifiers import verify_math

pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'rlvr[evaluation]'")

PROBLEMS = [
    BenchmarkProblem(f"m/{i}", "math500", f"Problem {i}?", answer, answer_type="expression")
    for i, answer in enumerate([r"\frac{1}{2}", "3", "x+1"])
]
TEXTS = [[r"\boxed{0.5}", r"\boxed{2}"], [r"so \boxed{3} of 7", "Answer: 3"], [r"\boxed{1+x}", "I gave up"]]


def samples(model="base", grader="rlvr") -> pd.DataFrame:
    rows = []
    for problem, texts in zip(PROBLEMS, TEXTS, strict=True):
        for sample, text in enumerate(texts):
            finished = text != "I gave up"
            verdict = verify_math(text, problem.golds, finished=finished)
            rows.append((problem.id, sample, text, finished, verdict.correct, verdict.extracted))
    columns = ["problem", "sample", "text", "finished", "correct", "extracted"]
    frame = pd.DataFrame(rows, columns=columns).astype({"correct": "boolean"})
    return frame.assign(benchmark="math500", model=model, grader=grader, seed=0)


@pytest.fixture
def folder(tmp_path):
    """No file in it: contamination is as recorded in data/benchmarks.yaml."""
    return tmp_path


def test_every_kind_of_line(folder):
    frame = samples()
    table = accuracy_table(frame, [2])
    lines = notes_under(table, frame, PROBLEMS, training_sets=["dapo_math_17k"], data_dir=folder)
    assert lines[0] == (
        "math500, base (rlvr): 3 problems, 6 samples; 0 missing, 0 undecided, 1 truncated (16.7%)."
    )
    assert re.fullmatch(
        r"math500, base, by grader: rlvr 0.667 \[.*\], math_verify 0\.\d+ \[.*\], last_number 0.167 \[.*\]; "
        r"spread 0\.500\.",
        lines[1],
    )
    interval = table.iloc[0]["avg@k"]
    assert f"rlvr {interval.format()}" in lines[1]  # that of the table itself
    assert re.fullmatch(r"MATH-500: 18 of 500 problems are in DAPO.*as recorded\)\.", lines[2])
    assert len(lines) == 3


def test_stored_verdicts_are_not_graded_again(folder, monkeypatch):
    monkeypatch.setattr("rlvr.verifiers.graders.verify_math_batch", lambda *a, **k: pytest.fail("graded"))
    frame = samples().assign(correct=True)
    line = notes_under(accuracy_table(frame, []), frame, PROBLEMS, data_dir=folder)[1]
    assert "rlvr 1.000 [" in line and "last_number 0.167 [" in line


def test_what_a_number_leaves_out_is_said():
    frame = samples()
    frame.loc[(frame["problem"] == "m/1") & (frame["sample"] == 1), "correct"] = pd.NA
    lines = notes_under(accuracy_table(frame, [2]))
    left = "1 of 3 problems, with fewer than 2 decided samples, left out."
    assert lines[0].endswith("1 undecided, 1 truncated (16.7%).")
    assert lines[1:3] == [f"math500, base (rlvr), {name}: {left}" for name in ("pass@2", "maj@2")]
    blind = notes_under(accuracy_table(frame.assign(correct=pd.NA), [2]))
    assert (
        "math500, base (rlvr), pass@2: 3 of 3 problems, with fewer than 2 decided samples, left out." in blind
    )


def test_a_line_that_cannot_be_made_says_why():
    table = accuracy_table(samples(), [])
    bare = notes_under(table)
    assert bare[1:] == [
        "Other graders were not asked: that needs samples with their text and the problems.",
        "Contamination was not looked at: no training set was named.",
    ]
    assert notes_under(table, samples())[1] == "Other graders were not asked: that needs the problems."
    blind = samples().drop(columns="text")
    assert notes_under(table, blind, PROBLEMS)[1] == (
        "Other graders were not asked: that needs the responses' text."
    )
    assert notes_under(coverage(samples())) == bare
    with pytest.raises(ValueError, match=r"lacks \['benchmark', 'model', 'grader'\]"):
        notes_under(table.reset_index())


def test_models_graders_and_sets_that_have_no_other(folder):
    two = pd.concat([samples(), samples("rl"), samples(grader="last_number")])
    other = samples(grader="program").assign(benchmark="humaneval")
    own = samples(grader="integer").assign(benchmark="embedded")
    frame = pd.concat([two, other, own])
    lines = notes_under(
        accuracy_table(frame, []), frame, PROBLEMS, training_sets=["dapo_math_17k"], data_dir=folder
    )
    assert len(lines) == 5 + 4 + 3
    assert [x.split(":")[0] for x in lines[5:9]] == [
        "embedded, base",
        "humaneval, base",
        "math500, base, by grader",
        "math500, rl, by grader",
    ]
    assert lines[5] == "embedded, base: judged by 'integer' alone; no other grader can stand in for it."
    assert lines[7].index("last_number") < lines[7].index("math_verify")  # stored ones come first
    assert lines[9] == "embedded is no public benchmark and was not compared with DAPO-Math-17k."
    assert lines[10] == "humaneval holds programs, which were not compared with DAPO-Math-17k."
    assert lines[11].startswith("MATH-500: 18 of 500")
    assert np.all([line.endswith(".") for line in lines])


def test_no_overlap_is_said_too(folder):
    frame = samples().assign(benchmark="aime24")
    lines = notes_under(accuracy_table(frame, []), training_sets=["math_train"], data_dir=folder)
    assert lines[-1] == "AIME 2024: no overlap with MATH train found."
