"""The critic of the local engine: its values, its loss, and advantages from both."""

from __future__ import annotations

import itertools

import pytest
import torch
from local_fixtures import random_policy, random_prompts

from rlvr.advantages import gae, whiten
from rlvr.config_mtp import Critic
from rlvr.engines.local.critic import (
    critic_advantages,
    critic_values,
    explained_variance,
    new_critic,
    terminal_rewards,
)
from rlvr.engines.local.network import packed_states
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import split_blocks, unflatten
from rlvr.losses import clipped_value_loss
from rlvr.ratios import block_weights

PROMPTS = random_prompts(3, low=5)
LENGTHS = torch.tensor([7, 1, 3, 5, 2, 6])
KINDS = list(itertools.product(("separate", "shared"), (1, 3)))


def responses(seed=0):
    return torch.randint(2, 60, (6, 8), generator=torch.Generator().manual_seed(seed))


def settings(**changes):
    return Critic(**(dict(lr=1e-3) | changes))


def stirred(policy, config, seed=1):
    shape, psi = new_critic(policy, config)
    return shape, psi + 0.1 * torch.randn(psi.shape, generator=torch.Generator().manual_seed(seed))


def values_of(policy, shape, psi, config, packed):
    states = None if shape.separate else packed_states(
        unflatten(policy.theta, policy.shape), policy.shape, packed
    )  # fmt: skip
    return critic_values(psi, shape, config, packed, states)


