"""Scores of IBPO's methods against slow loops, and the tests on them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from ibpo_runs import PROBLEMS, revised_frame, sample_frame, selected_frame
from scipy import stats

from rlvr.analysis.ibpo_scores import (
    BASELINES,
    LABELS,
    accuracy,
    bootstrapped,
    by_seed,
    difference,
    differences,
    gain_contrast,
    gain_frame,
    p_text,
    p_value_table,
    revision_note,
    revision_shares,
    score_frame,
    score_table,
    sets_of,
)

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def samples():
    return sample_frame()


@pytest.fixture(scope="module")
def scores(samples):
    return score_frame(samples, revised_frame(), selected_frame(samples))


def of(samples, arm, seed):
    own = samples[(samples["arm"] == arm) & (samples["seed"] == seed)]
    return {p: own[own["problem"] == p]["correct"].astype(int).tolist() for p in PROBLEMS}


def student(values, confidence=0.9):
    half = (
        stats.t.ppf((1 + confidence) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    )
    return np.mean(values), np.mean(values) - half, np.mean(values) + half


def check(estimate, expected):
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx(expected, abs=1e-12)


def test_every_method_has_every_seed_and_problem(scores):
    methods = set(LABELS)
    assert set(scores["method"]) == methods
    assert len(scores) == len(methods) * len(SEEDS) * len(PROBLEMS)
    assert scores.notna().all(axis=None)
    one = scores.drop_duplicates("problem").set_index("problem")
    assert one["difficulty"].to_dict() == PROBLEMS
    assert one["base"].tolist() == [k / 8 for k in range(9)]


def test_scores_of_trained_and_revised_are_shares(samples, scores):
    found = scores.set_index(["method", "seed", "problem"])["score"]
    for arm, seed in (("ibpo", 1), ("score", 2)):
        for problem, right in of(samples, arm, seed).items():
            assert found[arm, seed, problem] == sum(right) / 8
    revised = revised_frame()
    own = revised[
        (revised["method"] == "score_second") & (revised["seed"] == 0) & (revised["problem"] == "p4")
    ]
    assert found["score_second", 0, "p4"] == own["correct"].mean()


def test_best_of_8_is_the_mean_over_all_orders(samples):
    """Of three samples, by listing their orders: the first that passes, else the first."""
    few = samples[samples["sample"] < 3]
    scores = score_frame(few, revised_frame(), selected_frame(few))
    found = scores.set_index(["method", "seed", "problem"])["score"]
    chosen = selected_frame(few).set_index(["method", "seed", "problem", "sample"]).sort_index()
    for problem in PROBLEMS:
        own = chosen.loc["gspo_best", 1, problem]
        taken = []
        for order in itertools.permutations(range(3)):
            first = next((s for s in order if own["passes"][s] == 1), order[0])
            taken.append(float(own["correct"][first]))
        assert found["gspo_best", 1, problem] == pytest.approx(np.mean(taken))


def test_accuracy_and_paired_difference_by_a_loop(scores):
    table = scores.pivot(index=["method", "seed"], columns="problem", values="score")
    values = [table.loc["ibpo", s].mean() for s in SEEDS]
    assert by_seed(scores, "ibpo").tolist() == pytest.approx(values)
    check(accuracy(scores, "ibpo", 0.9), student(values))
    paired = [(table.loc["ibpo", s] - table.loc["gspo", s]).mean() for s in SEEDS]
    check(difference(scores, "ibpo", "gspo", 0.9), student(paired))
    assert difference(scores, "gspo", "ibpo", 0.9).value == pytest.approx(-np.mean(paired))
    boot = bootstrapped(scores, "ibpo", 0.9, 500)
    assert boot.value == pytest.approx(np.mean(values)) and min(values) <= boot.low < boot.high <= max(values)


def test_differences_are_over_common_seeds_alone(scores):
    fewer = scores[(scores["method"] != "gspo") | (scores["seed"] != 1)]
    assert differences(fewer, "ibpo", "gspo").index.tolist() == [0, 2]
    with pytest.raises(ValueError, match="no seed in common"):
        differences(scores[scores["method"] != "gspo"], "ibpo", "gspo")
    lost = scores[~((scores["method"] == "gspo") & (scores["problem"] == "p3"))]
    with pytest.raises(ValueError, match="different problems"):
        differences(lost, "ibpo", "gspo")
    with pytest.raises(ValueError, match="no method 'gpso'"):
        by_seed(scores, "gpso")


def test_table_1_has_a_column_per_set(scores):
    table = score_table(scores, {"ibpo": "A", "gspo_best": "B"}, 0.9, 200)
    assert table.columns.tolist() == ["2 operations", "3 operations", "4 operations", "all"]
    rows = sets_of(scores)["3 operations"]
    assert table.loc["B", "3 operations"].value == pytest.approx(
        scores[rows & (scores["method"] == "gspo_best")]["score"].mean()
    )


def test_p_values(scores):
    table = p_value_table(scores, "ibpo", BASELINES, 0.9, 400)
    a, b = by_seed(scores, "ibpo"), by_seed(scores, "gspo")
    row = table.loc["GSPO"]
    assert row["p, Welch"] == p_text(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert row["p, paired t"] == p_text(stats.ttest_rel(a, b).pvalue)
    raw = [stats.ttest_rel(a, by_seed(scores, other)).pvalue for other in BASELINES]
    smallest = int(np.argmin(raw))
    assert table["p, Holm"].iloc[smallest] == p_text(min(1, len(raw) * raw[smallest]))
    alike = scores.assign(score=scores["score"].where(scores["method"] != "gspo", 0.5))
    same = p_value_table(alike, "ibpo", ["gspo"], 0.9, 400).loc["GSPO"]
    assert same["p, normal"] == "unknown" and same["p, paired t"] != "unknown"
    assert p_text(0.0001) == "below 0.001" and p_text(0.0123) == "0.012"


def test_gains_by_difficulty(scores):
    frame = gain_frame(scores, "ibpo", "gspo", 0.9).set_index(["by", "level"])
    hard = scores[scores["base"] <= 0.25]
    assert frame.loc[("base model", "hard"), "problems"] == 3
    assert frame.loc[("base model", "hard"), "estimate"] == difference(hard, "ibpo", "gspo", 0.9)
    assert frame.loc[("operations", "3"), "problems"] == 3
    easy = scores[scores["base"] >= 0.75]
    each = differences(hard, "ibpo", "gspo") - differences(easy, "ibpo", "gspo")
    check(gain_contrast(scores, "ibpo", "gspo", 0.9), student(each.to_numpy()))


def test_without_easy_problems_the_contrast_is_unknown(scores):
    assert math.isnan(gain_contrast(scores[scores["base"] < 0.5], "ibpo", "gspo", 0.9).value)
    assert set(gain_frame(scores[scores["base"] < 0.5], "ibpo", "gspo", 0.9)["level"]) == {
        "2",
        "3",
        "4",
        "hard",
        "middle",
    }


def test_a_real_difference_is_found():
    samples = sample_frame(lift={"ibpo": 0.95, "gspo": 0.2})
    scores = score_frame(samples, revised_frame(), selected_frame(samples))
    found = difference(scores, "ibpo", "gspo", 0.95)
    assert found.low > 0.4 and isinstance(scores, pd.DataFrame)


def test_what_revisions_spoil_and_repair():
    """Seed 0: of two right ones one is spoilt, of two wrong ones none is repaired; seed 1: of one right one
    none, of three wrong ones one."""
    before, after = [[1, 1, 0, 0], [1, 0, 0, 0]], [[1, 0, 0, 0], [1, 1, 0, 0]]

    def frame(values, **labels):
        rows = [
            {"seed": seed, "problem": "p", "sample": j, "correct": bool(v)}
            for seed, own in enumerate(values)
            for j, v in enumerate(own)
        ]
        return pd.DataFrame(rows).assign(**labels).astype({"correct": "boolean"})

    samples = pd.concat([frame(before, arm="gspo"), frame(after, arm="other")])
    revised = frame(after, method="gspo_prompt")[::-1]  # rows meet by their keys
    found = revision_shares(samples, revised, {"gspo_prompt": "gspo"}, 0.9)
    check(found.loc["gspo_prompt", "spoilt"], student([0.5, 0.0]))
    check(found.loc["gspo_prompt", "repaired"], student([0.0, 1 / 3]))
    check(found.loc["gspo_prompt", "again"], student([2 / 3, 1 / 3]))  # of the other three samples
    said = revision_note(found)
    assert said.startswith("GSPO with prompt: the revision spoils 0.250 [")
    assert "repairs 0.167 [" in said and "; drawn again, 0.500 [" in said
    alone = samples[samples["sample"] == 1], revised[revised["sample"] == 1]  # right in seed 0, wrong in 1
    single = revision_shares(*alone, {"gspo_prompt": "gspo"}, 0.9)
    assert math.isnan(single.loc["gspo_prompt", "again"].value) and "again" not in revision_note(single)
    with pytest.raises(ValueError, match="no revision of gspo's samples by 'score_second'"):
        revision_shares(samples, revised, {"score_second": "gspo"}, 0.9)
