"""No GPU-hours by accident: what is a named run, what a whole graph, and who refuses it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from job_fixtures import ROOT, experiments

from pipelines import job_graph
from pipelines.job_confirmation import check_whole_graph, names_runs, open_runs
from rlvr.engines.jobs.command import folder
from rlvr.engines.jobs.plan import plan

RUN = "nfpo-0.6b-nfpo-0"
ONE_GPU = "pipelines/scales/one_gpu/dvc.yaml"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("repro pipelines/scales/paper/dvc.yaml:train@nfpo-1.7b-nfpo-0", True),
        ("repro train@nfpo-1.7b-nfpo-0 evaluate@nfpo-1.7b-dppo-0", True),
        ("repro -f -s pipelines/scales/paper/dvc.yaml:train@nfpo-1.7b-nfpo-0", True),
        ("repro pipelines/scales/paper/dvc.yaml", False),
        ("repro", False),
        ("", False),
        ("repro -P", False),
        ("repro pipelines/scales/paper/dvc.yaml:train", False),
        ("repro train@nfpo-1.7b-nfpo-0 pipelines/scales/paper/dvc.yaml", False),
        ("repro -p train@nfpo-1.7b-nfpo-0", False),
        ("repro --pipeline train@nfpo-1.7b-nfpo-0", False),
        ("repro --downstream train@nfpo-1.7b-nfpo-0", False),
        ("repro --glob train@nfpo-1.7b-*", False),
        ("repro train@nfpo-1.7b-*", False),
        ("exp run train@nfpo-1.7b-nfpo-0", False),
        ("freeze train@nfpo-1.7b-nfpo-0", False),
    ],
)
def test_which_words_name_runs(words, named):
    assert names_runs(words.split()) is named


@pytest.mark.slow
@pytest.mark.parametrize("started", ["dvc", "by hand"])
def test_a_training_sees_what_dvc_was_asked_for(tmp_path, monkeypatch, started):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'lib'}")
    look = "from pipelines.job_confirmation import words_of_dvc; print(words_of_dvc())"
    if started == "by hand":
        seen = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
        assert seen.strip() == "None"
        return
    Path("dvc.yaml").write_text(
        f"stages:\n  look:\n    cmd: {sys.executable} -c '{look}' > seen\n    outs: [seen]\n"
    )
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q", "dvc.yaml:look"], check=True)
    assert Path("seen").read_text().strip() == "['repro', '-q', 'dvc.yaml:look']"


def save_last_checkpoint(name, seed, root):
    experiment = experiments().get(name)
    checkpoints = Path(folder(experiment, seed, str(root))) / "checkpoints"
    steps = experiment.update.steps
    (checkpoints / f"global_step_{steps}" / "actor").mkdir(parents=True)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(steps))


def test_open_runs_are_those_without_their_last_checkpoint(tmp_path):
    file = experiments()
    every = open_runs(file, tmp_path)
    assert len(every) == 141 and every[RUN] == plan(file.get("nfpo-0.6b-nfpo")).gpu_hours[1]
    save_last_checkpoint("nfpo-0.6b-nfpo", 0, tmp_path)
    assert set(every) - set(open_runs(file, tmp_path)) == {RUN}


def test_a_whole_graph_wants_the_hours_of_the_plan(tmp_path):
    file = experiments()
    total = sum(3 * plan(file.get(name)).gpu_hours[1] for name in file.names if not file.get(name).needs)
    assert 1416 < total < 1417
    with pytest.raises(ValueError) as refused:
        check_whole_graph(file, {}, tmp_path)
    lines = str(refused.value).splitlines()
    assert (
        lines[0] == "the graph of one_gpu launches 141 trainings, up to 1,417 GPU-hours; nothing was launched"
    )
    assert [line.split(":", 1)[1].strip() for line in lines[1:]] == [
        "make plan SCALE=one_gpu",
        f"dvc repro {ONE_GPU}:train@nfpo-0.6b-grpo-0",
        "the same with merge@, evaluate@",
        "make repro SCALE=one_gpu CONFIRM_GPU_HOURS=1417",
    ]
    for given in ("1416", "0", "-1", " ", "nan"):
        with pytest.raises(ValueError, match="nothing was launched"):
            check_whole_graph(file, {"CONFIRM_GPU_HOURS": given}, tmp_path)
    with pytest.raises(ValueError, match="CONFIRM_GPU_HOURS='yes': allowed is a number"):
        check_whole_graph(file, {"CONFIRM_GPU_HOURS": "yes"}, tmp_path)
    assert "confirmed by CONFIRM_GPU_HOURS=1417" in check_whole_graph(
        file, {"CONFIRM_GPU_HOURS": "1417"}, tmp_path
    )
    for seed in (0, 1, 2):
        save_last_checkpoint("nfpo-0.6b-nfpo", seed, tmp_path)
    with pytest.raises(ValueError, match=r"launches 138 trainings, up to 1,379 GPU-hours"):
        check_whole_graph(file, {}, tmp_path)


def test_the_limits_of_the_file_cannot_be_confirmed_away(tmp_path):
    with pytest.raises(ValueError, match="not as a whole") as refused:
        check_whole_graph(experiments("paper"), {"CONFIRM_GPU_HOURS": "1e9"}, tmp_path)
    assert "ibpo-32b-gspo: up to 8,608 GPU-hours a seed" in str(refused.value)
    assert "max_gpu_hours.total is 60,000" in str(refused.value)
    assert "make repro" not in str(refused.value)


@pytest.mark.parametrize("words", [["repro", "-P"], ["repro", ONE_GPU], []])
def test_a_training_of_a_whole_graph_does_not_start_unconfirmed(tmp_path, monkeypatch, words):
    monkeypatch.setattr(job_graph, "words_of_dvc", lambda: words)
    monkeypatch.delenv("CONFIRM_GPU_HOURS", raising=False)
    file = experiments()
    with pytest.raises(ValueError, match="nothing was launched"):
        job_graph.check_run(file, file.get("nfpo-0.6b-nfpo"), 0, tmp_path)


@pytest.mark.parametrize("words", [None, ["repro", f"{ONE_GPU}:train@{RUN}"]])
def test_a_named_training_may_start(tmp_path, monkeypatch, words):
    monkeypatch.setattr(job_graph, "words_of_dvc", lambda: words)
    file = experiments()
    job_graph.check_run(file, file.get("nfpo-0.6b-nfpo"), 0, tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ibpo-32b-gspo", "up to 8,608 GPU-hours a seed, max_gpu_hours.experiment is 1,100"),
        ("ibpo-next-score", "cannot be run by verl yet"),
    ],
)
def test_what_may_not_start_says_why(tmp_path, name, message):
    file = experiments("paper")
    with pytest.raises(ValueError, match=message):
        job_graph.check_run(file, file.get(name), 0, tmp_path)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("hours", "launched"), [(None, False), ("1416", False), ("1417", True)])
def test_make_repro_refuses(tmp_path, monkeypatch, hours, launched):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "pipelines").symlink_to(ROOT / "pipelines")
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "lib"} exec {sys.executable} "$@"\n')
    (programs / "dvc").write_text('#!/bin/sh\necho "$@" > launched\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    (tmp_path / ".venv/.ready").touch()
    monkeypatch.delenv("CONFIRM_GPU_HOURS", raising=False)
    given = [f"CONFIRM_GPU_HOURS={hours}"] if hours else []
    done = subprocess.run(
        ["make", "-C", tmp_path, "repro", "SCALE=one_gpu", *given], capture_output=True, text=True
    )
    assert (tmp_path / "launched").exists() is launched
    assert ("nothing was launched" in done.stderr) is not launched
    if not launched:
        assert done.returncode and f"dvc repro {ONE_GPU}:train@nfpo-0.6b-grpo-0" in done.stderr
