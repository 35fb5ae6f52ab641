"""Does a worse MTP prediction go with a larger gradient (MPO, Figure 7a), and how prediction changes (7b).

Both the rank and the gradient's norm drift over a training. A plain correlation of two drifting series says
that both drift; here the drift is taken out first, unless asked not to. Updates of one run are not
independent of each other, so the unit of the interval is the training seed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from rlvr.checks import check_integer
from rlvr.evaluation import Estimate, seed_interval
from rlvr.evaluation.inputs import check_frame, fraction

Floats = NDArray[np.float64]
LIMIT = 1 - 1e-9  # of a correlation before atanh


def rank_gradient_correlation(
    updates: pd.DataFrame, k: int = 2, *, confidence: float = 0.95, detrend: bool = True
) -> Estimate:
    """Spearman's correlation of the rank of module k's prediction with the gradient's norm, over updates.

    Args:
        updates: rows of ``updates.parquet`` of one arm, with a column ``seed``; reads ``step``,
            ``minibatch``, ``mtp_rank_<k>`` and ``grad_norm``.
        k: which module; the paper shows 2.
        detrend: partial correlation given the number of the update (also by ranks) [choice]; False: plain.

    One correlation per seed, averaged as Fisher's z (atanh) with Student's t over seeds, and turned back;
    with one seed the interval is unknown.

    Raises:
        ValueError: fewer than 4 updates of a seed, or a column without spread in one.
    """
    k = check_integer("k", k, 2, "integers >= 2")
    fraction("confidence", confidence)
    column = f"mtp_rank_{k}"
    frame = check_frame("updates", updates, ["seed", "step", "minibatch", column, "grad_norm"])
    values, seeds = [], []
    for seed, rows in frame.groupby("seed", sort=True):
        rows = rows.sort_values(["step", "minibatch"]).dropna(subset=[column, "grad_norm"])
        if len(rows) < 4:
            raise ValueError(f"updates of seed {seed}: {len(rows)} with a rank; allowed are at least 4")
        x, y = (stats.rankdata(rows[name]) for name in (column, "grad_norm"))
        if min(np.ptp(x), np.ptp(y)) == 0:
            raise ValueError(f"updates of seed {seed}: {column} or grad_norm is the same in all of them")
        if detrend:
            x, y = (_without_trend(series) for series in (x, y))
        values.append(float(np.corrcoef(x, y)[0, 1]))
        seeds.append(int(seed))
    z = seed_interval(np.arctanh(np.clip(values, -LIMIT, LIMIT)), seeds, confidence=confidence)
    ends = [None if end is None else float(np.tanh(end)) for end in (z.low, z.high)]
    how = "Spearman given the update's number" if detrend else "Spearman"
    return Estimate(float(np.tanh(z.value)), *ends, z.n, z.n_unit, z.seeds, f"{how}, {z.method} of atanh")


def prediction_by_step(updates: pd.DataFrame, blocks: int, *, confidence: float = 0.95) -> pd.DataFrame:
    """Mean rank and cross entropy of each module by step, with Student's t over seeds (Figure 7b).

    Returns one row per step and module: ``step``, ``k``, ``rank`` and ``loss`` (Estimates). ``updates`` as
    in :func:`rank_gradient_correlation`; updates of a step count by their tokens. An update whose responses
    are all shorter than k has no number of module k; nor has a step or a seed of such updates alone.
    """
    blocks = check_integer("blocks", blocks, 2, "integers >= 2")
    names = [f"mtp_{what}_{k}" for k in range(2, blocks + 1) for what in ("rank", "loss")]
    frame = check_frame("updates", updates, ["seed", "step", "tokens", *names])
    keys = [frame["step"], frame["seed"]]
    tokens = frame[names].notna().mul(frame["tokens"], axis=0).groupby(keys).sum()
    means = frame[names].mul(frame["tokens"], axis=0).groupby(keys).sum().div(tokens)  # 0 / 0: NaN
    rows = []
    for step, by_seed in means.groupby(level="step"):
        for k in range(2, blocks + 1):
            own = by_seed[[f"mtp_{what}_{k}" for what in ("rank", "loss")]].dropna()
            if own.empty:
                continue
            row, seeds = {"step": int(step), "k": k}, [int(seed) for _, seed in own.index]
            for what in ("rank", "loss"):
                row[what] = seed_interval(own[f"mtp_{what}_{k}"].to_numpy(), seeds, confidence=confidence)
            rows.append(row)
    return pd.DataFrame(rows)


def _without_trend(values: Floats) -> Floats:
    """Residuals of a straight line over the updates."""
    time = np.arange(len(values), dtype=np.float64)
    slope, start = np.polyfit(time, values, 1)
    return values - start - slope * time
