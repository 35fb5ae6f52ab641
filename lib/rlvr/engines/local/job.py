"""What one training run of the local engine is: everything that decides its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlvr.config import METHODS, Problems, Scale, Train
from rlvr.config_corrections import Counterfactual, SelfCorrection
from rlvr.config_mtp import Critic, Mtp, Sampling
from rlvr.engines.local.methods import resolve


@dataclass(frozen=True)
class Job:
    """Everything that decides the numbers of one run.

    Attributes:
        arm: name of the recipe, e.g. ``nfpo``.
        objective: name in :mod:`rlvr.objectives`.
        parameters: the objective's own parameters.
        lag: rollouts come from the policy of this many steps ago (0: of this step).
        seed: of problems and sampling. Arms with the same seed see the same problems and draw the same
            uniforms, so their differences are paired.
        mtp, critic, sampling, counterfactual, self_correction: what the method has beside its loss, see
            :class:`rlvr.config.Recipe`; None: nothing of the kind.
    """

    arm: str
    objective: str
    parameters: dict[str, Any]
    lag: int
    seed: int
    train: Train
    problems: Problems
    # how records compute the trace, also in arms that do not use it (the paper's small setting)
    trace: dict[str, Any] = field(default_factory=lambda: {"horizon": 4})
    mtp: Mtp | None = None
    critic: Critic | None = None
    sampling: Sampling | None = None
    counterfactual: Counterfactual | None = None
    self_correction: SelfCorrection | None = None

    @property
    def name(self) -> str:
        return f"{self.arm}-lag{self.lag}-seed{self.seed}"

    def to_dict(self) -> dict[str, Any]:
        methods = {k: getattr(self, k) for k in METHODS}
        return {
            **{k: getattr(self, k) for k in ("arm", "objective", "parameters", "lag", "seed", "trace")},
            "train": self.train.model_dump(mode="json"),
            "problems": self.problems.model_dump(mode="json"),
            **{k: v.model_dump(mode="json") for k, v in methods.items() if v is not None},
        }


def jobs_of(scale: Scale, arm: str, seed: int) -> list[Job]:
    """The runs of one arm and seed: one per lag."""
    if arm not in scale.recipes:
        raise ValueError(f"arm={arm!r} has no recipe; recipes are {sorted(scale.recipes)}")
    recipe = scale.recipes[arm]
    settings, parameters = resolve(scale.train, recipe)
    trace = {"horizon": 4}
    trace |= {k: v for k, v in parameters.items() if k in ("horizon", "trace_clip", "ratio_clip")}
    methods = {k: getattr(recipe, k) for k in METHODS}
    return [
        Job(arm, recipe.objective, parameters, lag, seed, settings, scale.problems, trace, **methods)
        for lag in scale.lags_of(arm)
    ]
