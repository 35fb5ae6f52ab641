"""avg@k, pass@k and best-of-n, one value per problem; for their mean see :mod:`rlvr.evaluation.intervals`.

A missing sample (never generated, or never decided) is NaN and is left out; it is not a wrong answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlvr.evaluation.inputs import numbers_of, whole, wholes
from rlvr.evaluation.resampling import Floats


def count_correct(correct: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(samples present, samples correct) by problem; ``correct`` [problems, samples] in {0, 1, NaN}."""
    values = outcome_matrix(correct)
    present = ~np.isnan(values)
    return present.sum(1), (values == 1).sum(1)


def avg_at_k(correct: ArrayLike) -> Floats:
    """avg@k, [problems]: share of correct ones among a problem's present samples; NaN where none is present.

    ``correct`` is [problems, samples] in {0, 1, NaN}; k is the number of samples.
    """
    n, c = count_correct(correct)
    return np.divide(c, n, out=np.full(len(n), np.nan), where=n > 0)


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> Floats:
    """Unbiased pass@k, shape of ``n`` and ``c``: ``1 - C(n-c, k) / C(n, k)`` [public: Codex paper].

    ``n`` samples present and ``c`` correct per problem (:func:`count_correct`), of one shape, or one number
    for all problems. Computed as
    ``-expm1(sum_{i<k} log(1 - c/(n-i)))``, which neither overflows nor cancels.

    Raises ValueError if any n < k: with fewer samples than k it is not defined, even where c is 0 or n.
    """
    return pass_at_ks(n, c, [k])[0]


def pass_at_ks(n: ArrayLike, c: ArrayLike, ks: Sequence[int]) -> Floats:
    """:func:`pass_at_k` for several k at the cost of the largest, [k, *shape of n and c]."""
    ks = wholes("ks", ks, "k")
    if not ks:
        raise ValueError("ks is empty: allowed is at least one k")
    n, c = numbers_of("n", n), numbers_of("c", c)
    if n.shape != c.shape and n.ndim and c.ndim:
        raise ValueError(f"n has shape {n.shape}, c {c.shape}: allowed is one shape, or one number for all")
    n, c = np.broadcast_arrays(n, c)
    if not n.size:
        raise ValueError("n and c are empty: allowed is at least one problem")
    for name, value in (("n", n), ("c", c)):
        if not np.all(value == np.floor(value)):  # False for NaN as well
            raise ValueError(
                f"{name} holds {value[value != np.floor(value)].flat[0]:g}: allowed are whole numbers"
            )
    if not np.all((0 <= c) & (c <= n)):
        at = np.flatnonzero((c < 0) | (c > n))[0]
        raise ValueError(f"c={int(c.flat[at])} of n={int(n.flat[at])}: allowed are 0 <= c <= n")
    check_enough(max(ks), n)
    missed = np.zeros(n.shape)
    out, wanted = np.empty((len(ks), *n.shape)), set(ks)
    with np.errstate(divide="ignore"):  # log(0): some draw must be correct
        for i in range(max(ks)):
            missed += np.log1p(-np.minimum(c / (n - i), 1.0))
            if i + 1 in wanted:
                out[[k == i + 1 for k in ks]] = -np.expm1(missed)
    return out


def best_of_n(correct: ArrayLike, passes: ArrayLike, n: int) -> Floats:
    """Expected accuracy of the first of ``n`` samples that a verifier passes, [problems].

    "If multiple candidates pass, the first passing candidate is selected; if none pass, the first sample is
    retained" [text: IBPO]. The expectation is over all orderings of a problem's samples, exactly: whichever
    passing sample comes first is a random one of those that pass, so with pass@n of ``passes``

        pass@n * mean(correct | passes) + (1 - pass@n) * mean(correct | does not pass).

    Args:
        correct: [problems, samples] in {0, 1, NaN}, the grader of the result.
        passes: the same shape and values, the selecting verifier. If it is the grader itself, as in the
            paper, best-of-n *is* pass@n; only another verifier tells what selection is worth.
        n: candidates.

    A sample that either has not decided is left out. Raises ValueError if a problem has fewer than n.
    """
    correct, passes, n = outcome_matrix(correct), outcome_matrix(passes, "passes"), whole("n", n)
    if correct.shape != passes.shape:
        raise ValueError(f"passes has shape {passes.shape}: allowed is that of correct, {correct.shape}")
    known = ~(np.isnan(correct) | np.isnan(passes))
    check_enough(n, known.sum(1), "n", "samples")
    picked, rest = known & (passes == 1), known & (passes == 0)
    share = pass_at_k(known.sum(1), picked.sum(1), n)
    return share * _mean_where(correct, picked) + (1 - share) * _mean_where(correct, rest)


def check_enough(k: int, n: NDArray, name: str = "k", least: str = "n") -> None:
    """Raise ValueError if a problem has fewer than k of its ``n`` samples."""
    if (fewest := int(n.min())) < k:
        raise ValueError(
            f"{name}={k} exceeds the fewest samples of a problem, {least}={fewest}: allowed are {name} <= "
            f"{least}"
        )


def _mean_where(values: Floats, rows: NDArray[np.bool_]) -> Floats:
    """Mean over the chosen samples of each problem, 0 where none is chosen."""
    return np.where(rows, values, 0).sum(1) / np.maximum(rows.sum(1), 1)


def outcome_matrix(correct: ArrayLike, name: str = "correct") -> Floats:
    """``correct`` as float64 [problems, samples]; ValueError if it holds anything but 0, 1 and NaN."""
    values = numbers_of(name, correct)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"{name} has shape {values.shape}: allowed is [problems, samples], not empty")
    known = values[~np.isnan(values)]
    if not np.isin(known, (0.0, 1.0)).all():
        raise ValueError(
            f"{name} holds {known[~np.isin(known, (0.0, 1.0))][0]}: allowed are 0, 1 and NaN (missing)"
        )
    return values
