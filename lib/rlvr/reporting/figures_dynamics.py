"""The figures of ratio dynamics: along a response, over the horizon, and the surrogate on a trained model."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import matplotlib.ticker
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rlvr.reporting.drawing import (
    blank,
    drawable,
    horizon_axis,
    interval,
    need,
    need_finite,
    need_measured,
    note,
    series,
)
from rlvr.reporting.style import (
    INK,
    MUTED,
    OBJECTIVE_COLOURS,
    OBJECTIVE_MARKERS,
    RATIO_COLOURS,
    WIDTH,
    objective_colour,
    objective_label,
)

TRACED = RATIO_COLOURS["traced"]
RATIO_NAMES = {"rho": "ratio ρ", "traced": "ρ × trace"}


def ratio_figure(
    segment: pd.DataFrame,
    frequency: pd.DataFrame,
    stated: Mapping[str, float] | None = None,
    clip: tuple[float, float] | None = None,
) -> Figure:
    """Ratios along one response, and how often neighbours switch sides of 1 (nfpo-fig3).

    Args:
        segment: one row per token: ``position`` (token in the response), ``rho``, ``traced`` (rho times the
            clipped trace), and optionally ``token`` (its text, written below the axis).
        frequency: one row per quantity (``rho``, ``traced``): ``quantity``, ``value``, ``low``, ``high``
            (share of adjacent token pairs, 0..1), and ``independent``: the same share if the log ratios of
            the batch were independent of each other.
        stated: the paper's values as shares, by quantity; None draws none.
        clip: range of the trace clip, for the caption of the panel.

    Raises:
        ValueError: missing columns, no rows, a ratio that is not positive and finite.
    """
    need(segment, ["position", "rho", "traced"], "segment")
    need_finite(segment, ["rho", "traced"], "segment")
    if (segment[["rho", "traced"]] <= 0).any(axis=None):
        raise ValueError("segment: a likelihood ratio must be positive")
    frequency = need_measured(frequency, ["quantity", "independent"], "frequency").set_index("quantity")
    need_finite(frequency, ["independent"], "frequency")
    if missing := set(RATIO_NAMES) - set(frequency.index):
        raise ValueError(
            f"frequency: quantities {sorted(missing)} are missing; there are {list(frequency.index)}"
        )
    fig, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.6), width_ratios=[2.3, 1])
    _segment_panel(left, segment, clip)
    _frequency_panel(right, frequency, {k: v for k, v in (stated or {}).items() if v is not None})
    return fig


def _segment_panel(ax: Axes, segment: pd.DataFrame, clip: tuple[float, float] | None) -> None:
    ax.axhline(1, color=MUTED, linewidth=0.9)
    for i, (quantity, name) in enumerate(RATIO_NAMES.items()):
        colour = RATIO_COLOURS[quantity]
        ax.plot(segment["position"], segment[quantity], color=colour, marker="o", markersize=3, linewidth=1.3)
        note(ax, f"— {name}", 0.02 + 0.17 * i, 0.965, ha="left", color=colour)
    ax.set_yscale("log")
    _ratio_ticks(ax, segment[["rho", "traced"]].to_numpy())
    ax.set_title(f"Along {len(segment)} tokens of one response")
    ax.set_ylabel("likelihood ratio (log scale)")
    _token_ticks(ax, segment)
    if clip is not None:
        note(ax, f"trace clipped to [{clip[0]:g}, {clip[1]:g}]", 0.99, 0.965, ha="right")


def _frequency_panel(ax: Axes, frequency: pd.DataFrame, stated: Mapping[str, float]) -> None:
    percent = 100 * frequency[["value", "low", "high", "independent"]]
    dashes = {"color": INK, "linewidth": 1.6, "linestyle": (0, (4, 2))}
    star = {"marker": "*", "markersize": 9, "color": MUTED, "linestyle": "none"}
    for x, quantity in enumerate(RATIO_NAMES):
        row, colour = percent.loc[quantity], RATIO_COLOURS[quantity]
        ax.bar(x, row["value"], width=0.56, color=colour, alpha=0.28, linewidth=0)
        interval(ax, x, row["value"], row["low"], row["high"], colour)
        ax.plot([x - 0.36, x + 0.36], [row["independent"]] * 2, **dashes)
        ax.text(x, 1.5, f"{row['value']:.1f} %", ha="center", va="bottom", color=INK, fontsize=9)
        if quantity in stated:
            ax.plot(x + 0.3, 100 * stated[quantity], **star)
    top = max(percent.max().max(), *(100 * v for v in stated.values()), 1)
    ax.set(ylim=(0, top * 1.42), xlim=(-0.6, 1.6), ylabel="% of adjacent pairs", title="Switch frequency")
    ax.set_xticks(range(len(RATIO_NAMES)), list(RATIO_NAMES.values()))
    ax.grid(axis="x", visible=False)
    marks = [Line2D([], [], label="independent log ratios", **dashes)]
    marks += [Line2D([], [], label="paper states", **star)] if stated else []
    ax.legend(handles=marks, loc="upper right", borderaxespad=0.1, handlelength=1.8)


def _ratio_ticks(ax, values) -> None:
    low, high = float(np.min(values)), float(np.max(values))
    low, high = min(low, 0.95), max(high, 1.05)
    ax.set_ylim(low / (high / low) ** 0.06, high * (high / low) ** 0.16)
    below = [0.01, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 0.98]
    candidates = [*below, 1, 1.02, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, 100]
    spaced = []
    for tick in sorted(
        (t for t in candidates if low * 0.97 <= t <= high * 1.03), key=lambda t: abs(np.log(t))
    ):
        if all(abs(np.log(tick / t)) > np.log(high / low) / 7 for t in spaced):
            spaced.append(tick)
    ax.set_yticks(sorted(spaced), [f"{t:g}" for t in sorted(spaced)])
    ax.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())


def _token_ticks(ax, segment) -> None:
    ax.set_xlim(segment["position"].min() - 1, segment["position"].max() + 1)
    ax.set_xlabel("position in the response, tokens")
    if "token" not in segment or len(segment) > 64:
        return
    ax.set_xlabel("the response, token by token")
    tokens = [drawable(str(t).strip()) or "␣" for t in segment["token"]]
    ax.set_xticks(segment["position"], tokens)
    ax.tick_params(axis="x", labelsize=6.5, length=2, pad=1)
    ax.grid(axis="x", visible=False)
    for label, token in zip(ax.get_xticklabels(), tokens, strict=True):
        label.set(rotation=90 if len(token) > 1 else 0, fontfamily="DejaVu Sans Mono")


def horizon_figure(frame: pd.DataFrame, first: str | None = None) -> Figure:
    """Trace variance, switch frequency and accuracy over the horizon N (nfpo-fig4).

    Args:
        frame: long form: ``horizon``, ``quantity``, ``value``, ``low``, ``high``. Quantities:
            ``trace_variance_raw`` and ``trace_variance_clipped`` (median over training steps of the batch
            variance; the raw one is heavy-tailed), ``switch`` and ``switch_independent`` (shares 0..1), and
            ``pass1`` (accuracy of a policy trained at each N). Without rows of ``pass1`` its panel says so.
        first: the arm that N = 1 is, drawn as itself in the panel of ``pass1``; None: as the others.

    Raises:
        ValueError: missing columns or quantities, no rows; ``first`` without ``pass1`` at N = 1.
    """
    frame = need_measured(frame, ["horizon", "quantity"], "horizon frame")
    parts = {q: f for q, f in frame.groupby("quantity")}
    missing = {"trace_variance_raw", "trace_variance_clipped", "switch", "switch_independent"} - set(parts)
    if missing:
        raise ValueError(
            f"horizon frame: quantities {sorted(missing)} are missing; there are {sorted(parts)}"
        )
    if first is not None and 1 not in set(parts.get("pass1", frame.iloc[:0])["horizon"]):
        raise ValueError(f"first={first!r}: horizon frame has no pass1 at horizon 1")
    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(WIDTH, 3.1))

    series(left, parts["trace_variance_raw"], "horizon", MUTED, "s")
    series(left, parts["trace_variance_clipped"], "horizon", TRACED)
    left.set_title("Trace variance")
    left.set_ylabel("variance, median over steps")
    _name_pair(
        left, parts, ("trace_variance_raw", "unclipped", MUTED), ("trace_variance_clipped", "clipped", TRACED)
    )
    left.set_ylim(bottom=0)

    for quantity, colour, line in (
        ("switch_independent", INK, {"linestyle": (0, (4, 2)), "marker": "none"}),
        ("switch", TRACED, {"marker": "o"}),
    ):
        parts[quantity] = percent = parts[quantity].assign(
            **{c: 100 * parts[quantity][c] for c in ("value", "low", "high")}
        )
        series(middle, percent, "horizon", colour, **line)
    _name_pair(middle, parts, ("switch_independent", "if independent", INK), ("switch", "ρ × trace", TRACED))
    middle.set_title("Switch frequency")
    middle.set_ylabel("% of adjacent pairs")
    middle.set_ylim(bottom=0)

    horizons = frame["horizon"].unique()
    for ax in (left, middle):
        horizon_axis(ax, horizons)
    if "pass1" in parts:
        series(right, parts["pass1"], "horizon", OBJECTIVE_COLOURS["nfpo"], "D")
        right.set_title("Accuracy by N")
        right.set_ylabel("pass@1")
        horizon_axis(right, horizons)
        if first is not None:
            _name_first(right, parts["pass1"], first)
            fig.align_xlabels()
    else:
        blank(right, "Accuracy by N", "not run")
    return fig


def _name_first(ax: Axes, rows: pd.DataFrame, first: str) -> None:
    """N = 1 as the arm that it is: its mark, its level as a line, its name below the axis."""
    row, colour = rows[rows["horizon"] == 1].iloc[0], objective_colour(first)
    interval(ax, 1, row["value"], row["low"], row["high"], colour, OBJECTIVE_MARKERS.get(first, "o"))
    ax.axhline(row["value"], color=colour, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    ticks = [int(tick) for tick in ax.get_xticks()]
    ax.set_xticks(ticks, [f"1\n{objective_label(first)}" if tick == 1 else str(tick) for tick in ticks])
    ax.get_xticklabels()[ticks.index(1)].set_color(colour)


def _name_pair(ax, parts, *curves) -> None:
    """Name two curves where the slope leaves room: both above themselves where they rise and part, so that no
    name meets the axis below; else the lower one below itself."""
    ends = {c: parts[c[0]].sort_values("horizon") for c in curves}
    upper, lower = sorted(curves, key=lambda c: -ends[c]["value"].iloc[-1])
    rising = ends[upper]["value"].iloc[-1] >= ends[upper]["value"].iloc[0]
    last = len(ends[upper]) - 1
    above = (last, (0, 6), "right") if rising else (min(2, last), (7, 3), "left")
    below = (max(last - 1, 0), (0, -6), "center")
    lowest = (above, "bottom") if rising else (below, "top")
    for curve, (i, offset, ha), va in ((upper, above, "bottom"), (lower, *lowest)):
        _, text, colour = curve
        row = ends[curve].iloc[i]
        at = (row["horizon"], row["value"])
        ax.annotate(text, at, offset, textcoords="offset points", ha=ha, va=va, color=colour, fontsize=8.5)


def surrogate_figure(frame: pd.DataFrame, gain: float, full: int | None = None, arm: str = "nfpo") -> Figure:
    """Bias and spread of L^(N) measured on a trained language model (nfpo-x1, not in the paper).

    Args:
        frame: long form: ``horizon``, ``quantity`` (``bias`` = mean of L^(N) minus the true gain; ``sd`` =
            standard deviation of one response's estimate), ``value``, ``low``, ``high``, in units of reward.
        gain: J(pi) - J(mu), for the right-hand scale of the bias.
        full: the horizon that covers every response, marked as such.
        arm: whose colour to use.

    Raises:
        ValueError: missing columns or quantities, no rows, a gain of zero.
    """
    frame = need_measured(frame, ["horizon", "quantity"], "surrogate frame")
    parts = {q: f for q, f in frame.groupby("quantity")}
    if missing := {"bias", "sd"} - set(parts):
        raise ValueError(
            f"surrogate frame: quantities {sorted(missing)} are missing; there are {sorted(parts)}"
        )
    if not np.isfinite(gain) or gain == 0:
        raise ValueError(f"gain={gain}: must be finite and not zero, or the bias has no scale")
    colour = objective_colour(arm)
    fig, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.3))
    left.axhline(0, color=MUTED, linewidth=0.9)
    for ax, quantity in ((left, "bias"), (right, "sd")):
        rows = parts[quantity].sort_values("horizon")
        ax.plot(rows["horizon"], rows["value"], color=colour, linewidth=1, alpha=0.6)
        for row in rows.itertuples():
            interval(ax, row.horizon, row.value, row.low, row.high, colour)
        horizon_axis(ax, frame["horizon"].unique(), full)
    left.set_title(rf"Bias of $L^{{(N)}}$, true gain {gain:+.3f}")
    left.set_ylabel("bias, reward")
    percent = left.secondary_yaxis(
        "right", functions=(lambda y: 100 * y / abs(gain), lambda p: p * abs(gain) / 100)
    )
    percent.set_ylabel("% of the true gain")
    right.set_title("Spread of one response's estimate")
    right.set_ylabel("standard deviation, reward")
    right.set_ylim(bottom=0)
    return fig
