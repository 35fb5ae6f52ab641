"""Correlation of prediction rank and gradient norm: typed-in, drift taken out, the seed as the unit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from rlvr.analysis.mtp_noise import prediction_by_step, rank_gradient_correlation


def updates(ranks, norms, seed=0, minibatches=2):
    number = np.arange(len(ranks))
    return pd.DataFrame(
        {
            "seed": seed,
            "step": number // minibatches,
            "minibatch": number % minibatches,
            "mtp_rank_2": ranks,
            "grad_norm": norms,
        }
    )


def noisy(seed, count=400, slope=0.0, drift=0.0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, count))
    time = np.linspace(0, drift, count)
    return updates(np.exp(x + time), np.exp(y + slope * x + time), seed)


def test_plain_correlation_typed_in():
    frame = updates([1.0, 2.0, 3.0, 4.0], [10.0, 30.0, 20.0, 40.0])
    found = rank_gradient_correlation(frame, detrend=False)
    assert found.value == pytest.approx(0.8)
    assert found.low is None and found.high is None and found.n == 1 and found.n_unit == "seeds"
    shuffled = rank_gradient_correlation(frame.sample(frac=1, random_state=1), detrend=False)
    assert shuffled.value == found.value


def test_the_average_over_seeds_by_hand():
    frames = [noisy(seed, slope=0.7) for seed in range(4)]
    found = rank_gradient_correlation(pd.concat(frames), detrend=False)
    rho = [stats.spearmanr(f["mtp_rank_2"], f["grad_norm"]).statistic for f in frames]
    z = np.arctanh(rho)
    half = stats.t.ppf(0.975, 3) * z.std(ddof=1) / 2
    assert found.value == pytest.approx(np.tanh(z.mean()))
    assert (found.low, found.high) == pytest.approx(tuple(np.tanh([z.mean() - half, z.mean() + half])))
    assert found.seeds == (0, 1, 2, 3) and "Spearman, Student t over seeds" in found.method


def test_two_series_that_only_drift_are_not_correlated():
    frame = pd.concat([noisy(seed, drift=6.0) for seed in range(6)])
    plain, partial = (rank_gradient_correlation(frame, detrend=d) for d in (False, True))
    assert plain.low > 0.5, "drift alone"
    assert partial.low < 0 < partial.high and abs(partial.value) < 0.1


def test_a_real_dependence_survives_the_drift():
    found = rank_gradient_correlation(pd.concat([noisy(s, slope=1.0, drift=3.0) for s in range(6)]))
    assert found.low > 0.3 and "given the update's number" in found.method


def test_perfect_agreement_has_a_finite_interval():
    frame = pd.concat([updates([3.0, 1.0, 2.0, 4.0, 0.5], [3.0, 1.0, 2.0, 4.0, 0.5], s) for s in (0, 1)])
    found = rank_gradient_correlation(frame, detrend=False)
    assert found.value == pytest.approx(1)


def test_what_cannot_be_correlated_is_refused():
    good = updates([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 5.0])
    with pytest.raises(ValueError, match="seed 0: 3 with a rank"):
        rank_gradient_correlation(good.assign(mtp_rank_2=[1.0, np.nan, 2.0, 3.0]))
    with pytest.raises(ValueError, match="mtp_rank_2 or grad_norm is the same in all"):
        rank_gradient_correlation(good.assign(grad_norm=1.0))
    with pytest.raises(ValueError, match="mtp_rank_3"):
        rank_gradient_correlation(good, k=3)
    with pytest.raises(ValueError, match="k=1"):
        rank_gradient_correlation(good, k=1)


def test_an_update_without_a_rank_counts_for_none():
    frame = pd.concat([updates([1.0, 3.0, 5.0, 5.0], [1.0] * 4, seed) for seed in (0, 1)])
    frame["tokens"] = [1, 3, 2, 2, 3, 1, 2, 2]
    frame["mtp_rank_2"] = [np.nan, 3.0, np.nan, np.nan, 1.0, 4.0, 5.0, 6.0]
    frame["mtp_loss_2"] = frame["mtp_rank_2"] / 10
    table = prediction_by_step(frame, 2)
    first, last = table["rank"]
    assert first.value == pytest.approx((3.0 + 1.75) / 2) and first.seeds == (0, 1)
    assert last.value == pytest.approx(5.5) and last.seeds == (1,)
    none = frame.assign(mtp_rank_2=np.nan, mtp_loss_2=np.nan)
    assert prediction_by_step(none, 2).empty


def test_prediction_by_step_weighs_updates_by_their_tokens():
    frame = pd.concat([updates([1.0, 3.0, 5.0, 5.0], [1.0] * 4, seed) for seed in (0, 1)])
    frame["tokens"] = [1, 3, 2, 2, 3, 1, 2, 2]
    frame["mtp_loss_2"] = frame["mtp_rank_2"] / 10
    table = prediction_by_step(frame, 2)
    assert table[["step", "k"]].to_numpy().tolist() == [[0, 2], [1, 2]]
    first, last = table["rank"]
    assert first.value == pytest.approx((2.5 + 1.5) / 2) and first.low < 2 < first.high
    assert last.value == 5 and last.low is None, "no spread among seeds tells nothing"
    assert table["loss"][0].value == pytest.approx(0.2)
