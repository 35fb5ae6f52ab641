"""One look for every figure: colours, marks, sizes, and files that are the same bytes every time.

Text in an SVG is drawn as paths, so a figure looks the same in a browser, on GitHub and in print without any
font being installed. The inks below are the only greys used, so the report can exchange them for the reader's
light or dark theme (see :data:`THEME_INKS`).
"""

from __future__ import annotations

import io
from types import MappingProxyType

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure

INK = "#1b1f24"  # text and axes
MUTED = "#5f6b7a"  # secondary text, reference lines
GRID = "#dfe3e8"
PAPER = "#fefefe"  # not pure white: marks drawn in white stay white when the theme changes

#: Colour in a figure -> name of the style sheet variable that replaces it when the figure is set into a page.
THEME_INKS = MappingProxyType(
    {
        INK: "--fig-ink",
        MUTED: "--fig-muted",
        GRID: "--fig-grid",
        PAPER: "--fig-paper",
        "#0072B2": "--fig-blue",  # the three darkest hues, which a dark page needs lighter
        "#009E73": "--fig-green",
        "#D55E00": "--fig-orange",
    }
)

# Okabe and Ito's palette (colour-blind safe), one colour per objective for the whole project.
OBJECTIVE_COLOURS = MappingProxyType(
    {
        "grpo": "#0072B2",
        "dppo_tv": "#009E73",
        "nfpo": "#D55E00",
        "uncorrected": "#CC79A7",
        "base": "#5f6b7a",
        "gspo": "#56B4E9",
        "dapo": "#E69F00",
        "dppo_kl": "#44AA99",
        "fipo": "#C2185B",
        "icepop": "#999933",
        "ibpo": "#AA4499",
        "mpo": "#8C6D31",
        "ppo": "#6F63BB",
        "grpo_4": "#3A8FD6",
        "mpo_grpo": "#2A9D8F",
        "mpo_still": "#B0722F",
        # NFPO's ablations: contrast of 3 or more on a light and on a dark page. So many hues cannot all be
        # told apart by everyone: a figure names each arm beside its mark.
        "gspo8": "#3C7CA6",
        "ibpo_ratio": "#D78FB8",
        "ibpo_mask": "#6A3D9A",
        "score": "#947A1E",
        "nfpo_n2": "#D77A6A",
        "nfpo_n8": "#A64B12",
        "nfpo_n16": "#96566A",
        "nfpo_trace_06_12": "#7495C0",
        "nfpo_trace_08_12": "#5468B0",
        "nfpo_recompute": "#7560B5",
        "nfpo_recompute_trace": "#A583C9",
        "nfpo_no_ratio_clip": "#4A87A3",
        "nfpo_kl": "#2F80A0",
        "nfpo_clip": "#7377D6",
        "nfpo_band": "#A07850",
        "nfpo_release": "#5C5CC0",
    }
)

OBJECTIVE_LABELS = MappingProxyType(
    {
        "grpo": "GRPO",
        "dppo_tv": "DPPO-TV",
        "nfpo": "NFPO",
        "uncorrected": "uncorrected",
        "base": "base model",
        "gspo": "GSPO",
        "dapo": "DAPO",
        "dppo_kl": "DPPO-KL",
        "fipo": "FIPO",
        "icepop": "IcePop",
        "ibpo": "IBPO",
        "mpo": "MPO",
        "ppo": "PPO",
        "gspo8": "GSPO, 8 responses",
        "ibpo_ratio": "IBPO, ratio",
        "ibpo_mask": "IBPO, mask",
        "score": "SCoRe",
        "grpo_4": "GRPO, groups of 4",
        "mpo_grpo": "MPO on GRPO",
        "mpo_still": "MPO, modules not trained",
        "nfpo_n2": "NFPO, N=2",
        "nfpo_n8": "NFPO, N=8",
        "nfpo_n16": "NFPO, N=16",
        "nfpo_trace_06_12": "trace in [0.6, 1.2]",
        "nfpo_trace_08_12": "trace in [0.8, 1.2]",
        "nfpo_recompute": "all ratios recomputed",
        "nfpo_recompute_trace": "trace recomputed",
        "nfpo_no_ratio_clip": "no ratio clip",
        "nfpo_kl": "KL mask",
        "nfpo_clip": "PPO-clip mask",
        "nfpo_band": "IcePop band",
        "nfpo_release": "NFPO, release preset",
    }
)

