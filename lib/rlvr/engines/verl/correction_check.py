"""Settings of the trainer with a second generation pass: which there are, and which go together.

trainer.v1.trainer_mode=rlvr_ibpo '+trainer.v1.rlvr_ibpo={counterfactual:{corrections:4}}'
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from rlvr import objectives
from rlvr.config import fault_lines
from rlvr.config_base import Section
from rlvr.config_corrections import Counterfactual
from rlvr.counterfactual.operators import fitting_operator
from rlvr.engines.jobs.command import CORRECTING
from rlvr.engines.jobs.cpu import CORRECTING_MODE
from rlvr.engines.verl.surroundings import CORRECTION, Failed, correction_of
from rlvr.registry import suggest

MODES = (CORRECTING, CORRECTING_MODE)
BLOCK = "counterfactual"
PREFIX = "rlvr."
Kind = TypeVar("Kind", bound=Section)


def counterfactual_of(config: DictConfig) -> Counterfactual:
    """The block of settings in ``trainer.v1.<mode>``.

    Raises:
        Failed: it is missing, or holds what is not allowed; says where.
    """
    settings = block_of(config, BLOCK, Counterfactual)
    where = f"trainer.v1.{config.trainer.v1.trainer_mode}.{BLOCK}"
    try:
        fitting_operator(settings.operator, insertions=settings.insertions)
    except ValueError as error:
        raise Failed(f"{where}.{error}") from None
    if settings.operator == "failing_tests":
        raise Failed(
            f"{where}.operator='failing_tests': verl's reward is one number and not a verdict per test; "
            "allowed are compare_and_correct, syntax_trees, control_flow"
        )
    return settings


def check_corrections(config: DictConfig) -> list[str]:
    """What is said about a job's corrections; nothing about a job without.

    Raises:
        Failed: settings that do not go together, a loss that needs a mask that nobody makes, or corrections
            for a trainer that does not read them.
    """
    v1 = config.trainer.get("v1", None) or {}  # verl's experimental trainers have none
    mode = v1.get("trainer_mode", None)
    masks = _needs_mask(config)
    if mode not in MODES:
        refuse_unread(config, BLOCK, MODES)
        if masks:
            raise Failed(
                f"loss_mode={_loss_mode(config)} needs a mask of tokens, which trainer_mode={mode} does not "
                f"make; allowed are {', '.join(MODES)} with variant mask, and without a mask loss_mode "
                "rlvr.gspo"
            )
        return []
    settings = counterfactual_of(config)
    if masks != (settings.variant == "mask"):
        raise Failed(
            f"trainer.v1.{mode}.{BLOCK}.variant={settings.variant!r} with loss_mode={_loss_mode(config)}: "
            "allowed is the variant mask with a loss that takes a mask (rlvr.masked_gspo), and no other "
            "with it"
        )
    for name, value, fits, allowed in [*shared_requirements(config), _weights(config, settings)]:
        if not fits:
            raise Failed(f"{name}={value} with trainer_mode={mode}: allowed is {allowed}")
    return [
        f"a second generation pass: {settings.targets or 'all'} wrong responses of a group, corrected "
        f"{settings.corrections} times each beside {settings.references} others; phi by {settings.variant}, "
        f"weighed {settings.shaping_weight:g}; corrections are {'' if settings.joint else 'not '}trained on",
        f"updates a step: {updates_of_step(config)}, each of whole prompts with their corrections; means are "
        "over the rows that have tokens",
    ]


def updates_of_step(config: DictConfig) -> int:
    return config.data.train_batch_size // config.actor_rollout_ref.actor.ppo_mini_batch_size


def block_of(config: DictConfig, block: str, kind: type[Kind]) -> Kind:
    """``trainer.v1.<mode>.<block>`` as settings of a ``kind`` of :mod:`rlvr.config_corrections`.

    Raises:
        Failed: it is missing, or holds what is not allowed; says where.
    """
    mode = config.trainer.v1.trainer_mode
    where = f"trainer.v1.{mode}.{block}"
    given = (config.trainer.v1.get(mode, None) or {}).get(block, None)
    if given is None:
        raise Failed(
            f"{where} is not set: trainer_mode={mode} corrects by it; allowed are the settings of "
            f"rlvr.config_corrections.{kind.__name__}, {{}} for its defaults"
        )
    plain = OmegaConf.to_container(given, resolve=True) if OmegaConf.is_config(given) else given
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise Failed(f"{where}:\n{fault_lines(error, 'together')}") from None


def refuse_unread(config: DictConfig, block: str, modes: tuple[str, ...]) -> None:
    """Raises :class:`Failed` where the trainer's settings have a ``block`` that only ``modes`` read."""
    v1 = config.trainer.get("v1", None) or {}  # verl's experimental trainers have none
    mode = v1.get("trainer_mode", None)
    if (v1.get(mode, None) or {}).get(block, None) is not None:
        raise Failed(
            f"trainer.v1.{mode}.{block} is read by nobody: allowed is trainer.v1.trainer_mode of "
            f"{', '.join(modes)}"
        )


