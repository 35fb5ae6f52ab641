"""IBPO's figures: what is drawn, and input that is refused."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from rlvr.reporting.figures_ibpo import compute_figure, gain_figure, success_figure, variance_figure
from rlvr.reporting.style import use_style


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    plt.close("all")


def ends(value):
    return {"value": value, "low": value - 0.1, "high": value + 0.1}


def test_curves_end_with_their_names():
    rows = [
        {"arm": arm, "compute": c, **ends(c / 2)}
        for arm in ("gspo", "gspo8", "ibpo")
        for c in (0.1, 0.5, 1.0)
    ]
    (ax,) = compute_figure(pd.DataFrame(rows), 0.3).axes
    names = {t.get_text() for t in ax.texts}
    assert {"GSPO", "GSPO, 8 responses", "IBPO", "reward of Table 2, 0.3"} <= names
    assert max(line.get_xdata()[-1] for line in ax.lines[:3]) == 1.0
    with pytest.raises(ValueError, match="compute frame"):
        compute_figure(pd.DataFrame(rows).drop(columns="low"), 0.3)


def test_gains_have_a_panel_per_measure():
    rows = [
        {"by": by, "level": level, "problems": 5, **ends(0.1)}
        for by, levels in (("operations", "234"), ("base model", ("hard", "easy")))
        for level in levels
    ]
    left, right = gain_figure(pd.DataFrame(rows), "GSPO").axes
    assert [t.get_text() for t in left.get_xticklabels()] == [f"{n}\n5 problems" for n in "234"]
    assert right.get_title(loc="left") == "By how often the base model is right"


def test_success_is_binned_over_the_training():
    rows = [
        {"arm": "ibpo", "seed": seed, "share": share, "right": share, "rewrites": 0.02}
        for seed in (0, 1)
        for share in np.linspace(0, 1, 21)
    ]
    first, second = success_figure(pd.DataFrame(rows), {"right": "Right", "rewrites": "Rewrites"}).axes
    (line,) = first.lines
    assert len(line.get_xdata()) == 10 and line.get_ydata()[0] == pytest.approx(0.025)
    assert first.get_ylim() == (0, 1) and second.get_ylim()[1] < 0.1


def test_more_than_three_panels_go_into_a_second_row():
    rows = [
        {"arm": "ibpo", "seed": s, "share": share, **dict.fromkeys("abcde", 0.3)}
        for s in (0, 1)
        for share in (0.1, 0.9)
    ]
    frame = pd.DataFrame(rows)
    frame.loc[frame["share"] == 0.1, "d"] = np.nan
    *axes, spare = success_figure(frame, {name: name.upper() for name in "abcde"}).axes
    assert [text.get_text() for text in spare.get_legend().get_texts()] == ["IBPO"]
    assert [ax.get_title(loc="left") for ax in axes] == list("ABCDE")
    assert len(axes[3].lines[0].get_xdata()) == 1


def test_variance_panels():
    weights = (0.0, 0.6, 1.2)
    simulated = pd.DataFrame(
        [
            {"accuracy": p, "weight": w, "closed": 1 - w * p / 2, **ends(1 - w * p / 2)}
            for p in (0.2, 0.6)
            for w in weights
        ]
    )
    measured = pd.DataFrame(
        [
            {"policy": name, "weight": w, "local": 1.0, **ends(1 - w / 4)}
            for name in ("base model", "after IBPO")
            for w in weights
        ]
    )
    left, right = variance_figure(simulated, measured, 0.6).axes
    assert {t.get_text() for t in left.texts} == {"p = 0.2", "p = 0.6"}
    assert {t.get_text() for t in right.texts} == {"base model", "after IBPO"}
    assert sum(line.get_linestyle() == "--" for line in right.lines) >= 2
