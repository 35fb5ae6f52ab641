"""Bias of n-step estimates that bootstrap from a wrong value function, exact on small processes (MPO B.2).

With ``e = V_hat - V`` the error of the value function, ``P`` the chain under the policy and ``P_a`` that
after action a, expectations are sums:

    return      E[sum_{k<n} gamma^k r_{t+k} + gamma^n V_hat(s_{t+n}) | s, a] - Q(s, a)
                    = gamma^n (P_a P^{n-1} e)(s)
    advantage   the same minus V_hat(s), against A(s, a)
                    = gamma^n (P_a P^{n-1} e)(s) - e(s)

What B.2 says, and what is true of it. The *tail* is multiplied by gamma^n: true, and it is at most
``gamma^n max|e|``, which an error that is the same in every state attains; errors of different sign mix along
the chain, and then the tail falls faster. The expected *advantage* is off by O(gamma^n max|e|) "if errors at
different steps are not systematically correlated, or are zero on average": not so. In each state its bias
tends to ``-e(s)`` as n grows, and for the constant error it *rises*, from (1 - gamma) to 1 times the error;
averaged over states an error of mean 0 adds nothing at any n. What the stated rate does bound is the *policy
gradient*: ``-e(s)`` is the same for all actions of a state, a baseline, which adds no bias there.

At gamma = 1, which the paper's setting of one terminal reward suggests [choice: the project's default], the
factor is 1: the tail falls by the chance that the episode still runs, not by gamma^n. GAE with lambda = 1
does not bootstrap at all. And n is the length of a *return*; the K of MPO's ratio appears in none of these
formulas, so the argument is not about MPO's block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from rlvr.checks import check_integer, check_number, refuse

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Process:
    """A finite decision process under a fixed policy; S states, A actions.

    Attributes:
        policy: [S, A] probabilities.
        transition: [S, A, S]; what a row lacks to 1 is the chance that the episode ends, with value 0.
        reward: [S, A] expected reward.
        gamma: discount in [0, 1]; 1 only where every episode ends.
    """

    policy: Floats
    transition: Floats
    reward: Floats
    gamma: float

    def __post_init__(self) -> None:
        for name in ("policy", "transition", "reward"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        states, actions = self.policy.shape
        if self.transition.shape != (states, actions, states) or self.reward.shape != (states, actions):
            raise ValueError(
                f"transition {self.transition.shape}, reward {self.reward.shape}: allowed are [S, A, S] and "
                f"[S, A] with policy {self.policy.shape}"
            )
        check_number("gamma", self.gamma, lambda x: 0 <= x <= 1, "0 <= gamma <= 1")
        rows = self.transition.sum(-1)
        if (self.policy < 0).any() or not np.allclose(self.policy.sum(-1), 1):
            raise ValueError("policy: allowed are rows of probabilities that sum to 1")
        if (self.transition < 0).any() or (rows > 1 + 1e-12).any():
            raise ValueError("transition: allowed are rows of probabilities that sum to at most 1")
        if max(abs(np.linalg.eigvals(self.gamma * self.chain))) >= 1 - 1e-12:
            raise ValueError(f"gamma={self.gamma}: allowed is 1 only where every episode ends")

    @property
    def chain(self) -> Floats:
        """P [S, S]: the next state under the policy."""
        return np.einsum("sa,sax->sx", self.policy, self.transition)

    @property
    def value(self) -> Floats:
        """V [S], exact."""
        reward = (self.policy * self.reward).sum(-1)
        return np.linalg.solve(np.eye(len(reward)) - self.gamma * self.chain, reward)

    def action_value(self, value: Floats) -> Floats:
        """``r(s, a) + gamma E[value(s')]``, [S, A]: of V it is Q."""
        return self.reward + self.gamma * self.transition @ value

    def n_step(self, value: Floats, horizon: int) -> Floats:
        """Expected n-step return after each state and action, [S, A], bootstrapped from ``value`` [S]."""
        for _ in range(horizon - 1):
            value = (self.policy * self.action_value(value)).sum(-1)
        return self.action_value(value)


def bias_by_horizon(process: Process, error: ArrayLike, horizons: Sequence[int]) -> pd.DataFrame:
    """Bias of the n-step estimates from ``V + error``, one row per horizon n (the index ``n``).

    Args: ``error`` e [S]. Columns, maxima over states and actions: ``return_bias``, ``advantage_bias``, and
    ``gradient_bias``, that of ``pi(a|s) (A_hat(s, a) - E_a A_hat)``, a softmax policy's gradient by its
    logits in every state; B.2's ``tail_bound`` = gamma^n max|e|, ``stated_bound`` = (1 + gamma^n) max|e|.
    """
    value, error = process.value, np.asarray(error, dtype=np.float64)
    if error.shape != value.shape or not np.isfinite(error).all():
        raise refuse("error", error, f"{len(value)} finite numbers, one per state")
    exact = process.action_value(value)
    size, rows = np.abs(error).max(), {}
    for n in horizons:
        n = check_integer("horizons", n, 1, "integers >= 1")
        estimate = process.n_step(value + error, n)
        off = (estimate - (value + error)[:, None]) - (exact - value[:, None])
        centred = process.policy * (off - (process.policy * off).sum(-1, keepdims=True))
        rows[n] = {
            "return_bias": np.abs(estimate - exact).max(),
            "advantage_bias": np.abs(off).max(),
            "gradient_bias": np.abs(centred).max(),
            "tail_bound": process.gamma**n * size,
            "stated_bound": (1 + process.gamma**n) * size,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("n")


def decay_per_step(bias: pd.Series) -> float:
    """Factor per step between the first and the last horizon of a column; 0 if it ends at 0."""
    first, last = bias.iloc[0], bias.iloc[-1]
    if not first > 0:
        raise ValueError(f"bias starts at {first}: there is nothing to fall")
    return float((last / first) ** (1 / (bias.index[-1] - bias.index[0]))) if last > 0 else 0.0


def examples(gamma: float = 0.9, error: float = 1.0, stay: float = 0.8) -> dict[str, tuple[Process, Floats]]:
    """Three small cases by name, each (process, error of the value function).

    Two states, two actions: action 0 stays in its state with chance ``stay``, action 1 with ``stay - 0.2``,
    else both move to the other state; the policy takes them evenly, and state 1 pays 1. ``same error``: e =
    error in both states. ``opposite errors``: +error, -error. ``episode, gamma = 1``: no discount, action 0
    goes on with chance ``stay`` and action 1 with ``stay - 0.2``, else the episode ends; same error.
    """
    check_number("stay", stay, lambda x: 0.2 < x < 1, "0.2 < stay < 1")
    keep = np.array([stay, stay - 0.2])
    policy, reward = np.full((2, 2), 0.5), np.array([[0.0, 0.0], [1.0, 1.0]])
    moves = np.stack([np.stack([keep, 1 - keep], -1), np.stack([1 - keep, keep], -1)])  # [S, A, S]
    ends = keep[None, :, None] * np.array([[[0.0, 1.0]], [[1.0, 0.0]]]) * np.ones((2, 2, 1))
    cases = {
        "same error": (Process(policy, moves, reward, gamma), error * np.ones(2)),
        "opposite errors": (Process(policy, moves, reward, gamma), error * np.array([1.0, -1.0])),
        "episode, gamma = 1": (Process(policy, ends, reward, 1.0), error * np.ones(2)),
    }
    return cases


def decay_table(horizons: Sequence[int] = (1, 2, 4, 8, 16), gamma: float = 0.9) -> pd.DataFrame:
    """One row per example: gamma, the factor per step by which each bias falls (1 = it does not), and the
    advantage's bias at the first and the last horizon, in units of max|e|."""
    rows = {}
    for name, (process, error) in examples(gamma).items():
        frame, size = bias_by_horizon(process, error, horizons), np.abs(error).max()
        falls = {
            kind: decay_per_step(frame[f"{kind}_bias"]) if frame[f"{kind}_bias"].iloc[0] > 1e-12 else np.nan
            for kind in ("return", "gradient")
        }
        rows[name] = {
            "gamma": process.gamma,
            "return": falls["return"],
            "gradient": falls["gradient"],
            "advantage_first": frame["advantage_bias"].iloc[0] / size,
            "advantage_last": frame["advantage_bias"].iloc[-1] / size,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("example")
