"""Runs of MPO's setting of experiments as its jobs and evaluations leave them, with effects put in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from setting_fixtures import SCALE, SEEDS, run_folder, samples_file, write_samples

from rlvr.engines.jobs.collect import metrics_frame, write_run
from rlvr.engines.jobs.experiments import Experiment, Experiments
from rlvr.engines.jobs.updates import NAME, read_updates

SETTING = "mpo-0.6b"
ARMS = ("ppo", "grpo", "dapo", "mpo")
ABLATIONS = ("mpo_s10", "mpo_s30", "mpo_s40", "mpo_k2", "mpo_k3", "mpo_d10", "mpo_grpo")
RUN = (*ARMS, *ABLATIONS, "mpo_k2_heads", "mpo_k3_heads")
STEPS, UPDATES, TOKENS, RANKS = 10, 4, 200, 2
#: Chance to solve a problem of middle difficulty.
SKILL = {"base": 0.25, "ppo": 0.45, "grpo": 0.4, "dapo": 0.42, "mpo": 0.75, "mpo_s40": 0.3, "mpo_grpo": 0.6}
SECONDS = {"ppo": 20.0, "grpo": 16.0, "dapo": 30.0, "mpo_k2": 21.0, "mpo_k3": 22.0}  # of a step; others 24
CLIPPED = 0.02  # of PPO's tokens


def few_steps(setting: dict[str, Any], _: Any = None) -> None:
    """As long a training as :func:`write_training` makes up."""
    setting["update"]["steps"] = {"value": STEPS, "source": "choice: made up"}


def write_runs(
    file: Experiments,
    root: Path,
    arms: Iterable[str],
    seeds: Iterable[int] = SEEDS,
    updates: bool = True,
) -> None:
    """Training and evaluation of every arm that verl can run, and the untrained model's evaluation."""
    experiments = [file.get(f"{SETTING}-{arm}") for arm in arms]
    for experiment in (one for one in experiments if not one.needs):
        arm = experiment.name.rpartition("-")[2]
        for seed in seeds:
            write_training(experiment, arm, seed, root, updates)
            path = samples_file(root, arm, seed, SETTING)
            write_samples(path, experiment, [7, seed, *arm.encode()], SKILL.get(arm, 0.5) + 0.01 * seed)
    base = root / "runs" / SCALE / "evaluate" / f"{SETTING}-base" / "samples.parquet"
    write_samples(base, experiments[0], [7], SKILL["base"])


def write_training(experiment: Experiment, arm: str, seed: int, root: Path, updates: bool = True) -> None:
    """As ``collect`` makes it of verl's metrics and of the files that the workers left."""
    rng = np.random.default_rng([seed, *arm.encode()])
    seconds = SECONDS.get(arm, 24.0)
    by_step = {
        step: {
            "critic/score/mean": SKILL.get(arm, 0.5) * step / STEPS,
            "rlvr/response_tokens": float(UPDATES * TOKENS),
            "actor/loss": -0.01,
            "actor/grad_norm_max": 0.9,
            "timing_s/step": seconds * (5 if step == 1 else 1)
            + rng.normal(0, 0.1),  # the first starts engines
            "actor/perf/max_memory_allocated_gb": (30.0 if experiment.critic else 20.0) + 0.1 * step,
        }
        | ({"critic/vf_explained_var": 0.4, "critic/vf_clipfrac": 0.01} if experiment.critic else {})
        for step in range(1, STEPS + 1)
    }
    job = root / "jobs" / f"{experiment.name}-s{seed}" / "updates"
    if updates:
        write_updates(job, experiment, rng)
    metrics = metrics_frame(by_step, STEPS)
    tokens = float(metrics["tokens_generated"].iloc[-1])
    write_run(
        run_folder(root, arm, seed, SETTING),
        {"engine": "verl", "seed": seed, "experiment": experiment.model_dump(mode="json")},
        metrics,
        None,
        {
            "reached_step": STEPS,
            "requested_steps": STEPS,
            "tokens_generated": tokens,
            "tokens_trained": tokens,
            "responses_verified": 256 * STEPS,
            "checkpoint": "elsewhere",
        },
        updates=read_updates(job, STEPS) if updates else None,
    )


def write_updates(folder: Path, experiment: Experiment, rng: np.random.Generator) -> None:
    """Files of two ranks, with twice as many tokens on the second."""
    folder.mkdir(parents=True)
    for step in range(1, STEPS + 1):
        rows: list[list[dict[str, Any]]] = [[], []]
        for number in range(UPDATES):
            for rank, row in enumerate(_update(experiment, rng, step, number)):
                rows[rank].append(row)
        for rank in range(RANKS):
            text = json.dumps({"step": step, "rank": rank, "ranks": RANKS, "updates": rows[rank]})
            (folder / NAME.format(step=step, rank=rank)).write_text(text)


def _update(experiment: Experiment, rng: np.random.Generator, step: int, number: int) -> list[dict[str, Any]]:
    """Of both ranks. A weight S leaves 1 - S of the token's log ratio, and the modules add a tenth of the
    variance; the gradient's norm follows the rank of the second token."""
    drift = 0.0 if number == 0 else 0.01 * number * np.exp(rng.normal(0, 0.005))  # of the first ratios are 1
    left = 1 - experiment.parameters.get("mtp_weight", 0.0)
    blocks = experiment.mtp.blocks if experiment.mtp else 1
    rank_2 = 3 + 0.2 * rng.random() - 0.01 * step
    shared = {"loss": -0.01, "grad_norm": 0.5 * (rank_2 if blocks > 1 else 1.0) + 0.01 * rng.random()}
    clip = 0.0 if number == 0 else CLIPPED * np.exp(rng.normal(0, 0.01))
    found = []
    for tokens in (TOKENS // 3, TOKENS - TOKENS // 3):
        parts = {"token_ratio_variance": _part(tokens, drift), "entropy": (tokens, 0.4, 0.0)}
        if blocks > 1:
            parts |= {
                "ratio_variance": _part(tokens, 1.1 * left**2 * drift),
                "scaled_ratio_variance": _part(tokens, left**2 * drift),
                "token_clip_fraction": (tokens, clip, 0.0),
                "scaled_clip_fraction": (tokens, left**2 * clip, 0.0),
            }
        for k in range(2, blocks + 1):
            parts |= {
                f"mtp_rank_{k}": (tokens - k, rank_2 + k - 2, 0.0),
                f"mtp_loss_{k}": (tokens - k, k / 2, 0.0),
            }
        metrics = {"tokens": tokens, "clip_fraction": left * clip, "kl": 0.001, "ratio_mean": 1.0}
        found.append({"metrics": metrics, "parts": parts, "shared": shared})
    return found


def _part(count: int, variance: float) -> tuple[int, float, float]:
    return count, 1.0, float(variance * (count - 1))


def updates_of(root: Path, arm: str, seed: int) -> pd.DataFrame:
    return pd.read_parquet(run_folder(root, arm, seed, SETTING) / "updates.parquet")
