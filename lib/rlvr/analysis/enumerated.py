"""The surrogate L^(N) without sampling error: sum over every trajectory of a process small enough to list.

An :class:`Enumerated` process is a list of all trajectories with their probability under the rollout policy
``mu``, their per-token log ratios ``log pi - log mu`` and their reward. Expectations and variances are then
sums, so bias and variance of the N-step surrogate are exact. In symbols, for a trajectory ``y`` with ratios
``rho_t`` and reward ``R`` (NFPO section 3 and Lemma 1):

    X^(N)(y) = R(y) sum_t (rho_t - 1) prod_{j=t+1}^{min(t+N-1, T)} rho_j      one sample of the estimate
    L^(N)    = E_mu X^(N),   Var = Var_mu X^(N),   L^(T) = J(pi) - J(mu)

The trace has no clips here: the theory is about the unclipped one. Shapes: ``n`` trajectories, ``T`` tokens.
Everything is float64. The paper's token MDP is in :mod:`rlvr.analysis.token_mdp`; random processes are below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
import pandas as pd
import torch
from scipy.special import log_softmax

from rlvr.ratios import forward_trace

ATOL = 1e-12  # below this two exact sums are the same number


@dataclass(frozen=True)
class Enumerated:
    """Every trajectory of a finite process under two policies.

    Args:
        tokens: ``[n, T]`` integers; -1 where the response has ended.
        prob_mu: ``[n]`` probability under the rollout policy, sums to 1.
        log_ratio: ``[n, T]`` ``log pi(y_t|s_t) - log mu(y_t|s_t)``, 0 where the response has ended.
        reward: ``[n]``.

    Raises:
        ValueError: shapes disagree, a value is not finite, or ``mu`` or ``pi`` does not sum to 1.
    """

    tokens: np.ndarray
    prob_mu: np.ndarray
    log_ratio: np.ndarray
    reward: np.ndarray
    mask: np.ndarray = field(init=False)  # [n, T], True on tokens of the response

    def __post_init__(self) -> None:
        n, length = self.log_ratio.shape
        for name, shape in (("tokens", (n, length)), ("prob_mu", (n,)), ("reward", (n,))):
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, log_ratio asks for {shape}")
        object.__setattr__(self, "mask", self.tokens >= 0)
        if not (np.isfinite(self.log_ratio).all() and np.isfinite(self.reward).all()):
            raise ValueError("log_ratio and reward must be finite: mu has to cover every token of pi")
        if (self.log_ratio[~self.mask] != 0).any():
            raise ValueError("log_ratio must be 0 where tokens is -1 (the response has ended)")
        if (self.prob_mu < 0).any():
            raise ValueError(f"prob_mu must not be negative, its least value is {self.prob_mu.min()}")
        for name, total in (("mu", self.prob_mu.sum()), ("pi", self.prob_pi.sum())):
            if abs(total - 1) > 1e-9:
                raise ValueError(f"the probabilities under {name} sum to {total}, not to 1")

    def enumerate(self) -> Enumerated:
        """Itself, so that every function here also takes a process that still has to be listed."""
        return self

    @property
    def length(self) -> int:
        """T, the largest number of tokens in a trajectory."""
        return self.log_ratio.shape[1]

    @property
    def prob_pi(self) -> np.ndarray:
        """``[n]`` probability under the current policy."""
        return self.prob_mu * np.exp(self.log_ratio.sum(axis=1))

    @property
    def gain(self) -> float:
        """``J(pi) - J(mu)``, summed from the probabilities and not from ratios."""
        return float((self.prob_pi - self.prob_mu) @ self.reward)


class Enumerable(Protocol):
    """Anything with a finite list of trajectories."""

    def enumerate(self) -> Enumerated: ...


@lru_cache(maxsize=8)
def all_sequences(vocabulary: int, length: int) -> np.ndarray:
    """``[vocabulary ** length, length]`` every sequence, in lexicographic order; not to be written to."""
    grid = np.indices((vocabulary,) * length).reshape(length, -1).T
    grid.setflags(write=False)
    return grid


def trace_sum(process: Enumerated, horizon: int) -> np.ndarray:
    """``[n]`` the sum over t of ``(rho_t - 1) Gamma_{t+1}^(N)``: what multiplies the reward in ``X^(N)``."""
    log_ratio, mask = torch.from_numpy(process.log_ratio), torch.from_numpy(process.mask)
    trace = forward_trace(log_ratio, mask, horizon, ratio_clip=None, trace_clip=None).numpy()
    return (np.expm1(process.log_ratio) * trace * process.mask).sum(axis=1)


@dataclass(frozen=True)
class Surrogate:
    """Exact moments of one sample of the N-step surrogate's estimate."""

    horizon: int
    value: float  # L^(N)
    variance: float  # Var_mu X^(N)
    j_mu: float
    j_pi: float

    @property
    def bias(self) -> float:
        """``L^(N) - (J(pi) - J(mu))``: positive where the surrogate promises more than there is."""
        return self.value - (self.j_pi - self.j_mu)


