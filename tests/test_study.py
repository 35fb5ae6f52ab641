"""What analyses read of a scale and of a setting of experiments, and what they say of what is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from notebook_factory import PROJECT, environment
from setting_fixtures import (
    ABLATIONS,
    PROBLEMS,
    SEEDS,
    SETTING,
    STEPS,
    run_folder,
    samples_file,
    small_repository,
    small_tokenizer,
    write_runs,
)

from rlvr.analysis.ablations import ablation_groups, horizon_arms
from rlvr.analysis.accuracy import pass1_by_seed, seed_difference, select
from rlvr.analysis.hyperparameters import hyperparameter_table
from rlvr.analysis.recipe_changes import change
from rlvr.analysis.runs import OF_MODELS, load_metrics, load_records, load_samples, token_counts
from rlvr.analysis.setting_study import of_setting
from rlvr.analysis.study import Study, of_scale, study_of
from rlvr.analysis.token_categories import CATEGORIES, CONNECTIVE
from rlvr.analysis.vocabulary import OTHER_TOKENS, REASONING_TOKENS, of_tokenizer, vocabulary_of
from rlvr.config import Scale, load_scale, load_yaml
from rlvr.engines.jobs.experiments import load_experiments
from rlvr.reporting.cells import pretty
from rlvr.reporting.claims import DECLARED
from rlvr.reporting.claims_of_models import DECLARED_OF_MODELS, REASONING_PART
from rlvr.storage import read_json, write_json

GRAPH = "pipelines/scales/one_gpu/dvc.yaml"
PAPER = load_experiments(PROJECT / "pipelines/scales/paper/experiments.yaml")


# --- a scale ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["params.yaml", "pipelines/scales/smoke/params.yaml"])
def test_a_scale_s_study_has_its_sections_as_they_are(path):
    """tests/test_scales.py takes a read of the one for a read of the other."""
    scale = load_scale(PROJECT / path)
    study = study_of(PROJECT / path)
    shared = set(Study.__dataclass_fields__) & set(type(scale).model_fields)
    assert shared == {
        "scale", "seeds", "arms", "ablations", "recipes", "train", "evaluate", "dynamics", "report", "model",
        "problems", "paper",
    }  # fmt: skip
    assert all(getattr(study, name) == getattr(scale, name) for name in shared)
    assert study.run_folder("nfpo", 1, 0) == scale.run_folder("nfpo", 1, 0)
    for arm in (*scale.arms, *scale.ablations.arms):
        assert study.lags_of(arm) == scale.lags_of(arm)
    assert study.base == ("base",) and study.tests is DECLARED and not study.left_out


def test_a_scale_of_another_paper_has_its_own_folder_and_need_have_no_ablations():
    raw = load_yaml(PROJECT / "params.yaml")
    nfpo_s = ("ablations", "theory", "dynamics", "surrogate", "exactness")
    other = {k: v for k, v in raw.items() if k not in nfpo_s} | {"paper": "ibpo", "part": "other"}
    study = of_scale(Scale.model_validate(other))
    assert study.ablations is None and study.dynamics is None
    assert study.lags_of("nfpo") == study.train.lags
    assert study.tokenizers == ("runs/laptop/ibpo/other/base/model",)
    assert study.sample_files("grpo")[0][0] == Path("runs/laptop/ibpo/other/evaluate/grpo/samples.parquet")


def test_a_scale_imports_nothing_of_experiments():
    """Which is why the graph of a scale does not depend on it (tests/test_scales.py)."""
    look = (
        "import sys, rlvr.analysis.runs, rlvr.analysis.ablations, rlvr.analysis.hyperparameters, "
        "rlvr.analysis.table_by_set, rlvr.analysis.vocabulary\n"
        "from rlvr.analysis.study import study_of\n"
        "study_of('params.yaml')\n"
        "print([m for m in sys.modules if m.startswith(('rlvr.engines.jobs', 'rlvr.analysis.setting'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", look],
        cwd=PROJECT,
        env=environment(PYTHONPATH=str(PROJECT / "lib")),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_file_says_what_may_be_asked_of_it(tmp_path):
    with pytest.raises(
        ValueError, match=r"setting='nfpo-1.7b': .*params.yaml is a scale file; allowed is None"
    ):
        study_of(PROJECT / "params.yaml", "nfpo-1.7b")
    with pytest.raises(FileNotFoundError, match=r"does not exist"):
        study_of(tmp_path / "nothing.yaml")
    with pytest.raises(ValueError, match=r"setting=None: allowed with experiments are nfpo-1.7b, .*"):
        of_setting(PAPER, None)
    with pytest.raises(ValueError, match=r"setting='nfpo-1.7': did you mean 'nfpo-1.7b'"):
        of_setting(PAPER, "nfpo-1.7")
    without = PAPER.model_copy(update={"analysis": {}})
    with pytest.raises(
        ValueError, match=r"setting='ibpo-32b' is of paper ibpo, of which `analysis` in .* nothing"
    ):
        of_setting(without, "ibpo-32b")
    with pytest.raises(ValueError, match=r"ibpo-next-gspo cannot be run by verl yet; it needs an engine"):
        of_setting(PAPER, "ibpo-next")


# --- a setting, before anything ran -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "setting", "model"),
    [
        ("paper", "nfpo-1.7b", "Qwen3-1.7B-Base"),
        ("paper", "nfpo-8b", "Qwen3-8B-Base"),
        ("one_gpu", "nfpo-0.6b", "Qwen3-0.6B-Base"),
    ],
)
def test_the_settings_of_both_scales(tmp_path, scale, setting, model):
    file = load_experiments(PROJECT / f"pipelines/scales/{scale}/experiments.yaml")
    study, whole = of_setting(file, setting, tmp_path), file.settings[setting]
    assert study.scale == f"{scale}/{setting}" and study.model.endswith(model)
    assert study.arms == ("grpo", "dppo_tv", "nfpo") and study.seeds == whole.seeds
    assert study.ablations.arms == () and study.lags_of("nfpo") == (0,)
    assert set(study.left_out) == set(whole.run) - {"grpo", "dppo", "nfpo"}  # nothing was run
    train = study.train
    assert (train.steps, train.lr, train.group_size) == (whole.update.steps, whole.update.lr, 8)
    assert train.prompts_per_step * train.group_size // train.minibatches == whole.update.minibatch_responses
    assert study.report.margin == 0.02 and study.dynamics.segment == 50
    assert study.evaluate.pass_k[-1] * 2 == study.evaluate.samples == whole.evaluation.samples
    assert study.run_folder("dppo_tv", 2, 0) == tmp_path / scale / f"train/{setting}-dppo/seed2/lag0"
    (path, labels), *_ = study.sample_files("dppo_tv")
    assert path == tmp_path / scale / f"evaluate/{setting}-dppo/seed0/samples.parquet"
    assert labels == {"arm": "dppo_tv", "seed": 0, "lag": 0}


def test_recipes_say_what_an_arm_changes():
    study = of_setting(PAPER, "nfpo-1.7b")
    shared = {"loss_agg_mode": "seq-mean-token-sum-norm", "advantage_std": "none"}
    assert study.recipes["dppo_tv"].objective == "dppo_tv"
    assert study.recipes["dppo_tv"].parameters == {"delta": 0.2, "recompute": "none"} | shared
    assert study.recipes["grpo"].parameters["recompute"] == "all"
    assert study.recipes["fipo"].parameters["loss_agg_mode"] == "token-mean"
    assert study.recipes["nfpo"].parameters["trace_clip"] == [0.8, 1.4]
    assert change(study, "nfpo_kl") == ("token mask", "KL mask")
    assert change(study, "nfpo_band") == ("token mask", "IcePop band")
    assert change(study, "nfpo_recompute")[1] == "all ratios recomputed"
    assert change(study, "nfpo_no_ratio_clip")[1] == "no ratio clip"
    assert "grpo has recompute=all" in study.words.settings and "nfpo has" not in study.words.settings


def test_shared_settings_beside_the_paper_s():
    table = hyperparameter_table(of_setting(PAPER, "nfpo-1.7b")).set_index("setting")
    ours = {name: pretty(cell) for name, cell in table["ours"].items()}
    assert (
        ours["model"] == "Qwen/Qwen3-1.7B-Base" and ours["training problems"] == "math_train, level 3, 4, 5"
    )
    assert ours["age of rollouts, steps"] == "0" and ours["KL or entropy term"] == "none"
    agree = ["prompts per step", "responses per prompt", "responses per minibatch", "updates per step",
             "training steps", "learning rate", "sampling temperature, evaluation",
             "samples per problem, evaluation"]  # fmt: skip
    assert all(ours[name] == pretty(table.loc[name, "paper"]) for name in agree)
    large = hyperparameter_table(of_setting(PAPER, "nfpo-8b")).set_index("setting")["ours"]
    assert (
        large["training problems"] == "dapo_math_17k" and pretty(large["longest response, tokens"]) == "16384"
    )


def value(x):
    return {"value": x, "source": "choice: a test"}


def penalised(setting, _):
    setting["update"].update(kl_coef=value(0.001), divide_by_std=value(True), epochs=value(2))
    setting["update"].update(schedule=value("cosine"), warmup_ratio=value(0.05), min_lr_ratio=value(0.2))


def test_settings_that_the_paper_has_not(tmp_path):
    study = of_setting(small_repository(tmp_path, penalised), SETTING)
    table = hyperparameter_table(study).set_index("setting")["ours"]
    assert table["KL or entropy term"] == "KL 0.001"
    assert table["advantage"] == "group relative, divided by unbiased std"
    assert "gone through 2 times" in study.words.settings
    train = study.train
    assert (train.schedule, train.warmup_ratio, train.min_lr_ratio) == ("cosine", 0.05, 0.2)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda s, r: s.update(run=["dppo", "nfpo"]), "run lacks 'grpo', which analysis.nfpo.arms compares"),
        (
            lambda s, r: s["arms"]["grpo"].update(needs="a miracle"),
            "grpo cannot be run by verl yet; it needs a mir",
        ),
        (
            lambda s, r: (s["arms"].update(dppo_tv=s["arms"]["dppo"]), s["run"].append("dppo_tv")),
            "two arms are called 'dppo_tv'",
        ),
    ],
)
def test_a_setting_that_cannot_be_compared_says_why(tmp_path, alter, message):
    file = small_repository(tmp_path, alter)
    with pytest.raises(ValueError, match=message):
        of_setting(file, SETTING)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (
            lambda s, r: r["analysis"]["nfpo"]["report"].update(margin=0.02),
            "analysis.nfpo.report.margin = 0.02: has no",
        ),
        (lambda s, r: r["analysis"]["nfpo"].update(arms=value([])), r"arms=\[\] must name at least one"),
        (
            lambda s, r: r["analysis"]["nfpo"]["report"].pop("bootstrap"),
            "analysis.nfpo.report.bootstrap: Field req",
        ),
        (lambda s, r: r["analysis"].update(xyz=r["analysis"]["nfpo"]), r"analysis.xyz"),
    ],
)
def test_what_a_wrong_analysis_says(tmp_path, alter, message):
    with pytest.raises(ValueError, match=message):
        small_repository(tmp_path, alter)


# --- a setting with runs ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("setting")
    file = small_repository(root)
    write_runs(file, root, [arm for arm in ("grpo", "dppo", "nfpo", *ABLATIONS) if arm != "nfpo_n2"])
    return root, file


@pytest.fixture
def broken(whole, tmp_path):
    """A copy of the runs, to take something from."""
    shutil.copytree(whole[0] / "runs", tmp_path / "runs")
    return tmp_path, lambda: of_setting(whole[1], SETTING, tmp_path / "runs")


def test_ablations_that_were_not_run_are_left_out(whole):
    study = of_setting(whole[1], SETTING, whole[0] / "runs")
    assert study.ablations.arms == ("nfpo_release", "nfpo_n8", "nfpo_n16", "nfpo_kl", "fipo")
    assert set(study.left_out) == {"nfpo_n2", "nfpo_recompute_trace"}
    assert study.left_out["nfpo_n2"] == f"it was not run: dvc repro {GRAPH}:evaluate@nfpo-0.6b-nfpo_n2-0"
    assert study.left_out["nfpo_recompute_trace"].startswith("verl cannot run it yet; it needs a worker loss")
    assert horizon_arms(study) == {1: "dppo_tv", 4: "nfpo", 8: "nfpo_n8", 16: "nfpo_n16"}
    assert list(ablation_groups(study)) == ["token mask"]


def test_metrics_and_records_have_the_names_of_the_local_engine(whole):
    study = of_setting(whole[1], SETTING, whole[0] / "runs")
    metrics = load_metrics(study, study.arms)
    assert metrics.groupby(["arm", "lag", "seed"]).ngroups == 6 and metrics["step"].max() == STEPS
    assert {"reward", "val_pass1", "entropy", "grad_norm", "kl", "stopped_share", "response_length"} <= set(
        metrics
    )
    assert metrics[metrics["step"] < STEPS]["stopped_share"].notna().all()
    assert metrics.loc[metrics["step"] == STEPS, "val_pass1"].tolist() == [pytest.approx(0.26)] * 6
    records = load_records(study, "nfpo", 0)
    assert not records.duplicated(["run_response", "position"]).any()
    assert (records["off_policy"] == (records["minibatch"] > 0)).all()
    assert token_counts(study, ["nfpo"])["responses_verified"].item() == 2 * 256 * STEPS


def test_lost_metrics_are_an_unknown_count(broken):
    root, study = broken
    path = run_folder(root, "nfpo", 1) / "summary.json"
    write_json(path, read_json(path) | {"tokens_generated": None})
    counts = token_counts(study(), ["nfpo"]).iloc[0]
    assert np.isnan(counts["tokens_generated"]) and counts["tokens_trained"] == 2 * 5000 * STEPS


def test_samples_are_of_the_training_and_problems_have_their_benchmark(whole):
    study = of_setting(whole[1], SETTING, whole[0] / "runs")
    samples = load_samples(study, study.arms)
    assert list(samples) == [*OF_MODELS, "arm", "seed", "lag"]
    assert samples.groupby(["arm", "seed"]).ngroups == 6 and set(samples["seed"]) == set(SEEDS)
    assert samples["problem"].nunique() == sum(PROBLEMS.values())
    rows = select(samples, "dppo_tv", 0)
    by_hand = [
        np.mean([
            rows[(rows["seed"] == seed) & (rows["benchmark"] == name)]["correct"].astype(float).mean()
            for name in PROBLEMS
        ])
        for seed in SEEDS
    ]  # fmt: skip
    assert pass1_by_seed(rows).tolist() == pytest.approx(by_hand)
    difference = seed_difference(samples, "nfpo", "dppo_tv", 0, 0.95)
    paired = pass1_by_seed(select(samples, "nfpo", 0)) - pass1_by_seed(rows)
    assert difference.value == pytest.approx(paired.mean()) and difference.value > 0


# --- what is missing --------------------------------------------------------------------------------------


def test_a_missing_seed_names_the_arm_and_the_command(broken):
    root, study = broken
    shutil.rmtree(run_folder(root, "grpo", 1))
    samples_file(root, "dppo", 0).unlink()
    train = (
        rf"train/nfpo-0.6b-grpo/seed1/lag0 holds no finished run; dvc repro {GRAPH}:train@nfpo-0.6b-grpo-1$"
    )
    with pytest.raises(FileNotFoundError, match=train):
        load_metrics(study(), ["nfpo", "grpo"])
    evaluate = (
        rf"nfpo-0.6b-dppo/seed0/samples.parquet does not exist; dvc repro {GRAPH}:evaluate@nfpo-0.6b-dppo-0$"
    )
    with pytest.raises(FileNotFoundError, match=evaluate):
        load_samples(study(), ["nfpo", "dppo_tv"])


def test_a_half_trained_arm_says_how_far_its_job_is(broken):
    root, study = broken
    shutil.rmtree(run_folder(root, "nfpo", 0))
    checkpoints = root / "runs/one_gpu/jobs/nfpo-0.6b-nfpo-s0/checkpoints"
    (checkpoints / "global_step_150/actor").mkdir(parents=True)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("150")
    for load in (lambda: load_metrics(study(), ["nfpo"]), lambda: load_records(study(), "nfpo", 0)):
        with pytest.raises(
            FileNotFoundError, match=r"train@nfpo-0.6b-nfpo-0 \(its job has saved step 150 of 200\)"
        ):
            load()


@pytest.mark.parametrize(
    ("take", "reason"),
    [
        (
            lambda root: shutil.rmtree(run_folder(root, "fipo", 1)),
            "seed 1 is not trained: dvc repro .*train@.*-fipo-1",
        ),
        (
            lambda root: samples_file(root, "fipo", 0).unlink(),
            "seed 0 is not evaluated: dvc repro .*evaluate@.*-fipo-0",
        ),
        (
            lambda root: write_json(
                run_folder(root, "fipo", 1) / "summary.json", {"reached_step": 3, "requested_steps": STEPS}
            ),
            "seed 1 reached step 3 of 8: dvc repro .*train@.*-fipo-1",
        ),
    ],
)
def test_an_ablation_in_part_is_left_out_with_a_reason(broken, take, reason):
    root, study = broken
    take(root)
    found = study()
    assert "fipo" not in found.ablations.arms
    assert pd.Series(found.left_out)[["fipo"]].str.match(reason).all(), found.left_out["fipo"]


def test_a_short_run_of_a_compared_arm_is_an_error(broken):
    root, study = broken
    path = run_folder(root, "nfpo", 1) / "summary.json"
    write_json(path, read_json(path) | {"reached_step": 3})
    with pytest.raises(
        ValueError, match=r"seed1/lag0: reached step 3 of 8; dvc repro .*train@nfpo-0.6b-nfpo-1"
    ):
        load_metrics(study(), ["nfpo"])


def test_other_problems_are_an_error(broken):
    root, study = broken
    path = samples_file(root, "nfpo", 1)
    frame = pd.read_parquet(path)
    frame[(frame["benchmark"] != "amc23") | (frame["problem"] != "0")].to_parquet(path)
    message = (
        rf"nfpo-0.6b-nfpo/seed1/samples.parquet: lacks 1 problems of .* dvc repro --force --single-item "
        rf"{GRAPH}:evaluate@nfpo-0.6b-nfpo-1$"
    )
    with pytest.raises(ValueError, match=message):
        load_samples(study(), study().arms)


def test_an_unknown_arm_is_named(whole):
    study = of_setting(whole[1], SETTING, whole[0] / "runs")
    with pytest.raises(
        ValueError, match=r"arm='nfpo_kk': did you mean 'nfpo_kl'.* of settings.nfpo-0.6b.run"
    ):
        load_metrics(study, ["nfpo_kk"])


def test_a_setting_without_records_says_so(tmp_path):
    file = small_repository(tmp_path, lambda s, _: s["records"].update(responses=value(0)))
    write_runs(file, tmp_path, ["grpo", "dppo", "nfpo"], records=False)
    study = of_setting(file, SETTING, tmp_path / "runs")
    assert not study.records
    with pytest.raises(
        FileNotFoundError, match=r"kept no records; settings.nfpo-0.6b.records.responses is 0"
    ):
        load_records(study, "nfpo", 0)


def test_lost_records_say_what_makes_them(broken):
    root, study = broken
    (run_folder(root, "nfpo", 1) / "records.parquet").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"seed1/lag0/records.parquet does not exist: .*train@nfpo-0.6b-nfpo-1"
    ):
        load_records(study(), "nfpo", 0)


# --- tokens -----------------------------------------------------------------------------------------------


def test_tokens_of_a_model_have_text_and_category():
    tokenizer = small_tokenizer()
    found = of_tokenizer(tokenizer, largest=len(tokenizer) + 2)
    ids = {text: i for i, text in enumerate(map(found.text, range(len(found.tokens))))}
    assert found.categories[ids[" Therefore"]] == CONNECTIVE and found.of_interest[ids[" Therefore"]]
    assert found.classes[ids[" Therefore"]] == REASONING_TOKENS and found.classes[ids[" sum"]] == OTHER_TOKENS
    assert found.classes[ids["<|im_end|>"]] == OTHER_TOKENS
    assert len(found.tokens) == len(found.classes) == len(tokenizer) + 3 and found.tokens[-1] == ""
    assert set(found.categories) <= set(CATEGORIES)


def test_the_tokenizer_is_that_of_the_trained_model_or_where_one_says(whole, tmp_path):
    study = of_setting(whole[1], SETTING, whole[0] / "runs")
    size = len(small_tokenizer())
    assert len(vocabulary_of(study, 0).tokens) == size
    moved = of_setting(whole[1], SETTING, tmp_path)  # nothing there, and nothing in the hub's cache
    with pytest.raises(
        FileNotFoundError, match=r"Qwen3-0.6B-Base: no tokenizer on this machine; set model_path"
    ):
        vocabulary_of(moved, 0)
    small_tokenizer().save_pretrained(tmp_path / "model")
    assert len(vocabulary_of(moved, 0, str(tmp_path / "model")).tokens) == size


# --- claims -----------------------------------------------------------------------------------------------


def test_the_tests_of_models_ask_the_same_and_say_nothing_of_the_laptop():
    of_nfpo = {name: test for name, test in DECLARED_OF_MODELS.items() if name.startswith("nfpo-")}
    assert set(of_nfpo) == {name for name in DECLARED if name.startswith("nfpo-")} and len(of_nfpo) == 10
    assert {f"mpo-c{i}" for i in range(1, 7)} <= set(DECLARED_OF_MODELS) <= set(DECLARED)
    for name, test in DECLARED_OF_MODELS.items():
        if name in of_nfpo and name != "nfpo-c3":
            assert test.parts == DECLARED[name].parts
        text = test.test.format(margin=0.02, confidence=0.95) + test.caveat
        if name not in ("nfpo-c1", "nfpo-c10"):
            for word in ("stale", "lag", "local engine", "embedded", "48 tokens", "arithmetic"):
                assert word not in text, (name, word)
    assert set(DECLARED_OF_MODELS["nfpo-c3"].parts) == {*CATEGORIES, REASONING_PART}
    assert json.dumps(of_setting(PAPER, "nfpo-8b").words.trained.format(lag=0, problems=9)).count("9") == 1
