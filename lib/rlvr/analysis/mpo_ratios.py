"""Variance of MPO's importance ratio and its clip fraction, by total weight (MPO, Figure 4).

A weight S on the modules leaves 1 - S on the token's own log ratio, which alone shrinks the ratio's variance:
by about (1 - S)^2 where ratios are near 1. So three ratios are compared on the same updates of the same runs:
the token's, ``exp(l)``; the scaled one, ``exp((1 - S) l)``, which knows nothing of later tokens; and the
block's. The step from the second to the third is that of the modules' log ratios, which move by two things:
the policy under them, and their own training along with it, where there is one. Runs whose modules are not
trained along (arm ``mpo_still``) have the first alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from rlvr.checks import check_choice
from rlvr.config import Scale
from rlvr.evaluation import Estimate, geometric_seed_interval, seed_interval
from rlvr.evaluation.inputs import check_frame
from rlvr.storage import read_json

if TYPE_CHECKING:
    from rlvr.analysis.study import Study

#: Ratio -> columns of its variance and of its clip fraction.
COLUMNS = {
    "block": ("ratio_variance", "clip_fraction"),
    "token": ("token_ratio_variance", "token_clip_fraction"),
    "scaled": ("scaled_ratio_variance", "scaled_clip_fraction"),
}


def load_updates(scale: Study | Scale, arms: Sequence[str], lag: int = 0) -> pd.DataFrame:
    """Rows of ``updates.parquet`` of every arm and seed, with ``arm``, ``seed`` and ``off_policy``, which is
    False for the first update of a step without lag, where every ratio is 1.

    Raises:
        FileNotFoundError: no finished run, or one of a method that writes no such file.
    """
    frames = []
    for arm in arms:
        for seed in scale.seeds_of(arm):
            folder = scale.run_folder(arm, seed, lag)
            summary = read_json(folder / "summary.json")
            if summary["reached_step"] != summary["requested_steps"]:
                raise ValueError(f"{folder}: reached step {summary['reached_step']}")
            if not (path := folder / "updates.parquet").is_file():
                raise FileNotFoundError(f"{path} does not exist: the training of {arm!r} kept no updates")
            frames.append(pd.read_parquet(path).assign(arm=arm, seed=seed))
    joined = pd.concat(frames, ignore_index=True)
    joined["off_policy"] = (joined["minibatch"] > 0) | ((joined["step"] > 0) & (lag > 0))
    return joined


def by_seed(updates: pd.DataFrame, arm: str, ratio: str = "block") -> pd.DataFrame:
    """Of one arm, per seed over its off-policy updates: ``variance``, the median, and ``clip``, the mean.

    The variance's distribution over updates is skewed; a mean would be that of a few updates. Clip fractions
    are mostly 0, so that their median says nothing. Of PPO the ratio is the token's.
    """
    check_choice("ratio", ratio, tuple(COLUMNS))
    variance, clip = COLUMNS[ratio]
    frame = check_frame("updates", updates, ["arm", "seed", "off_policy", variance, clip])
    rows = frame[(frame["arm"] == arm) & frame["off_policy"]]
    if rows.empty:
        raise ValueError(f"updates hold no off-policy rows of arm {arm!r}")
    grouped = rows.groupby("seed")
    return pd.DataFrame({"variance": grouped[variance].median(), "clip": grouped[clip].mean()})


def variance_ratio(first: pd.DataFrame, second: pd.DataFrame, confidence: float) -> Estimate:
    """Variance of ``first`` over that of ``second`` (two :func:`by_seed`): geometric mean over seeds,
    Student's t on the logs."""
    return geometric_seed_interval(first["variance"] / second["variance"], confidence=confidence)


def clip_difference(first: pd.DataFrame, second: pd.DataFrame, confidence: float) -> Estimate:
    """Clip fraction of ``first`` minus that of ``second``, in percentage points, over seeds."""
    gap = 100 * (first["clip"] - second["clip"])
    return seed_interval(gap, confidence=confidence)


def weight_table(
    updates: pd.DataFrame,
    arms: Mapping[float, str],
    confidence: float,
    others: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """One row per total weight (the index, in percent): the block's variance and clip fraction; its variance
    over PPO's; and on the same updates over that of the scaled token ratio, and the same of the clip.

    ``arms``: as :func:`rlvr.analysis.mpo.weight_arms` has them; 0 is PPO. ``others``: name -> arm of further
    rows, of MPO.
    """
    rows = {}
    ppo = by_seed(updates, arms[0.0])
    named = {f"{100 * weight:g}": arm for weight, arm in arms.items()} | dict(others or {})
    for name, arm in named.items():
        block = by_seed(updates, arm)
        row = {
            "variance of the ratio": seed_interval(block["variance"], confidence=confidence),
            "clip fraction, %": seed_interval(100 * block["clip"], confidence=confidence),
        }
        if arm != arms[0.0]:
            scaled = by_seed(updates, arm, "scaled")
            row |= {
                "variance over PPO's": variance_ratio(block, ppo, confidence),
                "variance over the scaled token ratio's": variance_ratio(block, scaled, confidence),
                "clip fraction minus the scaled token ratio's, points": clip_difference(
                    block, scaled, confidence
                ),
            }
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("total MTP weight, %")


def over_steps(
    updates: pd.DataFrame, arms: Mapping[float, str], width: int, still: tuple[float, str] | None = None
) -> pd.DataFrame:
    """Variance and clip fraction over training, in bins of ``width`` steps: columns ``weight``, ``ratio``,
    ``step`` (the middle of the bin), ``variance`` and ``clip`` (percent), means over seeds of
    :func:`by_seed`'s numbers within the bin. ``still``: total weight and arm of runs whose modules are not
    trained along; their block's ratio is named ``still``."""
    rows = []
    lines = [(w, arm, r, r) for w, arm in arms.items() for r in (("block", "scaled") if w else ("block",))]
    lines += [(*still, "still", "block")] if still else []
    for weight, arm, name, ratio in lines:
        of_arm = updates[updates["arm"] == arm]
        for number, part in of_arm.groupby(of_arm["step"] // width):
            found = by_seed(part, arm, ratio).mean()
            row = {"weight": weight, "ratio": name, "step": (number + 0.5) * width}
            rows.append(row | {"variance": found["variance"], "clip": 100 * found["clip"]})
    return pd.DataFrame(rows)
