"""Ablations: labels come from the recipes, accuracies are over seeds, presets stand side by side."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from rlvr.analysis.ablations import (
    ablation_frame,
    ablation_groups,
    differences,
    final_accuracy,
    horizon_arms,
    preset_table,
)
from rlvr.analysis.corrections import pool
from rlvr.analysis.dynamics import trace_variance, traced_ratio
from rlvr.analysis.recipe_changes import change, settings_of
from rlvr.analysis.study import Study, of_scale
from rlvr.config import Scale, load_scale
from rlvr.reporting.cells import Exact
from rlvr.reporting.table import Table

ROOT = Path(__file__).parents[1]
NFPO = {"objective": "nfpo", "horizon": 4, "trace_clip": [0.8, 1.4], "ratio_clip": 3.0, "delta": 0.2}
TRACE, RECOMPUTED, MASK = "trace clip range", "recomputed log-probs and ratio clip", "token mask"


def study_with(recipes=None, ablations=None, **fields) -> Study:
    """The laptop's study with some recipes changed or added; new ones are trained as ablations."""
    raw = load_scale(ROOT / "params.yaml").model_dump()
    raw["recipes"] |= recipes or {}
    if ablations is not None:
        raw["ablations"]["arms"] = ablations
    return of_scale(Scale.model_validate(raw | fields))


def one_change(arm, **parameters):
    """(group, label) of an arm that is NFPO with other parameters."""
    return change(study_with({arm: NFPO | parameters}, [arm]), arm)


# --- what an arm changes ----------------------------------------------------------------------------------


def test_groups_of_the_laptop_s_recipes():
    front = [("dppo_tv", "DPPO-TV"), ("nfpo", "NFPO")]
    assert ablation_groups(study_with()) == {
        TRACE: [
            *front,
            ("nfpo_trace_06_12", "trace in [0.6, 1.2]"),
            ("nfpo_trace_08_12", "trace in [0.8, 1.2]"),
        ],
        RECOMPUTED: [
            *front,
            ("nfpo_recompute", "all ratios recomputed"),
            ("nfpo_recompute_trace", "trace recomputed"),
            ("nfpo_no_ratio_clip", "no ratio clip"),
        ],
        MASK: [*front, ("nfpo_kl", "KL mask"), ("nfpo_clip", "PPO-clip mask"), ("nfpo_band", "IcePop band")],
    }


def test_horizons_of_the_laptop_s_recipes():
    arms = horizon_arms(study_with())
    assert list(arms.items()) == [
        (1, "dppo_tv"),
        (2, "nfpo_n2"),
        (4, "nfpo"),
        (8, "nfpo_n8"),
        (16, "nfpo_n16"),
    ]


def test_only_trained_arms_stand_in_a_group():
    study = study_with(ablations=["nfpo_kl", "fipo", "nfpo_n8"])
    assert list(ablation_groups(study)) == [MASK]
    assert [arm for arm, _ in ablation_groups(study)[MASK]] == ["dppo_tv", "nfpo", "nfpo_kl"]
    assert horizon_arms(study) == {1: "dppo_tv", 4: "nfpo", 8: "nfpo_n8"}
    assert ablation_groups(study_with(ablations=["fipo"])) == {}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"horizon": 6}, ("horizon", "NFPO, N=6")),
        ({"trace_clip": None}, (TRACE, "no trace clip")),
        ({"trace_clip": [0.5, 2]}, (TRACE, "trace in [0.5, 2]")),
        ({"ratio_clip": 5.0}, (RECOMPUTED, "ratio clip 5")),
        ({"recompute": "trace"}, (RECOMPUTED, "trace recomputed")),
        ({"delta": 0.1}, (MASK, "TV mask, delta 0.1")),
        ({"region": "none"}, (MASK, "no mask")),
        ({"region": "kl", "delta": None}, (MASK, "KL mask")),
        ({"region": "kl", "delta": 0.2}, (MASK, "KL mask, delta 0.2")),
        ({"region": "clip", "clip_high": 0.3}, (MASK, "PPO-clip mask, clip_high 0.3")),
        ({"region": "band", "band": [0.5, 2]}, (MASK, "IcePop band, band [0.5, 2]")),
        ({"window": "positions"}, None),  # in no figure
        ({"horizon": 8, "trace_clip": [0.8, 1.2]}, None),  # two changes
    ],
)
def test_one_change_is_named_by_its_value(parameters, expected):
    assert one_change("unnamed", **parameters) == expected


