"""NFPO's weights on a stored rollout, under sliders: horizon, clips and trust region.

rollout = example_rollout()
explored = explore_frame(rollout, Settings(horizon=8))       # pure: tensors and a table
figure = explore_figure(rollout, explored, response=3)       # pure: a figure
Explorer(available(["params.yaml"])).show()                  # the same under sliders, in JupyterLab
"""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rlvr.analysis.rollout import Rollout
from rlvr.analysis.rollout_weights import THRESHOLDS, Explored, Settings, explore_frame
from rlvr.notebook import is_interactive
from rlvr.reporting.style import INK, MUTED, PAPER, RATIO_COLOURS, WIDTH, use_style

_DPI = 90  # a picture about 740 pixels wide


def explore_figure(rollout: Rollout, explored: Explored, response: int = 0) -> Figure:
    """One response token by token, the weights of all, and the summary, for the eye.

    Raises:
        ValueError: no such response.
    """
    if not 0 <= response < len(rollout):
        raise ValueError(f"response={response}: allowed are 0..{len(rollout) - 1}")
    use_style()
    # Not pyplot, which would keep every figure; and no layout engine, which would take most of the time.
    fig = Figure(figsize=(WIDTH, 4.9), dpi=_DPI, layout="none")
    grid = fig.add_gridspec(
        2, 2, height_ratios=(1.25, 1), width_ratios=(1.3, 1), left=0.075, right=0.985, top=0.94, bottom=0.1
    )
    grid.update(hspace=0.55, wspace=0.28)
    _along(fig.add_subplot(grid[0, :]), rollout, explored, response)
    _histogram(fig.add_subplot(grid[1, 0]), rollout, explored)
    _bars(fig.add_subplot(grid[1, 1]), explored)
    return fig


def _along(ax: Axes, rollout: Rollout, explored: Explored, response: int) -> None:
    valid = rollout.mask[response].bool()
    rho, trace, weight = (t[response][valid].numpy() for t in (explored.rho, explored.trace, explored.weight))
    dropped = ~explored.kept[response][valid].numpy()
    at = np.arange(1, len(rho) + 1)
    ax.axhline(1, color=MUTED, linewidth=0.9)
    ax.plot(at, trace, ":", color=MUTED, label="trace")
    for values, name, label in ((rho, "rho", "ρ"), (weight, "traced", "ρ × trace")):
        ax.plot(at, values, "o-", color=RATIO_COLOURS[name], markersize=3, linewidth=1.3, label=label)
    if dropped.any():
        ax.plot(at[dropped], weight[dropped], "x", color=INK, markersize=8, label="masked")
    advantage = float(rollout.advantages[response])
    ax.set_xlim(0.4, max(len(rho), 2) + 0.6)
    _words(ax, f"Response {response}, advantage {advantage:+.2f}, N = {explored.settings.horizon}", -0.062)
    ax.set_ylabel("ratio (log scale)")
    _ratio_axis(ax, np.concatenate([rho, trace, weight]))
    tokens = rollout.tokens[response]
    if len(tokens) <= 64 and max(map(len, tokens)) <= 4:
        ax.set_xticks([])
        for place, token in zip(at, tokens, strict=True):  # half the time of as many ticks
            below = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "top", "fontsize": 7.5}
            ax.text(place, -0.03, token.strip() or "␣", **below)
    ax.legend(loc="upper right", ncols=4, bbox_to_anchor=(1.0, 1.17), borderaxespad=0)


def _words(ax: Axes, title: str, left: float) -> None:
    """A title, and axis labels at fixed places: looking for a free one is a third of the drawing."""
    ax.set_title(title, y=1.0)
    ax.yaxis.set_label_coords(left, 0.5)
    ax.xaxis.set_label_coords(0.5, -0.19)


def _ratio_axis(ax: Axes, values: np.ndarray) -> None:
    low, high = min(values.min(), 0.8) / 1.06, max(values.max(), 1.25) * 1.06
    ax.set(yscale="log", ylim=(low, high))
    candidates = (0.01, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 30, 100)
    ticks = _spaced(candidates, np.log(low), np.log(high), parts=9)
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.yaxis.set_minor_locator(NullLocator())


