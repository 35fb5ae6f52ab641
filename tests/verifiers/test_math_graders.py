"""Stored responses under several graders, and the spread between them."""

import numpy as np
import pandas as pd
import pytest

from rlvr.evaluation import proportion_mean
from rlvr.verifiers import verify_math
from rlvr.verifiers.base import Verdict
from rlvr.verifiers.graders import rescore, sensitivity
from rlvr.verifiers.text_graders import GRADERS, grade_last_number, grade_math_verify, grade_rlvr

pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'rlvr[evaluation]'")

GOLDS = {"a": "\\frac{1}{2}", "b": "72", "c": ("3", "4"), "d": "\\boxed{"}
TEXTS = {
    "a": ["\\boxed{0.5}", "\\boxed{\\frac{2}{4}}", "\\boxed{2}"],
    "b": ["so 72", "\\boxed{72} of 100", "\\boxed{7200\\%}"],
    "c": ["\\boxed{4}", "\\boxed{5}", "#### 3."],
    "d": ["\\boxed{1}", "1", ""],
}


def samples() -> pd.DataFrame:
    rows = [(p, k, text) for p, texts in TEXTS.items() for k, text in enumerate(texts)]
    return pd.DataFrame(rows, columns=["problem", "sample", "text"])


def by_grader(frame: pd.DataFrame, grader: str) -> list[bool | None]:
    part = frame[frame["grader"] == grader].sort_values(["problem", "sample"])
    return [None if pd.isna(x) else bool(x) for x in part["correct"]]


def test_graders_answer_verdicts():
    assert set(GRADERS) == {"rlvr", "math_verify", "last_number"}
    for grade in GRADERS.values():
        assert isinstance(grade("\\boxed{5}", "5"), Verdict)
        assert grade("it is 5", "5").correct is True
        assert grade("it is 6", "5").correct is False


def test_each_grader_has_its_known_weaknesses():
    assert grade_rlvr("$\\frac{1}{2006!}$", "\\frac{1}{2004!}").correct is False
    assert grade_math_verify("$\\frac{1}{2006!}$", "\\frac{1}{2004!}").correct is True
    assert grade_last_number("\\boxed{5} in 3 steps", "5") == Verdict(False, "3", "wrong")
    assert grade_last_number("1,234", "1234").correct is True
    assert grade_last_number("none", "5") == Verdict(False, None, "no_number")
    assert grade_math_verify("\\boxed{5}", "").reason == "bad_gold"


def test_rescore_grades_every_sample_once_per_grader():
    frame = rescore(samples(), GOLDS, kinds={"b": "integer"})
    assert len(frame) == 3 * 12
    assert list(frame["grader"].unique()) == list(GRADERS)
    assert by_grader(frame, "rlvr") == [
        True,
        True,
        False,
        True,
        True,
        False,
        True,
        False,
        True,
        None,
        None,
        None,
    ]
    assert by_grader(frame, "last_number") == [
        False, False, False, True, False, False, True, False, True, False, False, False
    ]  # fmt: skip
    assert by_grader(frame, "math_verify")[:3] == [True, True, False]
    assert by_grader(frame, "math_verify")[6:9] == [True, False, True]
    assert str(frame["correct"].dtype) == "boolean"


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, np.float32("nan")])
def test_a_missing_text_is_no_response_under_every_grader(missing):
    golds = {"a": "7", "b": "nan", "c": "None", "d": "<NA>"}
    frame = pd.DataFrame(
        [(p, k, text) for p in golds for k, text in enumerate([golds[p], missing, ""])],
        columns=["problem", "sample", "text"],
    )
    for texts in (frame, frame.assign(finished=frame["sample"] != 1)):  # also where it did not finish
        scored = rescore(texts, golds)
        none = scored[scored["sample"] == 1]
        assert none["correct"].isna().all() and none["extracted"].isna().all()
        assert set(none["reason"]) == {"no_response"} and len(none) == 4 * len(GRADERS)
        others = scored[scored["sample"] != 1]
        assert set(others["reason"]) & {"no_response"} == set()
        assert not others.loc[others["sample"] == 2, "correct"].fillna(False).any()
    table = sensitivity(frame, golds)
    assert table["undecided"].min() >= 4 and table["samples"].tolist() == [12] * 3
    for grade in GRADERS.values():
        assert grade(missing, "nan") == Verdict(None, None, "no_response")
    # text of a column that pandas calls a string
    typed = frame.assign(text=frame["text"].astype("string"))
    assert rescore(typed, golds)["reason"].tolist() == rescore(frame, golds)["reason"].tolist()


