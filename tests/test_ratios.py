import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.ratios import bounded_exp, forward_trace, log_ratio, token_ratio

RATIOS = torch.tensor([[1.1, 0.5, 4.0, 1.0, 1.05]], dtype=torch.float64)
LOG = RATIOS.log()
ONES = torch.ones(1, 5)


def slow_trace(log_ratios, mask, horizon, ratio_clip, trace_clip, window):
    """The definition, token by token, in Python floats."""
    out = torch.ones(log_ratios.shape, dtype=torch.float64)
    for i, row in enumerate(log_ratios.double().tolist()):
        for t in range(len(row)):
            product, used = 1.0, 0
            for j in range(t + 1, len(row)):
                if used == horizon - 1:
                    break
                valid = bool(mask[i, j])
                if valid or window == "positions":
                    used += 1
                if valid:
                    factor = math.exp(row[j])
                    if ratio_clip is not None:
                        factor = min(max(factor, 1 / ratio_clip), ratio_clip)
                    product *= factor
            if trace_clip is not None:
                product = min(max(product, trace_clip[0]), trace_clip[1])
            out[i, t] = product
    return out


def random_batch(rows, width, scale, seed, holes=True):
    generator = torch.Generator().manual_seed(seed)
    log_ratios = scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=generator) < 0.7
    if not holes:
        mask = torch.arange(width) < torch.randint(0, width + 1, (rows, 1), generator=generator)
    return log_ratios, mask


@pytest.mark.parametrize(
    ("horizon", "trace_clip", "expected"),
    [
        (1, (0.8, 1.2), [1, 1, 1, 1, 1]),
        (2, None, [0.5, 3, 1, 1.05, 1]),
        (2, (0.8, 1.2), [0.8, 1.2, 1, 1.05, 1]),
        (8, None, [1.575, 3.15, 1.05, 1.05, 1]),
        (8, (0.8, 1.2), [1.2, 1.2, 1.05, 1.05, 1]),
    ],
)
@pytest.mark.parametrize("window", ["valid", "positions"])
def test_typed_in(horizon, trace_clip, expected, window):
    trace = forward_trace(LOG, ONES, horizon, ratio_clip=3.0, trace_clip=trace_clip, window=window)
    np.testing.assert_allclose(trace, [expected], rtol=1e-14)


def test_window_at_a_hole():
    # The release counts the masked position 2 as one of the N-1 steps; the default does not.
    mask = torch.tensor([[1, 1, 0, 1, 1]])
    positions = forward_trace(LOG, mask, 3, trace_clip=None, window="positions")
    np.testing.assert_allclose(positions, [[0.5, 1, 1.05, 1.05, 1]], rtol=1e-14)
    valid = forward_trace(LOG, mask, 3, trace_clip=None, window="valid")
    np.testing.assert_allclose(valid[mask.bool()], [0.5, 1.05, 1.05, 1], rtol=1e-14)


@pytest.mark.parametrize("window", ["valid", "positions"])
@pytest.mark.parametrize("holes", [True, False])
@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 16, 17, 40])
@pytest.mark.parametrize(("ratio_clip", "trace_clip"), [(3.0, (0.8, 1.4)), (None, None), (1.5, None)])
def test_slow_loop(window, holes, horizon, ratio_clip, trace_clip):
    log_ratios, mask = random_batch(6, 16, 0.7, seed=horizon, holes=holes)
    mask[0] = False
    trace = forward_trace(log_ratios, mask, horizon, ratio_clip, trace_clip, window)
    slow = slow_trace(log_ratios, mask, horizon, ratio_clip, trace_clip, window)
    np.testing.assert_allclose(trace[mask], slow[mask], rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-80, 80), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 15),
    st.sampled_from(["valid", "positions"]),
)
def test_slow_loop_any_ratios(tokens, horizon, window):
    log_ratios = torch.tensor([[value for value, _ in tokens]], dtype=torch.float64)
    mask = torch.tensor([[valid for _, valid in tokens]])
    trace = forward_trace(log_ratios, mask, horizon, 3.0, (0.8, 1.4), window)
    slow = slow_trace(log_ratios, mask, horizon, 3.0, (0.8, 1.4), window)
    np.testing.assert_allclose(trace[mask], slow[mask], rtol=1e-9)


def test_one_by_one_equals_padded():
    log_ratios, _ = random_batch(5, 12, 0.5, seed=3)
    lengths = [12, 1, 7, 0, 3]
    mask = torch.arange(12) < torch.tensor(lengths)[:, None]
    together = forward_trace(log_ratios, mask, 4)
    for row, length in enumerate(lengths):
        alone = forward_trace(log_ratios[row : row + 1, :length], torch.ones(1, length), 4)
        torch.testing.assert_close(together[row : row + 1, :length], alone, rtol=1e-12, atol=0)