def _histogram(ax: Axes, rollout: Rollout, explored: Explored) -> None:
    valid = rollout.mask.bool()
    rho, weight = (np.log(t[valid].numpy()) for t in (explored.rho, explored.weight))
    reach = max(np.abs(rho).max(), np.abs(weight).max(), np.log(1.25))
    bins = np.linspace(-reach, reach, 42)
    for values, name in ((rho, "rho"), (weight, "traced")):
        ax.hist(values, bins, histtype="step", color=RATIO_COLOURS[name], linewidth=1.5)
    ax.axvline(0, color=MUTED, linewidth=0.9)
    ax.set(yscale="log", ylabel="tokens (log scale)", xlabel="ratio (log scale)")
    _words(ax, "Weights of all tokens", -0.125)
    ax.set_ylim(0.8, 1.5 * len(rho))
    ticks = np.log(_spaced((0.01, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10, 100), -reach, reach, parts=7))
    ax.set_xticks(ticks, [f"{np.exp(t):g}" for t in ticks])
    ax.set_yticks([1, 10, 100, 1000][: len(str(len(rho)))], ["1", "10", "100", "1000"][: len(str(len(rho)))])
    ax.yaxis.set_minor_locator(NullLocator())


def _bars(ax: Axes, explored: Explored) -> None:
    table, top = explored.table, max(0.6, explored.table["traced"].max(), explored.table["rho"].max())
    for place, (_, row) in enumerate(table.iterrows()):
        pair = [("rho", -0.2), ("traced", 0.2)] if row["rho"] == row["rho"] else [("traced", 0.0)]
        for column, shift in pair:
            colour = RATIO_COLOURS[column] if len(pair) == 2 else MUTED
            ax.barh(place + shift, row[column], height=0.36, color=colour, alpha=0.75, linewidth=0)
            text = f"{100 * row[column]:.1f} %"
            ax.text(row[column] + 0.02 * top, place + shift, text, va="center", fontsize=8.5)
    ax.set_yticks(range(len(table)), [name.replace(" ", "\n", 1) for name in table.index])
    ax.set(ylim=(len(table) - 0.5, -0.5), xlim=(0, 1.25 * top), xticks=[])
    _words(ax, "In all tokens", 0.0)
    ax.tick_params(axis="y", length=0)
    ax.grid(False)


def _spaced(candidates: tuple[float, ...], low: float, high: float, parts: int) -> list[float]:
    """Those of ``candidates`` whose logarithms lie in [low, high] and apart, those near 1 first; sorted."""
    kept: list[float] = []
    for tick in sorted(candidates, key=lambda c: abs(np.log(c))):
        far = all(abs(np.log(tick / other)) > (high - low) / parts for other in kept)
        if low <= np.log(tick) <= high and far:
            kept.append(tick)
    return sorted(kept)


def summary_html(rollout: Rollout, explored: Explored) -> str:
    """The table as HTML, with n."""
    cells = []
    for name, row in explored.table.iterrows():
        plain = "" if row["rho"] != row["rho"] else f"{row['rho']:.4f}"
        cells.append(
            f"<tr><td>{name}</td><td>{plain}</td><td>{row['traced']:.4f}</td>"
            f"<td>n = {row['n']} {row['unit']}</td></tr>"
        )
    head = "<tr><th></th><th>ρ</th><th>ρ × trace</th><th></th></tr>"
    style = "white-space: nowrap; line-height: 1.5; border-spacing: 0.9em 0"
    table = f"<table style='{style}'>{head}{''.join(cells)}</table>"
    return f"{table}<p>{html.escape(rollout.source)}</p>"


