"""The first and the last lines of `make repro` for a scale that evaluates a pretrained model."""

from __future__ import annotations

import shutil

import pytest
from evaluation_fixtures import run_notebook, small_repository, write_file
from notebook_factory import PROJECT

from pipelines import summary

FOLDER = "pipelines/scales/try"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A repository whose scale `try` has an evaluation file."""
    monkeypatch.chdir(small_repository(tmp_path))
    monkeypatch.delenv("RLVR_DATA", raising=False)
    (tmp_path / FOLDER).mkdir(parents=True)
    return tmp_path


def put(here, **changes):
    shutil.copy(write_file(here, **changes), f"{FOLDER}/evaluation.yaml")


def test_the_time_is_told_before_it_starts(here, capsys):
    put(here)
    assert summary.main(["--start", "try"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "tiny on embedded: loading and timing one batch"
    assert second.strip().startswith("10 responses, at most about ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "no-such-package"},
            "error: package 'no-such-package' is not installed: `make env-pretrained`",
        ),
        ({"problems": [{"benchmark": "math500"}]}, "`rlvr data fetch math500 gsm8k_train`"),
        ({"confidence": 2}, "confidence"),
    ],
)
def test_what_is_missing_is_one_message_and_no_stage_runs(here, capsys, changes, message):
    (here / "data").mkdir()
    shutil.copy(PROJECT / "data/benchmarks.yaml", here / "data")
    put(here, **({"training_sets": ["gsm8k_train"]} | changes))
    assert summary.main(["--start", "try"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_end_says_where_samples_and_accuracy_are_and_shows_it(here, capsys):
    put(here)
    assert summary.main(["try"]) == 1
    assert "runs/try/evaluate/accuracy.csv does not exist; `make repro SCALE=try`" in capsys.readouterr().err
    run_notebook(here, evaluation_file="e.yaml", out="runs/try/evaluate")
    assert summary.main(["try"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[1] == "Samples:  runs/try/evaluate/samples.parquet (10 responses, each with its verdict)"
    assert lines[2].startswith("Accuracy: runs/try/evaluate/accuracy.csv, ")
    assert any(line.startswith("embedded") and " tiny " in line for line in lines)


def test_what_dvc_would_not_run_is_not_timed(here, monkeypatch, capsys):
    put(here)
    monkeypatch.setattr(summary, "_is_done", lambda scale: True)
    assert summary.main(["--start", "try"]) == 0
    assert capsys.readouterr().out == ""
