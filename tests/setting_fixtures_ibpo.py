"""Runs of IBPO's setting of experiments as its jobs and evaluations leave them, with effects put in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from setting_fixtures import SCALE, SEEDS, run_folder, samples_file, write_samples

from rlvr.engines.jobs.collect import COMPUTE, compute_frame, metrics_frame, write_run
from rlvr.engines.jobs.experiments import Experiment, Experiments
from rlvr.engines.local.accounting import Compute

SETTING = "ibpo-0.6b"
ARMS = ("gspo", "gspo8", "ibpo", "ibpo_ratio", "ibpo_mask", "score")
ABLATIONS = ("one_trajectory", "shaping_only", "joint_only", "weight_04", "weight_12", "alpha_55", "alpha_65")
RUN = (*ARMS, *ABLATIONS)
STEPS = 10
#: Chance to solve a problem of middle difficulty at the end of the training.
SKILL = {
    "base": 0.30, "gspo": 0.60, "gspo_prompt": 0.62, "gspo8": 0.58, "ibpo": 0.80, "ibpo_mask": 0.80,
    "ibpo_ratio": 0.75, "score": 0.56, "score_second": 0.61,
}  # fmt: skip
REVISED = {"gspo": "gspo_prompt", "score": "score_second"}  # each sample revised once
WRONG = 4  # responses of a step that are corrected


def write_runs(file: Experiments, root: Path, arms: Iterable[str], seeds: Iterable[int] = SEEDS) -> None:
    """Training and evaluation of every arm that verl can run, and the untrained model's evaluation."""
    experiments = [file.get(f"{SETTING}-{arm}") for arm in arms]
    for experiment in (one for one in experiments if not one.needs):
        arm = experiment.name.rpartition("-")[2]
        for seed in seeds:
            write_training(experiment, arm, seed, root)
            path = samples_file(root, arm, seed, SETTING)
            write_samples(path, experiment, [7, seed, *arm.encode()], SKILL.get(arm, 0.55) + 0.01 * seed)
            if arm in REVISED:
                path = root / "runs" / SCALE / "revise" / experiment.name / f"seed{seed}" / "samples.parquet"
                write_samples(path, experiment, [8, seed, *arm.encode()], SKILL[REVISED[arm]])
    base = root / "runs" / SCALE / "evaluate" / f"{SETTING}-base" / "samples.parquet"
    write_samples(base, experiments[0], [7], SKILL["base"])


def write_training(experiment: Experiment, arm: str, seed: int, root: Path) -> None:
    """As ``collect`` makes it of verl's metrics; a step has so many rows as the arm has responses."""
    rng = np.random.default_rng([seed, *arm.encode()])
    settings, size = experiment.counterfactual, experiment.rollout.responses_per_prompt
    by_step = {}
    for step in range(1, STEPS + 1):
        progress = step / STEPS
        values = {
            "critic/score/mean": 0.3 + (SKILL.get(arm, 0.55) - 0.3) * progress + rng.normal(0, 0.005),
            "rlvr/response_tokens": 500.0 * size,
            "timing_s/step": 10.0 + size,
        }
        compute = Compute()
        _count(compute, "base", [100] * 2, 2 * size)
        if settings is not None:
            right = 0.1 + 0.5 * progress
            values |= {
                "rlvr/corrections_right": right,
                "rlvr/corrections_right_of_right_reference": right + 0.1,
                "rlvr/corrections_right_of_wrong_reference": 0.05,
                "rlvr/copies": 0.2,
                "rlvr/copies_of_accepted": 0.4,
                "rlvr/rewrites": 0.8 - (settings.alpha or 0.0),
                "rlvr/correction_distance": 0.3,
            }
            corrections = WRONG * settings.corrections
            compute.add("correction", "compare", [500] * corrections)
            _count(compute, "correction", [500] * WRONG, corrections, bool(settings.joint))
        if experiment.self_correction is not None:
            values |= {"rlvr/stage": 1.0 + (step > STEPS // 2), "rlvr/second_turn_right": 0.5}
            _count(compute, "correction", [350] * 2 * size, 2 * size)
        counts = {f"{COMPUTE}{name}": float(n) for name, n in compute.row(0).items() if name != "step"}
        by_step[step] = values | counts
    metrics = metrics_frame(by_step, STEPS)
    write_run(
        run_folder(root, arm, seed, SETTING),
        {"engine": "verl", "seed": seed},
        metrics,
        None,
        {
            "reached_step": STEPS,
            "requested_steps": STEPS,
            "tokens_generated": float(metrics["tokens_generated"].iloc[-1]),
            "tokens_trained": float(metrics["tokens_generated"].iloc[-1]),
            "responses_verified": 2 * size * STEPS,
            "checkpoint": "elsewhere",
        },
        compute=compute_frame(by_step, STEPS),
    )


def _count(compute: Compute, purpose: str, prompts: list[int], rows: int, trained: bool = True) -> None:
    """Rows of 250 tokens behind these prompts, as verl's trainer counts them."""
    each = rows // len(prompts)
    contexts = [prompt for prompt in prompts for _ in range(each)]
    compute.add(purpose, "prefill", prompts)
    compute.add(purpose, "decode", [250] * rows, contexts)
    compute.add(purpose, "verify", [250] * rows)
    if trained:
        compute.add(purpose, "train", [context + 250 for context in contexts])