def surrogate(process: Enumerable, horizon: int) -> Surrogate:
    """L^(N), the variance of its one-sample estimate, J(mu) and J(pi), all exact."""
    process = process.enumerate()
    sample = process.reward * trace_sum(process, horizon)
    value = float(process.prob_mu @ sample)
    variance = float(process.prob_mu @ (sample - value) ** 2)
    j_mu = float(process.prob_mu @ process.reward)
    return Surrogate(horizon, value, variance, j_mu, j_mu + process.gain)


def profile(process: Enumerable) -> pd.DataFrame:
    """One row per horizon ``N = 1..T`` (the index): ``value, bias, variance, j_mu, j_pi``."""
    process = process.enumerate()
    rows = [surrogate(process, n) for n in range(1, process.length + 1)]
    frame = pd.DataFrame([{**vars(r), "bias": r.bias} for r in rows]).set_index("horizon")
    return frame.rename_axis("N")[["value", "bias", "variance", "j_mu", "j_pi"]]


def is_bias_monotone(frame: pd.DataFrame) -> bool:
    """Whether ``|bias|`` never rises with N; ties are allowed."""
    return bool((np.diff(frame["bias"].abs()) <= ATOL).all())


def is_variance_monotone(frame: pd.DataFrame) -> bool:
    """Whether the variance strictly rises with N."""
    return bool((np.diff(frame["variance"]) > ATOL).all())


def monotone_shares(processes: Iterable[Enumerable]) -> pd.DataFrame:
    """How general the picture is: per number of tokens T (the index), shares of the processes.

    Columns: ``processes`` (their number), ``bias_never_rises``, ``variance_strictly_rises`` (over all N), and
    ``variance_higher_at_T`` (than at N = 1).
    """
    rows = []
    for process in processes:
        frame = profile(process)
        variance = frame["variance"]
        rows.append(
            {
                "T": len(frame),
                "bias_never_rises": is_bias_monotone(frame),
                "variance_strictly_rises": is_variance_monotone(frame),
                "variance_higher_at_T": variance.iloc[-1] > variance.iloc[0],
            }
        )
    groups = pd.DataFrame(rows).groupby("T")
    shares = groups.mean()
    shares.insert(0, "processes", groups.size())
    return shares


def root_mean_square_error(frame: pd.DataFrame, samples: int) -> pd.Series:
    """``sqrt(bias^2 + variance / M)`` of the mean of ``M`` independent samples, by horizon."""
    if samples < 1:
        raise ValueError(f"samples={samples}: must be at least 1")
    return np.sqrt(frame["bias"] ** 2 + frame["variance"] / samples).rename("rmse")


def best_horizon(frame: pd.DataFrame, samples: int) -> int:
    """The horizon with the least :func:`root_mean_square_error`; the shorter one on a tie."""
    return int(root_mean_square_error(frame, samples).idxmin())