@pytest.mark.parametrize(("network", "blocks"), KINDS)
def test_values_are_those_of_a_hugging_face_model_with_value_heads(network, blocks):
    """One response at a time, unpadded, on transformers' layers."""
    policy, config = random_policy(), settings(network=network, blocks=blocks, head_weight=0.3)
    shape, psi = stirred(policy, config)
    packed = pack(PROMPTS, responses(), LENGTHS, 2)
    found = values_of(policy, shape, psi, config, packed)
    named = split_blocks(psi, shape.matrices())
    own = policy.with_theta(psi[: shape.network_parameters]) if network == "separate" else policy
    model, eps = own.to_hf().model, policy.shape.rms_norm_eps
    weights = block_weights(blocks, 0.3, 0.8)
    layers = []
    for k in range(2, blocks + 1):  # the head's layer as the last layer of a policy
        theta = own.theta.clone()
        for name, part in split_blocks(theta, policy.shape.blocks()).items():
            index, _, key = name.partition(".")
            if index == str(policy.shape.num_hidden_layers - 1):
                part.copy_(named[f"{k}.{key}"])
        layers.append(policy.with_theta(theta).to_hf().model.layers[-1])
    for i, length in enumerate(LENGTHS.tolist()):
        prompt = PROMPTS[i // 2]
        ids = torch.tensor([prompt + responses()[i, :length].tolist()])
        with torch.no_grad():
            x = model.embed_tokens(ids)
            angles = model.rotary_emb(x, torch.arange(ids.shape[1])[None])
            mask = torch.full((ids.shape[1],) * 2, torch.finfo(torch.float32).min).triu(1)[None, None]
            for layer in model.layers:
                x = layer(x, attention_mask=mask, position_embeddings=angles)
            value = torch.zeros(ids.shape[1])
            for k, weight in enumerate(weights, start=1):
                h = x if k == 1 else layers[k - 2](x, attention_mask=mask, position_embeddings=angles)
                normed = h[0] / (h[0].square().mean(-1, keepdim=True) + eps).sqrt() * named[f"{k}.norm"]
                value += weight * (normed @ named[f"{k}.weight"] + named[f"{k}.bias"])
        expected = value[len(prompt) - 1 : len(prompt) - 1 + length]
        torch.testing.assert_close(found[i, :length], expected, atol=1e-5, rtol=1e-5)
        assert not found[i, length:].any()


@pytest.mark.parametrize(("network", "blocks"), KINDS)
def test_a_value_knows_what_precedes_its_token_and_nothing_else(network, blocks):
    policy, config = random_policy(), settings(network=network, blocks=blocks)
    shape, psi = stirred(policy, config)
    before = values_of(policy, shape, psi, config, pack(PROMPTS, responses(), LENGTHS, 2))
    for changed in range(7):
        tokens = responses()
        tokens[:, changed] = 2 + (tokens[:, changed] + 7) % 50
        after = values_of(policy, shape, psi, config, pack(PROMPTS, tokens, LENGTHS, 2))
        assert torch.equal(after[:, : changed + 1], before[:, : changed + 1])
        later = (torch.arange(before.shape[1]) > changed) & (torch.arange(before.shape[1]) < LENGTHS[:, None])
        assert (after != before)[later].all()


@pytest.mark.parametrize(("network", "blocks"), KINDS)
def test_a_new_critic_says_zero_and_learns_at_once(network, blocks):
    policy, config = random_policy(), settings(network=network, blocks=blocks)
    shape, psi = new_critic(policy, config)
    assert psi.numel() == shape.parameters
    packed = pack(PROMPTS, responses(), LENGTHS, 2)
    leaf = psi.clone().requires_grad_()
    values = values_of(policy, shape, leaf, config, packed)
    assert not values.any()
    (gradient,) = torch.autograd.grad(values.sum(), leaf)
    named = split_blocks(gradient, shape.matrices())
    assert all(named[f"{k}.weight"].any() and named[f"{k}.bias"].any() for k in range(1, blocks + 1))


def test_where_the_value_loss_reaches():
    """Head 1 reaches the network below it, the further heads do not."""
    policy, packed = random_policy(), pack(PROMPTS, responses(), LENGTHS, 2)
    for network in ("separate", "shared"):
        config = settings(network=network, blocks=2)
        shape, psi = stirred(policy, config)
        theta = policy.theta.clone().requires_grad_()
        psi = psi.clone().requires_grad_()
        states = packed_states(unflatten(theta, policy.shape), policy.shape, packed)
        values = critic_values(psi, shape, config, packed, states)
        of_theta, of_psi = torch.autograd.grad(values.sum(), [theta, psi], allow_unused=True)
        assert (of_theta is not None and bool(of_theta.any())) == (network == "shared")
        if network == "separate":
            named = split_blocks(of_psi, shape.matrices())
            assert named["network.embed"].any() and named["2.qkv"].any()
    silent = psi.detach().clone()
    split_blocks(silent, shape.matrices())["1.weight"].zero_()
    states = packed_states(unflatten(theta, policy.shape), policy.shape, packed)
    values = critic_values(silent, shape, config, packed, states)
    (of_theta,) = torch.autograd.grad(values.sum(), theta, allow_unused=True)
    assert not of_theta.any(), "only the second head is left, and it is detached"
    with pytest.raises(ValueError, match="needs the policy's hidden states"):
        critic_values(silent, shape, config, packed)


@pytest.mark.parametrize(("network", "blocks"), [("separate", 1), ("shared", 3)])
def test_gradient_by_finite_differences(network, blocks):
    policy, config = random_policy(), settings(network=network, blocks=blocks)
    shape, psi = stirred(policy, config)
    packed = pack(PROMPTS, responses(), LENGTHS, 2)
    mask, returns = packed.response_mask, torch.randn(6, 7, generator=torch.Generator().manual_seed(3))

    def loss(psi):
        values = values_of(policy, shape, psi, config, packed)
        return clipped_value_loss(values, torch.zeros(6, 7), returns, mask, None)[0]

    leaf = psi.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    noise = torch.randn(psi.shape, generator=torch.Generator().manual_seed(0))
    direction = gradient / gradient.norm() + 0.01 * noise
    slope = (loss(psi + 1e-3 * direction) - loss(psi - 1e-3 * direction)) / 2e-3
    assert float(slope) == pytest.approx(float(gradient @ direction), rel=5e-3)


# --- the loss --------------------------------------------------------------------------------------------


def test_value_loss_typed_in():
    """V_old = 0, clip 0.5. Errors: 0.3 within; 0.9 moved too far towards R = 1, counted at 0.5; 0.9 moved
    away from R = -1, kept; masked."""
    values = torch.tensor([[0.3, 0.9, 0.9, 7.0]], requires_grad=True)
    old, returns = torch.zeros(1, 4), torch.tensor([[1.0, 1.0, -1.0, float("nan")]])
    mask = torch.tensor([[1, 1, 1, 0]])
    loss, lost = clipped_value_loss(values, old, returns, mask, 0.5)
    assert loss.item() == pytest.approx((0.49 + 0.25 + 3.61) / 6)
    assert lost.item() == pytest.approx(1 / 3)
    (gradient,) = torch.autograd.grad(loss, values)
    torch.testing.assert_close(gradient, torch.tensor([[-0.7 / 3, 0.0, 1.9 / 3, 0.0]]))
    loss, lost = clipped_value_loss(values, old, returns, mask, None)
    assert loss.item() == pytest.approx((0.49 + 0.01 + 3.61) / 6) and lost.item() == 0


def test_value_loss_identities():
    generator = torch.Generator().manual_seed(0)
    values, old, returns = (torch.randn(5, 9, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(5, 9, generator=generator) < 0.7
    plain, _ = clipped_value_loss(values, old, returns, mask, None)
    assert float(plain) == pytest.approx(float((values - returns)[mask].square().mean() / 2))
    clipped, lost = clipped_value_loss(values, old, returns, mask, 0.2)
    assert clipped > plain and 0 < lost < 1
    wide, none = clipped_value_loss(values, old, returns, mask, 1e3)
    assert float(wide) == pytest.approx(float(plain)) and none == 0
    same, none = clipped_value_loss(old, old, returns, mask, 0.2)  # the first update of a step
    assert same == clipped_value_loss(old, old, returns, mask, None)[0] and none == 0
    pad = torch.nn.functional.pad
    padded = [pad(x, (0, 3), value=float("nan")) for x in (values, old, returns)]
    assert clipped_value_loss(*padded, pad(mask, (0, 3)), 0.2)[0] == clipped
    assert clipped_value_loss(values, old, returns, mask & False, 0.2)[0] == 0
    with pytest.raises(ValueError, match="clip=0: allowed are None"):
        clipped_value_loss(values, old, returns, mask, 0)
    with pytest.raises(ValueError, match="old_values is"):
        clipped_value_loss(values, old[:2], returns, mask)


# --- advantages ------------------------------------------------------------------------------------------


def masks_of(*lengths):
    return [(torch.arange(max(rows)) < torch.tensor(rows)[:, None]).float() for rows in lengths]


def test_the_reward_stands_at_the_last_token():
    (mask,) = masks_of([3, 1, 2])
    assert terminal_rewards(torch.tensor([1.0, 0.5, -1.0]), mask).tolist() == [
        [0, 0, 1.0], [0.5, 0, 0], [0, -1.0, 0]
    ]  # fmt: skip


def test_without_discount_the_advantage_is_the_return_minus_the_value():
    masks = masks_of([4, 2], [3, 1, 3])
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(m.shape, generator=generator) * m for m in masks]
    rewards = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0, 0.5])]
    found = critic_advantages(rewards, values, masks, settings(whiten=False))
    for (advantage, target), value, reward, mask in zip(found, values, rewards, masks, strict=True):
        torch.testing.assert_close(target, reward[:, None] * mask)
        torch.testing.assert_close(advantage, (reward[:, None] - value) * mask)


