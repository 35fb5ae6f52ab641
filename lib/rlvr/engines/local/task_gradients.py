"""Gradients of IBPO's two tasks at one policy, and the groups that they come from.

For the measure of positive backward transfer (:mod:`rlvr.analysis.backward_transfer`) and the variance of the
centred advantage on real groups (:mod:`rlvr.analysis.advantage_variance`). A batch is one rollout of the
recipe with its corrections, on problems of its own; nothing is updated, so every ratio is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from rlvr.advantages import group_relative
from rlvr.analysis.backward_transfer import Products, inner_products
from rlvr.engines.local.counterfactual import correction_batch
from rlvr.engines.local.job import Job
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import derive_seed, training_problems
from rlvr.engines.local.training import run_of
from rlvr.engines.local.update import minibatches
from rlvr.problems.tokenizer import Codec

_PROBLEMS = 7  # purpose of the random stream of measured problems


@dataclass(frozen=True)
class TwoTasks:
    """What :func:`measure` finds; B batches, N = B * prompts groups of G responses."""

    products: Products  # [B, B] each
    accuracy: np.ndarray  # [N, G] verdicts
    phi: np.ndarray  # [N, G]
    problems: np.ndarray  # [N] ids; equal ``seed`` and settings give every policy the same ones


def measure(
    folder: str | Path,
    job: Job,
    batches: int,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> TwoTasks:
    """Gradients of the base loss (raw verdicts, no shaping) and of the correction loss, batch by batch.

    Args:
        folder: policy with its tokenizer.
        job: of a recipe with joint corrections; its own seed counts for nothing here.
        batches: with a wrong response each; a batch without any is drawn again.
        seed: of problems, responses and corrections.

    Raises:
        ValueError: a job that trains no corrections, or a token mask.
        RuntimeError: nothing is wrong any more in twice as many rollouts.
    """
    given = job.counterfactual
    if given is None or not given.joint or given.variant == "mask":
        raise ValueError(f"job {job.name}: allowed are recipes with joint corrections and no token mask")
    job = replace(job, seed=seed)
    run = run_of(job)(job, Policy.from_pretrained(folder), Codec.load(folder), "measured")
    run.past = [run.updater.theta.detach().clone()]
    gradients, accuracy, phi, asked = [], [], [], []
    for number in range(2 * batches):
        if len(gradients) == batches:
            break
        run.done = number  # other responses and corrections each time
        stream = derive_seed(_PROBLEMS, seed)
        problems = training_problems(job.problems, job.train.prompts_per_step, stream, number)
        rollout = run._collect(run.policy, problems)
        accuracy.append(rollout.rewards.view(-1, rollout.group_size).double().numpy())
        asked += [problem.id for problem in problems]
        phi.append(rollout.phi.view(-1, rollout.group_size).double().numpy())
        groups = torch.arange(len(problems)).repeat_interleave(rollout.group_size)
        raw = group_relative(rollout.rewards, groups, std=job.train.advantage_std)
        (base,) = minibatches(replace(rollout, advantages=raw), 1)
        corrections = correction_batch(rollout, base, given.corrections)
        if corrections is not None:
            gradients.append([run.updater._part(batch, {}).gradient for batch in (base, corrections)])
        if on_progress:
            on_progress(len(gradients), batches)
    if len(gradients) < batches:
        raise RuntimeError(
            f"{len(gradients)} of {2 * batches} rollouts held a wrong response: {batches} are needed"
        )
    first, second = (torch.stack(list(each)) for each in zip(*gradients, strict=True))
    products = inner_products(first, second)
    return TwoTasks(products, np.concatenate(accuracy), np.concatenate(phi), np.array(asked))
