"""Bias and variance of the objectives' gradients: over the horizon, and objective by objective."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlvr.reporting.drawing import horizon_axis, interval, label_lines, need_measured, series
from rlvr.reporting.style import MUTED, RATIO_COLOURS, WIDTH, use_style

#: Series of the table -> how its line is named, coloured and marked.
_LINES = MappingProxyType(
    {
        "no clips": ("constant trace", RATIO_COLOURS["rho"], "o"),
        "no clips, full gradient": ("trace differentiated", RATIO_COLOURS["traced"], "D"),
        "default clips": ("constant, clips and mask", MUTED, "s"),
    }
)
#: Drift of the policy -> name, colour, marker, and how far from its row the point is drawn.
_DRIFTS = MappingProxyType(
    {
        "random": ("random drift", RATIO_COLOURS["rho"], "o", -0.16),
        "uphill": ("uphill drift", RATIO_COLOURS["traced"], "D", 0.16),
    }
)
_UNITS = MappingProxyType({"bias": "bias, in |∇J|", "variance": "variance, in |∇J|²"})


def exactness_figure(
    frame: pd.DataFrame, objectives: Sequence[tuple[str, str]], far: float, near: float
) -> Figure:
    """Above: NFPO over its horizon at distance ``far``; below: every objective at ``near`` (nfpo-x8).

    Args:
        frame: from :func:`rlvr.analysis.exactness_summary.summarise`.
        objectives: (objective, label) of the settings drawn below, from top to bottom.
        far, near: distances that the frame holds, the upper with drift "random".

    Raises:
        ValueError: missing columns, no rows, or a distance or setting that the frame does not hold.
    """
    columns = ["objective", "label", "series", "horizon", "drift", "distance", "quantity"]
    frame = need_measured(frame, columns, "exactness frame")
    for name, distance in (("far", far), ("near", near)):
        if distance not in set(frame["distance"]):
            raise ValueError(f"{name}={distance}: allowed are {sorted(set(frame['distance']))}")
    known = set(zip(frame["objective"], frame["label"], strict=True))
    if missing := [f"{name}, {label}" for name, label in objectives if (name, label) not in known]:
        raise ValueError(f"objectives: no rows for {missing}")
    use_style()
    rows = 0.25 * len(objectives) + 0.7
    fig = plt.figure(figsize=(WIDTH, 2.6 + rows))
    above, below = fig.subfigures(2, 1, height_ratios=(2.6, rows))
    upper = frame[(frame["drift"] == "random") & (frame["distance"] == far)]
    for ax, quantity in zip(above.subplots(1, 2), _UNITS, strict=True):
        _over_horizon(ax, upper[upper["quantity"] == quantity])
        ax.set_title(f"{quantity.capitalize()} over the horizon, TV {far:g}")
        ax.set_ylabel(_UNITS[quantity])
        if quantity == "bias":
            ax.set_ylim(bottom=0)
    left, right = below.subplots(1, 2)
    for ax, quantity in ((left, "bias"), (right, "variance")):
        _by_objective(ax, frame[frame["quantity"] == quantity], objectives, near)
        ax.set_title(f"{quantity.capitalize()}, every objective, TV {near:g}")
        ax.set_xlabel(_UNITS[quantity])
    right.set_yticklabels([])
    right.set_xscale("log")
    left.legend(loc="upper right", handletextpad=0.1, borderaxespad=0.1)
    return fig


def _over_horizon(ax: Axes, frame: pd.DataFrame) -> None:
    labels = []
    for name, (text, colour, marker) in _LINES.items():
        rows = frame[frame["series"] == name].sort_values("horizon")
        series(ax, rows, "horizon", colour, marker)
        labels.append((rows["value"].iloc[-1], text.replace(", ", ",\n"), colour))
    horizon_axis(ax, frame.loc[frame["series"] != "", "horizon"], full=int(frame["horizon"].max()))
    label_lines(ax, labels, gap=0.17)


def _by_objective(
    ax: Axes, frame: pd.DataFrame, objectives: Sequence[tuple[str, str]], distance: float
) -> None:
    at = frame.set_index(["objective", "label", "drift", "distance"])
    for y, key in enumerate(objectives):
        start = at.loc[(*key, "random", 0.0)]
        for drift, (_, colour, marker, shift) in _DRIFTS.items():
            row = at.loc[(*key, drift, distance)]
            interval(ax, y + shift, row["value"], row["low"], row["high"], colour, marker, True, size=4.5)
        ax.plot(start["value"], y, marker="|", markersize=11, color=MUTED, linestyle="none", zorder=2)
    ax.plot(np.nan, np.nan, "|", color=MUTED, markersize=11, label="on-policy")
    for text, colour, marker, _ in _DRIFTS.values():
        ax.plot(np.nan, np.nan, marker, color=colour, markersize=4.5, label=text)
    ax.set_yticks(range(len(objectives)), [name for name, _ in objectives])
    ax.set_ylim(len(objectives) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
