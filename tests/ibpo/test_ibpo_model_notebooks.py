"""IBPO's notebooks of language models on the runs of a setting, through the stage runner: no GPU."""

from __future__ import annotations

import os

import nbformat
import pandas as pd
import pytest
from notebook_factory import PROJECT
from setting_fixtures import FILE, SEEDS, samples_file, small_repository
from setting_fixtures_ibpo import ABLATIONS, ARMS, RUN, SETTING, write_runs

from pipelines.stage import main
from rlvr.reporting.bundle import load_bundles

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("setting")
    file = small_repository(folder, name=SETTING, run=(*RUN, "alpha_70"))
    write_runs(file, folder, RUN)
    return folder


def stage(root, name, monkeypatch):
    """(exit code, folder) of the stage, called as the graph calls it."""
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", f"{PROJECT / 'lib'}{os.pathsep}{PROJECT}")
    monkeypatch.delenv("DVC_STAGE", raising=False)
    out = f"runs/one_gpu/ibpo/{SETTING}/{name}"
    words = [
        f"notebooks/ibpo/{name}.ipynb",
        "--out",
        out,
        "-p",
        "params_file",
        FILE,
        "-p",
        "setting",
        SETTING,
    ]
    return main(words), root / out


def render(root, name, monkeypatch):
    """(bundles, claims, what the notebook printed) of a stage that must succeed."""
    status, out = stage(root, name, monkeypatch)
    assert status == 0
    bundles, claims = load_bundles([out])
    assert all(bundle.meta.scale == f"one_gpu/{SETTING}" for bundle in bundles.values())
    assert all(set(bundle.meta.seeds) <= set(SEEDS) for bundle in bundles.values())
    (book,) = out.glob("*.ipynb")
    outputs = [o for c in nbformat.read(book, as_version=4).cells for o in c.get("outputs", [])]
    return bundles, claims, "".join(o.text for o in outputs if o.output_type == "stream")


def test_models(root, monkeypatch):
    bundles, claims, printed = render(root, "models", monkeypatch)
    names = ("tab1", "x1", "x2", "x5", "fig3", "tab2", "figCorr")
    assert set(bundles) == {f"ibpo-{name}" for name in names}
    assert set(claims) == {"ibpo-c1", "ibpo-c2", "ibpo-c6", "ibpo-c7"}
    table = bundles["ibpo-tab1"].table
    assert list(table.columns)[1:] == ["amc23", "math500", "minerva_math", "average"]
    cells = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert list(cells) == [
        "GSPO + IBPO", "GSPO + IBPO (ratio)", "GSPO + IBPO (mask)", "GSPO", "GSPO with prompt",
        "GSPO with best of 8",
        "GSPO, 8 responses to a prompt", "that with best of 8", "GSPO + IBPO with best of 8",
    ]  # fmt: skip
    own = cells["GSPO + IBPO"]
    each = [own[name].value for name in ("amc23", "math500", "minerva_math")]
    assert own["average"].value == pytest.approx(sum(each) / 3)  # and not by problems: 5, 12 and 7
    assert cells["GSPO with best of 8"]["average"].value > cells["GSPO"]["average"].value + 0.1
    assert "GSPO with SCoRe is left out: verl cannot run it yet" in printed
    # IBPO is put above GSPO; what no run has leaves the claim open
    assert claims["ibpo-c1"].effect == pytest.approx(0.2, abs=0.1)
    assert claims["ibpo-c1"].verdict in ("open", "contradicted")
    assert "IBPO - SCoRe not measured (open)" in claims["ibpo-c1"].note
    assert "IBPO - GSPO with prompt 0." in claims["ibpo-c1"].note
    assert "GSPO with prompt: the revision spoils" in claims["ibpo-c1"].note
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


def test_ablations(root, monkeypatch):
    bundles, claims, printed = render(root, "model_ablations", monkeypatch)
    assert set(bundles) == {"ibpo-tab3", "ibpo-tab4", "ibpo-tab5"}
    assert f"{len(ABLATIONS)} ablations, 2 seeds" in printed
    assert "alpha_70 is left out: it was not run: dvc repro pipelines/scales/one_gpu/dvc.yaml:" in printed
    assert "score is left out: verl cannot run it yet" in printed
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


def test_without_revisions_the_row_is_left_out(root, monkeypatch):
    folder = root / f"runs/one_gpu/revise/{SETTING}-gspo/seed1"
    away = folder.rename(folder.with_name("away"))
    try:
        bundles, claims, printed = render(root, "models", monkeypatch)
    finally:
        away.rename(folder)
    assert "GSPO with prompt" not in [row[0] for row in bundles["ibpo-tab1"].table.rows]
    command = f"dvc repro pipelines/scales/one_gpu/ibpo/dvc.yaml:revise@{SETTING}-gspo-1"
    assert f"GSPO with prompt is left out: samples of seed 1 are not revised: {command}" in printed
    assert "IBPO - GSPO with prompt not measured (open)" in claims["ibpo-c1"].note


def test_without_the_untrained_model_the_stage_says_how_it_is_evaluated(root, monkeypatch, capfd):
    path = samples_file(root, "base", 0, SETTING).parent.with_name("samples.parquet")
    moved = path.rename(path.with_suffix(".away"))
    try:
        status, _ = stage(root, "models", monkeypatch)
    finally:
        moved.rename(path)
    assert status == 1
    assert f"dvc repro pipelines/scales/one_gpu/ibpo/dvc.yaml:base@{SETTING}" in capfd.readouterr().err
