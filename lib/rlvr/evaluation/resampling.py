"""The resampling core: units drawn with replacement, and the ends of a percentile interval."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CHUNK = 1 << 22  # resampled values or counts held at a time


def resamples_of(parts: list[Floats], resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Values drawn with replacement, [size, n], in pieces of resamples.

    A stratum is drawn for all resamples before the next one, so several strata come in one piece; a single
    one comes in as many as memory asks for, with the same draws however large they are.
    """
    step = max(1, CHUNK // len(parts[0])) if len(parts) == 1 else resamples
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        yield np.concatenate([v[rng.integers(len(v), size=(size, len(v)))] for v in parts], axis=1)


def resampled_sums(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Sums of clusters drawn with replacement: [k, G] -> [k, resamples]."""
    count = values.shape[1]
    out = np.empty((len(values), resamples))
    step = max(1, CHUNK // count)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        times = rng.multinomial(count, np.full(count, 1 / count), size=size)
        out[:, start : start + size] = values @ times.T
    return out


def resampled_means(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Means of units drawn with replacement: [k, G] -> [k, resamples]."""
    return resampled_sums(values, resamples, rng) / values.shape[1]


def percentiles(draws: Floats, confidence: float) -> Floats:
    """The two ends of a percentile interval, [2, ...]; resamples along the first axis."""
    tail = (1 - confidence) / 2
    return np.quantile(draws, [tail, 1 - tail], axis=0)
