"""MPO's tables of accuracy, cost, data and settings, on made-up numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from local_fixtures import codec, random_policy

from rlvr.analysis.mpo import block_arms
from rlvr.analysis.mpo_accuracy import (
    arm_table,
    base_accuracy,
    by_length,
    grid_table,
    group_difference,
    head_table,
    task_frame,
)
from rlvr.analysis.mpo_cost import jobs_to_measure, mean, measure, ratio, warm_up_share, with_blocks
from rlvr.analysis.mpo_cost_tables import block_table, method_table, size_table
from rlvr.analysis.mpo_settings import bias_frame, bias_table, data_table, embedded_sets, settings_table
from rlvr.analysis.mpo_training import clipped_text, clipped_updates, critic_text, value_clip_fraction
from rlvr.config import load_scale
from rlvr.reporting.cells import NOT_MEASURED, Exact, Stated
from rlvr.reporting.table import Table
from rlvr.storage import write_json

ROOT = Path(__file__).parents[2]
SCALE = load_scale(ROOT / "pipelines/scales/smoke/mpo/params.yaml")
ARMS = {"ppo": 0.5, "mpo": 0.7, "grpo_4": 0.6, "dapo": 0.4, "mpo_grpo": 0.6, "mpo_s10": 0.9, "mpo_k2": 0.3}


def samples(arms=ARMS, seeds=(0, 1), problems=10) -> pd.DataFrame:
    """Arms that solve a given share of the problems, seed 1 one problem more."""
    rows = [
        {"arm": arm, "seed": seed, "lag": 0, "problem": f"p{i}", "sample": 0,
         "correct": i < round(share * problems) + seed}
        for arm, share in arms.items() for seed in seeds for i in range(problems)
    ]  # fmt: skip
    rows += [
        {"arm": "base", "seed": 0, "lag": 0, "problem": f"p{i}", "sample": 0, "correct": i < 2}
        for i in range(problems)
    ]
    return pd.DataFrame(rows).assign(benchmark="word")


def test_accuracy_beside_the_baselines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, arm in enumerate(SCALE.arms, start=1):
        for seed in SCALE.seeds:
            folder = SCALE.run_folder(arm, seed, 0)
            counts = {"tokens_generated": 100 * number, "tokens_trained": 10, "responses_verified": 1}
            write_json(folder / "summary.json", {"reached_step": 1, "requested_steps": 1, **counts})
            leave_logs(folder, arm, seed)
    history = SCALE.folder / "warm_up/history.csv"
    history.parent.mkdir(parents=True)
    history.write_text("step,tokens,k,loss,top1,rank\n0,0,2,1,1,1\n10,400,2,1,1,1\n20,900,2,1,1,1\n")
    table = arm_table(SCALE, samples(), 0.95)
    assert table.index.tolist() == ["base model", "PPO", "GRPO, groups of 4", "DAPO", "MPO", "MPO on GRPO"]
    assert table.loc["MPO", "pass@1"].value == pytest.approx(0.75) and table.loc["MPO", "MPO's lead"] == "-"
    assert table.loc["PPO", "MPO's lead"].value == pytest.approx(0.2)
    assert table.loc["MPO", "gain over the base"].value == pytest.approx(0.55)
    assert table.loc["DAPO", "tokens generated"] == Exact(600)
    # the critic's 5 tokens a seed, the modules' 900 once
    assert [table.loc[arm, "tokens of warm-ups"] for arm in ("PPO", "MPO", "MPO on GRPO", "DAPO")] == [
        Exact(10), Exact(910), Exact(900), Exact(0),
    ]  # fmt: skip
    explained = table["critic's explained variance"]
    assert explained["PPO"].value == pytest.approx((0.2 + 0.3) / 2) and explained["DAPO"] == "-"
    Table.from_frame(table.reset_index())  # every cell carries its doubt
    assert value_clip_fraction(SCALE, ["ppo", "mpo"]) == pytest.approx(0.25 * 30 / 40)
    assert critic_text(SCALE, ["mpo"], 0.95).endswith("Its clip held back 18.75 % of the values.")
    share, unit = clipped_updates(SCALE, "ppo", 0.95)
    assert (share.value, unit) == (pytest.approx((0.5 + 0.0) / 2), "updates")
    share, unit = clipped_updates(SCALE, "grpo_4", 0.95)
    assert (share.value, unit) == (pytest.approx(0.5), "steps")
    text = clipped_text(SCALE, ["ppo", "grpo_4"], 0.95, ["0 %", "GRPO"])
    assert "above the clip at 1: 0 % 0.25 [" in text and "GRPO 0.50" in text and text.count("(steps") == 1
    with pytest.raises(ValueError, match="arms hold 'dapo'"):
        critic_text(SCALE, ["dapo"], 0.95)


def leave_logs(folder, arm, seed):
    """Two steps of one update; the norm of one of them is above 1, of seed 1 of an arm with updates none."""
    critic = SCALE.recipes[arm].critic is not None
    norms = [0.5, 0.6] if seed and arm != "grpo_4" else [0.5, 1.5]
    steps = pd.DataFrame({"step": [0, 1], "loss": 0.0, "grad_norm_max": norms, "clip_fraction": 0.0})
    steps = steps.assign(val_pass1=0.5, val_pass1_after=[np.nan, 0.5])
    steps = steps.assign(explained_variance=[0.1 + 0.1 * seed, 0.3 + 0.1 * seed]) if critic else steps
    steps.to_parquet(folder / "metrics.parquet")
    if arm == "grpo_4":
        return
    rows = pd.DataFrame({"step": [0, 1], "tokens": [10, 30], "grad_norm": norms})
    if critic:
        rows = rows.assign(value_clip_fraction=[0.0, 0.25])
        pd.DataFrame({"step": [0], "tokens": [5]}).to_parquet(folder / "critic_warmup.parquet")
    rows.to_parquet(folder / "updates.parquet")


def test_sets_by_length():
    prompts = {
        "a": "Anna has 5 pens, buys 3. how many pens?",
        "b": "Anna has 5 pens, buys 3, loses 2. how many pens?",
    }
    rows = [{"prompt": prompt, "problem": name} for name, prompt in prompts.items()]
    found = by_length(pd.DataFrame(rows), "word", (1, 2))
    assert {name: part["problem"].tolist() for name, part in found.items()} == {
        "short problems": ["a"], "long problems": ["b"],
    }  # fmt: skip
    frame = task_frame(samples(), ["ppo", "mpo"], "all", 0.95)
    assert frame["value"].tolist() == pytest.approx([0.55, 0.75]) and set(frame["set"]) == {"all"}
    assert base_accuracy(samples(), 0.95)[0] == pytest.approx(0.2)


def test_the_grid_says_what_each_setting_is_and_its_lead():
    found = samples({**ARMS, "mpo_still": 0.6, "mpo_scaled": 0.4})
    table = grid_table(SCALE, found, {1: "ppo", 2: "mpo_k2", 5: "mpo"}, {(0.8, 0.1): "mpo_s10"}, 0.95)
    ours = table[table["panel"].str.startswith("ours")]
    assert ours["panel"].tolist() == ["ours: modules not trained along", "ours: token's log ratio scaled"]
    assert [cell.value for cell in ours["K"]] == [5, 2]
    assert [round(cell.value, 6) for cell in ours["lead over PPO"]] == [0.1, -0.1]
    table = table.drop(ours.index)
    assert table["panel"].tolist() == ["a", "a", "a", "b"]
    assert [cell.value for cell in table["K"]] == [1, 2, 5, 5]
    assert [cell.value for cell in table["total weight, %"]] == [0, 20, 20, 10]
    assert table["decay"].tolist() == ["-", Exact(0.8), Exact(0.8), Exact(0.8)]
    leads = [cell if cell == "-" else round(cell.value, 6) for cell in table["lead over PPO"]]
    assert leads == ["-", -0.2, 0.2, 0.4]
    Table.from_frame(table)


def test_groups_of_arms_are_compared_by_seed():
    found = group_difference(samples(), ("mpo", "mpo_s10"), ("ppo",), 0.95)
    # seed 1 of mpo_s10 solves all 10 of 10, as seed 0 does 9
    assert found.value == pytest.approx((0.8 + 0.9) / 2 - (0.5 + 0.6) / 2) and found.seeds == (0, 1)
    with pytest.raises(ValueError, match="allowed are arms with samples"):
        group_difference(samples(), ("mpo",), ("gspo",), 0.95)


def test_groups_are_paired_by_problem():
    """What is undecided of one arm is left out of the others, too, and makes no gap between equal arms."""
    frame = samples({"ppo": 0.6, "mpo": 0.6, "mpo_s10": 0.6})
    wrong = (frame["arm"] != "ppo") & (frame["arm"] != "base") & ~frame["correct"]
    frame["correct"] = frame["correct"].astype("boolean")
    frame.loc[wrong, "correct"] = pd.NA
    assert group_difference(frame, ("mpo", "mpo_s10"), ("ppo",), 0.95).value == pytest.approx(0)


def test_value_heads():
    table = head_table(samples(), {2: ("mpo_k2", "ppo")}, 0.95)
    assert table["K"].tolist() == ["2"] and table["difference"][0].value == pytest.approx(0.2)


COSTS = pd.DataFrame(
    [
        {"what": what, "seed": seed, "step": step * (1 + seed), "update": 0.5 * step, "generate": 0.1,
         "prepare": 0.2, "memory": memory * 2**20, "parameters": 7}
        for what, step, memory in (("a", 1.0, 4), ("b", 3.0, 6), (1, 1.0, 4), (5, 2.0, 8)) for seed in (0, 1)
    ]
)  # fmt: skip


def test_costs_as_ratios_paired_by_seed():
    time = ratio(COSTS, "b", "a", "step", 0.95)
    assert (time.value, time.low, time.high) == (pytest.approx(3.0),) * 3  # the same for both seeds
    assert mean(COSTS, "a", "step", 0.95).value == pytest.approx(1.5)
    noisy = COSTS.assign(step=COSTS["step"] * [1, 1, 1, 4, 1, 1, 1, 1])
    found = ratio(noisy, "b", "a", "step", 0.95)
    assert found.value == pytest.approx(6.0) and found.low < 6 < found.high  # geometric mean of 3 and 12
    with pytest.raises(ValueError, match="costs hold no rows of 'c'"):
        mean(COSTS, "c", "step", 0.95)
    blocks = block_table(COSTS, [1, 5], 0.95)
    assert (
        blocks.loc["5", "step over K = 1"].value == pytest.approx(2.0)
        and blocks.loc["1", "step over K = 1"] == "1"
    )


def test_costs_of_methods(monkeypatch):
    named = COSTS.replace({"what": {"a": "grpo_4", "b": "mpo"}})
    table = method_table(named, ["grpo_4", "mpo"], "grpo_4", 0.95)
    assert table.index.tolist() == ["GRPO, groups of 4", "MPO"]
    assert table.loc["MPO", "memory over GRPO's"].value == pytest.approx(1.5)
    assert table.loc["MPO", "memory, MB"].value == pytest.approx(6)
    assert table.loc["MPO", "of which preparing"].value == pytest.approx(0.2)
    Table.from_frame(table.reset_index())


def test_jobs_that_are_measured():
    assert set(jobs_to_measure(SCALE, ["ppo", "mpo"])) == {
        (a, s) for a in ("ppo", "mpo") for s in SCALE.seeds
    }
    jobs = with_blocks(SCALE, "mpo", (1, 3))
    assert {key: job.mtp.blocks for key, job in jobs.items()} == {
        (k, s): k for k in (1, 3) for s in SCALE.seeds
    }
    with pytest.raises(ValueError, match="arm='ppo' has no block mtp"):
        with_blocks(SCALE, "ppo", (1,))


def test_measured_steps_have_memory_and_time(tmp_path):
    random_policy(spread=0.05).save_pretrained(tmp_path)
    codec().save(tmp_path)
    jobs = {key: job for key, job in with_blocks(SCALE, "mpo", (1, 2)).items() if key[1] == SCALE.seeds[0]}
    costs = measure(tmp_path, jobs, 1)
    assert costs["what"].tolist() == [1, 2] and costs["step"].gt(0).all()
    assert (costs["memory"] == costs["state_bytes"] + costs["backward_bytes"]).all()
    assert costs["memory"].is_monotonic_increasing


def test_the_warm_up_s_share_is_timed_for_every_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = SCALE.folder / "base/model"
    random_policy(spread=0.05).save_pretrained(base)
    codec().save(base)
    seeds = []

    def warm_up(policy, codec, problems, mtp):
        seeds.append(mtp.warmup.seed)
        clock[0] += 1.0 + (1 + mtp.warmup.seed) * mtp.warmup.steps  # 1 s once, 1 or 2 s a step

    clock = [0.0]
    monkeypatch.setattr("rlvr.analysis.mpo_cost.warm_up_modules", warm_up)
    monkeypatch.setattr("rlvr.analysis.mpo_cost.time.process_time", lambda: clock[0])
    costs = pd.DataFrame({"what": 5, "seed": [0, 1], "step": [1.0, 8.0]})
    found = warm_up_share(SCALE, costs, 5, 0.95)
    # 20 steps of 1 s to 3 of 1 s, 20 of 2 s to 3 of 8 s: geometric mean of 20 / 3 and 5 / 3
    assert found.value == pytest.approx(10 / 3) and found.seeds == (0, 1) and seeds == [0, 0, 1, 1]


def test_sizes_reach_from_the_paper_s_smallest_to_its_largest_remark(tmp_path):
    random_policy(spread=0.05).save_pretrained(tmp_path)
    table = size_table(tmp_path, (1, 3, 5))
    assert table.loc["3", "DeepSeek-R1-Distill-Qwen-7B"] == Exact(1.204)
    assert table.loc["5", "Llama-3.2-1B"] == Exact(2.047)
    assert table.loc["1", "this scale's model"] == Exact(1.0)


def test_data_sets_that_are_not_here_are_not_measured():
    sets = embedded_sets(SCALE)
    assert list(sets) == ["word: train", "word: validation", "word: held-out"]
    assert len(sets["word: train"][1]) == SCALE.train.steps * SCALE.train.prompts_per_step
    table = data_table(sets, {"GSM8K train": None, "MATH test": sets["word: held-out"][1][:3]})
    assert (
        table.loc["GSM8K train", "problems"] is NOT_MEASURED and table.loc["GSM8K train", "use"] == "training"
    )
    assert table.loc["MATH test", "problems"] == Exact(3)
    assert table.loc["word: held-out", "problems"] == Exact(SCALE.problems.held_out)
    Table.from_frame(table.reset_index())


def test_settings_are_the_scale_s():
    table = settings_table(SCALE).set_index("setting")
    assert table.loc["block length K", "ours"] == Exact(5) and table.loc["block length K", "paper"] == Stated(
        5
    )
    assert table.loc["total MTP weight", "ours"] == Exact(0.2)
    assert table.loc["input of a module", "ours"] == "input of the backbone's last layer"
    assert table.loc["learning rate", "paper"] == Stated(None)
    assert table.loc["clip", "ours"] == "0.2 below, 0.2 above, dual clip 3"
    Table.from_frame(table.reset_index())


def test_bias_of_the_examples():
    frame = bias_frame((1, 4), 0.9)
    same = frame[frame["example"] == "same error"].set_index("n")
    assert same["return_bias"].tolist() == pytest.approx([0.9, 0.9**4])
    assert same["advantage_bias"].tolist() == pytest.approx([0.1, 1 - 0.9**4])
    table = bias_table((1, 4), 0.9)
    assert table.loc["same error", "policy gradient: factor per step"] == "no bias"
    assert table.loc["same error", "return: factor per step"].value == pytest.approx(0.9)
    assert math.isfinite(table.loc["episode, gamma = 1", "gamma"].value)


def test_the_series_of_the_smoke_scale_are_the_laptop_s():
    laptop = load_scale(ROOT / "pipelines/scales/laptop/mpo/params.yaml")
    assert block_arms(SCALE) == block_arms(laptop)
    assert np.array_equal(SCALE.arms, laptop.arms)
