"""The N-step surrogate on samples: slow loops, telescoping, exact expectations, and its intervals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from local_fixtures import PROBLEMS, codec, random_policy
from scipy import stats

from rlvr.analysis.surrogate import measure_surrogate, surrogate_estimates, surrogate_terms
from rlvr.engines.local.rollout import derive_seed
from rlvr.engines.local.sampling import sample
from rlvr.problems import get_task

HORIZONS = (1, 2, 4, 64)
LIMIT = 10
PROMPTS = 24


def batch(rows=6, width=9, spread=0.5, seed=0):
    """Log ratios and a mask of responses of different lengths, one of them of a single token."""
    generator = torch.Generator().manual_seed(seed)
    log_ratio = spread * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    lengths[0], lengths[1] = 1, width
    return log_ratio, (torch.arange(width) < lengths[:, None]).float()


def slow_terms(log_ratio, mask, horizon):
    sums = []
    for values, valid in zip(log_ratio.tolist(), mask.tolist(), strict=True):
        ratios = [math.exp(v) for v, m in zip(values, valid, strict=True) if m]
        total = 0.0
        for t, rho in enumerate(ratios):
            trace = 1.0
            for j in range(t + 1, min(t + horizon, len(ratios))):
                trace *= ratios[j]
            total += (rho - 1) * trace
        sums.append(total)
    return sums


@pytest.mark.parametrize("horizon", [1, 2, 3, 8, 9, 50])
def test_terms_slow_loop(horizon):
    log_ratio, mask = batch()
    found = surrogate_terms(log_ratio, mask, horizon)
    assert found.dtype == torch.float64 and found.shape == (6,)
    assert found.tolist() == pytest.approx(slow_terms(log_ratio, mask, horizon), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("horizon", [9, 10, 1000])
@pytest.mark.parametrize("spread", [0.5, 3.0])  # no clip hides in it: ratios up to thousands
def test_terms_telescope_to_the_ratio_of_the_whole_response(horizon, spread):
    log_ratio, mask = batch(spread=spread, seed=1)
    whole = torch.expm1((log_ratio * mask).sum(-1))
    assert surrogate_terms(log_ratio, mask, horizon).tolist() == pytest.approx(whole.tolist(), rel=1e-9)


def test_terms_typed_in():
    log_ratio = torch.tensor([[2.0, 0.5, 3.0]]).log()
    ones = torch.ones(1, 3)
    assert surrogate_terms(log_ratio, ones, 1).item() == pytest.approx(1 - 0.5 + 2, rel=1e-6)
    assert surrogate_terms(log_ratio, ones, 2).item() == pytest.approx(1 * 0.5 - 0.5 * 3 + 2, rel=1e-6)
    assert surrogate_terms(log_ratio, ones, 3).item() == pytest.approx(2 * 0.5 * 3 - 1, rel=1e-6)


def test_nothing_behind_the_end_of_a_response_counts():
    log_ratio, mask = batch()
    clean = surrogate_terms(log_ratio, mask, 3)
    for junk in (1e9, float("inf"), float("nan")):
        assert torch.equal(surrogate_terms(log_ratio.masked_fill(mask == 0, junk), mask, 3), clean)


def enumerate_responses(length=4, symbols=3, seed=0):
    """All responses of at most ``length`` tokens, symbol 0 ends one, under two random Markov policies.

    Returns log ratio [B, T], mask [B, T], and the probabilities [B] under mu and pi.
    """
    generator = torch.Generator().manual_seed(seed)
    mu, pi = (
        torch.randn(length, symbols, symbols, generator=generator, dtype=torch.float64).log_softmax(-1)
        for _ in range(2)
    )
    log_mu, log_ratio, mask = [], [], []
    for tokens in itertools.product(range(symbols), repeat=length):
        end = tokens.index(0) + 1 if 0 in tokens else length
        if any(tokens[end:]):
            continue  # one name per response: zeros behind its end
        before = 0
        rows = torch.zeros(3, length, dtype=torch.float64)
        for t, token in enumerate(tokens[:end]):
            rows[:, t] = torch.stack(
                [mu[t, before, token], pi[t, before, token] - mu[t, before, token], rows.new_ones(())]
            )
            before = token
        log_mu.append(rows[0].sum())
        log_ratio.append(rows[1])
        mask.append(rows[2])
    log_mu, log_ratio, mask = map(torch.stack, (log_mu, log_ratio, mask))
    return log_ratio, mask, log_mu.exp(), (log_mu + log_ratio.sum(-1)).exp()


@pytest.mark.parametrize("horizon", [1, 2, 3, 4, 7])
def test_expectation_under_mu_is_zero_for_every_horizon(horizon):
    log_ratio, mask, mu, pi = enumerate_responses()
    assert mu.sum().item() == pytest.approx(1, abs=1e-12) and pi.sum().item() == pytest.approx(1, abs=1e-12)
    terms = surrogate_terms(log_ratio, mask, horizon)
    assert terms.abs().max() > 0.5
    assert (mu * terms).sum().item() == pytest.approx(0, abs=1e-12)


def test_the_full_horizon_times_the_reward_is_the_gain_and_a_short_one_is_not():
    log_ratio, mask, mu, pi = enumerate_responses()
    reward = torch.rand(len(mu), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    gain = ((pi - mu) * reward).sum().item()
    estimate = {n: (mu * reward * surrogate_terms(log_ratio, mask, n)).sum().item() for n in (1, 4)}
    assert estimate[4] == pytest.approx(gain, abs=1e-12)
    assert abs(estimate[1] - gain) > 1e-3
    shifted = (mu * (reward - 0.7) * surrogate_terms(log_ratio, mask, 1)).sum().item()
    assert shifted == pytest.approx(estimate[1], abs=1e-12)  # centring the reward changes no expectation


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two policies that differ by noise, each with the tokenizer."""
    root, mu = tmp_path_factory.mktemp("policies"), random_policy(0)
    noise = torch.randn(mu.theta.shape, generator=torch.Generator().manual_seed(9))
    for name, policy in (("mu", mu), ("pi", mu.with_theta(mu.theta + 0.02 * noise))):
        policy.save_pretrained(root / name)
        codec().save(root / name)
    return root


