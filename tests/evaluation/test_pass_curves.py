"""pass@k curves and their crossing: slow bootstrap, typed-in crossings, and no crossing within reach."""

import math

import numpy as np
import pytest

from rlvr.evaluation import count_correct, curve_crossing, pass_at_k, pass_curve
from rlvr.evaluation.curves import _first_crossing

KS = [1, 2, 4, 8, 16, 32, 64]
N = 512


def policies(problems=60, seed=0, reach=0.3):
    """(n, c) of a sharp policy that solves ``reach`` of the problems often, and of a broad one."""
    rng = np.random.default_rng(seed)
    sharp = np.where(rng.random(problems) < reach, 0.9, 0.0)
    broad = rng.uniform(0.02, 0.2, problems)
    n = np.full(problems, N)
    return (n, rng.binomial(n, sharp)), (n, rng.binomial(n, broad))


def test_curve_is_the_mean_of_pass_at_k_with_a_band():
    _, (n, c) = policies()
    curve = pass_curve(n, c, KS, seeds=[0])
    for row in curve.itertuples():
        assert row.value == pytest.approx(pass_at_k(n, c, row.k).mean())
        assert row.low < row.value < row.high and row.estimate.n == 60 and row.estimate.seeds == (0,)
        assert "pointwise" in row.estimate.method
    rng = np.random.default_rng(9)
    values = pass_at_k(n, c, 8)
    slow = np.quantile([values[rng.integers(60, size=60)].mean() for _ in range(4000)], [0.025, 0.975])
    assert curve.loc[3, ["low", "high"]].tolist() == pytest.approx(slow, abs=0.01)
    order = rng.permutation(60)
    again = pass_curve(n[order], c[order], KS, seeds=[0])
    np.testing.assert_allclose(again[["value", "low", "high"]], curve[["value", "low", "high"]], rtol=1e-12)


def test_band_covers_the_true_curve():
    rng = np.random.default_rng(1)
    hits = np.zeros(3)
    for trial in range(200):
        p = rng.beta(0.5, 1.5, 50)
        n = np.full(50, 64)
        curve = pass_curve(n, rng.binomial(n, p), [1, 4, 16], resamples=300, seed=trial)
        # E[1 - (1-p)^k] for beta(a, b) is 1 - B(a, b+k) / B(a, b)
        truth = [
            1 - math.exp(math.lgamma(1.5 + k) + math.lgamma(2) - math.lgamma(2 + k) - math.lgamma(1.5))
            for k in (1, 4, 16)
        ]
        hits += [low <= t <= high for t, low, high in zip(truth, curve["low"], curve["high"], strict=True)]
    assert (hits / 200 >= 0.9).all() and (hits / 200 <= 0.99).all()


def test_crossing_where_it_was_put():
    # sharp: always pass@k = 0.5. broad: every problem p = 0.1, so 1 - 0.9^k = 0.5 at k = 6.58
    n = np.full(40, 100_000)
    sharp, broad = (n, np.repeat([0, 100_000], 20)), (n, np.full(40, 10_000))
    found = curve_crossing(sharp, broad, range(1, 65), seeds=[3])
    assert found.value == pytest.approx(math.log(0.5) / math.log(0.9), abs=0.02)
    assert found.leader == "a" and found.largest_k == 64 and found.n == 40 and found.seeds == (3,)
    # sharp's mean in resamples is binomial(40, 1/2) / 40: ends at 0.35 and 0.65
    assert found.low == pytest.approx(math.log(1 - 0.35) / math.log(0.9), abs=0.05)
    assert found.high == pytest.approx(math.log(1 - 0.65) / math.log(0.9), abs=0.05)
    assert found.share == pytest.approx(1, abs=0.001)
    mirrored = curve_crossing(broad, sharp, range(1, 65), seeds=[3])
    assert mirrored.leader == "b" and mirrored.value == found.value
    assert (mirrored.low, mirrored.high) == pytest.approx((found.low, found.high), rel=0.1)
    estimate = found.estimate()
    assert (estimate.value, estimate.low, estimate.high) == (found.value, found.low, found.high)
    assert found.format().startswith("k = 6.57 [")


