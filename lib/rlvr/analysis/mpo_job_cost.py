"""What the steps of MPO's jobs cost beside their baselines', by their own metrics (MPO, Tables 2 and 3).

The local engine's steps are measured one after the other on a quiet machine (:mod:`rlvr.analysis.mpo_cost`);
a job says how long each of its steps took where it ran, and the most memory that torch held on its first GPU
so far. Both depend on how an arm was laid out, too (:func:`layout`): arms are compared where they were alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from rlvr.analysis.mpo import asked_of
from rlvr.analysis.runs import load_metrics
from rlvr.analysis.study import Study
from rlvr.evaluation import Estimate, geometric_seed_interval, seed_interval
from rlvr.evaluation.inputs import check_frame
from rlvr.reporting.cells import NOT_MEASURED
from rlvr.reporting.style import objective_label

#: Column of :func:`job_costs` -> metric of a run.
METRICS = {"step": "timing_s/step", "memory": "perf/max_memory_allocated_gb"}
#: Times and memory that the two tables compare.
_OVER = (("memory", "memory"), ("time", "step"))
#: Of an update, what moves time and memory and nothing that is learned.
LAYOUT = ("tokens_per_gpu", "sequence_parallel", "offload")


def layout(study: Study, arm: str) -> dict[str, object]:
    """What moves time and memory of an arm's jobs beside its method, as its first run says."""
    asked = asked_of(study, arm)
    return {name: asked["update"][name] for name in LAYOUT} | asked["hardware"]


def layout_text(study: Study, arms: Iterable[str]) -> str:
    """A sentence on what was laid out otherwise than the first of ``arms``; empty where all are alike."""
    reference, *others = arms
    first, told = layout(study, reference), []
    for arm in others:
        differing = {name: v for name, v in layout(study, arm).items() if v != first[name]}
        if differing:
            told.append(f"{arm} has {', '.join(f'{name}={v}' for name, v in differing.items())}")
    return f"Laid out otherwise than {reference}: {'; '.join(told)}." if told else ""


def job_costs(study: Study, arms: Iterable[str]) -> pd.DataFrame:
    """One row per arm and training seed: ``arm``, ``seed``, ``step``, the median seconds of a step, and
    ``memory``, the largest of its steps in GB, of the first GPU; NaN where a job did not say.

    A median, since some steps also validate or save, and the first one starts the engines.
    """
    steps = load_metrics(study, arms).dropna(subset=["reward"])
    said = {name: steps.get(metric, float("nan")) for name, metric in METRICS.items()}
    grouped = steps[["arm", "seed"]].assign(**said).groupby(["arm", "seed"], sort=False)
    return grouped.agg({"step": "median", "memory": "max"}).reset_index()


def over(costs: pd.DataFrame, arm: str, other: str, column: str, confidence: float) -> Estimate | None:
    """A column of ``arm`` over that of ``other``, paired by seed: geometric mean over seeds, Student's t on
    the logs. None where a job of either did not say."""
    first, second = _column(costs, arm, column), _column(costs, other, column)
    if first.isna().any() or second.isna().any():
        return None
    return geometric_seed_interval(first / second, confidence=confidence)


def method_table(costs: pd.DataFrame, arms: Sequence[str], reference: str, confidence: float) -> pd.DataFrame:
    """One row per arm (the index): memory of the first GPU in GB, seconds of a step, and both over those of
    ``reference``."""
    rows = {}
    for arm in arms:
        row = _measured(costs, arm, confidence)
        for name, column in _OVER:
            row[f"{name} over GRPO's"] = _ratio(costs, arm, reference, column, confidence)
        rows[objective_label(arm)] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def block_table(costs: pd.DataFrame, by_block: Mapping[int, str], confidence: float) -> pd.DataFrame:
    """One row per K (the index): as :func:`method_table`, over those of K = 1.

    ``by_block``: K -> arm, as :func:`rlvr.analysis.mpo.block_arms` has them; 1 is PPO.
    """
    rows = {}
    for k, arm in by_block.items():
        row = _measured(costs, arm, confidence)
        for name, column in _OVER:
            row[f"{name} over K = 1"] = _ratio(costs, arm, by_block[1], column, confidence)
        rows[str(k)] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("K")


def _measured(costs: pd.DataFrame, arm: str, confidence: float) -> dict[str, object]:
    cells: dict[str, object] = {}
    for name, column in (("memory of the first GPU, GB", "memory"), ("seconds per step", "step")):
        values = _column(costs, arm, column)
        known = values.notna().all()
        cells[name] = seed_interval(values, confidence=confidence) if known else NOT_MEASURED
    return cells


def _ratio(costs: pd.DataFrame, arm: str, other: str, column: str, confidence: float) -> object:
    if arm == other:
        return "1"
    found = over(costs, arm, other, column, confidence)
    return NOT_MEASURED if found is None else found


def _column(costs: pd.DataFrame, arm: str, column: str) -> pd.Series:
    frame = check_frame("costs", costs, ["arm", "seed", column])
    rows = frame[frame["arm"] == arm]
    if rows.empty:
        raise ValueError(f"costs hold no row of arm {arm!r}; there are {sorted(frame['arm'].unique())}")
    return rows.set_index("seed")[column].sort_index()