def measure(folders, mu="mu", pi="pi", prompts=PROMPTS, seed=5, **more):
    return measure_surrogate(folders / mu, folders / pi, PROBLEMS, prompts, HORIZONS, LIMIT, seed, **more)


@pytest.fixture(scope="module")
def measured(folders):
    return measure(folders)


def test_measured_columns(measured):
    assert list(measured.columns) == ["reward_mu", "reward_pi", "tokens", "L1", "L2", "L4", "L64"]
    assert len(measured) == PROMPTS
    assert measured["tokens"].between(1, LIMIT).all()
    for name in ("reward_mu", "reward_pi"):
        assert set(measured[name]) == {0.0, 1.0}
    assert measured[["L1", "L2", "L4", "L64"]].abs().max().min() > 1e-3


def test_measuring_again_gives_the_same_and_another_seed_another(folders, measured):
    pd.testing.assert_frame_equal(measure(folders), measured)
    assert not measure(folders, seed=6).equals(measured)


def test_a_policy_against_itself_gains_nothing(folders):
    frame = measure(folders, pi="mu")
    assert (frame["reward_pi"] == frame["reward_mu"]).all()
    # Two code paths compute the same log-probabilities, in float32.
    assert frame[["L1", "L2", "L4", "L64"]].abs().max(axis=None) < 1e-4


def test_measured_rows_against_transformers(folders, measured):
    """From the formula: log-probs by the HF models, each reward centred by the mean of the others."""
    from rlvr.engines.local.policy import Policy

    mu, pi = (Policy.from_pretrained(folders / name) for name in ("mu", "pi"))
    task, words = get_task("parity"), codec()
    problems = task.generate("train", PROMPTS, derive_seed(5, 0), PROBLEMS.operations)
    prompts = words.encode_batch(p.prompt for p in problems)
    responses = sample(mu, prompts, 1, LIMIT, derive_seed(5, 1)).responses()
    models, rewards = (mu.to_hf(), pi.to_hf()), measured["reward_mu"].tolist()
    assert measured["tokens"].tolist() == [len(r) for r in responses]
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        at = range(len(prompt) - 1, len(prompt) + len(response) - 1)
        with torch.no_grad():
            logits = [m(torch.tensor([prompt + response])).logits[0, list(at)].double() for m in models]
        log_prob = [x.log_softmax(-1)[range(len(response)), response] for x in logits]
        log_ratio, mask = (log_prob[1] - log_prob[0])[None], torch.ones(1, len(response))
        others = (sum(rewards) - rewards[row]) / (PROMPTS - 1)
        for horizon in HORIZONS:
            expected = (rewards[row] - others) * slow_terms(log_ratio, mask, horizon)[0]
            assert measured[f"L{horizon}"][row] == pytest.approx(expected, abs=2e-4)


