"""The paper's token MDP (NFPO section 3.2, appendix C), and over which of its readings the picture holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy.stats import binom

from rlvr.analysis.enumerated import (
    Enumerated,
    all_sequences,
    is_bias_monotone,
    is_variance_monotone,
    profile,
)

AfterCompletion = Literal["stay", "uniform"]
READINGS: tuple[AfterCompletion, ...] = ("stay", "uniform")


@dataclass(frozen=True)
class TokenMDP:
    """The paper's toy process: reward 1 iff ``pattern`` appears as an ordered subsequence, else 0.

    The paper names alpha, the vocabulary and the horizon, its policy formula is lost. Read here as [choice]:
    the symbol that the pattern needs next has probability alpha, the others share ``1 - alpha`` equally. Once
    the pattern is complete the policy stays biased to the last symbol (``"stay"``) or turns ``"uniform"``,
    another [choice], which decides the variance.

    Args:
        pattern: symbols ``0 .. vocabulary-1``, in order; at most ``length`` of them.
        alpha_mu, alpha_pi: strictly between 0 and 1; the paper uses 0.5 and 0.8.
        after_completion: ``"stay"`` or ``"uniform"``.
        vocabulary, length: the paper uses 3 and 7.
    """

    pattern: tuple[int, ...]
    alpha_mu: float = 0.5
    alpha_pi: float = 0.8
    after_completion: AfterCompletion = "stay"
    vocabulary: int = 3
    length: int = 7

    def __post_init__(self) -> None:
        if self.vocabulary < 2:
            raise ValueError(f"vocabulary={self.vocabulary}: must be at least 2")
        if not 1 <= len(self.pattern) <= self.length:
            raise ValueError(
                f"pattern={self.pattern} has {len(self.pattern)} symbols: must be 1..{self.length}"
            )
        if not set(self.pattern) <= set(range(self.vocabulary)):
            raise ValueError(f"pattern={self.pattern}: symbols must be in 0..{self.vocabulary - 1}")
        for name in ("alpha_mu", "alpha_pi"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be strictly between 0 and 1")
        if self.after_completion not in READINGS:
            raise ValueError(f"after_completion={self.after_completion!r}: must be one of {READINGS}")

    def enumerate(self) -> Enumerated:
        """All ``vocabulary ** length`` trajectories."""
        tokens = all_sequences(self.vocabulary, self.length)
        last, uniform = len(self.pattern) - 1, self.after_completion == "uniform"
        progress = np.zeros(len(tokens), dtype=np.int64)  # symbols of the pattern seen so far
        log_prob = np.zeros((2, *tokens.shape))
        for t in range(self.length):
            needed = np.asarray(self.pattern)[np.minimum(progress, last)]
            hit, complete = tokens[:, t] == needed, progress > last
            for row, alpha in enumerate((self.alpha_mu, self.alpha_pi)):
                prob = np.where(hit, alpha, (1 - alpha) / (self.vocabulary - 1))
                log_prob[row, :, t] = np.log(np.where(complete & uniform, 1 / self.vocabulary, prob))
            progress += hit & ~complete
        return Enumerated(
            tokens,
            np.exp(log_prob[0].sum(axis=1)),
            log_prob[1] - log_prob[0],
            (progress > last).astype(float),
        )


def demonstration_pattern(length: int, vocabulary: int = 3) -> tuple[int, ...]:
    """``a b c a b ...``; only its length matters, see :func:`interactions_closed_form`."""
    return tuple(t % vocabulary for t in range(length))


def survey(
    lengths: Iterable[int], readings: Iterable[AfterCompletion] = READINGS, **settings
) -> pd.DataFrame:
    """Enumerate the token MDP for every pattern of the given lengths.

    Returns:
        A row per reading and pattern: ``after_completion, length, pattern, identity_error`` (L^(T) less
        the gain, absolute), ``bias_monotone, variance_monotone``, ``bias_1.., variance_1..`` by horizon.
    """
    rows = []
    for reading, length in itertools.product(readings, lengths):
        for pattern in itertools.product(range(settings.get("vocabulary", 3)), repeat=length):
            frame = profile(TokenMDP(pattern, after_completion=reading, **settings))
            rows.append(
                {
                    "after_completion": reading,
                    "length": length,
                    "pattern": "".join("abcdefgh"[s] for s in pattern),
                    "identity_error": abs(frame["bias"].iloc[-1]),
                    "bias_monotone": is_bias_monotone(frame),
                    "variance_monotone": is_variance_monotone(frame),
                    **{f"bias_{n}": value for n, value in frame["bias"].items()},
                    **{f"variance_{n}": value for n, value in frame["variance"].items()},
                }
            )
    return pd.DataFrame(rows)


def interactions_closed_form(mdp: TokenMDP) -> np.ndarray:
    """``[T-1]`` the same numbers without a trajectory, from binomial distributions.

    Every step advances with probability alpha whatever the symbol, so progress counts coin flips and
    only the pattern's length ``K`` matters. ``E_mu[(rho_t - 1) f]`` is ``alpha_pi - alpha_mu`` times what a
    hit at ``t`` changes in f. Used at ``t`` and ``t + N``, the steps between under pi and the rest under mu:

        I(N) = (T - N) (alpha_pi - alpha_mu)^2 [P(S = K-2) - P(S = K-1)]
        S    = Binomial(N-1, alpha_pi) + Binomial(T-1-N, alpha_mu)

    Negative: the two hits replace each other (the pattern is easy). Positive: each needs the other (it is
    hard). Nothing after completion enters, so the bias is the same under both readings.
    """
    total, needed, out = mdp.length, len(mdp.pattern), []
    for n in range(1, total):
        under_pi = binom.pmf(np.arange(n), n - 1, mdp.alpha_pi)
        under_mu = binom.pmf(np.arange(total - n), total - 1 - n, mdp.alpha_mu)
        at = np.pad(np.convolve(under_pi, under_mu), (1, 2))  # at[k + 1] = P(S = k), zero outside 0..T-2
        out.append((total - n) * (mdp.alpha_pi - mdp.alpha_mu) ** 2 * (at[needed - 1] - at[needed]))
    return np.array(out)
