"""Settings of the analyses, by the notebook that reads them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from rlvr.config_base import Count, Positive, Section


class Theory(Section):
    pattern_length: Annotated[int, Field(ge=1, le=7)]
    random_mdps: Positive
    seed: int


class Dynamics(Section):
    horizons: tuple[Positive, ...]
    segment: Positive  # tokens in the ratio-trace figure


class Surrogate(Section):
    """Bias and variance of L^(N) measured on the trained language model."""

    horizons: tuple[Positive, ...]
    prompts: Positive
    recipe: str
    seed: int


class Exactness(Section):
    """Random policies whose every response is listed: bias and variance of each objective's gradient."""

    policies: Annotated[int, Field(ge=2)]  # of each kind
    vocabulary: Annotated[int, Field(ge=2, le=4)]
    length: Annotated[int, Field(ge=5, le=6)]  # longer than NFPO's N = 4
    distances: tuple[float, ...]  # largest total variation between rollout and current policy over the states
    seed: Count

    @model_validator(mode="after")
    def _distances_rise(self) -> Exactness:
        d = self.distances
        if len(d) < 3 or d[0] != 0 or list(d) != sorted(set(d)) or d[-1] >= 0.5:
            raise ValueError(f"distances={list(d)} must be 0 and at least two more, rising, below 0.5")
        return self


class Efficiency(Section):
    """Time and memory of MPO's steps by block length K, and of its baselines."""

    blocks: tuple[Positive, ...]
    repeats: Positive  # measured steps per seed


class Bias(Section):
    """Bias of n-step estimates on small processes (MPO, B.2)."""

    horizons: tuple[Positive, ...]
    gamma: Annotated[float, Field(gt=0, lt=1)]
