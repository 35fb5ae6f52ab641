"""Figures: what is drawn is what came in, nothing overlaps, and the same figure is the same bytes."""

from __future__ import annotations

import itertools
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from rlvr.reporting import figures
from rlvr.reporting.drawing import spread
from rlvr.reporting.inline import inline_svg
from rlvr.reporting.style import INK, OBJECTIVE_COLOURS, png_bytes, svg_text, use_style

PANELS = {"reward": ("Reward", "mean"), "kl": ("KL", "nats per token")}


@pytest.fixture(autouse=True)
def _style():
    use_style()
    yield
    plt.close("all")


def training(seeds=(0, 1, 2), lags=(0, 8)) -> pd.DataFrame:
    rows = itertools.product(("grpo", "dppo_tv", "nfpo", "uncorrected"), lags, seeds, range(1, 21))
    frame = pd.DataFrame(rows, columns=["arm", "lag", "seed", "step"])
    frame["reward"] = 0.4 + 0.01 * frame["step"] + 0.02 * frame["seed"]
    frame["kl"] = 0.001 * frame["step"] * np.where(frame["arm"] == "uncorrected", 100, 1)
    return frame


def segment() -> pd.DataFrame:
    wave = np.sin(np.arange(50))
    tokens = list("11+6=17,17-4=13,13*2=26,26-9=17,17*3=51,51+8=59,5")
    return pd.DataFrame(
        {
            "position": range(1, 51),
            "rho": np.exp(0.1 * wave),
            "traced": np.exp(0.3 * wave),
            "token": tokens + ["<eos>"],
        }
    )


def frequency() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "quantity": ["rho", "traced"],
            "value": [0.497, 0.192],
            "low": [0.49, 0.18],
            "high": [0.5, 0.2],
            "independent": [0.5, 0.23],
        }
    )


def horizons(quantities) -> pd.DataFrame:
    rows = [
        {"horizon": n, "quantity": q, "value": v * n**p, "low": 0.9 * v * n**p, "high": 1.1 * v * n**p}
        for n in (1, 2, 4, 8, 16)
        for q, v, p in quantities
    ]
    return pd.DataFrame(rows)


def dynamics() -> pd.DataFrame:
    return horizons(
        [
            ("trace_variance_raw", 0.002, 1),
            ("trace_variance_clipped", 0.001, 0.9),
            ("switch", 0.5, -0.7),
            ("switch_independent", 0.5, -0.5),
        ]
    )


def surrogate() -> pd.DataFrame:
    return horizons([("bias", -0.04, -0.5), ("sd", 1.3, 0.3)]).assign(
        low=lambda f: f["value"] - 0.02, high=lambda f: f["value"] + 0.02
    )


def accuracy() -> pd.DataFrame:
    rows = [
        ("grpo", 0, 0.685, 0.66, 0.71),
        ("nfpo", 0, 0.646, 0.61, 0.68),
        ("uncorrected", 0, 0.55, 0.5, 0.6),
    ]
    rows += [
        ("grpo", 8, 0.608, 0.55, 0.66),
        ("nfpo", 8, 0.611, 0.59, 0.63),
        ("uncorrected", 8, 0.05, None, None),
    ]
    return pd.DataFrame(rows, columns=["arm", "lag", "value", "low", "high"])


BASE = {"value": 0.471, "low": 0.44, "high": 0.5}
DRAW = {
    "train": lambda: figures.training_figure(training(), PANELS),
    "ratio": lambda: figures.ratio_figure(
        segment(), frequency(), {"rho": 0.2018, "traced": 0.1008}, (0.8, 1.4)
    ),
    "horizon": lambda: figures.horizon_figure(dynamics()),
    "surrogate": lambda: figures.surrogate_figure(surrogate(), 0.245, full=16),
    "accuracy": lambda: figures.accuracy_figure(accuracy(), BASE),
}


@pytest.fixture(scope="module")
def drawn():
    """Every figure once, with its layout settled."""
    use_style()
    made = {name: draw() for name, draw in DRAW.items()}
    for fig in made.values():
        FigureCanvasAgg(fig).draw()
    return made


def texts(fig) -> list[Text]:
    return [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip()]


