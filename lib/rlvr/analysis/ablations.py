"""NFPO's ablations: which arms belong together, and what each change does to the accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rlvr.analysis.accuracy import pass1_by_seed, seed_difference, seeds_of, select
from rlvr.analysis.corrections import Pool, horizon_frame, over_seeds, variance_by_step
from rlvr.analysis.dynamics import (
    Shares,
    correction_strength,
    switch_frequency,
    trace_variance,
    traced_ratio,
)
from rlvr.analysis.recipe_changes import (
    DPPO,
    FULL,
    HORIZON,
    MASK,
    MASKS,
    RECOMPUTED,
    RELEASE,
    TRACE_CLIP,
    change,
    check_dppo,
    range_text,
    recipe_of,
    settings_of,
)
from rlvr.analysis.study import Study
from rlvr.config import Recipe
from rlvr.evaluation import Estimate, seed_interval, with_ends
from rlvr.objectives.trace import NFPO_PRESETS
from rlvr.reporting.cells import Exact
from rlvr.reporting.style import objective_label

#: Setting in :func:`preset_table` -> where its two values come from.
_SOURCES = {
    "horizon N": "text: App. C, 4 at 1.7B and 8 at 8B; release",
    "trace clip": "text: App. C; release",
    "ratio clip": "text: App. C; release",
    "what it clips": "text: App. C says rho; release, whose reading our text arm shares",
    "token mask": "text: App. C; release",
    "mask threshold": "text: App. C; release",
    "window of the trace": "text silent: our choice; release",
    "aggregation": "text silent: as all arms here; release",
    "advantage divided by": "text silent: as all arms here; release",
}


def ablation_groups(study: Study) -> dict[str, list[tuple[str, str]]]:
    """Group -> (arm, label) of DPPO-TV, NFPO and the trained arms that differ from it in the group's setting.

    A group without such an arm is left out, and so are arms that differ in the horizon (:func:`horizon_arms`)
    or are no NFPO.

    Raises:
        ValueError: see :func:`rlvr.analysis.recipe_changes.change`; ``nfpo`` or ``dppo_tv`` is not trained.
    """
    trained = _trained(study)
    if missing := [arm for arm in (DPPO, FULL) if arm not in trained]:
        raise ValueError(f"arms {missing} are not trained: ablations are compared with them; arms {trained}")
    front = [(arm, objective_label(arm)) for arm in (DPPO, FULL)]
    found = {arm: change(study, arm) for arm in trained}
    groups = {
        name: [(arm, where[1]) for arm, where in found.items() if where and where[0] == name]
        for name in (TRACE_CLIP, RECOMPUTED, MASK)
    }
    return {name: front + arms for name, arms in groups.items() if arms}


def horizon_arms(study: Study) -> dict[int, str]:
    """Horizon N -> trained arm, by rising N: NFPO's where nothing but N differs, and N = 1 is DPPO-TV.

    DPPO-TV is NFPO with N = 1 up to its cap of the ratio.

    Raises:
        ValueError: see :func:`rlvr.analysis.recipe_changes.change`; two arms of one horizon; a DPPO-TV that
            differs from NFPO in its mask's threshold or in how it trains.
    """
    found: dict[int, str] = {}
    for arm in _trained(study):
        where = change(study, arm)
        if arm == DPPO:
            check_dppo(study)
            horizon = 1
        elif arm == FULL or (where and where[0] == HORIZON):
            horizon = settings_of(study, study.recipes[arm])["horizon"]
        else:
            continue
        if horizon in found:
            raise ValueError(
                f"horizon={horizon} has two arms, {found[horizon]!r} and {arm!r}; allowed is one"
            )
        found[horizon] = arm
    return dict(sorted(found.items()))


def final_accuracy(samples: pd.DataFrame, arms: Iterable[str], lag: int, confidence: float) -> pd.DataFrame:
    """Held-out pass@1 after training: mean over seeds, Student's t over seeds.

    Columns: ``arm``, ``value``, ``low``, ``high``, and ``points``, one accuracy per seed, by rising seed.

    Raises:
        ValueError: no arms, an arm without samples at this lag, or with other seeds than the others.
    """
    arms = list(arms)
    seeds = _common_seeds(samples, arms, lag)
    points = [pass1_by_seed(select(samples, arm, lag)).to_numpy() for arm in arms]
    estimates = [seed_interval(values, seeds, confidence=confidence) for values in points]
    frame = with_ends(pd.DataFrame({"arm": arms, "estimate": estimates}))
    return frame.drop(columns="estimate").assign(points=[tuple(values.tolist()) for values in points])


def ablation_frame(study: Study, accuracy: pd.DataFrame) -> pd.DataFrame:
    """Rows of :func:`rlvr.reporting.figures_ablations.ablation_figure`: :func:`ablation_groups` with the
    numbers of :func:`final_accuracy`. Without groups it has no rows.

    Raises:
        ValueError: ``accuracy`` lacks an arm of a group.
    """
    rows = [
        {"group": group, "arm": arm, "label": label, "is_baseline": arm in (DPPO, FULL)}
        for group, arms in ablation_groups(study).items()
        for arm, label in arms
    ]
    frame = pd.DataFrame(rows, columns=["group", "arm", "label", "is_baseline"])
    if missing := sorted(set(frame["arm"]) - set(accuracy["arm"])):
        raise ValueError(f"accuracy has no rows of arms {missing}; there are {sorted(accuracy['arm'])}")
    return frame.merge(accuracy, on="arm", how="left", validate="many_to_one")


def differences(
    samples: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], lag: int, confidence: float
) -> dict[str, Estimate]:
    """pass@1 of arm a minus that of arm b for each named pair (a, b): paired by seed and problem, Student's t
    over seeds.

    Each interval stands for itself: of many, some miss the truth by chance.

    Raises:
        ValueError: an arm without samples at this lag, or two with other seeds or problems.
    """
    found = {}
    for name, (a, b) in pairs.items():
        _common_seeds(samples, (a, b), lag)
        found[name] = seed_difference(samples, a, b, lag, confidence)
    return found


def preset_table(
    study: Study, samples: pd.DataFrame, data: Pool | None, resamples: int, confidence: float
) -> pd.DataFrame:
    """The presets ``text`` and ``release`` side by side, and what the difference does (nfpo-x9).

    Above: one row per setting that either names. Below: final pass@1 of both at the ablations' lag, and
    variance, switch frequency and correction strength of both traces on the same records.

    Columns: ``setting``, ``text``, ``release``, ``release - text`` (paired, Student's t over seeds; "-" for a
    setting), ``source``.

    Args:
        samples: of the arms ``nfpo`` and ``nfpo_release``.
        data: off-policy records of one arm, whose tokens both traces are computed on.

    Raises:
        ValueError: no records; a recipe of the two that is not its preset; missing samples or seeds.
    """
    if data is None:
        raise ValueError("there are no records to compute both traces on")
    ours = [_check_preset(study, FULL, "text"), _check_preset(study, RELEASE, "release")]
    lag = study.ablations.lag
    pair = differences(samples, {"gain": (RELEASE, FULL)}, lag, confidence)["gain"]
    final = [
        seed_interval(by_seed, confidence=confidence)
        for by_seed in (pass1_by_seed(select(samples, arm, lag)) for arm in (FULL, RELEASE))
    ]
    cells = [_setting_cells(settings) for settings in ours]
    rows = [[name, *(of_arm[name] for of_arm in cells), "-", source] for name, source in _SOURCES.items()]
    if not bool((data.mask[:, 1:] & ~data.mask[:, :-1]).any()):
        rows[list(_SOURCES).index("window of the trace")][-1] += "; the same here: no response has a hole"
    rows.append([f"final pass@1, lag {lag}", *final, pair, "measured: Student t over seeds"])
    source = "measured on the same records: bootstrap within seeds"
    rows += [[*row, source] for row in _trace_rows(data, ours, resamples, confidence)]
    return pd.DataFrame(rows, columns=["setting", "text", "release", "release - text", "source"])


def _trained(study: Study) -> list[str]:
    return [*study.arms, *study.ablations.arms]


def _common_seeds(samples: pd.DataFrame, arms: Sequence[str], lag: int) -> tuple[int, ...]:
    """The training seeds that all arms have; one that has others cannot be compared."""
    if not arms:
        raise ValueError("arms is empty; name at least one")
    seeds = {arm: seeds_of(select(samples, arm, lag)) for arm in arms}
    if missing := [arm for arm in arms if not seeds[arm]]:
        raise ValueError(f"samples hold no rows of arms {missing} with lag {lag}")
    if len(set(seeds.values())) > 1:
        raise ValueError(f"arms were trained with different seeds: {seeds}")
    return seeds[arms[0]]


def _check_preset(study: Study, arm: str, preset: str) -> dict[str, Any]:
    """Settings of an arm that must be its preset; the release's advantage is not divided [official]."""
    own = {"advantage_std": "none"} if preset == "release" else {}
    wanted = settings_of(study, Recipe(objective=FULL, **NFPO_PRESETS[preset], **own))
    found = settings_of(study, recipe_of(study, arm))
    if other := {name: found[name] for name in found if found[name] != wanted[name]}:
        raise ValueError(f"recipes.{arm} is not the preset {preset!r}: {other} differ")
    return found


