"""MTP modules of a verl job: ``actor.policy_loss.mtp`` of verl, section ``mtp`` of an experiment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from rlvr.config_base import Rate, Section

NAME = "actor_rollout_ref.actor.policy_loss.mtp"


class ModuleSettings(Section):
    """Modules beside the actor; :mod:`rlvr.mtp` says what ``blocks``, ``variant`` and ``hidden`` mean.

    The gradient of the policy's loss never goes through the modules into the policy: what the text trains
    "only the MTP module" by, their cross entropy, would follow it there in one backward pass.
    """

    blocks: Annotated[int, Field(gt=0)]  # K, the tokens in a block; 1 has no modules
    variant: Literal["parallel", "chained"] = "parallel"
    hidden: Literal["last", "trunk"] = "last"
    #: Where the policy's gradient through the modules' log ratios goes: nowhere, or into the modules.
    policy_gradient: Literal["stop", "modules"] = "stop"
    #: What else the modules learn by along with the policy: their cross entropy on its responses, or nothing.
    train: Literal["cross_entropy", "none"] = "cross_entropy"
    lr: Rate  # constant; the betas and the clip of the gradient's norm are the actor's, without weight decay
    start: str | None = None  # folder with the warmed-up modules, mtp.safetensors; None: copies of the layer

    @field_validator("start")
    @classmethod
    def _start(cls, start: str | None) -> str | None:
        if start is not None and not start.strip():
            raise ValueError("start='' must be a folder with mtp.safetensors, or null")
        return start

    @property
    def objective_gradient(self) -> Literal["stop", "full"]:
        """``mtp_gradient`` of the objective."""
        return "stop" if self.policy_gradient == "stop" else "full"

    @property
    def learns(self) -> bool:
        return self.train != "none" or self.policy_gradient != "stop"


def module_settings(values: Any) -> ModuleSettings | None:
    """The settings of a mapping, or None for None.

    Raises:
        ValueError: one line per fault, with the setting, its value and what is allowed.
    """
    if values is None or isinstance(values, ModuleSettings):
        return values
    try:
        return ModuleSettings.model_validate(dict(values))
    except ValidationError as error:
        lines = []
        for fault in error.errors():
            where = ".".join([NAME, *map(str, fault["loc"])])
            lines.append(f"{where}={fault['input']!r}: {fault['msg']}")
        raise ValueError("; ".join(lines)) from None
    except (TypeError, ValueError):
        raise ValueError(f"{NAME}={values!r}: allowed is a mapping with blocks and lr, or null") from None