@pytest.mark.parametrize("name", DRAW)
def test_words_neither_overlap_nor_leave_the_figure(drawn, name):
    fig = drawn[name]
    renderer = FigureCanvasAgg(fig).get_renderer()
    ticks = {t for ax in fig.axes for axis in (ax.xaxis, ax.yaxis) for t in axis.get_ticklabels(which="both")}
    ticks |= {t for ax in fig.axes for child in ax.child_axes for t in child.yaxis.get_ticklabels()}
    words = [t for t in texts(fig) if t not in ticks]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in words]
    page = fig.bbox
    for text, box in boxes:
        inside = (
            box.x0 >= page.x0 - 1
            and box.x1 <= page.x1 + 1
            and box.y0 >= page.y0 - 1
            and box.y1 <= page.y1 + 1
        )
        assert inside, f"{text!r} leaves the figure: {box}"
    for (a, first), (b, second) in itertools.combinations(boxes, 2):
        width = min(first.x1, second.x1) - max(first.x0, second.x0)
        height = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert width <= 1 or height <= 2, f"{a!r} lies on {b!r}"


@pytest.mark.parametrize("name", DRAW)
def test_every_axis_has_a_unit_and_every_panel_a_title(drawn, name):
    fig = drawn[name]
    last = {ax for ax in fig.axes if ax.get_subplotspec().is_last_row()}
    for ax in fig.axes:
        assert ax.get_title(loc="left"), name
        if not texts(ax) or any(t.get_text() == "not run" for t in texts(ax)):
            continue
        names_itself = any(label.get_text()[:1].isalpha() for label in ax.get_xticklabels())
        if ax in last and not names_itself:
            assert ax.get_xlabel(), name
        if ax.get_subplotspec().is_first_col() and name != "accuracy":
            assert ax.get_ylabel(), name


def test_the_same_figure_is_the_same_bytes():
    first, second = DRAW["horizon"](), DRAW["horizon"]()
    assert svg_text(first) == svg_text(second)
    assert png_bytes(first) == png_bytes(second)
    assert "<dc:date>" not in svg_text(first) and b"Software" not in png_bytes(first)[:200]


def test_training_lines_are_means_and_bands_are_ranges():
    fig = figures.training_figure(training(), PANELS)
    ax = fig.axes[0]
    line = next(x for x in ax.lines if x.get_color() == OBJECTIVE_COLOURS["nfpo"])
    assert np.allclose(line.get_ydata(), 0.4 + 0.01 * np.arange(1, 21) + 0.02)  # mean of seeds 0, 1, 2
    band = ax.collections[0].get_paths()[0].vertices
    at_step_5 = band[band[:, 0] == 5][:, 1]
    assert at_step_5.min() == pytest.approx(0.45) and at_step_5.max() == pytest.approx(0.49)
    assert {t.get_text() for t in texts(fig)} >= {"GRPO", "DPPO-TV", "NFPO", "uncorrected"}


def test_one_seed_is_said_to_have_no_band():
    fig = figures.training_figure(training(seeds=(4,), lags=(0,)), PANELS)
    assert any("one seed" in t.get_text() for t in texts(fig))


def test_sparse_and_absent_metrics():
    frame = training()
    frame.loc[frame["step"] % 10 != 0, "reward"] = math.nan
    frame.loc[frame["arm"] == "uncorrected", "kl"] = math.nan
    fig = figures.training_figure(frame, PANELS)
    assert len(fig.axes[0].lines) == 4 and len(fig.axes[2].lines) == 3
    assert list(fig.axes[0].lines[0].get_xdata()) == [10, 20]
    with pytest.raises(ValueError, match="kl"):
        figures.training_figure(frame.assign(kl=math.nan), PANELS)


def test_switch_frequency_stands_beside_its_baseline(drawn):
    ax = drawn["ratio"].axes[1]
    heights = [bar.get_height() for bar in ax.patches]
    assert np.allclose(heights, [49.7, 19.2])
    dashed = [
        line.get_ydata()[0] for line in ax.lines if line.get_color() == INK and len(line.get_ydata()) == 2
    ]
    assert np.allclose(dashed, [50, 23])


def test_the_panel_of_an_experiment_that_was_not_run_says_so():
    assert any(t.get_text() == "not run" for t in texts(DRAW["horizon"]()))
    run = pd.concat([dynamics(), horizons([("pass1", 0.6, 0.02)])])
    fig = figures.horizon_figure(run)
    assert not any(t.get_text() == "not run" for t in texts(fig))
    assert len(fig.axes[2].lines) == 1


def test_an_unknown_interval_is_hollow_and_said():
    fig = figures.accuracy_figure(accuracy(), BASE)
    assert any("interval unknown" in t.get_text() for t in texts(fig.axes[1]))
    marks = [line for line in fig.axes[1].lines if line.get_color() == OBJECTIVE_COLOURS["uncorrected"]]
    assert len(marks) == 1 and marks[0].get_markerfacecolor() == "none"


