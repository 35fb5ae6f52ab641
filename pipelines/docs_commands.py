"""The exact commands on the page of an objective: the call, the local engine, verl, TRL.

Each trains the method of that name. A loss alone does not: its aggregation, the L of a constant divisor and
what the advantages are belong to the method too, and trainers have defaults of their own for all three.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterable

from pipelines.docstrings import fenced, literal
from rlvr import objectives
from rlvr.config import Scale
from rlvr.engines.local.methods import method_settings
from rlvr.engines.naming import ROLLOUT_ANCHORED, VERL_LOSSES, method_blocks, verl_overrides
from rlvr.registry import Objective

#: What a method has beside its loss, on the local engine, in verl and in TRL.
BESIDE_THE_LOSS = {
    "dapo": (
        "Dynamic sampling and overlong shaping are a block `sampling` of the recipe (`rlvr.config_mtp`): "
        "without it groups of equal rewards stay in the batch with advantage 0, and this is DAPO's loss "
        "without the rest of DAPO.",
        "The filter is DAPO's dynamic sampling, on the accuracy that the reward function returns as `acc`; "
        "overlong shaping is verl's reward manager `dapo`.",
        "TRL has neither dynamic sampling nor overlong shaping: this is DAPO's loss without the rest of "
        "DAPO.",
    ),
}


def call(objective: Objective) -> str:
    """Python source of a call with every default spelled out, and the tensors that it needs."""
    exported = getattr(objectives, objective.name, None) is objective
    target = objective.name if exported else f'get("{objective.name}")'
    lines = []
    for name, parameter in inspect.signature(objective).parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            lines.append(f"    {name},")
        else:
            lines.append(f"    {name}={name if name in objective.needs else literal(parameter.default)},")
    return "\n".join(
        ["from rlvr import objectives", "", f"loss, metrics = objectives.{target}(", *lines, ")"]
    )


def local(objective: Objective, scale: Scale) -> str:
    """How to train with it on the local engine at the default scale, as its method asks for."""
    blocks = method_blocks(objective)
    if blocks:
        text = (
            f"Local experiment: not an arm of the default scale. The local engine trains a recipe with "
            f"{'a block' if len(blocks) == 1 else 'blocks'} {_names(blocks)} (`rlvr.config_mtp`) and refuses "
            "the name without."
        )
        if blocks == ["critic"]:
            text += " With advantages relative to the group the same loss is `grpo`, whose `clip_high` sets "
            text += "the clip."
        return text
    if objective.needs:
        return ""
    recipes = [arm for arm, recipe in scale.recipes.items() if recipe.objective == objective.name]
    arms = [arm for arm in recipes if arm in scale.arms]
    if arms:
        text = f"Local experiment, with the recipe in `params.yaml` and seeds {_names(scale.seeds)}"
        commands = [f"dvc repro train@{arm}\ndvc repro evaluate@{arm}" for arm in arms]
    else:
        arm = recipes[0] if recipes else objective.name
        recipe = "" if recipes else f"`{arm}: {{objective: {objective.name}}}` to `recipes` and "
        text = f"Local experiment: not an arm of the default scale. Add {recipe}`{arm}` to `arms` in "
        text += "`params.yaml`, then"
        commands = [f"dvc repro train@{arm}"]
    settings = local_settings(objective, scale)
    return f"{text}:\n\n" + fenced("\n".join(commands), "sh") + f"\n\n{settings}"


def local_settings(objective: Objective, scale: Scale) -> str:
    """What the local engine does around the loss, and who decided it."""
    own = method_settings(objective)
    train = scale.train.model_copy(update=own)
    if "loss_agg_mode" in own:
        who = "the method's own, whatever `train.loss_agg_mode` says"
        if train.loss_agg_mode == "seq-mean-token-sum-norm":
            who += f", with L = `train.max_new_tokens` = {train.max_new_tokens}"
    else:
        who = "like every arm of the scale (`train.loss_agg_mode`)"
        if train.loss_agg_mode != objective.loss_agg_mode:
            who += f", not the `{objective.loss_agg_mode}` of the call above, which a `loss_agg_mode` in the "
            who += "recipe would set"
    std = f"divided by the {train.advantage_std} std of the group (`train.advantage_std`)"
    if "advantage_std" in own:
        std = "not divided by its std, the method's own"
    text = f"It aggregates by `{train.loss_agg_mode}`, {who}; "
    text += f"advantages are the reward minus the group's mean, {std}."
    return " ".join(filter(None, [text, BESIDE_THE_LOSS.get(objective.name, ("", ""))[0]]))


def verl_remarks(objective: Objective) -> list[str]:
    """What to know of the overrides, beside what they say."""
    remarks = []
    if objective.name in ROLLOUT_ANCHORED:
        remarks.append(
            "`bypass_mode`: the ratio is against the rollout's own log-probs, as the method has it; verl "
            "computes them again otherwise."
        )
    if objective.name == "nfpo":
        remarks.append(
            "That advantages are not divided by the std is the authors' release "
            "([more](../verl.md#nfpo-as-the-paper-runs-it))."
        )
    if objective.loss_agg_mode == "seq-mean-token-sum-norm":
        remarks.append(
            "`loss_scale_factor` is L, here the longest response allowed. Without it verl divides by the "
            "longest response of each micro-batch, so that the loss depends on how the batch is cut."
        )
    if beside := BESIDE_THE_LOSS.get(objective.name):
        remarks.append(beside[1])
    return remarks


def trainers(objective: Objective) -> str:
    """verl and TRL, with the first parameter as an example of how to give one."""
    if objective.needs == ("token_mask",):
        return "\n\n".join(
            [
                "The local engine makes `token_mask` in a recipe with a block `counterfactual` of the "
                "variant `mask`, and [verl](../verl.md#ibpo-a-second-generation-pass) with the trainer "
                "`rlvr_ibpo`; without one both refuse the name:",
                fenced("\n".join(map(shlex.quote, verl_overrides(objective))), "sh"),
                "[TRL](../trl.md): none. It has nothing to give for `token_mask`.",
            ]
        )
    if lacking := objective.needs:
        if "mtp" in method_blocks(objective):
            return "\n\n".join(
                [
                    "[verl](../verl.md#mtp-modules), with [our trainer](../cluster.md), whose actor has the "
                    "modules; without them its name is refused:",
                    fenced("\n".join(map(shlex.quote, verl_overrides(objective))), "sh"),
                    *verl_remarks(objective),
                    f"[TRL](../trl.md): none. It has nothing to give for {_names(lacking)}, without which "
                    "this is another objective.",
                ]
            )
        return (
            f"The local engine, [verl](../verl.md) and [TRL](../trl.md) have nothing to give for "
            f"{_names(lacking)}, without which this is another objective: only the call above runs it, and "
            "verl refuses its name."
        )
    taken = objective.name in VERL_LOSSES
    own = [name for name in objective.parameters if name not in objective.tensors]
    title = (
        f"`{objective.name}` alone is verl's own loss" if taken else f"`rlvr.{objective.name}` names the same"
    )
    if own:
        title += "; the last two lines set a parameter"
    parts = [
        f"[verl](../verl.md) ({title}):",
        fenced("\n".join(map(shlex.quote, verl_overrides(objective))), "sh"),
        " ".join(verl_remarks(objective)),
        *trl(objective, own),
    ]
    if objective.tensors:
        parts.append(f"None of the three gives {_names(objective.tensors)}.")
    return "\n\n".join(filter(None, parts))


def trl(objective: Objective, own: list[str]) -> list[str]:
    """The call of TRL's trainer, and what its ``args`` must hold for this method."""
    kind = objective.advantages
    if kind == "critic":
        return [
            "[TRL](../trl.md): none. `GRPOTrainer` has no critic; with its advantages relative to the group "
            "the same loss is `grpo`, whose `clip_high` sets the clip."
        ]
    arguments = f'model, reward, args, data, objective="{objective.name}"'
    if own:
        arguments += f', objective_parameters={{"{own[0]}": {literal(objective.parameters[own[0]])}}}'
    code = ["from rlvr.engines.trl import ObjectiveTrainer", ""]
    if kind == "centred":
        code = ["from trl import GRPOConfig", "", *code]
        code += [
            'args = GRPOConfig(..., scale_rewards="none")  # the group\'s mean off, not divided by its std'
        ]
    code.append(f"trainer = ObjectiveTrainer(\n    {arguments}\n)")
    parts = ["[TRL](../trl.md), in place of `GRPOTrainer`:", fenced("\n".join(code), "python")]
    if objective.loss_agg_mode == "seq-mean-token-sum-norm":
        parts.append("L is `max_completion_length` unless `objective_parameters` has a `loss_scale_factor`.")
    if beside := BESIDE_THE_LOSS.get(objective.name):
        parts.append(beside[2])
    return parts


def _names(values: Iterable[str | int]) -> str:
    *most, last = [f"`{value}`" if isinstance(value, str) else str(value) for value in values]
    return f"{', '.join(most)} and {last}" if most else last