class Explorer:
    """Sliders over :func:`explore_frame` and :func:`explore_figure`.

    Args:
        sources: name -> function that gives a :class:`Rollout` (:func:`rlvr.analysis.rollout.available`); the
            first is shown first.

    Attributes:
        controls: the widgets by name; setting a ``value`` moves the picture, from a hand or from code.
        picture, numbers, message: widgets that show the result, and why a setting is refused.
        rollout, explored: what is shown.
    """

    def __init__(self, sources: Mapping[str, Callable[[], Rollout]]) -> None:
        import ipywidgets as widgets  # extra `notebooks`

        self._sources = dict(sources)
        self._quiet = False
        wide = {"style": {"description_width": "7em"}, "layout": widgets.Layout(width="29em")}
        regions = [("TV (DPPO)", "tv"), ("KL (DPPO)", "kl"), ("PPO clip", "clip"), ("band (IcePop)", "band")]
        regions += [("none", "none")]
        default = Settings()
        self.controls: dict[str, Any] = {
            "source": widgets.Dropdown(options=list(self._sources), description="rollout", **wide),
            "response": widgets.IntSlider(0, 0, 0, description="response", **wide),
            "horizon": widgets.IntSlider(default.horizon, 1, 64, description="N", **wide),
            "region": widgets.Dropdown(options=regions, description="region", **wide),
            "threshold": widgets.FloatText(
                THRESHOLDS[default.region].default, step=0.01, description="threshold", **wide
            ),
            "clip_trace": widgets.Checkbox(True, description="clip the trace", **wide),
            "trace_clip": widgets.FloatRangeSlider(
                value=default.trace_clip, min=0, max=3, step=0.05, description="to", **wide
            ),
            "clip_ratio": widgets.Checkbox(True, description="clip its factors", **wide),
            "ratio_clip": widgets.FloatSlider(
                default.ratio_clip, min=1, max=10, step=0.1, description="to [1/b, b], b", **wide
            ),
        }
        self.picture = widgets.Image(format="png", layout=widgets.Layout(width=f"{WIDTH * _DPI:.0f}px"))
        self.numbers, self.message, self.meaning = widgets.HTML(), widgets.HTML(), widgets.HTML()
        controls = list(self.controls.values())
        wrap = widgets.Layout(flex_flow="row wrap")
        columns = [widgets.VBox(controls[:5]), widgets.VBox([*controls[5:], self.meaning])]
        shown = [self.picture, self.numbers]
        self.box = widgets.VBox(
            [widgets.HBox(columns, layout=wrap), self.message, widgets.HBox(shown, layout=wrap)]
        )
        self._load()
        for name, control in self.controls.items():
            control.observe(self._moved(name), names="value")

    def settings(self) -> Settings:
        """Where the controls stand."""
        value = {name: control.value for name, control in self.controls.items()}
        return Settings(
            value["horizon"],
            tuple(value["trace_clip"]) if value["clip_trace"] else None,
            value["ratio_clip"] if value["clip_ratio"] else None,
            value["region"],
            value["threshold"],
        )

    def show(self) -> None:
        """Display the controls where a person can move them; elsewhere say that nobody watches."""
        if not is_interactive():
            print("open this notebook in JupyterLab (`make lab`) and run it: the sliders appear here")
            return
        from IPython.display import display

        display(self.box)

    def _moved(self, name: str) -> Callable[[Any], None]:
        def react(_: Any) -> None:
            if self._quiet:
                return
            if name == "source":
                self._load()
            if name == "region":
                self._set(threshold=THRESHOLDS[self.controls["region"].value].default)
            self._update()

        return react

    def _set(self, **values: Any) -> None:
        """Move controls without a picture for each."""
        self._quiet = True
        for name, value in values.items():
            self.controls[name].value = value
        self._quiet = False

    def _load(self) -> None:
        self.rollout = self._sources[self.controls["source"].value]()
        counts = self.rollout.mask.sum(-1)
        self._quiet = True
        self.controls["response"].max = len(self.rollout) - 1
        self.controls["horizon"].max = int(counts.max())
        self._quiet = False
        self._set(response=int(counts.argmax()))  # the longest
        self._update()

    def _update(self) -> None:
        known = THRESHOLDS[self.controls["region"].value]
        self.meaning.value = f"<i>threshold: {html.escape(known.meaning)}</i>"
        try:
            explored = explore_frame(self.rollout, self.settings())
            figure = explore_figure(self.rollout, explored, self.controls["response"].value)
        except ValueError as error:
            self.message.value = f"<b>not shown:</b> {html.escape(str(error))}"
            return
        self.explored = explored
        self.message.value = ""
        self.numbers.value = summary_html(self.rollout, explored)
        self.picture.value = _png(figure)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    options = {"metadata": {"Software": None}, "pil_kwargs": {"compress_level": 1}}
    figure.savefig(buffer, format="png", facecolor=PAPER, **options)
    return buffer.getvalue()
