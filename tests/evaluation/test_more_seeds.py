"""Planning seeds: against scipy's own power, against simulation, and the edges."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rlvr.evaluation.intervals import Estimate
from rlvr.evaluation.more_seeds import MOST_SEEDS, more_seeds, scale_of, seed_spread


def estimate(values, confidence=0.95) -> Estimate:
    values = np.asarray(values, float)
    n = len(values)
    half = stats.t.ppf((1 + confidence) / 2, n - 1) * values.std(ddof=1) / np.sqrt(n)
    mean = values.mean()
    return Estimate(mean, mean - half, mean + half, n, "seeds", tuple(range(n)), "t")


def test_the_spread_is_that_of_the_values():
    values = [0.01, 0.03, -0.02, 0.05]
    for confidence in (0.8, 0.95):
        found = seed_spread(estimate(values, confidence), confidence)
        assert found == pytest.approx(np.std(values, ddof=1))


@pytest.mark.parametrize(("mean", "threshold", "n"), [(0.01, 0.0, 12), (0.0, -0.02, 5), (-0.03, 0.0, 8)])
def test_the_chance_is_that_of_a_simulation(mean, threshold, n):
    values = np.array([0.01, 0.03, -0.02, -0.02])
    values = values - values.mean() + mean
    spread = values.std(ddof=1)
    plan = more_seeds(estimate(values), threshold, n)
    draws = np.random.default_rng(0).normal(mean, spread, (40_000, n))
    half = stats.t.ppf(0.975, n - 1) * draws.std(axis=1, ddof=1) / np.sqrt(n)
    outside = abs(draws.mean(axis=1) - threshold) > half
    assert plan.decides == pytest.approx(outside.mean(), abs=0.01)


def test_needed_is_the_fewest():
    plan = more_seeds(estimate([0.01, 0.03, -0.02, 0.03]), 0.0, 4)
    at = more_seeds(estimate([0.01, 0.03, -0.02, 0.03]), 0.0, plan.needed)
    before = more_seeds(estimate([0.01, 0.03, -0.02, 0.03]), 0.0, plan.needed - 1)
    assert at.decides >= 0.8 > before.decides
    # Known: a standardised effect of 0.5 needs 34 pairs for 80 % (two-sided 5 %).
    half_sd = np.array([0.5 - 1, 0.5, 0.5 + 1])
    assert more_seeds(estimate(half_sd), 0.0, 3).needed == 34


def test_no_effect_decides_by_chance_alone_and_needs_too_many():
    plan = more_seeds(estimate([-1.0, 0.0, 1.0]), 0.0, 10)
    assert plan.decides == pytest.approx(0.05) and plan.needed is None
    tiny = more_seeds(estimate([-1.0, 0.01, 1.0]), 0.0, MOST_SEEDS)
    assert tiny.needed is None


def test_a_ratio_is_planned_on_its_log():
    # Logs -0.1, 0, 0.1 about log 1.5: spread 0.1; t(0.975, 2) = 4.3027 makes it half a width of 0.24841.
    ratio = Estimate(1.5, 1.17006, 1.92299, 3, "seeds", (0, 1, 2), "t of the log")
    assert scale_of(ratio) == "log" and seed_spread(ratio, 0.95) == pytest.approx(0.1, rel=1e-4)
    plan = more_seeds(ratio, 1.0, 6)
    plain = more_seeds(estimate(np.log(1.5) + np.array([-0.1, 0.0, 0.1])), 0.0, 6)
    assert plan.decides == pytest.approx(plain.decides, abs=1e-3) and plan.needed == plain.needed == 3
    assert more_seeds(ratio, 0.0, 6) is None, "no ratio is 0"


def test_a_correlation_is_planned_on_its_atanh():
    # atanh 0.1, 0.3, 0.5: mean 0.3, spread 0.2, half a width 0.496828.
    correlation = Estimate(0.29131261, -0.19432499, 0.66225971, 3, "seeds", (0, 1, 2), "t of atanh")
    ends = np.tanh([0.3 - 0.496828, 0.3 + 0.496828])
    assert [correlation.low, correlation.high] == pytest.approx(ends, abs=1e-5)
    assert scale_of(correlation) == "atanh" and seed_spread(correlation, 0.95) == pytest.approx(0.2, rel=1e-3)
    # A standardised effect of 1.5 needs 6 seeds for 80 % (two-sided 5 %).
    assert more_seeds(correlation, 0.0, 9).needed == 6


def test_an_interval_of_no_known_scale_is_no_plan():
    odd = Estimate(0.1, -0.1, 0.9, 3, "seeds", (0, 1, 2), "exp of t")
    assert scale_of(odd) is None and more_seeds(odd, 0.0, 9) is None
    assert scale_of(estimate([0.5, 0.6, 0.8])) == "plain"


def test_without_a_spread_over_seeds_there_is_no_plan():
    exact = Estimate(1.0, 1.0, 1.0, 100, "patterns", (), "exact")
    unknown = Estimate(0.1, None, None, 1, "seeds", (0,), "t")
    assert more_seeds(exact, 0.0, 10) is None and more_seeds(unknown, 0.0, 10) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [({"seeds": 1}, "seeds=1"), ({"power": 1.0}, "power"), ({"confidence": 95}, "confidence")],
)
def test_bad_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        more_seeds(estimate([0.0, 1.0]), 0.0, **({"seeds": 5} | change))
