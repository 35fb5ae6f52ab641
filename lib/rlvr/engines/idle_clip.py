"""Notice a clip or mask that never acts: then it is too wide for this ratio, and nothing limits the step.

GSPO with a token's clip of 0.2 is the usual case: its sequence ratios stay within 1e-3 of 1, so training
goes on without a trust region and no curve shows it. The adapters for verl and TRL say so; the local engine
writes the share of every step to its metrics and says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlvr.registry import Objective

PATIENCE = 50  # updates
MOVED = 1e-5  # mean |ratio - 1| from which a ratio differs by more than the rounding of two forward passes
_SHARES = ("clip_fraction", "masked_fraction")
_WIDTHS = ("clip_low", "clip_high", "delta", "band")


class IdleClip:
    """Says once that ``objective``'s clip or mask touched no token for ``patience`` updates in a row.

    Args:
        objective: what runs. One without a clip or mask (``cispo``, ``uncorrected``, ``exact_pg``), or with
            it switched off, is never named.
        parameters: those that differ from its defaults.
        patience: updates. Counted are those in which the policy had moved from the one that sampled; with
            one update per rollout every ratio is 1 and no clip can act, which is right.
    """

    def __init__(self, objective: Objective, parameters: Mapping[str, Any], patience: int = PATIENCE):
        self.name, self.patience = objective.name, patience
        settings = dict(objective.parameters) | dict(parameters)
        self.widths = {name: settings[name] for name in _widths(settings)}
        self.updates = 0.0
        self.largest = 0.0  # ratio since the clip last acted
        self.said = False

    def __call__(self, metrics: Mapping[str, float], updates: float = 1.0) -> str | None:
        """The warning, the first time it is due, else None.

        Args:
            metrics: the objective's, of one update or of a part of one.
            updates: how much of an update they are of.
        """
        share = next((metrics[name] for name in _SHARES if name in metrics), None)
        if self.said or not self.widths or share is None:
            return None
        if share > 0:
            self.updates = self.largest = 0.0
        elif metrics["ratio_correction_strength"] > MOVED:
            self.updates += updates
            self.largest = max(self.largest, metrics["ratio_max"])
        if self.updates < self.patience - 1e-6:  # parts of updates add up to whole ones, up to rounding
            return None
        self.said = True
        widths = ", ".join(f"{name}={value}" for name, value in self.widths.items())
        return (
            f"{self.name}: its clip or mask ({widths}) touched no token in {round(self.updates)} updates in "
            f"which the policy had moved (largest ratio {self.largest:.6g}). It may be too wide for this "
            "ratio: sequence ratios need about 3e-4, token ratios 0.2"
        )


def _widths(settings: Mapping[str, Any]) -> list[str]:
    """Names of the parameters that set how wide the clip or mask is; none if it is off."""
    region = {
        "tv": ["delta"],
        "kl": ["delta"],
        "clip": ["clip_low", "clip_high"],
        "band": ["band"],
        "none": [],
    }
    names = region.get(settings.get("region"), [name for name in _WIDTHS if name in settings])
    return [name for name in names if not _off(settings[name])]


def _off(value: Any) -> bool:
    """Infinitely wide: ``delta=inf``."""
    return isinstance(value, float) and math.isinf(value)
