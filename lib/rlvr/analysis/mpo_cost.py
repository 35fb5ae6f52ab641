"""What MPO's steps cost beside its baselines', measured on this machine (MPO, Tables 2 and 3)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from rlvr.config import Scale
from rlvr.engines.local.job import Job, jobs_of
from rlvr.engines.local.mtp_warmup import warm_up_modules
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.step_cost import step_cost
from rlvr.evaluation import Estimate, geometric_seed_interval, seed_interval
from rlvr.evaluation.inputs import check_frame
from rlvr.problems.tokenizer import Codec

WARM_UP_STEPS = 4  # measured, after as many that are not


def jobs_to_measure(scale: Scale, arms: Iterable[str]) -> dict[tuple[str, int], Job]:
    """(arm, seed) -> job without lag."""
    return {(arm, seed): jobs_of(scale, arm, seed)[0] for seed in scale.seeds for arm in arms}


def with_blocks(scale: Scale, arm: str, blocks: Sequence[int]) -> dict[tuple[int, int], Job]:
    """(K, seed) -> the arm's job with blocks of K tokens."""
    jobs = {}
    for seed in scale.seeds:
        job = jobs_of(scale, arm, seed)[0]
        if job.mtp is None:
            raise ValueError(f"arm={arm!r} has no block mtp: allowed are arms of MPO")
        for k in blocks:
            jobs[k, seed] = replace(job, mtp=job.mtp.model_copy(update={"blocks": k}))
    return jobs


def measure(base: str | Path, jobs: Mapping[tuple, Job], repeats: int) -> pd.DataFrame:
    """:func:`rlvr.engines.local.step_cost.step_cost` of every job: its columns, after ``what`` and ``seed``;
    ``memory`` = ``state_bytes`` + ``backward_bytes``.

    Jobs of one seed are measured one after the other, so that what slows the machine down for a while slows
    all of them.
    """
    rows = [
        {"what": what, "seed": seed} | step_cost(base, job, repeats)
        for (what, seed), job in sorted(jobs.items(), key=lambda item: item[0][1])
    ]
    frame = pd.DataFrame(rows)
    return frame.assign(memory=frame["state_bytes"] + frame["backward_bytes"])


def mean(costs: pd.DataFrame, what, column: str, confidence: float) -> Estimate:
    """Mean of a column over seeds, Student's t."""
    values = _column(costs, what, column)
    return seed_interval(values, confidence=confidence)


def ratio(costs: pd.DataFrame, what, other, column: str, confidence: float) -> Estimate:
    """A column of ``what`` over that of ``other``: geometric mean over seeds, Student's t on the logs.

    Where every seed has the same ratio, as of counted parameters, that is it, exactly.
    """
    ratios = _column(costs, what, column) / _column(costs, other, column)
    if np.ptp(ratios.to_numpy()) == 0:
        value, seeds = float(ratios.iloc[0]), ratios.index.tolist()
        return Estimate(value, value, value, len(seeds), "seeds", tuple(seeds), "the same for every seed")
    return geometric_seed_interval(ratios, confidence=confidence)


def warm_up_share(scale: Scale, costs: pd.DataFrame, what, confidence: float) -> Estimate:
    """Seconds of the modules' warm-up over those of a whole training of ``what``: geometric mean over seeds.

    Both are measured for every seed, the warm-up on problems of that seed, so that the interval has the
    spread of both.
    """
    base = scale.folder / "base/model"
    policy, codec = Policy.from_pretrained(base), Codec.load(base)
    mtp, trainings = scale.modules, _column(costs, what, "step") * scale.train.steps

    def seconds(seed: int) -> float:
        times = [time.process_time()]
        for steps in (WARM_UP_STEPS, 2 * WARM_UP_STEPS):  # their difference is free of what both do once
            few = mtp.warmup.model_copy(update={"seed": seed, "steps": steps, "check_every": steps})
            warm_up_modules(policy, codec, scale.problems, mtp.model_copy(update={"warmup": few}))
            times.append(time.process_time())
        step = (times[2] - times[1] - (times[1] - times[0])) / WARM_UP_STEPS
        return max(step, 1e-6) * mtp.warmup.steps

    warm_ups = pd.Series({seed: seconds(seed) for seed in trainings.index})
    return geometric_seed_interval(warm_ups / trainings, confidence=confidence)


def _column(costs: pd.DataFrame, what, column: str) -> pd.Series:
    frame = check_frame("costs", costs, ["what", "seed", column])
    rows = frame[frame["what"] == what].set_index("seed")[column].astype(float).sort_index()
    if rows.empty:
        raise ValueError(f"costs hold no rows of {what!r}; there are {sorted(set(frame['what']), key=str)}")
    return rows
