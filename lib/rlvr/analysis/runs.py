"""Read what training and evaluation left, as long-form frames.

Where a run lies is the study's (:mod:`rlvr.analysis.study`). Layout below ``runs/<scale>`` of a scale file:
``train/<arm>/seed<seed>/lag<lag>/{metrics,records}.parquet`` and ``evaluate/<arm>/samples.parquet``, of
ablations ``ablate/<arm>/...`` and ``evaluate_ablations/samples.parquet``. Of experiments:
``train/<experiment>/seed<seed>/lag0/...`` and ``evaluate/<experiment>/seed<seed>/samples.parquet``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from rlvr.analysis.study import Study, as_study
from rlvr.config import Scale
from rlvr.storage import read_json

#: Of the graded responses of a language model what analyses read; their texts are gigabytes.
OF_MODELS = ["problem", "benchmark", "sample", "correct"]


def _complete(study: Study, arm: str, seed: int, lag: int) -> Path:
    """The folder, if its run reached its requested steps; else an error and not a short curve."""
    folder = study.run_folder(arm, seed, lag)
    summary, remedy = folder / "summary.json", study.remedy("train", arm, seed)
    if not summary.is_file():
        raise FileNotFoundError(f"{folder} holds no finished run; {remedy}")
    done = read_json(summary)
    if done["reached_step"] != done["requested_steps"]:
        raise ValueError(
            f"{folder}: reached step {done['reached_step']} of {done['requested_steps']}; {remedy}"
        )
    return folder


def load_metrics(study: Study | Scale, arms: Iterable[str]) -> pd.DataFrame:
    """Per-step metrics of all runs: columns arm, lag, seed, step and the metrics.

    The accuracy after the last update stands in a row of its own at ``step == steps``, where every other
    metric is missing. ``stopped_share`` is the share of tokens that lost their gradient, whatever the
    objective calls it.

    Raises:
        FileNotFoundError: a run is missing. ValueError: one ended early. Both say how it is made.
    """
    study, frames = as_study(study), []
    for arm in arms:
        for seed in study.seeds_of(arm):
            for lag in study.lags_of(arm):
                frame = pd.read_parquet(_complete(study, arm, seed, lag) / "metrics.parquet")
                after = frame.pop("val_pass1_after").iloc[-1]
                frame = pd.concat([frame, pd.DataFrame([{"step": len(frame), "val_pass1": after}])])
                frame["stopped_share"] = frame.get("clip_fraction", frame.get("masked_fraction"))
                frames.append(frame.assign(arm=arm, lag=lag, seed=seed))
    joined = pd.concat(frames, ignore_index=True)
    first = ["arm", "lag", "seed", "step"]
    return joined[first + [c for c in joined if c not in first]]


def load_records(study: Study | Scale, arm: str, lag: int) -> pd.DataFrame:
    """Per-token records of an arm over all seeds; ``run_response`` is unique over seeds.

    ``off_policy`` is False for the first minibatch of a step without lag: there pi and mu are the same
    weights, and ratios differ from 1 by rounding, or by what sets sampler and trainer apart.

    Raises:
        FileNotFoundError: a run or its records are missing. ValueError: a run ended early.
    """
    study, frames = as_study(study), []
    for seed in study.seeds_of(arm):
        path = _complete(study, arm, seed, lag) / "records.parquet"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} does not exist: the training of {arm!r} kept no records; "
                f"{study.remedy('records', arm, seed)}"
            )
        frames.append(pd.read_parquet(path).assign(seed=seed))
    joined = pd.concat(frames, ignore_index=True)
    joined["run_response"] = joined["seed"] * (int(joined["response"].max()) + 1) + joined["response"]
    # With lag, the very first step still samples from its own weights.
    joined["off_policy"] = (joined["minibatch"] > 0) | ((joined["step"] > 0) & (lag > 0))
    return joined


def load_samples(study: Study | Scale, arms: Iterable[str]) -> pd.DataFrame:
    """Graded held-out responses: columns of :mod:`rlvr.evaluation.samples`; ``seed`` is that of training.

    Of experiments :data:`OF_MODELS`, ``arm``, ``seed`` and ``lag`` alone, and ``problem`` has its benchmark
    in front, since ids are unique within one.

    Raises:
        FileNotFoundError: an evaluation is missing. ValueError: one without samples of its arm, or of other
            problems than the first. Each says which, and what makes it.
    """
    study = as_study(study)
    frames: list[pd.DataFrame] = []
    of_models: dict[Path, frozenset[str]] = {}
    for arm in arms:
        for path, labels in study.sample_files(arm):
            remedy = study.remedy("evaluate", arm, labels.get("seed"))
            if not path.is_file():
                raise FileNotFoundError(f"{path} does not exist; {remedy}")
            if labels:
                frame = pd.read_parquet(path, columns=OF_MODELS).assign(**labels)
                frame["problem"] = frame["benchmark"] + "/" + frame["problem"]
                of_models[path] = frozenset(frame["problem"].unique())
                _check_problems(of_models, path, remedy)
            else:
                frame = pd.read_parquet(path, filters=[("arm", "==", arm)])
            if frame.empty:
                raise ValueError(f"{path} holds no samples of {arm!r}; evaluate it anew")
            frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _check_problems(found: dict[Path, frozenset[str]], path: Path, remedy: str) -> None:
    first = next(iter(found))
    if found[path] != found[first]:
        lacks, more = len(found[first] - found[path]), len(found[path] - found[first])
        raise ValueError(
            f"{path}: lacks {lacks} problems of {first} and has {more} others; they are compared on the same "
            f"problems: evaluate it anew, dvc repro --force --single-item {remedy.removeprefix('dvc repro ')}"
        )


def token_counts(study: Study | Scale, arms: Iterable[str]) -> pd.DataFrame:
    """Tokens generated and trained and responses verified, summed over seeds, by arm and lag; NaN where the
    metrics of a step were lost."""
    study, rows = as_study(study), []
    for arm in arms:
        for lag in study.lags_of(arm):
            runs = [
                read_json(_complete(study, arm, seed, lag) / "summary.json") for seed in study.seeds_of(arm)
            ]
            keys = ("tokens_generated", "tokens_trained", "responses_verified")
            counts = {k: sum(float("nan") if run[k] is None else run[k] for run in runs) for k in keys}
            rows.append({"arm": arm, "lag": lag} | counts)
    return pd.DataFrame(rows)