def test_full_trace_is_the_ratio_of_the_rest():
    log_ratios, _ = random_batch(3, 20, 0.3, seed=1)
    trace = forward_trace(log_ratios, torch.ones(3, 20), 20, None, None)
    whole = log_ratios.sum(-1, keepdim=True)
    torch.testing.assert_close(trace, (whole - log_ratios.cumsum(-1)).exp(), rtol=1e-12, atol=0)
    torch.testing.assert_close(trace, forward_trace(log_ratios, torch.ones(3, 20), 10**9, None, None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clips", [(3.0, (0.8, 1.4)), (None, None), (3.0, None)])
def test_no_cancellation_on_long_responses(dtype, clips):
    # Prefix sums drift to thousands of nats here, while a window's sum is a few.
    width = 16384
    generator = torch.Generator().manual_seed(5)
    log_ratios = (0.2 + 0.4 * torch.randn(1, width, generator=generator)).to(dtype)
    log_ratios[0, ::701] = 60.0
    for horizon in (2, 4, 32):
        trace = forward_trace(log_ratios, torch.ones(1, width), horizon, *clips)
        factors = log_ratios[0].double().numpy()
        if clips[0] is not None:
            factors = np.clip(factors, -math.log(clips[0]), math.log(clips[0]))
        padded = np.concatenate([factors, np.zeros(horizon)])
        slow = np.exp(sum(padded[k : k + width] for k in range(1, horizon)))
        if clips[1] is not None:
            slow = np.clip(slow, *clips[1])
        slow = np.minimum(slow, torch.finfo(dtype).max)
        np.testing.assert_allclose(trace[0].double(), slow, rtol=1e-6)


def test_full_trace_of_a_long_response():
    generator = torch.Generator().manual_seed(6)
    log_ratios = 0.05 * torch.randn(1, 16384, generator=generator)
    trace = forward_trace(log_ratios, torch.ones(1, 16384), 16384, None, None)
    values, rest, slow = log_ratios[0].double().tolist(), 0.0, []
    for value in reversed(values):
        slow.append(math.exp(rest))
        rest += value
    np.testing.assert_allclose(trace[0].double(), slow[::-1], rtol=1e-6)


@pytest.mark.parametrize("junk", [float("nan"), float("-inf"), float("inf"), 1e30])
@pytest.mark.parametrize("window", ["valid", "positions"])
def test_padding_is_harmless(junk, window):
    log_ratios, mask = random_batch(4, 10, 0.5, seed=2)
    clean = forward_trace(log_ratios, mask, 4, window=window)
    dirty = forward_trace(log_ratios.masked_fill(~mask, junk), mask, 4, window=window)
    assert torch.equal(clean, dirty)
    assert clean.isfinite().all()


@pytest.mark.parametrize("junk", [float("nan"), float("-inf"), float("inf")])
def test_log_ratio_padding_value_and_gradient(junk):
    log_prob = torch.tensor([[-1.0, junk, -2.0]], requires_grad=True)
    old = torch.tensor([[-1.5, junk, -2.5]], requires_grad=True)
    ratio = token_ratio(log_prob, old, torch.tensor([[1, 0, 1]]))
    np.testing.assert_allclose(ratio.detach(), [[math.exp(0.5), 1, math.exp(0.5)]], rtol=1e-6)
    ratio.sum().backward()
    np.testing.assert_allclose(log_prob.grad, [[math.exp(0.5), 0, math.exp(0.5)]], rtol=1e-6)
    assert old.grad.isfinite().all()


@pytest.mark.fault("log-probs-in-half-precision")
def test_half_precision_is_lifted_before_the_subtraction():
    low = torch.tensor([[-5.0, -0.5]], dtype=torch.bfloat16)
    ratio = log_ratio(low, torch.tensor([[-5.01, -0.5]]), torch.ones(1, 2))
    assert ratio.dtype == torch.float32
    np.testing.assert_allclose(ratio, [[0.01, 0]], atol=1e-6)
    assert log_ratio(low.double(), low, torch.ones(1, 2)).dtype == torch.float64


@pytest.mark.parametrize("gap", [80.0, -80.0, float("inf"), float("-inf")])
def test_bounded(gap):
    for bound in (10.0, 20.0):
        value = bounded_exp(torch.tensor([gap]), bound).item()
        assert value == pytest.approx(math.exp(math.copysign(bound, gap)), rel=1e-6)
    extreme = torch.tensor([[0.0, gap, gap, 0.0]])
    assert forward_trace(extreme, torch.ones(1, 4), 4, None, None).isfinite().all()


def test_trace_is_a_constant_unless_asked():
    log_ratios = LOG.clone().requires_grad_()
    assert not forward_trace(log_ratios, ONES, 4).requires_grad
    trace = forward_trace(log_ratios, ONES, 3, None, None, trace_gradient="full")
    (grad,) = torch.autograd.grad(trace[0, 0], log_ratios)  # d(rho_1 rho_2)/dl = rho_1 rho_2 on both
    np.testing.assert_allclose(grad, [[0, 2, 2, 0, 0]], rtol=1e-12)


@pytest.mark.parametrize("window", ["valid", "positions"])
@pytest.mark.parametrize("clips", [(None, None), (3.0, (0.8, 1.4))])
def test_full_trace_gradient_finite_differences(window, clips):
    log_ratios, mask = random_batch(3, 7, 0.2, seed=9)
    assert torch.autograd.gradcheck(
        lambda x: forward_trace(x, mask, 3, *clips, window, "full") * mask, log_ratios.requires_grad_()
    )


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"horizon": 0}, "horizon=0"),
        ({"horizon": 2.5}, "horizon=2.5"),
        ({"horizon": True}, "horizon=True"),
        ({"ratio_clip": 0.5}, "ratio_clip=0.5"),
        ({"ratio_clip": float("nan")}, "ratio_clip=nan"),
        ({"trace_clip": (1.4, 0.8)}, "trace_clip"),
        ({"trace_clip": (1.1, 1.4)}, "trace_clip"),
        ({"trace_clip": 0.8}, "trace_clip"),
        ({"window": "tokens"}, "window='tokens'"),
        ({"trace_gradient": "half"}, "trace_gradient='half'"),
    ],
)
def test_bad_input(change, name):
    with pytest.raises(ValueError, match=name):
        forward_trace(LOG, ONES, **{"horizon": 4, **change})


@pytest.mark.parametrize("bound", [0, -1, 81, float("nan")])
def test_bad_bound(bound):
    with pytest.raises(ValueError, match="ratio_bound"):
        token_ratio(LOG, LOG, ONES, bound=bound)
