"""Runs of a setting of experiments as training and evaluation leave them: small, with effects put in."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
from notebook_factory import PROJECT, repository
from ruamel.yaml import YAML
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pipelines.stage import main
from rlvr.config import load_yaml
from rlvr.engines.jobs.collect import metrics_frame, with_trace, write_run
from rlvr.engines.jobs.evaluation import model_folder
from rlvr.engines.jobs.experiments import Experiment, Experiments, load_experiments
from rlvr.evaluation.samples import conform
from rlvr.reporting.bundle import load_bundles

SCALE, SETTING = "one_gpu", "nfpo-0.6b"
FILE = f"pipelines/scales/{SCALE}/experiments.yaml"
SEEDS = (0, 1)
ABLATIONS = ("nfpo_release", "nfpo_n2", "nfpo_n8", "nfpo_n16", "nfpo_kl", "nfpo_recompute_trace", "fipo")
RUN = ("grpo", "dppo", "nfpo", *ABLATIONS)
STEPS, MINIBATCHES, TOKENS = 8, 4, 24
PROBLEMS = {"amc23": 5, "math500": 12, "minerva_math": 7}
#: Chance to solve a problem of middle difficulty; the others lie around it.
SKILL = {"grpo": 0.30, "dppo": 0.40, "nfpo": 0.60, "nfpo_release": 0.50, "nfpo_kl": 0.45, "fipo": 0.35}
TEXT = (
    "So we let x = 3 and y = 4 . Therefore the sum is 7 because we need two terms . However , we can check "
    "the answer : first find the root , then use the equation . "
    "Thus \\frac { 1 } { 2 } is in the \\boxed { 7 } ."
)


def small_repository(
    folder: Path,
    change: Callable[[dict, dict], None] | None = None,
    name: str = SETTING,
    run: Iterable[str] = RUN,
) -> Experiments:
    """A repository with the paper's notebooks and a file of experiments, whose ``change(setting, file)`` is
    made."""
    root = repository(folder)
    raw = load_yaml(PROJECT / FILE)
    setting = raw["settings"][name]
    paper = setting["paper"]
    shutil.copytree(PROJECT / "notebooks" / paper, root / "notebooks" / paper)
    raw["settings"] = {SETTING: raw["settings"][SETTING], name: setting}
    setting["run"] = list(run)
    for one in raw["settings"].values():
        one["seeds"]["value"] = list(SEEDS)
    raw["analysis"][paper]["report"]["bootstrap"]["value"] = 100
    if change:
        change(setting, raw)
    text = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.dump(raw, text)
    (root / FILE).parent.mkdir(parents=True)
    (root / FILE).write_text(text.getvalue())
    return load_experiments(root / FILE)


def write_runs(
    file: Experiments,
    root: Path,
    arms: Iterable[str] = RUN,
    seeds: Iterable[int] = SEEDS,
    records: bool = True,
) -> None:
    """Training and evaluation of every arm that verl can run; the tokenizer where `merge` leaves one."""
    tokenizer = small_tokenizer()
    first = file.get(f"{SETTING}-nfpo")
    tokenizer.save_pretrained(root / model_folder(first, file.settings[SETTING].seeds[0]))
    for arm in arms:
        experiment = file.get(f"{SETTING}-{arm}")
        if experiment.needs:
            continue
        for seed in seeds:
            write_training(experiment, seed, root, tokenizer if records else None)
            write_evaluation(experiment, seed, root)


def run_stage(
    root: Path, notebook: str, setting: str, monkeypatch: pytest.MonkeyPatch, *extra: str
) -> tuple[int, Path]:
    """(exit code, folder) of the stage ``<paper>/<name>``, called as the graph calls it."""
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", f"{PROJECT / 'lib'}{os.pathsep}{PROJECT}")
    monkeypatch.delenv("DVC_STAGE", raising=False)
    paper, name = notebook.split("/")
    out = f"runs/{SCALE}/{paper}/{setting}/{name}"
    words = [f"notebooks/{notebook}.ipynb", "--out", out, "-p", "params_file", FILE, "-p", "setting", setting]
    return main([*words, *extra]), root / out


def render(
    root: Path, notebook: str, setting: str, monkeypatch: pytest.MonkeyPatch, *extra: str
) -> tuple[dict, dict, str]:
    """(bundles, claims, what the notebook printed) of a stage that must succeed."""
    status, out = run_stage(root, notebook, setting, monkeypatch, *extra)
    assert status == 0
    bundles, claims = load_bundles([out])
    assert all(bundle.meta.scale == f"{SCALE}/{setting}" for bundle in bundles.values())
    assert all(set(bundle.meta.seeds) <= set(SEEDS) for bundle in bundles.values())
    (book,) = out.glob("*.ipynb")
    outputs = [o for c in nbformat.read(book, as_version=4).cells for o in c.get("outputs", [])]
    return bundles, claims, "".join(o.text for o in outputs if o.output_type == "stream")


@contextmanager
def without(path: Path) -> Iterator[None]:
    """As if this file or folder of the runs were not there."""
    moved = path.rename(path.with_name(f"{path.name}.away"))
    try:
        yield
    finally:
        moved.rename(path)


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, as those of Qwen and Llama 3, with the words of :data:`TEXT` as tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, show_progress=False, special_tokens=["<|im_end|>"], initial_alphabet=alphabet
    )
    core.train_from_iterator([TEXT] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")


def run_folder(root: Path, arm: str, seed: int, setting: str = SETTING) -> Path:
    return root / "runs" / SCALE / "train" / f"{setting}-{arm}" / f"seed{seed}" / "lag0"


def samples_file(root: Path, arm: str, seed: int, setting: str = SETTING) -> Path:
    return root / "runs" / SCALE / "evaluate" / f"{setting}-{arm}" / f"seed{seed}" / "samples.parquet"


def write_training(experiment: Experiment, seed: int, root: Path, tokenizer: Any = None) -> None:
    """As :func:`rlvr.engines.jobs.collect.collect` does, from verl's names of metrics."""
    arm = experiment.name.removeprefix(f"{SETTING}-")
    rng = np.random.default_rng([seed, *arm.encode()])
    share = "actor/clip_fraction" if experiment.objective in ("grpo", "fipo") else "actor/masked_fraction"
    by_step = {
        step: {
            "critic/score/mean": SKILL.get(arm, 0.5) * step / STEPS + rng.normal(0, 0.01),
            "rlvr/response_tokens": 5000.0,
            "actor/grad_norm": 0.2 + 0.01 * rng.random(),
            "actor/token_entropy": 0.5 - 0.02 * step,
            "actor/kl": 0.001 * step,
            share: 0.01 * rng.random(),
            "response_length/mean": 300.0 + step,
        }
        for step in range(1, STEPS + 1)
    }
    for step in (0, 4, STEPS):
        by_step.setdefault(step, {})["val-core/math500/acc/mean@4"] = 0.1 + 0.02 * step
    write_run(
        run_folder(root, arm, seed),
        {"engine": "verl", "seed": seed},
        metrics_frame(by_step, STEPS),
        None if tokenizer is None else with_trace(token_records(rng, tokenizer), _trace(experiment)),
        {
            "reached_step": STEPS,
            "requested_steps": STEPS,
            "tokens_generated": 5000.0 * STEPS,
            "tokens_trained": 5000.0 * STEPS,
            "responses_verified": 256 * STEPS,
            "checkpoint": "elsewhere",
        },
    )