def test_what_is_neither_text_nor_missing_is_refused():
    frame = samples()
    for column, value, message in [
        ("text", 7, r"text holds 7 \(int\): allowed are strings"),
        ("finished", "False", "finished holds 'False': allowed are True and False"),
        ("finished", None, "finished is missing beside a text"),
        ("problem", None, "column 'problem' holds missing values"),
        ("seed", None, "column 'seed' holds missing values"),
    ]:
        spoilt = frame.assign(finished=True, seed=0).astype({column: object} if column != "problem" else {})
        spoilt.loc[3, column] = value
        with pytest.raises(ValueError, match=message):
            rescore(spoilt, GOLDS)
    for golds, message in [
        (GOLDS | {"a": float("nan")}, "empty answer for 1 problems, among them 'a'"),
        (GOLDS | {"a": ("1", None)}, "golds of 'a' are .*: allowed are strings"),
    ]:
        with pytest.raises(ValueError, match=message):
            rescore(frame, golds)
    for workers in (0, True, "2", 1.5):
        with pytest.raises(ValueError, match="workers="):
            rescore(frame, GOLDS, workers=workers)


def test_a_parquet_file_and_its_finished_column(tmp_path):
    frame = samples().assign(finished=[True, False] * 6)
    frame.to_parquet(tmp_path / "samples.parquet")
    scored = rescore(tmp_path / "samples.parquet", GOLDS, ["rlvr"])
    assert by_grader(scored, "rlvr")[:3] == [True, False, False]
    assert scored["reason"][1] == "truncated"


def test_sensitivity_is_the_accuracy_by_grader():
    scored = rescore(samples(), GOLDS)
    table = sensitivity(scored, GOLDS)
    assert list(table["grader"]) == list(GRADERS)
    part = scored[scored["grader"] == "rlvr"]
    values = part["correct"].astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
    expected = proportion_mean(values, part["problem"].to_numpy())
    row = table.iloc[0]
    assert (row["accuracy"], row["low"], row["high"]) == (expected.value, expected.low, expected.high)
    assert (row["problems"], row["samples"], row["undecided"]) == (3, 12, 3)
    spread = table["accuracy"].max() - table["accuracy"].min()
    assert table.attrs["line"].startswith(f"rlvr {expected.value:.3f} [")
    assert f"spread {spread:.3f}" in table.attrs["line"]
    assert "rlvr 3 of 12" in table.attrs["line"]


def test_sensitivity_without_a_decided_sample():
    frame = samples()
    table = sensitivity(frame[frame["problem"] == "d"], GOLDS, ["rlvr", "last_number"])
    assert table["accuracy"].isna().tolist() == [True, False]
    assert "undecided: rlvr 3 of 3" in table.attrs["line"]


def test_no_sample_and_a_sample_twice_are_refused():
    with pytest.raises(ValueError, match="samples has no rows"):
        sensitivity(samples().head(0), GOLDS)
    with pytest.raises(ValueError, match="samples has no rows"):
        sensitivity(graded().head(0), GOLDS)
    twice = pd.concat([samples(), samples().head(1)])
    for call in (rescore, sensitivity):
        with pytest.raises(ValueError, match=r"samples repeat a \(problem, sample\): allowed is each once"):
            call(twice, GOLDS)
    with pytest.raises(ValueError, match=r"samples repeat a \(problem, sample, grader\)"):
        sensitivity(pd.concat([graded(), graded().head(1)]), GOLDS)
    with pytest.raises(ValueError, match=r"samples repeat a \(problem, sample, seed\)"):
        rescore(twice.assign(seed=0), GOLDS)
    assert len(rescore(samples().head(0), {})) == 0


def graded(**changes) -> pd.DataFrame:
    """As an engine stores it: one grader's verdicts beside the texts."""
    frame = samples().assign(grader="rlvr", **changes)
    verdicts = [
        verify_math(t, GOLDS[p]).correct for p, t in zip(frame["problem"], frame["text"], strict=True)
    ]
    return frame.assign(correct=pd.array(verdicts, dtype="boolean"))


