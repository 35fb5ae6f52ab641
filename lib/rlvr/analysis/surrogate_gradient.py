"""The gradient of the N-step surrogate without sampling error, its trace constant or differentiated.

With ``R`` the reward and everything else as in :mod:`rlvr.analysis.enumerated`, one sample of the gradient is
``sum_t R c_t d log pi(y_t|s_t) / d theta`` with the credit

    constant         c_t = rho_t Gamma_{t+1}^(N)
    differentiated   c_t = rho_t Gamma_{t+1}^(N) + sum_{k=max(1,t-N+1)}^{t-1} (rho_k - 1) Gamma_{k+1}^(N)

The second is the gradient of ``sum_t (rho_t - 1) Gamma_{t+1}^(N)``; its mean at N = T is the exact policy
gradient ``d J(pi) / d theta``. The first is what NFPO trains with: a masked policy gradient, its weight a
constant [text: NFPO 3.3]. Given the prefix, ``rho_t Gamma_{t+1}`` turns mu's continuation into pi's, but
nothing turns the prefix into pi's:

    E_mu g = sum_t E[R d log pi(y_t|s_t)]   with y_<t from mu and y_t.. from pi       (constant, N = T)

theta are the logits of a softmax in every state. A constant reward adds nothing to either, so no baseline is
needed. No clips, float64. Shapes: ``n`` trajectories, ``T`` tokens, ``S`` states, ``V`` symbols.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from rlvr.analysis.enumerated import Enumerable, Enumerated
from rlvr.ratios import forward_trace


def prefix_states(process: Enumerable) -> np.ndarray:
    """``[n, T]`` a number for every prefix ``y_<t``: the states of a policy that sees the whole history."""
    tokens = process.enumerate().tokens
    states, first = np.zeros_like(tokens), 0
    for t in range(tokens.shape[1]):
        number = np.unique(tokens[:, :t], axis=0, return_inverse=True)[1].reshape(-1) if t else states[:, 0]
        states[:, t] = first + number
        first += number.max() + 1
    return states


def credit(process: Enumerable, horizon: int, differentiated: bool = False) -> np.ndarray:
    """``c_t``, [n, T], 0 where the response has ended; ``horizon`` is N >= 1."""
    process = process.enumerate()
    log_ratio, mask = torch.from_numpy(process.log_ratio), torch.from_numpy(process.mask)
    trace = forward_trace(log_ratio, mask, horizon, ratio_clip=None, trace_clip=None).numpy()
    weight = np.exp(process.log_ratio) * trace
    if differentiated:
        carried = np.expm1(process.log_ratio) * trace * process.mask  # what token k hands to those after it
        total = np.cumsum(np.pad(carried, ((0, 0), (1, 0))), axis=1)  # total[:, t]: of the tokens before t
        start = np.maximum(np.arange(process.length) - horizon + 1, 0)
        weight = weight + total[:, :-1] - total[:, start]
    return weight * process.mask


def surrogate_gradient(
    process: Enumerable, horizon: int, differentiated: bool = False, states: np.ndarray | None = None
) -> np.ndarray:
    """``E_mu g``, [S, V]: the mean gradient with respect to the logits of every state.

    Args:
        process: pi and mu.
        horizon: N; T or more with ``differentiated`` gives the exact policy gradient.
        differentiated: whether the trace carries its own gradient.
        states: [n, T] the state before each token, numbered from 0; None: every prefix is a state of its own.

    Raises:
        ValueError: ``states`` has another shape, or pi is not a function of it.
    """
    process = process.enumerate()
    states = prefix_states(process) if states is None else np.asarray(states)
    if states.shape != process.tokens.shape:
        raise ValueError(f"states has shape {states.shape}: allowed is {process.tokens.shape}, one per token")
    weight = (process.prob_mu * process.reward)[:, None] * credit(process, horizon, differentiated)
    table = _policy_table(process, states)
    pushed = _sum_by_cell(process, states, weight)
    # d log softmax: the token's own logit, less every symbol's share
    return pushed - pushed.sum(axis=1, keepdims=True) * table


def gradient_bias(process: Enumerable, states: np.ndarray | None = None) -> pd.DataFrame:
    """``|E_mu g - dJ(pi)/dtheta|`` in units of ``|dJ(pi)/dtheta|``, a row per horizon ``N = 1..T``.

    Columns: ``constant`` and ``differentiated`` trace, and ``left by constant``, ``left by differentiated``:
    the same as a share of the bias at N = 1.
    """
    process = process.enumerate()
    exact = surrogate_gradient(process, process.length, True, states)
    size = np.linalg.norm(exact)
    rows = {
        n: [
            np.linalg.norm(surrogate_gradient(process, n, differentiated, states) - exact) / size
            for differentiated in (False, True)
        ]
        for n in range(1, process.length + 1)
    }
    names = ["constant", "differentiated"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=names).rename_axis("N")
    for name in names:
        frame[f"left by {name}"] = frame[name] / frame[name].iloc[0]
    return frame


def _policy_table(process: Enumerated, states: np.ndarray) -> np.ndarray:
    """``pi(v|s)``, [S, V], from the probabilities of the trajectories."""
    mass = _sum_by_cell(process, states, np.broadcast_to(process.prob_pi[:, None], states.shape))
    total = mass.sum(axis=1, keepdims=True)
    table = mass / np.where(total > 0, total, 1)
    of_token = np.where(process.mask, table[states, np.maximum(process.tokens, 0)], 1.0)
    if np.abs(of_token.prod(axis=1) - process.prob_pi).max() > 1e-9:
        raise ValueError("states: allowed are numberings of which pi is a function; here it depends on more")
    return table


def _sum_by_cell(process: Enumerated, states: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sum of ``values`` [n, T] over the tokens of every state and symbol, [S, V]."""
    shape = (int(states.max()) + 1, int(process.tokens.max()) + 1)
    cell = states * shape[1] + process.tokens
    return np.bincount(cell[process.mask], values[process.mask], np.prod(shape)).reshape(shape)