def test_grid_is_linear_in_log_k():
    n = np.full(2, 1000)
    found = curve_crossing(
        (n, [500, 500]), (n, [0, 1000]), [1, 2]
    )  # equal at k = 1, 0.75 against 0.5 at k = 2
    assert found.leader == "a" and math.isinf(found.value)
    # a leads by 0.2 at k = 1 and trails by 0.2 at k = 4: half way in log k
    lead = np.array([[0.2], [-0.2]])
    assert _first_crossing(lead, [1, 4])[0] == pytest.approx(2)
    assert _first_crossing(-lead, [1, 4])[0] == 1  # behind from the first k on
    assert math.isinf(_first_crossing(np.abs(lead), [1, 4])[0])
    several = np.array([[0.3], [-0.1], [0.2], [-0.4]])
    assert 1 < _first_crossing(several, [1, 2, 4, 8])[0] < 2


# LeapLabTHU/limit-of-RLVR#12: at the k that was looked at the crossing does not appear
@pytest.mark.fault("crossing-without-a-band")
def test_no_crossing_within_reach_is_an_answer():
    sharp, broad = policies(reach=0.6)
    found = curve_crossing(sharp, broad, [1, 2, 4])
    assert math.isinf(found.value) and found.share < 0.05
    assert found.format() == "no crossing within k <= 4 [beyond 4, beyond 4]"
    estimate = found.estimate()
    assert math.isnan(estimate.value) and estimate.low is None and estimate.n == 60
    wide = curve_crossing(sharp, broad, KS)
    assert 4 < wide.value < 64 and wide.share > 0.95


def test_an_end_may_lie_out_of_reach():
    rng = np.random.default_rng(5)
    n = np.full(12, 256)
    sharp, broad = (n, np.where(np.arange(12) < 7, 256, 0)), (n, rng.binomial(n, 0.12))
    found = curve_crossing(sharp, broad, [1, 2, 4, 8])
    assert found.low < 8 and math.isinf(found.high) and 0.05 < found.share < 0.95
    assert found.estimate().low is None
    assert "beyond 8" in found.format()


def test_what_the_data_cannot_tell():
    n = np.full(3, 8)
    alike = curve_crossing((n, [2, 4, 6]), (n, [2, 4, 6]), [1, 2])
    assert alike.leader is None and math.isinf(alike.value) and alike.low is None
    assert "unknown" in alike.format()
    one = curve_crossing(([8], [4]), ([8], [3]), [1, 2])
    assert one.low is None and one.estimate().low is None


@pytest.mark.fault("crossing-without-a-band")
def test_interval_of_the_crossing_covers():
    rng = np.random.default_rng(7)
    truth = math.log(0.5) / math.log(0.9)
    n, hits = np.full(60, 400), 0
    for trial in range(150):
        sharp = np.where(rng.random(60) < 0.5, 400, 0)
        broad = rng.binomial(n, 0.1)
        found = curve_crossing(
            (n, sharp), (n, broad), [1, 2, 3, 4, 6, 8, 12, 16, 32], resamples=300, seed=trial
        )
        hits += found.low <= truth <= found.high
    assert 0.89 <= hits / 150 <= 0.99


@pytest.mark.parametrize(
    ("ks", "b", "name"),
    [
        ([4], ([8, 8], [1, 2]), "ks="),
        ([2, 1], ([8, 8], [1, 2]), "ks="),
        ([1, 16], ([8, 8], [1, 2]), "k=16 exceeds"),
        ([1, 2], ([8], [1]), "same problems"),
        ([1, 2], ([[8, 8]], [[1, 2]]), "b has shapes"),
    ],
)
def test_bad_input(ks, b, name):
    with pytest.raises(ValueError, match=name):
        curve_crossing(([8, 8], [1, 2]), b, ks)


def test_problems_with_different_numbers_of_samples():
    n, c = count_correct([[1, 0, 1, math.nan], [0, 0, 1, 1]])
    assert pass_curve(n, c, [1])["value"][0] == pytest.approx((2 / 3 + 1 / 2) / 2)
