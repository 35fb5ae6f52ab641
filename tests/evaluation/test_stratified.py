"""Aggregates over benchmarks and seeds: typed in, slow loops, rliable, and what each unit covers."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from rlvr.evaluation import (
    aggregate,
    benchmark_mean,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)
from rlvr.evaluation.stratified import UNITS

NAN = float("nan")
TAUS = [0.0, 0.3, 0.5, 0.9]


def scores(seed=0, seeds=5, sizes=(30, 8, 1)):
    rng = np.random.default_rng(seed)
    return {f"b{i}": rng.random((seeds, n)) for i, n in enumerate(sizes)}


def matrix(values):
    return np.stack([np.asarray(values[name]).mean(1) for name in sorted(values)], axis=1)


def test_typed_in():
    x = [[0.1, 0.2], [0.3, 0.4], [0.5, 1.0], [0.7, 0.0]]
    assert benchmark_mean(x) == pytest.approx(0.4)
    assert interquartile_mean(x) == pytest.approx((0.2 + 0.3 + 0.4 + 0.5) / 4)
    assert interquartile_mean([[0.1, 0.9, 0.2]]) == pytest.approx(0.4)  # a quarter of three is none
    values = {"b": [[1, 0], [1, NAN]], "a": [[0.5, 0.5], [0.0, 1.0]]}
    assert aggregate(values, unit="seeds").value == pytest.approx((0.5 + 0.75) / 2)
    big = {"a": np.zeros((1, 500)), "b": np.ones((1, 30))}
    assert aggregate(big, unit="problems").value == 0.5  # benchmarks count alike, however many problems


@pytest.mark.parametrize("shape", [(3, 4), (5, 7), (1, 1), (10, 2)])
def test_interquartile_mean_is_the_trimmed_mean(shape):
    x = np.random.default_rng(1).random((6, *shape))
    expected = [stats.trim_mean(one, 0.25, axis=None) for one in x]
    np.testing.assert_allclose(interquartile_mean(x), expected)


def slow_draw(values, unit, rng):
    names, out = sorted(values), []
    seeds = rng.integers(5, size=5)
    for name in names:
        x = np.asarray(values[name])
        if "problems" in unit:
            x = x[:, rng.integers(x.shape[1], size=x.shape[1])]
        if unit == "seeds within benchmark":
            seeds = rng.integers(5, size=5)
        out.append((x if unit == "problems" else x[seeds]).mean(1))
    return np.stack(out, axis=1)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("statistic", [benchmark_mean, interquartile_mean])
def test_intervals_against_a_slow_bootstrap(unit, statistic):
    values, rng = scores(), np.random.default_rng(7)
    found = aggregate(values, statistic, unit=unit, resamples=6000, seeds=range(5))
    slow = np.quantile([statistic(slow_draw(values, unit, rng)) for _ in range(3000)], [0.025, 0.975])
    assert found.value == pytest.approx(statistic(matrix(values)))
    assert (found.low, found.high) == pytest.approx(tuple(slow), abs=0.012)
    assert (found.n, found.n_unit) == ((39, "problems") if unit == "problems" else (5, "seeds"))
    assert unit in found.method and found.seeds == (0, 1, 2, 3, 4)
    assert aggregate(values, statistic, unit=unit, resamples=6000, seeds=range(5)) == found
    turned = dict(reversed(values.items()))
    assert aggregate(turned, statistic, unit=unit, resamples=6000, seeds=range(5)) == found


def test_missing_scores_are_left_out():
    values = scores()
    holed = values | {"b0": np.where(np.arange(30) < 25, values["b0"], NAN)}
    short = values | {"b0": values["b0"][:, :25]}
    assert aggregate(holed, unit="seeds") == aggregate(short, unit="seeds")
    a, b = (aggregate(x, unit="problems", resamples=4000) for x in (holed, short))
    assert a.value == pytest.approx(b.value) and (a.low, a.high) == pytest.approx((b.low, b.high), abs=0.01)


def test_one_seed_says_nothing_about_seeds():
    values = scores(seeds=1)
    assert aggregate(values, unit="seeds").low is None
    assert aggregate(values, unit="problems").low is not None


def test_coverage_by_unit():
    # seeds move all benchmarks together, as a trained policy does
    rng, hits = np.random.default_rng(2), dict.fromkeys(UNITS, 0)
    trials = 300
    for trial in range(trials):
        shared = rng.normal(0, 0.05, 10)
        values = {b: 0.5 + (shared + rng.normal(0, 0.01, 10))[:, None] + rng.normal(0, 0.1, 40) for b in "ab"}
        for unit in UNITS:
            found = aggregate(values, unit=unit, resamples=200, seed=trial)
            hits[unit] += found.low <= 0.5 <= found.high
    # only the last one draws all that varies here
    assert 0.88 <= hits["seeds and problems"] / trials <= 0.99
    assert max(hits[u] for u in UNITS[:3]) / trials < 0.85
    assert hits["seeds within benchmark"] < hits["seeds"]


@pytest.mark.fault("interval-that-does-not-cover")
def test_few_seeds_make_a_bootstrap_too_narrow():
    rng = np.random.default_rng(3)
    found = [
        aggregate({"a": rng.normal(0.5, 0.05, 5)}, unit="seeds", resamples=200, seed=i) for i in range(500)
    ]
    assert np.mean([e.low <= 0.5 <= e.high for e in found]) == pytest.approx(0.85, abs=0.04)


def test_performance_profile():
    values = {"a": [0.2, 0.4], "b": [0.6, 0.4]}
    found = performance_profile(values, [0.1, 0.4, 0.5, 0.6], unit="seeds within benchmark")
    assert found["value"].tolist() == [1, 0.25, 0.25, 0]  # above, not at
    assert found["estimate"][0].low is None and list(found.columns) == [
        "threshold",
        "estimate",
        "value",
        "low",
        "high",
    ]
    profile = performance_profile(scores(), np.linspace(0, 1, 11), unit="problems")
    assert (np.diff(profile["value"]) <= 0).all() and profile["value"].iloc[0] == 1


def slow_wins(a, b):
    per = []
    for column in range(a.shape[1]):
        pairs = [(x, y) for x in a[:, column] for y in b[:, column]]
        per.append(np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x, y in pairs]))
    return np.mean(per)


@pytest.mark.parametrize("unit", UNITS)
def test_probability_of_improvement(unit):
    rng = np.random.default_rng(4)
    a = {n: rng.integers(0, 5, (5, 6)) / 4 for n in "xy"}
    b = {n: rng.integers(0, 4, (3, 6)) / 4 for n in "xy"}
    found = probability_of_improvement(a, b, unit=unit)
    assert found.value == pytest.approx(slow_wins(matrix(a), matrix(b)))
    assert found.low < found.value < found.high
    mirrored = probability_of_improvement(b, a, unit=unit)
    assert mirrored.value == pytest.approx(1 - found.value)
    assert probability_of_improvement(a, a, unit=unit).value == 0.5


def test_improvement_draws_the_same_problems_for_both():
    rng = np.random.default_rng(5)
    hard = rng.random(50)
    a = {"x": np.clip(hard + 0.01, 0, 1)[None].repeat(2, 0)}
    b = {"x": hard[None].repeat(2, 0)}
    found = probability_of_improvement(a, b, unit="problems", resamples=300)
    assert found.value == 1 and found.low is None  # better on every problem: in every resample too


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: aggregate({}, unit="seeds"), "scores is empty"),
        (lambda: aggregate({"a": [0.1], "b": [0.1, 0.2]}, unit="seeds"), "seeds"),
        (lambda: aggregate({"a": [[[0.1]]]}, unit="seeds"), "a has shape"),
        (lambda: aggregate({"a": [[NAN], [0.1]]}, unit="seeds"), "no score at all"),
        (lambda: aggregate({"a": [0.1, 0.2]}, unit="rows"), "unit='rows'"),
        (lambda: aggregate({"a": [0.1, 0.2]}, unit="seeds", resamples=0), "resamples=0"),
        (lambda: probability_of_improvement({"a": [0.1]}, {"b": [0.1]}, unit="seeds"), "benchmarks"),
        (
            lambda: probability_of_improvement({"a": [[0.1, 0.2]]}, {"a": [[0.1]]}, unit="problems"),
            "same problems",
        ),
        (
            lambda: probability_of_improvement(
                {"a": pd.DataFrame([[0.1]], columns=["p"])},
                {"a": pd.DataFrame([[0.1]], columns=["q"])},
                unit="problems",
            ),
            "different problems",
        ),
    ],
)
def test_bad_input(call, name):
    with pytest.raises(ValueError, match=name):
        call()


# --- rliable --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rliable():
    pytest.importorskip("arch", reason="rliable needs arch: pip install rliable 'arch<8' 'pandas<3'")
    library = pytest.importorskip(
        "rliable.library", reason="parity with rliable: pip install rliable 'arch<8' 'pandas<3'"
    )
    return library, pytest.importorskip("rliable.metrics")


def test_point_estimates_are_those_of_rliable(rliable):
    library, metrics = rliable
    rng = np.random.default_rng(6)
    for shape in ((5, 3), (10, 7), (3, 26)):
        x, y = rng.integers(0, 20, shape) / 20, rng.integers(0, 20, (4, shape[1])) / 20
        mine = [{f"{i:02}": column for i, column in enumerate(m.T)} for m in (x, y)]
        unit = "seeds within benchmark"
        assert aggregate(mine[0], unit=unit).value == pytest.approx(metrics.aggregate_mean(x))
        assert aggregate(mine[0], interquartile_mean, unit=unit).value == pytest.approx(
            metrics.aggregate_iqm(x)
        )
        expected = metrics.probability_of_improvement(x, y)
        assert probability_of_improvement(*mine, unit=unit).value == pytest.approx(expected)
        profile = performance_profile(mine[0], TAUS, unit=unit)["value"]
        np.testing.assert_allclose(profile, library.score_distributions(x, TAUS))


def test_intervals_are_those_of_rliable(rliable):
    library, metrics = rliable
    x = np.random.default_rng(8).random((8, 5))
    y = x[:6] - 0.1
    mine = [{str(i): column for i, column in enumerate(m.T)} for m in (x, y)]
    np.random.seed(0)  # the generator that rliable draws from, whatever random_state it is given
    try:
        for name, statistic in (("mean", benchmark_mean), ("iqm", interquartile_mean)):
            theirs = getattr(metrics, f"aggregate_{name}")
            _, ends = library.get_interval_estimates(
                {"x": x}, lambda s, f=theirs: np.array([f(s)]), reps=4000
            )
            found = aggregate(mine[0], statistic, unit="seeds within benchmark", resamples=4000)
            assert (found.low, found.high) == pytest.approx(tuple(ends["x"][:, 0]), abs=0.01)
        _, ends = library.get_interval_estimates(
            {"x": (x, y)}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=1000
        )
    except TypeError as error:
        pytest.skip(f"this arch is too new for rliable: {error}")
    found = probability_of_improvement(*mine, unit="seeds within benchmark", resamples=4000)
    assert (found.low, found.high) == pytest.approx(tuple(ends["x"][:, 0]), abs=0.025)
