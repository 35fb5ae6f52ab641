"""What a verl job left, in the form of a run of the local engine: one analysis reads both.

    metrics.parquet   a row per step, with the names of the local engine; verl's own names beside them
    compute.parquet   what the steps computed, of jobs of our trainers
    records.parquet   per-token records, if the job kept any
    updates.parquet   a row per update, of jobs of our trainers
    summary.json      steps and counts
    config.json       what was run
    final/            the policy (embedded ones; of others, where the checkpoint is)

Where a number of verl is not quite the local engine's, the column keeps the name and :data:`DIFFERENCES`
says how.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from rlvr.analysis.dynamics import pad_records
from rlvr.engines.jobs.updates import read_updates
from rlvr.mtp.files import FILE as MODULES
from rlvr.ratios import forward_trace, token_ratio
from rlvr.storage import atomic_dir, finite_or_none, write_json

if TYPE_CHECKING:
    from rlvr.engines.jobs.jobs import Job

#: Column here: metric of verl.
NAMES = {
    "reward": "critic/score/mean",
    "groups_with_signal": "rlvr/groups_with_signal",
    "response_length": "response_length/mean",
    "truncated": "rlvr/truncated",
    "loss": "actor/loss",
    "grad_norm": "actor/grad_norm",
    "grad_norm_max": "actor/grad_norm_max",
    "entropy": "actor/token_entropy",
    "explained_variance": "critic/vf_explained_var",
    "value_loss": "critic/vf_loss",
    "value_clip_fraction": "critic/vf_clipfrac",
}
DIFFERENCES = {
    "entropy": "where the engine computes none: the mean of minus the sampler's log-probs of the step",
    "metrics of the loss": "a mean over micro-batches, not weighted by their tokens; of an update in "
    "updates.parquet they are weighted, and its variances are over all of its tokens",
    "updates": "the critic is another worker, so that its loss and clip fraction are means of a step alone",
    "reward, groups_with_signal": "of the groups that are trained on: of DAPO's sampling, those it kept",
    "mask of a record": "with a KL loss, whether any part of the loss moves the token",
    "compute": "every row trained on computes its prompt again; validation is not counted; a step whose "
    "metrics were lost counts as between its neighbours",
    "loss, its metrics": "with corrections or second turns, of these and the responses together; anchor_kl "
    "is of the first turns",
    "val_pass1": "the mean over validation sets, of several samples a problem where the experiment says so",
}
ACTOR = "actor/"
UNNAMED = {"rlvr/response_tokens", "rlvr/entropy_estimate"}  # of our trainers, in other columns
#: verl's own term, whose weight is 0 where a trainer in stages adds a penalty of its own.
NOT_IN_STAGES = {"actor/kl_loss", "actor/kl_coef"}
OURS, COMPUTE = "rlvr/", "rlvr/compute/"
KEPT_VERL = ("timing_s/step", "perf/max_memory_allocated_gb", "perf/throughput")
TRACE = ("horizon", "trace_clip", "ratio_clip")
RECORDS = ["step", "minibatch", "response", "position", "token"]


def collect(job: Job, out: str | Path, own_policy: bool = False) -> None:
    """The run's folder of a job that is done.

    Args:
        own_policy: the policy is an embedded one, and is kept in ``final/``; of others ``summary.json`` says
            where the checkpoint lies.

    Raises:
        RuntimeError: the job is not done; nothing is written.
    """
    state, experiment = job.state, job.experiment
    if not state.done:
        raise RuntimeError(
            f"{state.values['job']}: step {state.reached} of {state.values['steps']} is saved: not done, and "
            "nothing to collect"
        )
    steps = experiment.update.steps
    by_step = read_metrics(attempt["metrics"] for attempt in state.attempts)
    metrics = metrics_frame(by_step, steps)
    records = read_records(job.folder / "records", steps)
    trace = {"horizon": 4} | {k: v for k, v in experiment.parameters.items() if k in TRACE}
    checkpoint = Path(state.values["checkpoints"]) / f"global_step_{steps}" / "actor"
    tokens = float(metrics["tokens_generated"].iloc[-1])
    responses = experiment.rollout.prompts_per_step * experiment.rollout.responses_per_prompt * steps
    write_run(
        out,
        {
            "engine": "verl",
            "seed": job.seed,
            "experiment": experiment.model_dump(mode="json"),
            "trace": trace,
        },
        metrics,
        None if records is None else with_trace(records, trace),
        {
            "reached_step": state.reached,
            "requested_steps": steps,
            "tokens_generated": finite_or_none(tokens),
            "tokens_trained": finite_or_none(tokens * experiment.update.epochs),
            "responses_verified": responses,
            "steps_without_metrics": int(metrics["reward"].isna().sum()) if "reward" in metrics else steps,
            "attempts": len(state.attempts),
            "checkpoint": str(checkpoint),
        },
        checkpoint / "huggingface" if own_policy else None,
        compute_frame(by_step, steps),
        read_updates(job.folder / "updates", steps),
    )


def read_metrics(files: Iterable[str | Path]) -> dict[int, dict[str, float]]:
    """By verl's step, from the metrics file of each attempt in order; of a repeated step the last one.

    A line that a kill cut short is left out.
    """
    found: dict[int, dict[str, float]] = {}
    for file in map(Path, files):
        if not file.is_file():
            continue
        for line in file.read_text(errors="replace").splitlines():
            try:
                row = json.loads(line)
                step, values = int(row["step"]), dict(row["data"])
            except (ValueError, KeyError, TypeError):
                continue
            found[step] = found.get(step, {}) | values
    return found


def metrics_frame(by_step: Mapping[int, Mapping[str, float]], steps: int) -> pd.DataFrame:
    """A row per update step, numbered from 0: columns of the local engine, then verl's own times.

    A step whose metrics a kill took has a row without values. ``val_pass1`` of a row is the accuracy before
    its updates, ``val_pass1_after`` that after the last ones.
    """
    rows = []
    tokens = 0.0
    for step in range(steps):
        values = by_step.get(step + 1, {})
        if "rlvr/stage" in values:
            values = {key: value for key, value in values.items() if key not in NOT_IN_STAGES}
        row: dict[str, float] = {"step": step}
        row |= {name: values[key] for name, key in NAMES.items() if key in values}
        row.setdefault("entropy", values.get("rlvr/entropy_estimate", np.nan))
        tokens += values.get("rlvr/response_tokens", np.nan)
        row["tokens_generated"] = tokens
        row |= _validation(by_step.get(step, {}), "val_pass1")
        if step == steps - 1:
            row |= _validation(by_step.get(steps, {}), "val_pass1_after")
        taken = set(NAMES.values())
        row |= {
            key.removeprefix(OURS): value
            for key, value in values.items()
            if key.startswith(OURS) and not key.startswith(COMPUTE) and key not in (*taken, *UNNAMED)
        }
        row |= {
            key.removeprefix(ACTOR): value
            for key, value in values.items()
            if key.startswith(ACTOR) and key not in taken and key.removeprefix(ACTOR) not in row
        }
        row |= {key: values[key] for key in KEPT_VERL if key in values}
        rows.append(row)
    frame = pd.DataFrame(rows)
    for name in ("val_pass1", "val_pass1_after"):
        if name not in frame:
            frame[name] = np.nan
    return frame


def compute_frame(by_step: Mapping[int, Mapping[str, float]], steps: int) -> pd.DataFrame | None:
    """Cumulative counts after each step, as :class:`rlvr.engines.local.accounting.Compute` has them; None if
    the job counted nothing. A step whose metrics a kill took counts as between its neighbours."""
    rows = [
        {
            key.removeprefix(COMPUTE): value
            for key, value in by_step.get(step, {}).items()
            if key.startswith(COMPUTE)
        }
        for step in range(1, steps + 1)
    ]
    if not any(rows):
        return None
    each = pd.DataFrame(rows)
    lost = each.isna().all(axis=1)
    each[~lost] = each[~lost].fillna(0)  # a step without corrections says nothing of them
    frame = each.interpolate(limit_direction="both").round().cumsum().astype("int64")
    frame.insert(0, "step", range(1, steps + 1))
    return frame[["step", *sorted(frame.columns.drop("step"))]]


def _validation(values: Mapping[str, float], name: str) -> dict[str, float]:
    """``val-core/<set>/acc/mean@n`` of every validation set, and their mean under ``name``."""
    found = {}
    for key, value in values.items():
        parts = key.split("/")
        if parts[0] == "val-core" and parts[2:3] == ["acc"] and parts[-1].startswith("mean@"):
            found[parts[1]] = float(value)
    if not found:
        return {}
    each = {f"{name}_{dataset}": value for dataset, value in found.items()} if len(found) > 1 else {}
    return {name: float(np.mean(list(found.values())))} | each


def read_records(folder: str | Path, steps: int) -> pd.DataFrame | None:
    """Records of all steps and ranks up to ``steps``; None if there are none.

    ``response`` is unique over the job: verl's row in its step, and so many rows a step.
    """
    frames = [pd.read_parquet(file) for file in sorted(Path(folder).glob("records-*-rank*.parquet"))]
    frames = [frame for frame in frames if len(frame) and int(frame["step"].iloc[0]) <= steps]
    if not frames:
        return None
    joined = pd.concat(frames, ignore_index=True)
    joined = joined.drop_duplicates(["step", "minibatch", "response", "position"], ignore_index=True)
    joined["step"] -= 1
    joined["response"] += joined["step"] * (int(joined["response"].max()) + 1)
    return joined.sort_values(["step", "minibatch", "response", "position"], ignore_index=True)


def with_trace(records: pd.DataFrame, trace: Mapping[str, Any]) -> pd.DataFrame:
    """Columns ``rho`` and ``trace``, as the local engine writes them."""
    records = records.copy()
    for name in ("rho", "trace"):
        records[name] = np.nan
    # an update of a response is a row of its own: with several epochs a response has several
    updates = records.groupby(["step", "minibatch", "response"], sort=False).ngroup().to_numpy()
    columns = {"log_prob": records["log_prob"], "old": records["old_log_prob"]}
    rows, mask, padded = pad_records(updates, records["position"], columns)
    log_prob, old = padded["log_prob"].float(), padded["old"].float()
    rho = token_ratio(log_prob, old, mask)
    traced = forward_trace(log_prob - old, mask, **trace)
    row = torch.from_numpy(np.searchsorted(np.asarray(rows), updates))
    at = (row, torch.from_numpy(records["position"].to_numpy().astype(np.int64)))
    return records.assign(rho=rho[at].numpy(), trace=traced[at].numpy())


def write_run(
    out: str | Path,
    config: Mapping[str, Any],
    metrics: pd.DataFrame,
    records: pd.DataFrame | None,
    summary: Mapping[str, Any],
    final: Path | None = None,
    compute: pd.DataFrame | None = None,
    updates: pd.DataFrame | None = None,
) -> None:
    """The run's folder, complete or absent. ``final`` is a policy of ours, copied in our format."""
    from rlvr.engines.local.policy import Policy
    from rlvr.problems.tokenizer import Codec

    with atomic_dir(out) as partial:
        write_json(partial / "config.json", config)
        metrics.to_parquet(partial / "metrics.parquet", index=False)
        if records is not None:
            rest = [name for name in records if name not in RECORDS]
            records[RECORDS + rest].to_parquet(partial / "records.parquet", index=False)
        if compute is not None:
            compute.to_parquet(partial / "compute.parquet", index=False)
        if updates is not None:
            updates.to_parquet(partial / "updates.parquet", index=False)
        write_json(partial / "summary.json", dict(summary))
        if final is not None:
            Policy.from_pretrained(final).save_pretrained(partial / "final")
            Codec.load(final).save(partial / "final")
            if (modules := Path(final) / MODULES).is_file():
                shutil.copyfile(modules, partial / "final" / MODULES)
