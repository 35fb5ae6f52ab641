"""Policies of the local engine for vLLM on CPU, whose attention computes heads of 32 and more only."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from rlvr.engines.local.policy import Layer, Policy, unflatten
from rlvr.engines.vllm.model import check_model
from rlvr.problems.tokenizer import Codec
from rlvr.storage import atomic_dir, read_json

HEAD_DIM = 32


@torch.no_grad()
def widen_heads(policy: Policy, head_dim: int = HEAD_DIM) -> Policy:
    """The same policy with heads of ``head_dim`` channels, the new ones 0 [choice].

    With s = head_dim / d: channel pair i of the rotary embedding moves to s i, where its angle is the same.
    Queries and keys are multiplied by sqrt(s), so that the mean of their squares over s times as many
    channels, and with it their norm, stays what it was. They come out of the norm sqrt(s) times as large,
    and attention divides by sqrt(s) more: hence s^(-1/4) on each norm's weight. Equal but for rounding.

    Raises:
        ValueError: head_dim is no multiple of the policy's.
    """
    shape = policy.shape
    d = shape.head_dim
    if head_dim < d or head_dim % d:
        raise ValueError(f"head_dim={head_dim}: allowed are multiples of the policy's own, {d}")
    s = head_dim // d
    half = torch.arange(d // 2) * s
    rotated, plain = torch.cat([half, half + head_dim // 2]), torch.arange(d)
    heads, kv = shape.num_attention_heads, shape.num_key_value_heads

    def spread(block: Tensor, channels: Tensor, count: int) -> Tensor:
        """[count * d, c] to [count * head_dim, c], the rest 0."""
        wide = block.new_zeros(count, head_dim, block.shape[-1])
        wide[:, channels] = block.view(count, d, -1)
        return wide.view(count * head_dim, -1)

    def norm(weight: Tensor) -> Tensor:
        wide = weight.new_zeros(head_dim)
        wide[rotated] = weight * s**-0.25
        return wide

    def widen(layer: Layer) -> Layer:
        qk, v = layer.qkv.split([(heads + kv) * d, kv * d])
        return layer._replace(
            qkv=torch.cat([spread(qk * s**0.5, rotated, heads + kv), spread(v, plain, kv)]),
            out=spread(layer.out.t(), plain, heads).t(),
            norm_q=norm(layer.norm_q),
            norm_k=norm(layer.norm_k),
        )

    wide = dataclasses.replace(shape, head_dim=head_dim)
    weights = unflatten(policy.theta, shape)
    layers = [widen(layer) for layer in weights.layers]
    named = {"embed": weights.embed, "norm": weights.norm, "head": weights.head}
    for index, layer in enumerate(layers):
        named |= {f"{index}.{name}": tensor for name, tensor in layer._asdict().items()}
    theta = torch.cat([named[name].reshape(-1) for name, _ in wide.blocks()])
    return Policy(wide, theta, policy.eos_ids, policy.hf_config | {"head_dim": head_dim})


def fitting_folder(model: str | Path, copy: str | Path) -> Path:
    """The model's folder; or ``copy``, with the same policy in wider heads, if it is one of the local engine
    with heads that are too narrow."""
    folder = check_model(model)
    config = read_json(folder / "config.json")
    if config.get("model_type") != "qwen3" or config.get("head_dim", HEAD_DIM) >= HEAD_DIM:
        return folder
    with atomic_dir(copy) as partial:
        widen_heads(Policy.from_pretrained(folder)).save_pretrained(partial)
        Codec.load(folder).save(partial)
    return Path(copy)