def test_a_graded_frame_gets_the_graders_that_it_lacks():
    assert sensitivity(graded(), GOLDS).equals(sensitivity(samples(), GOLDS))
    # what is stored is taken, whatever the grader would say today
    stored = graded().assign(correct=True)
    table = sensitivity(stored, GOLDS, ["last_number", "rlvr"]).set_index("grader")
    assert list(table.index) == ["last_number", "rlvr"]
    assert table.loc["rlvr", "accuracy"] == 1 and table.loc["last_number", "accuracy"] < 1
    # under another name as well, and without texts if nothing has to be run
    other = stored.assign(grader="integer").drop(columns="text")
    assert sensitivity(other, {}, ["integer"]).attrs["line"].endswith("; one grader")
    with pytest.raises(
        ValueError, match=r"graders=\['rlvr', 'math_verify', 'last_number'\].*integer.*'text'"
    ):
        sensitivity(other, GOLDS)
    with pytest.raises(ValueError, match=r"graders=\['last_number'\].*judged by rlvr"):
        sensitivity(graded().drop(columns="text"), GOLDS, ["rlvr", "last_number"])


def test_all_graders_must_have_judged_the_same_samples():
    scored = rescore(samples(), GOLDS, ["rlvr", "last_number"])
    lost = scored[(scored["grader"] == "rlvr") | (scored["problem"] != "a")]
    with pytest.raises(ValueError, match="rlvr judged 12, last_number judged 9"):
        sensitivity(lost, GOLDS, ["rlvr", "last_number"])
    with pytest.raises(ValueError, match="repeat"):
        sensitivity(pd.concat([scored, scored]), GOLDS, ["rlvr", "last_number"])
    seeds = pd.concat([samples().assign(seed=s) for s in (0, 1)])
    table = sensitivity(rescore(seeds, GOLDS, ["rlvr"]), GOLDS, ["rlvr", "last_number"][:1])
    assert table["samples"].tolist() == [24]


DECODE = "def decode(text):\n    return ''.join(chr((ord(c) - 98) % 26 + 97) for c in text)"
PROGRAMS = {"own/shift": f"```python\n{DECODE}\n```", "own/running": "no code here"}


def program_samples() -> tuple[pd.DataFrame, dict]:
    tasks = pytest.importorskip("tests.programs.program_tasks")
    golds = {task.id: task for task in (tasks.SHIFT, tasks.RUNNING)}
    rows = [(name, k, text, k == 0) for name, text in PROGRAMS.items() for k in range(2)]
    return pd.DataFrame(rows, columns=["problem", "sample", "text", "finished"]), golds


def test_programs_are_run_against_their_tests():
    from rlvr.verifiers.programs import IsolationError

    frame, golds = program_samples()
    try:
        scored = rescore(frame, golds)
    except IsolationError as error:
        pytest.skip(f"programs cannot be isolated here: {error}")
    assert scored["grader"].unique().tolist() == ["program"]
    assert scored["reason"].tolist() == ["correct", "truncated", "syntax", "truncated"]
    assert scored["correct"].tolist() == [True, False, False, False]
    line = sensitivity(frame, golds).attrs["line"]
    assert line.startswith("program 0.250 [") and line.endswith("; one grader")
    assert sensitivity(scored, golds).attrs["line"] == line


def test_a_missing_program_is_no_response():
    frame, golds = program_samples()
    frame = frame.assign(text=None, finished=[True, False, None, True])
    scored = rescore(frame, golds)  # and nothing is run
    assert scored["correct"].isna().all() and set(scored["reason"]) == {"no_response"}


def test_programs_are_never_graded_as_answers():
    frame, golds = program_samples()
    with pytest.raises(ValueError, match="graders='rlvr': allowed for programs are 'program'"):
        rescore(frame, golds, ["rlvr"])
    with pytest.raises(ValueError, match="graders='program': allowed for answers of mathematics are"):
        rescore(samples(), GOLDS, ["program"])
    with pytest.raises(ValueError, match=r"programs \('own/running'\) and mathematics"):
        rescore(pd.concat([frame, samples()]), golds | GOLDS)
    # the golds of a BenchmarkProblem that is a program
    with pytest.raises(ValueError, match=r"empty answer for 2 problems, among them 'own/running'.*tests"):
        rescore(frame, dict.fromkeys(golds, ()))


def test_bad_arguments():
    with pytest.raises(ValueError, match="graders='exact'"):
        rescore(samples(), GOLDS, ["exact"])
    for graders in ([], "rlvr"):
        with pytest.raises(ValueError, match=r"graders=(\[\]|'rlvr'): allowed is a list of"):
            rescore(samples(), GOLDS, graders)
    with pytest.raises(ValueError, match="'text'"):
        rescore(samples().drop(columns="text"), GOLDS)
    with pytest.raises(ValueError, match="1 problems, among them 'd'"):
        rescore(samples(), {k: v for k, v in GOLDS.items() if k != "d"})
