"""MPO's figures: what is drawn is what came in, nothing overlaps, bad input is named."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from rlvr.analysis.mpo_settings import bias_frame
from rlvr.reporting import figures_mpo as figures
from rlvr.reporting.style import OBJECTIVE_COLOURS, svg_text, use_style

SETS = ("short problems", "long problems")
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4)


@pytest.fixture(autouse=True)
def _style():
    use_style()
    yield
    plt.close("all")


def tasks() -> pd.DataFrame:
    rows = [
        {"set": name, "arm": arm, "value": v, "low": v - 0.05, "high": v + 0.05,
         "points": (v - 0.02, v + 0.02)}
        for name, shift in zip(SETS, (0.0, -0.2), strict=True)
        for arm, v in (
            ("ppo", 0.6 + shift), ("grpo_4", 0.58 + shift), ("dapo", 0.55 + shift), ("mpo", 0.61 + shift),
            ("mpo_grpo", 0.59 + shift),
        )
    ]  # fmt: skip
    return pd.DataFrame(rows)


BASE = {SETS[0]: (0.45, 0.42, 0.48), SETS[1]: (0.3, None, None)}


def ratios() -> pd.DataFrame:
    rows = [
        {"weight": w, "ratio": ratio, "step": step, "variance": v * 1e-3 * step, "clip": 0.1 * v * step}
        for w in WEIGHTS
        for ratio, v in (("block", (1 - w) ** 2 + 0.02), ("scaled", (1 - w) ** 2), ("still", 0.9 * (1 - w)))
        if ratio == "block" or (w and ratio == "scaled") or w == 0.2
        for step in (2.0, 6.0, 10.0)
    ]
    return pd.DataFrame(rows)


def weights() -> pd.DataFrame:
    value = np.array([0.6, 0.61, 0.62, 0.6, 0.58])
    frame = pd.DataFrame({"weight": WEIGHTS, "value": value, "low": value - 0.03, "high": value + 0.03})
    return frame.assign(points=[(v - 0.01, v + 0.01) for v in value])


def updates() -> pd.DataFrame:
    draws = np.random.default_rng(0)
    rows = {
        "blocks": np.repeat([2, 3], 50),
        "rank": draws.uniform(1, 3, 100),
        "grad_norm": draws.uniform(0, 1, 100),
    }
    return pd.DataFrame(rows)


def prediction() -> pd.DataFrame:
    rows = [
        {"k": k, "step": step, "rank": 1.2 + k - 0.01 * step, "loss": 0.3 * k - 0.01 * step}
        for k in (2, 3, 4, 5)
        for step in range(0, 20, 5)
    ]
    return pd.DataFrame(rows)


DRAW = {
    "tasks": lambda: figures.task_figure(tasks(), BASE),
    "ratios": lambda: figures.ratio_figure(ratios()),
    "weights": lambda: figures.weight_figure(weights(), 0.45),
    "ranks": lambda: figures.rank_figure(updates(), prediction(), {2: "r = 0.10", 3: "r = 0.08"}),
    "warm_up": lambda: figures.warm_up_figure(prediction()),
    "bias": lambda: figures.bias_figure(bias_frame((1, 2, 4, 8, 16), 0.9)),
}


def texts(fig) -> list[Text]:
    return [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip()]


@pytest.mark.parametrize("name", DRAW)
def test_words_neither_overlap_nor_leave_the_figure(name):
    fig = DRAW[name]()
    FigureCanvasAgg(fig).draw()
    renderer, page = FigureCanvasAgg(fig).get_renderer(), fig.bbox
    ticks = {t for ax in fig.axes for axis in (ax.xaxis, ax.yaxis) for t in axis.get_ticklabels(which="both")}
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts(fig) if t not in ticks]
    for text, box in boxes:
        assert box.x0 >= page.x0 - 1 and box.x1 <= page.x1 + 1, text
        assert box.y0 >= page.y0 - 1 and box.y1 <= page.y1 + 1, text
    for (a, first), (b, second) in itertools.combinations(boxes, 2):
        width = min(first.x1, second.x1) - max(first.x0, second.x0)
        height = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert width <= 1 or height <= 2, f"{a!r} lies on {b!r}"


@pytest.mark.parametrize("name", DRAW)
def test_the_same_figure_is_the_same_bytes(name):
    assert svg_text(DRAW[name]()) == svg_text(DRAW[name]())


def test_arms_stand_at_their_values_beside_the_base():
    fig = DRAW["tasks"]()
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["Short problems", "Long problems"]
    marks = [line for line in fig.axes[1].lines if line.get_color() == OBJECTIVE_COLOURS["mpo"]]
    assert any(np.allclose(line.get_xdata(), [0.41]) for line in marks)  # the mean
    assert any(np.allclose(line.get_xdata(), [0.39, 0.43]) for line in marks)  # two seeds
    assert any(np.allclose(line.get_xdata(), [0.3, 0.3]) for line in fig.axes[1].lines)


def test_solid_lines_are_blocks_and_dotted_ones_scaled_tokens():
    fig = DRAW["ratios"]()
    solid = [line for line in fig.axes[0].lines if line.get_linestyle() == "-"]
    assert len(solid) == 5 and len(fig.axes[0].lines) == 5 + 4 + 1  # and one of modules not trained along
    assert np.allclose(solid[0].get_ydata(), [2.04e-3, 6.12e-3, 10.2e-3])


def test_where_nothing_is_biased_it_says_so():
    first = DRAW["bias"]().axes[0]
    assert any("no bias" in t.get_text() for t in first.texts)
    returned = next(line for line in first.lines if line.get_label() == "return")
    assert np.allclose(returned.get_ydata(), 0.9 ** np.array([1, 2, 4, 8, 16]))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.task_figure(tasks().assign(value=61), BASE), r"0\.\.1"),
        (lambda: figures.task_figure(tasks(), {SETS[0]: BASE[SETS[0]]}), "base lacks sets"),
        (lambda: figures.task_figure(tasks().drop(columns="low"), BASE), "missing"),
        (lambda: figures.ratio_figure(ratios().assign(clip=np.nan)), "not finite"),
        (lambda: figures.ratio_figure(ratios().drop(columns="weight")), "missing"),
        (lambda: figures.weight_figure(weights().iloc[:0], 0.4), "no rows"),
        (lambda: figures.rank_figure(updates().drop(columns="rank"), prediction(), {}), "missing"),
        (lambda: figures.bias_figure(pd.DataFrame({"example": [], "n": []})), "missing"),
    ],
)
def test_bad_input_is_named(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
