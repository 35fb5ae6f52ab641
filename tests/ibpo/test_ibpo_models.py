"""What IBPO's tables of language models take from runs that are not as one would like them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from rlvr.analysis.ibpo_models import NOT_RUN, differences_of, lost_steps, model_scores, success_or_not
from rlvr.analysis.ibpo_scores import accuracy, by_seed, difference, p_value_table

BENCHMARKS = {"amc23": 2, "math500": 6}


def samples(chances, seeds=(0, 1, 2), count=8) -> pd.DataFrame:
    """Graded samples of arms; ``chances``: arm -> of a right one."""
    frames = []
    for arm, chance in chances.items():
        for seed in (0,) if arm == "base" else seeds:
            rng = np.random.default_rng([seed, *arm.encode()])
            rows = [
                (f"{benchmark}/{i}", benchmark, sample, bool(rng.random() < chance))
                for benchmark, problems in BENCHMARKS.items()
                for i in range(problems)
                for sample in range(count)
            ]
            frame = pd.DataFrame(rows, columns=["problem", "benchmark", "sample", "correct"])
            frames.append(frame.assign(arm=arm, seed=seed, lag=0))
    return pd.concat(frames, ignore_index=True).astype({"correct": "boolean"})


CHANCES = {"base": 0.3, "gspo": 0.5, "ibpo": 0.7}


def test_every_benchmark_counts_once():
    """A slow loop; problems of the larger one would count three times as much."""
    frame = samples(CHANCES)
    scores = model_scores(frame)
    for arm in ("gspo", "ibpo"):
        for seed, found in by_seed(scores, arm).items():
            own = frame[(frame["arm"] == arm) & (frame["seed"] == seed)]
            means = []
            for benchmark in BENCHMARKS:
                problems = [
                    float(rows["correct"].mean())
                    for name, rows in own.groupby("problem")
                    if name.startswith(benchmark)
                ]
                means.append(sum(problems) / len(problems))
            assert found == pytest.approx(sum(means) / 2)
    gap = difference(scores, "ibpo", "gspo", 0.95)
    assert gap.value == pytest.approx(by_seed(scores, "ibpo").mean() - by_seed(scores, "gspo").mean())


def test_best_of_8_is_pass_at_8_and_an_undecided_verdict_is_not_taken():
    frame = samples({"base": 0.3, "gspo": 0.0, "ibpo": 0.5}, seeds=(0,))
    at = frame.index[(frame["arm"] == "gspo") & (frame["problem"] == "amc23/0")]
    frame.loc[at[3], "correct"] = True
    frame.loc[at[4], "correct"] = pd.NA
    scores = model_scores(frame).set_index(["method", "problem"])["score"]
    assert scores["gspo_best", "amc23/0"] == 1 and scores["gspo", "amc23/0"] == pytest.approx(1 / 7)
    assert scores["gspo_best", "amc23/1"] == 0
    frame.loc[at, "correct"] = pd.NA  # of a whole problem nothing is decided
    assert model_scores(frame).set_index(["method", "problem"])["score"]["gspo_best", "amc23/0"] == 0


def test_a_problem_without_a_verdict_is_left_out_of_a_difference_and_others_are_not():
    frame = samples(CHANCES, seeds=(0, 1))
    gone = (frame["arm"] == "ibpo") & (frame["problem"] == "math500/0") & (frame["seed"] == 1)
    frame.loc[gone, "correct"] = pd.NA
    scores = model_scores(frame)
    without = model_scores(frame[~((frame["problem"] == "math500/0") & (frame["seed"] == 1))])
    assert difference(scores, "ibpo", "gspo", 0.95).value == pytest.approx(
        np.mean([by_seed(without, "ibpo")[s] - by_seed(without, "gspo")[s] for s in (0, 1)])
    )
    lacking = model_scores(frame[~gone])
    with pytest.raises(ValueError, match="evaluated on different problems"):
        difference(lacking, "ibpo", "gspo", 0.95)


def test_fewer_samples_than_8_have_no_best_of_8():
    scores = model_scores(samples(CHANCES, count=4))
    assert set(scores["method"]) == {"gspo", "ibpo"}
    parts = differences_of(scores, {"a": ("ibpo", "gspo"), "b": ("ibpo", "gspo_best")}, 0.95)
    assert parts["a"].n == 3 and parts["b"] == NOT_RUN


def test_one_seed_has_no_p_value():
    scores = model_scores(samples(CHANCES, seeds=(0,)))
    table = p_value_table(scores, "ibpo", ["gspo", "gspo_best"], 0.95, 100)
    assert set(table[["p, paired t", "p, Holm"]].to_numpy().ravel()) == {"unknown"}
    assert accuracy(scores, "ibpo", 0.95).low is None


def steps(rewards, **columns) -> pd.DataFrame:
    """Metrics of one run, with the row after the last update."""
    frame = pd.DataFrame({"step": range(len(rewards) + 1), "reward": [*rewards, np.nan]} | columns)
    return frame.assign(arm="ibpo", seed=0)


def test_trainings_without_corrections_leave_the_claim_open():
    rewards = [0.5] * 10
    right = [0.1 * (i // 2) for i in range(10)]
    found = success_or_not(steps(rewards, corrections_right=[*right, np.nan]), "ibpo", 0.95)
    assert found["last fifth - first fifth"].value == pytest.approx(0.4)
    late = [*right[:8], np.nan, np.nan, np.nan]
    for frame in (steps(rewards), steps(rewards, corrections_right=late)):
        assert set(success_or_not(frame, "ibpo", 0.95).values()) == {NOT_RUN}


def test_lost_steps_are_counted():
    assert lost_steps(steps([0.1, 0.2, 0.3])) == 0
    assert lost_steps(steps([0.1, np.nan, 0.3])) == 1
