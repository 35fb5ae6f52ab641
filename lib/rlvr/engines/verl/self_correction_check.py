"""Settings of the trainer of two turns in two stages: which there are, and which go together.

trainer.v1.trainer_mode=rlvr_self_correction '+trainer.v1.rlvr_self_correction={self_correction:{bonus:2}}'
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from rlvr.config_corrections import SelfCorrection
from rlvr.engines.jobs.command import SELF_CORRECTING
from rlvr.engines.jobs.cpu import SELF_CORRECTING_MODE
from rlvr.engines.verl.correction_check import block_of, refuse_unread, shared_requirements, updates_of_step
from rlvr.engines.verl.surroundings import Failed

MODES = (SELF_CORRECTING, SELF_CORRECTING_MODE)
BLOCK = "self_correction"
ACTOR = "actor_rollout_ref.actor"


def self_correction_of(config: DictConfig) -> SelfCorrection:
    """The block of settings in ``trainer.v1.<mode>``.

    Raises:
        Failed: it is missing, or holds what is not allowed; says where.
    """
    return block_of(config, BLOCK, SelfCorrection)


def first_stage_of(steps: int, settings: SelfCorrection) -> int:
    """Steps of stage 1 among ``steps``, as the local engine has it."""
    return max(1, round(settings.stage1_share * steps))


def stage_of(done: int, steps: int, settings: SelfCorrection) -> int:
    """1 or 2: the stage of the step before which ``done`` of ``steps`` were made."""
    return 1 if done < first_stage_of(steps, settings) else 2


def check_self_correction(config: DictConfig) -> list[str]:
    """What is said about a job's second turns; nothing about a job without.

    Raises:
        Failed: settings that do not go together, or the block for a trainer that does not read it.
    """
    mode = (config.trainer.get("v1", None) or {}).get("trainer_mode", None)
    if mode not in MODES:
        refuse_unread(config, BLOCK, MODES)
        return []
    settings = self_correction_of(config)
    for name, value, fits, allowed in [*shared_requirements(config), *_anchor(config, settings)]:
        if not fits:
            raise Failed(f"{name}={value} with trainer_mode={mode}: allowed is {allowed}")
    out = [
        f"a second turn for every response, rewarded by r2; in stage 2 by r2 + {settings.bonus:g} (r2 - r1), "
        f"and the first by r1; KL against the base model: {settings.first_turn_kl:g} on the first turn of "
        f"stage 1, {settings.kl:g} on the rest",
        f"updates a step: {updates_of_step(config)}, each of whole prompts with both turns; means are over "
        "the rows that have tokens",
    ]
    if steps := config.trainer.get("total_training_steps", None):
        first = first_stage_of(steps, settings)
        out.append(f"stage 1: the first {first} of {steps} steps")
        if first >= steps:
            out.append(
                f"warning: {BLOCK}.stage1_share={settings.stage1_share:g} leaves none of the {steps} "
                "steps to stage 2"
            )
    return out


def _anchor(config: DictConfig, settings: SelfCorrection) -> list[tuple[str, Any, bool, str]]:
    """As :func:`.correction_check.shared_requirements`: of the reference policy."""
    actor = config.actor_rollout_ref.actor
    anchored = bool(settings.first_turn_kl or settings.kl)
    return [
        (
            f"{ACTOR}.use_kl_loss",
            actor.use_kl_loss,
            bool(actor.use_kl_loss) == anchored,
            f"{anchored}: {BLOCK} has first_turn_kl={settings.first_turn_kl:g}, kl={settings.kl:g}, and this "
            "is what makes verl compute the base model's log-probs",
        ),
        (
            f"{ACTOR}.kl_loss_coef",
            actor.kl_loss_coef,
            not anchored or actor.kl_loss_coef == 0,
            f"0: {BLOCK} has the weights of the KL penalty, and verl's own would come on top",
        ),
        (
            "algorithm.use_kl_in_reward",
            config.algorithm.use_kl_in_reward,
            not config.algorithm.use_kl_in_reward,
            "False: the first turn of stage 1 has an advantage of 0",
        ),
    ]
