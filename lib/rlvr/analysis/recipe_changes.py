"""What an NFPO arm changes against ``nfpo``, read off the two recipes as both train.

Defaults and shared settings are filled in, and what has no effect is left out. A label that says something
else than the recipe is an error, so that a changed recipe cannot keep its old name in a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr import objectives
from rlvr.analysis.study import Study
from rlvr.config import Recipe
from rlvr.engines.local.methods import OWN, SIZES, resolve
from rlvr.objectives.trace import DELTAS
from rlvr.reporting.style import OBJECTIVE_LABELS

FULL, DPPO, RELEASE = "nfpo", "dppo_tv", "nfpo_release"
HORIZON = "horizon"
TRACE_CLIP, RECOMPUTED, MASK = "trace clip range", "recomputed log-probs and ratio clip", "token mask"

#: Token mask -> how a reader calls it, and the parameters that it takes; others are of no effect.
MASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tv": ("TV mask", ("delta",)),
    "kl": ("KL mask", ("delta",)),
    "clip": ("PPO-clip mask", ("clip_low", "clip_high")),
    "band": ("IcePop band", ("band",)),
    "none": ("no mask", ()),
}
_MASK_SETTINGS = {"region"}.union(*(names for _, names in MASKS.values()))
_RECOMPUTED = {"none": "nothing recomputed", "all": "all ratios recomputed", "trace": "trace recomputed"}


def recipe_of(study: Study, arm: str) -> Recipe:
    if arm not in study.recipes:
        raise ValueError(f"arm={arm!r} has no recipe; recipes are {sorted(study.recipes)}")
    return study.recipes[arm]


def settings_of(study: Study, recipe: Recipe) -> dict[str, Any]:
    """Everything that decides how a recipe of objective ``nfpo`` trains.

    Names are those of the objective and of ``train``, but ``mask`` is (region, its own parameters).
    """
    train, parameters = resolve(study.train, recipe)
    objective = objectives.get(recipe.objective)
    every = {k: v for k, v in objective.parameters.items() if k not in objective.tensors} | parameters
    every = {k: tuple(v) if isinstance(v, list) else v for k, v in every.items()}
    region = every["region"]
    if every["delta"] is None:
        every["delta"] = DELTAS.get(region)
    own = {k: every[k] for k in MASKS[region][1]}
    rest = {k: v for k, v in every.items() if k not in _MASK_SETTINGS}
    return rest | {"mask": (region, own)} | {name: getattr(train, name) for name in (*OWN, *SIZES)}


def change(study: Study, arm: str) -> tuple[str, str] | None:
    """(group, label) of the one setting in which an arm differs from ``nfpo``.

    None for ``nfpo`` itself, for another objective, for the release preset, and for an arm without a label in
    reporting/style.py that differs in several settings or in one that is in no figure.

    Raises:
        ValueError: an arm that differs in nothing, or whose recipe is not what its label says.
    """
    recipe = recipe_of(study, arm)
    if recipe.objective != "nfpo" or arm in (FULL, RELEASE):
        return None
    ours, full = settings_of(study, recipe), settings_of(study, recipe_of(study, FULL))
    changed = [name for name in ours if ours[name] != full[name]]
    if not changed:
        raise ValueError(f"recipes.{arm} trains exactly as recipes.{FULL}")
    where = _named(changed[0], ours[changed[0]]) if len(changed) == 1 else None
    label = OBJECTIVE_LABELS.get(arm)
    if label is not None and (where is None or where[1] != label):
        told = repr(where[1]) if where else f"another {', '.join(changed)} than {FULL}'s"
        raise ValueError(f"recipes.{arm}: its label says {label!r}, its parameters say {told}")
    return where


def check_dppo(study: Study) -> None:
    """Raise ValueError unless DPPO-TV is NFPO with N = 1, up to DPPO's cap of the ratio."""
    train, parameters = resolve(study.train, study.recipes[DPPO])
    delta = (objectives.get(DPPO).parameters | parameters)["delta"]
    ours = {"mask": ("tv", {"delta": delta})} | {name: getattr(train, name) for name in (*OWN, *SIZES)}
    full = settings_of(study, recipe_of(study, FULL))
    if other := [name for name, value in ours.items() if value != full[name]]:
        raise ValueError(f"recipes.{DPPO} is not recipes.{FULL} with N = 1: {', '.join(other)} differ")


def range_text(ends: Sequence[float]) -> str:
    return f"[{ends[0]:g}, {ends[1]:g}]"


def _named(setting: str, value: Any) -> tuple[str, str] | None:
    """(group, label) of a setting that was changed to a value; None for one that is in no figure."""
    if setting == "horizon":
        return HORIZON, f"NFPO, N={value}"
    if setting == "trace_clip":
        return TRACE_CLIP, "no trace clip" if value is None else f"trace in {range_text(value)}"
    if setting == "recompute":
        return RECOMPUTED, _RECOMPUTED[value]
    if setting == "ratio_clip":
        return RECOMPUTED, "no ratio clip" if value is None else f"ratio clip {value:g}"
    if setting == "mask":
        return MASK, _mask_label(*value)
    return None


def _mask_label(region: str, own: Mapping[str, Any]) -> str:
    """The mask's name, with those of its parameters that are not the paper's."""
    paper = objectives.get(FULL).parameters | {"delta": DELTAS.get(region)}
    other = {k: range_text(v) if isinstance(v, tuple) else f"{v:g}" for k, v in own.items() if v != paper[k]}
    return ", ".join([MASKS[region][0], *(f"{k} {v}" for k, v in other.items())])
