"""What an objective is called in verl, and what else a verl job is told so that it trains the method.

A loss alone is not the method: its aggregation, the L of a constant divisor and what the advantages are
belong to it too, and verl has defaults of its own for all three.
"""

from __future__ import annotations

from rlvr.registry import Objective

#: Names of verl's own losses, which keep them there (verl 0.9.1).
VERL_LOSSES = frozenset(
    "vanilla dppo_tv dppo_kl gspo sapo gpg clip_cov kl_cov geo_mean dro cispo bypass_mode".split()
)
#: Methods whose ratio is against the policy that sampled, not against its log-probs as the trainer sees them.
ROLLOUT_ANCHORED = frozenset({"nfpo", "dppo_tv", "dppo_kl", "icepop"})


def method_blocks(objective: Objective) -> list[str]:
    """Blocks of a recipe without which the local engine does not train the method."""
    mtp = ["mtp"] if "mtp_log_prob" in objective.needs else []
    return mtp + (["critic"] if objective.advantages == "critic" else [])


#: Overrides of a verl job whose actor has MTP modules, with our trainer; K and the rate as an example.
MODULES = [
    "+actor_rollout_ref.actor.policy_loss.mtp={blocks:5,lr:1e-5}",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "trainer.v1.trainer_mode=rlvr_sync",
    "+trainer.v1.rlvr_sync={}",
]
#: Of one whose trainer makes a mask of tokens: longer prompts hold the responses that are corrected.
MASKS = [
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.prompt_length=12288",
    "trainer.v1.trainer_mode=rlvr_ibpo",
    "+trainer.v1.rlvr_ibpo={counterfactual:{variant:mask}}",
]


def verl_name(objective: Objective) -> str:
    """The ``loss_mode`` that runs this objective, not verl's own loss of that name."""
    return f"rlvr.{objective.name}" if objective.name in VERL_LOSSES else objective.name


def verl_overrides(objective: Objective) -> list[str]:
    """Overrides of a verl job: the method's advantages, aggregation and anchor, and its first parameter as
    an example of how to give one; what hands over tensors that the method needs."""
    setting, kind = "actor_rollout_ref.actor", objective.advantages
    overrides = [f"algorithm.adv_estimator={'gae' if kind == 'critic' else 'grpo'}"]
    if kind == "centred" or objective.name == "nfpo":
        overrides.append("algorithm.norm_adv_by_std_in_grpo=False")
    if objective.name in ROLLOUT_ANCHORED:
        overrides.append("algorithm.rollout_correction.bypass_mode=True")
    if objective.name == "dapo":
        overrides += ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc"]
    overrides += [
        f"{setting}.policy_loss.loss_mode={verl_name(objective)}",
        f"{setting}.loss_agg_mode={objective.loss_agg_mode}",
    ]
    if objective.loss_agg_mode == "seq-mean-token-sum-norm":
        overrides.append(f"{setting}.loss_scale_factor=${{data.max_response_length}}")
    if own := [name for name in objective.parameters if name not in objective.tensors]:
        name, value = own[0], objective.parameters[own[0]]
        if isinstance(value, tuple):
            value = f"[{','.join(map(repr, value))}]"  # a list for Hydra
        overrides += [
            f"{setting}.policy_loss._target_=rlvr.engines.verl.PolicyLossConfig",
            f"+{setting}.policy_loss.{name}={value}",
        ]
    if "mtp" in method_blocks(objective):
        overrides += MODULES
    if "token_mask" in objective.needs:
        overrides += MASKS
    return overrides
