"""Figures of NFPO's theory: how the trace reweights a token; bias, variance and bounds on the token MDP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from rlvr.ratios import forward_trace
from rlvr.reporting.style import GRID, INK, MUTED, PAPER, RATIO_COLOURS, WIDTH, use_style


def trace_weights(ratios: Sequence[float], horizons: Iterable[int]) -> pd.DataFrame:
    """Weights ``rho_t Gamma_{t+1}^(N)`` of one response, no clips: columns ``N, t, ratio, trace, weight``."""
    ratio = torch.tensor([list(ratios)], dtype=torch.float64)
    frames = []
    for horizon in horizons:
        trace = forward_trace(ratio.log(), torch.ones_like(ratio), horizon, ratio_clip=None, trace_clip=None)
        columns = {"ratio": ratio[0].numpy(), "trace": trace[0].numpy(), "weight": (ratio * trace)[0].numpy()}
        frames.append(pd.DataFrame({"N": horizon, "t": np.arange(1, ratio.shape[1] + 1), **columns}))
    return pd.concat(frames, ignore_index=True)


def figure_forward_trace(weights: pd.DataFrame, token: int) -> Figure:
    """Schematic (nfpo-fig1): which ratios weigh one token at each N, and the weights of all tokens.

    Args:
        weights: from :func:`trace_weights`; the least N is labelled PPO, the largest exact gradient.
        token: position t (from 1) whose window is drawn.
    """
    use_style()
    table = weights.pivot(index="N", columns="t", values="weight")
    if token not in table.columns:
        raise ValueError(f"token={token}: must be one of the positions {list(table.columns)}")
    fig, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.9), width_ratios=(1.25, 1))
    _windows(left, weights, table, token)
    _weights(right, table)
    return fig


def _windows(ax: Axes, weights: pd.DataFrame, table: pd.DataFrame, token: int) -> None:
    ratio = weights.drop_duplicates("t").set_index("t")["ratio"]
    length = len(ratio)
    for row, horizon in enumerate(table.index):
        for t, value in ratio.items():
            own, traced = t == token, token < t < token + horizon
            colour = RATIO_COLOURS["rho"] if own else RATIO_COLOURS["traced"] if traced else "none"
            box = {"boxstyle": "round,pad=0,rounding_size=0.12", "linewidth": 0.8, "edgecolor": MUTED}
            ax.add_patch(FancyBboxPatch((t - 0.42, row - 0.3), 0.84, 0.6, facecolor=colour, **box))
            ink = PAPER if own or traced else MUTED
            ax.text(t, row, f"{value:.2f}", ha="center", va="center", color=ink, fontsize=8.5)
        ax.text(length + 0.65, row, f"{table.loc[horizon, token]:.2f}", va="center", weight="bold")
    for t in ratio.index:
        ax.text(t, -0.62, f"$\\rho_{t}$", ha="center", color=MUTED)
    ax.text(length + 0.65, -0.62, "weight", color=MUTED, fontsize=8.5)
    below = {"y": len(table) - 0.35, "fontsize": 8.5}
    ax.text(x=token, s="own ratio", ha="center", color=RATIO_COLOURS["rho"], **below)
    ax.text(x=token + 1.2, s="trace: the next $N-1$ ratios", color=RATIO_COLOURS["traced"], **below)
    ax.set(xlim=(0.4, length + 1.6), ylim=(len(table) - 0.1, -0.95), xticks=[])
    ax.set_yticks(range(len(table)), _horizon_labels(table.index))
    ax.set_title(f"Ratios that weigh token $y_{token}$")
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)


def _weights(ax: Axes, table: pd.DataFrame) -> None:
    values = np.log(table.to_numpy())
    reach = np.abs(values).max()
    # Not imshow: it would embed a raster image in the SVG.
    columns, rows = range(values.shape[1]), range(values.shape[0])
    ax.pcolormesh(
        columns, rows, values, cmap="PuOr_r", norm=TwoSlopeNorm(0, -reach, reach), shading="nearest"
    )
    ax.invert_yaxis()
    for (row, column), value in np.ndenumerate(values):
        ink = PAPER if abs(value) > 0.62 * reach else INK
        ax.text(column, row, f"{np.exp(value):.2f}", ha="center", va="center", color=ink, fontsize=8.5)
    ax.set_xticks(range(table.shape[1]), [f"$y_{t}$" for t in table.columns])
    ax.set_yticks(range(len(table)), [f"N = {n}" for n in table.index])
    ax.set_title(r"Weight $\rho_t\,\Gamma_{t+1}^{(N)}$ of every token")
    ax.set_xlabel("orange: above 1, purple: below 1", color=MUTED, fontsize=8.5)
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)


def _horizon_labels(horizons: Iterable[int]) -> list[str]:
    horizons = list(horizons)
    names = {horizons[0]: "PPO, DPPO", horizons[-1]: "exact gradient"}
    return [f"N = {n}\n{names.get(n, 'NFPO')}" for n in horizons]


def figure_token_mdp(profiles: Mapping[str, pd.DataFrame]) -> Figure:
    """NFPO's figure 2: ``J(mu) + L^(N)`` against ``J(pi)``, and the variance of one sample, over N.

    Args:
        profiles: reading of the policy -> :func:`rlvr.analysis.enumerated.profile`. Values are exact, so
            there are no bands, and equal under every reading; variances are not, so each is drawn.
    """
    use_style()
    fig, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.1))
    profile = next(iter(profiles.values()))
    j_mu, j_pi = profile["j_mu"].iloc[0], profile["j_pi"].iloc[0]
    estimate = j_mu + profile["value"]
    left.vlines(profile.index, j_pi, estimate, color=GRID, linewidth=5, zorder=1, label="bias")
    left.plot(profile.index, estimate, "o-", color=RATIO_COLOURS["traced"], label=r"$J(\mu)+L^{(N)}$")
    left.axhline(j_pi, color=INK, linestyle="--", linewidth=1, label=r"$J(\pi)$")
    left.axhline(j_mu, color=MUTED, linestyle=":", linewidth=1.3, label=r"$J(\mu)$")
    left.set(title="Value promised by the surrogate", xlabel="trace horizon N", ylabel="expected reward")
    left.legend(loc="best")
    for (reading, frame), line in zip(profiles.items(), ("s-", "^--", "v:"), strict=False):
        right.plot(frame.index, frame["variance"], line, color=RATIO_COLOURS["rho"], label=f"“{reading}”")
    title = r"Variance of one sample of $L^{(N)}$"
    right.set(title=title, xlabel="trace horizon N", ylabel="variance, reward²")
    right.set_ylim(bottom=0)
    right.legend(loc="best", title="after completion", title_fontsize=8.5)
    for ax in (left, right):
        ax.set_xlim(0.7, profile.index[-1] + 0.3)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return fig


def figure_bounds(checks: pd.DataFrame, largest_gain: float) -> Figure:
    """The truncation gap of Theorem 1 beside its bounds, over ``N = 1..T-1``, on a logarithmic axis.

    Args:
        checks: from :func:`rlvr.analysis.bounds.check_bounds`.
        largest_gain: what ``J(pi) - J(mu)`` cannot exceed; a bound above it says nothing.
    """
    use_style()
    inner = checks[checks["bound"] > 0]
    fig, ax = plt.subplots(figsize=(0.72 * WIDTH, 3.2))
    lines = {
        "bound": ("stated bound", INK, "-", "o"),
        "refined": ("refined, by the range of R", INK, "--", "o"),
        "worst_gap": ("gap, worst reward", RATIO_COLOURS["rho"], "-", "s"),
        "gap": ("actual gap", RATIO_COLOURS["traced"], "-", "D"),
    }
    for column, (name, colour, line, marker) in lines.items():
        ax.plot(inner.index, inner[column], line, color=colour, marker=marker, label=name)
    ax.axhline(largest_gain, color=MUTED, linestyle=":", label=f"largest gain there can be, {largest_gain:g}")
    top = 1.6 * inner["bound"].max()
    ax.axhspan(largest_gain, max(top, largest_gain), color=GRID, alpha=0.5, linewidth=0)
    ax.set_yscale("log")
    ax.set(
        title=r"$|J(\pi)-J(\mu)-L^{(N)}|$ and its bounds",
        xlabel="trace horizon N",
        ylabel="reward, log scale",
    )
    ax.set_ylim(top=max(top, largest_gain))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return fig


def figure_lengths(
    panels: Mapping[str, Mapping[int, pd.Series]], label: str, neutral: float, log: bool = False
) -> Figure:
    """A quantity over N, a line per pattern length, in panels that share their axis.

    Args:
        panels: title -> length of the pattern -> the quantity by N.
        label: of the axis.
        neutral: where a line is drawn across.
        log: a logarithmic axis.
    """
    use_style()
    width = WIDTH * min(1, 0.28 + 0.27 * len(panels))
    fig, axes = plt.subplots(1, len(panels), figsize=(width, 3.2), squeeze=False, sharey=True)
    for ax, (title, lines) in zip(axes[0], panels.items(), strict=True):
        ax.axhline(neutral, color=MUTED, linewidth=0.9)
        colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(lines)))
        for colour, (length, values) in zip(colours, lines.items(), strict=True):
            ax.plot(values.index, values, "o-", color=colour, markersize=3.5, label=str(length))
        ax.set(title=title, xlabel="trace horizon N", yscale="log" if log else "linear")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].set_ylabel(label)
    if log:
        axes[0, 0].yaxis.set_major_formatter("{x:g}")
    legend = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "title_fontsize": 8.5}
    axes[0, -1].legend(title="length of\nthe pattern", **legend)
    return fig


def figure_gradient_bias(frames: Mapping[float, pd.DataFrame]) -> Figure:
    """Bias of the mean gradient over N, its trace constant or differentiated; a panel per target policy.

    Args:
        frames: alpha of pi -> :func:`rlvr.analysis.surrogate_gradient.gradient_bias`.
    """
    use_style()
    fig, axes = plt.subplots(1, len(frames), figsize=(WIDTH, 3.0), squeeze=False)
    for ax, (alpha, frame) in zip(axes[0], frames.items(), strict=True):
        ax.plot(frame.index, frame["constant"], "o-", color=RATIO_COLOURS["traced"], label="constant trace")
        ax.plot(
            frame.index,
            frame["differentiated"],
            "s--",
            color=RATIO_COLOURS["rho"],
            label="differentiated trace",
        )
        ax.set(
            title=rf"$\alpha_\pi$ = {alpha:g}", xlabel="trace horizon N", ylabel=r"bias, in $|\nabla J(\pi)|$"
        )
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].legend(loc="best")
    return fig