def _trace(experiment: Experiment) -> dict[str, Any]:
    kept = ("horizon", "trace_clip", "ratio_clip")
    return {"horizon": 4} | {k: v for k, v in experiment.parameters.items() if k in kept}


def token_records(rng: np.random.Generator, tokenizer: Any) -> pd.DataFrame:
    """One response per mini-batch; log ratios follow each other, and more so at reasoning words."""
    ids = tokenizer(TEXT)["input_ids"]
    rows = []
    for step in range(STEPS):
        for minibatch in range(MINIBATCHES):
            start = int(rng.integers(len(ids)))
            tokens = [*(ids[(start + i) % len(ids)] for i in range(TOKENS - 1)), tokenizer.eos_token_id]
            noise = rng.normal(0, 0.02 * (minibatch + 1), TOKENS)
            old = -rng.random(TOKENS) - 0.1
            rows.append(
                pd.DataFrame(
                    {
                        "step": step,
                        "minibatch": minibatch,
                        "response": step * MINIBATCHES + minibatch,
                        "position": range(TOKENS),
                        "token": tokens,
                        "log_prob": (old + 0.5 * noise + 0.5 * np.roll(noise, 1)).astype(np.float32),
                        "old_log_prob": old.astype(np.float32),
                        "advantage": np.float32(1 - 2 * (minibatch % 2)),
                        "mask": np.int8(1),
                    }
                )
            )
    return pd.concat(rows, ignore_index=True)


def write_evaluation(experiment: Experiment, seed: int, root: Path) -> None:
    """As the evaluation notebook does; ids of problems repeat between benchmarks."""
    setting, _, arm = experiment.name.rpartition("-")
    skill = SKILL.get(arm, 0.5) + 0.01 * seed
    write_samples(samples_file(root, arm, seed, setting), experiment, [7, seed, *arm.encode()], skill)


def write_samples(path: Path, experiment: Experiment, stream: list[int], skill: float) -> None:
    """Graded samples of one policy; ``stream``: seed of its random numbers."""
    rng = np.random.default_rng(stream)
    rows = [
        {
            "problem": str(i),
            "benchmark": benchmark,
            "sample": sample,
            "correct": bool(rng.random() < skill + 0.3 * (i % 3 - 1)),
        }
        for benchmark, count in PROBLEMS.items()
        for i in range(count)
        for sample in range(experiment.evaluation.samples)
    ]
    frame = pd.DataFrame(rows).assign(
        seed=0, prompt="?", text="!", finish_reason="stop", finished=True, tokens=1, prompt_tokens=1,
        engine="vllm", model="/".join(path.parts[-3:-1]), extracted="!", reason="right", grader="rlvr",
    )  # fmt: skip
    verdict = frame["correct"]
    path.parent.mkdir(parents=True, exist_ok=True)
    conform(frame).assign(correct=verdict.astype("boolean")).to_parquet(path, index=False)
