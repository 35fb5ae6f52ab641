"""Softmax policies over a few states, with every response they can write: gradients as plain sums.

In state ``s`` the policy writes token ``a`` with probability ``softmax(theta[s])[a]`` and moves to state
``step[s, a]``, or ends the response there (-1). State 0 is the first, ``T`` tokens are the most.
The parameters ``theta`` are the logits themselves, so ``J(pi) = sum_y pi(y) R(y)`` and everything else here
can be differentiated exactly. Shapes: ``S`` states, ``V`` tokens, ``R`` responses, ``P = S V`` parameters.
Everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rlvr.analysis.enumerated import all_sequences
from rlvr.analysis.token_mdp import TokenMDP

Kind = Literal["history", "last symbol"]
KINDS: tuple[Kind, ...] = ("history", "last symbol")
MODULES = 3  # blocks of up to this many tokens


@dataclass(frozen=True)
class SmallPolicy:
    """A policy pi and all its responses.

    Args:
        step: [S, V] integers, the state after a token; -1 = the token ends the response.
        length: T.
        logits: [S, V], theta of pi.
        reward: [R], in the order of ``tokens``.
        module_error: [MODULES - 1, S, V] nats, what an imperfect MTP module adds to its logits.
    """

    step: np.ndarray
    length: int
    logits: Tensor
    reward: Tensor
    module_error: Tensor
    tokens: Tensor = field(init=False)  # [R, T], -1 after the end
    states: Tensor = field(init=False)  # [R, T], the state before each token; 0 after the end
    _features: dict = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        tokens, states = list_responses(self.step, self.length)
        if self.reward.shape != (len(tokens),):
            raise ValueError(f"reward has shape {list(self.reward.shape)}: allowed is [{len(tokens)}]")
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "states", states)

    @property
    def mask(self) -> Tensor:
        """[R, T] bool, True on tokens of the response."""
        return self.tokens >= 0

    @cached_property
    def gradient(self) -> Tensor:
        """``d J(pi) / d theta``, [P]."""
        theta = self.logits.clone().requires_grad_()
        prob = self.log_prob(theta)[..., 0].sum(-1).exp()
        return torch.autograd.grad(prob @ self.reward, theta)[0].flatten()

    def log_prob(self, logits: Tensor, modules: int = 1, noisy: bool = False) -> Tensor:
        """[..., R, T, K] for ``logits`` [..., S, V]: entry (t, k-1) is ``log P(y_{t+k-1} | s_t)``.

        k = 1 is the policy's own log-prob. k >= 2 looks ahead as a parallel MTP head would that knows the
        policy: the tokens between are summed out; ``noisy`` adds ``module_error``. 0 where it does not exist.
        """
        entries = []
        for k in range(1, modules + 1):
            entry, exists = self._entry(k)
            entries.append(torch.where(exists, self._table(logits, k, noisy).flatten(-2)[..., entry], 0.0))
        return torch.stack(entries, -1)

    def features(self, k: int, noisy: bool = False) -> Tensor:
        """``d log P(y_{t+k-1} | s_t) / d theta`` at pi, [R, T, P]."""
        key = (k, noisy and k > 1)
        if key not in self._features:
            slope = torch.autograd.functional.jacobian(
                lambda logits: self._table(logits, k, noisy), self.logits, vectorize=True
            )
            entry, exists = self._entry(k)
            self._features[key] = slope.view(self.logits.numel(), -1)[entry] * exists[..., None]
        return self._features[key]

    def _entry(self, k: int) -> tuple[Tensor, Tensor]:
        """Where ``log P(y_{t+k-1} | s_t)`` stands in a flat table [S V], and whether it exists; [R, T]."""
        ahead = torch.nn.functional.pad(self.tokens, (0, k - 1), value=-1)[:, k - 1 :]
        return self.states * self.step.shape[1] + ahead.clamp_min(0), ahead >= 0

    def _table(self, logits: Tensor, k: int, noisy: bool) -> Tensor:
        """``log P(k-th token from s is a)``, [..., S, V]; what follows the end has no probability."""
        log_prob = torch.log_softmax(logits, -1)
        if k == 1:
            return log_prob
        after = torch.from_numpy(self.step)
        moves = log_prob.exp() * (after >= 0)
        prob = log_prob.exp()
        for _ in range(k - 1):
            prob = torch.einsum("...sa,...sav->...sv", moves, prob[..., after.clamp_min(0), :])
        table = prob.log()
        if noisy:
            tilted = table + self.module_error[k - 2]
            table = tilted - tilted.logsumexp(-1, True) + table.logsumexp(-1, True)
        return table


def list_responses(step: np.ndarray, length: int) -> tuple[Tensor, Tensor]:
    """Every response as tokens [R, T] (-1 after the end), and the state before each token [R, T]."""
    grid = all_sequences(step.shape[1], length)
    tokens, states = grid.copy(), np.zeros_like(grid)
    state = np.zeros(len(grid), dtype=np.int64)
    for t in range(length):
        tokens[state < 0, t] = -1
        states[:, t] = np.maximum(state, 0)
        state = np.where(state < 0, -1, step[np.maximum(state, 0), grid[:, t]])
    _, keep = np.unique(tokens, axis=0, return_index=True)
    return torch.from_numpy(tokens[keep]), torch.from_numpy(states[keep])


def state_steps(kind: Kind, vocabulary: int, length: int) -> np.ndarray:
    """``step`` of a policy that knows the whole history, or the last symbol only; token 0 ends a response."""
    if kind == "last symbol":
        step = np.tile(np.arange(vocabulary), (vocabulary, 1))
        step[:, 0] = -1
        return step
    if kind != "history":
        raise ValueError(f"kind={kind!r}: allowed are {', '.join(map(repr, KINDS))}")
    # Prefixes are numbered level by level; those of full length are nobody's state, 0 stands for them.
    sizes = [(vocabulary - 1) ** t for t in range(length)]
    step = np.zeros((sum(sizes), vocabulary), dtype=np.int64)
    inner = sum(sizes[:-1])
    step[:inner, 1:] = 1 + np.arange(inner * (vocabulary - 1)).reshape(inner, -1)
    step[:, 0] = -1
    return step


def random_policy(seed: int, kind: Kind, vocabulary: int, length: int) -> tuple[SmallPolicy, Tensor]:
    """A random policy, and a random direction [S, V] for its logits.

    Logits and direction are standard normal, module errors half as large; a random half of the responses is
    right (reward 1, else 0), so how good a token is depends on all others.
    """
    step = state_steps(kind, vocabulary, length)
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    logits, direction = (torch.from_numpy(rng.standard_normal(step.shape)) for _ in range(2))
    error = torch.from_numpy(rng.standard_normal((MODULES - 1, *step.shape)) / 2)
    count = len(list_responses(step, length)[0])
    reward = torch.from_numpy(rng.permutation(np.arange(count) % 2).astype(float))
    return SmallPolicy(step, length, logits, reward, error), direction


def token_mdp_policies(mdp: TokenMDP) -> tuple[SmallPolicy, Tensor]:
    """The token MDP's pi with its progress through the pattern as the state, and the logits of its mu.

    Raises:
        ValueError: the reading in which the policies turn uniform after completion.
    """
    if mdp.after_completion != "stay":
        raise ValueError(f"after_completion={mdp.after_completion!r}: allowed is 'stay'")
    needed = len(mdp.pattern)
    wanted = np.asarray([*mdp.pattern, mdp.pattern[-1]])  # by progress 0 .. K
    hit = wanted[:, None] == np.arange(mdp.vocabulary)
    progress = np.arange(needed + 1)[:, None]
    step = np.minimum(progress + hit, needed)
    pi, mu = (
        torch.from_numpy(np.log(np.where(hit, alpha, (1 - alpha) / (mdp.vocabulary - 1))))
        for alpha in (mdp.alpha_pi, mdp.alpha_mu)
    )
    tokens, states = list_responses(step, mdp.length)
    reward = torch.from_numpy(step)[states[:, -1], tokens[:, -1]] == needed
    error = torch.zeros(MODULES - 1, *step.shape, dtype=torch.float64)
    return SmallPolicy(step, mdp.length, pi, reward.double(), error), mu


def max_tv(logits: Tensor, other: Tensor) -> float:
    """Largest total variation over the states, ``max_s 1/2 sum_a |p - q|``."""
    return float((logits.softmax(-1) - other.softmax(-1)).abs().sum(-1).max() / 2)


def at_distance(logits: Tensor, direction: Tensor, distance: float) -> Tensor:
    """``logits + c * direction`` with the ``c >= 0`` that puts :func:`max_tv` at ``distance``.

    Along a line of logits the total variation of every state rises, so there is one such c.

    Raises:
        ValueError: no c reaches the distance.
    """
    low, high = 0.0, 0.0 if distance == 0 else 1.0
    while max_tv(logits, logits + high * direction) < distance:
        low, high = high, 2 * high
        if high > 1e6:
            raise ValueError(f"distance={distance}: the direction leads no further than {low:g} times itself")
    for _ in range(80 if high else 0):
        middle = (low + high) / 2
        if max_tv(logits, logits + middle * direction) < distance:
            low = middle
        else:
            high = middle
    return logits + high * direction
