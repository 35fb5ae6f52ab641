"""Prop. E.4: enumeration, simulation and groups against each other."""

from __future__ import annotations

import numpy as np
import pytest

from rlvr.analysis.shaping_variance import local_ratio, measured, proposition, simulated


def test_the_proposition_holds_on_every_case():
    found = proposition()
    assert len(found) == 96
    assert found["error"].max() < 1e-12 and (found["agrees"] == 1).all()
    assert found["local_error"].max() < 1e-12 and found["local_error"].isna().sum() == 48


def test_a_wrong_bound_would_be_seen():
    found = proposition(cases=[(2, 0.5, 0.6, 0.6)], weights=[0.5, 5.0, 50.0])
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
        runs.append((right.astype(float), np.where(right, 0.0, 0.5 * (rng.random(right.shape) < 0.3))))
    lines, table = measured({"a": runs}, (0.0, 0.6, 1.2), {"a": (0, 1)}, 0.95, 200)
    assert lines["value"].to_numpy() == pytest.approx(lines["local"].to_numpy(), abs=0.02)
    (row,) = table.to_dict("records")
    assert row["groups"] == 4000 and row["accuracy"] == pytest.approx(0.4, abs=0.02)
    assert row["2C/V"].value == pytest.approx(4 * 0.4 / (1 - 0.6 * 0.3), rel=0.15)
    assert row["2C/V"].seeds == (0, 1)
    assert local_ratio(0.4, 0.15, 0.075, 4, [0.0]) == pytest.approx([1.0])


def test_mixed_difficulties_are_not_the_local_case():
    """Half of the groups all right, half all wrong: within groups nothing varies but the shaping."""
    right = np.repeat([[1.0] * 4, [0.0] * 4, [1.0, 0.0, 0.0, 0.0]], 300, axis=0)
    rng = np.random.default_rng(1)
    phi = np.where(right == 1, 0.0, 0.5 * (rng.random(right.shape) < 0.5))
    lines, _ = measured({"a": [(right, phi)]}, (0.6,), {"a": (0,)}, 0.95, 200)
    assert abs(lines["value"].item() - lines["local"].item()) > 0.05
