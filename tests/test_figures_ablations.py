"""Figures of the ablations: what is drawn is what came in, names stand apart, and doubt is never invented."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.text import Text

from rlvr.reporting import style
from rlvr.reporting.figures import horizon_figure
from rlvr.reporting.figures_ablations import ablation_figure, fipo_figure
from rlvr.reporting.style import MUTED, OBJECTIVE_COLOURS, objective_label, svg_text, use_style

VALUES = {
    "dppo_tv": 0.519,
    "nfpo": 0.559,
    "nfpo_trace_06_12": 0.53,
    "nfpo_trace_08_12": 0.457,
    "nfpo_recompute": 0.441,
    "nfpo_recompute_trace": 0.477,
    "nfpo_no_ratio_clip": 0.528,
    "nfpo_kl": 0.479,
    "nfpo_clip": 0.525,
    "nfpo_band": 0.579,
}
GROUPS = {
    "trace clip range": ["nfpo_trace_06_12", "nfpo_trace_08_12"],
    "recomputed log-probs and ratio clip": ["nfpo_recompute", "nfpo_recompute_trace", "nfpo_no_ratio_clip"],
    "token mask": ["nfpo_kl", "nfpo_clip", "nfpo_band"],
}


@pytest.fixture(autouse=True)
def _style():
    use_style()
    yield
    plt.close("all")


def ablations(groups=None, baselines=("dppo_tv", "nfpo"), points=True) -> pd.DataFrame:
    rows = [
        {
            "group": group,
            "arm": arm,
            "label": objective_label(arm),
            "value": VALUES[arm],
            "low": VALUES[arm] - 0.03,
            "high": VALUES[arm] + 0.03,
            "points": (VALUES[arm] - 0.01, VALUES[arm] + 0.01, VALUES[arm] + 0.02),
            "is_baseline": arm in baselines,
        }
        for group, arms in (groups or GROUPS).items()
        for arm in (*baselines, *arms)
    ]
    frame = pd.DataFrame(rows)
    return frame if points else frame.drop(columns="points")


def curves(val=True) -> pd.DataFrame:
    rows = itertools.product(("nfpo", "fipo"), (0, 1, 2), range(40))
    frame = pd.DataFrame(rows, columns=["arm", "seed", "step"])
    slope = np.where(frame["arm"] == "nfpo", 0.004, 0.003)
    frame["reward"] = 0.4 + slope * frame["step"] + 0.02 * frame["seed"]
    if val:
        frame["val_pass1"] = (frame["reward"] + 0.1).where(frame["step"] % 10 == 0)
    return frame


def final() -> pd.DataFrame:
    rows = [("nfpo", 0.582, 0.55, 0.61), ("fipo", 0.541, 0.505, 0.577)]
    return pd.DataFrame(rows, columns=["arm", "value", "low", "high"])


def horizons() -> pd.DataFrame:
    parts = {
        "trace_variance_raw": 0.002,
        "trace_variance_clipped": 0.001,
        "switch": 0.4,
        "switch_independent": 0.5,
    }
    rows = [
        {"horizon": n, "quantity": q, "value": v, "low": 0.9 * v, "high": 1.1 * v}
        for n in (1, 2, 4, 8, 16)
        for q, v in parts.items()
    ]
    accuracies = {1: 0.482, 2: 0.511, 4: 0.533, 8: 0.545, 16: 0.471}
    rows += [
        {"horizon": n, "quantity": "pass1", "value": v, "low": v - 0.03, "high": v + 0.03}
        for n, v in accuracies.items()
    ]
    return pd.DataFrame(rows)


DRAW = {
    "five entries": lambda: ablation_figure(ablations()),
    "two entries": lambda: ablation_figure(
        ablations({k: v[:1] for k, v in GROUPS.items()}, ("nfpo",), points=False)
    ),
    "one group": lambda: ablation_figure(ablations({"token mask": GROUPS["token mask"]})),
    "unknown": lambda: ablation_figure(without_interval(ablations(), "nfpo_recompute"), "dppo_tv"),
    "fipo": lambda: fipo_figure(curves(), final()),
    "fipo, reward alone": lambda: fipo_figure(curves(val=False), final()),
    "horizon": lambda: horizon_figure(horizons(), first="dppo_tv"),
}


def without_interval(frame, arm):
    return frame.assign(**{c: frame[c].where(frame["arm"] != arm) for c in ("low", "high")})


def texts(fig) -> list[Text]:
    return [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip()]


def corners(text, renderer):
    """The four corners of a text on the page, turned as the text is."""
    angle = text.get_rotation()
    x, y = text.get_transform().transform(text.get_unitless_position())
    plain = text.get_window_extent(renderer)
    if angle in (0, 90):
        return np.array(plain.corners())[[0, 1, 3, 2]]
    text.set_rotation(0)
    width, height = text.get_window_extent(renderer).size
    text.set_rotation(angle)
    turn = np.array([[math.cos(math.radians(angle)), -math.sin(math.radians(angle))],
                     [math.sin(math.radians(angle)), math.cos(math.radians(angle))]])  # fmt: skip
    flat = np.array([[-width, -height], [0, -height], [0, 0], [-width, 0]])  # right top corner at the tick
    return flat @ turn.T + (x, y)


def apart(a, b):
    """Whether two convex polygons are separated by a side of one of them (by more than half a pixel)."""
    for polygon in (a, b):
        for i in range(4):
            side = polygon[(i + 1) % 4] - polygon[i]
            normal = np.array([-side[1], side[0]]) / np.hypot(*side)
            first, second = a @ normal, b @ normal
            if min(first.max(), second.max()) - max(first.min(), second.min()) < 0.5:
                return True
    return False


@pytest.mark.parametrize("name", DRAW)
def test_words_neither_overlap_nor_leave_the_figure(name):
    fig = DRAW[name]()
    canvas = FigureCanvasAgg(fig)
    canvas.draw()
    renderer, page = canvas.get_renderer(), fig.bbox
    labels = {
        t for ax in fig.axes for axis in (ax.xaxis, ax.yaxis) for t in axis.get_ticklabels(which="both")
    }
    labels = {t for t in labels if not re.search("[A-Za-z]", t.get_text())}  # numbers, also those out of view
    boxes = [(t.get_text(), corners(t, renderer)) for t in texts(fig) if t not in labels]
    for text, box in boxes:
        assert box.min() >= -1 and box[:, 0].max() <= page.x1 + 1 and box[:, 1].max() <= page.y1 + 1, text
    for (a, first), (b, second) in itertools.combinations(boxes, 2):
        assert apart(first, second), f"{a!r} lies on {b!r}"


@pytest.mark.parametrize("name", DRAW)
def test_every_axis_is_named_and_the_same_frame_is_the_same_bytes(name):
    fig = DRAW[name]()
    assert all(ax.get_title(loc="left") for ax in fig.axes)
    assert fig.axes[0].get_ylabel()
    assert svg_text(fig) == svg_text(DRAW[name]())


def test_each_group_has_its_arms_at_their_values():
    frame = ablations()
    fig = ablation_figure(frame)
    assert [ax.get_title(loc="left").replace("\n", " ") for ax in fig.axes] == [
        "Trace clip range",
        "Recomputed log-probs and ratio clip",
        "Token mask",
    ]
    for ax, arms in zip(fig.axes, GROUPS.values(), strict=True):
        expected = ["dppo_tv", "nfpo", *arms]
        assert [t.get_text() for t in ax.get_xticklabels()] == [objective_label(a) for a in expected]
        for x, arm in enumerate(expected):
            colour, value = OBJECTIVE_COLOURS[arm], VALUES[arm]
            own = [line for line in ax.lines if line.get_color() == colour and line.get_marker() in "sDo"]
            (mark,) = [line for line in own if line.get_marker() != "None"]
            assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([x], [value])
            assert mark.get_markerfacecolor() == colour
            drawn = [sorted(line.get_ydata()) for line in ax.lines if list(line.get_xdata()) == [x, x]]
            assert drawn == [pytest.approx([value - 0.03, value + 0.03])]
            (dots,) = [line for line in ax.lines if line.get_marker() == "." and line.get_color() == colour]
            assert list(dots.get_ydata()) == pytest.approx([value - 0.01, value + 0.01, value + 0.02])
            assert f"{value:.3f}" in {t.get_text() for t in ax.texts if t.get_position()[0] == x}
    low, high = fig.axes[0].get_ylim()
    assert low < 0.411 and high > 0.609 and {ax.get_ylim() for ax in fig.axes} == {(low, high)}


def test_baselines_stand_on_a_shade_and_the_reference_is_a_line_everywhere():
    fig = ablation_figure(ablations(), "dppo_tv")
    for ax in fig.axes:
        assert [(p.get_x(), p.get_x() + p.get_width()) for p in ax.patches] == [(-0.5, 0.5), (0.5, 1.5)]
        dashed = [line for line in ax.lines if list(line.get_xdata()) == [0, 1] and line.is_dashed()]
        assert [(list(d.get_ydata()), d.get_color()) for d in dashed] == [
            ([0.519] * 2, OBJECTIVE_COLOURS["dppo_tv"])
        ]


def test_an_unknown_interval_is_hollow_and_said():
    fig = ablation_figure(without_interval(ablations(points=False), "nfpo_kl"))
    said = ["hollow: interval unknown" in {t.get_text() for t in texts(ax)} for ax in fig.axes]
    assert said == [False, False, True]
    own = [line for line in fig.axes[2].lines if line.get_color() == OBJECTIVE_COLOURS["nfpo_kl"]]
    hollow = [line for line in own if len(line.get_xdata())]
    assert len(hollow) == 1 and hollow[0].get_markerfacecolor() == "none"


def test_curves_are_means_over_seeds_with_the_range_as_band():
    fig = fipo_figure(curves(), final())
    reward, accuracy, last = fig.axes
    for ax, shift, steps in ((reward, 0.0, range(40)), (accuracy, 0.1, range(0, 40, 10))):
        for arm, slope, band in zip(("nfpo", "fipo"), (0.004, 0.003), ax.collections, strict=True):
            (line,) = [x for x in ax.lines if x.get_color() == OBJECTIVE_COLOURS[arm]]
            assert list(line.get_xdata()) == list(steps)
            assert np.allclose(line.get_ydata(), 0.42 + shift + slope * np.array(steps))
            path = band.get_paths()[0].vertices
            at_10 = path[path[:, 0] == 10][:, 1]
            ends = (at_10.min(), at_10.max())
            assert ends == pytest.approx((0.4 + shift + 10 * slope, 0.44 + shift + 10 * slope))
            assert np.allclose(band.get_facecolor()[0], to_rgba(OBJECTIVE_COLOURS[arm], 0.18))
        assert {t.get_text() for t in ax.texts} == {"NFPO", "FIPO"}
    bars = [sorted(line.get_ydata()) for line in last.lines if len(line.get_ydata()) == 2]
    assert bars == [[0.55, 0.61], [0.505, 0.577]]
    assert [t.get_text() for t in last.get_xticklabels()] == ["NFPO", "FIPO"]
    assert {t.get_text() for t in last.texts} == {"0.582", "0.541"}


def test_without_validation_there_is_no_panel_for_it():
    assert [ax.get_title(loc="left") for ax in fipo_figure(curves(val=False), final()).axes] == [
        "Reward of the rollouts",
        "After training",
    ]


def test_horizon_1_is_drawn_as_the_arm_that_it_is():
    plain, named = horizon_figure(horizons()).axes[2], horizon_figure(horizons(), first="dppo_tv").axes[2]
    assert [t.get_text() for t in plain.get_xticklabels()] == ["1", "2", "4", "8", "16"]
    assert [t.get_text() for t in named.get_xticklabels()] == ["1\nDPPO-TV", "2", "4", "8", "16"]
    green = OBJECTIVE_COLOURS["dppo_tv"]
    assert not [line for line in plain.lines if line.get_color() == green]
    own = [line for line in named.lines if line.get_color() == green]
    assert [list(line.get_ydata()) for line in own] == [pytest.approx([0.452, 0.512]), [0.482], [0.482] * 2]
    assert named.get_xticklabels()[0].get_color() == green
    with pytest.raises(ValueError, match=r"first='dppo_tv': .* no pass1 at horizon 1"):
        horizon_figure(horizons().query("quantity != 'pass1' or horizon > 1"), first="dppo_tv")
    with pytest.raises(ValueError, match="no pass1"):
        horizon_figure(horizons().query("quantity != 'pass1'"), first="dppo_tv")


@pytest.mark.parametrize("column", ["group", "arm", "label", "value", "low", "high", "is_baseline"])
def test_a_missing_column_of_the_ablations_is_named(column):
    with pytest.raises(ValueError, match=rf"ablation frame: columns \['{column}'\] are missing"):
        ablation_figure(ablations().drop(columns=column))


@pytest.mark.parametrize("column", ["arm", "seed", "step", "reward"])
def test_a_missing_column_of_the_curves_is_named(column):
    with pytest.raises(ValueError, match=rf"curves: columns \['{column}'\] are missing"):
        fipo_figure(curves().drop(columns=column), final())


@pytest.mark.parametrize("column", ["arm", "value", "low", "high"])
def test_a_missing_column_of_the_end_is_named(column):
    with pytest.raises(ValueError, match=rf"final: columns \['{column}'\] are missing"):
        fipo_figure(curves(), final().drop(columns=column))


def half_validated():
    return curves().assign(val_pass1=lambda f: f["val_pass1"].where(f["arm"] == "nfpo"))


def with_arm(frame, name):
    return frame.assign(arm=frame["arm"].replace("nfpo_kl", name))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: ablation_figure(ablations().iloc[:0]), "no rows"),
        (lambda: ablation_figure(ablations().assign(value=math.nan)), "not finite"),
        (lambda: ablation_figure(ablations().assign(low=0.9)), "upside down"),
        (lambda: ablation_figure(ablations().assign(value=55.9)), r"shares in 0\.\.1"),
        (lambda: ablation_figure(ablations().assign(points=[(50.0,)] * 14)), r"shares in 0\.\.1"),
        (lambda: ablation_figure(pd.concat([ablations()] * 2)), "twice in a group"),
        (lambda: ablation_figure(with_arm(ablations(), "nfpo_kI")), "nfpo_kI"),
        (lambda: ablation_figure(ablations(), "fipo"), "reference='fipo' has 0 values"),
        (
            lambda: ablation_figure(ablations().assign(value=np.linspace(0.4, 0.5, 14), low=0.1, high=0.9)),
            "reference='nfpo' has 3 values",
        ),
        (lambda: fipo_figure(curves().iloc[:0], final()), "no rows"),
        (lambda: fipo_figure(curves().query("arm == 'nfpo'"), final()), "allowed are the same"),
        (lambda: fipo_figure(curves(), final().iloc[:1]), "allowed are the same"),
        (lambda: fipo_figure(curves(), pd.concat([final()] * 2)), "allowed are the same"),
        (lambda: fipo_figure(curves(), final().assign(value=58.2)), r"0\.\.1"),
        (
            lambda: fipo_figure(half_validated(), final()),
            r"'val_pass1' holds no number for arms \['fipo'\]",
        ),
    ],
)
def test_bad_input_is_named(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def luminance(colour) -> float:
    """Relative luminance of WCAG."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_ablations_are_readable_on_a_light_and_a_dark_page():
    page = Path(style.__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    papers = re.findall(r"--fig-paper: (#[0-9a-f]{6})", page)
    assert len(papers) >= 2
    for arm, colour in OBJECTIVE_COLOURS.items():
        if not arm.startswith("nfpo_") and arm != "fipo":
            continue
        for paper in papers:
            light, dark = sorted((luminance(colour) + 0.05, luminance(paper) + 0.05), reverse=True)
            assert light / dark >= 2.95, (arm, paper)
    assert MUTED not in {c for a, c in OBJECTIVE_COLOURS.items() if a.startswith("nfpo_")}
