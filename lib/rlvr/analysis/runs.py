"""Read what training and evaluation left, as long-form frames.

Layout below ``runs/<scale>``: ``train/<arm>/seed<seed>/lag<lag>/{metrics,records}.parquet`` and
``evaluate/<arm>/samples.parquet``; of ablations ``ablate/<arm>/...`` and
``evaluate_ablations/samples.parquet``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from rlvr.config import Scale
from rlvr.storage import read_json


def _complete(folder: Path) -> Path:
    """The folder, if its run reached its requested steps; else an error and not a short curve."""
    summary = folder / "summary.json"
    if not summary.is_file():
        raise FileNotFoundError(f"{folder} holds no finished run; the training stage makes it")
    done = read_json(summary)
    if done["reached_step"] != done["requested_steps"]:
        raise ValueError(f"{folder}: reached step {done['reached_step']} of {done['requested_steps']}")
    return folder


def load_metrics(scale: Scale, arms: Iterable[str]) -> pd.DataFrame:
    """Per-step metrics of all runs: columns arm, lag, seed, step and the metrics.

    The accuracy after the last update stands in a row of its own at ``step == steps``, where every other
    metric is missing. ``stopped_share`` is the share of tokens that lost their gradient, whatever the
    objective calls it.
    """
    frames = []
    for arm in arms:
        for seed in scale.seeds_of(arm):
            for lag in scale.lags_of(arm):
                frame = pd.read_parquet(_complete(scale.run_folder(arm, seed, lag)) / "metrics.parquet")
                after = frame.pop("val_pass1_after").iloc[-1]
                frame = pd.concat([frame, pd.DataFrame([{"step": len(frame), "val_pass1": after}])])
                frame["stopped_share"] = frame.get("clip_fraction", frame.get("masked_fraction"))
                frames.append(frame.assign(arm=arm, lag=lag, seed=seed))
    joined = pd.concat(frames, ignore_index=True)
    first = ["arm", "lag", "seed", "step"]
    return joined[first + [c for c in joined if c not in first]]


def load_records(scale: Scale, arm: str, lag: int) -> pd.DataFrame:
    """Per-token records of an arm over all seeds; ``run_response`` is unique over seeds.

    ``off_policy`` is False for the first minibatch of a step without lag: there pi and mu are the same
    weights, and ratios differ from 1 by rounding alone.
    """
    frames = []
    for seed in scale.seeds_of(arm):
        frame = pd.read_parquet(_complete(scale.run_folder(arm, seed, lag)) / "records.parquet")
        frames.append(frame.assign(seed=seed))
    joined = pd.concat(frames, ignore_index=True)
    joined["run_response"] = joined["seed"] * (int(joined["response"].max()) + 1) + joined["response"]
    # With lag, the very first step still samples from its own weights.
    joined["off_policy"] = (joined["minibatch"] > 0) | ((joined["step"] > 0) & (lag > 0))
    return joined


def load_samples(scale: Scale, arms: Iterable[str]) -> pd.DataFrame:
    """Graded held-out responses: columns of :mod:`rlvr.evaluation.samples`; ``seed`` is that of training."""
    frames = []
    for arm in arms:
        of_arm = scale.evaluation_folder(arm) / "samples.parquet"
        if not of_arm.is_file():
            raise FileNotFoundError(f"{of_arm} does not exist; the evaluation of {arm!r} makes it")
        frame = pd.read_parquet(of_arm, filters=[("arm", "==", arm)])
        if frame.empty:
            raise ValueError(f"{of_arm} holds no samples of {arm!r}; evaluate it anew")
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def token_counts(scale: Scale, arms: Iterable[str]) -> pd.DataFrame:
    """Tokens generated and trained and responses verified, summed over seeds, by arm and lag."""
    rows = []
    for arm in arms:
        for lag in scale.lags_of(arm):
            runs = [
                read_json(_complete(scale.run_folder(arm, s, lag)) / "summary.json")
                for s in scale.seeds_of(arm)
            ]
            keys = ("tokens_generated", "tokens_trained", "responses_verified")
            rows.append({"arm": arm, "lag": lag} | {k: sum(r[k] for r in runs) for k in keys})
    return pd.DataFrame(rows)
