"""Held-out problems sorted by what they ask."""

import numpy as np
import pandas as pd
import pytest

from rlvr.analysis.held_out_sets import SETS, relative_gain, set_frame, set_of, with_sets
from rlvr.problems import get_task


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("11+6-4+2", "plain, short"),
        ("11+6-4+2+1", "plain, short"),  # 4 of 3 to 6 steps
        ("11+6-4+2+1-1", "plain, long"),
        ("11+6*2-4", "one product, short"),
        ("11*2+6*3", "products, short"),
        ("2*2*2*2*2*2", "products, long"),
    ],
)
def test_a_set_is_a_kind_and_a_length(content, name):
    assert set_of(content, (3, 6)) == name


def test_every_generated_problem_is_in_one_set():
    task = get_task("word")
    problems = task.generate("held_out", 300, 0, (3, 6))
    samples = pd.DataFrame({"prompt": [p.prompt for p in problems]})
    found = with_sets(samples, "word", (3, 6))
    assert set(found["set"]) == set(SETS)
    assert found["set"].tolist() == [set_of(p.content, (3, 6)) for p in problems]


def samples_of(rates):
    """{arm: {seed: {set: share right}}}, ten problems a set."""
    rows = [
        {"arm": arm, "seed": seed, "lag": 0, "set": name, "problem": f"{name}{i}", "sample": 0,
         "correct": i < round(10 * rate)}
        for arm, by_seed in rates.items() for seed, by_set in by_seed.items()
        for name, rate in by_set.items() for i in range(10)
    ]  # fmt: skip
    return pd.DataFrame(rows).astype({"correct": "boolean"})


A, B = SETS[0], SETS[5]


def test_every_set_counts_once_in_the_average():
    samples = samples_of({"nfpo": {0: {A: 0.2, B: 0.6}, 1: {A: 0.4, B: 0.6}}})
    extra = samples[samples["set"] == B].assign(problem=lambda f: f["problem"] + "x")
    row = set_frame(pd.concat([samples, extra]), 0.95)
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
    assert set_frame(samples, 0.95)[A].value == pytest.approx(5 / 9)
    assert np.isfinite(set_frame(samples, 0.95)["average"].value)
