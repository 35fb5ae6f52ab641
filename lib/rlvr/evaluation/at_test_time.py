"""IBPO's baselines at test time, of all seeds: revisions of their samples, and what a verifier passes.

Both start from the graded samples of the evaluation, so that they are paired with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from rlvr.config import Scale
from rlvr.engines.config import SamplingConfig
from rlvr.evaluation.corrected import passes, revise_samples
from rlvr.evaluation.grading import grade

#: Method -> (arm whose samples are revised, references beside each). SCoRe's answer is its second turn.
REVISED = {
    "gspo_prompt": ("gspo", 1),
    "gspo8_prompt": ("gspo8", 1),
    "ibpo_prompt": ("ibpo", 1),
    "score_second": ("score", 0),
}
#: Method -> arm of whose samples the first that passes is taken.
SELECTED = {"gspo_best": "gspo", "gspo8_best": "gspo8", "ibpo_best": "ibpo"}


def revise_arms(
    scale: Scale,
    samples: pd.DataFrame,
    problems: Sequence[Any],
    on_progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Graded revisions of every method of :data:`REVISED`, with a column ``method``.

    Args:
        samples: graded, with ``arm``, ``seed`` and ``lag`` of training (lag 0 is revised).
        problems: those of the samples.
    """
    from rlvr.engines.local.workers import run_side_by_side

    calls, labels = [], []
    for method, (arm, references) in REVISED.items():
        for seed in scale.seeds_of(arm):
            own = samples[(samples["arm"] == arm) & (samples["seed"] == seed) & (samples["lag"] == 0)]
            folder = str(scale.run_folder(arm, seed, 0) / "final")
            calls.append((folder, problems, own, _sampling(scale), template_of(scale, arm), references))
            labels.append(method)
    found = run_side_by_side(_revise, calls, scale.workers, on_progress)
    return pd.concat(
        [frame.assign(method=method) for method, (frame, _) in zip(labels, found, strict=True)],
        ignore_index=True,
    )


def template_of(scale: Scale, arm: str) -> str:
    """The correction prompt of training; an arm that never corrected is shown that of IBPO."""
    recipe = scale.recipes[arm]
    given = recipe.counterfactual or recipe.self_correction or scale.recipes["ibpo"].counterfactual
    return given.template


def select_arms(samples: pd.DataFrame, problems: Sequence[Any]) -> pd.DataFrame:
    """``method, seed, problem, sample, correct, passes``: the verdicts that Best-of-N takes, lag 0."""
    frames = []
    for method, arm in SELECTED.items():
        own = samples[(samples["arm"] == arm) & (samples["lag"] == 0)]
        kept = own[["seed", "problem", "sample", "correct"]]
        frames.append(kept.assign(method=method, passes=passes(own, problems)))
    return pd.concat(frames, ignore_index=True)


def _revise(folder, problems, samples, config, template, references, on_progress=None) -> pd.DataFrame:
    revised = revise_samples(
        folder, problems, samples, config, template=template, references=references, on_progress=on_progress
    )
    return grade(revised, problems, workers=1)


def _sampling(scale: Scale) -> SamplingConfig:
    return SamplingConfig(
        max_tokens=scale.train.max_new_tokens,
        samples=scale.evaluate.samples,
        seeds=(scale.evaluate.seed,),
        temperature=scale.evaluate.temperature,
        skip_special_tokens=False,
    )