def _setting_cells(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Row of :data:`_SOURCES` -> cell of one preset."""
    region, own = settings["mask"]
    std = {"none": "nothing"}.get(settings["advantage_std"], f"{settings['advantage_std']} std")
    cells = (
        Exact(settings["horizon"]),
        range_text(settings["trace_clip"]),
        Exact(settings["ratio_clip"]),
        "factors of the trace",
        MASKS[region][0],
        Exact(own["delta"]),
        {"valid": "valid tokens", "positions": "positions"}[settings["window"]],
        settings["loss_agg_mode"],
        std,
    )
    return dict(zip(_SOURCES, cells, strict=True))


def _trace_rows(
    data: Pool, presets: Sequence[Mapping[str, Any]], resamples: int, confidence: float
) -> list[list[Any]]:
    """[name, first preset's value, second's, second minus first by seed] on the same records."""
    traces = [{k: of[k] for k in ("horizon", "trace_clip", "ratio_clip", "window")} for of in presets]
    found, medians, weights = [], [], []
    for trace in traces:
        clips, horizon = {k: v for k, v in trace.items() if k != "horizon"}, trace["horizon"]
        over_n = horizon_frame(data, [horizon], trace, resamples, confidence)
        found.append(over_n.set_index("quantity")["estimate"])
        moments = trace_variance(data.log_ratio, data.mask, [horizon], **clips)[horizon]["clipped"]
        medians.append([np.median(steps) for steps in variance_by_step(data, moments)])
        weights.append(traced_ratio(data.log_ratio, data.mask, **trace))
    more = seed_interval(np.subtract(*medians[::-1]), data.seeds, confidence=confidence)
    rows = [["trace variance", *(of["trace_variance_clipped"] for of in found), more]]
    for name, quantity, count in (
        ("switch frequency", "switch", switch_frequency),
        ("correction strength", "correction_strength", correction_strength),
    ):
        first, second = (count(w, data.mask) for w in weights)
        more = Shares(second.numerator - first.numerator, first.denominator)
        rows.append([name, *(of[quantity] for of in found), over_seeds(data, more, confidence)])
    return rows
