"""A whole verl job on this machine's CPU, started as a user starts it, and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from local_fixtures import codec

import rlvr
from rlvr.config import Problems, WarmUp
from rlvr.engines.jobs.cpu import EMBEDDED, ENVIRONMENT, overrides
from rlvr.engines.jobs.policy import cluster_folder
from rlvr.engines.jobs.rows import write_dataset
from rlvr.engines.local.policy import Policy, new_policy
from rlvr.engines.local.warmup import warm_up
from rlvr.engines.verl.reward import SETTINGS as REWARD
from rlvr.problems import get_task

# Heads of 16 channels, so that they have to be widened.
SIZES = SimpleNamespace(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)
OPERATIONS = (1, 1)
PROMPTS, SIZE, MINIBATCHES, RESPONSE = 8, 4, 2, 16
LR, BETAS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 0.0, 1.0
#: AdamW's usual 1e-8 makes steps of rounding: responses that cancel leave gradients of that size, which two
#: engines do not share. The others' are a hundred times this and more.
EPS = 1e-5
UNDECIDABLE = 2  # row of that problem
SECONDS = 420  # a job takes about a quarter of it on two cores

JOB: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.norm_adv_by_std_in_grpo": False,
    "algorithm.rollout_correction.bypass_mode": True,  # the ratio against vLLM's own log-probs
    "data.train_batch_size": PROMPTS,
    "data.max_prompt_length": 48,
    "data.max_response_length": RESPONSE,
    "data.shuffle": False,
    "actor_rollout_ref.rollout.n": SIZE,
    "actor_rollout_ref.rollout.max_model_len": 64,
    "actor_rollout_ref.rollout.max_num_batched_tokens": 512,
    "actor_rollout_ref.rollout.max_num_seqs": PROMPTS * SIZE,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": SIZE,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": SIZE,
    "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS // MINIBATCHES,
    # several micro-batches to an update, so that denominators have to be those of the whole mini-batch
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": SIZE,
    "actor_rollout_ref.actor.optim.lr": LR,
    "actor_rollout_ref.actor.optim.betas": list(BETAS),
    "actor_rollout_ref.actor.optim.weight_decay": WEIGHT_DECAY,
    "actor_rollout_ref.actor.optim.override_optimizer_config": {"eps": EPS},
    "actor_rollout_ref.actor.optim.clip_grad": CLIP,
    "actor_rollout_ref.actor.grad_clip": CLIP,
    # with the policy in HF's format, which is for reading only
    "actor_rollout_ref.actor.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
    "actor_rollout_ref.actor.checkpoint.load_contents": ["model", "optimizer", "extra"],
    "trainer.logger": ["console", "file"],
    "trainer.val_before_train": False,
    "trainer.test_freq": -1,
    "trainer.total_epochs": 1000,
    "trainer.save_freq": 1,
    "trainer.resume_mode": "auto",
}


@dataclass(frozen=True)
class Ground:
    """What all jobs share: a folder with the policy and the data."""

    folder: Path

    @property
    def policy(self) -> Path:
        return self.folder / "wide"

    @property
    def train(self) -> Path:
        return self.folder / "train.parquet"

    @property
    def train_undecidable(self) -> Path:
        """The same, but for one problem of the first step whose gold answer is no number."""
        return self.folder / "undecidable.parquet"

    @property
    def validation(self) -> Path:
        return self.folder / "validation.parquet"


def make_ground(folder: Path, **more: Any) -> Ground:
    """A policy that solves some of its problems, and problems. ``more``: settings of the warm-up."""
    words = codec()
    policy = new_policy(SIZES, len(words), words.eos_id, words.pad_id, seed=0)
    problems = Problems(task="word", seed=0, operations=OPERATIONS, validation=8, held_out=8)
    given = {"seed": 0, "lr": 3e-3, "betas": BETAS, "batch_size": 64, "max_steps": 260, "cooldown_steps": 0,
             "check_every": 1000, "target_pass1": 0.99}  # fmt: skip
    config = WarmUp(**given | more)
    policy = warm_up(policy, words, problems, config, RESPONSE).policy
    policy.save_pretrained(folder / "narrow")
    words.save(folder / "narrow")
    ground = Ground(folder)
    assert cluster_folder(folder / "narrow", ground.policy) == ground.policy
    assert Policy.from_pretrained(ground.policy).shape.head_dim == 32
    task = get_task("word")
    by_id = {p.id: p for p in task.generate("train", 80, 1, OPERATIONS)}
    train = list(by_id.values())[: 6 * PROMPTS]
    write_dataset(ground.train, train, "train")
    train[UNDECIDABLE] = replace(train[UNDECIDABLE], answer="none")
    write_dataset(ground.train_undecidable, train, "train")
    write_dataset(ground.validation, task.generate("validation", 8, 0, OPERATIONS), "validation")
    return ground


@dataclass
class Job:
    """One run in a folder of its own; ``settings`` are verl's, beyond those of all jobs."""

    ground: Ground
    folder: Path
    loss_mode: str
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def command(self) -> list[str]:
        given = {
            "data.train_files": self.ground.train,
            "data.val_files": self.ground.validation,
            "actor_rollout_ref.model.path": self.ground.policy,
            "actor_rollout_ref.actor.policy_loss.loss_mode": self.loss_mode,
            "trainer.total_training_steps": self.steps,
            "trainer.default_local_dir": self.checkpoints,
            "trainer.rollout_data_dir": self.folder / "rollouts",
            "trainer.v1.sync_cpu": {"batches_dir": self.folder / "batches", "batches_steps": 100},
        }
        words = overrides(EMBEDDED, REWARD, JOB, given, self.settings)
        words.append(f"+ray_kwargs.ray_init._temp_dir={self.ray}")
        return [sys.executable, "-m", "verl.trainer.main_ppo", *words]

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """By step, as verl's file logger wrote them; several runs in one folder follow each other."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        return {row["step"]: row["data"] for row in rows}

    @property
    def announced(self) -> int:
        """The step of the checkpoint that a resume takes."""
        path = self.checkpoints / "latest_checkpointed_iteration.txt"
        return int(path.read_text()) if path.exists() else 0

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen]:
        """The job's process, in a process group of its own; at the end everything that it started is gone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Unix sockets have short names, so Ray's folder cannot lie in pytest's
        self.ray = Path(tempfile.mkdtemp(prefix="rlvr-ray-", dir="/tmp"))
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "VERL_"))}
        environment |= ENVIRONMENT
        environment["VERL_FILE_LOGGER_PATH"] = str(self.folder / "metrics.jsonl.part")
        environment["PYTHONPATH"] = str(Path(rlvr.__file__).parents[1])
        with open(self.folder / "log", "ab") as log:
            process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            end_processes_of(self.ray)
            shutil.rmtree(self.ray, ignore_errors=True)
            part = self.folder / "metrics.jsonl.part"
            if part.exists():  # verl starts its file anew in every run; a killed one may end within a line
                whole = [line for line in part.read_text().splitlines(keepends=True) if line.endswith("\n")]
                with open(self.folder / "metrics.jsonl", "a") as out:
                    out.writelines(whole)
                part.unlink()

    def run(self) -> None:
        """Run to the end; a job that fails or hangs fails the test, with the end of its log."""
        with self.running() as process:
            try:
                status = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                status = f"no end after {SECONDS} s"
        assert status == 0, f"status {status}\n{self.log[-6000:]}"

    def run_until(self, near: Callable[[], bool], now: Callable[[], bool]) -> None:
        """Run until ``near`` and then ``now``, and kill every process of the job at that instant.

        From ``near`` on the job advances by milliseconds and stands still between them, so that an instant
        is not missed on a busy machine: a checkpoint takes 20 ms to write.
        """
        said = "Training Progress"
        before = self.log.count(said)
        with self.running() as process:
            end = time.monotonic() + SECONDS

            def wait(condition: Callable[[], bool], advance: Callable[[], None]) -> None:
                while not condition():
                    assert process.poll() is None, f"ended by itself\n{self.log[-6000:]}"
                    assert time.monotonic() < end, f"not reached\n{self.log[-6000:]}"
                    advance()

            wait(lambda: self.log.count(said) > before, lambda: time.sleep(0.2))
            everything = processes_of(self.ray)  # all are there now, and looking them up takes a while
            wait(near, lambda: time.sleep(0.001))

            def advance() -> None:
                send(everything, signal.SIGCONT)
                time.sleep(0.002)
                send(everything, signal.SIGSTOP)

            wait(now, advance)
            send(everything, signal.SIGKILL)


def processes_of(ray: Path) -> list[int]:
    """Processes that belong to the Ray instance with this folder: those that name it, and what they started.

    Ray's workers write a title over their command line and environment, and no longer name it.
    """
    found: set[int] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and str(ray) in " ".join(process.cmdline()):
                found.update(p.pid for p in [process, *process.children(recursive=True)])
    return sorted(found)


def end_processes_of(ray: Path, patience: float = 30.0) -> None:
    """Wait until they ended by themselves, then kill what is left."""
    end = time.monotonic() + patience
    while processes_of(ray) and time.monotonic() < end:
        time.sleep(0.2)
    send(processes_of(ray), signal.SIGKILL)


def send(processes: Iterable[int], what: signal.Signals) -> None:
    for number in processes:
        with suppress(ProcessLookupError):
            os.kill(number, what)
