"""IBPO's notebooks of language models on the runs of a setting, through the stage runner: no GPU."""

from __future__ import annotations

import pandas as pd
import pytest
from setting_fixtures import (
    SEEDS,
    render,
    run_stage,
    samples_file,
    small_repository,
    without,
)
from setting_fixtures_ibpo import ABLATIONS, ARMS, RUN, SETTING, write_runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("setting")
    file = small_repository(folder, name=SETTING, run=(*RUN, "alpha_70"))
    write_runs(file, folder, RUN)
    return folder


def test_models(root, monkeypatch):
    bundles, claims, printed = render(root, "ibpo/models", SETTING, monkeypatch)
    names = ("tab1", "x1", "x2", "x5", "fig3", "tab2", "figCorr")
    assert set(bundles) == {f"ibpo-{name}" for name in names}
    assert set(claims) == {"ibpo-c1", "ibpo-c2", "ibpo-c6", "ibpo-c7"}
    table = bundles["ibpo-tab1"].table
    assert list(table.columns)[1:] == ["amc23", "math500", "minerva_math", "average"]
    cells = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert list(cells) == [
        "GSPO + IBPO", "GSPO + IBPO (ratio)", "GSPO + IBPO (mask)", "GSPO", "GSPO with prompt",
        "GSPO with SCoRe", "GSPO with best of 8",
        "GSPO, 8 responses to a prompt", "that with best of 8", "SCoRe, first turn",
        "GSPO + IBPO with best of 8",
    ]  # fmt: skip
    own = cells["GSPO + IBPO"]
    each = [own[name].value for name in ("amc23", "math500", "minerva_math")]
    assert own["average"].value == pytest.approx(sum(each) / 3)  # and not by problems: 5, 12 and 7
    assert cells["GSPO with best of 8"]["average"].value > cells["GSPO"]["average"].value + 0.1
    assert "is left out" not in printed
    for label, kind in (("GSPO with SCoRe", "revise"), ("SCoRe, first turn", "evaluate")):
        assert cells[label]["average"].value == pytest.approx(accuracy_of(root, kind, "score")), label
    # IBPO is put above its baselines but the best of 8
    assert claims["ibpo-c1"].effect == pytest.approx(0.2, abs=0.1)
    assert claims["ibpo-c1"].verdict in ("open", "contradicted")
    for part in ("GSPO with prompt", "SCoRe"):
        assert f"IBPO - {part} 0." in claims["ibpo-c1"].note
    for label in ("GSPO with prompt", "GSPO with SCoRe"):
        assert f"{label}: the revision spoils" in claims["ibpo-c1"].note
    assert claims["ibpo-c6"].effect == pytest.approx(0.4, abs=0.01)  # .15 in the first fifth, .55 in the last
    assert claims["ibpo-c2"].effect < 0.5 and claims["ibpo-c2"].verdict in ("open", "supported")
    assert "Over GSPO with 8" in claims["ibpo-c2"].note
    spent = pd.read_csv(bundles["ibpo-x5"].folder / "table.csv").set_index("tokens, mean over seeds")
    gspo, ibpo, ratio = (spent.loc[name] for name in ("GSPO", "IBPO", "IBPO, ratio"))
    assert gspo["base decode"] == 10 * 2 * 32 * 250 and ibpo["base decode"] == 10 * 2 * 8 * 250
    assert ibpo["correction decode"] == 10 * 16 * 250 == ratio["correction decode"]
    assert gspo["FLOPs over GSPO's"] == 1 and gspo["FLOPs of corrections, %"] == 0
    assert 0 < ibpo["FLOPs over GSPO's"] < 2 and ibpo["FLOPs of corrections, %"] > 50
    curve = pd.read_csv(bundles["ibpo-fig3"].folder / "data.csv")
    assert set(curve["arm"]) == set(ARMS) and curve["compute"].max() == 1


def accuracy_of(root, kind, arm):
    """Of the files themselves; every benchmark counts once."""
    files = [root / f"runs/one_gpu/{kind}/{SETTING}-{arm}/seed{seed}/samples.parquet" for seed in SEEDS]
    frames = [pd.read_parquet(file).astype({"correct": float}) for file in files]
    return sum(frame.groupby("benchmark")["correct"].mean().mean() for frame in frames) / len(frames)


def test_ablations(root, monkeypatch):
    bundles, claims, printed = render(root, "ibpo/model_ablations", SETTING, monkeypatch)
    assert set(bundles) == {"ibpo-tab3", "ibpo-tab4", "ibpo-tab5"}
    assert f"{len(ABLATIONS)} ablations, 2 seeds" in printed
    assert "alpha_70 is left out: it was not run: dvc repro pipelines/scales/one_gpu/dvc.yaml:" in printed
    assert "lambda: 0.4, 0.6, 1.2" in printed and "alpha: 0.55, 0.6, 0.65" in printed
    parts = pd.read_csv(bundles["ibpo-tab3"].folder / "table.csv")
    assert parts["method"].tolist() == [
        "GSPO + prompt at test time", "IBPO, K = 1", "IBPO, shaping only", "IBPO, joint training only",
        "IBPO",
    ]  # fmt: skip
    flagged = pd.read_csv(bundles["ibpo-tab5"].folder / "table.csv").set_index("alpha")
    assert flagged["flagged, share of all corrections.value"].tolist() == pytest.approx([0.25, 0.2, 0.15])
    assert set(claims) == {"ibpo-c4"} and "ibpo-c5: not judged, not all of its arms were run" in printed
    assert claims["ibpo-c4"].note.count("full - ") >= 4


@pytest.mark.parametrize(
    ("arm", "label", "part"),
    [("gspo", "GSPO with prompt", "GSPO with prompt"), ("score", "GSPO with SCoRe", "SCoRe")],
)
def test_without_revisions_the_row_is_left_out(root, monkeypatch, arm, label, part):
    folder = root / f"runs/one_gpu/revise/{SETTING}-{arm}/seed1"
    with without(folder):
        bundles, claims, printed = render(root, "ibpo/models", SETTING, monkeypatch)
    assert label not in [row[0] for row in bundles["ibpo-tab1"].table.rows]
    command = f"dvc repro pipelines/scales/one_gpu/ibpo/dvc.yaml:revise@{SETTING}-{arm}-1"
    assert f"{label} is left out: samples of seed 1 are not revised: {command}" in printed
    assert f"IBPO - {part} not measured (open)" in claims["ibpo-c1"].note


def test_without_the_untrained_model_the_stage_says_how_it_is_evaluated(root, monkeypatch, capfd):
    path = samples_file(root, "base", 0, SETTING).parent.with_name("samples.parquet")
    with without(path):
        status, _ = run_stage(root, "ibpo/models", SETTING, monkeypatch)
    assert status == 1
    assert f"dvc repro pipelines/scales/one_gpu/ibpo/dvc.yaml:base@{SETTING}" in capfd.readouterr().err
