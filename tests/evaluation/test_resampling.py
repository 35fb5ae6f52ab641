"""One resampling core: the numbers of the loops it replaced, bit for bit, and columns of Estimates."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from rlvr.analysis.corrections import _median
from rlvr.analysis.surrogate import _standard_deviation
from rlvr.evaluation import Estimate, bootstrap_statistic, resampling, with_ends

MEAN = partial(np.mean, axis=-1)


def ends(draws, confidence):
    tail = (1 - confidence) / 2
    return tuple(np.quantile(draws, [tail, 1 - tail]))


def slow_standard_deviation(values, resamples, confidence):
    rng = np.random.default_rng(0)
    draws = [values[rng.integers(len(values), size=len(values))].std(ddof=1) for _ in range(resamples)]
    return values.std(ddof=1), *ends(np.array(draws), confidence)


def slow_median(by_seed, resamples, confidence):
    rng = np.random.default_rng(0)
    draws = [rng.choice(values, (resamples, len(values))) for values in by_seed]
    medians = np.median(np.concatenate(draws, axis=1), axis=1)
    return np.median(np.concatenate(by_seed)), *ends(medians, confidence)


@pytest.mark.parametrize("chunk", [1 << 22, 700, 1])
def test_standard_deviation_bit_for_bit(chunk, monkeypatch):
    monkeypatch.setattr(resampling, "CHUNK", chunk)
    rng = np.random.default_rng(1)
    for _ in range(20):
        values, resamples = rng.standard_t(2, rng.integers(2, 900)), int(rng.integers(2, 60))
        found = _standard_deviation(values, (0, 1), 0.9, resamples)
        assert (found.value, found.low, found.high) == slow_standard_deviation(values, resamples, 0.9)
        assert (found.n, found.n_unit, found.seeds) == (len(values), "prompts", (0, 1))
        assert found.method == f"bootstrap over prompts, percentile, {resamples} resamples"


def test_median_bit_for_bit():
    rng = np.random.default_rng(2)
    for _ in range(20):
        by_seed = [rng.standard_t(2, rng.integers(2, 40)) for _ in range(rng.integers(1, 5))]
        found = _median(by_seed, range(len(by_seed)), 200, 0.95)
        assert (found.value, found.low, found.high) == slow_median(by_seed, 200, 0.95)
        assert (found.n, found.n_unit, found.seeds) == (
            sum(map(len, by_seed)),
            "steps",
            (*range(len(by_seed)),),
        )
        assert found.method == "median over steps, bootstrap over steps within seeds, 200 resamples"


def test_tiny_spread_is_spread_and_none_is_unknown():
    tiny = bootstrap_statistic([[1e-17, 3e-17, 0.0]], MEAN)
    assert 0 <= tiny.low < tiny.high <= 3e-17
    for strata in ([[0.5, 0.5, 0.5]], [[0.1], [0.9]]):  # one value per stratum: nothing to resample
        found = bootstrap_statistic(strata, MEAN)
        assert found.value == pytest.approx(0.5) and found.low is None and "unknown" in found.method


def test_strata_keep_their_sizes():
    found = bootstrap_statistic([np.zeros(3), np.ones(1)], MEAN, n_unit="responses")
    assert found.value == 0.25 and found.low is None  # resampled as one pool, the mean would vary
    found = bootstrap_statistic([[0.0, 1.0] * 50, [5.0]], MEAN, resamples=500)
    assert found.n == 101 and 5 / 101 < found.low < found.value < found.high
    assert found.method.endswith("within strata")


@pytest.mark.parametrize(
    ("strata", "settings", "name"),
    [
        ([], {}, "strata"),
        ([[]], {}, "strata"),
        ([[[1.0]]], {}, "strata"),
        ([[1.0, float("nan")]], {}, "NaN"),
        ([[1.0, 2.0]], {"resamples": 0}, "resamples=0"),
        ([[1.0, 2.0]], {"confidence": 95}, "confidence=95"),
    ],
)
def test_bad_input(strata, settings, name):
    with pytest.raises(ValueError, match=name):
        bootstrap_statistic(strata, MEAN, **settings)


def test_with_ends():
    known = Estimate(0.5, 0.4, 0.6, 3, "problems", (0,), "m")
    unknown = Estimate(1, None, None, 1, "problems", (0,), "m")
    frame = pd.DataFrame({"k": [1, 2], "estimate": [known, unknown]}, index=[7, 7])
    found = with_ends(frame)
    assert list(found.columns) == ["k", "estimate", "value", "low", "high"]
    assert (found.dtypes[["value", "low", "high"]] == "float64").all()
    np.testing.assert_array_equal(found[["value", "low", "high"]], [[0.5, 0.4, 0.6], [1, np.nan, np.nan]])
    assert list(frame.columns) == ["k", "estimate"]  # the input is left alone
    assert with_ends(frame.rename(columns={"estimate": "pass@1"}), "pass@1")["low"].iloc[0] == 0.4
