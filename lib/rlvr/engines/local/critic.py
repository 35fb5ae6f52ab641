"""A critic: values of the states of a response, from a copy of the policy or on the policy's hidden states.

V_t is the value of what comes before y_t, read where the policy predicts y_t. Head 1 is a norm (a copy of the
policy's final one) and a row of weights, 0 at the start [choice], on the last layer's output.

Multi-token value heads [text: MPO App. C, "summing the outputs of multiple MTP modules"; C.1's body is lost]:
head k = 2..K is a copy of the last layer with a head of its own on the same hidden states, detached as the
policy's modules are, and V_t = sum_k b_k v_t^(k), b as in :func:`rlvr.ratios.block_weights`. All of this is
the reading taken here [choice]: heads look at what precedes y_t alone, since a value that saw later tokens
would be no baseline, and they learn through V by its loss. With gamma = lambda = 1 every state of a response
has the same return, so a head that aims k-1 tokens ahead has no other target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.advantages import gae, whiten
from rlvr.config_mtp import Critic as Settings
from rlvr.engines.local.network import States, decoder_layer, packed_states, rms_norm, rotary
from rlvr.engines.local.packing import PackedGroups
from rlvr.engines.local.policy import Block, Layer, Policy, Shape, join_blocks, split_blocks, unflatten
from rlvr.ratios import block_weights


@dataclass(frozen=True)
class CriticShape:
    """Sizes of a critic with ``blocks`` value heads on a network of sizes ``shape``."""

    shape: Shape
    blocks: int
    separate: bool

    def matrices(self) -> list[Block]:
        """Names and sizes in the flat vector, in order: the network (if its own), then the heads."""
        c = self.shape.hidden_size
        out = [(f"network.{name}", size) for name, size in self.shape.blocks()] if self.separate else []
        for k in range(1, self.blocks + 1):
            out += self.shape.layer_blocks(f"{k}.") if k > 1 else []
            out += [(f"{k}.norm", (c,)), (f"{k}.weight", (c,)), (f"{k}.bias", (1,))]
        return out

    @property
    def network_parameters(self) -> int:
        return sum(math.prod(size) for _, size in self.shape.blocks()) if self.separate else 0

    @property
    def parameters(self) -> int:
        return sum(math.prod(size) for _, size in self.matrices())


def new_critic(policy: Policy, settings: Settings) -> tuple[CriticShape, Tensor]:
    """(sizes, flat weights [parameters]) of a critic of ``policy``; every value is 0."""
    shape = CriticShape(policy.shape, settings.blocks, settings.network == "separate")
    theta = policy.theta.detach()
    weights, c = unflatten(theta, policy.shape), policy.shape.hidden_size
    parts = {f"network.{name}": value for name, value in split_blocks(theta, policy.shape.blocks()).items()}
    for k in range(1, settings.blocks + 1):
        if k > 1:
            parts |= {f"{k}.{name}": value for name, value in weights.layers[-1]._asdict().items()}
        parts |= {f"{k}.norm": weights.norm, f"{k}.weight": torch.zeros(c), f"{k}.bias": torch.zeros(1)}
    return shape, join_blocks(parts, shape.matrices())


def critic_values(
    psi: Tensor, shape: CriticShape, settings: Settings, batch: PackedGroups, states: States | None = None
) -> Tensor:
    """Values [B, T] of the states of ``batch``, 0 at padding; differentiable.

    ``states``: of the policy over ``batch``, for a shared network; a separate one computes its own.
    """
    if shape.separate:
        weights = unflatten(psi[: shape.network_parameters], shape.shape)
        states = packed_states(weights, shape.shape, batch)
    elif states is None:
        raise ValueError("states=None: a critic on a shared network needs the policy's hidden states")
    named = split_blocks(psi, shape.matrices())
    total = None
    for k, weight in enumerate(block_weights(shape.blocks, settings.head_weight, settings.head_decay), 1):
        hidden = states.last
        if k > 1:
            layer = Layer(*(named[f"{k}.{key}"] for key in Layer._fields))
            rope = rotary(batch.positions, shape.shape)
            hidden = decoder_layer(
                hidden.detach(), layer, shape.shape, rope, batch.attention_index(shape.shape)
            )
        normed = rms_norm(hidden.index_select(0, batch.predicts_from), shape.shape)
        value = normed @ (named[f"{k}.norm"] * named[f"{k}.weight"]) + named[f"{k}.bias"]
        total = weight * value if total is None else total + weight * value
    return batch.pad(total)


def terminal_rewards(rewards: Tensor, response_mask: Tensor) -> Tensor:
    """[B, T]: the reward of a response [B] at its last token, 0 elsewhere."""
    last = response_mask.sum(-1).long() - 1
    return torch.zeros_like(response_mask).scatter(1, last[:, None], rewards[:, None].to(response_mask.dtype))


def critic_advantages(
    rewards: list[Tensor], values: list[Tensor], masks: list[Tensor], settings: Settings
) -> list[tuple[Tensor, Tensor]]:
    """(advantages, returns), both [B, T], of each minibatch of a step.

    Args: per minibatch the rewards [B], values [B, T] and masks [B, T]. Advantages are whitened over the
    tokens of the whole step if ``settings.whiten`` [public: verl], after the returns were taken.
    """
    parts = [
        gae(terminal_rewards(reward, mask), value, mask, settings.gamma, settings.lam)
        for reward, value, mask in zip(rewards, values, masks, strict=True)
    ]
    if not settings.whiten:
        return parts
    flat = torch.cat([a[m.bool()] for (a, _), m in zip(parts, masks, strict=True)])[None]
    white = whiten(flat, torch.ones_like(flat))[0].split([int(m.sum()) for m in masks])
    return [
        (torch.zeros_like(a).masked_scatter(m.bool(), w), r)
        for (a, r), m, w in zip(parts, masks, white, strict=True)
    ]


def explained_variance(values: list[Tensor], returns: list[Tensor], masks: list[Tensor]) -> float:
    """``1 - Var(R - V) / Var(R)`` over the valid tokens of all minibatches; 0 where all returns are equal."""
    value, target = (
        torch.cat([part[mask.bool()].double() for part, mask in zip(parts, masks, strict=True)])
        for parts in (values, returns)
    )
    spread = target.var(correction=0)
    return float(1 - (target - value).var(correction=0) / spread) if spread > 0 else 0.0
