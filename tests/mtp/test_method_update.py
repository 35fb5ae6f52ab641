"""One update of policy, modules and critic: whose gradient is whose, against differences and by hand."""

from __future__ import annotations

import functools

import pytest
import torch
from local_fixtures import random_policy, random_prompts

from rlvr import objectives
from rlvr.config_mtp import Critic, Mtp
from rlvr.engines.local.critic import critic_values, new_critic
from rlvr.engines.local.flat import FlatTrainer
from rlvr.engines.local.method_update import (
    MethodBatch,
    MethodUpdater,
    Modules,
    ValueNetwork,
    ratio_weights,
)
from rlvr.engines.local.mtp import new_modules, predict
from rlvr.engines.local.network import packed_states
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import unflatten
from rlvr.engines.local.update import Updater, response_log_prob
from rlvr.losses import clipped_value_loss
from rlvr.mtp import cross_entropy
from rlvr.ratios import block_log_ratio

PROMPTS = random_prompts(3, low=5)
LENGTHS = torch.tensor([7, 1, 3, 5, 2, 6])
WARMUP = dict(seed=0, steps=1, lr=1e-3, betas=(0.9, 0.98), batch_size=4, check_every=1)
WEIGHTS = {"mtp_weight": 0.3, "decay": 0.5}


def noise(like, seed, scale=0.02):
    return scale * torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


class World:
    """A policy, modules and a critic a little off those of the step's start, on one minibatch."""

    def __init__(
        self, reach="stop", train="cross_entropy", network=None, blocks=3, variant="parallel", lengths=LENGTHS
    ):
        self.policy = random_policy()
        shape, generator = self.policy.shape, torch.Generator().manual_seed(5)
        tokens = torch.randint(2, 60, (6, 8), generator=generator)
        self.packed = packed = pack(PROMPTS, tokens, lengths, 2)
        self.mask = packed.response_mask
        self.theta = self.policy.theta + noise(self.policy.theta, 1)
        old, _ = response_log_prob(self.policy.theta, shape, packed, 1.0)
        width = old.shape[1]
        advantages = torch.randn(6, width, generator=generator)
        self.mtp = self.critic = self.modules = self.value = None
        more, parameters, name = {}, {}, "ppo"
        if blocks > 1:
            settings = dict(variant=variant, policy_gradient=reach, train=train, lr=1e-2, warmup=WARMUP)
            self.mtp = Mtp(blocks=blocks, **settings)
            start = new_modules(self.policy, blocks, variant)
            self.phi = start.phi + noise(start.phi, 2)
            more["old_mtp_log_prob"] = self.said(start.phi, self.policy.theta, start.shape)
            trainer = FlatTrainer("modules", self.phi, 1e-2, (0.9, 0.95), 1.0)
            name, parameters = "mpo", dict(WEIGHTS, mtp_gradient="stop" if reach == "stop" else "full")
            self.modules = Modules(trainer, start.shape, self.mtp, ratio_weights(self.mtp, name, parameters))
        if network:
            self.critic = Critic(network=network, lr=1e-2, shared_weight=0.7, value_clip=None)
            critic_shape, psi = new_critic(self.policy, self.critic)
            self.psi = psi + noise(psi, 3, 0.1)
            trainer = FlatTrainer("critic", self.psi, 1e-2, (0.9, 0.95), 1.0)
            self.value = ValueNetwork(trainer, critic_shape, self.critic)
            returns = torch.randn(6, width, generator=generator)
            more |= {"old_values": torch.zeros(6, width), "returns": returns}
        self.batch = MethodBatch(packed, old, advantages, 0, **more)
        self.loss = functools.partial(objectives.get(name), loss_agg_mode="token-mean", **parameters)
        self.given = dict(
            theta=self.theta, shape=shape, loss=self.loss, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0,
            grad_clip=1.0, temperature=1.0,
        )  # fmt: skip

    def said(self, phi, theta, shape):
        weights = unflatten(theta, self.policy.shape)
        states = packed_states(weights, self.policy.shape, self.packed)
        return predict(phi, shape, weights, states, self.packed, backbone_gradient=True).log_prob

    def objective(self, theta, phi=None, mtp=None):
        log_prob, _ = response_log_prob(theta, self.policy.shape, self.packed, 1.0)
        more = {}
        if self.modules:
            mtp = self.said(phi, theta, self.modules.shape) if mtp is None else mtp
            more = {"mtp_log_prob": mtp, "old_mtp_log_prob": self.batch.old_mtp_log_prob}
        return self.loss(log_prob, self.batch.old_log_prob, self.batch.advantages, self.mask, **more)[0]

    def values(self, theta, psi):
        states = packed_states(unflatten(theta, self.policy.shape), self.policy.shape, self.packed)
        return critic_values(psi, self.value.shape, self.critic, self.packed, states)

    def value_loss(self, theta, psi):
        batch = self.batch
        return clipped_value_loss(self.values(theta, psi), batch.old_values, batch.returns, self.mask, None)[
            0
        ]

    def gradients(self):
        """(gradients that one update takes: policy, modules or None, critic or None; its metrics)."""
        taken = {}
        updater = MethodUpdater(**self.given, modules=self.modules, critic=self.value)
        real = updater._descend

        def descend(gradient, *rest):
            taken["policy"] = gradient.clone()
            return real(gradient, *rest)

        updater._descend = descend
        for name, part in (("modules", self.modules), ("critic", self.value)):
            if part:
                apply = part.trainer.apply
                part.trainer.apply = lambda g, n, name=name, apply=apply: (
                    taken.update({name: g.clone()}), apply(g, n)
                )  # fmt: skip
        values, *_ = updater.step(self.batch)
        return taken.get("policy"), taken.get("modules"), taken.get("critic"), values


