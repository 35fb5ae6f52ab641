"""Tables and points of MPO's Figure 7, from the updates of its arms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from rlvr.analysis.mtp_noise import prediction_by_step, rank_gradient_correlation


def correlation_table(updates: Mapping[int, pd.DataFrame], confidence: float) -> pd.DataFrame:
    """One row per K (the index): correlation of the second token's rank with the gradient's norm, with the
    trend over the training removed, and as it is. ``updates``: K -> rows of its arm."""
    rows = {
        str(k): {
            "trend removed": rank_gradient_correlation(frame, 2, confidence=confidence),
            "as it is": rank_gradient_correlation(frame, 2, confidence=confidence, detrend=False),
        }
        for k, frame in updates.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("K")


def points_of(updates: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """``blocks``, ``seed``, ``step``, ``minibatch``, ``rank`` of the second token, ``grad_norm``."""
    columns = ["seed", "step", "minibatch", "mtp_rank_2", "grad_norm"]
    frames = [frame[columns].assign(blocks=k) for k, frame in updates.items()]
    return pd.concat(frames, ignore_index=True).rename(columns={"mtp_rank_2": "rank"})


def prediction_frame(updates: pd.DataFrame, blocks: Iterable[int], confidence: float) -> pd.DataFrame:
    """``k``, ``step``, ``rank`` and ``loss``, means over seeds, of the arm with the longest of ``blocks``."""
    found = prediction_by_step(updates, max(blocks), confidence=confidence)
    values = {name: [estimate.value for estimate in found[name]] for name in ("rank", "loss")}
    return found[["k", "step"]].assign(**values)