def test_what_stays_the_default_or_has_no_effect_is_no_change():
    assert one_change("unnamed", horizon=8, window="valid", region="tv", band=[0.5, 2]) == (
        "horizon",
        "NFPO, N=8",
    )
    with pytest.raises(ValueError, match=r"recipes\.unnamed trains exactly as recipes\.nfpo"):
        one_change("unnamed", clip_high=0.5, recompute="none", loss_agg_mode="token-mean")


@pytest.mark.parametrize(
    ("arm", "parameters", "told"),
    [
        ("nfpo_n8", {"horizon": 16}, "NFPO, N=16"),
        ("nfpo_n8", {"horizon": 8, "delta": 0.1}, "another horizon, mask"),
        ("nfpo_n8", {"horizon": 8, "loss_agg_mode": "token-sum"}, "another horizon, loss_agg_mode"),
        ("nfpo_trace_06_12", {"trace_clip": [0.6, 1.3]}, r"trace in \[0\.6, 1\.3\]"),
        ("nfpo_recompute", {"recompute": "trace"}, "trace recomputed"),
        ("nfpo_kl", {"region": "kl", "delta": 0.1}, "KL mask, delta 0.1"),
    ],
)
def test_a_recipe_that_is_not_what_its_label_says_is_refused(arm, parameters, told):
    study = study_with({arm: NFPO | parameters}, [arm])
    for read in (ablation_groups, horizon_arms):
        with pytest.raises(ValueError, match=rf"recipes\.{arm}: its label says .*{told}"):
            read(study)


def test_a_changed_nfpo_changes_what_the_others_differ_in():
    study = study_with({"nfpo": NFPO | {"trace_clip": [0.8, 1.2]}}, ["nfpo_n8"])
    with pytest.raises(ValueError, match=r"recipes\.nfpo_n8: .* another horizon, trace_clip than nfpo's"):
        horizon_arms(study)


def test_two_arms_of_one_horizon_are_refused():
    study = study_with({"unnamed": NFPO | {"horizon": 8}}, ["nfpo_n8", "unnamed"])
    with pytest.raises(ValueError, match="horizon=8 has two arms, 'nfpo_n8' and 'unnamed'"):
        horizon_arms(study)


@pytest.mark.parametrize(
    ("parameters", "differs"),
    [({"delta": 0.1}, "mask"), ({"loss_agg_mode": "seq-mean-token-mean"}, "loss_agg_mode")],
)
def test_dppo_is_horizon_1_only_if_it_trains_like_nfpo(parameters, differs):
    study = study_with({"dppo_tv": {"objective": "dppo_tv", "delta": 0.2} | parameters})
    with pytest.raises(
        ValueError, match=rf"recipes\.dppo_tv is not recipes\.nfpo with N = 1: {differs} differ"
    ):
        horizon_arms(study)


def test_groups_need_what_they_are_compared_with():
    with pytest.raises(ValueError, match=r"arms \['dppo_tv'\] are not trained"):
        ablation_groups(study_with(arms=("nfpo", "grpo")))


def test_settings_fill_in_defaults_and_shared_ones():
    study = study_with()
    found = settings_of(study, study.recipes["nfpo_kl"])
    assert found["mask"] == ("kl", {"delta": 0.05}) and found["trace_clip"] == (0.8, 1.4)
    assert (found["window"], found["recompute"], found["loss_agg_mode"]) == ("valid", "none", "token-mean")
    assert "rollout_log_prob" not in found and "delta" not in found


# --- accuracy ---------------------------------------------------------------------------------------------

