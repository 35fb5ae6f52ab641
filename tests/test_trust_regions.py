import math

import pytest
import torch

from rlvr import trust_regions as regions

INF = float("inf")


def column(values):
    return torch.tensor(values, dtype=torch.float64)[None]


@pytest.mark.parametrize(
    ("ratio", "advantage", "keep"),
    [
        (1.29, 1.0, False),
        (1.28, 1.0, True),
        (0.1, 1.0, True),  # far below, pushed up: no clip
        (0.79, -1.0, False),
        (0.81, -1.0, True),
        (5.0, -1.0, True),
    ],
)
def test_ppo_clip(ratio, advantage, keep):
    assert regions.ppo_clip(column([ratio]), column([advantage])).item() == keep


@pytest.mark.parametrize(
    ("pi", "mu", "advantage", "keep"),
    [
        (0.71, 0.5, 1.0, False),
        (0.69, 0.5, 1.0, True),
        (0.1, 0.5, 1.0, True),
        (0.29, 0.5, -1.0, False),
        (0.31, 0.5, -1.0, True),
        (0.9, 0.5, -1.0, True),
        (0.29, 0.5, 0.0, False),  # an advantage of 0 sits with the negative ones
        (0.01, 1e-9, 1.0, True),  # a ratio of 1e7, but hardly any probability moved
    ],
)
def test_binary_tv(pi, mu, advantage, keep):
    mask = regions.binary_tv(column([pi]).log(), column([mu]).log(), column([advantage]), 0.2)
    assert mask.item() == keep


def kl(mu, pi):
    return mu * math.log(mu / pi) + (1 - mu) * math.log((1 - mu) / (1 - pi))


@pytest.mark.parametrize("mu", [0.02, 0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("pi", [0.01, 0.25, 0.5, 0.85, 0.995])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("delta", [0.05, 0.2])
def test_binary_kl(mu, pi, advantage, delta):
    back = pi <= mu if advantage > 0 else pi >= mu
    new, old = column([pi]).log(), column([mu]).log()
    mask = regions.binary_kl(new, old, new - old, column([advantage]), delta)
    assert mask.item() == (kl(mu, pi) <= delta or back)


@pytest.mark.parametrize(
    ("new", "old", "advantage", "keep"),
    [
        (0.0, -1.0, 1.0, False),  # pi = 1: infinite KL
        (0.0, 0.0, 1.0, True),  # pi = mu = 1
        (-1.0, 0.0, -1.0, False),
        (-1.0, -INF, -1.0, True),  # mu = 0: above mu, pushed down: back
        (-1.0, -INF, 1.0, False),
        (1e-6, -0.01, 1.0, True),  # rounding above probability 1: KL is small, not NaN
    ],
)
def test_binary_kl_at_the_ends(new, old, advantage, keep):
    new, old = column([new]), column([old])
    bounded = (new - old).clamp(-20, 20)
    assert regions.binary_kl(new, old, bounded, column([advantage]), 0.2).item() == keep


def test_ratio_band():
    ratio = column([0.3, 1 / 3, 1.0, 3.0, 3.1])
    assert regions.ratio_band(ratio).tolist() == [[False, True, True, True, False]]


def test_infinite_delta_is_no_mask():
    new, old = torch.randn(5, 7).abs().neg() * 5, torch.randn(5, 7).abs().neg() * 5
    advantages = torch.randn(5, 1)
    assert regions.binary_tv(new, old, advantages, INF).all()
    assert regions.binary_kl(new, old, new - old, advantages, INF).all()


def test_clip_bounds_give_the_pessimistic_minimum():
    generator = torch.Generator().manual_seed(0)
    ratio = torch.rand(400, generator=generator, dtype=torch.float64) * 6
    advantages = torch.randn(400, generator=generator, dtype=torch.float64)
    lower, upper = regions.clip_bounds(advantages, 0.2, 0.28, dual_clip=3.0)
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
    surrogate = torch.where(advantages < 0, torch.maximum(surrogate, 3.0 * advantages), surrogate)
    torch.testing.assert_close(torch.maximum(torch.minimum(ratio, upper), lower) * advantages, surrogate)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: regions.ppo_clip(x, x, clip_low=1.0), "clip_low=1.0"),
        (lambda x: regions.ppo_clip(x, x, clip_low=0.0), "clip_low=0.0"),
        (lambda x: regions.ppo_clip(x, x, clip_high=1.28), "clip_high=1.28"),
        (lambda x: regions.clip_bounds(x, dual_clip=0.9), "dual_clip=0.9"),
        (lambda x: regions.binary_tv(x, x, x, delta=0.0), "delta=0.0"),
        (lambda x: regions.binary_kl(x, x, x, x, delta=float("nan")), "delta=nan"),
        (lambda x: regions.ratio_band(x, (3.0, 1 / 3)), "band"),
        (lambda x: regions.ratio_band(x, (1.5, 3.0)), "band"),
    ],
)
def test_bad_input(call, name):
    with pytest.raises(ValueError, match=name):
        call(torch.zeros(2, 2))


@pytest.mark.parametrize("log_prob", [-3e-7, -1e-6, 0.0])
def test_binary_kl_of_a_policy_that_is_nearly_certain(log_prob):
    # 1 - pi is 3e-7, 1e-6, and below the floor of 1e-8; 1 - exp would be off by up to 20 % in float32
    new, old = torch.tensor([[log_prob]]), torch.tensor([[-0.5]])
    rest_pi, rest_mu, mu = max(-math.expm1(new.item()), 1e-8), -math.expm1(-0.5), math.exp(-0.5)
    divergence = rest_mu * math.log(rest_mu / rest_pi) - mu * (new.item() + 0.5)
    up = torch.ones(1, 1)  # pushed up, away from mu
    for delta, keep in ((divergence + 1e-4, True), (divergence - 1e-4, False)):
        assert regions.binary_kl(new, old, new - old, up, delta).item() == keep
