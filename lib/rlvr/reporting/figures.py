"""The figures of training, and the door to all others: frames in, a matplotlib Figure out.

Every function states the columns it reads. Intervals arrive as ``low`` and ``high`` beside ``value``; a frame
that carries its doubt under other names is refused. Call :func:`rlvr.reporting.style.use_style` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rlvr.reporting.drawing import (
    interval,
    label_lines,
    need,
    need_measured,
)
from rlvr.reporting.figures_dynamics import horizon_figure, ratio_figure, surrogate_figure
from rlvr.reporting.style import (
    INK,
    MUTED,
    OBJECTIVE_DASHES,
    OBJECTIVE_LABELS,
    OBJECTIVE_MARKERS,
    WIDTH,
    objective_colour,
    objective_label,
)

__all__ = [
    "TRAINING_PANELS",
    "accuracy_figure",
    "horizon_figure",
    "ratio_figure",
    "surrogate_figure",
    "training_figure",
]

#: Column of the training frame -> (panel title, unit).
TRAINING_PANELS = MappingProxyType(
    {
        "reward": ("Reward of the rollouts", "mean reward"),
        "val_pass1": ("Validation accuracy", "pass@1"),
        "entropy": ("Entropy", "nats per token"),
        "grad_norm": ("Gradient norm", "L2 norm"),
        "kl": ("KL to the rollout policy", "nats per token"),
        "stopped_share": ("Tokens clipped or masked", "share of tokens"),
        "response_length": ("Response length", "tokens"),
    }
)


def training_figure(frame: pd.DataFrame, panels: Mapping[str, tuple[str, str]] = TRAINING_PANELS) -> Figure:
    """Training metrics of every arm over steps: one row per metric, one column per lag (nfpo-figTrain).

    Line: mean over seeds. Band: lowest to highest seed (at a few seeds a t interval per step would be wider
    than the axis and no more honest).

    Args:
        frame: long form, one row per arm, lag, seed and step: columns ``arm``, ``lag`` (steps), ``seed``,
            ``step`` and those of ``panels``. A metric that is not measured at a step (accuracy between two
            evaluations, the clip fraction of an arm that has none) is NaN there.
        panels: which metric columns to draw, with title and unit.

    Raises:
        ValueError: a missing column, no rows, or a metric that is NaN everywhere.
    """
    need(frame, ["arm", "lag", "seed", "step", *panels], "training frame")
    empty = [c for c in panels if frame[c].isna().all()]
    if empty:
        raise ValueError(f"training frame: columns {empty} hold no number; leave them out of panels")
    lags = sorted(frame["lag"].unique())
    fig, axes = plt.subplots(
        len(panels),
        len(lags),
        figsize=(WIDTH, 1.62 * len(panels) + 0.5),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for row, (column, (title, unit)) in zip(axes, panels.items(), strict=True):
        _training_row(row, frame, column, lags)
        row[0].set_ylabel(unit)
        for ax, lag in zip(row, lags, strict=True):
            ax.set_title(f"{title}, {_lag_text(lag)}")
        label_lines(row[-1], _ends(frame[frame["lag"] == lags[-1]], column), gap=0.15)
    for ax in axes[-1]:
        ax.set_xlabel("training step")
    seeds = frame["seed"].nunique()
    band = f"band: lowest to highest of {seeds} seeds" if seeds > 1 else "one seed, so no band"
    fig.suptitle(f"Line: mean over seeds; {band}", x=0.01, ha="left", fontsize=9, color=MUTED)
    return fig


def _training_row(row, frame, column, lags) -> None:
    for ax, lag in zip(row, lags, strict=True):
        for arm, of_arm in frame[frame["lag"] == lag].groupby("arm", sort=False):
            by_step = of_arm.dropna(subset=[column]).groupby("step")[column]
            mean, low, high = by_step.mean(), by_step.min(), by_step.max()
            if mean.empty:
                continue
            colour, sparse = objective_colour(arm), len(mean) <= 12
            ax.fill_between(mean.index, low, high, color=colour, alpha=0.18, linewidth=0)
            ax.plot(
                mean.index,
                mean,
                color=colour,
                linestyle=OBJECTIVE_DASHES.get(arm, "-"),
                marker=OBJECTIVE_MARKERS.get(arm, "o") if sparse else None,
                markersize=4,
                linewidth=1.4,
            )
    values = frame[column].dropna()
    if values.min() > 0 and values.max() > 40 * values.quantile(0.05):
        row[0].set_yscale("log")


def _ends(frame: pd.DataFrame, column: str) -> list[tuple[float, str, str]]:
    """(mean at the last step that has one, name, colour) of every arm."""
    ends = []
    for arm, rows in frame.dropna(subset=[column]).groupby("arm", sort=False):
        last = rows[rows["step"] == rows["step"].max()]
        ends.append((last[column].mean(), objective_label(arm), objective_colour(arm)))
    return ends


def _lag_text(lag: int) -> str:
    return "no lag" if lag == 0 else f"lag {lag}"


def accuracy_figure(frame: pd.DataFrame, base: Mapping[str, float] | None = None) -> Figure:
    """Final held-out pass@1 of every arm and lag, the base model as a line (nfpo-x2, not in the paper).

    Args:
        frame: one row per arm and lag: ``arm``, ``lag`` (steps), ``value``, ``low``, ``high`` (0..1), in the
            order in which the arms are shown.
        base: ``value``, ``low``, ``high`` of the base model; None: it was not evaluated, and has no line.

    Raises:
        ValueError: missing columns or keys, no rows, an accuracy outside 0..1.
    """
    frame = need_measured(frame, ["arm", "lag"], "accuracy frame")
    if base is not None:
        base = need_measured(pd.DataFrame([dict(base)]), [], "base").iloc[0]
    if not frame["value"].between(0, 1).all():
        raise ValueError(f"accuracy frame: values {frame['value'].tolist()} must be shares in 0..1")
    lags, arms = sorted(frame["lag"].unique()), list(dict.fromkeys(frame["arm"]))
    fig, axes = plt.subplots(
        1, len(lags), figsize=(WIDTH, 0.46 * len(arms) + 1.5), sharex=True, sharey=True, squeeze=False
    )
    for ax, lag in zip(axes[0], lags, strict=True):
        if base is not None:
            if np.isfinite(base["low"]):
                ax.axvspan(base["low"], base["high"], color=MUTED, alpha=0.2, linewidth=0)
            ax.axvline(base["value"], color=MUTED, linewidth=1.2)
        middle = frame["value"].mean() if base is None else base["value"]
        rows = frame[frame["lag"] == lag].set_index("arm")
        for y, arm in enumerate(arms):
            if arm not in rows.index:
                ax.text(middle, y, "  not measured", va="center", color=MUTED, fontsize=8.5)
                continue
            row = rows.loc[arm]
            colour, marker = objective_colour(arm), OBJECTIVE_MARKERS.get(arm, "o")
            interval(ax, y, row["value"], row["low"], row["high"], colour, marker, horizontal=True)
            _write_value(ax, y, row, left=row["value"] < middle)
        ax.set_yticks(range(len(arms)), [objective_label(a) for a in arms])
        ax.set_ylim(len(arms) - 0.5, -0.95)
        ax.margins(x=0.1)
        ax.grid(axis="y", visible=False)
        ax.set_title(f"Rollouts {'of this step' if lag == 0 else f'{lag} steps old'} ({_lag_text(lag)})")
        ax.set_xlabel("held-out pass@1")
        if base is not None:
            text = ax.annotate(
                OBJECTIVE_LABELS["base"], (base["value"], -0.95), (4, -3), textcoords="offset points"
            )
            text.set(ha="left", va="top", color=MUTED, fontsize=8.5)
    return fig


def _write_value(ax, y, row, left) -> None:
    """The value above its interval; one whose interval is unknown says so, on the side that has room."""
    bare = not np.isfinite(row["low"])
    text = f"{row['value']:.3f}" + (", interval unknown" if bare else "")
    offset = ((8 if left else -8), 0) if bare else (0, 8)
    note = ax.annotate(text, (row["value"], y), offset, textcoords="offset points", color=INK, fontsize=8.5)
    note.set(ha=("left" if left else "right") if bare else "center", va="center" if bare else "bottom")
