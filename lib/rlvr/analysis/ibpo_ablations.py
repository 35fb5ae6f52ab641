"""IBPO with one thing changed (Tables 3, 4 and 5), and what the text leaves open, shown to matter or not."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from rlvr.analysis.ibpo_scores import accuracy, difference, shared_seeds
from rlvr.config import Scale
from rlvr.config_corrections import Counterfactual
from rlvr.evaluation import Estimate, seed_interval
from rlvr.reporting.cells import NOT_MEASURED, Exact

FULL = "ibpo"
#: Rows of Table 3; the last but one is not the paper's.
PARTS = MappingProxyType(
    {
        "gspo_prompt": "GSPO + prompt at test time",
        "one_trajectory": "IBPO, K = 1",
        "shaping_only": "IBPO, shaping only",
        "joint_only": "IBPO, joint training only",
        "ibpo": "IBPO",
    }
)
#: What the text leaves open -> (arm that decides otherwise, arm that it is compared with, what it does).
CHOICES = MappingProxyType(
    {
        "order of the prompt": ("template_compare", FULL, "problem first, which the warm-up did not show"),
        "no right reference": (
            "no_wrong_references",
            FULL,
            "a group without a right response is not corrected",
        ),
        "old log-probs of corrections": ("recomputed", FULL, "the trainer's, of responses too"),
        "several corrections of one response": ("mean_correction", FULL, "their mean counts, not the best"),
        "token that an insertion marks": ("mask_no_insertions", "ibpo_mask", "none, in the mask variant"),
        "adaptive threshold": ("alpha_adaptive", FULL, "mean + 2 deviations of the batch"),
        "distance of syntax trees": ("syntax_trees", FULL, "in the rewrite test, in place of tokens"),
        "distance by failing tests": ("failing_tests", FULL, "in the rewrite test, in place of tokens"),
    }
)
LATE = 0.2  # of the training


def changed(scale: Scale, arm: str) -> dict[str, Any]:
    """Settings of an arm's correction block that are not those of ``ibpo``.

    Raises:
        ValueError: an arm without the block.
    """
    own, full = (scale.recipes[name].counterfactual for name in (arm, FULL))
    if own is None or full is None:
        raise ValueError(f"recipes.{arm}: has no block counterfactual; allowed are arms of IBPO")
    return {
        name: getattr(own, name)
        for name in Counterfactual.model_fields
        if getattr(own, name) != getattr(full, name)
    }


def arms_over(scale: Scale, setting: str) -> dict[float, str]:
    """Value of ``setting`` -> trained arm that differs from ``ibpo`` in it alone, and ``ibpo`` itself;
    numbers only, rising."""
    full = scale.recipes[FULL]
    found = {getattr(full.counterfactual, setting): FULL}
    for arm in scale.ablation_arms:
        recipe = scale.recipes[arm]
        if recipe.counterfactual is None or recipe.parameters != full.parameters:
            continue
        if recipe.objective == full.objective and set(own := changed(scale, arm)) == {setting}:
            found[own[setting]] = arm
    numbers = {v: arm for v, arm in found.items() if isinstance(v, int | float)}
    return dict(sorted(numbers.items()))


def over_seeds(metrics: pd.DataFrame, arm: str, column: str, confidence: float, last: float = 1.0):
    """A metric's mean over the last part of the training, then over seeds; NOT_MEASURED where it has none."""
    own = metrics[metrics["arm"] == arm]
    if column not in own or own[column].isna().all():
        return NOT_MEASURED
    values = []
    for _, run in own.dropna(subset=[column]).groupby("seed"):
        values.append(run[column].tail(max(1, round(last * len(run)))).mean())
    return seed_interval(values, sorted(own["seed"].unique().tolist()), confidence=confidence)


