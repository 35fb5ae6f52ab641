"""What notebooks import: start, done, progress, report, run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from notebook_factory import environment, repository

from rlvr import notebook
from rlvr.notebook import COMPLETION_MARKER, PROGRESS_VARIABLE, done, progress, report, repository_root, run


@pytest.fixture
def messages(tmp_path, monkeypatch):
    """The file that progress goes to; call it for its lines."""
    path = tmp_path / "messages"
    path.touch()
    monkeypatch.setenv(PROGRESS_VARIABLE, str(path))
    monkeypatch.setattr(notebook, "_last_report", {})

    def lines():
        return [json.loads(line) for line in path.read_text().splitlines()]

    return lines


def test_root_is_the_nearest_folder_with_the_graph_itself(tmp_path):
    root = repository(tmp_path / "repo")
    scale = root / "pipelines/scales/smoke"
    scale.mkdir(parents=True)
    (scale / "dvc.yaml").symlink_to("../../../dvc.yaml")  # a scale's link is not a repository
    assert repository_root(scale) == root.resolve()
    assert repository_root(root) == root.resolve()
    with pytest.raises(
        FileNotFoundError, match=r"no dvc\.yaml in .*open notebooks from within the repository"
    ):
        repository_root(tmp_path)


@pytest.mark.slow
def test_start_goes_to_the_root_quietly_and_fixes_what_is_shown(tmp_path):
    root = repository(tmp_path / "repo")
    deep = root / "notebooks/nfpo"
    deep.mkdir(parents=True)
    code = (
        "import sys\nfrom tqdm import tqdm\nfrom rlvr.notebook import start\nstart()\nstart()\n"
        "assert not list(tqdm([])), 1\n[None for _ in tqdm(range(3))]\n"
        "import os, numpy as np, pandas as pd, matplotlib as mpl\n"
        "print(os.getcwd(), np.array([1 / 3]), mpl.rcParams['svg.hashsalt'], os.environ['TQDM_DISABLE'])\n"
        "print(pd.Series([1 / 3]).to_string())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=deep, env=environment(), capture_output=True, text=True, check=True
    )
    assert result.stdout == f"{root.resolve()} [0.3333] rlvr 1\n0    0.3333\n"
    assert result.stderr == ""


def test_done_prints_the_marker_on_its_own_line(capsys):
    done()
    assert capsys.readouterr().out == COMPLETION_MARKER + "\n"


def test_progress_is_written_beside_the_notebook(messages, capsys):
    assert list(progress([10, 20, 30], "train")) == [10, 20, 30]
    first, last = messages()[0], messages()[-1]
    assert first == {"done": 0, "total": 3, "label": "train", "pid": os.getpid()}
    assert last["done"] == 3
    assert capsys.readouterr() == ("", "")


def test_progress_without_a_length_and_of_nothing(messages):
    assert list(progress((i for i in range(3)), "stream")) == [0, 1, 2]
    assert (messages()[-1]["done"], messages()[-1]["total"]) == (3, None)
    assert list(progress([], "none")) == []


def test_progress_is_silent_when_nobody_asked(monkeypatch, capsys):
    monkeypatch.delenv(PROGRESS_VARIABLE, raising=False)
    assert list(progress(range(3))) == [0, 1, 2]
    report(1, 3)
    assert capsys.readouterr() == ("", "")


def test_reports_are_few_but_the_last_always_comes(messages):
    for step in range(1, 1001):
        report(step, 1000, "train")
    assert len(messages()) < 50
    assert messages()[-1]["done"] == 1000


def test_reporting_never_fails_the_work(monkeypatch, tmp_path):
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "gone" / "messages"))
    report(3, 3, "train")
    assert not (tmp_path / "gone").exists()


def test_run_returns_what_the_program_printed(tmp_path):
    assert run("echo 'two words'") == "two words\n"
    assert run(["sh", "-c", "pwd"], cwd=tmp_path) == f"{Path(tmp_path).resolve()}\n"


def test_run_fails_when_the_program_does():
    with pytest.raises(RuntimeError) as caught:
        run(["sh", "-c", "seq 1 30; echo bad luck >&2; exit 3"])
    first, *tail = str(caught.value).splitlines()
    assert first.endswith("exited with code 3:")
    assert tail == [*map(str, range(22, 31)), "bad luck"]
    with pytest.raises(FileNotFoundError):
        run("no-such-program-anywhere")


@pytest.mark.parametrize("option", [{"check": False}, {"shell": True}])
def test_run_cannot_be_made_to_ignore_failures(option):
    with pytest.raises(ValueError, match="is not allowed"):
        run("false", **option)
