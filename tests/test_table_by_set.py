"""Arms by sets of problems: kinds of generated ones, and benchmarks."""

import numpy as np
import pandas as pd
import pytest
from notebook_factory import PROJECT

from rlvr.analysis.held_out_sets import SETS
from rlvr.analysis.setting_study import of_setting
from rlvr.analysis.table_by_set import in_sets, relative_gain, set_frame, table_by_set
from rlvr.engines.jobs.experiments import load_experiments
from rlvr.reporting.bundle import NOT_MEASURED


def samples_of(rates):
    """{arm: {seed: {set: share right}}}, ten problems a set."""
    rows = [
        {"arm": arm, "seed": seed, "lag": 0, "benchmark": "embedded", "set": name, "problem": f"{name}{i}",
         "sample": 0, "correct": i < round(10 * rate)}
        for arm, by_seed in rates.items() for seed, by_set in by_seed.items()
        for name, rate in by_set.items() for i in range(10)
    ]  # fmt: skip
    return pd.DataFrame(rows).astype({"correct": "boolean"})


A, B = SETS[0], SETS[5]


def test_every_set_counts_once_in_the_average():
    samples = samples_of({"nfpo": {0: {A: 0.2, B: 0.6}, 1: {A: 0.4, B: 0.6}}})
    extra = samples[samples["set"] == B].assign(problem=lambda f: f["problem"] + "x")
    row = set_frame(pd.concat([samples, extra]), SETS, 0.95)
    assert list(row) == [A, B, "average"]  # in the order of SETS, those that occur
    assert row[A].value == pytest.approx(0.3) and row[B].value == pytest.approx(0.6)
    assert row["average"].value == pytest.approx(0.45) and row["average"].seeds == (0, 1)
    # two seeds at 0.4 and 0.5: 12.706 * 0.05
    assert row["average"].high - row["average"].value == pytest.approx(12.706 * 0.05, rel=1e-3)


def test_relative_gain_is_of_the_averages_and_per_seed():
    samples = samples_of(
        {
            "nfpo": {0: {A: 0.4, B: 0.8}, 1: {A: 0.6, B: 0.6}},
            "grpo": {0: {A: 0.3, B: 0.7}, 1: {A: 0.5, B: 0.5}},
        }
    )
    gain = relative_gain(samples, "nfpo", "grpo", 0.95)
    assert gain.value == pytest.approx(20.0)  # 0.6 / 0.5 with both seeds
    assert gain.seeds == (0, 1)
    worse = relative_gain(samples, "grpo", "nfpo", 0.95)
    assert worse.value == pytest.approx(100 * (0.5 / 0.6 - 1))


def test_no_gain_over_an_arm_that_solves_nothing():
    samples = samples_of({"nfpo": {0: {A: 0.4}}, "grpo": {0: {A: 0.0}}})
    with pytest.raises(ValueError, match="grpo with seed 0 solves nothing"):
        relative_gain(samples, "nfpo", "grpo", 0.95)


def test_undecided_responses_are_missing_and_not_wrong():
    samples = samples_of({"nfpo": {0: {A: 0.5}, 1: {A: 0.5}}})
    samples.loc[samples["problem"] == f"{A}9", "correct"] = pd.NA
    assert set_frame(samples, SETS, 0.95)[A].value == pytest.approx(5 / 9)
    assert np.isfinite(set_frame(samples, SETS, 0.95)["average"].value)


# --- benchmarks -------------------------------------------------------------------------------------------


def of_benchmarks(rates, seeds=(0, 1)):
    """{arm: {benchmark: share right}}, ten problems a benchmark, four samples, the same for every seed."""
    rows = [
        {"arm": arm, "seed": seed, "benchmark": name, "set": name, "problem": f"{name}/{i}", "sample": j,
         "correct": i < 10 * rate}
        for arm, by_name in rates.items() for seed in seeds for name, rate in by_name.items()
        for i in range(10) for j in range(4)
    ]  # fmt: skip
    return pd.DataFrame(rows).astype({"correct": "boolean"})


RATES = {"grpo": {"aime24": 0.2, "math500": 0.6}, "dppo_tv": {"aime24": 0.3, "math500": 0.5},
         "nfpo": {"aime24": 0.3, "math500": 0.7}}  # fmt: skip
ROWS = {"grpo": "GRPO", "dppo_tv": "DPPO-TV", "nfpo": "NFPO"}
NAMES, OTHERS = ["aime24", "math500"], ["grpo", "dppo_tv"]


def test_every_benchmark_counts_once_and_the_gain_is_of_the_averages():
    table = table_by_set(of_benchmarks(RATES), ROWS, NAMES, "nfpo", OTHERS, 0.95)
    assert list(table.index) == ["GRPO", "DPPO-TV", "NFPO"]
    assert list(table) == ["aime24", "math500", "average", "NFPO's gain over it, %"]
    assert table.loc["GRPO", "aime24"].value == pytest.approx(0.2)
    assert table.loc["GRPO", "average"].value == pytest.approx(0.4)
    assert table.loc["GRPO", "NFPO's gain over it, %"].value == pytest.approx(25.0)
    assert table.loc["NFPO", "NFPO's gain over it, %"] is NOT_MEASURED
    assert table.loc["GRPO", "aime24"].n == 10  # problems, not responses


def test_one_seed_has_no_interval_over_seeds():
    table = table_by_set(of_benchmarks(RATES, seeds=(0,)), ROWS, NAMES, "nfpo", OTHERS, 0.95)
    assert table.loc["NFPO", "average"].low is None
    assert table.loc["NFPO", "aime24"].low is not None


def test_a_missing_arm_or_seed_is_named():
    samples = of_benchmarks(RATES)
    with pytest.raises(ValueError, match=r"no rows of arms \['fipo'\]"):
        table_by_set(samples, {"fipo": "FIPO"} | ROWS, NAMES, "nfpo", OTHERS, 0.95)
    fewer = samples[(samples["arm"] != "grpo") | (samples["seed"] == 0)]
    with pytest.raises(ValueError, match="no rows of arm 'grpo' with seed 1"):
        table_by_set(fewer, ROWS, NAMES, "nfpo", OTHERS, 0.95)


def test_the_sets_of_experiments_are_their_benchmarks():
    file = load_experiments(PROJECT / "pipelines/scales/paper/experiments.yaml")
    samples = of_benchmarks(RATES).drop(columns="set")
    found, names = in_sets(of_setting(file, "nfpo-1.7b"), samples)
    assert names == NAMES and found["set"].tolist() == samples["benchmark"].tolist()