def directional(function, at, gradient, step=1e-3):
    """(slope of ``function`` along a direction by differences, the same by ``gradient``)."""
    direction = gradient / gradient.norm() + 0.005 * torch.randn(
        at.shape, generator=torch.Generator().manual_seed(9)
    )
    with torch.no_grad():
        slope = (function(at + step * direction) - function(at - step * direction)) / (2 * step)
    return float(slope), float(gradient @ direction)


@pytest.mark.parametrize("variant", ["parallel", "chained"])
def test_with_stop_the_policy_sees_the_modules_as_values(variant):
    world = World("stop", variant=variant)
    policy, modules, _, _ = world.gradients()
    with torch.no_grad():
        fixed = world.said(world.phi, world.theta, world.modules.shape)
    slope, expected = directional(lambda t: world.objective(t, mtp=fixed), world.theta, policy)
    assert slope == pytest.approx(expected, rel=1e-2)
    leaf = world.phi.clone().requires_grad_()
    loss, _ = cross_entropy(world.said(leaf, world.theta, world.modules.shape), world.mask)
    torch.testing.assert_close(modules, torch.autograd.grad(loss, leaf)[0], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("variant", ["parallel", "chained"])
def test_with_full_the_policy_gradient_goes_through_the_modules_too(variant):
    world = World("full", "none", variant=variant)
    policy, modules, _, _ = world.gradients()
    slope, expected = directional(lambda t: world.objective(t, world.phi), world.theta, policy)
    assert slope == pytest.approx(expected, rel=1e-2)
    stopped, *_ = World("stop", variant=variant).gradients()
    assert not torch.allclose(policy, stopped, atol=1e-3)
    slope, expected = directional(lambda f: world.objective(world.theta, f), world.phi, modules)
    assert slope == pytest.approx(expected, rel=1e-2)


def test_with_modules_it_ends_there():
    world = World("modules", "none")
    policy, modules, _, _ = world.gradients()
    stopped, *_ = World("stop", "none").gradients()
    assert torch.equal(policy, stopped)
    slope, expected = directional(lambda f: world.objective(world.theta, f), world.phi, modules)
    assert slope == pytest.approx(expected, rel=1e-2)
    _, both, _, _ = World("modules", "cross_entropy").gradients()
    _, own, _, _ = World("stop", "cross_entropy").gradients()
    torch.testing.assert_close(both, modules + own, atol=1e-6, rtol=1e-4)


def test_modules_that_learn_by_nothing_stay():
    world = World("stop", "none")
    _, modules, _, values = world.gradients()
    assert modules is None and "mtp_grad_norm" not in values
    assert torch.equal(world.modules.trainer.weights.detach(), world.phi)


def test_a_critic_of_its_own_leaves_the_policy_s_gradient_alone():
    world = World(network="separate")
    policy, modules, critic, _ = world.gradients()
    alone, of_modules, _, _ = World().gradients()
    assert torch.equal(policy, alone) and torch.equal(modules, of_modules)
    leaf = world.psi.clone().requires_grad_()
    (expected,) = torch.autograd.grad(world.value_loss(world.theta, leaf), leaf)
    torch.testing.assert_close(critic, expected, atol=1e-6, rtol=1e-4)


def test_a_shared_critic_adds_its_weighted_loss_to_the_policy_s():
    world = World(network="shared")
    policy, _, critic, _ = world.gradients()
    alone, *_ = World().gradients()
    theta, psi = world.theta.clone().requires_grad_(), world.psi.clone().requires_grad_()
    of_theta, of_psi = torch.autograd.grad(world.value_loss(theta, psi), [theta, psi])
    torch.testing.assert_close(policy, alone + 0.7 * of_theta, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(critic, of_psi, atol=1e-6, rtol=1e-4)
    world.critic = world.value.settings.model_copy(update={"shared_weight": 0.0})
    frozen = World(network="shared")
    frozen.value = ValueNetwork(frozen.value.trainer, frozen.value.shape, world.critic)
    assert torch.equal(frozen.gradients()[0], alone)


def test_without_modules_and_critic_it_is_the_updater():
    world = World(blocks=1)
    one, other = MethodUpdater(**world.given), Updater(**world.given)
    for _ in range(2):
        (values, log_prob, slope), (expected, *same) = one.step(world.batch), other.step(world.batch)
        assert torch.equal(log_prob, same[0]) and torch.equal(slope, same[1])
        assert expected.items() <= values.items()
    assert torch.equal(one.theta, other.theta)


def test_metrics_by_hand():
    world = World()
    with torch.no_grad():
        log_prob, _ = response_log_prob(world.theta, world.policy.shape, world.packed, 1.0)
        said = world.said(world.phi, world.theta, world.modules.shape)
    *_, values = world.gradients()
    valid = world.mask.bool()
    token = (log_prob - world.batch.old_log_prob) * world.mask
    change = said - world.batch.old_mtp_log_prob
    assert ratio_weights(world.mtp, "mpo", {}) == pytest.approx([0.8, 0.2 / 1.8, 0.16 / 1.8])
    assert ratio_weights(world.mtp, "mpo", WEIGHTS) == pytest.approx([0.7, 0.2, 0.1])
    block = block_log_ratio(token, change, [0.7, 0.2, 0.1])
    assert values["token_ratio_variance"] == pytest.approx(float(token[valid].exp().var()), rel=1e-5)
    assert values["ratio_variance"] == pytest.approx(float(block[valid].exp().var()), rel=1e-5)
    assert values["ratio_mean"] == pytest.approx(float(block[valid].exp().mean()), rel=1e-5)
    assert values["scaled_ratio_variance"] == pytest.approx(float((0.7 * token[valid]).exp().var()), rel=1e-5)
    advantages = world.batch.advantages
    for name, log in (("", block), ("token_", token), ("scaled_", 0.7 * token)):
        ratio = log.exp()
        lost = valid & (((advantages > 0) & (ratio > 1.2)) | ((advantages < 0) & (ratio < 0.8)))
        assert values[f"{name}clip_fraction"] == pytest.approx(float(lost.sum() / valid.sum())), name
    for k in (2, 3):
        there = torch.arange(7) + k - 1 < LENGTHS[:, None]
        moved = change[..., k - 2][there].abs().mean()
        assert values[f"mtp_log_ratio_{k}"] == pytest.approx(float(moved), rel=1e-5)
        assert values[f"mtp_loss_{k}"] == pytest.approx(-float(said[..., k - 2][there].mean()), rel=1e-5)
        assert 0 <= values[f"mtp_top1_{k}"] <= 1 <= values[f"mtp_rank_{k}"]


def test_a_module_without_a_token_to_predict_has_no_metrics():
    *_, values = World(lengths=torch.tensor([2, 1, 2, 1, 2, 2])).gradients()
    names = {name for name in values if name.startswith("mtp_") and name[-1].isdigit()}
    assert names == {"mtp_loss_2", "mtp_rank_2", "mtp_top1_2", "mtp_log_ratio_2"}
    *_, longer = World().gradients()
    merged = objectives.merge_metrics([values, longer], partial=True)
    assert all(map(torch.isfinite, map(torch.tensor, merged.values())))
    assert merged["mtp_rank_3"] == longer["mtp_rank_3"]
    tokens = [part["tokens"] for part in (values, longer)]
    both = sum(n * part["mtp_rank_2"] for n, part in zip(tokens, (values, longer), strict=True)) / sum(tokens)
    assert merged["mtp_rank_2"] == pytest.approx(both) and tokens == [10, 24]


def test_the_control_is_the_token_s_ratio_with_its_log_scaled():
    """Its loss is PPO's on exp(b_1 l), and its policy gradient follows; the modules learn as before."""
    world, usual = World(), World()
    world.mtp = Mtp(**world.mtp.model_dump() | {"ratio": "scaled"})
    world.modules = Modules(world.modules.trainer, world.modules.shape, world.mtp, world.modules.weights)
    policy, modules, _, values = world.gradients()
    _, of_usual, _, plain = usual.gradients()
    assert torch.equal(modules, of_usual)

    def loss(theta):
        log_prob, _ = response_log_prob(theta, world.policy.shape, world.packed, 1.0)
        batch, ppo = world.batch, objectives.get("ppo")
        scaled = batch.old_log_prob + 0.7 * (log_prob - batch.old_log_prob)
        return ppo(scaled, batch.old_log_prob, batch.advantages, world.mask, loss_agg_mode="token-mean")[0]

    slope, expected = directional(loss, world.theta, policy)
    assert slope == pytest.approx(expected, rel=1e-2)
    assert values["loss"] == pytest.approx(float(loss(world.theta).detach()), rel=1e-5)
    assert values["ratio_variance"] == pytest.approx(values["scaled_ratio_variance"])
    assert values["clip_fraction"] == values["scaled_clip_fraction"]
    assert values["scaled_ratio_variance"] == pytest.approx(plain["scaled_ratio_variance"])
    with pytest.raises(ValueError, match="ratio='scaled' with policy_gradient='full': allowed is 'stop'"):
        Mtp(**world.mtp.model_dump() | {"policy_gradient": "full"})


def test_a_gradient_that_is_not_finite_moves_nothing():
    world = World(network="separate")
    updater = MethodUpdater(**world.given, modules=world.modules, critic=world.value)
    world.batch.returns.fill_(float("inf"))
    with pytest.raises(FloatingPointError, match="gradient norm of the critic"):
        updater.step(world.batch)
    assert torch.equal(updater.theta.detach(), world.theta)
    assert torch.equal(world.modules.trainer.weights.detach(), world.phi)
    assert torch.equal(world.value.trainer.weights.detach(), world.psi)