def test_discounted_advantages_typed_in():
    """Two tokens, reward 1 at the end, gamma 0.5, lambda 0.5: delta = (0.5*0.4 - 0.2, 1 - 0.4)."""
    mask, values = torch.ones(1, 2), torch.tensor([[0.2, 0.4]])
    ((advantage, target),) = critic_advantages(
        [torch.tensor([1.0])], [values], [mask], settings(gamma=0.5, lam=0.5, whiten=False)
    )
    torch.testing.assert_close(advantage, torch.tensor([[0.0 + 0.25 * 0.6, 0.6]]))
    torch.testing.assert_close(target, torch.tensor([[0.35, 1.0]]))


def test_whitening_is_over_the_step_whatever_its_minibatches():
    lengths = [[4, 2], [3, 1]]
    rewards, generator = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.Generator().manual_seed(0)
    (mask,) = masks_of([4, 2, 3, 1])
    values = torch.randn(4, 4, generator=generator) * mask
    whole = whiten(gae(terminal_rewards(rewards, mask), values, mask)[0], mask)
    parts = critic_advantages(
        [rewards[:2], rewards[2:]], [values[:2], values[2:, :3]], masks_of(*lengths), settings()
    )
    torch.testing.assert_close(parts[0][0], whole[:2])
    torch.testing.assert_close(parts[1][0], whole[2:, :3])
    torch.testing.assert_close(parts[1][1], rewards[2:, None] * mask[2:, :3])  # returns are not whitened


def test_explained_variance():
    mask = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    target = torch.tensor([[0.0, 1.0, 1.0, 9.0]])
    assert explained_variance([target], [target], [mask]) == 1
    assert explained_variance([target * 0], [target], [mask]) == 0
    assert explained_variance([-target], [target], [mask]) == pytest.approx(-3)
    assert explained_variance([target], [target * 0 + 1], [mask]) == 0
    split = [target[:, :2], target[:, 2:]], [target[:, :2] * 0.5, target[:, 2:] * 0.5]
    assert explained_variance(*split, [mask[:, :2], mask[:, 2:]]) == pytest.approx(
        explained_variance([target], [target * 0.5], [mask])
    )
