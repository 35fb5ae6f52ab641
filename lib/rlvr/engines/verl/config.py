"""The objectives' parameters in verl's configuration, checked when the configuration is built.

    actor_rollout_ref.actor.policy_loss._target_=rlvr.engines.verl.PolicyLossConfig
    actor_rollout_ref.actor.policy_loss.loss_mode=nfpo
    +actor_rollout_ref.actor.policy_loss.horizon=8

verl builds it in the driver before it starts Ray, so a mistake stops the job there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Optional

import torch
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.config import PolicyLossConfig as _PolicyLossConfig

from rlvr import objectives
from rlvr.engines.verl.losses import GIVEN, MTP, PolicyLoss, refusal
from rlvr.losses import AGGREGATIONS
from rlvr.mtp.settings import ModuleSettings, module_settings
from rlvr.registry import Objective, suggest


@dataclass(init=False)
class PolicyLossConfig(_PolicyLossConfig):
    """verl's ``PolicyLossConfig`` that also takes the parameters of the objective ``loss_mode``.

    Args:
        loss_mode: a registered loss; parameters need one of rlvr's.
        preset: published settings of that objective (``NFPO_PRESETS``, ``FIPO_PRESETS``); further
            parameters override them.
        loss_agg_mode: of the policy loss alone. None: the preset's if it names one, else
            ``actor.loss_agg_mode``.
        check: check the tensors of every call (a few transfers from the accelerator each).
        mtp: settings of modules beside the actor (:class:`rlvr.mtp.settings.ModuleSettings`), for objectives
            that need what they say.
        parameters: the objective's parameters as one mapping; each can also be given by its own name.
        settings: fields of verl's class, and parameters of the objective.

    Raises:
        ValueError: an unknown loss or preset, a parameter that this objective does not have, a value that it
            refuses, or an objective that needs tensors which verl does not hand over.
    """

    preset: Optional[str] = None  # noqa: UP045  OmegaConf reads the annotation
    loss_agg_mode: Optional[str] = None  # noqa: UP045
    check: bool = True
    mtp: Optional[dict[str, Any]] = None  # noqa: UP045
    parameters: dict[str, Any] = field(default_factory=dict)  # as the objective takes them, preset included

    def __init__(
        self,
        loss_mode: str = "vanilla",
        *,
        preset: str | None = None,
        loss_agg_mode: str | None = None,
        check: bool = True,
        mtp: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        **settings: Any,
    ):
        own = {f.name for f in fields(_PolicyLossConfig)}
        super().__init__(loss_mode=loss_mode, **{k: v for k, v in settings.items() if k in own})
        given = dict(parameters or {}) | {k: v for k, v in settings.items() if k not in own}
        given = {name: _tuples(value) for name, value in given.items()}
        if loss_agg_mode not in (None, *AGGREGATIONS):
            raise ValueError(
                f"policy_loss.loss_agg_mode={loss_agg_mode!r}: allowed are null (actor.loss_agg_mode) and "
                f"{', '.join(AGGREGATIONS)}"
            )
        objective, modules = _objective(loss_mode, given, preset), module_settings(mtp)
        if modules is not None and (objective is None or MTP[0] not in objective.needs):
            raise ValueError(f"policy_loss.mtp: loss_mode={loss_mode!r} takes no modules; allowed is null")
        if objective is not None:
            preset_values = dict(_preset(objective, preset))
            preset_mode = preset_values.pop("loss_agg_mode", None)
            loss_agg_mode = loss_agg_mode or preset_mode
            _check_names(objective, given, modules)
            given = preset_values | given
            if modules is not None:
                given["mtp_gradient"] = modules.objective_gradient
            _check_values(objective, given, modules)
        self.preset = preset
        self.loss_agg_mode = loss_agg_mode
        self.check = check
        self.mtp = None if modules is None else modules.model_dump()
        self.parameters = given


def presets(name: str) -> dict[str, dict[str, Any]]:
    """Published settings of the objective ``name``, by preset."""
    return getattr(objectives, f"{name.upper()}_PRESETS", {})


def _objective(loss_mode: str, given: Mapping[str, Any], preset: str | None) -> Objective | None:
    """The objective that ``loss_mode`` will run; None for a loss that is not of rlvr."""
    if loss_mode not in POLICY_LOSS_REGISTRY:
        raise ValueError(f"policy_loss.loss_mode is unknown: {suggest(loss_mode, POLICY_LOSS_REGISTRY)}")
    loss = POLICY_LOSS_REGISTRY[loss_mode]
    if isinstance(loss, PolicyLoss):
        return loss.objective
    wrong = [*given, *(["preset"] if preset is not None else [])]
    if wrong:
        ours = f"rlvr.{loss_mode}"
        hint = f"; rlvr's loss of that name is {ours!r}" if ours in POLICY_LOSS_REGISTRY else ""
        raise ValueError(
            f"policy_loss.{wrong[0]}: loss_mode={loss_mode!r} is no loss of rlvr and does not read it{hint}"
        )
    return None


def _preset(objective: Objective, preset: str | None) -> dict[str, Any]:
    known = presets(objective.name)
    if preset is None:
        return {}
    if preset not in known:
        allowed = ", ".join(known) or "none"
        raise ValueError(f"policy_loss.preset={preset!r}: allowed for {objective.name} are {allowed}")
    return known[preset]


def _check_names(objective: Objective, given: Mapping[str, Any], modules: ModuleSettings | None) -> None:
    if (reason := refusal(objective, {} if modules is None else dict.fromkeys(MTP))) is not None:
        raise ValueError(f"policy_loss.{reason}")
    for name in given:
        if name == "mtp_gradient" and given[name] != modules.objective_gradient:
            raise ValueError(
                f"policy_loss.{name}={given[name]!r}: allowed is to set policy_loss.mtp.policy_gradient "
                f"alone, which is {modules.policy_gradient!r}"
            )
        if name in objective.tensors:
            raise ValueError(
                f"policy_loss.{name}: {objective.name} takes a tensor here, and all that verl hands a policy "
                f"loss is {GIVEN}"
            )
        allowed = [n for n in objective.parameters if n not in objective.tensors]
        if name not in allowed:
            near = suggest(name, [*allowed, "preset", "loss_agg_mode", "check"])
            raise ValueError(f"policy_loss: {objective.name} has no parameter {near}")


def _check_values(objective: Objective, given: Mapping[str, Any], modules: ModuleSettings | None) -> None:
    """Run the objective once on one token, so that it refuses a wrong value now."""
    one, more = torch.full((1, 1), -1.0), {}
    if modules is not None and modules.blocks > 1:
        more = dict.fromkeys(MTP, torch.zeros(1, 1, modules.blocks - 1))
    try:
        objective(one, one, one, torch.ones(1, 1), **given, **more)
    except (TypeError, ValueError) as error:
        raise ValueError(f"policy_loss of {objective.name}: {error}") from error


def _tuples(value: Any) -> Any:
    """A list of a configuration as the tuple that objectives take."""
    return tuple(value) if isinstance(value, list) else value
