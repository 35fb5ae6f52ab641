"""Final accuracy of MPO's arms: beside the baselines, over the grid of its settings, with value heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from rlvr.analysis.ablations import differences, final_accuracy
from rlvr.analysis.accuracy import (
    difference_by_seed,
    gain,
    pass1,
    pass1_by_seed,
    seed_difference,
    seeds_of,
    select,
)
from rlvr.analysis.held_out_sets import with_sets
from rlvr.analysis.mpo import CONTROL, FULL, STILL, setting_of
from rlvr.analysis.mpo_training import explained_variance, warm_up_tokens
from rlvr.analysis.runs import token_counts
from rlvr.analysis.study import Study
from rlvr.config import Scale
from rlvr.evaluation import Estimate, seed_interval
from rlvr.reporting.cells import NOT_MEASURED, Exact
from rlvr.reporting.style import objective_label

#: Sets of word problems by length -> name; they stand for GSM8K and MATH.
LENGTHS = {"short problems": "short", "long problems": "long"}

#: Panel of the grid's table -> arm, of those that the paper does not have.
CONTROLS = {"ours: modules not trained along": STILL, "ours: token's log ratio scaled": CONTROL}


def by_length(samples: pd.DataFrame, task: str, operations: tuple[int, int]) -> dict[str, pd.DataFrame]:
    """Samples on short and on long word problems (:func:`rlvr.analysis.held_out_sets.set_of`)."""
    found = with_sets(samples, task, operations)
    return {name: found[found["set"].str.endswith(f", {length}")] for name, length in LENGTHS.items()}


def base_accuracy(samples: pd.DataFrame, confidence: float) -> tuple[float, float | None, float | None]:
    """(value, low, high) of the base model, over problems: it has no training seed."""
    found = pass1(select(samples, "base", 0), confidence)
    return found.value, found.low, found.high


def task_frame(samples: pd.DataFrame, arms: Sequence[str], name: str, confidence: float) -> pd.DataFrame:
    """Rows of :func:`rlvr.reporting.figures_mpo.task_figure` for one set."""
    return final_accuracy(samples, arms, 0, confidence).assign(set=name)


def arm_table(scale: Study | Scale, samples: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """The base and every arm of ``scale.arms`` (the index): pass@1 over training seeds, MPO's lead over it
    paired by seed and problem, its gain over the base, what its critic explains of the returns' variance, and
    the tokens that it generated, trained on, and learned from in warm-ups before step 0."""
    base = select(samples, "base", 0)
    tokens = token_counts(scale, scale.arms).set_index("arm")
    rows = {
        objective_label("base"): {
            "pass@1": pass1(base, confidence),
            "MPO's lead": NOT_MEASURED,
            "gain over the base": "-",
            "critic's explained variance": "-",
            "tokens generated": "-",
            "tokens trained on": "-",
            "tokens of warm-ups": "-",
        }
    }
    for arm in scale.arms:
        own = select(samples, arm, 0)
        by_seed = pass1_by_seed(own)
        rows[objective_label(arm)] = {
            "pass@1": seed_interval(by_seed, confidence=confidence),
            "MPO's lead": "-" if arm == FULL else seed_difference(samples, FULL, arm, 0, confidence),
            "gain over the base": gain(own, base, confidence),
            "critic's explained variance": explained_variance(scale, arm, confidence) or "-",
            "tokens generated": _count(tokens.loc[arm, "tokens_generated"]),
            "tokens trained on": _count(tokens.loc[arm, "tokens_trained"]),
            "tokens of warm-ups": _count(warm_up_tokens(scale, arm)),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm")


def _count(tokens: float | None) -> Exact | str:
    return NOT_MEASURED if tokens is None or pd.isna(tokens) else Exact(int(tokens))


def grid_table(
    scale: Study | Scale,
    samples: pd.DataFrame,
    by_block: Mapping[int, str],
    grid: Mapping[tuple[float, float], str],
    confidence: float,
) -> pd.DataFrame:
    """One row per setting, first over K, then over decay and total weight, last the controls of ours that are
    trained: its final pass@1 and its lead over PPO, paired by seed and problem.

    Args: ``by_block``: K -> arm, 1 being PPO; ``grid``: (decay, total weight) -> arm.
    """
    full = scale.recipes[FULL].parameters
    settings = [
        ("a", k, full["decay"] if k > 1 else None, full["mtp_weight"] if k > 1 else 0.0, arm)
        for k, arm in by_block.items()
    ]
    longest = scale.recipes[FULL].mtp.blocks
    settings += [("b", longest, decay, weight, arm) for (decay, weight), arm in grid.items()]
    for name, arm in CONTROLS.items():
        if arm in scale.ablation_arms and (own := setting_of(scale, arm)) is not None:
            settings.append((name, own.blocks, own.decay, own.weight, arm))
    accuracy = final_estimates(samples, [arm for *_, arm in settings], confidence)
    rows = []
    for panel, k, decay, weight, arm in settings:
        lead = {"lead": (arm, by_block[1])}
        rows.append(
            {
                "panel": panel,
                "K": Exact(k),
                "decay": "-" if decay is None else Exact(decay),
                "total weight, %": Exact(round(100 * weight)),
                "pass@1": accuracy[arm],
                "lead over PPO": "-" if k == 1 else differences(samples, lead, 0, confidence)["lead"],
            }
        )
    return pd.DataFrame(rows)


def final_estimates(samples: pd.DataFrame, arms: Sequence[str], confidence: float) -> dict[str, Estimate]:
    """Arm -> final pass@1 over training seeds."""
    found = {}
    for arm in dict.fromkeys(arms):
        by_seed = pass1_by_seed(select(samples, arm, 0))
        found[arm] = seed_interval(by_seed, confidence=confidence)
    return found


def group_difference(
    samples: pd.DataFrame, first: Sequence[str], second: Sequence[str], confidence: float
) -> Estimate:
    """Mean pass@1 of some arms minus that of others, every pair of them paired by problem: per seed, then
    Student's t over seeds.

    Raises:
        ValueError: an arm without samples, or arms with other seeds than the rest.
    """
    seeds = {arm: seeds_of(select(samples, arm, 0)) for arm in (*first, *second)}
    if not all(seeds.values()) or len(set(seeds.values())) > 1:
        raise ValueError(f"arms have seeds {seeds}: allowed are arms with samples, all with the same seeds")
    each = [difference_by_seed(samples, a, b, 0).to_numpy() for a in first for b in second]
    return seed_interval(np.mean(each, axis=0), next(iter(seeds.values())), confidence=confidence)


def head_table(samples: pd.DataFrame, arms: Mapping[int, tuple[str, str]], confidence: float) -> pd.DataFrame:
    """One row per K (the index): pass@1 with one value head and with K, and what the heads add.

    ``arms``: as :func:`rlvr.analysis.mpo.head_arms` has them.
    """
    rows = {}
    for k, (one, several) in arms.items():
        found = final_estimates(samples, (one, several), confidence)
        added = differences(samples, {"added": (several, one)}, 0, confidence)["added"]
        rows[str(k)] = {"one value head": found[one], "K value heads": found[several], "difference": added}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("K").reset_index()