def part_table(scores: pd.DataFrame, metrics: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Table 3: accuracy, difference to the full method (paired), steps, late success of corrections."""
    rows = []
    for method, label in PARTS.items():
        if method not in set(scores["method"]):
            continue
        row = {"method": label, "held-out pass@1": accuracy(scores, method, confidence)}
        row["minus the full method"] = "" if method == FULL else difference(scores, method, FULL, confidence)
        arm = "gspo" if method == "gspo_prompt" else method
        row["steps"] = _steps(metrics, arm)
        row["corrections right, late"] = over_seeds(metrics, arm, "corrections_right", confidence, LATE)
        rows.append(row)
    return pd.DataFrame(rows).set_index("method")


def _steps(metrics: pd.DataFrame, arm: str) -> Exact:
    """That the budget paid for, a mean over seeds."""
    own = metrics[(metrics["arm"] == arm) & metrics["reward"].notna()].groupby("seed").size()
    return Exact(round(float(own.mean()), 1), 4)


def setting_table(
    scores: pd.DataFrame,
    metrics: pd.DataFrame,
    arms: Mapping[float, str],
    name: str,
    confidence: float,
    columns: Mapping[str, str],
) -> pd.DataFrame:
    """Tables 4 and 5: a row per value of a setting; ``columns``: title -> metric, over the whole training."""
    rows = []
    for value, arm in arms.items():
        row = {name: f"{value:g}"}
        row |= {title: over_seeds(metrics, arm, metric, confidence) for title, metric in columns.items()}
        row["held-out pass@1"] = accuracy(scores, arm, confidence)
        row["minus the paper's setting"] = "" if arm == FULL else difference(scores, arm, FULL, confidence)
        rows.append(row)
    return pd.DataFrame(rows).set_index(name)


def choice_table(
    scale: Scale, scores: pd.DataFrame, metrics: pd.DataFrame, confidence: float
) -> pd.DataFrame:
    """A row per decision of :data:`CHOICES` whose arm was trained: what it changes, and by how much."""
    rows = []
    for topic, (arm, other, what) in CHOICES.items():
        if arm not in scale.ablation_arms:
            continue
        rows.append(
            {
                "what the text leaves open": topic,
                "here tried": what,
                "held-out pass@1": accuracy(scores, arm, confidence),
                "minus what we do": difference(scores, arm, other, confidence),
                "flagged as rewrite": over_seeds(metrics, arm, "rewrites", confidence),
                "corrections right": over_seeds(metrics, arm, "corrections_right", confidence),
            }
        )
    return pd.DataFrame(rows)


def claim_parts(scale: Scale, scores: pd.DataFrame, confidence: float) -> dict[str, dict[str, Estimate]]:
    """Parts of claims c4 and c5, of those whose arms were all trained."""
    weights, alphas = arms_over(scale, "shaping_weight"), arms_over(scale, "alpha")
    have, found = set(scores["method"]), {}
    pairs = {"prompt only": "gspo_prompt", "one trajectory": "one_trajectory", "shaping only": "shaping_only",
             "joint only": "joint_only"}  # fmt: skip
    if set(pairs.values()) <= have:
        found["ibpo-c4"] = {
            f"full - {name}": difference(scores, FULL, arm, confidence) for name, arm in pairs.items()
        }
    plateau = {"0.55": 0.55, "0.65": 0.65, "0.70": 0.7}
    if {0.4, 0.6, 1.2} <= set(weights) and {0.6, *plateau.values()} <= set(alphas):
        parts = {
            f"weight 0.6 - {end:g}": difference(scores, weights[0.6], weights[end], confidence)
            for end in (0.4, 1.2)
        }
        for text, value in plateau.items():
            parts[f"alpha {text} - 0.60"] = difference(scores, alphas[value], alphas[0.6], confidence)
            parts[f"alpha 0.60 - {text}"] = difference(scores, alphas[0.6], alphas[value], confidence)
        found["ibpo-c5"] = parts
    return found


def seeds_note(scores: pd.DataFrame, methods: list[str]) -> str:
    """Which seeds the differences rest on, where arms have others."""
    return f"Differences are over seeds {', '.join(map(str, shared_seeds(scores, methods)))}."


def success_by_fifths(metrics: pd.DataFrame, arm: str, column: str = "corrections_right") -> pd.DataFrame:
    """[seeds, 5]: mean of a metric in each fifth of the steps.

    Raises:
        ValueError: a run of fewer than five steps, or a fifth without the metric.
    """
    rows = {}
    for seed, run in metrics[(metrics["arm"] == arm) & metrics["reward"].notna()].groupby("seed"):
        parts = np.array_split(run.sort_values("step")[column].to_numpy(float), 5)
        if not all(np.isfinite(part).any() for part in parts):
            raise ValueError(f"{arm}, seed {seed}: {len(run)} steps with {column} do not fill five fifths")
        rows[int(seed)] = [float(np.nanmean(part)) for part in parts]
    return pd.DataFrame.from_dict(rows, orient="index", columns=range(1, 6)).sort_index()


def success_parts(fifths: pd.DataFrame, confidence: float) -> dict[str, Estimate]:
    """Parts of claim c6."""
    seeds, means = fifths.index.tolist(), fifths.mean()

    def over(values: pd.Series) -> Estimate:
        return seed_interval(values.to_numpy(float), seeds, confidence=confidence)

    return {
        "last fifth - first fifth": over(fifths[5] - fifths[1]),
        "lowest fifth": over(fifths[means.idxmin()]),
        "highest fifth": over(fifths[means.idxmax()]),
    }
