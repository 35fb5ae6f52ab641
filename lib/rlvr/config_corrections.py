"""Settings of corrections: IBPO's, the SCoRe-style baseline's, and those of a warm-up that teaches them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlvr.config_base import Count, Positive, Section

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]


class WarmUpCorrections(Section):
    """Correction examples among the solutions of the warm-up (:mod:`rlvr.counterfactual.examples`)."""

    share: Annotated[float, Field(ge=0, lt=1)]  # of a batch
    references: tuple[Count, ...] = (1,)  # references of an example, each number equally often; 0: none
    reference_right: Share = 0.5  # chance that a reference is right; else it is wrong in another way
    response_right: Share = 0.0  # chance that the response itself is right, and to be kept as it is
    #: How an example is written, in a task that has several ways: ``shared``, all of it in the problem's own;
    #: ``own``, the response and its correction by one hand, the references by others. Where two hands agree,
    #: a right reference still is the correction.
    forms: Literal["shared", "own"] = "shared"
    template: str = "compare"

    @model_validator(mode="after")
    def _references(self) -> WarmUpCorrections:
        if not self.references:
            raise ValueError("references=[]: allowed is at least one number, 0 or more")
        return self


class Counterfactual(Section):
    """IBPO on top of a sequence-level objective. Defaults as in the paper where it has one.

    Sources: ``shaping_weight`` lambda, ``scale`` rho and ``alpha`` [text: IBPO 4, G.2, G.3]; ``corrections``
    G_c, ``reduce`` and ``rewrite_penalty`` are not stated [choice].
    """

    references: Count = 1  # K - 1; 0 is the ablation K = 1, correction without comparison
    corrections: Positive = 4  # G_c, corrected outputs of each correction prompt
    targets: Positive | None = None  # wrong responses of a group that are corrected, at most; None: all
    #: Where no response of a group is right, its responses are compared with other wrong ones [text: G.1];
    #: False: they are not corrected.
    wrong_references: bool = True
    shaping_weight: Weight = 0.6  # lambda; 0: no shaping
    scale: Share = 0.5  # rho, of the indicator
    variant: Literal["indicator", "ratio", "mask"] = "indicator"
    reduce: Literal["best", "mean", "first"] = "best"  # how the corrections of a response make one phi
    alpha: Share | Literal["adaptive"] | None = 0.6  # rewrite test; None: no test
    rewrite_penalty: Weight = 0.5  # in the reward of the corrections themselves
    joint: bool = True  # corrections are trained on, in the same step and with the same loss
    operator: str = "compare_and_correct"  # a name in rlvr.counterfactual.operators
    insertions: Literal["next", "both", "none"] = "next"  # what an inserted token marks (variant mask)
    template: str = "compare"

    @model_validator(mode="after")
    def _can_be_trained(self) -> Counterfactual:
        if self.joint and self.corrections < 2:
            raise ValueError(
                f"corrections={self.corrections}: allowed with joint=true are 2 and more: a group of one has "
                "no advantage"
            )
        return self


class SelfCorrection(Section):
    """Two turns, trained in two stages [public: SCoRe, arXiv 2409.12917].

    Stage 1 trains the second turn and holds the first still by a KL penalty; stage 2 trains both turns'
    rewards and ``bonus * (r2 - r1)``. All sizes are a [choice]: SCoRe's are for other rewards and models.
    """

    stage1_share: Annotated[float, Field(gt=0, lt=1)] = 0.5  # of the steps
    first_turn_kl: Weight = 0.1  # stage 1: weight of KL(pi || base) on the first turn
    kl: Weight = 0.01  # the same on whatever else is trained: the second turn, and in stage 2 both
    bonus: Weight = 2.0  # alpha; above 1 in SCoRe
    template: str = "compare"


class Correcting(Section):
    """How IBPO's runs are analysed beside their accuracy."""

    reward: Annotated[float, Field(gt=0, lt=1)] = 0.75  # training reward of Table 2
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1  # of a curve: a mean over so much of the budget
    batches: Annotated[int, Field(ge=3)]  # rollouts per policy, for the gradients of both tasks
    weights: tuple[Weight, ...]  # lambda, of the figure of the variance
    groups: Positive  # simulated ones in it
    seed: Count
