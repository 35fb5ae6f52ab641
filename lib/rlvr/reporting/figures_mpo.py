"""The figures of MPO: frames in, a matplotlib Figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import matplotlib.ticker
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlvr.reporting.drawing import interval, label_lines, need, need_finite, need_measured, note
from rlvr.reporting.style import (
    INK,
    MUTED,
    OBJECTIVE_MARKERS,
    WIDTH,
    objective_colour,
    objective_label,
)

#: Value columns of an n-step bias frame -> (label, dashes).
_BIASES = {
    "return_bias": ("return", "-"),
    "advantage_bias": ("advantage", (0, (5, 1.2))),
    "gradient_bias": ("policy gradient", (0, (1.5, 1.2))),
    "tail_bound": ("B.2: $\\gamma^n$ max|e|", (0, (4, 1, 1, 1))),
}
_BIAS_COLOURS = ("#0072B2", "#D55E00", "#009E73", MUTED)


#: Steps of an ordered setting, from orange to blue: told apart on a light and on a dark page.
_ORDERED = ("#C98500", "#D55E00", "#C2185B", "#8E4FC0", "#2D6FC4")


def sequence_colours(count: int) -> list[str]:
    """Colours of an ordered setting with so many steps, the first and the last at the ends.

    Raises:
        ValueError: more steps than there are colours.
    """
    if not 1 <= count <= len(_ORDERED):
        raise ValueError(f"count={count}: allowed are 1 to {len(_ORDERED)} steps of an ordered setting")
    last = max(count - 1, 1)
    return [_ORDERED[round(i * (len(_ORDERED) - 1) / last)] for i in range(count)]


def task_figure(frame: pd.DataFrame, base: Mapping[str, tuple[float, float, float]]) -> Figure:
    """Final pass@1 of every arm on several sets of problems, the base model as a line (mpo-fig3).

    Args:
        frame: one row per set and arm, in the order in which they are shown: ``set``, ``arm``, ``value``,
            ``low``, ``high`` (0..1), and ``points``, the accuracies of single seeds.
        base: set -> (value, low, high) of the base model.

    Raises:
        ValueError: missing columns, no rows, an accuracy outside 0..1, a set without its base.
    """
    frame = need_measured(frame, ["set", "arm", "points"], "task frame")
    if not frame["value"].between(0, 1).all():
        raise ValueError(f"task frame: values {frame['value'].tolist()} must be shares in 0..1")
    sets, arms = list(dict.fromkeys(frame["set"])), list(dict.fromkeys(frame["arm"]))
    if absent := [name for name in sets if name not in base]:
        raise ValueError(f"base lacks sets {absent}; there are {sorted(base)}")
    fig, axes = plt.subplots(
        1, len(sets), figsize=(WIDTH, 0.42 * len(arms) + 1.5), sharey=True, squeeze=False
    )
    for ax, name in zip(axes[0], sets, strict=True):
        value, low, high = base[name]
        if low is not None:
            ax.axvspan(low, high, color=MUTED, alpha=0.2, linewidth=0)
        ax.axvline(value, color=MUTED, linewidth=1.2)
        ax.annotate(
            "base model", (value, -0.95), (4, -3), textcoords="offset points", ha="left", va="top",
            color=MUTED, fontsize=8.5,
        )  # fmt: skip
        for row in frame[frame["set"] == name].itertuples():
            y, colour = arms.index(row.arm), objective_colour(row.arm)
            _seeds(ax, row.points, [y + 0.2] * len(row.points), colour)
            marker = OBJECTIVE_MARKERS.get(row.arm, "o")
            interval(ax, y, row.value, row.low, row.high, colour, marker, horizontal=True)
            place = {"textcoords": "offset points", "ha": "center", "va": "bottom"}
            ax.annotate(f"{row.value:.3f}", (row.value, y), (0, 5), fontsize=8.5, color=INK, **place)
        ax.set_yticks(range(len(arms)), [objective_label(arm) for arm in arms])
        ax.set_ylim(len(arms) - 0.5, -0.95)
        ax.margins(x=0.1)
        ax.grid(axis="y", visible=False)
        ax.set(title=name[:1].upper() + name[1:], xlabel="held-out pass@1")
    return fig


def _seeds(ax: Axes, x, y, colour: str) -> None:
    """Single seeds beside their mean."""
    ax.plot(x, y, ".", color=colour, alpha=0.5, markersize=4.5, zorder=2)


_RATIO_DASHES = {"block": "-", "scaled": (0, (1.5, 1.2)), "still": (0, (5, 1.5))}
_RATIO_TEXTS = (
    "block; total weight at its end",
    "token's log ratio scaled",
    "block, modules not trained along",
)


def ratio_figure(frame: pd.DataFrame) -> Figure:
    """Variance of the importance ratio and clip fraction over training, by total weight (mpo-fig4).

    Solid: the block's ratio. Dotted: on the same updates, the token's ratio with its log scaled by 1 - S.
    Dashed: the block's ratio in runs whose modules are not trained along with the policy.

    Args:
        frame: ``weight`` (S, 0..1), ``ratio`` (block, scaled or still), ``step``, ``variance``, ``clip``
            (percent).
    """
    frame = need(frame, ["weight", "ratio", "step", "variance", "clip"], "ratio frame")
    need_finite(frame, ["variance", "clip"], "ratio frame")
    weights = sorted(frame["weight"].unique())
    colours = dict(zip(weights, sequence_colours(len(weights)), strict=True))
    fig, axes = plt.subplots(1, 2, figsize=(WIDTH, 3.4))
    for ax, column in zip(axes, ("variance", "clip"), strict=True):
        ends = []
        for (weight, ratio), rows in frame.groupby(["weight", "ratio"]):
            solid = ratio == "block"
            line = {"linestyle": _RATIO_DASHES[ratio], "linewidth": 1.7 if solid else 1.1}
            rows = rows.sort_values("step")
            ax.plot(rows["step"], rows[column], color=colours[weight], **line)
            if solid:
                ends.append((rows[column].iloc[-1], f"{100 * weight:g} %", colours[weight]))
        ax.set_xlabel("training step")
        if column == "variance" and (frame["variance"] > 0).all():
            ax.set_yscale("log")
        label_lines(ax, ends)
    axes[0].set(title="Variance of the ratio", ylabel="variance over tokens")
    axes[1].set(title="Clip fraction", ylabel="% of tokens")
    axes[1].set_ylim(bottom=0)
    handles = [
        plt.Line2D([], [], color=INK, linestyle=dashes, linewidth=1.7 if name == "block" else 1.1, label=text)
        for (name, dashes), text in zip(_RATIO_DASHES.items(), _RATIO_TEXTS, strict=True)
        if name in set(frame["ratio"])
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return fig


def weight_figure(frame: pd.DataFrame, base: float) -> Figure:
    """Final pass@1 over the total weight of the modules (mpo-fig6).

    Args:
        frame: ``weight`` (0..1), ``value``, ``low``, ``high``, ``points``.
        base: pass@1 of the base model.
    """
    frame = need_measured(frame, ["weight", "points"], "weight frame").sort_values("weight")
    fig, ax = plt.subplots(figsize=(0.7 * WIDTH, 3.2))
    colours = sequence_colours(len(frame))
    ax.plot(100 * frame["weight"], frame["value"], color=MUTED, linewidth=1, zorder=1)
    for row, colour in zip(frame.itertuples(), colours, strict=True):
        x = 100 * row.weight
        _seeds(ax, [x - 1] * len(row.points), row.points, colour)
        interval(ax, x, row.value, row.low, row.high, colour, "s" if row.weight == 0 else "D")
        ax.annotate(f"{row.value:.3f}", (x, row.value), (5, 6), textcoords="offset points", fontsize=8.5)
    ax.axhline(base, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    ax.annotate(
        "base model", (1, base), (0, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
        ha="right", color=MUTED, fontsize=8.5,
    )  # fmt: skip
    ax.set_xticks(
        100 * frame["weight"], [f"{100 * w:g}" + ("\n(PPO)" if w == 0 else "") for w in frame["weight"]]
    )
    ax.set_xlim(100 * frame["weight"].min() - 3, 100 * frame["weight"].max() + 6)
    ax.grid(axis="x", visible=False)
    ax.set(xlabel="total weight of the modules, %", ylabel="held-out pass@1")
    return fig


def rank_figure(updates: pd.DataFrame, over_steps: pd.DataFrame, texts: Mapping[int, str]) -> Figure:
    """Rank of the predicted second token against the gradient's norm; prediction over training (mpo-fig7).

    Args:
        updates: ``blocks`` (K), ``rank`` and ``grad_norm``, a row per update.
        over_steps: ``k`` (which token a module predicts), ``step``, ``rank`` and ``loss``, means over seeds.
        texts: K -> what stands beside its points.
    """
    updates = need(updates, ["blocks", "rank", "grad_norm"], "updates")
    over_steps = need(over_steps, ["k", "step", "rank", "loss"], "over_steps")
    fig, axes = plt.subplots(1, 3, figsize=(WIDTH, 3.2), width_ratios=[1.25, 1, 1])
    blocks = sorted(updates["blocks"].unique())
    for k, colour, marker in zip(blocks, ("#0072B2", "#D55E00"), ("o", "D"), strict=False):
        rows = updates[updates["blocks"] == k]
        axes[0].scatter(
            rows["rank"], rows["grad_norm"], s=9, color=colour, marker=marker, alpha=0.45, linewidths=0,
            label=f"K={k}: {texts[k]}",
        )  # fmt: skip
    axes[0].set(title="Rank and gradient", xlabel="mean rank of the second token", ylabel="gradient norm")
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(low, high + 0.3 * (high - low))  # room for the legend
    axes[0].legend(loc="upper left", borderaxespad=0.1, handletextpad=0.3)
    _prediction_panels(axes[1:], over_steps)
    return fig


def warm_up_figure(history: pd.DataFrame) -> Figure:
    """Cross entropy and rank of every module over its warm-up, on validation solutions (mpo-x1).

    Args:
        history: ``k``, ``step``, ``rank`` and ``loss``.
    """
    history = need(history, ["k", "step", "rank", "loss"], "history")
    fig, axes = plt.subplots(1, 2, figsize=(WIDTH, 2.9))
    _prediction_panels(axes, history, "warm-up step")
    return fig


def _prediction_panels(axes: Sequence[Axes], frame: pd.DataFrame, xlabel: str = "training step") -> None:
    tokens = sorted(frame["k"].unique())
    colours = dict(zip(tokens, sequence_colours(len(tokens)), strict=True))
    panels = (("loss", "Cross entropy", "nats per token"), ("rank", "Rank of the prediction", "mean rank"))
    for ax, (column, title, unit) in zip(axes, panels, strict=True):
        ends = []
        for k, rows in frame.groupby("k"):
            rows = rows.sort_values("step")
            ax.plot(rows["step"], rows[column], color=colours[k], linewidth=1.4)
            ends.append((rows[column].iloc[-1], f"k={k}", colours[k]))
        ax.set(title=title, xlabel=xlabel, ylabel=unit)
        ax.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4, integer=True))
        label_lines(ax, ends)


def bias_figure(frame: pd.DataFrame) -> Figure:
    """Bias of n-step estimates over n, in units of the value function's error (mpo-figB2).

    Args:
        frame: ``example``, ``n``, and the columns of :func:`rlvr.analysis.bootstrapping.bias_by_horizon`.
    """
    frame = need(frame, ["example", "n", *_BIASES], "bias frame")
    need_finite(frame, list(_BIASES), "bias frame")
    examples = list(dict.fromkeys(frame["example"]))
    fig, axes = plt.subplots(1, len(examples), figsize=(WIDTH, 3.3), sharey=True, squeeze=False)
    for ax, name in zip(axes[0], examples, strict=True):
        rows = frame[frame["example"] == name].sort_values("n")
        for (column, (label, dashes)), colour in zip(_BIASES.items(), _BIAS_COLOURS, strict=True):
            shown = rows[rows[column] > 1e-12]
            mark = None if column == "tail_bound" else "o"  # what the bound covers is to be seen
            line = {"linestyle": dashes, "marker": mark, "markersize": 3}
            ax.plot(shown["n"], shown[column], color=colour, label=label, **line)
        ax.set_xscale("log", base=2)
        ax.set_xticks(sorted(rows["n"]), [str(n) for n in sorted(rows["n"])])
        ax.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        ax.set_yscale("log")
        ax.set(title=name[:1].upper() + name[1:], xlabel="horizon n, steps")
        if (rows["gradient_bias"] <= 1e-12).all():
            note(ax, "policy gradient: no bias", 0.03, 0.04, ha="left")
    axes[0, 0].set_ylabel("largest bias, in errors of V")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return fig
