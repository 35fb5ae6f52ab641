"""Bundles: nothing gets in without its doubt, and what gets in comes back as it was."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from rlvr.evaluation.intervals import Estimate, seed_interval
from rlvr.reporting.bundle import (
    NOT_MEASURED,
    ArtifactMeta,
    Claim,
    Exact,
    Stated,
    combine,
    judge,
    load_bundles,
    save_claim,
    save_figure,
    save_table,
)
from rlvr.reporting.cells import pretty, pretty_interval
from rlvr.reporting.claims import DECLARED, TOKEN_CLASSES, decide, exact
from rlvr.reporting.registry import load_registry
from rlvr.reporting.style import OBJECTIVE_COLOURS, OBJECTIVE_LABELS, objective_colour
from rlvr.reporting.table import Table


def estimate(value=0.655, low=0.641, high=0.669, **fields) -> Estimate:
    known = {"n": 1024, "n_unit": "problems", "seeds": (0, 1, 2), "method": "Student t over seeds"}
    return Estimate(value, low, high, **(known | fields))


def meta(**fields) -> ArtifactMeta:
    known = {
        "id": "nfpo-tab2",
        "title": "Correction strength",
        "stage": "dynamics",
        "scale": "smoke",
        "seeds": (0, 1, 2),
        "n": 1024,
        "n_unit": "responses",
        "interval": "95 % bootstrap over responses",
        "notebook": "notebooks/nfpo/dynamics.ipynb",
    }
    return ArtifactMeta(**(known | fields))


def claim(**fields) -> Claim:
    known = {"id": "nfpo-c4", "test": "ratio at most 0.6", "effect": 0.39, "ci_low": 0.37, "ci_high": 0.41}
    known |= {"n": 500, "seeds": (0, 1), "verdict": "supported", "scale": "smoke"}
    return Claim(**(known | fields))


FRAME = pd.DataFrame(
    {
        "pass@1": [estimate(), NOT_MEASURED],
        "paper": [Stated(30.7), Stated(None)],
        "N": [Exact(4), Exact(8)],
        "model": ["1.7B", "8B"],
    },
    index=pd.Index(["NFPO", "GRPO"], name="objective"),
)


# --- tables -----------------------------------------------------------------------------------------------


def test_markdown_and_csv_are_typed_in_values(tmp_path):
    folder = save_table(tmp_path, FRAME, meta())
    assert (folder / "table.md").read_text() == (
        "| objective | pass@1 | paper | N | model |\n"
        "| --- | ---: | ---: | ---: | --- |\n"
        "| NFPO | 0.655 [0.641, 0.669] | 30.7 | 4 | 1.7B |\n"
        "| GRPO | not measured | not stated | 8 | 8B |\n"
    )
    assert (folder / "table.csv").read_text() == (
        "objective,pass@1.value,pass@1.low,pass@1.high,pass@1.n,pass@1.n_unit,pass@1.seeds,pass@1.method,"
        "paper,N,model\n"
        "NFPO,0.655,0.641,0.669,1024,problems,0 1 2,Student t over seeds,30.7,4,1.7B\n"
        "GRPO,not measured,,,,,,,not stated,8,8B\n"
    )


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (0.5, "bare number 0.5"),
        (np.float32(0.5), "bare number"),
        (3, "bare number 3"),
        (float("nan"), "NOT_MEASURED"),
        (None, "NOT_MEASURED"),
        ([1], "list"),
        (estimate(n=0), "n is 0"),
        (estimate(seeds=()), "seeds is"),
        (estimate(method=""), "method"),
        (estimate(low=0.6, high=None), "one known end"),
        (estimate(low=0.7, high=0.6), "upside down"),
    ],
)
def test_a_cell_without_its_doubt_is_refused_by_name(tmp_path, cell, message):
    frame = pd.DataFrame({"pass@1": pd.Series([estimate(), cell], index=["NFPO", "GRPO"], dtype=object)})
    with pytest.raises(ValueError, match=message) as error:
        save_table(tmp_path, frame, meta())
    assert "row 'GRPO', column 'pass@1'" in str(error.value)
    assert not list(tmp_path.iterdir()), "a refused table left something behind"


def test_numbers_that_are_row_labels_go_into_the_index():
    table = Table.from_frame(pd.DataFrame({"x": ["a"]}, index=pd.Index([4], name="N")))
    assert table.columns == ("N", "x") and table.rows == (("4", "a"),)


@pytest.mark.fault("default-shown-as-measured")
def test_empty_results_say_not_measured_and_never_a_default(tmp_path):
    """Known fault: zero finished seeds printed as p = 1.0, delta = 0.0."""
    nothing = estimate(value=math.nan, low=None, high=None, n=0, seeds=())
    folder = save_table(tmp_path, pd.DataFrame({"gain": [nothing]}), meta())
    text = (folder / "table.md").read_text() + (folder / "table.csv").read_text()
    assert text.count("not measured") == 2
    assert "nan" not in text.lower() and "0.0" not in text
    with pytest.raises(ValueError, match="no cells"):
        save_table(tmp_path, pd.DataFrame({"gain": []}), meta())


def test_an_unknown_interval_is_printed_as_unknown():
    single = seed_interval([0.61], [0])
    assert pretty(single) == "0.61 [interval unknown]"
    assert "unknown" in Table.from_frame(pd.DataFrame({"a": [single]})).csv()


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0.655, 0.641, 0.669), "0.655 [0.641, 0.669]"),
        ((-0.0004, -0.031, 0.03), "0.000 [-0.031, 0.030]"),
        ((34.07, 30.1, 38.2), "34.1 [30.1, 38.2]"),
        ((1234.4, 1100.0, 1370.0), "1234 [1100, 1370]"),
        ((2e-7, 1e-7, 3e-7), "2e-07 [1e-07, 3e-07]"),
        ((1.0, 1.0, 1.0), "1 (exact)"),
        ((None, None, None), "not measured"),
        ((math.nan, 0.0, 1.0), "not measured"),
    ],
)
def test_two_digits_of_the_half_width(numbers, text):
    assert pretty_interval(*numbers) == text


def test_an_end_beside_its_threshold_is_not_printed_as_the_threshold():
    """-0.0203 is not at least -0.02, and does not read as if it were."""
    assert pretty_interval(0.0004, -0.0203, 0.0211) == "0.000 [-0.020, 0.021]"
    assert pretty_interval(0.0004, -0.0203, 0.0211, -0.02) == "0.0004 [-0.0203, 0.0211]"
    assert pretty_interval(0.0004, -0.0003, 0.0211, 0.0) == "0.0004 [-0.0003, 0.0211]"
    assert pretty_interval(0.0, -0.02, 0.0211, -0.02) == "0.000 [-0.020, 0.021]"
    ends = {"-": (-0.0203, 0.0211), "+": (-0.0211, 0.0203)}
    parts = {n: estimate(0.0, *ends["-" if " - 0.60" in n else "+"]) for n in DECLARED["ibpo-c5"].parts}
    assert "alpha 0.55 - 0.60 0.0000 [-0.0203, 0.0211] (open)" in decide("ibpo-c5", parts, **SETTINGS).note


def test_a_test_may_name_the_part_whose_number_stands_for_the_claim():
    parts = {name: estimate(0.1, 0.05, 0.15) for name in DECLARED["ibpo-c1"].parts}
    parts["IBPO - GSPO"] = estimate(-0.03, -0.04, -0.02)
    parts["IBPO - GSPO with best of 8"] = estimate(-0.25, -0.26, -0.24)
    claim = decide("ibpo-c1", parts, **SETTINGS)
    assert (claim.verdict, claim.effect, claim.ci_low) == ("contradicted", -0.03, -0.04)
    assert "The effect is that of 'IBPO - GSPO'." in claim.note
    unknown = parts | {"IBPO - GSPO": estimate(math.nan, None, None, n=0, seeds=())}
    assert decide("ibpo-c1", unknown, **SETTINGS).effect == -0.25  # another one that tells something


def test_what_is_read_is_what_was_written(tmp_path):
    save_table(tmp_path, FRAME, meta(notes="|bias|"))
    bundles, _ = load_bundles([tmp_path])
    bundle = bundles["nfpo-tab2"]
    assert bundle.table == Table.from_frame(FRAME)
    assert bundle.meta == meta(notes="|bias|")
    assert (bundle.paper, bundle.kind) == ("nfpo", "table")


@pytest.mark.fault("unknown-spread-taken-as-known")
def test_an_unknown_name_of_the_spread_is_an_error_not_a_default(tmp_path):
    """Known fault: a reader that knows only '_stderr' meets '_std_err' and takes [0, 1]."""
    path = save_table(tmp_path, FRAME, meta()) / "table.json"
    raw = json.loads(path.read_text())
    cell = raw["rows"][0][1]
    cell["ci_low"] = cell.pop("low")
    path.write_text(json.dumps(raw))
    with pytest.raises(ValueError, match="ci_low"):
        load_bundles([tmp_path])


@pytest.mark.parametrize("change", [{"interval": ""}, {"confidence_interval": "95 %"}, {"status": "done"}])
def test_a_damaged_record_is_refused(tmp_path, change):
    path = save_table(tmp_path, FRAME, meta()) / "artifact.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"artifact\.json"):
        load_bundles([tmp_path])


def test_loading_refuses_missing_folders_files_and_repeated_ids(tmp_path):
    with pytest.raises(FileNotFoundError, match="never_ran"):
        load_bundles([tmp_path / "never_ran"])
    first, second = tmp_path / "a", tmp_path / "b"
    save_table(first, FRAME, meta())
    save_table(second, FRAME, meta())
    with pytest.raises(ValueError, match="already"):
        load_bundles([first, second])
    (first / "artifacts" / "nfpo-tab2" / "table.csv").unlink()
    with pytest.raises(ValueError, match=r"table\.csv"):
        load_bundles([first])


def test_a_bundle_is_replaced_as_a_whole(tmp_path):
    folder = save_table(tmp_path, FRAME, meta())
    (folder / "stale.csv").write_text("old")
    save_table(tmp_path, FRAME, meta())
    assert sorted(p.name for p in folder.iterdir()) == [
        "artifact.json",
        "table.csv",
        "table.json",
        "table.md",
    ]
    assert [p.name for p in (tmp_path / "artifacts").iterdir()] == ["nfpo-tab2"]


# --- ids and records --------------------------------------------------------------------------------------


def test_an_unknown_id_names_its_neighbours(tmp_path):
    with pytest.raises(ValueError, match=r"nfpo-tab7.*did you mean.*nfpo-tab"):
        save_table(tmp_path, FRAME, meta(id="nfpo-tab7"))
    with pytest.raises(ValueError, match="nfpo-c44"):
        save_claim(tmp_path, claim(id="nfpo-c44"))
    with pytest.raises(ValueError, match="nfpo-fig33"):
        save_claim(tmp_path, claim(artifacts=("nfpo-fig33",)))


def test_kind_comes_from_the_registry(tmp_path):
    with pytest.raises(ValueError, match="save_figure"):
        save_table(tmp_path, FRAME, meta(id="nfpo-fig3"))


@pytest.mark.parametrize("missing", [{"n": None}, {"n_unit": ""}, {"seeds": ()}, {"interval": " "}])
def test_an_artifact_says_what_it_rests_on(missing):
    with pytest.raises(ValueError, match="nfpo-tab2"):
        meta(**missing)
    assert meta(n=None, n_unit="", seeds=(), interval="exact").seeds == ()


def test_a_figure_needs_words_and_its_data(tmp_path):
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(2, 1))
    ax.plot([0, 1])
    figure, data = meta(id="nfpo-fig3", alt="A line."), pd.DataFrame({"x": [1.23456789, math.nan]})
    with pytest.raises(ValueError, match="alt"):
        save_figure(tmp_path, fig, meta(id="nfpo-fig3"), data)
    with pytest.raises(ValueError, match="data is None"):
        save_figure(tmp_path, fig, figure, None)
    with pytest.raises(ValueError, match="no rows"):
        save_figure(tmp_path, fig, figure, data.iloc[:0])
    folder = save_figure(tmp_path, fig, figure, data, table=FRAME)
    assert (folder / "data.csv").read_text() == 'x\n1.23457\n""\n'
    assert (folder / "table.md").is_file() and (folder / "figure.png").stat().st_size > 500
    plt.close(fig)


def test_the_registry_holds_all_artifacts_and_claims():
    papers = load_registry().papers
    assert [p.paper for p in papers] == ["nfpo", "ibpo", "mpo"]
    assert [len(p.artifacts) for p in papers] == [12, 8, 12]
    assert [len(p.claims) for p in papers] == [10, 7, 6]
    reported = {a.id: a.reported for p in papers for a in p.artifacts}
    assert reported["nfpo-fig3"].rows["trace-corrected ratio"] == (10.08,)
    assert reported["ibpo-tab1"].rows["GSPO + IBPO (mask)"][5] == (81.1, 1.4)
    assert reported["nfpo-fig1"] is None


def test_a_broken_registry_names_file_and_row(tmp_path):
    (tmp_path / "nfpo.yaml").write_text(
        "paper: nfpo\ntitle: T\narxiv: '1'\nclaims: []\nartifacts:\n"
        "- {id: nfpo-tab1, kind: table, title: T, reported: {columns: [a, b], rows: {x: [1]}}}\n"
    )
    with pytest.raises(ValueError, match=r"nfpo\.yaml(.|\n)*row 'x' has 1 cells for 2"):
        load_registry(tmp_path)


# --- claims and verdicts ----------------------------------------------------------------------------------


def test_the_statement_comes_from_the_registry(tmp_path):
    raw = json.loads(save_claim(tmp_path, claim()).read_text())
    assert "switch frequency" in raw["statement"]
    assert load_bundles([tmp_path])[1]["nfpo-c4"].verdict == "supported"


@pytest.mark.parametrize(
    "fields",
    [
        {"ci_low": None},
        {"ci_high": math.nan},
        {"effect": None},
        {"n": None},
        {"n": 0},
        {"seeds": (3,)},
        {"seeds": (3, 3)},
    ],
)
def test_an_unknown_or_single_seed_cannot_carry_a_verdict(fields):
    with pytest.raises(ValueError, match="open"):
        claim(**fields)
    assert claim(**fields, verdict="open").verdict == "open"


def test_records_refuse_nonsense():
    for wrong in ({"ci_low": 0.5}, {"test": " "}, {"verdict": "proved"}):
        with pytest.raises(ValueError):
            claim(**wrong)


@pytest.mark.parametrize(
    ("low", "high", "at_least", "above", "at_most"),
    [
        (0.1, 0.2, "supported", "supported", "contradicted"),
        (0.0, 0.2, "supported", "open", "open"),
        (-0.1, 0.2, "open", "open", "open"),
        (-0.2, 0.0, "open", "open", "supported"),
        (-0.2, -0.1, "contradicted", "contradicted", "supported"),
        (None, None, "open", "open", "open"),
        (math.nan, math.nan, "open", "open", "open"),
    ],
)
def test_judge_by_the_whole_interval(low, high, at_least, above, at_most):
    number = estimate(0.05, low, high)
    assert judge(number, at_least=0.0) == at_least
    assert judge(number, above=0.0) == above
    assert judge(number, at_most=0.0) == at_most


def test_one_seed_is_open_and_enumeration_is_not():
    assert judge(estimate(0.5, 0.4, 0.6, seeds=(0,)), at_least=0) == "open"
    assert judge(exact(1e-15, 117, "patterns"), at_most=1e-12) == "supported"
    with pytest.raises(ValueError, match="exactly one"):
        judge(estimate(), at_least=0, at_most=1)


def test_combine_parts():
    assert combine(["supported", "supported"]) == "supported"
    assert combine(["supported", "open"]) == "open"
    assert combine(["open", "contradicted", "supported"]) == "contradicted"
    for wrong in ([], ["supported", "yes"]):
        with pytest.raises(ValueError, match="need at least one"):
            combine(wrong)


SETTINGS = {"scale": "smoke", "confidence": 0.95, "margin": 0.02}


def test_beats_or_matches_is_decided_by_the_worse_comparison():
    def verdict(grpo, dppo):
        parts = {
            "NFPO - GRPO": estimate(sum(grpo) / 2, *grpo),
            "NFPO - DPPO-TV": estimate(sum(dppo) / 2, *dppo),
        }
        return decide("nfpo-c2", parts, **SETTINGS)

    good, wide, bad = (-0.015, 0.03), (-0.05, 0.03), (-0.09, -0.03)
    assert verdict(good, good).verdict == "supported"
    assert verdict(good, wide).verdict == "open"
    assert verdict(wide, bad).verdict == "contradicted"
    result = verdict(bad, wide)
    assert (result.ci_low, result.ci_high) == bad
    assert "95%" in result.test and "-0.02" in result.test


def test_a_claim_with_parts_missing_is_an_error_and_with_parts_unknown_is_open():
    parts = {name: estimate(0.02, 0.01, 0.03) for name in TOKEN_CLASSES}
    assert decide("nfpo-c3", parts, **SETTINGS).verdict == "supported"
    unknown = parts | {"operator": estimate(math.nan, None, None, n=0, seeds=())}
    result = decide("nfpo-c3", unknown, **SETTINGS)
    assert (result.verdict, result.effect, result.n) == ("open", None, None)
    with pytest.raises(ValueError, match="exactly"):
        decide("nfpo-c3", {"digit": parts["digit"]}, **SETTINGS)
    with pytest.raises(ValueError, match="nfpo-c4"):
        decide("nfpo-c99", parts, **SETTINGS)


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((0.5, 0.6), "supported"),
        ((0.4, 0.5), "supported"),
        ((0.5, 0.61), "open"),
        ((0.39, 0.5), "open"),
        ((0.601, 0.7), "contradicted"),
        ((0.04, 0.06), "contradicted"),
    ],
)
def test_about_half_is_half_within_a_fifth(ends, verdict):
    parts = dict.fromkeys(DECLARED["nfpo-c4"].parts, estimate(sum(ends) / 2, *ends))
    assert decide("nfpo-c4", parts, **SETTINGS).verdict == verdict


@pytest.mark.parametrize(
    ("drop", "verdict"),
    [((0.01, 0.05), "supported"), ((-0.01, 0.05), "open"), ((0.36, 0.42), "contradicted")],
)
def test_a_collapse_is_not_slightly_worse(drop, verdict):
    parts = dict.fromkeys(DECLARED["nfpo-c7"].parts, estimate(0.0, -0.005, 0.005))
    parts |= {name: estimate(sum(drop) / 2, *drop) for name in parts if name.startswith("NFPO - recomputed")}
    assert decide("nfpo-c7", parts, **SETTINGS).verdict == verdict


def test_exact_claims_need_no_seed():
    parts = {"identity error": exact(1.3e-15, 117, "patterns")}
    share = "share of patterns with the trade-off"
    held = decide("nfpo-c1", parts | {share: exact(1.0, 117, "patterns")}, **SETTINGS)
    failed = decide("nfpo-c1", parts | {share: exact(0.9, 117, "patterns")}, **SETTINGS)
    assert (held.verdict, failed.verdict, failed.effect, failed.seeds) == (
        "supported",
        "contradicted",
        0.9,
        (),
    )


def test_every_declared_test_is_of_a_known_claim():
    for id, test in DECLARED.items():
        assert load_registry().claim(id).id == id
        assert "Supported" in test.test and "ontradicted" in test.test


# --- style ------------------------------------------------------------------------------------------------


def test_objectives_have_one_colour_each():
    assert (
        set(OBJECTIVE_COLOURS) == set(OBJECTIVE_LABELS) >= {"grpo", "dppo_tv", "nfpo", "uncorrected", "base"}
    )
    assert len(set(OBJECTIVE_COLOURS.values())) == len(OBJECTIVE_COLOURS)
    with pytest.raises(ValueError, match="nfpo"):
        objective_colour("nfp0")
