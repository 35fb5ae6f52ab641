"""Is the difference between two runs more than chance? Paired tests, tests over seeds, margins, many tests.

All p-values are two-sided. A Monte Carlo p-value is ``(b + 1) / (m + 1)``, b of m draws being at least as
extreme as the data: it is never 0, and as a test never too bold for the number of draws. A test over problems
is about these two trained policies; only a test over seeds is about the methods that trained them.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from rlvr.evaluation.bootstrap import bootstrap_interval
from rlvr.evaluation.inputs import check_resampling, fraction, numbers_of, seeds_of, whole
from rlvr.evaluation.intervals import Estimate, check_estimate, paired_difference, problem_differences
from rlvr.evaluation.resampling import CHUNK, Floats, resampled_means

Verdict = Literal["supported", "contradicted", "open"]
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Comparison:
    """A p-value, the difference it is about (with its own interval), and how it was made."""

    p_value: float
    difference: Estimate
    method: str


def sign_flip_test(
    a: ArrayLike,
    b: ArrayLike,
    *,
    draws: int = 9999,
    seed: int = 0,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
) -> Comparison:
    """Paired permutation test of two runs on the same problems: were the two answers exchangeable?

    Under the null a problem's difference is as likely to have the other sign; the statistic is the absolute
    mean difference over the problems that both answered. All ``2^n`` sign patterns are counted where they
    are at most ``draws + 1`` (n <= 13 by default), else ``draws`` random ones. Inputs as in
    :func:`rlvr.evaluation.paired_difference`; a whole problem changes sign, however many samples it has.
    """
    draws, seed = whole("draws", draws), whole("seed", seed, 0)
    difference = problem_differences(a, b)
    n = len(difference)
    size = np.abs(difference)  # the null knows no sign, and neither may rounding
    observed = abs(difference.sum()) - _ROUNDING * size.sum()
    if 2**n <= draws + 1:
        patterns = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        p_value = float((np.abs((2 * patterns - 1) @ size) >= observed).mean())
        method = f"sign flips of problems, all {2**n}"
    else:
        extreme = sum(int((np.abs(s) >= observed).sum()) for s in _flipped(np.sort(size), draws, seed))
        p_value, method = (extreme + 1) / (draws + 1), f"sign flips of problems, {draws} draws"
    return Comparison(p_value, paired_difference(a, b, confidence=confidence, seeds=seeds), method)


def bootstrap_test(
    a: ArrayLike,
    b: ArrayLike,
    *,
    resamples: int = 9999,
    seed: int = 0,
    confidence: float = 0.95,
    seeds: Sequence[int] = (),
) -> Comparison:
    """Paired bootstrap over problems: an interval, and how often a centred difference is as large.

    The null is a mean difference of 0; the resamples are moved there [choice]. It assumes less than the sign
    flips do (no exchangeability) and is only approximate: rejects too often below about 20 problems.
    """
    check_resampling(resamples, confidence, seed)
    difference = np.sort(problem_differences(a, b))
    mean = float(difference.mean())
    means = resampled_means(difference[None], resamples, np.random.default_rng(seed))[0]
    method = f"paired, bootstrap over problems, percentile, {resamples} resamples"
    estimate = bootstrap_interval(
        mean, means, n=len(difference), method=method, confidence=confidence, seeds=seeds
    )
    return Comparison(_monte_carlo(means - mean, mean), estimate, f"centred {method}")


def mcnemar_test(
    a: ArrayLike, b: ArrayLike, *, confidence: float = 0.95, seeds: Sequence[int] = ()
) -> Comparison:
    """Exact McNemar test for one sample per problem: only problems on which the runs disagree tell anything.

    ``a``, ``b``: [problems] in {0, 1, NaN}. Of the problems that exactly one run solved, the number ``a``
    solved is binomial with 1/2 under the null.
    """
    for name, values in (("a", a), ("b", b)):
        values = numbers_of(name, values)
        known = values[~np.isnan(values)]
        if values.ndim != 1 or not np.isin(known, (0.0, 1.0)).all():
            raise ValueError(f"{name}: allowed is one sample per problem, [problems] in {{0, 1, NaN}}")
    difference = problem_differences(a, b)
    won, lost = int((difference > 0).sum()), int((difference < 0).sum())
    p_value = float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0
    method = f"exact McNemar, {won} problems solved by a alone, {lost} by b alone"
    return Comparison(p_value, paired_difference(a, b, confidence=confidence, seeds=seeds), method)


def normal_test(a: Estimate, b: Estimate, *, confidence: float = 0.95) -> Comparison:
    """Two independent results with their intervals, by a normal approximation [choice, for text: IBPO].

    ``z = (a - b) / sqrt(se_a^2 + se_b^2)`` with ``se = (high - low) / (2 z_c)`` of intervals at
    ``confidence``. IBPO's table 1 states means over 5 seeds, "95% bootstrap confidence intervals (mean ± 95%
    CI)" and "statistically significant against all baselines under a normal-approximation test (p<0.01)".
    The text leaves open what is drawn (seeds, problems, the 64 evaluations), whether the arms are paired,
    one or two sides, and any correction for the 24 comparisons. Read this way, unpaired and two-sided, the
    printed intervals give p < 0.01 in all 24, the largest 0.00997.

    Results on the same problems, or of the same seeds, are not independent: use a paired test for those.
    """
    z = stats.norm.ppf((1 + fraction("confidence", confidence)) / 2)
    check_estimate("a", a), check_estimate("b", b)
    error = float(np.hypot(half_width(a), half_width(b)) / z)
    value = a.value - b.value
    half = z * error
    method = "normal approximation, two independent results"
    difference = Estimate(
        value,
        value - half,
        value + half,
        min(a.n, b.n),
        a.n_unit,
        tuple(sorted({*a.seeds, *b.seeds})),
        method,
    )
    return Comparison(float(2 * stats.norm.sf(abs(value) / error)), difference, method)


def half_width(estimate: Estimate) -> float:
    """The "± x" of a table: half the interval. ValueError where the interval is unknown or has no width."""
    check_estimate("estimate", estimate)
    if estimate.low is None or estimate.high is None or not estimate.high > estimate.low:
        raise ValueError(f"interval [{estimate.low}, {estimate.high}] is unknown: a test needs its width")
    return (estimate.high - estimate.low) / 2


def seed_tests(
    a: ArrayLike,
    b: ArrayLike,
    seeds_a: Sequence[int],
    seeds_b: Sequence[int],
    *,
    resamples: int = 9999,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, Comparison]:
    """Two arms by their training seeds, unpaired: as IBPO reports, and beside it what few seeds allow.

    Args:
        a, b: [seeds] accuracy of every training seed, or [seeds, evaluations] whose mean it is (IBPO: 5
            seeds, 64 evaluations each).
        seeds_a, seeds_b: the seeds.

    Returns:
        ``bootstrap``: difference of means, seeds of either arm drawn with replacement, p from the centred
        resamples; ``normal``: :func:`normal_test` of the arms' bootstrap intervals over seeds; ``welch``:
        Student's t with unequal variances. The first two take five seeds for many: a bootstrap of 5 has a
        spread ``sqrt(4/5)`` of the true one. Where they and Welch disagree, believe Welch.
    """
    check_resampling(resamples, confidence, seed)
    seeds_a, seeds_b = seeds_of(seeds_a, "seeds_a"), seeds_of(seeds_b, "seeds_b")
    first, second = _by_seed(a, seeds_a, "a"), _by_seed(b, seeds_b, "b")
    rng = np.random.default_rng(seed)
    means = [resampled_means(x[None], resamples, rng)[0] for x in (first, second)]
    value = float(first.mean() - second.mean())
    shared = {
        "n": min(len(first), len(second)),
        "n_unit": "seeds",
        "confidence": confidence,
        "seeds": tuple(sorted({*seeds_a, *seeds_b})),
    }
    how = f"bootstrap over seeds, percentile, {resamples} resamples"
    arms = [
        bootstrap_interval(float(x.mean()), m, method=how, **shared | {"n": len(x), "seeds": tuple(s)})
        for x, m, s in zip((first, second), means, (seeds_a, seeds_b), strict=True)
    ]
    draws = means[0] - means[1]
    boot = bootstrap_interval(value, draws, method=f"unpaired, {how}", **shared)
    normal = normal_test(*arms, confidence=confidence)  # raises where the seeds are alike, so it comes first
    t = stats.ttest_ind(first, second, equal_var=False)
    ends = t.confidence_interval(confidence)
    welch = "Welch's t over seeds, unpaired"
    return {
        "bootstrap": Comparison(_monte_carlo(draws - value, value), boot, f"centred {boot.method}"),
        "normal": normal,
        "welch": Comparison(
            float(t.pvalue),
            Estimate(value, float(ends.low), float(ends.high), shared["n"], "seeds", shared["seeds"], welch),
            welch,
        ),
    }


def non_inferior(difference: Estimate, margin: float) -> Verdict:
    """Is ``a - b`` above ``-margin``? supported: the whole interval is; contradicted: none of it; else open.

    ``margin > 0`` in units of the difference, fixed before looking. A 95 % interval makes it a one-sided test
    at 2.5 %. "supported" is not "better": that is an interval above 0. The verdict reaches as far as the
    interval: over problems it says nothing about another training seed.
    """
    low, high, margin = *_ends(difference), _margin(margin)
    if low is None:
        return "open"
    return "supported" if low >= -margin else "contradicted" if high < -margin else "open"


def equivalent(difference: Estimate, margin: float) -> Verdict:
    """Is ``a - b`` within ``±margin``? As :func:`non_inferior`, on both sides (two one-sided tests).

    For the usual test at 5 % give a 90 % interval. A difference that is not significant is not equivalence.
    """
    low, high, margin = *_ends(difference), _margin(margin)
    if low is None:
        return "open"
    if -margin <= low and high <= margin:
        return "supported"
    return "contradicted" if high < -margin or low > margin else "open"


def holm(p_values: Sequence[float]) -> Floats:
    """Holm's adjusted p-values, in the given order, each to compare with alpha; tests may be dependent."""
    p = numbers_of("p_values", p_values)
    if p.ndim != 1 or not len(p) or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p_values={p_values}: allowed are one or more numbers in [0, 1]")
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    out = np.empty(len(p))
    out[order] = np.minimum(raised, 1.0)
    return out