#: A second mark beside colour, so that a grey print still tells the objectives apart.
OBJECTIVE_MARKERS = MappingProxyType(
    {
        "grpo": "o",
        "dppo_tv": "s",
        "nfpo": "D",
        "uncorrected": "X",
        "fipo": "^",
        "grpo_4": "o",
        "ppo": "s",
        "dapo": "^",
        "mpo": "D",
        "mpo_grpo": "P",
    }
)
OBJECTIVE_DASHES = MappingProxyType(
    {
        "grpo": "-",
        "dppo_tv": (0, (5, 1.2)),
        "nfpo": "-",
        "uncorrected": (0, (1.5, 1.2)),
        "fipo": (0, (4, 1, 1, 1)),
    }
)

#: Two quantities that appear side by side in the dynamics figures.
RATIO_COLOURS = MappingProxyType({"rho": "#0072B2", "traced": "#D55E00", "independent": MUTED})

PNG_DPI = 110  # a figure 8.2 inches wide is about 900 pixels
WIDTH = 8.2  # inches; the width of the report's text column


def objective_colour(arm: str) -> str:
    """Colour of an arm; an arm nobody gave a colour is an error, not black."""
    return _known(OBJECTIVE_COLOURS, arm, "colour")


def objective_label(arm: str) -> str:
    """Name of an arm as the reader sees it."""
    return _known(OBJECTIVE_LABELS, arm, "label")


def _known(table, arm, what):
    if arm not in table:
        raise ValueError(f"arm={arm!r} has no {what} in reporting/style.py; known: {', '.join(table)}")
    return table[arm]


def use_style() -> None:
    """Set the project's figure style for this process; every figure is drawn after this call."""
    sns.set_theme(style="white", context="notebook")
    mpl.rcParams.update(
        {
            "font.family": "DejaVu Sans",  # ships with matplotlib: the same shapes on every machine
            "font.size": 9.5,
            "axes.titlesize": 10.5,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.titlepad": 8,
            "axes.labelsize": 9.5,
            "xtick.labelsize": 8.5,
            "ytick.labelsize": 8.5,
            "legend.fontsize": 8.5,
            "legend.frameon": False,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": MUTED,
            "xtick.color": INK,
            "ytick.color": INK,
            "xtick.bottom": True,
            "ytick.left": True,
            "xtick.major.size": 3,
            "ytick.major.size": 3,
            "xtick.minor.size": 1.5,
            "ytick.minor.size": 1.5,
            "axes.linewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "grid.linewidth": 0.7,
            "lines.linewidth": 1.7,
            "lines.markersize": 5,
            "figure.facecolor": PAPER,
            "axes.facecolor": "none",
            "savefig.facecolor": PAPER,
            "figure.constrained_layout.use": True,
            "figure.constrained_layout.w_pad": 0.07,
            "svg.hashsalt": "rlvr",  # element ids are hashes of what is drawn, not of the clock
            "svg.fonttype": "path",
            "axes.unicode_minus": True,
        }
    )


def svg_text(fig: Figure) -> str:
    """The figure as SVG, the same text for the same figure: no date, no version, no random ids."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "rlvr", "svg.fonttype": "path"}):
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor=PAPER)
    return buffer.getvalue()


def png_bytes(fig: Figure) -> bytes:
    """The figure as PNG at :data:`PNG_DPI`, without the writer's version in its header."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=PNG_DPI, metadata={"Software": None}, facecolor=PAPER)
    return buffer.getvalue()
