"""Groups of responses whose joint distribution of verdicts and shaping is a finite list: exact variances.

For the proposition of :mod:`rlvr.analysis.advantage_variance`, without sampling error and without its
formula: :meth:`EnumeratedGroups.variance` sums over every group that can occur.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from rlvr.analysis.advantage_variance import Convention, reward_scale, weight_limit
from rlvr.checks import check_integer, check_number
from rlvr.evaluation.resampling import Floats

Chances = Callable[[int], dict[float, float]]


@dataclass(frozen=True)
class EnumeratedGroups:
    """Every outcome of a group of G responses.

    Args:
        accuracy: [n, G] verdicts r in {0, 1}. phi: [n, G]. prob: [n], sums to 1.

    Expectations over positions i, and pairs i != j, are averaged; where the distribution is exchangeable
    all of them are alike.
    """

    accuracy: Floats
    phi: Floats
    prob: Floats

    def __post_init__(self) -> None:
        if self.accuracy.ndim != 2 or self.accuracy.shape != self.phi.shape:
            raise ValueError(
                f"accuracy {self.accuracy.shape}, phi {self.phi.shape}: allowed is one shape [n, G]"
            )
        if self.prob.shape != self.accuracy.shape[:1] or (self.prob < 0).any():
            raise ValueError(f"prob {self.prob.shape}: allowed are chances >= 0, [{len(self.accuracy)}]")
        if abs(self.prob.sum() - 1) > 1e-9:
            raise ValueError(f"prob sums to {self.prob.sum()}: allowed is 1")
        if not np.isin(self.accuracy, (0, 1)).all() or not np.isfinite(self.phi).all():
            raise ValueError("accuracy holds other values than 0 and 1, or phi is not finite")

    @property
    def group_size(self) -> int:
        return self.accuracy.shape[1]

    def variance(self, shaping_weight: float, convention: Convention = "signed") -> float:
        """``Var(A_i)``, straight from its definition."""
        reward = self._reward(convention) + shaping_weight * self.phi
        advantage = reward - reward.mean(1, keepdims=True)
        mean = self.prob @ advantage
        return float((self.prob @ (advantage - mean) ** 2).mean())

    def covariances(self, convention: Convention = "signed") -> dict[str, float]:
        """``C_in, C_out, C, V`` and the bound ``2C/V``."""
        y, f = (x - self.prob @ x for x in (self._reward(convention), self.phi))
        cross, own = (np.einsum("n,ni,nj->ij", self.prob, a, f) for a in (y, f))
        c_in, variance = (float(np.trace(m)) / self.group_size for m in (cross, own))
        pairs = max(1, self.group_size * (self.group_size - 1))
        c_out, covariance = (float(m.sum() - np.trace(m)) / pairs for m in (cross, own))
        c, v = c_out - c_in, variance - covariance
        return {"C_in": c_in, "C_out": c_out, "C": c, "V": v, "2C/V": weight_limit(c, v)}

    def simulate(self, groups: int, seed: int) -> tuple[Floats, Floats]:
        """(accuracy, phi) of groups drawn independently, [groups, G] each."""
        groups = check_integer("groups", groups, 1, "whole numbers >= 1")
        rows = np.random.default_rng(seed).choice(len(self.prob), size=groups, p=self.prob)
        return self.accuracy[rows], self.phi[rows]

    def _reward(self, convention: Convention) -> Floats:
        return reward_scale(convention) * self.accuracy


def enumerate_groups(group_size: int, accuracy: float, chances: Chances) -> EnumeratedGroups:
    """Responses right independently with chance ``accuracy``; the shaping of a wrong one drawn on its own.

    ``chances(k)`` is the distribution ``{phi: chance}`` of a wrong response in a group of k right ones, so
    that what references there are may matter (C_out); constant in k it is the local case of Lemma E.3.
    """
    group_size = check_integer("group_size", group_size, 1, "whole numbers >= 1")
    p = check_number("accuracy", accuracy, lambda x: 0 <= x <= 1, "0 <= accuracy <= 1")
    outcomes: list[tuple[tuple[int, ...], tuple[float, ...], float]] = []
    for right in product((0, 1), repeat=group_size):
        k = sum(right)
        base = p**k * (1 - p) ** (group_size - k)
        options = [((0.0, 1.0),) if r else tuple(chances(k).items()) for r in right]
        for drawn in product(*options):
            chance = base * float(np.prod([c for _, c in drawn]))
            outcomes.append((right, tuple(value for value, _ in drawn), chance))
    accuracy_, phi, prob = (np.array(column, dtype=np.float64) for column in zip(*outcomes, strict=True))
    return EnumeratedGroups(accuracy_, phi, prob)


def recoverable(without: float, with_right: float | None = None, phi: float = 0.5) -> Chances:
    """A wrong response is recoverable, and has ``phi``, with chance ``without``; with a right response in the
    group to compare with, ``with_right`` (None: the same)."""
    with_right = without if with_right is None else with_right
    for name, chance in (("without", without), ("with_right", with_right)):
        check_number(name, chance, lambda x: 0 <= x <= 1, f"0 <= {name} <= 1")

    def chances(right: int) -> dict[float, float]:
        chance = with_right if right else without
        return {float(phi): chance, 0.0: 1 - chance} if phi else {0.0: 1.0}

    return chances