def test_an_arm_without_a_number_is_not_measured():
    fig = figures.accuracy_figure(accuracy().iloc[:-1], BASE)
    assert any("not measured" in t.get_text() for t in texts(fig.axes[1]))


@pytest.mark.parametrize("spread", [0.001, 0.03, 0.1, 0.5, 3.0])
def test_a_ratio_can_be_read_off_its_axis_however_wide_that_is(spread):
    rows = segment()
    rows["rho"], rows["traced"] = rows["rho"] ** spread, np.exp(spread * np.sin(np.arange(50)))
    axis = figures.ratio_figure(rows, frequency()).axes[0]
    ticks = axis.get_yticks()
    assert min(ticks) < 1 < max(ticks) and 1 in ticks and 3 <= len(ticks) <= 9
    assert [label.get_text() for label in axis.get_yticklabels()] == [f"{tick:g}" for tick in ticks]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.accuracy_figure(accuracy().rename(columns={"low": "ci_low"}), BASE),
        lambda: figures.accuracy_figure(accuracy(), {"value": 0.4, "stderr": 0.1}),
        lambda: figures.horizon_figure(dynamics().rename(columns={"high": "std_err"})),
        lambda: figures.surrogate_figure(surrogate().drop(columns="low"), 0.2),
        lambda: figures.ratio_figure(segment(), frequency().drop(columns="independent")),
        lambda: figures.training_figure(training().drop(columns="seed"), PANELS),
    ],
)
def test_a_spread_under_another_name_is_an_error(draw):
    with pytest.raises(ValueError, match="missing"):
        draw()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.accuracy_figure(accuracy().iloc[:0], BASE), "no rows"),
        (lambda: figures.accuracy_figure(accuracy().assign(value=math.nan), BASE), "not finite"),
        (lambda: figures.accuracy_figure(accuracy().assign(value=68.5), BASE), r"0\.\.1"),
        (lambda: figures.accuracy_figure(accuracy().assign(low=0.9), BASE), "upside down|one end"),
        (lambda: figures.accuracy_figure(accuracy().assign(arm="nfp0"), BASE), "nfp0"),
        (
            lambda: figures.horizon_figure(dynamics().query("quantity != 'switch_independent'")),
            "switch_indep",
        ),
        (lambda: figures.surrogate_figure(surrogate(), 0.0), "gain"),
        (lambda: figures.ratio_figure(segment().assign(rho=-1.0), frequency()), "positive"),
        (lambda: figures.ratio_figure(segment(), frequency().iloc[:1]), "traced"),
    ],
)
def test_bad_input_is_named(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


@pytest.mark.parametrize(
    ("places", "gap", "expected"),
    [
        ([0.1, 0.5, 0.9], 0.1, [0.1, 0.5, 0.9]),
        ([0.5, 0.5], 0.1, [0.45, 0.55]),
        ([0.0, 0.0, 0.9], 0.1, [0.0, 0.1, 0.9]),
        ([1.0, 1.0], 0.2, [0.8, 1.0]),
        ([0.3], 0.5, [0.3]),
    ],
)
def test_labels_move_apart_as_little_as_they_must(places, gap, expected):
    assert spread(places, gap) == pytest.approx(expected)


def test_inlined_figures_cannot_share_ids_and_follow_the_theme():
    svg = svg_text(DRAW["surrogate"]())
    one, two = inline_svg(svg, "nfpo-x1", 'A "quoted" & long text'), inline_svg(svg, "nfpo-x2", "B")

    def ids(text):
        return {part.split('"')[0] for part in text.split(' id="')[1:]}

    assert ids(one) and not ids(one) & ids(two)
    assert 'aria-label="A &quot;quoted&quot; &amp; long text"' in one and 'role="img"' in one
    assert "var(--fig-ink, #1b1f24)" in one and "fill: #1b1f24" not in one
    assert "<metadata>" not in one and "width=" not in one.split(">")[0]


@pytest.mark.parametrize(
    "svg",
    [
        "<div/>",
        "<svg><script>1</script></svg>",
        '<svg><image href="https://example.org/a.png"/></svg>',
        '<svg><g onload="x()"/></svg>',
        '<svg><use href="#gone"/></svg>',
    ],
)
def test_an_svg_that_does_not_stand_alone_is_refused(svg):
    with pytest.raises(ValueError, match="figure f"):
        inline_svg(svg, "f", "x")