def multiplicity_note(n_tests: int, method: Literal["holm", "none"], alpha: float = 0.05) -> str:
    """The line under a table that tests ``n_tests`` differences."""
    n_tests, alpha = whole("n_tests", n_tests), fraction("alpha", alpha)
    if method == "holm":
        return f"{n_tests} tests; p-values are adjusted by Holm's method over all of them."
    if method == "none":
        any_of = 1 - (1 - alpha) ** n_tests
        return (
            f"{n_tests} tests, not adjusted: if nothing differed and the tests were independent, one or more "
            f"would still have p < {alpha:g} with probability {any_of:.2f}."
        )
    raise ValueError(f"method={method!r}: allowed are holm, none")


def _flipped(size: Floats, draws: int, seed: int) -> Iterator[Floats]:
    """Sums of ``size`` under random signs, in pieces."""
    rng = np.random.default_rng(seed)
    step = max(1, CHUNK // len(size))
    for start in range(0, draws, step):
        shape = (min(step, draws - start), len(size))
        yield (2.0 * rng.integers(2, size=shape, dtype=np.int8) - 1) @ size


def _monte_carlo(null: Floats, value: float) -> float:
    extreme = int((np.abs(null) >= abs(value) - _ROUNDING).sum())
    return (extreme + 1) / (len(null) + 1)


def _by_seed(values: ArrayLike, seeds: Sequence[int], name: str) -> Floats:
    values = numbers_of(name, values)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or len(values) != len(seeds) or len(set(seeds)) != len(seeds) or len(values) < 2:
        raise ValueError(
            f"{name} has shape {values.shape} for seeds {list(seeds)}: allowed are two or more distinct "
            "seeds, one row each"
        )
    if np.isnan(values).all(1).any():
        raise ValueError(f"{name}: a seed has no value; leave it out")
    return np.nanmean(values, axis=1)


def _ends(estimate: Estimate) -> tuple[float | None, float | None]:
    check_estimate("difference", estimate)
    ends = (estimate.low, estimate.high)
    return ends if all(e is not None and np.isfinite(e) for e in ends) else (None, None)


def _margin(margin: float) -> float:
    if isinstance(margin, bool) or not isinstance(margin, numbers.Real) or not 0 < margin < np.inf:
        raise ValueError(f"margin={margin!r}: allowed are finite numbers > 0")
    return margin