#: arm -> seed -> share of the four verdicts of each of two problems.
ACCURACY = {
    "nfpo": {0: (0.5, 0.75), 1: (0.5, 0.25), 2: (1.0, 0.5)},
    "dppo_tv": {0: (0.25, 0.75), 1: (0.25, 0.25), 2: (0.5, 0.75)},
    "nfpo_release": {0: (0.0, 0.25), 1: (0.25, 0.0), 2: (0.25, 0.5)},
}


def samples(accuracy=None, lag=8, problems=("p", "q")) -> pd.DataFrame:
    rows = [
        {
            "arm": arm,
            "seed": seed,
            "lag": lag,
            "benchmark": "embedded",
            "problem": problem,
            "sample": i,
            "correct": i < 4 * share,
        }
        for arm, seeds in (accuracy or ACCURACY).items()
        for seed, shares in seeds.items()
        for problem, share in zip(problems, shares, strict=True)
        for i in range(4)
    ]
    return pd.DataFrame(rows).astype({"correct": "boolean"})


def student(values, confidence):
    half = (
        stats.t.ppf((1 + confidence) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    )
    return np.mean(values), np.mean(values) - half, np.mean(values) + half


def ends(estimate):
    return estimate.value, estimate.low, estimate.high


def test_final_accuracy_is_over_seeds_at_one_lag():
    other = samples({arm: {seed: (1.0, 1.0) for seed in (0, 1, 2)} for arm in ACCURACY}, lag=0)
    frame = final_accuracy(pd.concat([samples(), other]), ["dppo_tv", "nfpo"], 8, 0.9)
    assert list(frame.columns) == ["arm", "value", "low", "high", "points"]
    assert frame["arm"].tolist() == ["dppo_tv", "nfpo"]
    assert frame["points"].tolist() == [(0.5, 0.25, 0.625), (0.625, 0.375, 0.75)]
    for row, points in zip(frame.itertuples(), frame["points"], strict=True):
        assert (row.value, row.low, row.high) == pytest.approx(student(points, 0.9))


def test_one_seed_has_no_interval():
    frame = final_accuracy(samples({"nfpo": {3: (0.5, 0.75)}}), ["nfpo"], 8, 0.9)
    assert frame["value"].item() == 0.625 and frame[["low", "high"]].isna().all(axis=None)


def test_differences_are_paired_by_seed():
    shuffled = samples().sample(frac=1, random_state=1)
    found = differences(shuffled, {"a": ("nfpo", "dppo_tv"), "b": ("dppo_tv", "nfpo_release")}, 8, 0.9)
    assert list(found) == ["a", "b"]
    assert ends(found["a"]) == pytest.approx(student([0.125, 0.125, 0.125], 0.9)[:1] + (None, None))
    assert ends(found["b"]) == pytest.approx(student([0.375, 0.125, 0.25], 0.9))
    assert found["b"].seeds == (0, 1, 2)


def test_arms_with_other_seeds_or_problems_are_not_compared():
    fewer = {"nfpo": ACCURACY["nfpo"], "dppo_tv": {s: ACCURACY["dppo_tv"][s] for s in (0, 1)}}
    for a, b in (("nfpo", "dppo_tv"), ("dppo_tv", "nfpo")):
        with pytest.raises(ValueError, match=r"different seeds: .*\(0, 1, 2\)"):
            differences(samples(fewer), {"x": (a, b)}, 8, 0.9)
        with pytest.raises(ValueError, match="different seeds"):
            final_accuracy(samples(fewer), [a, b], 8, 0.9)
    moved = pd.concat(
        [
            samples({"nfpo": ACCURACY["nfpo"]}),
            samples({"dppo_tv": ACCURACY["dppo_tv"]}, problems=("p", "r")),
        ]
    )
    with pytest.raises(ValueError, match="different problems"):
        differences(moved, {"x": ("nfpo", "dppo_tv")}, 8, 0.9)


def test_an_arm_without_samples_is_named():
    with pytest.raises(ValueError, match=r"no rows of arms \['fipo'\] with lag 8"):
        final_accuracy(samples(), ["nfpo", "fipo"], 8, 0.9)
    with pytest.raises(ValueError, match=r"\['dppo_tv', 'nfpo'\] with lag 0"):
        differences(samples(), {"x": ("dppo_tv", "nfpo")}, 0, 0.9)
    with pytest.raises(ValueError, match="arms is empty"):
        final_accuracy(samples(), [], 8, 0.9)


def test_the_figure_s_rows_are_the_groups_with_their_numbers():
    study = study_with(ablations=["nfpo_kl", "nfpo_trace_06_12"])
    values = {"nfpo": 0.5, "dppo_tv": 0.4, "nfpo_kl": 0.3, "nfpo_trace_06_12": 0.45, "fipo": 0.1}
    accuracy = pd.DataFrame({"arm": list(values), "value": list(values.values()), "low": 0.0, "high": 1.0})
    frame = ablation_frame(study, accuracy)
    assert frame[["group", "arm", "label", "is_baseline", "value"]].values.tolist() == [
        [TRACE, "dppo_tv", "DPPO-TV", True, 0.4],
        [TRACE, "nfpo", "NFPO", True, 0.5],
        [TRACE, "nfpo_trace_06_12", "trace in [0.6, 1.2]", False, 0.45],
        [MASK, "dppo_tv", "DPPO-TV", True, 0.4],
        [MASK, "nfpo", "NFPO", True, 0.5],
        [MASK, "nfpo_kl", "KL mask", False, 0.3],
    ]
    with pytest.raises(ValueError, match=r"no rows of arms \['nfpo_kl'\]"):
        ablation_frame(study, accuracy[accuracy["arm"] != "nfpo_kl"])
    assert ablation_frame(study_with(ablations=["fipo"]), accuracy).empty


# --- presets ----------------------------------------------------------------------------------------------


def records() -> pd.DataFrame:
    rng, rows = np.random.default_rng(0), []
    for seed, step, response in itertools.product((0, 1, 2), range(3), range(4)):
        for position in range(int(rng.integers(6, 14))):
            rows.append(
                {
                    "seed": seed,
                    "step": step,
                    "position": position,
                    "token": 2,
                    "run_response": (seed * 3 + step) * 4 + response,
                    "log_prob": rng.normal(0, 0.1 + 0.1 * seed),
                    "old_log_prob": 0.0,
                }
            )
    return pd.DataFrame(rows).astype({"log_prob": "float32", "old_log_prob": "float32"})


@pytest.fixture(scope="module")
def data():
    return pool(records())


@pytest.fixture(scope="module")
def table(data):
    return preset_table(study_with(), samples(), data, 50, 0.9).set_index("setting")


def test_the_settings_of_both_presets(table):
    shown = table.iloc[:9][["text", "release"]].values.tolist()
    assert shown == [
        [Exact(4), Exact(8)],
        ["[0.8, 1.4]", "[0.8, 1.2]"],
        [Exact(3.0), Exact(3.0)],
        ["factors of the trace", "factors of the trace"],
        ["TV mask", "TV mask"],
        [Exact(0.2), Exact(0.2)],
        ["valid tokens", "positions"],
        ["token-mean", "seq-mean-token-sum-norm"],
        ["unbiased std", "nothing"],
    ]
    assert set(table.iloc[:9]["release - text"]) == {"-"}
    assert all("release" in source for source in table.iloc[:9]["source"])


def test_the_accuracy_of_both_presets_is_paired(table):
    row = table.loc["final pass@1, lag 8"]
    assert ends(row["text"]) == pytest.approx(student([0.625, 0.375, 0.75], 0.9))
    assert ends(row["release"]) == pytest.approx(student([0.125, 0.125, 0.375], 0.9))
    assert ends(row["release - text"]) == pytest.approx(student([-0.5, -0.25, -0.375], 0.9))


def by_seed(data, horizon, high, quantity):
    """(one number per seed, the number of all seeds together), from a loop over the weights."""
    weights = traced_ratio(data.log_ratio, data.mask, horizon, 3.0, (0.8, high))
    found, pooled = [], []
    for seed in data.seeds:
        rows = [w[m].tolist() for w, m, s in zip(weights, data.mask, data.seed, strict=True) if s == seed]
        if quantity == "switch frequency":
            values = [(a > 1) != (b > 1) for w in rows for a, b in itertools.pairwise(w)]
        else:
            values = [abs(x - 1) for w in rows for x in w]
        found.append(np.mean(values))
        pooled += values
    return np.array(found), np.mean(pooled)


@pytest.mark.parametrize("quantity", ["switch frequency", "correction strength"])
def test_both_traces_on_the_same_records(table, data, quantity):
    text, text_pooled = by_seed(data, 4, 1.4, quantity)
    release, release_pooled = by_seed(data, 8, 1.2, quantity)
    row = table.loc[quantity]
    assert ends(row["release - text"]) == pytest.approx(student(release - text, 0.9))
    assert row["release - text"].seeds == (0, 1, 2)
    assert row["text"].value == pytest.approx(text_pooled)
    assert row["release"].value == pytest.approx(release_pooled)
    assert row["text"].low < row["text"].value < row["text"].high


def test_the_variance_is_the_median_over_steps(table, data):
    medians = []
    for horizon, clip in ((4, (0.8, 1.4)), (8, (0.8, 1.2))):
        of_seed = []
        for seed in data.seeds:
            steps = []
            for step in range(3):
                rows = torch.from_numpy((data.seed == seed) & (data.step == step))
                moments = trace_variance(data.log_ratio[rows], data.mask[rows], [horizon], 3.0, clip, "valid")
                steps.append(moments[horizon]["clipped"].variance)
            of_seed.append(steps)
        medians.append(of_seed)
    row = table.loc["trace variance"]
    assert row["text"].value == pytest.approx(np.median(medians[0]))
    assert row["release"].value == pytest.approx(np.median(medians[1]))
    difference = np.median(medians[1], axis=1) - np.median(medians[0], axis=1)
    assert ends(row["release - text"]) == pytest.approx(student(difference, 0.9))


def test_windows_are_told_to_be_the_same_only_without_holes(table):
    assert "no response has a hole" in table.loc["window of the trace", "source"]
    holes = pool(records().query("position != 3"))
    holed = preset_table(study_with(), samples(), holes, 50, 0.9).set_index("setting")
    assert "hole" not in holed.loc["window of the trace", "source"]
    positions, valid = (
        traced_ratio(holes.log_ratio, holes.mask, 8, 3.0, (0.8, 1.2), window)
        for window in ("positions", "valid")
    )
    strength = holed.loc["correction strength", "release"].value
    assert strength == pytest.approx(float((positions[holes.mask] - 1).abs().mean()))
    assert strength != pytest.approx(float((valid[holes.mask] - 1).abs().mean()))


def test_the_table_may_be_shown(table):
    shown = Table.from_frame(table.reset_index())
    assert "final pass@1, lag 8" in shown.markdown() and len(shown.rows) == 13


@pytest.mark.parametrize(
    ("recipes", "message"),
    [
        ({"nfpo": NFPO | {"horizon": 8}}, r"recipes\.nfpo is not the preset 'text': {'horizon': 8}"),
        (
            {"nfpo_release": NFPO | {"horizon": 8, "trace_clip": [0.8, 1.2], "window": "positions"}},
            r"recipes\.nfpo_release is not the preset 'release': .*loss_agg_mode.*advantage_std",
        ),
    ],
)
def test_a_recipe_that_is_not_its_preset_is_refused(data, recipes, message):
    with pytest.raises(ValueError, match=message):
        preset_table(study_with(recipes), samples(), data, 50, 0.9)


def test_presets_need_the_release_s_samples(data):
    with pytest.raises(ValueError, match="nfpo_release"):
        preset_table(study_with(), samples({"nfpo": ACCURACY["nfpo"]}), data, 50, 0.9)
