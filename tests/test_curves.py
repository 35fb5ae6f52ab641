"""The curves that dvc draws are means of the figures' own data, and dvc.yaml names columns that exist."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlvr.config import load_scale, load_yaml
from rlvr.reporting.curves import CURVES, POINTS, Curves, wide
from rlvr.reporting.registry import load_registry

PROJECT = Path(__file__).parents[1]


def test_means_over_seeds_in_columns():
    rows = [
        (arm, lag, seed, step, 10 * seed + step)
        for arm in "ab"
        for lag in (0, 8)
        for seed in (0, 1)
        for step in (0, 1)
    ]
    data = pd.DataFrame(rows, columns=["arm", "lag", "seed", "step", "reward"])
    data.loc[(data["arm"] == "b") & (data["lag"] == 0), "reward"] += 1
    table = wide(data, Curves("step", "reward", "arm", {"lag": 0}))
    assert list(table.columns) == ["step", "a", "b"]
    assert table.to_numpy().tolist() == [[0, 5, 6], [1, 6, 7]]


def test_lines_of_other_places_are_read_where_all_are():
    data = pd.DataFrame(
        {"arm": [*"aaa", *"bb"], "x": [0.0, 1.0, 2.0, 0.5, 3.0], "y": [0.0, 1.0, 4.0, 0.0, 5.0]}
    )
    table = wide(data, Curves("x", "y", "arm", shared=False))
    assert len(table) == POINTS and table["x"].iloc[[0, -1]].tolist() == [0.5, 2.0]
    assert table["b"].to_numpy() == pytest.approx(2 * (table["x"] - 0.5).to_numpy())
    assert table["a"].to_numpy() == pytest.approx(np.interp(table["x"], [0, 1, 2], [0, 1, 4]))


def test_dvc_draws_columns_that_the_report_writes():
    scales = {paper: load_scale(PROJECT / path) for paper, path in (
        ("nfpo", "params.yaml"), ("ibpo", "pipelines/scales/laptop/ibpo/params.yaml"),
        ("mpo", "pipelines/scales/laptop/mpo/params.yaml"))}  # fmt: skip
    weights = {
        "weight_" + f"{scales['mpo'].recipes[arm].parameters.get('mtp_weight', 0):g}"
        for arm in (*scales["mpo"].arms, *scales["mpo"].ablations.arms)
    }
    columns = {"nfpo": set(scales["nfpo"].arms), "ibpo": set(scales["ibpo"].arms), "mpo": weights}
    drawn = []
    for (plot,) in (entry.values() for entry in load_yaml(PROJECT / "dvc.yaml")["plots"]):
        ((path, lines),) = plot["y"].items()
        artifact = Path(path).stem
        assert path == "${root}/reports/${scale}/plots/" + f"{artifact}.csv"
        assert plot["x"] == CURVES[artifact].x
        assert set(lines) <= columns[artifact.split("-")[0]]
        load_registry().artifact(artifact)
        drawn.append(artifact)
    assert sorted(drawn) == sorted(CURVES)
