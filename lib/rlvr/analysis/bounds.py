"""The bounds of NFPO's Proposition 1 and Theorem 1, checked on processes whose expectations are exact sums.

Notation: ``delta`` = largest total variation between mu and pi over the states, ``xi = max |R|``,
``eps = max |rho - 1|``, ``T`` tokens, horizon ``N``, ``M`` samples. The displayed formulas are lost from the
paper's text; these follow from its orders of growth and proof outline.

Truncation (Theorem 1, step 1; Proposition 1 is N = 1):

    |J(pi) - J(mu) - L^(N)|  <=  2 xi (T-N)(T-N+1) delta^2

The difference is ``E_mu R sum_t (rho_t - 1) Gamma_{t+1}^(N) (Omega_{t+N} - 1)``, ``Omega_j`` the product of
the ratios from ``j`` on. Given the prefix, ``E|Omega_{t+N} - 1|`` is twice the total variation of the
``k = T-t-N+1`` omitted tokens, at most ``2 k delta``; ``Gamma`` has conditional mean 1;
``E|rho_t - 1| <= 2 delta``. The sum over ``t`` of ``4 xi delta^2 k`` is the bound. Its constant cannot be
improved: :func:`sharp_process` attains it in the limit. Two refinements are free
(:func:`refined_truncation_bound`): a constant reward adds nothing to ``L^(N)``, so half the reward's range
replaces ``xi`` (a factor 2 for rewards in {0, 1}), and the total variation of ``k`` tokens is at most
``1 - (1 - delta)^k``.

Concentration (step 2): ``|X^(N)| <= B = xi T eps (1+eps)^(N-1)``; by Hoeffding, but with chance eta,

    |L_hat - L^(N)|  <=  B sqrt(2 log(2/eta) / M)                the constant is a [choice]

Where the paper's picture ends: both steps are *upper bounds* that are monotone in N. The bias itself is a sum
of signed interactions and may rise or change sign; the variance is not the range and may fall.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from rlvr.analysis.enumerated import Enumerable, Enumerated, all_sequences, profile, trace_sum


def state_tv(process: Enumerable) -> list[np.ndarray]:
    """Total variation between mu and pi in every state that mu reaches; one array per position t.

    ``TV(s) = E_mu[|rho_t - 1| given s] / 2``, which needs mu to cover pi.
    """
    process, out = process.enumerate(), []
    deviation = process.prob_mu[:, None] * np.abs(np.expm1(process.log_ratio))
    state = np.zeros(len(process.tokens), dtype=np.int64)  # number of the prefix y_<t
    base = process.tokens.max() + 2
    for t in range(process.length):
        alive = process.mask[:, t]
        size = state.max() + 1
        mass = np.bincount(state[alive], process.prob_mu[alive], minlength=size)
        spread = np.bincount(state[alive], deviation[alive, t], minlength=size)
        out.append(spread[mass > 0] / mass[mass > 0] / 2)
        _, state = np.unique(state * base + process.tokens[:, t] + 1, return_inverse=True)
    return out


def max_state_tv(process: Enumerable) -> float:
    """``delta``."""
    return float(max(tv.max(initial=0.0) for tv in state_tv(process)))


def max_ratio_deviation(process: Enumerable) -> float:
    """``eps = max |rho_t - 1|`` over the tokens that mu can produce."""
    process = process.enumerate()
    possible = process.mask & (process.prob_mu > 0)[:, None]
    return float(np.abs(np.expm1(process.log_ratio[possible])).max(initial=0.0))


def max_reward(process: Enumerable) -> float:
    """``xi = max |R|``."""
    return float(np.abs(process.enumerate().reward).max())


def truncation_bound(xi: float, delta: float, length: int, horizon: int) -> float:
    """``2 xi (T-N)(T-N+1) delta^2``; N = 1 is Proposition 1, N = T gives 0."""
    _check_horizon(length, horizon)
    omitted = length - horizon
    return 2 * xi * omitted * (omitted + 1) * delta**2


def refined_truncation_bound(reward_range: float, delta: float, length: int, horizon: int) -> float:
    """``2 (max R - min R) delta sum_{k=1}^{T-N} (1 - (1 - delta)^k)``, never above the stated bound."""
    _check_horizon(length, horizon)
    k = np.arange(1, length - horizon + 1)
    return float(2 * reward_range * delta * (1 - (1 - delta) ** k).sum())


def sample_bound(xi: float, eps: float, length: int, horizon: int) -> float:
    """``B = xi T eps (1 + eps)^(N-1)``, the largest ``|X^(N)|`` there can be."""
    _check_horizon(length, horizon)
    return xi * length * eps * (1 + eps) ** (horizon - 1)


def hoeffding_penalty(xi: float, eps: float, length: int, horizon: int, samples: int, eta: float) -> float:
    """``B sqrt(2 log(2/eta) / M)``: Hoeffding for M independent samples in ``[-B, B]``, both sides."""
    if samples < 1 or not 0 < eta < 1:
        raise ValueError(f"samples={samples}, eta={eta}: must be at least 1 and strictly between 0 and 1")
    return sample_bound(xi, eps, length, horizon) * float(np.sqrt(2 * np.log(2 / eta) / samples))


def check_bounds(process: Enumerable) -> pd.DataFrame:
    """Both sides of the exact parts of Theorem 1, a row per horizon ``N = 1..T``.

    Columns: ``gap`` = |J(pi) - J(mu) - L^(N)|; ``worst_gap`` = the same for the reward in ``[-xi, xi]`` that
    makes it largest, ``xi E_mu|...|``; ``bound``; ``refined`` bound; ``ratio`` and ``worst_ratio`` = the gaps
    over ``bound`` (NaN at N = T, where both are 0); ``sample_max`` = max |X^(N)|; ``sample_bound`` = B;
    ``sample_ratio``.
    """
    process = process.enumerate()
    xi, delta, eps = max_reward(process), max_state_tv(process), max_ratio_deviation(process)
    spread, length = float(np.ptp(process.reward)), process.length
    full, rows = trace_sum(process, length), []
    for horizon, row in profile(process).iterrows():
        kept = trace_sum(process, horizon)
        bound = truncation_bound(xi, delta, length, horizon)
        gaps = {"gap": abs(row["bias"]), "worst_gap": xi * float(process.prob_mu @ np.abs(full - kept))}
        largest = float(np.abs(process.reward * kept).max())
        limit = sample_bound(xi, eps, length, horizon)
        rows.append(
            {
                "N": horizon,
                **gaps,
                "bound": bound,
                "refined": refined_truncation_bound(spread, delta, length, horizon),
                "ratio": _ratio(gaps["gap"], bound),
                "worst_ratio": _ratio(gaps["worst_gap"], bound),
                "sample_max": largest,
                "sample_bound": limit,
                "sample_ratio": _ratio(largest, limit),
            }
        )
    return pd.DataFrame(rows).set_index("N")


def check_many(processes: Mapping[str, Enumerable]) -> pd.DataFrame:
    """:func:`check_bounds` of each, with columns ``process, N, T, delta, eps`` in front."""
    frames = []
    for name, process in processes.items():
        process = process.enumerate()
        frame = check_bounds(process).reset_index()
        facts = {"T": process.length, "delta": max_state_tv(process), "eps": max_ratio_deviation(process)}
        frames.append(frame.assign(process=name, **facts))
    front = ["process", "N", "T", "delta", "eps"]
    frame = pd.concat(frames, ignore_index=True)
    return frame[front + [c for c in frame.columns if c not in front]]


def coverage(
    process: Enumerable, horizon: int, *, samples: int, eta: float, repeats: int, seed: int
) -> dict[str, float]:
    """Draw ``repeats`` batches of ``samples`` trajectories from mu and see how often Theorem 1 holds.

    Returns:
        ``covered``: share of batches with ``|L_hat - L^(N)| <= penalty``; ``improvement``: share with
        ``J(pi) - J(mu) >= L_hat - truncation bound - penalty``; both promised to be at least ``1 - eta``.
        ``quantile``: the ``1 - eta`` quantile of the error over the penalty (1 = the penalty is exact).
    """
    process = process.enumerate()
    value = process.reward * trace_sum(process, horizon)
    exact = float(process.prob_mu @ value)
    xi, delta, eps = max_reward(process), max_state_tv(process), max_ratio_deviation(process)
    penalty = hoeffding_penalty(xi, eps, process.length, horizon, samples, eta)
    rng = np.random.default_rng([seed, horizon, samples])
    counts = rng.multinomial(samples, process.prob_mu / process.prob_mu.sum(), size=repeats)
    estimate = counts @ value / samples
    error = np.abs(estimate - exact)
    lower = estimate - truncation_bound(xi, delta, process.length, horizon) - penalty
    return {
        "covered": float((error <= penalty).mean()),
        "improvement": float((lower <= process.gain).mean()),
        "quantile": float(np.quantile(error, 1 - eta) / penalty),
    }


def theorem_total(process: Enumerable, samples: int, eta: float) -> pd.Series:
    """Truncation bound + Hoeffding penalty by horizon: what Theorem 1 would have one minimise."""
    process = process.enumerate()
    xi, delta, eps = max_reward(process), max_state_tv(process), max_ratio_deviation(process)
    horizons = range(1, process.length + 1)
    total = [
        truncation_bound(xi, delta, process.length, n)
        + hoeffding_penalty(xi, eps, process.length, n, samples, eta)
        for n in horizons
    ]
    return pd.Series(total, index=pd.Index(horizons, name="N"), name="theorem_total")


def sharp_process(length: int, delta: float, rare: float, horizon: int = 1) -> Enumerated:
    """Two symbols, independent tokens; the gap at ``horizon`` tends to the bound as rare << delta -> 0.

    The rare symbol has probability ``rare`` under mu and ``rare + delta`` under pi, so ``delta`` is the total
    variation in every state; the reward is the sign of what the truncation omits, so nothing cancels.
    """
    if not 0 < rare < rare + delta < 1:
        raise ValueError(f"rare={rare}, delta={delta}: both must be positive and sum to less than 1")
    tokens = all_sequences(2, length)
    log_mu = np.where(tokens == 1, np.log(rare), np.log1p(-rare))
    log_ratio = np.where(tokens == 1, np.log(rare + delta), np.log1p(-rare - delta)) - log_mu
    free = Enumerated(tokens, np.exp(log_mu.sum(axis=1)), log_ratio, np.zeros(len(tokens)))
    omitted = trace_sum(free, length) - trace_sum(free, horizon)
    return Enumerated(tokens, free.prob_mu, log_ratio, np.where(omitted < 0, -1.0, 1.0))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else float("nan")


def _check_horizon(length: int, horizon: int) -> None:
    if not 1 <= horizon <= length:
        raise ValueError(f"horizon={horizon}: must be 1..{length}, the number of tokens")
