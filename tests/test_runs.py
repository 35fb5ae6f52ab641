"""Reading what training and evaluation left: shapes, marks, and the refusal of unfinished runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from notebook_factory import PROJECT

from rlvr.analysis.runs import load_metrics, load_records, load_samples, token_counts
from rlvr.analysis.study import of_scale
from rlvr.config import load_scale
from rlvr.storage import write_json

STEPS = 3
PER_STEP = 8  # responses per step
RECORDED = ((0, 0), (2, 0), (4, 1), (6, 1))  # response of the step, its minibatch


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = load_scale(PROJECT / "params.yaml")
    train = whole.train.model_copy(update={"lags": (0, 2), "steps": STEPS})
    return of_scale(whole.model_copy(update={"scale": "tiny", "seeds": (0, 4), "train": train}))


def write_run(study, arm, seed, lag, reached=STEPS, stopped="clip_fraction"):
    """A finished run: reward = seed + step / 10, ``tokens`` of position 0 tells seed, step and response."""
    folder = study.run_folder(arm, seed, lag)
    folder.mkdir(parents=True)
    steps = [{"step": t, "reward": seed + t / 10} for t in range(STEPS)]
    if stopped:
        steps = [row | {stopped: row["step"] / 100} for row in steps]
    steps[0]["val_pass1"] = 0.25
    steps[-1]["val_pass1_after"] = 0.5 + seed / 10
    pd.DataFrame(steps).to_parquet(folder / "metrics.parquet", index=False)
    records = [
        {"step": t, "minibatch": m, "response": t * PER_STEP + r, "position": p, "token": 7 + seed}
        for t in range(STEPS)
        for r, m in RECORDED
        for p in range(2)
    ]
    small = {"step": "int16", "minibatch": "int8", "response": "int32", "position": "int16", "token": "int16"}
    pd.DataFrame(records).astype(small).to_parquet(folder / "records.parquet", index=False)
    summary = {
        "reached_step": reached, "requested_steps": STEPS,
        "tokens_generated": 1000 + seed + lag, "tokens_trained": 2000, "responses_verified": 24,
    }  # fmt: skip
    write_json(folder / "summary.json", summary)
    return folder


@pytest.fixture
def runs(study):
    for arm, stopped in (("grpo", "clip_fraction"), ("nfpo", "masked_fraction"), ("uncorrected", None)):
        for seed in study.seeds:
            for lag in study.train.lags:
                write_run(study, arm, seed, lag, stopped=stopped)
    return study


def test_folder_of_a_run(study):
    assert study.run_folder("nfpo", 4, 2) == Path("runs/tiny/train/nfpo/seed4/lag2")


def test_metrics_have_one_row_per_step_and_one_for_what_came_after(runs):
    frame = load_metrics(runs, ["grpo", "nfpo"])
    assert list(frame.columns[:4]) == ["arm", "lag", "seed", "step"]
    assert len(frame) == 2 * 2 * 2 * (STEPS + 1)
    assert not frame.duplicated(["arm", "lag", "seed", "step"]).any()
    assert "val_pass1_after" not in frame
    for (arm, lag, seed), run in frame.groupby(["arm", "lag", "seed"]):
        assert run["step"].tolist() == [0, 1, 2, 3], (arm, lag)
        assert run["reward"].tolist()[:3] == [seed, seed + 0.1, seed + 0.2]
        validation = run.set_index("step")["val_pass1"]
        assert validation[[0, 3]].tolist() == [0.25, 0.5 + seed / 10]
        assert validation[[1, 2]].isna().all()
        last = run.iloc[-1].drop(["arm", "lag", "seed", "step", "val_pass1"])
        assert last.isna().all()


def test_a_lost_gradient_has_one_name_in_all_arms(runs):
    frame = load_metrics(runs, ["grpo", "nfpo"])
    for arm in ("grpo", "nfpo"):
        shares = frame[(frame["arm"] == arm) & (frame["step"] < STEPS)]
        assert (shares["stopped_share"] == shares["step"] / 100).all()
    assert load_metrics(runs, ["uncorrected"])["stopped_share"].isna().all()


def test_records_of_a_response_keep_one_name_over_seeds(runs):
    frame = load_records(runs, "nfpo", 0)
    assert len(frame) == 2 * STEPS * len(RECORDED) * 2
    by_response = frame.groupby("run_response")
    assert len(by_response) == 2 * STEPS * len(RECORDED)
    assert (by_response["seed"].nunique() == 1).all() and (by_response["response"].nunique() == 1).all()
    assert not frame.duplicated(["run_response", "position"]).any()
    assert (frame["token"] == 7 + frame["seed"]).all()


@pytest.mark.parametrize(
    ("lag", "on_policy"),
    [(0, {(0, 0), (1, 0), (2, 0)}), (2, {(0, 0)})],  # (step, minibatch)
)
def test_on_policy_is_only_what_the_current_weights_sampled(runs, lag, on_policy):
    frame = load_records(runs, "nfpo", lag)
    found = frame.loc[~frame["off_policy"], ["step", "minibatch"]].drop_duplicates()
    assert set(found.itertuples(index=False, name=None)) == on_policy


@pytest.mark.parametrize("reader", [load_metrics, token_counts])
def test_an_unfinished_run_is_no_short_curve(study, reader):
    for seed in study.seeds:
        for lag in study.train.lags:
            write_run(study, "grpo", seed, lag, reached=STEPS - (seed == 4 and lag == 2))
    with pytest.raises(ValueError, match=r"grpo/seed4/lag2: reached step 2 of 3"):
        reader(study, ["grpo"])
    with pytest.raises(ValueError, match=r"grpo/seed4/lag2: reached step 2 of 3"):
        load_records(study, "grpo", 2)
    assert len(load_records(study, "grpo", 0))


@pytest.mark.parametrize("reader", [load_metrics, token_counts])
def test_a_missing_run_is_not_left_out(runs, reader):
    (runs.run_folder("nfpo", 4, 0) / "summary.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"nfpo/seed4/lag0 holds no finished run"):
        reader(runs, ["grpo", "nfpo"])
    with pytest.raises(FileNotFoundError, match="holds no finished run"):
        load_records(runs, "nfpo", 0)


def test_token_counts_add_up_seeds(runs):
    frame = token_counts(runs, ["grpo", "nfpo"]).set_index(["arm", "lag"])
    assert frame.loc[("nfpo", 0)].to_dict() == {
        "tokens_generated": 2004, "tokens_trained": 4000, "responses_verified": 48,
    }  # fmt: skip
    assert frame.loc[("grpo", 2), "tokens_generated"] == 2008
    assert len(frame) == 4


def test_samples_of_all_arms_are_joined_and_a_missing_arm_is_named(study):
    first, second = study.ablations.arms[:2]
    whole = {"base": ["base"] * 2, "nfpo": ["nfpo"] * 2, first: [first, second], "dppo_tv": ["grpo"]}
    for arm, arms in whole.items():
        ((path, _),) = study.sample_files(arm)
        path.parent.mkdir(parents=True)
        right = pd.array([None, True][: len(arms)], dtype="boolean")
        pd.DataFrame({"problem": ["a", "b"][: len(arms)], "arm": arms, "correct": right}).to_parquet(
            path, index=False
        )
    frame = load_samples(study, ["base", "nfpo", second])  # of the ablations' common file only what was asked
    assert frame["arm"].tolist() == ["base", "base", "nfpo", "nfpo", second]
    assert frame["correct"].dtype == "boolean"
    assert frame["correct"].isna().tolist() == [True, False, True, False, False]
    with pytest.raises(FileNotFoundError, match="the evaluation of 'grpo' makes it"):
        load_samples(study, ["base", "grpo"])
    with pytest.raises(ValueError, match="holds no samples of 'dppo_tv'"):
        load_samples(study, ["dppo_tv"])