def interactions(frame: pd.DataFrame) -> pd.Series:
    """``I(N) = L^(N+1) - L^(N)`` for ``N = 1..T-1``, so that ``bias(N) = -sum_{k >= N} I(k)``.

    ``|bias|`` falls with N for sure only where all of them have one sign.
    """
    return pd.Series(np.diff(frame["value"]), index=frame.index[:-1], name="interaction")


def random_process(
    rng: np.random.Generator,
    *,
    vocabulary: int,
    length: int,
    distance: float,
    xi: float = 1.0,
    spread: float = 1.0,
    ends: bool = False,
) -> Enumerated:
    """A process with its own random next-token table per prefix, and a random reward per trajectory.

    Args:
        rng: the only source of randomness.
        vocabulary, length: tables are drawn for all ``vocabulary ** t`` prefixes of every length t < T.
        distance: standard deviation of ``pi``'s logits around ``mu``'s; 0 makes the policies equal.
        xi: rewards are uniform on ``[-xi, xi]``.
        spread: standard deviation of ``mu``'s logits.
        ends: token 0 ends the response, so that lengths differ; the rest is -1.
    """
    if vocabulary < 2 or length < 1:
        raise ValueError(f"vocabulary={vocabulary}, length={length}: must be at least 2 and 1")
    if distance < 0 or spread < 0 or xi <= 0:
        raise ValueError(f"distance={distance}, spread={spread}, xi={xi}: must be >= 0, >= 0 and > 0")
    tokens = all_sequences(vocabulary, length).copy()
    log_mu, log_ratio = np.zeros(tokens.shape), np.zeros(tokens.shape)
    for t in range(length):
        logits = spread * rng.standard_normal((vocabulary**t, vocabulary))
        shifted = logits + distance * rng.standard_normal(logits.shape)
        tables = log_softmax(logits, axis=1), log_softmax(shifted, axis=1)
        prefix = np.arange(len(tokens)) // vocabulary ** (length - t)  # rows are in lexicographic order
        log_mu[:, t] = tables[0][prefix, tokens[:, t]]
        log_ratio[:, t] = tables[1][prefix, tokens[:, t]] - log_mu[:, t]
    if ends:
        ended = np.cumsum(tokens == 0, axis=1) - (tokens == 0) > 0  # strictly after the first 0
        tokens[ended], log_mu[ended], log_ratio[ended] = -1, 0.0, 0.0
        _, keep = np.unique(tokens, axis=0, return_index=True)
        tokens, log_mu, log_ratio = tokens[keep], log_mu[keep], log_ratio[keep]
    reward = rng.uniform(-xi, xi, size=len(tokens))
    return Enumerated(tokens, np.exp(log_mu.sum(axis=1)), log_ratio, reward)


def random_processes(count: int, seed: int) -> list[Enumerated]:
    """``count`` random processes of 2-4 symbols and 2-5 tokens, half of them with varying lengths.

    ``distance`` runs log-uniformly from 0.03 (one careful update) to 3 (policies with little in common).
    """
    out = []
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        settings = {
            "vocabulary": int(rng.integers(2, 5)),
            "length": int(rng.integers(2, 6)),
            "distance": float(np.exp(rng.uniform(np.log(0.03), np.log(3)))),
            "xi": float(rng.uniform(0.5, 2)),
            "ends": bool(i % 2),
        }
        out.append(random_process(rng, **settings))
    return out


def as_verifiable(process: Enumerable) -> Enumerated:
    """The same policies with a reward in {0, 1} that pi earns at least as often as mu (R > 0, or not)."""
    process = process.enumerate()
    solved = process.reward > 0
    if (process.prob_pi - process.prob_mu) @ solved < 0:
        solved = ~solved
    return Enumerated(process.tokens, process.prob_mu, process.log_ratio, solved.astype(float))
