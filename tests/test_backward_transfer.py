import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.analysis.backward_transfer import Products, _jackknife, inner_products, transfer


def normal(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def measure(base, correction, preconditioner=None, **options):
    return transfer(inner_products(base, correction, preconditioner), **options)


def slow(base, correction, scale):
    """The three numbers by loops over pairs of different batches."""

    def mean(a, b):
        pairs = [
            sum(s * x * y for s, x, y in zip(scale, a[i], b[j], strict=True))
            for i in range(len(a))
            for j in range(len(b))
            if i != j
        ]
        return sum(pairs) / len(pairs)

    own, cross, other = mean(base, base), mean(base, correction), mean(correction, correction)
    cosine = cross / math.sqrt(own * other) if own > 0 and other > 0 else None
    return cross, cross / own if own > 0 else None, cosine


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 6), st.floats(0, 2))
def test_slow_loop(seed, batches, size, signal):
    direction = normal(seed, 1, size) * signal
    base, correction = (
        normal(seed + 1, batches, size) + direction,
        normal(seed + 2, batches, size) + direction,
    )
    scale = normal(seed + 3, size).exp()
    found = measure(base, correction, scale, learning_rate=0.5)
    expected = slow(base.tolist(), correction.tolist(), scale.tolist())
    assert found.change.value == pytest.approx(0.5 * expected[0])
    for estimate, number in zip((found.ratio, found.cosine), expected[1:], strict=True):
        assert (estimate is None) == (number is None)
        assert estimate is None or estimate.value == pytest.approx(number)


def test_typed_in():
    base = torch.tensor([[2.0, 0.0]] * 3)
    for correction, change, ratio, cosine in (
        ([3.0, 0.0], 6.0, 1.5, 1.0),
        ([0.0, 5.0], 0.0, 0.0, 0.0),
        ([-1.0, 0.0], -2.0, -0.5, -1.0),
        ([1.0, 1.0], 2.0, 0.5, math.sqrt(0.5)),
    ):
        found = measure(base, torch.tensor([correction] * 3))
        assert found.change.value == change and found.ratio.value == ratio
        assert found.cosine.value == pytest.approx(cosine)
        assert found.change.low is None  # batches all alike tell no spread
    assert measure(base, base * 0).cosine is None and measure(base, base * 0).ratio.value == 0
    assert measure(base * 0, base).ratio is None


def softmax_policies(theta):
    """Base task and correction task of one policy that share parameters: two bandits."""
    return torch.softmax(theta[:3], 0), torch.softmax(theta[1:5] + theta[0], 0)


def test_change_is_the_first_order_change_of_the_base_reward():
    base_reward = torch.tensor([0.0, 1.0, 0.3], dtype=torch.float64)
    correction_reward = torch.tensor([1.0, 0.2, 0.0, 0.5], dtype=torch.float64)
    theta = normal(3, 5).requires_grad_()

    def losses(parameters):
        first, second = softmax_policies(parameters)
        return -(first @ base_reward), -(second @ correction_reward)

    gradients = [torch.autograd.grad(loss, theta)[0] for loss in losses(theta)]
    theta = theta.detach()
    base, correction = (g.expand(3, -1) for g in gradients)
    errors = []
    for rate in (1e-2, 1e-3):
        predicted = measure(base, correction, learning_rate=rate).change.value
        moved = theta - rate * gradients[1]
        actual = float(losses(theta)[0] - losses(moved)[0])  # gain of base reward
        errors.append(abs(actual - predicted))
        own = float(losses(theta)[0] - losses(theta - rate * gradients[0])[0])
        ratio = measure(base, correction).ratio.value
        assert actual / own == pytest.approx(ratio, rel=0.05)
    assert errors[1] < errors[0] / 50  # of second order
    # steps of an optimiser that scales its gradients
    scale = normal(4, 5).exp()
    predicted = measure(base, correction, scale, learning_rate=1e-3).change.value
    actual = float(losses(theta)[0] - losses(theta - 1e-3 * scale * gradients[1])[0])
    assert actual == pytest.approx(predicted, rel=0.01)


def test_noise_that_both_tasks_share_is_no_transfer():
    # expected gradients are orthogonal; a batch's noise is in both
    size, batches = 50, 40
    base_mean, correction_mean = torch.eye(size, dtype=torch.float64)[:2] * 3
    noise = normal(0, batches, size)
    base = base_mean + noise + 0.3 * normal(1, batches, size)
    correction = correction_mean + noise + 0.3 * normal(2, batches, size)
    found = measure(base, correction)
    assert found.cosine.low < 0 < found.cosine.high and abs(found.cosine.value) < 0.1
    same_batch = torch.nn.functional.cosine_similarity(base, correction).mean()
    assert same_batch > 0.5  # what one would see without the care


def test_noise_does_not_shorten_the_cosine():
    size, batches = 400, 30
    mean = normal(0, size)
    other = 0.8 * mean / mean.norm() + 0.6 * torch.linalg.qr(torch.stack([mean, normal(1, size)], 1)).Q[:, 1]
    other = other * mean.norm()
    found, naive = [], []
    for seed in range(20):
        base = mean + 6 * normal(10 + seed, batches, size)
        correction = other + 6 * normal(100 + seed, batches, size)
        found.append(measure(base, correction).cosine.value)
        naive.append(float(torch.nn.functional.cosine_similarity(base.mean(0), correction.mean(0), dim=0)))
    assert np.mean(found) == pytest.approx(0.8, abs=0.06) and np.mean(naive) < 0.45


