"""What around a policy loss decides whether verl runs it, and with which ratio and advantages.

Read in the source of verl 0.9.1: the trainers, ``apply_bypass_mode``, the distillation loss, and which
advantage estimator is handed which setting. What fails here would replace the loss or drop it; a warning
names a setting that nothing reads; the other lines say what verl adds by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rlvr.mtp.files import FILE, read_file
from rlvr.registry import Objective

OURS = ("rlvr_sync", "sync_cpu")  # trainers with a worker of ours
CORRECTION = "algorithm.rollout_correction"
STD = "algorithm.norm_adv_by_std_in_grpo"
ESTIMATOR = "algorithm.adv_estimator"
# Estimators that divide by the std of the group, and whether verl hands them the setting of that name.
DIVIDES = {"grpo": True, "grpo_passk": True, "grpo_vectorized": False, "gdpo": False}


class Failed(Exception):
    """The job would not do what is meant; the text says why and what to do."""


def correction_of(config: DictConfig) -> dict[str, Any]:
    return dict(config.algorithm.get("rollout_correction", None) or {})


def check_trainer(config: DictConfig, experimental: bool = False) -> None:
    """Raises :class:`Failed` where verl would run another loss than ``policy_loss.loss_mode``."""
    bypass = correction_of(config).get("bypass_mode", False)
    legacy = experimental or not config.trainer.get("use_v1", True)
    if bypass and legacy:
        trainer, other = "verl's legacy trainer (trainer.use_v1=False)", "trainer.use_v1=True, or "
        if experimental:
            trainer, other = "this experimental trainer", ""
        raise Failed(
            f"{CORRECTION}.bypass_mode=True: {trainer} then sets actor.policy_loss.loss_mode=bypass_mode, "
            f"verl's own loss, in place of yours; allowed is {other}{CORRECTION}.bypass_mode=False"
        )
    if bypass and not config.actor_rollout_ref.rollout.calculate_log_probs:
        raise Failed(
            f"{CORRECTION}.bypass_mode=True needs the rollout's log-probs: allowed is "
            "actor_rollout_ref.rollout.calculate_log_probs=True"
        )
    distillation = config.get("distillation", None) or {}
    if distillation.get("enabled", False) and not distillation.distillation_loss.use_task_rewards:
        raise Failed(
            "distillation.distillation_loss.use_task_rewards=False: verl then drops the policy loss and "
            "trains by its distillation loss alone; allowed are True, and distillation.enabled=False"
        )


def check_modules(config: DictConfig, modules: Any) -> None:
    """Raises :class:`Failed` where a job would train without the ``modules`` that it asks for, or not start.

    ``modules``: settings of ``policy_loss.mtp``, None without any.
    """
    if modules is None:
        return
    actor, model, trainer = config.actor_rollout_ref.actor, config.actor_rollout_ref.model, config.trainer
    mode = trainer.v1.get("trainer_mode", None)
    if mode not in OURS or not trainer.get("use_v1", True):
        raise Failed(
            f"trainer.v1.trainer_mode={mode}, trainer.use_v1={trainer.get('use_v1', True)}: another trainer "
            f"has no modules; allowed with policy_loss.mtp are {', '.join(OURS)}, and use_v1=True"
        )
    allowed = {
        "actor_rollout_ref.actor.strategy": (actor.strategy, "fsdp2"),
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": (actor.ulysses_sequence_parallel_size, 1),
        "actor_rollout_ref.model.use_fused_kernels": (model.use_fused_kernels, False),
        "actor_rollout_ref.model.lora_rank": (model.lora_rank, 0),
    }
    for name, (value, wanted) in allowed.items():
        if value != wanted:
            raise Failed(f"{name}={value}: allowed with policy_loss.mtp is {wanted}")
    if modules["blocks"] > 1 and (start := modules.get("start", None)) is not None:
        path = Path(start).expanduser() / FILE
        if not path.is_file():
            raise Failed(
                f"policy_loss.mtp.start={start}: {path} does not exist here; allowed are a folder with "
                f"{FILE}, on a file system that every node sees, and null"
            )
        _, *found = read_file(path)
        wanted = [modules[name] for name in ("blocks", "variant", "hidden")]
        if found != wanted:
            raise Failed(
                f"policy_loss.mtp.start={start}: its modules have blocks, variant, hidden = {found}; allowed "
                f"are {wanted}"
            )


def around(config: DictConfig, objective: Objective) -> list[str]:
    """One line per thing that verl decides around the loss."""
    return [*_ratio(config), *_advantages(config, objective), *_further_terms(config)]


def _ratio(config: DictConfig) -> list[str]:
    correction = correction_of(config)
    bypass = correction.get("bypass_mode", False)
    who = "by the rollout engine" if bypass else "by the trainer, again after the rollout"
    line = f"ratio against log-probs computed {who} ({CORRECTION}.bypass_mode={bypass})"
    effects = {
        "rollout_is": "each token's loss times verl's weight",
        "rollout_rs": "tokens rejected by verl leave the mask",
    }
    given = {name: correction.get(name, None) for name in effects}
    why = ""
    if bypass:
        why = "with bypass_mode=True only verl's own loss bypass_mode reads it"
        if (kind := correction.get("loss_type", "ppo_clip")) != "ppo_clip":
            given["loss_type"] = kind
    elif not config.actor_rollout_ref.rollout.calculate_log_probs:
        why = "it needs actor_rollout_ref.rollout.calculate_log_probs=True"
    return [line] + [
        f"warning: {CORRECTION}.{name}={value} is not read: {why}"
        if why
        else f"{effects[name]} ({CORRECTION}.{name}={value})"
        for name, value in given.items()
        if value is not None
    ]


def _advantages(config: DictConfig, objective: Objective) -> list[str]:
    algorithm, kind = config.algorithm, objective.advantages
    estimator, divided = str(algorithm.adv_estimator), False
    line = f"advantages by {estimator} ({ESTIMATOR})"
    if estimator in DIVIDES:
        divided = algorithm.get("norm_adv_by_std_in_grpo", True) if DIVIDES[estimator] else True
        source = STD if DIVIDES[estimator] else f"{STD} is not read"
        line += f", divided by the std: {divided} ({source})"
    if (estimator == "gae") == (kind == "critic") and not (divided and kind == "centred"):
        return [line]
    meant = {
        "critic": f"a critic's: {ESTIMATOR}=gae",
        "group": f"relative to the group: {ESTIMATOR}=grpo",
        "centred": f"relative to the group and not divided by its std: {ESTIMATOR}=grpo {STD}=False",
    }
    return [line, f"note: the advantages of {objective.name} are {meant[kind]}"]


def _further_terms(config: DictConfig) -> list[str]:
    actor, lines = config.actor_rollout_ref.actor, []
    if actor.entropy_coeff:
        lines.append(f"verl adds its entropy term (actor.entropy_coeff={actor.entropy_coeff})")
    if actor.use_kl_loss and actor.kl_loss_coef:
        lines.append(f"verl adds its KL term (actor.kl_loss_coef={actor.kl_loss_coef})")
    if (config.get("distillation", None) or {}).get("enabled", False):
        lines.append("verl adds its distillation loss (distillation.enabled=True)")
    return lines
