"""Variance and clip fraction by total weight, and MPO's Figure 7, on made-up updates."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlvr.analysis.mpo_noise import correlation_table, points_of, prediction_frame
from rlvr.analysis.mpo_ratios import (
    by_seed,
    clip_difference,
    load_updates,
    over_steps,
    variance_ratio,
    weight_table,
)
from rlvr.config import load_scale
from rlvr.storage import write_json

ROOT = Path(__file__).parents[2]
SEEDS = (0, 1, 2)


def updates(arms=("ppo", "mpo"), steps=8) -> pd.DataFrame:
    """Variance of the token's ratio 1e-3 (times a factor of the seed); the block's 0.5 and the scaled one's
    0.64 of it in MPO; one update in eight clips."""
    rows = []
    for arm in arms:
        for seed in SEEDS:
            for step in range(steps):
                for minibatch in range(4):
                    token = 1e-3 * (1 + 0.2 * seed) * (1 + 0.01 * minibatch) * (minibatch > 0)
                    clip = 0.01 if (step * 4 + minibatch) % 8 == 7 else 0.0
                    row = {"arm": arm, "seed": seed, "step": step, "minibatch": minibatch, "tokens": 10}
                    row |= {"ratio_variance": token, "clip_fraction": clip}
                    if arm == "mpo":
                        row |= {
                            "token_ratio_variance": token, "token_clip_fraction": clip,
                            "scaled_ratio_variance": 0.64 * token, "scaled_clip_fraction": 0.5 * clip,
                            "ratio_variance": 0.5 * token, "clip_fraction": 0.8 * clip,
                        }  # fmt: skip
                    rows.append(row)
    frame = pd.DataFrame(rows)
    return frame.assign(off_policy=frame["minibatch"] > 0)


def test_medians_and_means_of_off_policy_updates_alone():
    found = by_seed(updates(), "ppo")
    assert found["variance"].tolist() == pytest.approx([1.02e-3, 1.2 * 1.02e-3, 1.4 * 1.02e-3])
    assert found["clip"].tolist() == pytest.approx([0.01 * 4 / 24] * 3)
    assert by_seed(updates(), "mpo", "scaled")["variance"][1] == pytest.approx(0.64 * 1.2 * 1.02e-3)
    with pytest.raises(ValueError, match="no off-policy rows of arm 'dapo'"):
        by_seed(updates(), "dapo")
    with pytest.raises(ValueError, match="ratio='blocks'"):
        by_seed(updates(), "mpo", "blocks")


def test_ratios_and_differences_over_seeds():
    block, scaled = (by_seed(updates(), "mpo", ratio) for ratio in ("block", "scaled"))
    found = variance_ratio(block, scaled, 0.95)
    assert found.value == pytest.approx(0.5 / 0.64) and found.n == 3 and found.low is None  # no spread
    other = block.assign(variance=block["variance"] * [1, 2, 4])
    found = variance_ratio(other, block, 0.95)
    assert found.value == pytest.approx(2.0)  # geometric
    half = 4.302652729911275 * math.log(2) / math.sqrt(3)  # Student's t, 2 degrees of freedom
    assert (found.low, found.high) == (pytest.approx(2 * math.exp(-half)), pytest.approx(2 * math.exp(half)))
    gap = clip_difference(block, scaled, 0.95)
    assert gap.value == pytest.approx(100 * 0.3 * 0.01 * 4 / 24)


def test_the_table_compares_with_ppo_and_with_scaling_alone():
    table = weight_table(updates(), {0.0: "ppo", 0.2: "mpo"}, 0.95)
    assert table.index.tolist() == ["0", "20"]
    assert table.loc["20", "variance over PPO's"].value == pytest.approx(0.5)
    assert table.loc["20", "variance over the scaled token ratio's"].value == pytest.approx(0.5 / 0.64)
    assert pd.isna(table.loc["0", "variance over PPO's"])


def test_modules_that_are_not_trained_along_have_a_row_and_a_line():
    still = updates(("mpo",)).assign(arm="mpo_still")
    still["ratio_variance"] = 0.6 * still["token_ratio_variance"]
    frame = pd.concat([updates(), still])
    table = weight_table(frame, {0.0: "ppo", 0.2: "mpo"}, 0.95, {"20, still": "mpo_still"})
    assert table.index.tolist() == ["0", "20", "20, still"]
    assert table.loc["20, still", "variance over the scaled token ratio's"].value == pytest.approx(0.6 / 0.64)
    lines = over_steps(frame, {0.0: "ppo", 0.2: "mpo"}, 4, (0.2, "mpo_still"))
    assert lines.groupby("ratio").size().to_dict() == {"block": 4, "scaled": 2, "still": 2}
    found = lines[lines["ratio"] == "still"]
    assert found["variance"].tolist() == pytest.approx([0.6 * 1.2 * 1.02e-3] * 2) and set(
        found["weight"]
    ) == {0.2}


def test_curves_are_binned():
    frame = over_steps(updates(), {0.0: "ppo", 0.2: "mpo"}, 4)
    assert sorted(set(frame["step"])) == [2.0, 6.0]
    assert set(zip(frame["weight"], frame["ratio"], strict=True)) == {
        (0.0, "block"), (0.2, "block"), (0.2, "scaled"),
    }  # fmt: skip
    block = frame[(frame["weight"] == 0.2) & (frame["ratio"] == "block")]
    assert block["variance"].tolist() == pytest.approx([0.5 * 1.2 * 1.02e-3] * 2)
    assert block["clip"].tolist() == pytest.approx([100 * 0.8 * 0.01 * 2 / 12] * 2)


def test_updates_are_read_from_finished_runs(tmp_path, monkeypatch):
    scale = load_scale(ROOT / "pipelines/scales/smoke/mpo/params.yaml")
    monkeypatch.chdir(tmp_path)
    frame = updates(("mpo",))
    for seed in scale.seeds:
        folder = scale.run_folder("mpo", seed, 0)
        folder.mkdir(parents=True)
        write_json(folder / "summary.json", {"reached_step": 3, "requested_steps": 3})
        rows = frame[frame["seed"] == seed].drop(columns=["arm", "seed", "off_policy"])
        rows.to_parquet(folder / "updates.parquet")
    found = load_updates(scale, ["mpo"])
    assert found.groupby("seed").size().tolist() == [32, 32] and found["off_policy"].mean() == 0.75
    write_json(folder / "summary.json", {"reached_step": 2, "requested_steps": 3})
    with pytest.raises(ValueError, match="reached step 2"):
        load_updates(scale, ["mpo"])


def noisy(correlated: bool) -> pd.DataFrame:
    """Updates whose rank and gradient norm go together, or whose trends alone do."""
    draws, rows = np.random.default_rng(0), []
    for seed in SEEDS:
        for step in range(30):
            rank, trend = draws.normal(), 0.3 * step
            norm = draws.normal() if not correlated else rank + 0.1 * draws.normal()
            row = {"seed": seed, "step": step, "minibatch": 0, "tokens": 5, "grad_norm": norm + trend}
            row |= {
                "mtp_rank_2": rank + trend,
                "mtp_loss_2": 1.0,
                "mtp_rank_3": 2.0 + step,
                "mtp_loss_3": 0.5,
            }
            rows.append(row)
    return pd.DataFrame(rows)


def test_a_shared_trend_is_no_correlation():
    table = correlation_table({2: noisy(False), 3: noisy(True)}, 0.95)
    assert table.loc["2", "as it is"].low > 0.5 and table.loc["2", "trend removed"].low < 0
    assert table.loc["3", "trend removed"].low > 0.9


def test_points_and_curves_of_figure_7():
    points = points_of({2: noisy(True), 3: noisy(False)})
    assert points.groupby("blocks").size().tolist() == [90, 90] and "rank" in points
    frame = prediction_frame(noisy(True), {1: "ppo", 3: "mpo"}, 0.95)
    assert frame[frame["k"] == 3]["rank"].tolist() == pytest.approx([2.0 + step for step in range(30)])
    assert set(frame["k"]) == {2, 3}
