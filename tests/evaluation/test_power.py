"""The smallest detectable difference: typed in, and the power that it promises by simulation."""

import numpy as np
import pytest
from scipy import stats

from rlvr.evaluation import (
    detectable_difference,
    paired_difference,
    paired_variance,
    power_note,
    unpaired_variance,
)
from rlvr.evaluation.power import DifferenceVariance

NAN = float("nan")


def draw(rng, p, samples):
    return (rng.random((len(p), samples)) < np.asarray(p)[:, None]).astype(float)


def test_typed_in():
    variance = DifferenceVariance(0.04, 0.32, "paired")
    t = stats.t.ppf(0.975, 29) + stats.t.ppf(0.8, 29)
    assert detectable_difference(variance, 30, 32) == pytest.approx(t * np.sqrt((0.04 + 0.01) / 30))
    unpaired = DifferenceVariance(0.04, 0.32, "unpaired")
    t = stats.t.ppf(0.975, 58) + stats.t.ppf(0.8, 58)
    assert detectable_difference(unpaired, 30, 32) == pytest.approx(t * np.sqrt(0.05 / 30))
    assert detectable_difference(variance, 30, 10**9) == pytest.approx(
        detectable_difference(DifferenceVariance(0.04, 0, "paired"), 30, 1)
    )


def test_components_are_unbiased():
    rng = np.random.default_rng(0)
    p = rng.beta(2, 2, 60)
    q = np.clip(p + rng.normal(0, 0.1, 60), 0, 1)
    within = (p * (1 - p)).mean() + (q * (1 - q)).mean()
    for function, between in (
        (paired_variance, (p - q).var(ddof=1)),
        (unpaired_variance, p.var(ddof=1) + q.var(ddof=1)),
    ):
        found = [function(draw(rng, p, 8), draw(rng, q, 8)) for _ in range(600)]
        assert np.mean([f.within for f in found]) == pytest.approx(within, rel=0.02)
        assert np.mean([f.between for f in found]) == pytest.approx(between, rel=0.06)


def test_one_run_gives_the_best_case():
    rng = np.random.default_rng(1)
    a = draw(rng, rng.beta(0.5, 0.5, 40), 16)
    alone, unpaired = paired_variance(a), unpaired_variance(a)
    assert alone.between == 0 and alone.within == pytest.approx(unpaired.within)
    assert unpaired.between == pytest.approx(2 * unpaired_variance(a, a).between / 2)
    sizes = [detectable_difference(v, 40, 16) for v in (alone, unpaired)]
    assert sizes[0] < sizes[1] / 3


def test_missing_samples():
    a = [[1, 0, 1, NAN], [0, 0, 1, 1], [NAN] * 4, [1, 1, NAN, NAN]]
    found = unpaired_variance(a)
    rates, within = np.array([2 / 3, 0.5, 1]), np.array([1 / 3, 1 / 3, 0])
    assert found.within == pytest.approx(2 * within.mean())
    assert found.between == pytest.approx(2 * (rates.var(ddof=1) - (within / [3, 4, 2]).mean()))


@pytest.mark.parametrize("design", ["paired", "unpaired"])
def test_power_is_as_promised(design):
    rng = np.random.default_rng(2)
    problems, samples, trials = 30, 8, 400
    # rates far from 0 and 1, so that a shift is a shift for every problem
    rates = lambda shift: 0.25 + 0.35 * rng.random(problems) + shift  # noqa: E731
    pilot = 0.25 + 0.35 * rng.random(20_000)
    variance = (
        paired_variance(draw(rng, pilot, samples), draw(rng, pilot, samples))
        if design == "paired"
        else unpaired_variance(draw(rng, pilot, samples))
    )
    effect = detectable_difference(variance, problems, samples)
    found = 0
    for _ in range(trials):
        p = rates(0)
        q = p + effect if design == "paired" else rates(effect)
        a, b = draw(rng, q, samples), draw(rng, p, samples)
        if design == "paired":
            found += paired_difference(a, b).low > 0
        else:
            found += stats.ttest_ind(a.mean(1), b.mean(1)).pvalue < 0.05
    assert found / trials == pytest.approx(0.8, abs=0.06)


def test_note():
    rng = np.random.default_rng(3)
    a = draw(rng, rng.beta(0.5, 0.5, 30), 32)
    note = power_note(a)
    assert note.startswith(
        "30 problems x 32 samples: a true difference is found with 80% power from at best "
    )
    assert "at best" not in power_note(a, draw(rng, a.mean(1), 32))
    value = 100 * detectable_difference(paired_variance(a), 30, 32)
    assert f"at best {value:.1f} points on (paired" in note


@pytest.mark.parametrize(
    "call",
    [
        lambda: unpaired_variance([[1], [0]]),
        lambda: unpaired_variance([[1, 0]]),
        lambda: paired_variance([[1, 0], [1, 1]], [[1, 0]]),
        lambda: detectable_difference(DifferenceVariance(0.1, 0.1, "paired"), 1, 8),
        lambda: detectable_difference(DifferenceVariance(0.1, 0.1, "paired"), 30, 0),
        lambda: detectable_difference(DifferenceVariance(0.1, 0.1, "paired"), 30, 8, power=80),
        lambda: detectable_difference(DifferenceVariance(0.1, 0.1, "paired"), 30, 8, confidence=95),
    ],
)
def test_bad_input(call):
    with pytest.raises(ValueError):
        call()
