"""What the training notebook does with engine verl: a Ray of this machine, a job through it, the run's files.

The process that submitted is killed after the first step; a second one attaches to the job, which went on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: make env-cluster")
pytest.importorskip("vllm", reason="vLLM for CPU is not installed: make env-cluster")

from local_fixtures import codec
from ruamel.yaml import YAML

import rlvr
from rlvr.analysis.mpo_ratios import load_updates
from rlvr.analysis.runs import load_metrics, load_records, token_counts
from rlvr.analysis.study import of_scale
from rlvr.config import Scale, load_scale, load_yaml
from rlvr.engines.jobs.local_ray import NOTE, _processes, stop
from rlvr.engines.local.policy import Policy, new_policy
from rlvr.engines.training import training_of
from rlvr.problems.benchmarks.catalogue import project_root
from rlvr.storage import read_json

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
STEPS = 4
RUN = """
from rlvr.engines.training import training_of
training_of("params.yaml", "nfpo", 0).run("runs/cluster/train/nfpo/seed0", "scratch", print)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as a clone has it: a scale file and a base model."""
    folder = tmp_path_factory.mktemp("clone")
    raw = load_yaml(project_root() / "pipelines" / "scales" / "cluster" / "params.yaml")
    raw["train"] |= {"steps": STEPS, "prompts_per_step": 8, "group_size": 4, "minibatches": 2}
    raw["train"] |= {"records_per_step": 4, "checkpoint_every": 1, "eval_every": 2, "eval_problems": 8}
    raw |= {"seeds": [0], "arms": ["nfpo"]}
    YAML().dump(raw, folder / "params.yaml")
    scale, words = load_scale(folder / "params.yaml"), codec()
    base = folder / "runs" / "cluster" / "base" / "model"
    new_policy(scale.model, len(words), words.eos_id, words.pad_id, seed=0).save_pretrained(base)
    words.save(base)
    return folder


@pytest.fixture(scope="module")
def killed(folder):
    """The log of a process that was killed once the job had made a step."""
    environment = os.environ | {"PYTHONPATH": str(Path(rlvr.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
    with open(folder / "first.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN], cwd=folder, env=environment, stdout=log, stderr=log
        )
    end = time.monotonic() + 420
    while f"1 {STEPS}" not in (text := (folder / "first.log").read_text(errors="replace")):
        assert process.poll() is None and time.monotonic() < end, text[-3000:]
        time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    yield text
    stop(folder / "runs" / "cluster")  # a Ray that a failed test left


@pytest.fixture(scope="module")
def scale(folder, killed) -> Scale:
    """Of the finished run; the second process is this one."""
    note = folder / "runs" / "cluster" / NOTE
    assert note.is_file()  # Ray lives on, and its job
    temporary = Path(read_json(note)["temporary"])
    before, said = Path.cwd(), []
    os.chdir(folder)
    try:
        training = training_of("params.yaml", "nfpo", 0)
        job = training.job(0)[0]
        first = job.state.last["id"]
        training.run(
            "runs/cluster/train/nfpo/seed0", "scratch", lambda done, total: said.append((done, total))
        )
        assert [attempt["id"] for attempt in training.job(0)[0].state.attempts] == [first]
    finally:
        os.chdir(before)
    assert said[-1] == (STEPS, STEPS)
    assert not note.exists() and not _processes(temporary) and not temporary.exists()
    return load_scale(folder / "params.yaml")


@pytest.fixture
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_analyses_read_it_as_a_run_of_the_local_engine(scale, inside):
    metrics = load_metrics(of_scale(scale), ["nfpo"])
    assert metrics["step"].tolist() == list(range(STEPS + 1))
    for name in ("reward", "entropy", "grad_norm", "kl", "stopped_share", "response_length", "truncated"):
        assert metrics[name].iloc[:STEPS].notna().all(), name
    assert metrics["val_pass1"].notna().tolist() == [True, False, True, False, True]
    assert (
        metrics["tokens_generated"].iloc[STEPS - 1]
        == token_counts(of_scale(scale), ["nfpo"])["tokens_generated"].item()
    )
    records = load_records(of_scale(scale), "nfpo", 0)
    assert records.groupby(["step", "minibatch"])["response"].nunique().tolist() == [2] * 2 * STEPS
    on_policy = records[~records["off_policy"]]
    assert (
        on_policy["log_prob"] - on_policy["old_log_prob"]
    ).abs().max() < 5e-3  # vLLM's against the trainer's
    assert records.loc[records["off_policy"], "trace"].std() > 0


def test_every_update_has_a_row(scale, inside):
    """Of all tokens; what a step says is the mean, or the largest, of what its updates say."""
    updates = load_updates(scale, ["nfpo"])
    assert updates[["step", "minibatch"]].to_numpy().tolist() == [
        [s, m] for s in range(STEPS) for m in (0, 1)
    ]
    steps = load_metrics(of_scale(scale), ["nfpo"]).iloc[:STEPS]
    generated = steps["tokens_generated"].diff().fillna(steps["tokens_generated"])
    assert updates.groupby("step")["tokens"].sum().tolist() == generated.tolist()
    by_step = updates.groupby("step")["grad_norm"]
    assert by_step.mean().tolist() == pytest.approx(steps["grad_norm"].tolist(), rel=1e-5)
    assert by_step.max().tolist() == pytest.approx(steps["grad_norm_max"].tolist(), rel=1e-5)
    assert (updates.loc[updates["minibatch"] == 1, "ratio_variance"] > 0).all()
    assert updates["masked_fraction"].between(0, 1).all() and updates["entropy"].gt(0).all()


def test_the_trained_policy_is_there_for_evaluation(scale, inside):
    final = Policy.from_pretrained("runs/cluster/train/nfpo/seed0/lag0/final")
    checkpoint = read_json("runs/cluster/train/nfpo/seed0/lag0/summary.json")["checkpoint"]
    assert (final.theta == Policy.from_pretrained(Path(checkpoint) / "huggingface").theta).all()


def test_the_log_is_kept(scale, inside):
    text = Path("runs/cluster/jobs/nfpo-s0/log-1.txt").read_text()
    assert all(f"step:{step} " in text for step in range(1, STEPS + 1))


def test_a_done_job_needs_no_ray(scale, inside, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    training_of("params.yaml", "nfpo", 0).run(tmp_path / "again", "scratch")
    assert pd.read_parquet(tmp_path / "again" / "lag0" / "metrics.parquet")["reward"].notna().all()
