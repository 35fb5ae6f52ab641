"""The tables of what MPO costs (MPO, Tables 2 and 3), from measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rlvr.analysis.mpo_cost import mean, ratio
from rlvr.mtp.size import PAPER_MODELS, paper_config, size_by_blocks
from rlvr.reporting.cells import Exact
from rlvr.reporting.style import objective_label

MEGABYTE = 2**20


def block_table(costs: pd.DataFrame, blocks: Sequence[int], confidence: float) -> pd.DataFrame:
    """One row per K (the index): seconds of a step and of its updates, both over those of the first K, and
    the trained parameters over its."""
    first = blocks[0]
    rows = {}
    for k in blocks:
        row = {"seconds per step": mean(costs, k, "step", confidence)}
        for name, column in (
            (f"step over K = {first}", "step"),
            (f"updates over K = {first}", "update"),
            (f"memory over K = {first}", "memory"),
        ):
            row[name] = "1" if k == first else ratio(costs, k, first, column, confidence)
        rows[str(k)] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("K")


def method_table(costs: pd.DataFrame, arms: Sequence[str], reference: str, confidence: float) -> pd.DataFrame:
    """One row per arm (the index): trained parameters, memory in MB, seconds of a step and of its parts
    (preparing: values, advantages, and the modules' old log-probs), and memory and time over those of
    ``reference``."""
    rows = {}
    for arm in arms:
        parameters = costs.loc[costs["what"] == arm, "parameters"]
        in_mb = costs.assign(memory=costs["memory"] / MEGABYTE)
        row: dict[str, object] = {
            "trained parameters": Exact(int(parameters.iloc[0])),
            "memory, MB": mean(in_mb, arm, "memory", confidence),
            "seconds per step": mean(costs, arm, "step", confidence),
            "of which generating": mean(costs, arm, "generate", confidence),
            "of which preparing": mean(costs, arm, "prepare", confidence),
            "of which updates": mean(costs, arm, "update", confidence),
        }
        for name, column in (("memory over GRPO's", "memory"), ("time over GRPO's", "step")):
            row[name] = "1" if arm == reference else ratio(costs, arm, reference, column, confidence)
        rows[objective_label(arm)] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def size_table(base: str | Path, blocks: Sequence[int]) -> pd.DataFrame:
    """One row per K (the index): parameters of backbone and modules over the backbone's, of the model in
    ``base`` and of the paper's three."""
    from transformers import AutoConfig

    configs = {"this scale's model": AutoConfig.from_pretrained(base)}
    configs |= {name: paper_config(name) for name in PAPER_MODELS}
    columns = {}
    for name, config in configs.items():
        found = size_by_blocks(config, blocks)
        columns[name] = [Exact(round(value, 3)) for value in found["ratio"]]
        if name in PAPER_MODELS:
            columns[f"{name}, GB in float32"] = [Exact(round(value / 1e9, 1)) for value in found["memory"]]
    return pd.DataFrame(columns, index=[str(k) for k in blocks]).rename_axis("K")
