"""Prop. E.4: enumeration, simulation and groups against each other."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from rlvr.analysis.shaping_variance import beside_local, local_ratio, measured, proposition, simulated


def test_the_proposition_holds_on_every_case():
    found = proposition()
    assert len(found) == 120
    assert found["error"].max() < 1e-12 and (found["agrees"] == 1).all()
    assert found["local_error"].max() < 1e-12 and found["local_error"].isna().sum() == 72


def test_every_case_has_weights_on_both_sides_of_its_own_bound():
    """Of 13 weights 5 within the bound, 4 above it, 4 below 0; where C = 0 none is within."""
    found = proposition()
    bounded = found["limit"] > 0
    assert (~bounded).sum() == 24 and found.loc[~bounded, "C"].abs().max() < 1e-12
    inside, outside = found["inside"], found["outside"]
    assert (inside[bounded] == 5).all() and (outside[bounded] == 8).all()
    assert (inside[~bounded] == 0).all() and (outside[~bounded] == 13).all()
    assert (found.loc[~bounded, "chance_with_right"] == 0).all()


def test_a_wrong_bound_would_be_seen():
    found = proposition(cases=[(2, 0.5, 0.6, 0.6)], multiples=[-0.1, 0.9, 1.1])
    binary = found[found["convention"] == "binary"].iloc[0]
    assert binary["limit"] == pytest.approx(4 * 0.5 / (1 - 0.5 * 0.6))  # 4p / (1 - (1-p) q) with phi = 1/2
    assert found[found["convention"] == "signed"].iloc[0]["limit"] == pytest.approx(2 * binary["limit"])


def test_simulation_agrees_with_the_closed_form():
    found = simulated((0.2, 0.6), 0.5, 0.5, 8, (0.0, 0.6, 2.0), groups=4000, seed=3)
    assert found["value"].to_numpy() == pytest.approx(found["closed"].to_numpy(), abs=0.02)
    assert found.loc[found["weight"] == 0, "closed"].tolist() == pytest.approx([1, 1])
    low = found[(found["accuracy"] == 0.2) & (found["weight"] == 2.0)]["closed"].item()
    assert low > 1 > found[(found["accuracy"] == 0.6) & (found["weight"] == 0.6)]["closed"].item()


def test_groups_of_the_local_case_lie_on_its_curve():
    rng = np.random.default_rng(0)
    runs = []
    for _ in range(2):
        right = rng.random((2000, 4)) < 0.4
        phi = np.where(right, 0.0, 0.5 * (rng.random(right.shape) < 0.3))
        runs.append((right.astype(float), phi, np.arange(2000)))
    lines, table = measured({"a": runs}, (0.0, 0.6, 1.2), {"a": (0, 1)}, 0.95, 200)
    assert lines["value"].to_numpy() == pytest.approx(lines["local"].to_numpy(), abs=0.02)
    (row,) = table.to_dict("records")
    assert row["groups"] == 4000 and row["accuracy"] == pytest.approx(0.4, abs=0.02)
    assert row["2C/V"].value == pytest.approx(4 * 0.4 / (1 - 0.6 * 0.3), rel=0.15)
    assert row["2C/V"].seeds == (0, 1) and row["problems"] == row["2C/V"].n == 2000
    assert local_ratio(0.4, 0.15, 0.075, 4, [0.0]) == pytest.approx([1.0])


def test_mixed_difficulties_are_not_the_local_case():
    """Half of the groups all right, half all wrong: within groups nothing varies but the shaping."""
    right = np.repeat([[1.0] * 4, [0.0] * 4, [1.0, 0.0, 0.0, 0.0]], 300, axis=0)
    rng = np.random.default_rng(1)
    phi = np.where(right == 1, 0.0, 0.5 * (rng.random(right.shape) < 0.5))
    lines, _ = measured({"a": [(right, phi, np.arange(900))]}, (0.6,), {"a": (0,)}, 0.95, 200)
    assert abs(lines["value"].item() - lines["local"].item()) > 0.05


def test_a_policy_that_is_there_five_times_tells_no_more_than_once():
    """Equal groups of equal problems: the interval of five copies is that of one."""
    rng = np.random.default_rng(2)
    right = (rng.random((300, 4)) < rng.random((300, 1))).astype(float)
    phi = np.where(right == 1, 0.0, 0.5 * (rng.random(right.shape) < 0.4))
    run = (right, phi, np.arange(300))
    once, _ = measured({"a": [run]}, (0.6,), {"a": (0,)}, 0.95, 500)
    five, table = measured({"a": [run] * 5}, (0.6,), {"a": range(5)}, 0.95, 500)
    for name in ("value", "low", "high"):
        assert five[name].item() == pytest.approx(once[name].item(), abs=1e-12)
    assert table["groups"].item() == 1500 and table["2C/V"].item().n == 300
    apart, _ = measured(
        {"a": [(right, phi, np.arange(300) + 300 * k) for k in range(5)]}, (0.6,), {"a": range(5)}, 0.95, 500
    )
    assert apart["high"].item() - apart["low"].item() < 0.6 * (five["high"].item() - five["low"].item())


def test_where_the_measured_ratio_lies():
    rows = [("x", 0.5, 0.4, 0.6, 0.7), ("y", 0.5, 0.4, 0.6, 0.3), ("z", 0.5, 0.4, 0.6, 0.55)]
    lines = pd.DataFrame(rows, columns=["policy", "value", "low", "high", "local"]).assign(weight=0.6)
    lines = pd.concat([lines, lines.assign(weight=1.0, policy="other")])
    assert beside_local(lines, 0.6) == (
        "x 0.500 [0.400, 0.600], below the local case's 0.700; "
        "y 0.500 [0.400, 0.600], above the local case's 0.300; "
        "z 0.500 [0.400, 0.600], not told apart from the local case's 0.550"
    )
