"""Small parts that the figures share: checked input, direct labels, intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import matplotlib.ticker
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font

from rlvr.reporting.style import INK, MUTED

MONO = FontProperties(family="DejaVu Sans Mono")


def need(frame: pd.DataFrame, columns: Iterable[str], what: str) -> pd.DataFrame:
    """Return the frame if it has the columns and at least one row.

    A column that carries the doubt under another name is an error here, never a default interval.

    Raises:
        ValueError: names the missing columns and those that are there.
    """
    missing = [c for c in columns if c not in frame.columns]
    if missing:
        raise ValueError(f"{what}: columns {missing} are missing; there are {list(frame.columns)}")
    if frame.empty:
        raise ValueError(f"{what}: no rows; a figure without results is left not run")
    return frame


def need_measured(frame: pd.DataFrame, columns: Iterable[str], what: str) -> pd.DataFrame:
    """Check a frame of estimates: other ``columns``, and ``value``, ``low``, ``high`` as floats.

    An unknown interval is None or NaN at both ends; a value is always there.

    Raises:
        ValueError: a missing column, no rows, a value that is not finite, an interval upside down.
    """
    ends = {c: float for c in ("value", "low", "high")}
    frame = need(frame, [*columns, *ends], what).astype(ends)
    need_finite(frame, ["value"], what)
    if (frame["low"] > frame["high"]).any() or (frame["low"].isna() != frame["high"].isna()).any():
        raise ValueError(f"{what}: an interval is upside down or has one end only")
    return frame


def need_finite(frame: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """Raise ValueError if a value that must be drawn is NaN or infinite."""
    for column in columns:
        bad = frame.index[~np.isfinite(frame[column].astype(float))]
        if len(bad):
            raise ValueError(f"{what}: column {column!r} is not finite in rows {list(bad[:5])}")


def label_lines(ax: Axes, labels: Sequence[tuple[float, str, str]], gap: float = 0.085) -> None:
    """Write each line's name beside its right end, in its colour, moved apart where they would collide.

    Args:
        ax: its lines are all drawn and its scale is set.
        labels: (y in data units, text, colour) of each line.
        gap: least distance between two names as a share of the axis height.
    """
    if not labels:
        return
    ax.get_ylim()  # settles a pending autoscale, which the transforms do not
    ys = [float(ax.transAxes.inverted().transform(ax.transData.transform((0.0, y)))[1]) for y, _, _ in labels]
    order = np.argsort(ys, kind="stable")
    places = spread([min(max(ys[i], 0.0), 1.0) for i in order], gap)
    for place, i in zip(places, order, strict=True):
        _, text, colour = labels[i]
        ax.text(
            1.025, place, text, color=colour, transform=ax.transAxes, va="center", fontsize=8.5, clip_on=False
        )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Move sorted places apart to at least ``gap``, each as little as possible and none out of [0, 1]."""
    if len(places) < 2:
        return list(places)
    gap = min(gap, 1 / (len(places) - 1))
    # Pools of neighbours that touch share their mean displacement (isotonic regression of place - i * gap).
    pools: list[list[float]] = []
    for i, place in enumerate(places):
        pools.append([place - i * gap, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            value, weight = pools.pop()
            pools[-1] = [
                (pools[-1][0] * pools[-1][1] + value * weight) / (pools[-1][1] + weight),
                pools[-1][1] + weight,
            ]
    top = 1 - (len(places) - 1) * gap
    flat = [min(max(value, 0.0), top) for value, weight in pools for _ in range(int(weight))]
    return [value + i * gap for i, value in enumerate(flat)]


def interval(
    ax: Axes, x, value, low, high, colour, marker="o", horizontal=False, filled=True, size=6
) -> None:
    """A point with its interval; a point whose interval is unknown is drawn hollow and bare."""
    bare = not (np.isfinite(low) and np.isfinite(high))
    face = colour if filled and not bare else "none"
    if not bare:
        ends = ([low, high], [x, x]) if horizontal else ([x, x], [low, high])
        ax.plot(*ends, color=colour, linewidth=2, solid_capstyle="butt", zorder=3)
    place = (value, x) if horizontal else (x, value)
    ax.plot(
        *place, marker=marker, markersize=size, color=colour, markerfacecolor=face, linestyle="none", zorder=4
    )


def series(ax: Axes, frame: pd.DataFrame, x: str, colour: str, marker: str = "o", **line) -> None:
    """``value`` over ``x`` with ``[low, high]`` as a band; a bandless stretch stays bandless."""
    frame = frame.sort_values(x)
    xs = frame[x].to_numpy(float)
    ax.fill_between(
        xs, frame["low"].to_numpy(float), frame["high"].to_numpy(float), color=colour, alpha=0.2, linewidth=0
    )
    ax.plot(xs, frame["value"].to_numpy(float), color=colour, marker=marker, **line)


def horizon_axis(ax: Axes, horizons: Iterable[int], full: int | None = None) -> None:
    """A logarithmic axis of horizons with a tick at each; ``full`` is the one that covers every token."""
    horizons = sorted({int(h) for h in horizons})
    ax.set_xscale("log", base=2)
    ax.set_xticks(horizons, [f"{h}\n(full)" if h == full else str(h) for h in horizons])
    ax.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    ax.set_xlim(min(horizons) * 0.85, max(horizons) * 1.18)
    ax.set_xlabel("trace horizon N, tokens")


def note(ax: Axes, text: str, x: float = 0.5, y: float = 0.5, **kwargs) -> None:
    """Grey words inside a panel, in axes coordinates."""
    kwargs = {"ha": "center", "va": "center", "color": MUTED, "fontsize": 8.5} | kwargs
    ax.text(x, y, text, transform=ax.transAxes, **kwargs)


def blank(ax: Axes, title: str, text: str) -> None:
    """A panel that says why it is empty, drawn as such rather than left out."""
    ax.set_title(title)
    ax.grid(False)
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set(visible=True, linestyle=(0, (3, 3)), color=MUTED)
    note(ax, text, color=INK, fontsize=10)


def drawable(text: str) -> str:
    """A text whose letters the figures' font has; ``□`` for others."""
    return "".join(c if _has_glyph(c) else "□" for c in text)


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(FT2Font(findfont(MONO)).get_charmap())


def _has_glyph(c: str) -> bool:
    return ord(c) in _glyphs()
