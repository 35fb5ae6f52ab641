"""Case studies as a figure and as HTML: the tokens of a span on the colour of their trace (nfpo-caseD3).

Blue: a trace below 1, which weakens the token's update; orange: above 1, which strengthens it. The scale is
log(trace) with 1 in the middle, the same for all cases of one figure.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rlvr.analysis.cases import Case
from rlvr.analysis.token_categories import token_text
from rlvr.reporting.drawing import MONO, drawable
from rlvr.reporting.style import INK, MUTED, WIDTH

# Light enough for dark text at both ends; tokens keep a dark text in the report's dark theme, too, where INK
# turns light and the cells do not.
TRACE_COLOURS = LinearSegmentedColormap.from_list("trace", ["#60abdf", "#f1f2f4", "#ee8f45"])
TOKEN_INK = "#101418"
NARROWEST = np.log(1.05)  # end of the scale if no trace is further from 1
LONGEST = 24  # characters of a token that are shown
_TICKS = (1, 0.95, 1.05, 0.9, 1.1, 0.8, 1.25, 0.67, 1.5, 0.5, 2, 0.2, 5, 0.1, 10, 0.01, 100)  # where they fit

_SIZE, _CHAR = 8.5, 8.5 * 0.602  # points; DejaVu Sans Mono is 0.602 em wide
_LEFT, _PAD, _GAP, _NARROW = 38, 7, 3, 25  # points: margin of row names; around a token; between; least width
_TITLE, _CELL, _LINE, _BETWEEN, _BAR = 19, 17, 11, 10, 46  # points: heights
_VISIBLE = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}


def shown(token: str) -> str:
    """A token's text on one line: spaces as ``·``, newlines as ``↵``, the end of a long one cut off.

    >>> shown("Ġso"), shown("ĊĊ"), shown("<0x0A>")
    ('·so', '↵↵', '↵')
    """
    text = "".join(_VISIBLE.get(c, c) for c in token_text(token))
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text) or "∅"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def case_figure(cases: Sequence[Case], tokens: Sequence[str]) -> Figure:
    """Every case as a row of its tokens on the colour of their trace, rho and trace beneath (nfpo-caseD3).

    Args:
        cases: of :func:`rlvr.analysis.cases.find_cases`.
        tokens: the vocabulary's token of every id. Outlined in the figure: tokens of interest.

    Raises:
        ValueError: no cases.
    """
    if not cases:
        raise ValueError("cases: none; a figure without results is left not run")
    width = WIDTH * 72
    lines = [list(_lines(case, tokens, width - _LEFT - 4)) for case in cases]
    block = _CELL + 2 * _LINE + 5  # a line of cells with its two rows of numbers
    height = sum(_TITLE + block * len(of_case) + _BETWEEN for of_case in lines) + _BAR
    fig = plt.figure(figsize=(WIDTH, height / 72))
    fig.set_layout_engine("none")  # every place is given in points
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(height, 0))  # in points, from the top
    ax.set_axis_off()
    norm = _norm(cases)
    y = 0.0
    for case, of_case in zip(cases, lines, strict=True):
        _write(ax, 4, y + 11, _title(case), fontsize=9.5, fontweight="bold", ha="left")
        y += _TITLE
        for line in of_case:
            _draw_line(ax, y, line, norm)
            y += block
        y += _BETWEEN
    _legend(ax, norm, width, y)
    return fig


def case_html(cases: Sequence[Case], tokens: Sequence[str]) -> str:
    """The same as a piece of HTML that stands alone; it takes the page's text colour, light or dark.

    Raises:
        ValueError: no cases.
    """
    if not cases:
        raise ValueError("cases: none; say that no span fulfils the rule")
    end = _norm(cases).vmax
    parts = [_STYLE, '<div class="rlvr-cases">']
    for case in cases:
        parts.append(f"<section><h4>{html.escape(_title(case))}</h4><p>")
        for row in case.tokens.itertuples():
            share = float(np.clip(np.log(row.trace) / end, -1, 1))
            colour = f"rgb({'213 94 0' if share > 0 else '0 114 178'} / {0.6 * abs(share):.3f})"
            hint = (
                f"position {row.position}, rho {row.rho:.3f}, trace {row.trace:.3f}, weight {row.weight:.3f}"
            )
            kind = ' class="of-interest"' if row.of_interest else ""
            parts.append(
                f'<span title="{hint}"><code{kind} style="background:{colour}">'
                f"{html.escape(shown(tokens[row.token]))}</code>"
                f"<small>{row.rho:.2f}</small><small>{row.trace:.2f}</small></span>"
            )
        parts.append("</p></section>")
    parts.append(f"<footer>{_LEGEND}</footer></div>")
    return "\n".join(parts)


_LEGEND = (
    "Beneath each token: ratio ρ, trace. Blue: trace below 1, a weaker update; orange: above 1, a stronger "
    "one. Outlined: tokens of interest."
)
_STYLE = """<style>
.rlvr-cases { font-family: system-ui, sans-serif; color: inherit; max-width: 62rem }
.rlvr-cases h4 { font-size: .95rem; margin: 1rem 0 .3rem }
.rlvr-cases p { display: flex; flex-wrap: wrap; gap: .35rem .2rem; margin: 0 }
.rlvr-cases span { display: inline-flex; flex-direction: column; align-items: center; min-width: 2rem }
.rlvr-cases code { font-size: .9rem; line-height: 1.3rem; height: 1.3rem; padding: .1rem .4rem;
  border: 2px solid rgb(128 128 128 / .25); border-radius: .2rem; color: inherit; white-space: pre }
