"""Training reward over estimated compute, and what reaching a reward costs (IBPO, Table 2 and Figure 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace

import numpy as np
import pandas as pd

from rlvr.analysis.runs import load_metrics
from rlvr.analysis.study import Study, as_study
from rlvr.config import Scale
from rlvr.engines.local.accounting import table_of
from rlvr.evaluation import ComputeRatio, Ledger, ModelShape, Reached, compute_ratio, compute_to_threshold
from rlvr.evaluation.compute import merge
from rlvr.storage import read_json


def model_shape(scale: Study | Scale) -> ModelShape:
    """Sizes of the policy, from the base model's configuration; of a published model from its known shape."""
    if isinstance(scale, Study) and not scale.embedded:
        from rlvr.engines.jobs.hardware import MODELS

        return MODELS[scale.model].shape
    return ModelShape.of(SimpleNamespace(**read_json(scale.folder / "base/model/config.json")))


def load_ledgers(scale: Study | Scale, arm: str, seed: int) -> list[Ledger]:
    """Of a run, what it had computed after every step.

    Raises:
        FileNotFoundError: the run counted nothing; says how it is made.
    """
    path = scale.run_folder(arm, seed, 0) / "compute.parquet"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; {as_study(scale).remedy('train', arm, seed)}")
    counts = pd.read_parquet(path)
    return [Ledger.from_dict(table_of(row)) for row in counts.to_dict("records")]


def load_curves(scale: Study | Scale, arms: Iterable[str]) -> pd.DataFrame:
    """``arm, seed, step, flops, reward``: the raw reward of a step, and all that was spent up to its end.

    A step of a job whose metrics were lost has no reward, and is left out.
    """
    arms, model = list(arms), model_shape(scale)
    metrics = load_metrics(scale, arms).dropna(subset=["reward"])
    frames = []
    for arm in arms:
        for seed in scale.seeds_of(arm):
            own = metrics[(metrics["arm"] == arm) & (metrics["seed"] == seed)][
                ["arm", "seed", "step", "reward"]
            ]
            flops = np.array([ledger.flops(model) for ledger in load_ledgers(scale, arm, seed)])
            frames.append(own.assign(flops=flops[own["step"].to_numpy(int)]))
    return pd.concat(frames, ignore_index=True)


def common_budget(curves: pd.DataFrame) -> float:
    """FLOPs that every run has spent: of runs whose budgets are equal by plan, the smallest that was real."""
    return float(curves.groupby(["arm", "seed"])["flops"].max().min())


def smoothed(curve: pd.DataFrame, window: float) -> pd.DataFrame:
    """``flops, reward`` of one run: at each step the mean reward of the steps of the last ``window`` FLOPs.

    A mean over compute and not over steps, so that arms with many small steps and arms with few large ones
    are smoothed alike; a point without a full window before it is left out. 0: the curve as it is.
    """
    if window == 0:
        return curve[["flops", "reward"]].reset_index(drop=True)
    spent, reward = curve["flops"].to_numpy(float), curve["reward"].to_numpy(float)
    rows = []
    for at in range(len(spent)):
        if spent[at] >= window:
            inside = (spent > spent[at] - window) & (spent <= spent[at])
            rows.append((spent[at], reward[inside].mean()))
    return pd.DataFrame(rows, columns=["flops", "reward"])


def reached(curves: pd.DataFrame, arm: str, threshold: float, window: float) -> dict[int, Reached]:
    """By seed, the compute at which the smoothed reward of ``arm`` first reaches ``threshold``."""
    found = {}
    for seed, curve in curves[curves["arm"] == arm].groupby("seed"):
        line = smoothed(curve, window)
        if line.empty:
            raise ValueError(f"{arm}, seed {seed}: no step has {window:.3g} FLOPs before it; allowed is less")
        found[int(seed)] = compute_to_threshold((line["flops"], line["reward"]), threshold)
    return found


def runs_that_reach(found: Mapping[int, Reached]) -> str:
    """``5 of 5``, and how many were there at their first point, whose compute has an upper bound alone."""
    there = sum(run.state != "never" for run in found.values())
    first = sum(run.state == "at start" for run in found.values())
    return f"{there} of {len(found)}" + (f", {first} at the first point" if first else "")


def ratios(
    curves: pd.DataFrame, baseline: str, threshold: float, window: float, confidence: float
) -> dict[str, ComputeRatio]:
    """Of every arm over ``baseline``, paired by seed."""
    base = reached(curves, baseline, threshold, window)
    return {
        arm: compute_ratio(reached(curves, arm, threshold, window), base, confidence=confidence)
        for arm in dict.fromkeys(curves["arm"])
    }


def common_grid(curves: pd.DataFrame, budget: float, window: float, points: int = 60) -> pd.DataFrame:
    """``arm, compute, value, low, high``: smoothed rewards of all seeds between their points, on one grid of
    shares of the budget; mean, lowest and highest seed."""
    grid = np.linspace(max(window / budget, 1 / points), 1.0, points)
    rows = []
    for arm, of_arm in curves.groupby("arm", sort=False):
        lines = []
        for _, curve in of_arm.groupby("seed"):
            line = smoothed(curve, window)
            lines.append(np.interp(grid, line["flops"] / budget, line["reward"], left=np.nan, right=np.nan))
        seeds = np.array(lines)
        there = ~np.isnan(seeds).any(0)
        rows.append(
            pd.DataFrame(
                {
                    "arm": arm,
                    "compute": grid[there],
                    "value": seeds[:, there].mean(0),
                    "low": seeds[:, there].min(0),
                    "high": seeds[:, there].max(0),
                }
            )
        )
    return pd.concat(rows, ignore_index=True)


def ledger_frame(scale: Study | Scale, arms: Mapping[str, str]) -> pd.DataFrame:
    """What an arm computed, a mean over seeds: ``arm, purpose, activity, tokens, flops`` and its share."""
    model, rows = model_shape(scale), []
    for arm, label in arms.items():
        seeds = scale.seeds_of(arm)
        table = merge(load_ledgers(scale, arm, seed)[-1] for seed in seeds).table(model)
        total = table["flops"].sum()
        rows.append(
            table.assign(
                arm=label,
                tokens=table["tokens"] / len(seeds),
                flops=table["flops"] / len(seeds),
                share=table["flops"] / total,
            )
        )
    return pd.concat(rows, ignore_index=True)[["arm", "purpose", "activity", "tokens", "flops", "share"]]
