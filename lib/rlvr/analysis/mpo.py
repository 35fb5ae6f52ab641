"""MPO's arms by what they differ in: total weight, block length, decay, value heads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlvr import objectives
from rlvr.config import Scale, load_scale
from rlvr.storage import read_json

if TYPE_CHECKING:
    from rlvr.analysis.study import Study

PPO, FULL, CONTROL, STILL = "ppo", "mpo", "mpo_scaled", "mpo_still"


class Setting(NamedTuple):
    """What an arm's ratio is made of, and its critic.

    Attributes:
        blocks: K.
        weight: S, the total weight of the modules.
        decay: lambda.
        heads: value heads of the critic.
        ratio: ``block``, or ``scaled`` for the control.
        train: what the modules learn by along with the policy, ``cross_entropy`` or ``none``.
    """

    blocks: int
    weight: float
    decay: float
    heads: int
    ratio: str
    train: str


def setting_of(scale: Study | Scale, arm: str) -> Setting | None:
    """The setting of an arm of MPO on PPO; None for any other objective than ``mpo``."""
    recipe = scale.recipes[arm]
    if recipe.objective != "mpo" or recipe.mtp is None or recipe.critic is None:
        return None
    every = objectives.get("mpo").parameters | recipe.parameters
    weight, decay = float(every["mtp_weight"]), float(every["decay"])
    mtp = recipe.mtp
    return Setting(mtp.blocks, weight, decay, recipe.critic.blocks, mtp.ratio, mtp.train)


def arms_over(scale: Study | Scale, *fields: str) -> dict[tuple, str]:
    """Values of ``fields`` -> the trained arm that differs from ``mpo`` in nothing else, in rising order.

    Raises:
        ValueError: a field that :class:`Setting` lacks; two arms of one setting; no trained arm ``mpo``.
    """
    if unknown := sorted(set(fields) - set(Setting._fields)):
        raise ValueError(f"fields {unknown}: allowed are {', '.join(Setting._fields)}")
    trained = (*scale.arms, *scale.ablation_arms)
    if FULL not in trained:
        raise ValueError(f"arm {FULL!r} is not trained: the others are compared with it; arms {trained}")
    full, found = setting_of(scale, FULL), {}
    for arm in trained:
        own = setting_of(scale, arm)
        if own is None or any(getattr(own, f) != getattr(full, f) for f in own._fields if f not in fields):
            continue
        key = tuple(getattr(own, field) for field in fields)
        if key in found:
            raise ValueError(f"arms {found[key]!r} and {arm!r} have one setting, {own}; allowed is one")
        found[key] = arm
    return dict(sorted(found.items()))


def weight_arms(scale: Study | Scale) -> dict[float, str]:
    """Total weight S -> arm; without weight MPO is PPO, which stands for 0."""
    return {0.0: PPO} | {weight: arm for (weight,), arm in arms_over(scale, "weight").items()}


def block_arms(scale: Study | Scale) -> dict[int, str]:
    """Block length K -> arm; a block of one token is PPO's."""
    return {1: PPO} | {blocks: arm for (blocks,), arm in arms_over(scale, "blocks").items()}


def head_arms(scale: Study | Scale) -> dict[int, tuple[str, str]]:
    """K -> (arm with one value head, arm with K), where both are trained."""
    one, found = block_arms(scale), {}
    for (blocks, heads), arm in arms_over(scale, "blocks", "heads").items():
        if heads == blocks > 1 and blocks in one:
            found[blocks] = (one[blocks], arm)
    return found


def every_arm(scale: Study | Scale) -> list[str]:
    return [*scale.arms, *scale.ablation_arms]


def arm_label(scale: Study | Scale, arm: str) -> str:
    """``MPO, K=5, S=20 %, decay 0.8``: what an arm of MPO is, by its numbers."""
    own = setting_of(scale, arm)
    if own is None:
        raise ValueError(f"arm={arm!r} is no arm of MPO on PPO")
    text = f"MPO, K={own.blocks}, S={own.weight:.0%}, decay {own.decay:g}".replace("%", " %")
    text += f", {own.heads} value heads" if own.heads > 1 else ""
    text += ", scaled token ratio" if own.ratio == "scaled" else ""
    return text + (", modules not trained" if own.train == "none" else "")


def samples_text(scale: Study | Scale) -> str:
    """``4 samples``, or how the one of a greedy evaluation is called."""
    count, greedy = scale.evaluate.samples, scale.evaluate.temperature == 0
    return f"{count} {'greedy ' if greedy else ''}sample{'' if count == 1 else 's'}"


def asked_of(study: Study, arm: str) -> dict[str, Any]:
    """The experiment of an arm's first run, as that says itself."""
    return read_json(study.run_folder(arm, study.seeds_of(arm)[0], 0) / "config.json")["experiment"]


def load_part(scale: Scale, part: str) -> Scale:
    """The scale file of a part of the paper, which lies one folder below the paper's own."""
    return load_scale(Path(scale.scale_file).parent / part / "params.yaml")


def missing(names: Iterable[str], trained: Iterable[str]) -> list[str]:
    """Names that are not trained: what needs them is left out at such a scale."""
    return sorted(set(names) - set(trained))