def shared_requirements(config: DictConfig) -> list[tuple[str, Any, bool, str]]:
    """(setting, its value, whether it is allowed, what is allowed), of every trainer with a second
    generation pass."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    data, filters = config.data, config.algorithm.get("filter_groups", None) or {}
    context = rollout.max_model_len or math.inf
    longest = min(rollout.prompt_length + rollout.response_length, context)
    modules = actor.policy_loss.get("mtp", None)
    tokens = actor.ppo_max_token_len_per_gpu * actor.ulysses_sequence_parallel_size
    return [
        ("trainer.use_v1", config.trainer.get("use_v1", True), config.trainer.get("use_v1", True), "True"),
        (
            "algorithm.adv_estimator",
            config.algorithm.adv_estimator,
            config.algorithm.adv_estimator == "grpo",
            "grpo: advantages of responses and of corrections are relative to their groups",
        ),
        (
            "algorithm.filter_groups.enable",
            filters.get("enable", False),
            not filters.get("enable", False),
            "False: groups without a right response are asked again too",
        ),
        (
            "actor_rollout_ref.actor.policy_loss.mtp",
            modules,
            modules is None,
            "null: the actor of this trainer has no modules",
        ),
        (
            "actor_rollout_ref.actor.shuffle",
            actor.shuffle,
            not actor.shuffle,
            "False: a correction is trained in the update of the response that it corrects, and the updates "
            "are of whole prompts already",
        ),
        (
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            actor.ppo_mini_batch_size,
            data.train_batch_size % actor.ppo_mini_batch_size == 0,
            f"a divisor of data.train_batch_size={data.train_batch_size}",
        ),
        (
            "actor_rollout_ref.rollout.n",
            rollout.n,
            rollout.n > 1,
            "2 and more: a group of one has no advantage",
        ),
        (
            "actor_rollout_ref.rollout.prompt_length",
            rollout.prompt_length,
            rollout.prompt_length > data.max_prompt_length,
            f"more than data.max_prompt_length={data.max_prompt_length}: a correction prompt holds the "
            "problem and what was answered",
        ),
        (
            "actor_rollout_ref.rollout.max_model_len",
            rollout.max_model_len,
            context > rollout.prompt_length,
            f"null, or more than rollout.prompt_length={rollout.prompt_length}: nothing could be written",
        ),
        (
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
            actor.ppo_max_token_len_per_gpu,
            not actor.use_dynamic_bsz or tokens >= longest,
            f"at least the longest correction prompt and response, {longest} tokens",
        ),
    ]


def _weights(config: DictConfig, settings: Counterfactual) -> tuple[str, Any, bool, str]:
    weights = correction_of(config).get("rollout_is", None)
    return (
        f"{CORRECTION}.rollout_is",
        weights,
        weights is None or settings.variant != "mask",
        "null with the variant mask, which takes the place of its weights",
    )


def _loss_mode(config: DictConfig) -> str:
    return config.actor_rollout_ref.actor.policy_loss.loss_mode


def _needs_mask(config: DictConfig) -> bool:
    """verl has no loss of its own that takes a mask."""
    name = str(_loss_mode(config)).removeprefix(PREFIX)
    return name in objectives.list_objectives() and "token_mask" in objectives.get(name).needs


def unknown_settings(given: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raises :class:`Failed` at a name in ``given`` that is not ``known``."""
    for name in given:
        if name not in known:
            raise Failed(f"{where} has no setting {suggest(name, known)}")
