"""avg@k and pass@k, one value per problem; their mean and its doubt are :mod:`rlvr.evaluation.intervals`.

A missing sample (never generated, or never decided) is NaN and is left out; it is not a wrong answer.
"""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import ArrayLike, NDArray


def count_correct(correct: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(samples present, samples correct) by problem; ``correct`` [problems, samples] in {0, 1, NaN}."""
    values = _matrix(correct)
    present = ~np.isnan(values)
    return present.sum(1), (values == 1).sum(1)


def avg_at_k(correct: ArrayLike) -> NDArray[np.float64]:
    """avg@k, [problems]: share of correct ones among a problem's present samples; NaN where none is present.

    ``correct`` is [problems, samples] in {0, 1, NaN}; k is the number of samples.
    """
    n, c = count_correct(correct)
    return np.divide(c, n, out=np.full(len(n), np.nan), where=n > 0)


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> NDArray[np.float64]:
    """Unbiased pass@k, shape of ``n`` and ``c``: ``1 - C(n-c, k) / C(n, k)`` [public: Codex paper].

    ``n`` samples present and ``c`` correct per problem (:func:`count_correct`). Computed as
    ``-expm1(sum_{i<k} log(1 - c/(n-i)))``, which neither overflows nor cancels.

    Raises ValueError if any n < k: with fewer samples than k it is not defined, even where c is 0 or n.
    """
    try:
        k = operator.index(k)
    except TypeError:
        raise ValueError(f"k={k!r}: allowed are integers >= 1") from None
    n, c = np.broadcast_arrays(np.asarray(n), np.asarray(c))
    if k < 1:
        raise ValueError(f"k={k}: allowed are integers >= 1")
    if not n.size:
        raise ValueError("n and c are empty: allowed is at least one problem")
    for name, value in (("n", n), ("c", c)):
        if not np.all(value == np.floor(value)):  # False for NaN as well
            raise ValueError(
                f"{name} holds {value[value != np.floor(value)].flat[0]:g}: allowed are whole numbers"
            )
    if not np.all((0 <= c) & (c <= n)):
        at = np.flatnonzero((c < 0) | (c > n))[0]
        raise ValueError(f"c={c.flat[at]} of n={n.flat[at]}: allowed are 0 <= c <= n")
    if n.min() < k:
        raise ValueError(f"k={k} exceeds the fewest samples of a problem, n={n.min()}: allowed are k <= n")
    missed = np.zeros(n.shape)
    with np.errstate(divide="ignore"):  # log(0): some draw must be correct
        for i in range(k):
            missed += np.log1p(-np.minimum(c / (n - i), 1.0))
    return -np.expm1(missed)


def _matrix(correct: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(correct, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"correct has shape {values.shape}: allowed is [problems, samples], not empty")
    known = values[~np.isnan(values)]
    if not np.isin(known, (0.0, 1.0)).all():
        raise ValueError(
            f"correct holds {known[~np.isin(known, (0.0, 1.0))][0]}: allowed are 0, 1 and NaN (missing)"
        )
    return values
