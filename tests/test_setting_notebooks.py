"""NFPO's notebooks on the runs of a setting of experiments, through the stage runner: no model, no GPU."""

from __future__ import annotations

import pandas as pd
import pytest
from setting_fixtures import (
    SETTING,
    render,
    run_folder,
    run_stage,
    samples_file,
    small_repository,
    without,
    write_runs,
)

from rlvr.reporting.claims_of_models import REASONING_PART

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("setting")
    file = small_repository(folder, lambda setting, _: setting["run"].append("nfpo_band"))
    write_runs(file, folder, [arm for arm in file.settings[SETTING].run if arm != "nfpo_band"])
    return folder


def test_training(root, monkeypatch):
    bundles, claims, printed = render(root, "nfpo/training", SETTING, monkeypatch)
    assert set(bundles) == {"nfpo-figTrain", "nfpo-tabC1"} and not claims
    assert "6 runs of 200 steps" in printed
    data = pd.read_csv(bundles["nfpo-figTrain"].folder / "data.csv")
    assert set(data["arm"]) == {"grpo", "dppo_tv", "nfpo"} and data["stopped_share"].notna().any()
    assert "problems of the training set" in bundles["nfpo-figTrain"].meta.notes
    table = pd.read_csv(bundles["nfpo-tabC1"].folder / "table.csv").set_index("setting")
    assert table.loc["model", "ours"] == "Qwen/Qwen3-0.6B-Base"
    assert "grpo has recompute=all" in bundles["nfpo-tabC1"].meta.notes


def test_accuracy(root, monkeypatch):
    bundles, claims, printed = render(root, "nfpo/accuracy", SETTING, monkeypatch)
    assert set(bundles) == {"nfpo-tab1", "nfpo-x2", "nfpo-x3"} and set(claims) == {"nfpo-c2"}
    assert "sets: amc23, math500, minerva_math" in printed and "6 policies on 24 held-out problems" in printed
    table = bundles["nfpo-tab1"].table
    assert [row[0] for row in table.rows] == ["GRPO", "DPPO-TV", "NFPO"]
    columns = ["amc23", "math500", "minerva_math", "average", "NFPO's gain over it, %"]
    assert list(table.columns)[1:] == columns
    nfpo = dict(zip(table.columns, table.rows[2], strict=True))
    each = [nfpo[name].value for name in columns[:3]]
    assert nfpo["average"].value == pytest.approx(sum(each) / 3) and nfpo["average"].n_unit == "seeds"
    assert "amc23: 5 problems, math500: 12 problems" in bundles["nfpo-tab1"].meta.notes
    assert "bootstrap over problems within benchmarks" in bundles["nfpo-x2"].meta.interval
    assert "every benchmark counts once" in bundles["nfpo-tab1"].meta.notes
    assert claims["nfpo-c2"].effect > 0.02 and "each counting once" in claims["nfpo-c2"].test
    assert "base" not in pd.read_csv(bundles["nfpo-x3"].folder / "table.csv")["arm"].str.cat()


def test_dynamics(root, monkeypatch):
    bundles, claims, _ = render(root, "nfpo/dynamics", SETTING, monkeypatch)
    assert set(bundles) == {"nfpo-tab2", "nfpo-tabD1", "nfpo-fig3", "nfpo-x5", "nfpo-caseD3"}
    assert set(claims) == {"nfpo-c3", "nfpo-c4"}
    rows = [row[0] for row in bundles["nfpo-tab2"].table.rows]
    assert set(rows) == {"all tokens", "reasoning tokens", "other tokens"}
    assert len(bundles["nfpo-tabD1"].table.rows) == 9  # all tokens and the eight
    segment = pd.read_csv(bundles["nfpo-fig3"].folder / "data.csv", keep_default_na=False)
    assert " Therefore" in set(segment["token"])  # text, and no byte-level letters
    cases = pd.read_csv(bundles["nfpo-caseD3"].folder / "data.csv")
    assert cases.groupby("case").first()["of_interest"].all()  # begin with a reasoning token
    assert REASONING_PART in claims["nfpo-c3"].note and "eight token categories" in claims["nfpo-c3"].test


def test_ablations(root, monkeypatch):
    bundles, claims, printed = render(root, "nfpo/ablations", SETTING, monkeypatch)
    assert set(bundles) == {"nfpo-fig4", "nfpo-fig5", "nfpo-figA1", "nfpo-x9"}
    assert set(claims) == {"nfpo-c5", "nfpo-c9"}  # the arms of the others were not all run
    assert "nfpo_recompute_trace is left out: verl cannot run it yet" in printed
    assert (
        "nfpo_band is left out: it was not run: dvc repro pipelines/scales/one_gpu/dvc.yaml:evaluate@"
        in printed
    )
    assert "8 arms, lag 0, 2 seeds" in printed
    assert "arms by N: 1: dppo_tv, 2: nfpo_n2, 4: nfpo, 8: nfpo_n8, 16: nfpo_n16" in printed
    changed = pd.read_csv(bundles["nfpo-fig5"].folder / "data.csv")
    assert changed["arm"].tolist() == ["dppo_tv", "nfpo", "nfpo_kl"]
    assert claims["nfpo-c9"].effect == pytest.approx(0.25, abs=0.12)
    assert "of the same step" in bundles["nfpo-figA1"].meta.notes
    text = bundles["nfpo-x9"].table.markdown()
    assert "seq-mean-token-sum-norm" in text and "final pass@1, lag 0" in text


def test_a_missing_seed_ends_the_stage_with_the_command(root, monkeypatch, capfd):
    path = samples_file(root, "grpo", 1)
    with without(path):
        status, _ = run_stage(root, "nfpo/accuracy", SETTING, monkeypatch)
    assert status == 1
    said = capfd.readouterr().err
    assert "nfpo-0.6b-grpo/seed1/samples.parquet does not exist" in said
    assert "dvc repro pipelines/scales/one_gpu/dvc.yaml:evaluate@nfpo-0.6b-grpo-1" in said


@pytest.fixture(scope="module")
def without_records(tmp_path_factory):
    def change(setting, _):
        setting["records"]["responses"]["value"] = 0
        setting["run"] = ["grpo", "dppo", "nfpo", "nfpo_release", "nfpo_kl", "fipo"]

    folder = tmp_path_factory.mktemp("without_records")
    file = small_repository(folder, change)
    write_runs(file, folder, file.settings[SETTING].run, records=False)
    assert not (run_folder(folder, "nfpo", 0) / "records.parquet").exists()
    return folder


def test_without_records_what_needs_none_is_rendered(without_records, monkeypatch):
    bundles, claims, printed = render(without_records, "nfpo/ablations", SETTING, monkeypatch)
    assert set(bundles) == {"nfpo-fig5", "nfpo-figA1"} and set(claims) == {"nfpo-c9"}
    assert "settings.nfpo-0.6b.records.responses is 0: none are kept" in printed
    assert "no table of presets: there are no records" in printed


def test_without_records_there_are_no_dynamics(without_records, monkeypatch, capfd):
    assert run_stage(without_records, "nfpo/dynamics", SETTING, monkeypatch)[0] == 1
    assert "the training of 'nfpo' kept no records" in capfd.readouterr().err
