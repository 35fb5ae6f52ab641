"""Settings of what a method has beside its loss: MTP modules (MPO), a critic (PPO, MPO), DAPO's sampling."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlvr.config_base import Count, Positive, Rate, Section

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]


class MtpWarmUp(Section):
    """Cross entropy of the MTP modules on solutions, before the training of the policy."""

    seed: int
    steps: Positive
    lr: Rate
    betas: tuple[float, float]
    batch_size: Positive
    check_every: Positive


class Mtp(Section):
    """The MTP modules of a recipe; :mod:`rlvr.mtp` says what ``variant`` and ``hidden`` mean."""

    blocks: Positive  # K, the tokens in a block; 1 has no modules
    variant: Literal["parallel", "chained"] = "parallel"
    hidden: Literal["last", "trunk"] = "last"
    #: Where the policy gradient through the modules' log ratios goes: nowhere (they act as values), into the
    #: modules, or through them into the policy too.
    policy_gradient: Literal["stop", "modules", "full"] = "stop"
    #: What else the modules learn by along with the policy: their cross entropy on its responses, or nothing.
    train: Literal["cross_entropy", "none"] = "cross_entropy"
    #: The ratio of the loss: that of the block, or, as a control, of the token alone with its log ratio
    #: scaled by b_1, as if every module's log ratio were 0.
    ratio: Literal["block", "scaled"] = "block"
    lr: Rate  # of the modules, along with the policy
    warmup: MtpWarmUp

    @model_validator(mode="after")
    def _control_is_of_values(self) -> Mtp:
        if self.ratio == "scaled" and self.policy_gradient != "stop":
            raise ValueError(
                f"ratio='scaled' with policy_gradient={self.policy_gradient!r}: allowed is 'stop'"
            )
        return self


class Critic(Section):
    """The critic of a recipe; :mod:`rlvr.engines.local.critic`."""

    #: A network of its own that starts as a copy of the policy, or a head on the policy's hidden states.
    network: Literal["separate", "shared"] = "separate"
    lr: Rate
    shared_weight: Weight = 0.5  # of the value loss in the policy's gradient, with a shared network
    value_clip: Rate | None = 0.5  # how far a value may move from the step's start; None: no clip
    gamma: Share = 1.0
    lam: Share = 1.0
    whiten: bool = True  # advantages, over the tokens of a step
    warmup_steps: Count = 0  # rollouts of the untrained policy that train the critic alone, before step 0
    blocks: Positive = 1  # value heads; more than 1: multi-token value heads
    head_weight: Annotated[float, Field(ge=0, lt=1)] = 0.2  # total weight of the heads beside the first
    head_decay: Annotated[float, Field(gt=0, le=1)] = 0.8


class Sampling(Section):
    """What DAPO does to rollouts and rewards."""

    dynamic: bool = False  # only groups with a right and a wrong answer, sampled until the batch is full
    max_batches: Positive | None = 10  # generated for a step, at most; None: no limit
    overlong_buffer: Count = 0  # tokens below max_new_tokens where the length penalty starts; 0: none
    overlong_factor: Weight = 1.0

    @model_validator(mode="after")
    def _limit_is_of_use(self) -> Sampling:
        if self.overlong_buffer and not self.overlong_factor:
            raise ValueError(f"overlong_buffer={self.overlong_buffer} with overlong_factor=0: no penalty")
        return self