def test_chunks_of_the_forward_pass_change_nothing(folders, measured, monkeypatch):
    monkeypatch.setattr("rlvr.analysis.surrogate.CHUNK", 5)
    pd.testing.assert_frame_equal(measure(folders), measured, atol=1e-4)


def test_progress_ends_at_the_total(folders):
    seen = []
    measure(folders, prompts=4, on_progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (12, 12) and [d for d, _ in seen] == sorted(d for d, _ in seen)


def test_one_prompt_cannot_be_centred(folders):
    with pytest.raises(ValueError, match="prompts=1"):
        measure(folders, prompts=1)


def synthetic(n=400, shared=5.0, noise=0.1, bias=0.3, seed=0):
    """L - gain = bias + small noise, while L and the gain themselves vary widely and together."""
    rng = np.random.default_rng(seed)
    gain = rng.normal(0, shared, n)
    error = bias + rng.normal(0, noise, n)
    return pd.DataFrame(
        {"reward_mu": 0.0, "reward_pi": gain, "L1": gain + error, "L8": gain, "seed": np.arange(n) % 2},
        index=np.arange(n) % 2,  # as after a concat of two seeds
    ), error


def test_bias_is_paired_by_prompt():
    samples, error = synthetic()
    gain, frame = surrogate_estimates(samples, [1], 0.95, 50)
    bias = frame.set_index("quantity").loc["bias", "estimate"]
    half = stats.t.ppf(0.975, len(error) - 1) * error.std(ddof=1) / math.sqrt(len(error))
    assert bias.value == pytest.approx(error.mean(), abs=1e-12)
    assert (bias.low, bias.high) == pytest.approx((error.mean() - half, error.mean() + half), abs=1e-12)
    assert (bias.n, bias.n_unit, bias.seeds) == (400, "prompts", (0, 1))
    spread = samples["reward_pi"].std() / math.sqrt(400)
    assert gain.value == pytest.approx(samples["reward_pi"].mean(), abs=1e-12)
    assert gain.high - gain.low == pytest.approx(2 * stats.t.ppf(0.975, 399) * spread, rel=1e-9)
    assert bias.high - bias.low < (gain.high - gain.low) / 20


def test_an_estimate_equal_to_the_gain_has_no_bias_and_no_interval():
    bias = surrogate_estimates(synthetic()[0], [8], 0.95, 50)[1].set_index("quantity").loc["bias"]
    assert bias["value"] == 0 and bias["estimate"].low is None and np.isnan(bias["low"])


def test_spread_is_the_sample_standard_deviation_with_a_bootstrap():
    samples, _ = synthetic(n=300, shared=2.0)
    frame = surrogate_estimates(samples, [1, 8], 0.95, 400)[1]
    assert list(zip(frame["horizon"], frame["quantity"], strict=True)) == [
        (1, "bias"), (1, "sd"), (8, "bias"), (8, "sd"),
    ]  # fmt: skip
    values = samples["L1"].to_numpy()
    row = frame.iloc[1]
    assert row["value"] == pytest.approx(values.std(ddof=1), rel=1e-12)
    # A normal sample's sd has a standard error of sd / sqrt(2 n).
    half = 1.96 * values.std(ddof=1) / math.sqrt(2 * len(values))
    assert row["high"] - row["low"] == pytest.approx(2 * half, rel=0.25)
    assert row["low"] < row["value"] < row["high"]
    again = surrogate_estimates(samples, [1, 8], 0.95, 400)[1]
    pd.testing.assert_frame_equal(again, frame)


def test_intervals_cover_the_true_bias_as_often_as_they_say():
    inside = 0
    for seed in range(200):
        samples, _ = synthetic(n=20, bias=0.3, noise=1.0, seed=seed)
        row = surrogate_estimates(samples, [1], 0.8, 1)[1].iloc[0]
        inside += row["low"] <= 0.3 <= row["high"]
    assert 0.7 < inside / 200 < 0.9  # 0.8 +- 3.5 standard errors
