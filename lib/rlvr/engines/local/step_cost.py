"""What a step of a method costs in time and memory, by its parts and by block length K (MPO, Tables 2 and 3).

Seconds are processor time of this process on one thread, so that what else the machine does hardly shows.
Memory is counted, not sampled, and so the same on every run: numbers held for training (weights, gradients
and the optimiser's two moments), and what one minibatch keeps for its backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pandas as pd
import torch
from torch import Tensor

from rlvr.checks import check_integer
from rlvr.engines.local.job import Job
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import derive_seed, training_problems
from rlvr.engines.local.training import run_of
from rlvr.mtp.size import TRAINED
from rlvr.problems.tokenizer import Codec

BYTES = 4  # of a float32
_STREAM = 6  # purpose of the random stream of measured problems


def step_cost(base: str | Path, job: Job, repeats: int = 3) -> dict[str, float]:
    """Cost of a step of ``job`` on the base model, with modules and critic that were not warmed up.

    Args: ``repeats`` >= 1 steps are measured, each on problems of its own, after one that is not.

    Returns medians over steps: ``generate`` seconds (sampling and grading), ``prepare`` (values, advantages
    and old log-probs of the modules), ``update`` (all minibatches), ``step`` their sum, ``tokens`` trained
    on, ``us_per_token`` = 1e6 step / tokens; and ``parameters`` trained, ``state_bytes`` for them, and
    ``backward_bytes``, the largest that a minibatch keeps for its backward pass.
    """
    repeats = check_integer("repeats", repeats, 1, "integers >= 1")
    run = run_of(job)(job, Policy.from_pretrained(base), Codec.load(base), "cost")
    first = _one_step(run, 0, count=True)
    rows = [_one_step(run, number) for number in range(1, repeats + 1)]
    out = {name: median(row[name] for row in rows) for name in ("generate", "prepare", "update", "tokens")}
    out["step"] = median(row["generate"] + row["prepare"] + row["update"] for row in rows)
    out["us_per_token"] = 1e6 * out["step"] / out["tokens"]
    out["parameters"] = sum(weights.numel() for weights in _trained(run))
    out["state_bytes"] = TRAINED * BYTES * out["parameters"]
    out["backward_bytes"] = first["backward_bytes"]
    return out


def cost_by_blocks(base: str | Path, job: Job, blocks: Sequence[int], repeats: int = 3) -> pd.DataFrame:
    """:func:`step_cost` of an MPO job with each block length, one row per K (the index ``K``).

    Raises:
        ValueError: a job without MTP modules.
    """
    if job.mtp is None:
        raise ValueError(f"job {job.name} has no block mtp: allowed are jobs of MPO")
    jobs = {k: replace(job, mtp=job.mtp.model_copy(update={"blocks": k})) for k in blocks}
    rows = {k: step_cost(base, one, repeats) for k, one in jobs.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("K")


def _one_step(run, number: int, count: bool = False) -> dict[str, float]:
    """Parts of one step; with ``count`` its bytes, which slows it down, so that it is not one to be timed."""
    job, updater = run.job, run.updater
    stream = derive_seed(_STREAM, job.seed, 0)
    problems = training_problems(job.problems, job.train.prompts_per_step, stream, number)
    run.past, run.done = [updater.theta.detach().clone()], number  # another rollout each time
    if modules := getattr(updater, "modules", None):
        run.past_phi = [modules.trainer.snapshot()]
    times = [time.process_time()]
    rollout = run._collect(run.policy, problems)
    times.append(time.process_time())
    batches = [batch for batch, _ in run._updates(rollout)]
    times.append(time.process_time())
    kept = [_bytes_kept(run, batch) if count else updater.step(batch) for batch in batches]
    times.append(time.process_time())
    row = dict(zip(("generate", "prepare", "update"), (b - a for a, b in pairwise(times)), strict=True))
    row["tokens"] = float(sum(len(batch.packed.targets) for batch in batches))
    return row | {"backward_bytes": max(kept)} if count else row


def _bytes_kept(run, batch) -> int:
    """Bytes that an update keeps for its backward pass, weights aside, each stretch of memory once."""
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run.updater.step(batch)
    own = {weights.untyped_storage().data_ptr() for weights in _trained(run)}
    return sum(size for place, size in seen.items() if place not in own)


def _trained(run) -> list[Tensor]:
    parts = [getattr(run.updater, name, None) for name in ("modules", "critic")]
    return [run.updater.theta, *(part.trainer.weights for part in parts if part)]