.rlvr-cases code.of-interest { border-color: currentColor }
.rlvr-cases small { font-size: .7rem; line-height: 1.25; font-variant-numeric: tabular-nums }
.rlvr-cases footer { font-size: .8rem; margin-top: .8rem; opacity: .8 }
</style>"""


def _title(case: Case) -> str:
    first, last = case.tokens["position"].iloc[[0, -1]]
    low, high = case.tokens["advantage"].min(), case.tokens["advantage"].max()
    advantage = f"{low:+.2f}" if f"{low:+.2f}" == f"{high:+.2f}" else f"{low:+.2f} to {high:+.2f}"
    where = f"seed {case.seed}, step {case.step}, response {case.response}, positions {first} to {last}"
    return f"{case.kind}, advantage {advantage.replace('-', '−')}: {where}"


def _norm(cases: Sequence[Case]) -> Normalize:
    """Symmetric in log(trace), so that a trace of 1 has the middle colour."""
    log_trace = np.log(pd.concat([case.tokens["trace"] for case in cases]).to_numpy(float))
    if not np.isfinite(log_trace).all():
        raise ValueError("cases: a trace must be positive and finite")
    end = max(np.abs(log_trace).max(), NARROWEST)
    return Normalize(-end, end)


def _lines(
    case: Case, tokens: Sequence[str], width: float
) -> Iterator[list[tuple[float, float, str, tuple]]]:
    """Cells (x, width, text, row) of a case, broken into lines no wider than ``width`` points."""
    line: list[tuple[float, float, str, tuple]] = []
    x = 0.0
    for row in case.tokens.itertuples():
        text = drawable(shown(tokens[row.token]))
        wide = max(_NARROW, len(text) * _CHAR + _PAD)
        if line and x + wide > width:
            yield line
            line, x = [], 0.0
        line.append((x + _LEFT, wide, text, row))
        x += wide + _GAP
    yield line


def _draw_line(ax: Axes, y: float, line: list[tuple[float, float, str, tuple]], norm: Normalize) -> None:
    rho, trace = y + _CELL + 0.7 * _LINE, y + _CELL + 1.7 * _LINE
    for name, at in (("ρ", rho), ("trace", trace)):
        _write(ax, _LEFT - 6, at, name, fontsize=7.5, color=MUTED, ha="right")
    for x, wide, text, row in line:
        edge = {"edgecolor": INK, "linewidth": 1.1} if row.of_interest else {"linewidth": 0}
        colour = TRACE_COLOURS(norm(np.log(row.trace)))
        ax.add_patch(Rectangle((x, y), wide, _CELL, facecolor=colour, **edge))
        middle = x + wide / 2
        _write(ax, middle, y + _CELL / 2, text, fontsize=_SIZE, color=TOKEN_INK, fontproperties=MONO)
        _write(ax, middle, rho, f"{row.rho:.2f}", fontsize=7.5)
        _write(ax, middle, trace, f"{row.trace:.2f}", fontsize=7.5)


def _write(ax: Axes, x: float, y: float, text: str, fontproperties=None, **kwargs) -> None:
    kwargs = {"ha": "center", "va": "center", "color": INK} | kwargs
    made = ax.text(x, y, text, parse_math=False, **kwargs)  # "$x$" is a token and no formula
    if fontproperties is not None:
        made.set_fontfamily(fontproperties.get_family())


def _legend(ax: Axes, norm: Normalize, width: float, top: float) -> None:
    """Scale of the colours, by hand: matplotlib's own is a bitmap in an SVG, which the report refuses."""
    steps, long, y = 81, 0.4 * width, top + 16
    for i in range(steps):
        colour = TRACE_COLOURS(i / (steps - 1))
        # a little wider than its step, so that no seam shows
        ax.add_patch(Rectangle((_LEFT + i * long / steps, y), 1.1 * long / steps, 8, facecolor=colour, lw=0))
    ticks: list[float] = []
    for tick in _TICKS:
        free = all(abs(np.log(tick / t)) > norm.vmax / 5 for t in ticks)
        if free and abs(np.log(tick)) <= norm.vmax * 1.001:
            ticks.append(tick)
    for tick in ticks:
        x = _LEFT + long * norm(np.log(tick))
        ax.plot([x, x], [y + 8, y + 11], color=MUTED, linewidth=0.8)
        _write(ax, x, y + 17, f"{tick:g}", fontsize=7.5)
    small = {"fontsize": 8, "color": MUTED, "ha": "left"}
    _write(ax, _LEFT, top + 8, "colour: trace, logarithmic scale", **small)
    _write(ax, _LEFT + long + 30, top + 12, "blue: a weaker update, orange: a stronger one", **small)
    _write(ax, _LEFT + long + 30, top + 25, "outlined: token of interest", **small)
