"""The figures of NFPO's ablations, and NFPO against FIPO: frames in, a matplotlib Figure out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from types import MappingProxyType

import matplotlib.pyplot as plt
import matplotlib.ticker
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlvr.reporting.drawing import interval, label_lines, need, need_measured
from rlvr.reporting.style import (
    GRID,
    INK,
    MUTED,
    OBJECTIVE_DASHES,
    OBJECTIVE_MARKERS,
    WIDTH,
    objective_colour,
    objective_label,
)

#: Column of the curves -> (panel title, unit).
_CURVES = MappingProxyType(
    {
        "reward": ("Reward of the rollouts", "mean reward"),
        "val_pass1": ("Validation accuracy", "pass@1"),
    }
)
_TITLE = 70  # characters of a panel title over the whole width


def ablation_figure(frame: pd.DataFrame, reference: str = "nfpo") -> Figure:
    """Final held-out pass@1 of NFPO with one thing changed: a panel per group of changes (nfpo-fig5).

    Mark: mean over seeds. Bar: the interval of ``low`` and ``high``. Faint dots: single seeds. Dashed line
    across all panels: the value of ``reference``.

    Args:
        frame: one row per group and arm, in the order in which they are shown: ``group`` (the panel's
            title), ``arm`` (its colour), ``label``, ``value``, ``low``, ``high`` (0..1), ``is_baseline``
            (a method that stands in every group for comparison, on a shade), and optionally
            ``points``, the accuracies of the single seeds.
        reference: arm of the dashed line; it has one value in all groups.

    Raises:
        ValueError: missing columns, no rows, an accuracy outside 0..1, an arm twice in a group, or a
            reference that the frame lacks or that has several values.
    """
    frame = need_measured(frame, ["group", "arm", "label", "is_baseline"], "ablation frame")
    points = frame["points"] if "points" in frame else pd.Series([()] * len(frame), index=frame.index)
    every = [*frame["value"], *(p for of_arm in points for p in of_arm)]
    if not all(0 <= value <= 1 for value in every):
        raise ValueError(f"ablation frame: values and points {every} must be shares in 0..1")
    if frame.duplicated(["group", "arm"]).any():
        raise ValueError("ablation frame: an arm stands twice in a group")
    level = frame.loc[frame["arm"] == reference, "value"].unique()
    if len(level) != 1:
        raise ValueError(
            f"reference={reference!r} has {len(level)} values in the frame: allowed is an arm with one; "
            f"arms are {sorted(set(frame['arm']))}"
        )
    groups = {name: rows.index for name, rows in frame.groupby("group", sort=False)}
    widths = [len(index) + 0.2 for index in groups.values()]
    fig, axes = plt.subplots(
        1, len(groups), figsize=(WIDTH, 3.5), sharey=True, squeeze=False, width_ratios=widths
    )
    for ax, (name, index) in zip(axes[0], groups.items(), strict=True):
        _group_panel(ax, frame.loc[index], points[index])
        ax.axhline(level[0], color=objective_colour(reference), linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        wide = int(_TITLE * (len(index) + 0.2) / sum(widths))
        ax.set_title(textwrap.fill(name[:1].upper() + name[1:], wide, break_on_hyphens=False))
    axes[0, 0].set_ylabel("held-out pass@1")
    low, high = axes[0, 0].get_ylim()
    ticks = matplotlib.ticker.MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
    axes[0, 0].set_yticks([tick for tick in ticks if low <= tick <= high])
    axes[0, 0].set_ylim(low - 0.14 * (high - low), high)  # a row below the grid for the values
    return fig


def _group_panel(ax: Axes, rows: pd.DataFrame, points: pd.Series) -> None:
    """One group: the arms side by side, their seeds, and their values in a row above the axis."""
    for x, (row, seeds) in enumerate(zip(rows.itertuples(), points, strict=True)):
        colour, marker = objective_colour(row.arm), OBJECTIVE_MARKERS.get(row.arm, "o")
        if row.is_baseline:
            ax.axvspan(x - 0.5, x + 0.5, color=GRID, alpha=0.4, linewidth=0, zorder=0)
        ax.plot([x + 0.22] * len(seeds), seeds, ".", color=colour, alpha=0.45, markersize=4.5, zorder=2)
        interval(ax, x, row.value, row.low, row.high, colour, marker)
        place = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "bottom"}
        ax.text(x, 0.03, f"{row.value:.3f}", color=INK, fontsize=8, **place)
    if rows["low"].isna().any():
        ax.set_xlabel("hollow: interval unknown", color=MUTED, fontsize=8.5)
    ax.set_xticks(range(len(rows)), rows["label"], rotation=38, ha="right", rotation_mode="anchor")
    ax.set_xlim(-0.5, len(rows) - 0.5)
    ax.grid(axis="x", visible=False)


def fipo_figure(curves: pd.DataFrame, final: pd.DataFrame) -> Figure:
    """Training curves and final held-out pass@1 of a few arms side by side (nfpo-figA1).

    Line: mean over seeds. Band: lowest to highest seed. Mark and bar: ``value`` with ``low`` and ``high``.

    Args:
        curves: long form: ``arm``, ``seed``, ``step``, ``reward``, and optionally ``val_pass1``, NaN where
            it was not evaluated, which gets a panel of its own.
        final: one row per arm, in the order in which they are shown: ``arm``, ``value``, ``low``, ``high``
            (0..1).

    Raises:
        ValueError: missing columns, no rows, a metric that is NaN everywhere, an accuracy outside 0..1, or
            arms of one frame that the other lacks.
    """
    curves = need(curves, ["arm", "seed", "step", "reward"], "curves")
    final = need_measured(final, ["arm"], "final")
    arms = final["arm"].tolist()
    if len(set(arms)) != len(arms) or set(arms) != set(curves["arm"]):
        raise ValueError(f"final has arms {arms}, curves {sorted(set(curves['arm']))}: allowed are the same")
    if not final["value"].between(0, 1).all():
        raise ValueError(f"final: values {final['value'].tolist()} must be shares in 0..1")
    drawn = [column for column in _CURVES if column in curves]
    for column in drawn:
        if empty := [arm for arm in arms if curves.loc[curves["arm"] == arm, column].isna().all()]:
            raise ValueError(f"curves: column {column!r} holds no number for arms {empty}")
    fig, axes = plt.subplots(1, len(drawn) + 1, figsize=(WIDTH, 3.0), width_ratios=[*[1.5] * len(drawn), 1.1])
    for ax, column in zip(axes, drawn, strict=False):
        _curve_panel(ax, curves, column, arms)
    _final_panel(axes[-1], final)
    return fig


def _curve_panel(ax: Axes, curves: pd.DataFrame, column: str, arms: Sequence[str]) -> None:
    ends = []
    for arm in arms:
        by_step = curves[curves["arm"] == arm].dropna(subset=[column]).groupby("step")[column]
        mean, colour = by_step.mean(), objective_colour(arm)
        ax.fill_between(mean.index, by_step.min(), by_step.max(), color=colour, alpha=0.18, linewidth=0)
        marker = OBJECTIVE_MARKERS.get(arm, "o") if len(mean) <= 12 else None
        dashes = OBJECTIVE_DASHES.get(arm, "-")
        ax.plot(mean.index, mean, color=colour, linestyle=dashes, marker=marker, markersize=4, linewidth=1.4)
        ends.append((mean.iloc[-1], objective_label(arm), colour))
    title, unit = _CURVES[column]
    ax.set(title=title, ylabel=unit, xlabel="training step")
    label_lines(ax, ends, gap=0.09)


def _final_panel(ax: Axes, final: pd.DataFrame) -> None:
    for x, row in enumerate(final.itertuples()):
        colour, marker = objective_colour(row.arm), OBJECTIVE_MARKERS.get(row.arm, "o")
        interval(ax, x, row.value, row.low, row.high, colour, marker)
        ax.annotate(
            f"{row.value:.3f}", (x, row.value), (7, 0), textcoords="offset points", va="center", fontsize=8.5
        )
    ax.set_xticks(range(len(final)), [objective_label(arm) for arm in final["arm"]])
    ax.set_xlim(-0.6, len(final) - 0.2)
    ax.margins(y=0.15)
    ax.grid(axis="x", visible=False)
    ax.set(title="After training", ylabel="held-out pass@1")
