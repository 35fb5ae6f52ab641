"""The trace of long float32 responses against loops in float64: no cancellation in prefix sums."""

import math

import pytest
import torch

from rlvr import objectives
from rlvr.ratios import forward_trace

WIDTH = 16384
TOLERANCE = 1e-6
BETA = 3.0
AT = torch.arange(WIDTH)


def _rows():
    """Log ratios [1, WIDTH] by name; the prefix sums of all but the first reach hundreds to thousands."""
    g = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(1, WIDTH, generator=g)
    first_half = AT < WIDTH // 2
    return {
        "no drift": noise,
        "up": noise + 0.05,
        "down": noise - 0.05,
        "up, then down": noise + torch.where(first_half, 0.5, -0.5),
        "all factors clipped": 10 * noise.sign() + noise,
        "clipped up, small down": torch.where(AT % 12 == 0, 5.0, -0.1) + 0.1 * noise,
        "clipped up, then small down": torch.where(first_half, 5.0, -1.0) + 0.1 * noise,
        "mu = 0 now and then": torch.where(AT % 97 == 3, torch.inf, 0.1 * noise - 0.011),
    }


ROWS = _rows()


def holes(seed=1):
    """A mask [1, WIDTH] with holes, a run of padding at the end, and its first token valid."""
    mask = torch.rand(1, WIDTH, generator=torch.Generator().manual_seed(seed)) < 0.8
    mask[:, -WIDTH // 8 :] = False
    mask[:, 0] = True
    return mask


def by_loop(log_ratio, horizon, ratio_clip, trace_clip, every=1):
    """Trace of each token of a row without holes, in Python floats; the values at every ``every``-th token.

    Up to 256 factors as a product, which stays within float64; more as an exact sum of logarithms.
    """
    bound = 700.0 if ratio_clip is None else math.log(ratio_clip)
    logs = [min(max(value, -bound), bound) for value in log_ratio.double().tolist()]
    factors = [math.exp(value) for value in logs]
    out = []
    for t in range(0, len(logs), every):
        if horizon <= 256:
            value = math.prod(factors[t + 1 : t + horizon])
        else:
            value = math.exp(min(math.fsum(logs[t + 1 : t + horizon]), 700.0))
        if trace_clip is not None:
            value = min(max(value, trace_clip[0]), trace_clip[1])
        out.append(value)
    return torch.tensor(out, dtype=torch.float64)


def largest_error(trace, exact):
    """Largest relative error over the values that float32 holds."""
    fits = (exact > 1e-37) & (exact < 1e38)
    assert fits.any()
    return float(((trace.double() - exact).abs() / exact)[fits].max())


@pytest.mark.fault("cancellation-in-a-prefix-sum")
@pytest.mark.parametrize(
    "trace_clip", [(0.8, 1.4), (0.1, 10.0), (1e-30, 1e30), None], ids=["clip", "wide", "vast", "open"]
)
@pytest.mark.parametrize("horizon", [4, 256])
@pytest.mark.parametrize("name", ROWS)
def test_window(name, horizon, trace_clip):
    log_ratio = ROWS[name]
    trace = forward_trace(log_ratio, torch.ones(1, WIDTH), horizon, BETA, trace_clip)
    exact = by_loop(log_ratio[0], horizon, BETA, trace_clip, every=7)
    assert trace.dtype == torch.float32
    assert largest_error(trace[0, ::7], exact) < TOLERANCE


@pytest.mark.parametrize("trace_clip", [(0.8, 1.4), None], ids=["clip", "open"])
@pytest.mark.parametrize("name", ROWS)
def test_whole_rest(name, trace_clip):
    log_ratio = ROWS[name]
    trace = forward_trace(log_ratio, torch.ones(1, WIDTH), WIDTH, BETA, trace_clip)
    exact = by_loop(log_ratio[0], WIDTH, BETA, trace_clip, every=41)
    assert largest_error(trace[0, ::41], exact) < TOLERANCE


@pytest.mark.parametrize("name", ["no drift", "up, then down"])
def test_without_a_clip_of_the_factors(name):
    log_ratio = ROWS[name]
    trace = forward_trace(log_ratio, torch.ones(1, WIDTH), 256, None, None)
    assert largest_error(trace[0, ::7], by_loop(log_ratio[0], 256, None, None, every=7)) < TOLERANCE


@pytest.mark.parametrize("name", ROWS)
def test_window_over_holes(name):
    log_ratio, mask = ROWS[name], holes()
    trace = forward_trace(log_ratio, mask, 256, BETA, None)[mask]
    exact = by_loop(log_ratio[mask], 256, BETA, None, every=7)
    assert largest_error(trace[::7], exact) < TOLERANCE


@pytest.mark.fault("cancellation-in-a-prefix-sum")
def test_what_float32_prefix_sums_would_give():
    # The rows are hard enough to see it: the same difference in float32 misses the tolerance a hundredfold.
    log_ratio = ROWS["up, then down"].clamp(-math.log(BETA), math.log(BETA))
    prefix = log_ratio.cumsum(-1)
    window = (prefix[:, 3:] - prefix[:, :-3]).exp()
    assert largest_error(window[0], by_loop(log_ratio[0], 4, BETA, None)[:-3]) > 100 * TOLERANCE


def test_weight_of_nfpo():
    # With region "none" and advantage 1 the gradient of the summed loss is -rho_t Gbar_t.
    log_ratio = ROWS["clipped up, small down"].clamp(max=9.0)
    old = torch.full((1, WIDTH), -10.0)
    log_prob = (old + log_ratio).requires_grad_()
    ones = torch.ones(1, WIDTH)
    loss, _ = objectives.nfpo(
        log_prob, old, ones[:, 0], ones, horizon=256, region="none", loss_agg_mode="token-sum"
    )
    loss.backward()
    log_ratio = (log_prob.detach() - old)[0]
    exact = log_ratio.double().exp() * by_loop(log_ratio, 256, BETA, (0.8, 1.4))
    assert largest_error(-log_prob.grad[0], exact) < TOLERANCE
