"""What the report says of open claims, of graders and contamination, and of faults of the machine."""

import numpy as np
import pytest
from scipy import stats

from rlvr.config import load_scale
from rlvr.evaluation.intervals import Estimate, seed_interval
from rlvr.evaluation.more_seeds import more_seeds
from rlvr.reporting.claims import decide
from rlvr.reporting.notes import report_notes
from rlvr.reporting.outlook import OVERNIGHT_SEEDS, outlook
from rlvr.reporting.report import build_report

SETTINGS = {"scale": "laptop", "confidence": 0.95, "margin": 0.02}


def claim(better, worse):
    """nfpo-c2 with seeds' differences to GRPO and to DPPO."""
    return decide(
        "nfpo-c2", {"NFPO - GRPO": seed_interval(better), "NFPO - DPPO-TV": seed_interval(worse)}, **SETTINGS
    )


def seeds(values):
    import pandas as pd

    return pd.Series(values, index=range(len(values)))


OPEN = claim(seeds([0.05, 0.06, 0.055]), seeds([-0.03, 0.04, 0.0, 0.01]))


def test_parts_are_kept_with_their_thresholds():
    clear, unclear = OPEN.parts
    assert (clear.name, clear.kind, clear.threshold, clear.verdict) == (
        "NFPO - GRPO",
        "at_least",
        -0.02,
        "supported",
    )
    assert (unclear.verdict, unclear.seeds, unclear.n_unit) == ("open", (0, 1, 2, 3), "seeds")
    assert (OPEN.effect, OPEN.ci_low) == (unclear.effect, unclear.ci_low)


def test_only_open_parts_of_open_claims():
    supported = claim(seeds([0.05, 0.06, 0.055]), seeds([0.05, 0.06, 0.055]))
    assert supported.verdict == "supported" and outlook([supported], 0.95) is None
    contradicted = claim(seeds([-0.05, -0.06, -0.055]), seeds([-0.03, 0.04, 0.0, 0.01]))
    assert contradicted.verdict == "contradicted" and outlook([contradicted], 0.95) is None
    assert list(outlook([OPEN, supported], 0.95)["part"]) == ["NFPO - DPPO-TV"]


def test_the_chance_is_that_of_simulated_seeds():
    row = outlook([OPEN], 0.95).iloc[0]
    assert (row["seeds"], row["seeds overnight"]) == ("4", str(4 * OVERNIGHT_SEEDS))
    assert row["supported if"] == "at least -0.02"
    values = np.array([-0.03, 0.04, 0.0, 0.01])
    draws = np.random.default_rng(0).normal(values.mean(), values.std(ddof=1), (20000, 12))
    half = stats.t.ppf(0.975, 11) * draws.std(axis=1, ddof=1) / np.sqrt(12)
    decided = np.mean(np.abs(draws.mean(axis=1) + 0.02) > half)
    assert float(row["chance that they decide"].rstrip("%")) / 100 == pytest.approx(decided, abs=0.02)
    needed = int(row["seeds for 80%"])
    assert more_seeds(seed_interval(seeds(values)), -0.02, needed).decides >= 0.8
    assert more_seeds(seed_interval(seeds(values)), -0.02, needed - 1).decides < 0.8


@pytest.mark.parametrize(
    "other",
    [
        Estimate(0.0, -0.1, 0.1, 1500, "responses", (0, 1), "bootstrap over responses"),
        Estimate(float("nan"), None, None, 0, "seeds", (), "not measured"),
        Estimate(0.1, -0.1, 0.9, 3, "seeds", (0, 1, 2), "exp of Student t over seeds"),
    ],
)
def test_no_plan_without_a_spread_over_seeds(other):
    """Other units, nothing measured, or an interval that is Student's on no scale."""
    open_ = decide("nfpo-c9", {"NFPO - FIPO": other}, **SETTINGS)
    row = outlook([open_], 0.95).iloc[0]
    assert row["chance that they decide"] == "no spread over seeds to plan by" and row["seeds for 80%"] == "-"


def test_notes_count_what_was_trained_on(monkeypatch):
    monkeypatch.delenv("RLVR_DATA", raising=False)
    scale = load_scale("params.yaml")
    notes = report_notes([scale, scale])
    assert len(notes) == len(set(notes))
    (counted,) = [n for n in notes if "held-out problems are among" in n]
    assert f"0 of {scale.problems.held_out} held-out problems are among 4,096 training problems" in counted
    assert any("AMC 2023: 22 of 40 problems are in DAPO-Math-17k" in n for n in notes)
    assert "aime24, aime25, minerva_math" in notes[-1]


def test_the_report_says_all_of_it(tmp_path):
    faults = {
        "faults": [
            {"fault": "disk full", "n": 1, "finished": 1, "refused": 1, "wrong": [], "seconds": 9, "note": ""}
        ]
    }
    build_report([], None, tmp_path / "empty", "laptop", {}, [], None)
    build_report([], None, tmp_path / "told", "laptop", {}, [], None, notes=["A <grader>."], faults=faults)
    for name, bare, escaped in (
        ("report.md", "No claim is open.", "A <grader>."),
        ("report.html", "no claim is open", "A &lt;grader&gt;."),
    ):
        empty, told = ((tmp_path / folder / name).read_text() for folder in ("empty", "told"))
        assert bare in empty and "disk full" not in empty
        assert "disk full" in told and escaped in told


def test_ratios_and_correlations_have_a_plan():
    ratio = Estimate(1.2, 0.93605, 1.53838, 3, "seeds", (0, 1, 2), "Student t over seeds of the log")
    open_ = decide("nfpo-c9", {"NFPO - FIPO": ratio}, **SETTINGS)
    row = outlook(
        [
            open_.model_copy(
                update={
                    "parts": (open_.parts[0].model_copy(update={"threshold": 1.0, "verdict": "open"}),),
                    "verdict": "open",
                }
            )
        ],
        0.95,
    ).iloc[0]
    assert row["chance that they decide"].endswith("%") and row["seeds overnight"] == "9"
    # Spread of the log 0.1, log 1.2 = 0.182: a standardised effect of 1.8 needs 5 seeds for 80 %.
    assert row["seeds for 80%"] == "5"