def test_intervals_cover():
    size, batches, hits = 20, 12, np.zeros(3)
    base_mean, correction_mean = normal(0, size), normal(1, size) + 0.5 * normal(0, size)
    own, cross = float(base_mean @ base_mean), float(base_mean @ correction_mean)
    exact = (cross, cross / own, cross / float(base_mean.norm() * correction_mean.norm()))
    for seed in range(200):
        shared = normal(10 + seed, batches, size)
        base = base_mean + shared + normal(1000 + seed, batches, size)
        correction = correction_mean + shared + normal(2000 + seed, batches, size)
        found = measure(base, correction)
        for k, (estimate, value) in enumerate(
            zip((found.change, found.ratio, found.cosine), exact, strict=True)
        ):
            hits[k] += estimate.low <= value <= estimate.high
    assert (hits / 200 > 0.88).all(), hits


def test_scales_order_and_blocks():
    base, correction = normal(0, 6, 10) + 1, normal(1, 6, 10) + 1
    found = measure(base, correction)
    scaled = measure(base, 7 * correction)
    assert scaled.cosine.value == pytest.approx(found.cosine.value)
    assert scaled.change.value == pytest.approx(7 * found.change.value)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    for other in (
        measure(base[order], correction[order]),
        measure(torch.cat([base, base * 0], 1), torch.cat([correction, base], 1)),  # only change, ratio
    ):
        assert other.change.value == pytest.approx(found.change.value)
        assert other.change.low == pytest.approx(found.change.low)
        assert other.ratio.value == pytest.approx(found.ratio.value)
    blocks = inner_products(base[:, :3], correction[:, :3]) + inner_products(base[:, 3:], correction[:, 3:])
    assert transfer(blocks).cosine.value == pytest.approx(found.cosine.value)
    scale = normal(2, 10).exp()
    root = scale.sqrt()
    assert measure(base, correction, scale).cosine.value == pytest.approx(
        measure(base * root, correction * root).cosine.value
    )


def test_parts_of_parameters(monkeypatch):
    base, correction, scale = normal(0, 4, 11), normal(1, 4, 11), normal(2, 11).exp()
    whole = inner_products(base, correction, scale)
    monkeypatch.setattr("rlvr.analysis.backward_transfer._CHUNK", 3)
    parts = inner_products(base, correction, scale)
    for name in ("base", "cross", "correction"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))
    # half precision is summed in double
    half = inner_products(torch.full((2, 3000), 0.1).half(), torch.full((2, 3000), 0.1).half())
    assert half.cross[0, 1].item() == pytest.approx(3000 * float(torch.tensor(0.1).half()) ** 2)


def test_few_batches():
    two = measure(normal(0, 2, 5) + 3, normal(1, 2, 5) + 3)
    assert two.change.low is None and "two batches" in two.change.method and two.change.n == 2
    # the length is there with all three batches, and gone without one of them
    base = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-0.4, 0.0]])
    three = measure(base, base)
    assert three.ratio.low is None and "hidden by noise" in three.ratio.method
    assert three.change.low is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inner_products(torch.ones(2), torch.ones(2)), "base is"),
        (lambda: inner_products(torch.ones(2, 3), torch.ones(2, 4)), "correction is"),
        (lambda: inner_products(torch.ones(2, 3).long(), torch.ones(2, 3)), "base is"),
        (lambda: inner_products(torch.full((2, 3), math.nan), torch.ones(2, 3)), "base holds NaN"),
        (
            lambda: inner_products(torch.ones(2, 3), torch.full((2, 3), math.inf)),
            "correction holds NaN",
        ),
        (lambda: inner_products(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2)), "preconditioner="),
        (lambda: inner_products(torch.ones(2, 3), torch.ones(2, 3), torch.zeros(3)), "preconditioner holds"),
        (
            lambda: measure(torch.ones(1, 3), torch.ones(1, 3)),
            r"products of \(1, 1\): allowed",
        ),
        (lambda: measure(torch.ones(2, 3), torch.ones(2, 3), learning_rate=0.0), "learning_rate=0.0"),
        (lambda: measure(torch.ones(2, 3), torch.ones(2, 3), confidence=1.0), "confidence=1.0"),
        (lambda: transfer(Products(*[torch.ones(2, 3)] * 3)), r"products of \(2, 3\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_interval_of_a_cosine_stays_within_one():
    """Of noisy gradients whose directions are close: plain Student's interval passes 1 in some."""
    within = passes = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        mean, other = torch.randn(2, 20, generator=generator)
        base = mean + torch.randn(5, 20, generator=generator)
        own = mean + 0.6 * other + torch.randn(5, 20, generator=generator)
        found = transfer(inner_products(base, own)).cosine
        if found is None or found.low is None:
            continue
        within += 1
        assert -1 < found.low < found.value < found.high < 1
        left = [
            transfer(inner_products(*(g[torch.arange(5) != b] for g in (base, own)))).cosine.value
            for b in range(5)
        ]
        passes += _jackknife(found.value, np.array(left), 5, 0.95).high > 1
    assert within > 20 and passes > 0
