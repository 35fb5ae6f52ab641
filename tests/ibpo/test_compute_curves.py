"""Curves over compute: typed-in numbers, slow loops."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from rlvr.analysis.compute_curves import common_grid, ratios, reached, runs_that_reach, smoothed

CURVE = pd.DataFrame({"flops": [1.0, 2.0, 4.0, 8.0], "reward": [0.1, 0.3, 0.2, 0.9]})


def curves(**lines):
    return pd.concat(
        [
            CURVE.assign(reward=r, flops=f, arm=name.rsplit("_", 1)[0], seed=int(name[-1]))
            for name, (f, r) in lines.items()
        ],
        ignore_index=True,
    )


def test_smoothing_is_a_mean_over_compute():
    found = smoothed(CURVE, 2.0)  # windows (0, 2], (2, 4], (6, 8]
    assert found["flops"].tolist() == [2.0, 4.0, 8.0]
    assert found["reward"].tolist() == pytest.approx([0.2, 0.2, 0.9])
    assert smoothed(CURVE, 4.0)["reward"].tolist() == pytest.approx([0.2, 0.9])  # (0, 4], (4, 8]
    assert smoothed(CURVE, 0).equals(CURVE)
    assert smoothed(CURVE, 9.0).empty


def test_the_first_crossing_and_its_ratio():
    data = curves(
        a_0=([1, 2, 3, 4], [0.0, 0.2, 0.4, 0.8]), b_0=([2, 4, 6, 8], [0.0, 0.2, 0.4, 0.8]),
        a_1=([1, 2, 3, 4], [0.0, 0.6, 0.4, 0.8]), b_1=([1, 2, 3, 4], [0.0, 0.6, 0.4, 0.8]),
    )  # fmt: skip
    at = reached(data, "a", 0.3, 0)
    assert at[0].compute == pytest.approx(2.5) and at[1].compute == pytest.approx(1.5)
    found = ratios(data, "b", 0.3, 0, 0.9)
    assert found["a"].by_seed["low"].tolist() == pytest.approx([0.5, 1.0])
    assert found["a"].estimate.value == pytest.approx(np.sqrt(0.5))
    assert found["b"].estimate.value == pytest.approx(1.0)


def test_a_reward_that_is_never_reached_is_a_bound():
    data = curves(a_0=([1, 2, 3, 4], [0.0] * 4), b_0=([1, 2, 3, 4], [0.0, 0.6, 0.4, 0.8]))
    found = ratios(data, "b", 0.3, 0, 0.9)["a"]
    assert found.estimate is None and "above" in found.format()
    with pytest.raises(ValueError, match="allowed is less"):
        reached(data, "a", 0.3, 9.0)


def test_a_run_that_starts_above_the_reward_has_reached_it():
    data = curves(
        a_0=([1, 2, 3, 4], [0.4, 0.5, 0.6, 0.8]), b_0=([1, 2, 3, 4], [0.0, 0.2, 0.4, 0.8]),
        a_1=([1, 2, 3, 4], [0.0, 0.2, 0.4, 0.8]), b_1=([1, 2, 3, 4], [0.0, 0.0, 0.0, 0.2]),
    )  # fmt: skip
    assert runs_that_reach(reached(data, "a", 0.3, 0)) == "2 of 2, 1 at the first point"
    assert runs_that_reach(reached(data, "b", 0.3, 0)) == "1 of 2"
    first = ratios(data[data["seed"] == 0], "b", 0.3, 0, 0.9)["a"]
    assert first.estimate is None and first.format() == "below 0.40"  # at most 1, over 2.5


def test_seeds_meet_on_one_grid():
    data = curves(a_0=([1, 2, 3, 4], [0.0, 0.2, 0.4, 0.6]), a_1=([1, 2, 3, 4], [0.4, 0.4, 0.4, 0.4]))
    grid = common_grid(data, budget=4.0, window=0.0, points=4)
    assert grid["compute"].tolist() == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert grid["value"].tolist() == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert grid["low"].tolist() == pytest.approx([0.0, 0.2, 0.4, 0.4])
    assert grid["high"].tolist() == pytest.approx([0.4, 0.4, 0.4, 0.6])
    late = curves(a_0=([3, 4, 5, 6], [0.0, 0.2, 0.4, 0.6]), a_1=([1, 2, 3, 4], [0.4, 0.4, 0.4, 0.4]))
    assert common_grid(late, budget=4.0, window=0.0, points=4)["compute"].tolist() == pytest.approx(
        [0.75, 1.0]
    )
