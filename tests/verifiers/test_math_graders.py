"""Stored responses under several graders, and the spread between them."""

import pandas as pd
import pytest

from rlvr.evaluation import clustered_mean
from rlvr.verifiers.base import Verdict
from rlvr.verifiers.graders import (
    GRADERS,
    grade_last_number,
    grade_math_verify,
    grade_rlvr,
    rescore,
    sensitivity,
)

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


def test_a_parquet_file_and_its_finished_column(tmp_path):
    frame = samples().assign(finished=[True, False] * 6)
    frame.to_parquet(tmp_path / "samples.parquet")
    scored = rescore(tmp_path / "samples.parquet", GOLDS, ["rlvr"])
    assert by_grader(scored, "rlvr")[:3] == [True, False, False]
    assert scored["reason"][1] == "truncated"


def test_sensitivity_is_the_clustered_mean_by_grader():
    scored = rescore(samples(), GOLDS)
    table = sensitivity(scored, GOLDS)
    assert list(table["grader"]) == list(GRADERS)
    part = scored[scored["grader"] == "rlvr"]
    values = part["correct"].astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
    expected = clustered_mean(values, part["problem"].to_numpy())
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


def test_bad_arguments():
    with pytest.raises(ValueError, match="graders='exact'"):
        rescore(samples(), GOLDS, ["exact"])
    with pytest.raises(ValueError, match="'text'"):
        rescore(samples().drop(columns="text"), GOLDS)
    with pytest.raises(ValueError, match="1 problems, among them 'd'"):
        rescore(samples(), {k: v for k, v in GOLDS.items() if k != "d"})
