"""IBPO's ablation tables on made-up runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from ibpo_runs import ARMS, revised_frame, sample_frame, selected_frame
from notebook_factory import PROJECT

from rlvr.analysis.ibpo_ablations import (
    CHOICES,
    PARTS,
    arms_over,
    changed,
    choice_table,
    claim_parts,
    fifths_table,
    over_seeds,
    part_table,
    seeds_note,
    setting_table,
    success_by_fifths,
    success_parts,
)
from rlvr.analysis.ibpo_scores import difference, score_frame
from rlvr.config import load_scale
from rlvr.reporting.cells import NOT_MEASURED
from rlvr.reporting.claims import DECLARED, decide
from rlvr.reporting.table import Table

SCALE = load_scale(PROJECT / "pipelines/scales/laptop/ibpo/params.yaml")
ABLATED = SCALE.ablation_arms
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def scores():
    samples = sample_frame((*ARMS, *ABLATED))
    return score_frame(samples, revised_frame(), selected_frame(samples))


@pytest.fixture(scope="module")
def metrics():
    """Ten steps of every run; arm i, seed s, step t corrects (i + s + t) / 100, and 0.1 s are rewrites."""
    frames = []
    for i, arm in enumerate((*ARMS, *ABLATED)):
        for seed in SEEDS:
            steps = np.arange(10)
            frame = pd.DataFrame({"step": steps, "reward": 0.5, "arm": arm, "seed": seed, "lag": 0})
            if arm not in ("gspo", "gspo8", "score"):
                frame["corrections_right"] = (i + seed + steps) / 100
                frame["rewrites"], frame["correction_distance"] = 0.1 * seed, 0.3
            after = pd.DataFrame([{"step": 10, "arm": arm, "seed": seed, "lag": 0}])
            frames += [frame, after]
    return pd.concat(frames, ignore_index=True)


def test_the_scale_has_an_arm_for_every_row_and_choice():
    assert {arm for arm, *_ in CHOICES.values()} <= set(ABLATED)
    assert set(PARTS) <= {*SCALE.arms, *ABLATED, "gspo_prompt"}
    for arm, other, _ in CHOICES.values():  # one thing, against what it is compared with
        of_arm, of_other = changed(SCALE, arm), changed(SCALE, other)
        differing = {k for k in {*of_arm, *of_other} if of_arm.get(k) != of_other.get(k)}
        recomputed = SCALE.recipes[arm].parameters != SCALE.recipes[other].parameters
        assert len(differing) + recomputed == 1, arm


def test_arms_over_a_setting():
    assert list(arms_over(SCALE, "alpha")) == [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8]
    assert arms_over(SCALE, "alpha")[0.6] == "ibpo"  # adaptive is no number
    weights = arms_over(SCALE, "shaping_weight")
    assert list(weights) == [0.0, 0.4, 0.6, 0.8, 1.0, 1.2] and weights[0.0] == "joint_only"
    with pytest.raises(ValueError, match=r"recipes\.gspo: has no block counterfactual"):
        changed(SCALE, "gspo")


def test_table_3(scores, metrics):
    table = part_table(scores, metrics, 0.9)
    assert table.index.tolist() == list(PARTS.values())
    row = table.loc["IBPO, shaping only"]
    assert row["minus the full method"] == difference(scores, "shaping_only", "ibpo", 0.9)
    assert row["steps"].value == 10
    i = (*ARMS, *ABLATED).index("shaping_only")
    assert row["corrections right, late"].value == pytest.approx((i + 1 + 8.5) / 100)  # steps 8 and 9
    assert table.loc["GSPO + prompt at test time", "corrections right, late"] is NOT_MEASURED
    Table.from_frame(table)


def test_tables_4_and_5(scores, metrics):
    table = setting_table(scores, metrics, arms_over(SCALE, "alpha"), "alpha", 0.9, {"flagged": "rewrites"})
    assert table.index.tolist() == ["0.5", "0.55", "0.6", "0.65", "0.7", "0.75", "0.8"]
    assert table.loc["0.5", "flagged"].value == pytest.approx(0.1)
    assert table.loc["0.6", "minus the paper's setting"] == ""
    assert table.loc["0.7", "minus the paper's setting"] == difference(scores, "alpha_70", "ibpo", 0.9)
    Table.from_frame(table)


def test_choices(scores, metrics):
    table = choice_table(SCALE, scores, metrics, 0.9).set_index("what the text leaves open")
    assert table.index.tolist() == list(CHOICES)
    found = table.loc["token that an insertion marks", "minus what we do"]
    assert found == difference(scores, "mask_no_insertions", "ibpo_mask", 0.9)
    Table.from_frame(table)
    assert over_seeds(metrics, "gspo", "rewrites", 0.9) is NOT_MEASURED


def test_claims_have_all_their_parts(scores):
    found = claim_parts(SCALE, scores, 0.9)
    for claim_id in ("ibpo-c4", "ibpo-c5"):
        claim = decide(claim_id, found[claim_id], scale="laptop", confidence=0.9, margin=0.02)
        assert claim.verdict in ("supported", "contradicted", "open")
    assert found["ibpo-c4"]["full - one trajectory"] == difference(scores, "ibpo", "one_trajectory", 0.9)
    assert found["ibpo-c5"]["weight 0.6 - 1.2"] == difference(scores, "ibpo", "weight_12", 0.9)
    up, down = (found["ibpo-c5"][f"alpha {pair}"].value for pair in ("0.55 - 0.60", "0.60 - 0.55"))
    assert up == pytest.approx(-down)
    assert claim_parts(SCALE, scores[scores["method"] != "joint_only"], 0.9).keys() == {"ibpo-c5"}


def test_seeds_stand_beside_what_rests_on_them(scores, metrics):
    """An ablation of two seeds beside a full method of three."""
    fewer = scores[(scores["method"] != "joint_only") | (scores["seed"] != 1)]
    table = part_table(fewer, metrics, 0.9)
    row = table.loc["IBPO, joint training only"]
    assert (row["its seeds"], row["seeds of the difference"]) == ("2 (0 2)", "2 (0 2)")
    assert row["minus the full method"].seeds == (0, 2)
    full = table.loc["IBPO"]
    assert (full["its seeds"], full["seeds of the difference"]) == ("3 (0 1 2)", "")
    more = table.loc["GSPO + prompt at test time"]
    assert more["seeds of the difference"] == "3 (0 1 2)"
    assert seeds_note(claim_parts(SCALE, fewer, 0.9)["ibpo-c4"]) == (
        "Over seeds 0, 1, 2, which both sides have: full - prompt only; full - one trajectory; "
        "full - shaping only. Over seeds 0, 2, which both sides have: full - joint only."
    )
    for other in (
        setting_table(fewer, metrics, arms_over(SCALE, "shaping_weight"), "lambda", 0.9, {}).loc["0"],
        choice_table(SCALE, fewer[fewer["method"] != "x"], metrics, 0.9).iloc[0],
    ):
        assert other["seeds of the difference"] == ("2 (0 2)" if other.name == "0" else "3 (0 1 2)")


def test_success_by_fifths(metrics):
    fifths = success_by_fifths(metrics, "ibpo")
    i = ARMS.index("ibpo")
    assert fifths.shape == (3, 5) and fifths.loc[1, 5] == pytest.approx((i + 1 + 8.5) / 100)
    parts = success_parts(fifths, 0.9)
    assert set(parts) == set(DECLARED["ibpo-c6"].parts)
    assert parts["last fifth - first fifth"].value == pytest.approx(0.08)
    assert parts["lowest fifth"].value == pytest.approx(np.mean([(i + s + 0.5) / 100 for s in SEEDS]))
    with pytest.raises(ValueError, match="do not fill five fifths"):
        success_by_fifths(metrics[metrics["step"] < 3], "ibpo")
    assert parts["highest fifth"].value == pytest.approx(np.mean([(i + s + 8.5) / 100 for s in SEEDS]))


def test_fifths_as_a_table():
    """Ten steps of two seeds; seed 1 has no such correction in the first fifth, nobody in the second."""
    rows = [
        {"arm": "ibpo", "seed": s, "step": t, "reward": 0.5, "copies_of_accepted": 0.1 * s + 0.01 * t}
        for s in (0, 1)
        for t in range(10)
    ]
    frame = pd.DataFrame(rows)
    frame.loc[(frame["step"] < 2) & (frame["seed"] == 1), "copies_of_accepted"] = np.nan
    frame.loc[frame["step"].isin((2, 3)), "copies_of_accepted"] = np.nan
    columns = {"copies_of_accepted": "copies", "not_logged": "other"}
    table = fifths_table(frame, "ibpo", columns, 0.9)
    first, second, *_, last = table["copies"]
    assert first.value == pytest.approx(0.005) and first.n == 1 and first.low is None
    assert second is NOT_MEASURED
    assert last.value == pytest.approx(0.085 + 0.05) and last.n == 2 and last.seeds == (0, 1)
    assert last.low < last.value < last.high
    assert all(cell is NOT_MEASURED for cell in table["other"])
    Table.from_frame(table)


@pytest.mark.parametrize("claim_id", [f"ibpo-c{n}" for n in range(1, 8)])
def test_every_claim_is_declared(claim_id):
    assert DECLARED[claim_id].test.format(margin=0.02, confidence=0.95)
