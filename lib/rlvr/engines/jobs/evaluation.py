"""The evaluation file of an experiment: what its paper's table shows, of the last checkpoint, by vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from rlvr.engines.jobs.command import job_name
from rlvr.engines.jobs.experiments import Experiment

CONFIDENCE = 0.95
GRADERS = 8  # processes; changes no number
#: Method at test time, of a paper's settings: (arm whose samples it revises, references beside each). SCoRe's
#: answer is its second turn, which is asked for as in training.
REVISED: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "ibpo": {"gspo_prompt": ("gspo", 1), "score_second": ("score", 0)}
}


def references_of(experiment: Experiment) -> int | None:
    """References beside a sample of ``experiment`` that is revised at test time; None: none is revised."""
    methods = REVISED.get(experiment.paper, {})
    return dict(methods.values()).get(experiment.name.rpartition("-")[2])


def model_folder(experiment: Experiment, seed: int, root: str = "runs") -> PurePosixPath:
    """The last checkpoint as an ordinary model, merged from verl's shards."""
    return PurePosixPath(root) / experiment.scale / "models" / job_name(experiment, seed)


def evaluation_path(experiment: Experiment, seed: int, root: str = "runs") -> PurePosixPath:
    return PurePosixPath(root) / experiment.scale / "settings" / experiment.name / f"evaluation-s{seed}.yaml"


def evaluation_settings(experiment: Experiment, seed: int, root: str = "runs") -> dict[str, Any]:
    """Values of an evaluation file (:class:`rlvr.evaluation.files.Settings`).

    Prompts are those of training: the tokenizer's chat template, the benchmark's wording. A response may be
    as long as in training. One seed of sampling for all, so that experiments are compared in pairs. The cards
    of a node share the work: as many copies of the model as fit beside each other.

    Args:
        seed: of the training.
        root: folder of the runs, from the repository root.
    """
    evaluation, parallel = experiment.evaluation, experiment.rollout.tensor_parallel
    sampling: dict[str, Any] = {
        "max_tokens": experiment.data.max_response_length,
        "samples": evaluation.samples,
        "seeds": [0],
        "temperature": evaluation.temperature,
        "chat_template": "model",
        "tensor_parallel_size": parallel,
        "data_parallel_size": max(1, experiment.hardware.gpus_per_node // parallel),
    }
    if experiment.data.prompt_style is not None:
        sampling["prompt_style"] = experiment.data.prompt_style
    path = evaluation_path(experiment, seed, root)
    return {
        "scale": experiment.scale,
        "root": "/".join([".."] * len(path.parent.parts)),
        "scale_file": str(path),
        "engine": "vllm",
        "model": str(model_folder(experiment, seed, root)),
        "name": job_name(experiment, seed),
        "workers": GRADERS,
        "problems": [{"benchmark": name} for name in evaluation.benchmarks],
        "subset_seed": 0,
        "sampling": sampling,
        "training_sets": [experiment.data.train],
        "confidence": CONFIDENCE,
    }
