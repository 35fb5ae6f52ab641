"""What the method behind an objective's name asks of its trainer: the aggregation and the advantages.

An objective is a loss per token. Which method it trains also depends on how tokens become one number and
on what the advantages are. Where the method says so, it holds for every recipe that names the objective;
where the papers leave it open, all arms share ``train.loss_agg_mode`` and ``train.advantage_std``.
"""

from __future__ import annotations

from typing import Any

from rlvr import objectives
from rlvr.config import Recipe, Train
from rlvr.registry import Objective, suggest

#: Aggregation is shared by all arms: the NFPO paper states none for itself and its baselines (a listed
#: decision), and GRPO is run with either mean.
SHARED_AGGREGATION = frozenset({"grpo", "dppo_tv", "dppo_kl", "icepop", "nfpo", "uncorrected"})

#: Settings of ``train`` that a recipe may name: what belongs to a method, and
OWN = ("loss_agg_mode", "advantage_std", "recompute")
#: what arms differ in that are compared at equal compute.
SIZES = ("steps", "prompts_per_step", "group_size", "minibatches")
SIZES += ("lr", "schedule", "warmup_ratio", "min_lr_ratio")


def method_settings(objective: Objective) -> dict[str, Any]:
    """Settings of ``train`` that the method itself decides."""
    settings = {}
    if objective.name not in SHARED_AGGREGATION:
        settings["loss_agg_mode"] = objective.loss_agg_mode
    if objective.advantages == "centred":
        settings["advantage_std"] = "none"
    return settings


def resolve(train: Train, recipe: Recipe) -> tuple[Train, dict[str, Any]]:
    """(the shared settings as this recipe trains with them, the objective's own parameters).

    A recipe may name those of :data:`OWN` and :data:`SIZES` itself; that wins over the method's, and the
    method's over ``train``. The L of ``seq-mean-token-sum-norm`` is always ``max_new_tokens``: a constant,
    not the width of the minibatch.

    Raises:
        ValueError: an objective that the local engine cannot train, or a setting that is not allowed.
    """
    objective, parameters = objectives.get(recipe.objective), recipe.parameters
    blocks = "mtp_log_prob" in objective.needs
    given = recipe.counterfactual
    masks = given is not None and given.variant == "mask"
    if given is not None and masks != ("token_mask" in objective.needs):
        raise ValueError(
            f"counterfactual.variant={given.variant!r} with objective={objective.name!r}: allowed is the "
            "variant 'mask' with an objective that needs a token mask, and no other with it"
        )
    if objective.needs and not masks and not (blocks and recipe.mtp):
        how = "makes with a block `mtp`" if blocks else "does not make"
        raise ValueError(
            f"objective={objective.name!r} needs {', '.join(objective.needs)}, which the local engine {how}; "
            "without them it would be another objective"
        )
    if objective.advantages == "critic" and not recipe.critic:
        raise ValueError(
            f"objective={objective.name!r} needs a critic's advantages, which the local engine makes with a "
            "block `critic`; with group relative ones it is 'grpo' (clip_high sets its clip)"
        )
    for name, fits in (("mtp", blocks), ("critic", objective.advantages == "critic")):
        if getattr(recipe, name) and not fits:
            raise ValueError(f"objective={objective.name!r} takes no block {name!r}; allowed is none")
    if recipe.mtp:
        for name in (*objective.needs, "mtp_gradient"):
            if name in parameters:
                raise ValueError(f"{name} is not a parameter of a recipe: allowed is mtp.policy_gradient")
        parameters["mtp_gradient"] = "stop" if recipe.mtp.policy_gradient == "stop" else "full"
    settings = method_settings(objective)
    settings |= {name: parameters.pop(name) for name in (*OWN, *SIZES) if name in parameters}
    if settings.get("recompute") == "trace" and "rollout_log_prob" not in objective.tensors:
        raise ValueError(f"recompute='trace': {objective.name} has no trace; allowed are none and all")
    for name in parameters:
        if name not in objective.parameters:
            allowed = (*objective.parameters, *OWN, *SIZES)
            raise ValueError(f"{objective.name} has no parameter {suggest(name, allowed)}")
    if all(getattr(train, name) == value for name, value in settings.items()):
        return train, parameters
    return Train.model_validate(train.model_dump() | settings), parameters
