"""The figures of IBPO: frames in, a matplotlib Figure out."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rlvr.reporting.drawing import interval, label_lines, need, need_measured
from rlvr.reporting.style import MUTED, WIDTH, objective_colour, objective_label

_POLICIES = ("#5f6b7a", "#AA4499", "#0072B2")  # base model, and trained ones


def compute_figure(frame: pd.DataFrame, threshold: float) -> Figure:
    """Raw training reward over estimated compute (ibpo-fig3): mean over seeds, band from lowest to highest.

    Args:
        frame: of :func:`rlvr.analysis.compute_curves.common_grid`: ``arm, compute`` (share of the budget),
            ``value, low, high``.
        threshold: the reward of Table 2, drawn as a line.
    """
    frame = need_measured(frame, ["arm", "compute"], "compute frame")
    fig, ax = plt.subplots(figsize=(WIDTH, 3.5))
    ends = []
    for arm, rows in frame.groupby("arm", sort=False):
        rows, colour = rows.sort_values("compute"), objective_colour(arm)
        ax.fill_between(rows["compute"], rows["low"], rows["high"], color=colour, alpha=0.13, linewidth=0)
        dash = (0, (5, 1.2)) if arm == "gspo8" else "-"
        ax.plot(rows["compute"], rows["value"], color=colour, linestyle=dash)
        ends.append((rows["value"].iloc[-1], objective_label(arm), colour))
    ax.axhline(threshold, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
    ax.annotate(
        f"reward of Table 2, {threshold:g}", (0, threshold), (3, 3), textcoords="offset points", color=MUTED,
        fontsize=8.5,
    )  # fmt: skip
    ax.set(xlabel="estimated training compute, share of the budget", ylabel="mean reward of the rollouts")
    ax.set_xlim(0, 1)
    label_lines(ax, ends, gap=0.075)
    return fig


def gain_figure(frame: pd.DataFrame, baseline: str) -> Figure:
    """Gain of IBPO over a baseline by difficulty (ibpo-x2): a panel per measure of it.

    Args:
        frame: ``by, level, problems, value, low, high``, in points of accuracy (0..1).
        baseline: its name, for the axis.
    """
    frame = need_measured(frame, ["by", "level", "problems"], "gain frame")
    kinds = list(dict.fromkeys(frame["by"]))
    fig, axes = plt.subplots(1, len(kinds), figsize=(WIDTH, 3.1), sharey=True, squeeze=False)
    titles = {
        "operations": "By number of operations",
        "benchmark": "By benchmark",
        "base model": "By how often the base model is right",
    }
    for ax, kind in zip(axes[0], kinds, strict=True):
        rows = frame[frame["by"] == kind].reset_index(drop=True)
        for x, row in rows.iterrows():
            interval(ax, x, row["value"], row["low"], row["high"], objective_colour("ibpo"))
        ax.axhline(0, color=MUTED, linewidth=1)
        ax.set_xticks(
            range(len(rows)), [f"{row.level}\n{row.problems} problems" for row in rows.itertuples()]
        )
        ax.set_xlim(-0.5, len(rows) - 0.5)
        ax.grid(axis="x", visible=False)
        ax.set_title(titles.get(kind, kind))
    axes[0, 0].set_ylabel(f"pass@1, IBPO minus {baseline}")
    return fig


def success_figure(frame: pd.DataFrame, panels: dict[str, str]) -> Figure:
    """Corrections over the training (ibpo-figCorr): mean over seeds, band from lowest to highest.

    Args:
        frame: ``arm, seed, share`` (of the training) and the columns of ``panels``, one row per step.
        panels: column -> title; all are shares. Three in a row.
    """
    frame = need(frame, ["arm", "seed", "share", *panels], "correction frame")
    bins = np.linspace(0, 1, 11)
    binned = frame.assign(
        share=(bins[:-1] + bins[1:])[np.clip(np.digitize(frame["share"], bins) - 1, 0, 9)] / 2
    )
    columns = min(3, len(panels))
    rows_of = -(-len(panels) // columns)
    fig, axes = plt.subplots(rows_of, columns, figsize=(WIDTH, 2.9 * rows_of), squeeze=False)
    spare = axes.flat[len(panels) :]
    for ax in spare:
        ax.axis("off")
    axes_of = axes.flat[: len(panels)]
    for ax, (column, title) in zip(axes_of, panels.items(), strict=True):
        ends = []
        for arm, rows in binned.groupby("arm", sort=False):
            by_bin = rows.dropna(subset=[column]).groupby(["share", "seed"])[column].mean().groupby("share")
            mean, colour = by_bin.mean(), objective_colour(arm)
            ax.fill_between(mean.index, by_bin.min(), by_bin.max(), color=colour, alpha=0.18, linewidth=0)
            ax.plot(mean.index, mean, color=colour, marker="o", markersize=3.5)
            ends.append((mean.iloc[-1], objective_label(arm), colour))
        ax.set_ylim(0, max(0.05, 1.12 * binned[column].max()) if binned[column].max() < 0.5 else 1)
        ax.set_title(title)
        ax.set_xlabel("share of the training")
        ax.set_xlim(0, 1)
    for ax in axes[:, 0]:
        ax.set_ylabel("share of corrections")
    if len(spare):  # room for the names
        mark = {"marker": "o", "markersize": 3.5}
        lines = [Line2D([], [], color=colour, label=name, **mark) for _, name, colour in ends]
        spare[0].legend(handles=lines, loc="center left")
    else:
        label_lines(axes_of[-1], ends, gap=0.09)
    return fig


def variance_figure(simulated: pd.DataFrame, measured: pd.DataFrame, weight: float) -> Figure:
    """Variance of the centred advantage over lambda, over that of GSPO (ibpo-figVar).

    Left: closed form (lines) and simulation (marks with intervals) in the local case, by accuracy. Right:
    groups that policies wrote (line and band), and the local case at their accuracy and shaping (dashed).

    Args:
        simulated: ``accuracy, weight, closed, value, low, high``.
        measured: ``policy, weight, value, low, high, local``.
        weight: the paper's lambda, drawn as a line.
    """
    simulated = need_measured(simulated, ["accuracy", "weight", "closed"], "simulated")
    measured = need_measured(measured, ["policy", "weight", "local"], "measured")
    fig, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.5), sharex=True)
    shades = sns.color_palette("viridis", simulated["accuracy"].nunique() + 1)
    ends = []
    for colour, (p, rows) in zip(shades, simulated.groupby("accuracy"), strict=False):
        left.plot(rows["weight"], rows["closed"], color=colour)
        for row in rows.itertuples():
            interval(left, row.weight, row.value, row.low, row.high, colour, size=3.5)
        ends.append((rows["closed"].iloc[-1], f"p = {p:g}", colour))
    label_lines(left, ends, gap=0.07)
    ends = []
    for colour, (name, rows) in zip(_POLICIES, measured.groupby("policy", sort=False), strict=False):
        right.fill_between(rows["weight"], rows["low"], rows["high"], color=colour, alpha=0.2, linewidth=0)
        right.plot(rows["weight"], rows["value"], color=colour)
        right.plot(rows["weight"], rows["local"], color=colour, linestyle=(0, (3, 2)), linewidth=1.2)
        ends.append((rows["value"].iloc[-1], name, colour))
    label_lines(right, ends, gap=0.09)
    for ax, title in ((left, "Closed form and simulation"), (right, "Groups that policies wrote")):
        ax.axhline(1, color=MUTED, linewidth=1)
        ax.axvline(weight, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
        ax.set_title(title)
        ax.set_xlabel("shaping weight λ")
    left.set_ylabel("variance, over that of GSPO")
    return fig
