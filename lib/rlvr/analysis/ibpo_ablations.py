"""IBPO with one thing changed (Tables 3, 4 and 5), and what the text leaves open, shown to matter or not."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from rlvr.analysis.ibpo_scores import accuracy, difference
from rlvr.analysis.study import Study
from rlvr.config import Scale
from rlvr.config_corrections import Counterfactual
from rlvr.evaluation import Estimate, seed_interval
from rlvr.reporting.cells import NOT_MEASURED, Exact, seeds_text

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


def changed(scale: Study | Scale, arm: str) -> dict[str, Any]:
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


def arms_over(scale: Study | Scale, setting: str) -> dict[float, str]:
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
        row = {"method": label} | _compared(scores, method, FULL, "minus the full method", confidence)
        arm = "gspo" if method == "gspo_prompt" else method
        row["steps"] = _steps(metrics, arm)
        row["corrections right, late"] = over_seeds(metrics, arm, "corrections_right", confidence, LATE)
        rows.append(row)
    return pd.DataFrame(rows).set_index("method")


def _compared(
    scores: pd.DataFrame, method: str, other: str, title: str, confidence: float
) -> dict[str, Estimate | str]:
    """Cells of a row: accuracy over the method's own seeds, and its difference over those that both have."""
    own = accuracy(scores, method, confidence)
    row = {"held-out pass@1": own, "its seeds": seeds_cell(own), title: "", "seeds of the difference": ""}
    if method != other:
        row[title] = difference(scores, method, other, confidence)
        row["seeds of the difference"] = seeds_cell(row[title])
    return row


def seeds_cell(estimate: Estimate) -> str:
    """``3 (0 1 2)``."""
    return f"{estimate.n} ({seeds_text(estimate.seeds)})"


def _steps(metrics: pd.DataFrame, arm: str) -> Exact:
    """That the budget paid for, a mean over seeds; the row after the last update has their number."""
    own = metrics[metrics["arm"] == arm].groupby("seed")["step"].max()
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
        rows.append(row | _compared(scores, arm, FULL, "minus the paper's setting", confidence))
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
                **_compared(scores, arm, other, "minus what we do", confidence),
                "flagged as rewrite": over_seeds(metrics, arm, "rewrites", confidence),
                "corrections right": over_seeds(metrics, arm, "corrections_right", confidence),
            }
        )
    return pd.DataFrame(rows)


def claim_parts(
    scale: Study | Scale, scores: pd.DataFrame, confidence: float
) -> dict[str, dict[str, Estimate]]:
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


SEEDS_NOTE = (
    "Arms have different seeds: an accuracy is over the seeds of its own row, a difference over those that "
    "both of its rows have, named beside it, so that it need not be the difference of the two accuracies."
)


def seeds_note(parts: Mapping[str, Estimate]) -> str:
    """Which seeds each difference rests on."""
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for name, estimate in parts.items():
        by_seeds.setdefault(tuple(estimate.seeds), []).append(name)
    return " ".join(
        f"Over seeds {', '.join(map(str, seeds))}, which both sides have: {'; '.join(names)}."
        for seeds, names in by_seeds.items()
    )


def success_by_fifths(metrics: pd.DataFrame, arm: str, column: str = "corrections_right") -> pd.DataFrame:
    """[seeds, 5]: mean of a metric in each fifth of the steps.

    Raises:
        ValueError: a run of fewer than five steps, or a fifth without the metric.
    """
    found = _fifths(metrics, arm, column)
    for seed, row in found.iterrows():
        if row.isna().any():
            raise ValueError(f"{arm}, seed {seed}: its steps with {column} do not fill five fifths")
    return found


def _fifths(metrics: pd.DataFrame, arm: str, column: str) -> pd.DataFrame:
    """[seeds, 5]; NaN where a fifth has no value."""
    rows = {}
    for seed, run in metrics[(metrics["arm"] == arm) & metrics["reward"].notna()].groupby("seed"):
        parts = np.array_split(run.sort_values("step")[column].to_numpy(float), 5)
        rows[int(seed)] = [float(np.nanmean(p)) if np.isfinite(p).any() else np.nan for p in parts]
    return pd.DataFrame.from_dict(rows, orient="index", columns=range(1, 6)).sort_index()


def fifths_table(
    metrics: pd.DataFrame, arm: str, columns: Mapping[str, str], confidence: float
) -> pd.DataFrame:
    """A row per fifth of the training, a column per metric (``columns``: metric -> title): the mean over the
    seeds that have it there, Student's t over them; NOT_MEASURED where none has."""
    table = {}
    for column, title in columns.items():
        cells = dict.fromkeys(range(1, 6), NOT_MEASURED)
        if column in metrics:
            for fifth, values in _fifths(metrics, arm, column).items():
                if len(known := values.dropna()):
                    cells[fifth] = seed_interval(known, confidence=confidence)
        table[title] = {f"fifth {k} of the training": cell for k, cell in cells.items()}
    return pd.DataFrame(table).rename_axis("corrections")


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
