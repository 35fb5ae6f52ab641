"""What the logs of MPO's trainings say beside their accuracy: the critic, clipped gradients, warm-ups."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from rlvr.analysis.runs import load_metrics
from rlvr.analysis.study import Study
from rlvr.config import Scale
from rlvr.evaluation import Estimate, seed_interval
from rlvr.reporting.style import objective_label

CRITIC_FILE, UPDATES_FILE = "critic_warmup.parquet", "updates.parquet"


def explained_variance(scale: Study | Scale, arm: str, confidence: float) -> Estimate | None:
    """Share of the variance of the returns that the critic's values explain, before a step's first update:
    the mean over the steps of a run, Student's t over training seeds. None of an arm without a critic.

    0 is what a constant explains, negative what is worse than one.
    """
    if scale.recipes[arm].critic is None:
        return None
    steps = load_metrics(scale, [arm]).dropna(subset=["explained_variance"])
    return seed_interval(steps.groupby("seed")["explained_variance"].mean(), confidence=confidence)


def value_clip_fraction(scale: Study | Scale, arms: Iterable[str]) -> float:
    """Share of the tokens of all updates of these arms' critics whose value the clip held back; where updates
    say nothing of the critic, the mean over steps of what these say."""
    if isinstance(scale, Study) and not scale.embedded:
        return float(load_metrics(scale, arms)["value_clip_fraction"].mean())
    rows = pd.concat([_updates(scale, arm) for arm in arms], ignore_index=True)
    return float((rows["value_clip_fraction"] * rows["tokens"]).sum() / rows["tokens"].sum())


def critic_text(
    scale: Study | Scale, arms: Iterable[str], confidence: float, names: Iterable[str] = ()
) -> str:
    """:func:`explained_variance` and :func:`value_clip_fraction` of arms with a critic, in two sentences;
    ``names``, where given, instead of their labels."""
    arms, found = list(arms), []
    for arm, name in zip(arms, list(names) or map(objective_label, arms), strict=True):
        if (share := explained_variance(scale, arm, confidence)) is None:
            raise ValueError(f"arms hold {arm!r}: allowed are arms with a block critic")
        found.append(f"{name} {share.format()}")
    return (
        f"Share of the returns' variance that the critic explains: {'; '.join(found)}. Its clip held back "
        f"{100 * value_clip_fraction(scale, arms):.2f} % of the values."
    )


def clipped_updates(scale: Study | Scale, arm: str, confidence: float) -> tuple[Estimate, str]:
    """(share, of what): how often the norm of the policy's gradient was above ``train.grad_clip``.

    Of single ``updates`` where the arm logs them; else of ``steps``, by the largest norm of a step's updates,
    a share that is at least as large.
    """
    clip = scale.train.grad_clip
    files = [scale.run_folder(arm, seed, 0) / UPDATES_FILE for seed in scale.seeds_of(arm)]
    if all(file.is_file() for file in files):
        rows, column, unit = _updates(scale, arm), "grad_norm", "updates"
    else:
        rows, column, unit = load_metrics(scale, [arm]).dropna(subset=["loss"]), "grad_norm_max", "steps"
    rows = rows.dropna(subset=[column])  # of an update whose norm was not finite nobody knows
    return seed_interval((rows[column] > clip).groupby(rows["seed"]).mean(), confidence=confidence), unit


def clipped_text(
    scale: Study | Scale, arms: Iterable[str], confidence: float, names: Iterable[str] = ()
) -> str:
    """:func:`clipped_updates` of some arms as a sentence; ``names``, where given, instead of their labels."""
    arms, told = list(arms), []
    for arm, name in zip(arms, list(names) or map(objective_label, arms), strict=True):
        share, unit = clipped_updates(scale, arm, confidence)
        told.append(f"{name} {share.format(2)}" + (" (steps, by their largest)" if unit == "steps" else ""))
    limit = f"{scale.train.grad_clip:g}"
    return f"Share of updates whose gradient norm was above the clip at {limit}: {'; '.join(told)}."


def warm_up_tokens(scale: Study | Scale, arm: str) -> int | None:
    """Tokens that an arm learned from before step 0: for its critic responses, summed over seeds, which are
    among the tokens generated and not among those trained on; for its modules solutions, once for all seeds
    and arms, which are among neither. None where modules were warmed up before the job, which counts nothing.
    """
    recipe, found = scale.recipes[arm], 0
    if recipe.mtp is not None and recipe.mtp.blocks > 1:
        if isinstance(scale, Study):
            return None
        found += int(pd.read_csv(scale.folder / "warm_up/history.csv")["tokens"].max())
    if recipe.critic is not None and recipe.critic.warmup_steps:
        files = [scale.run_folder(arm, seed, 0) / CRITIC_FILE for seed in scale.seeds_of(arm)]
        found += sum(int(pd.read_parquet(file)["tokens"].sum()) for file in files)
    return found


def _updates(scale: Study | Scale, arm: str) -> pd.DataFrame:
    folders = {seed: scale.run_folder(arm, seed, 0) for seed in scale.seeds_of(arm)}
    frames = [pd.read_parquet(folder / UPDATES_FILE).assign(seed=seed) for seed, folder in folders.items()]
    return pd.concat(frames, ignore_index=True)
