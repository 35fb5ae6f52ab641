"""The forward pass of a Qwen3 policy, written for speed on few cores.

No padding is computed: every linear layer runs on a packed list of real tokens, and the prompt of
a group of responses is in that list once. Only attention, whose cost here is small, uses a padded
layout, reached by one gather each way.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from rlvr.engines.local.packing import AttentionIndex, PackedGroups
from rlvr.engines.local.policy import Layer, Shape, Weights


class Head(Protocol):
    """What ends a network: the final norm [hidden] and a head [vocab, hidden]."""

    @property
    def norm(self) -> Tensor: ...

    @property
    def head(self) -> Tensor: ...


class _RmsNorm(torch.autograd.Function):
    """x / rms(x) over the last axis; one saved tensor and a fused-by-hand backward."""

    @staticmethod
    def forward(ctx, x: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_().unsqueeze(-1)
        y = x * scale
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        y, scale = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, y).div_(y.shape[-1]).unsqueeze(-1)
        return torch.addcmul(grad, y, along, value=-1).mul_(scale), None


class Rotary(NamedTuple):
    """Cosines and sines [positions, 1, head_dim]."""

    cos: Tensor
    sin: Tensor


def rotary(positions: Tensor, shape: Shape) -> Rotary:
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32)
    inverse = 1.0 / (shape.rope_theta ** (half / shape.head_dim))
    angle = positions.to(torch.float32)[:, None] * inverse
    angle = torch.cat([angle, angle], dim=-1).unsqueeze(1)
    return Rotary(angle.cos(), angle.sin())


class _Rotate(torch.autograd.Function):
    """Rotary embedding of [tokens, heads, head_dim]; its backward is the opposite rotation."""

    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return rotate(x, cos, sin)

    @staticmethod
    def backward(ctx, grad: Tensor):
        cos, sin = ctx.saved_tensors
        return rotate(grad, cos, -sin), None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.empty_like(x)
    torch.neg(x[..., half:], out=turned[..., :half])
    turned[..., half:] = x[..., :half]
    return turned.mul_(sin).addcmul_(x, cos)


def project_qkv(x: Tensor, layer: Layer, shape: Shape, rope: Rotary) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys [tokens, heads + kv_heads, d], and values [tokens, kv_heads, d]."""
    heads, kv = shape.num_attention_heads, shape.num_key_value_heads
    normed = _RmsNorm.apply(x, shape.rms_norm_eps)
    # The norm's weight scales columns of the next matrix: folding it there costs a few thousand
    # multiplications instead of one per token and channel.
    qkv = F.linear(normed, layer.qkv * layer.norm_in).view(-1, heads + 2 * kv, shape.head_dim)
    qk, v = qkv.split([heads + kv, kv], dim=1)
    weight = torch.cat([layer.norm_q.expand(heads, -1), layer.norm_k.expand(kv, -1)])
    qk = _RmsNorm.apply(qk, shape.rms_norm_eps) * weight
    return _Rotate.apply(qk, rope.cos, rope.sin), v


def feed_forward(x: Tensor, layer: Layer, shape: Shape) -> Tensor:
    """The residual stream after the gated feed-forward block."""
    normed = _RmsNorm.apply(x, shape.rms_norm_eps)
    gate, up = F.linear(normed, layer.gate_up * layer.norm_post).chunk(2, dim=-1)
    return torch.addmm(x, F.silu(gate) * up, layer.down.t())


def rms_norm(x: Tensor, shape: Shape) -> Tensor:
    """x over its root mean square, without a weight."""
    return _RmsNorm.apply(x, shape.rms_norm_eps)


def head_logits(hidden: Tensor, weights: Head, shape: Shape) -> Tensor:
    return F.linear(_RmsNorm.apply(hidden, shape.rms_norm_eps), weights.head * weights.norm)


def decoder_layer(x: Tensor, layer: Layer, shape: Shape, rope: Rotary, index: AttentionIndex) -> Tensor:
    """One layer over packed rows, [tokens, hidden] -> [tokens, hidden]."""
    qk, v = project_qkv(x, layer, shape, rope)
    mixed = _Attention.apply(qk, v, index, shape.num_key_value_heads)
    x = torch.addmm(x, mixed, layer.out.t())
    return feed_forward(x, layer, shape)


class States(NamedTuple):
    """Hidden states of every packed row, [tokens, hidden]."""

    trunk: Tensor  # what the last layer was given
    last: Tensor  # what it returned, before the final norm


def packed_states(weights: Weights, shape: Shape, batch: PackedGroups) -> States:
    rope = rotary(batch.positions, shape)
    index = batch.attention_index(shape)
    trunk = x = F.embedding(batch.tokens, weights.embed)
    for layer in weights.layers:
        trunk, x = x, decoder_layer(x, layer, shape, rope, index)
    return States(trunk, x)


def packed_logits(weights: Weights, shape: Shape, batch: PackedGroups) -> Tensor:
    """Logits that predict each response token: [response tokens, vocab], in the order of ``batch``."""
    last = packed_states(weights, shape, batch).last
    return head_logits(last.index_select(0, batch.predicts_from), weights, shape)


class _Attention(torch.autograd.Function):
    """Causal attention over packed rows: each response sees its prompt and itself.

    qk [tokens, heads + kv_heads, d], v [tokens, kv_heads, d] -> [tokens, heads * d].
    Written with its own backward, because autograd would add one full-size gradient per gather.
    """

    @staticmethod
    def forward(ctx, qk: Tensor, v: Tensor, index: AttentionIndex, kv: int) -> Tensor:
        tokens, d = qk.shape[0], qk.shape[-1]
        heads = qk.shape[1] - kv
        rep, g, size, p, r = heads // kv, index.groups, index.group_size, index.prompt, index.response
        spread = qk.reshape(-1, d).index_select(0, index.spread_qk)
        prompt_q, own_q, keys = spread.split([g * heads * p, g * heads * size * r, g * kv * size * (p + r)])
        keys = keys.view(g * kv * size, p + r, d)
        values = v.reshape(-1, d).index_select(0, index.spread_v).view(g * kv * size, p + r, d)
        prompt_q, own_q = prompt_q.view(g * kv, rep * p, d), own_q.view(g * kv * size, rep * r, d)
        # Any one copy of the prompt's keys serves the prompt's own queries.
        prompt_k = keys.view(g * kv, size, p + r, d)[:, 0, :p]
        prompt_v = values.view(g * kv, size, p + r, d)[:, 0, :p]

        own = torch.bmm(own_q, keys.transpose(1, 2)).mul_(d**-0.5)
        own.view(g, kv, size, rep, r, p + r).add_(index.own_mask)
        own = torch.softmax(own, -1)
        prompts = torch.bmm(prompt_q, prompt_k.transpose(1, 2)).mul_(d**-0.5)
        prompts.view(g, kv, rep, p, p).add_(index.prompt_mask)
        prompts = torch.softmax(prompts, -1)
        mixed = torch.cat([torch.bmm(prompts, prompt_v).view(-1, d), torch.bmm(own, values).view(-1, d)])
        ctx.save_for_backward(prompt_q, own_q, keys, values, prompts, own)
        ctx.index, ctx.kv = index, kv
        return mixed.index_select(0, index.collect).view(tokens, heads * d)

    @staticmethod
    def backward(ctx, grad: Tensor):
        prompt_q, own_q, keys, values, prompts, own = ctx.saved_tensors
        index, kv, d = ctx.index, ctx.kv, keys.shape[-1]
        tokens, heads = grad.shape[0], grad.shape[1] // d
        rep, g, size, p, r = heads // kv, index.groups, index.group_size, index.prompt, index.response
        prompt_k = keys.view(g * kv, size, p + r, d)[:, 0, :p]
        prompt_v = values.view(g * kv, size, p + r, d)[:, 0, :p]

        spread = grad.reshape(-1, d).index_select(0, index.scatter)
        prompt_g, own_g = spread.split([g * heads * p, g * heads * size * r])
        # Padded queries point at row 0; their gradient is not theirs.
        prompt_g.view(g, kv, rep, p, d).mul_(index.prompt_valid)
        own_g.view(g, kv, size, rep, r, d).mul_(index.own_valid)
        prompt_g, own_g = prompt_g.view(g * kv, rep * p, d), own_g.view(g * kv * size, rep * r, d)

        def through(probability: Tensor, grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor):
            grad_value = torch.bmm(probability.transpose(1, 2), grad_out)
            grad_prob = torch.bmm(grad_out, value.transpose(1, 2))
            grad_score = torch._softmax_backward_data(grad_prob, probability, -1, torch.float32).mul_(d**-0.5)
            return torch.bmm(grad_score, key), torch.bmm(grad_score.transpose(1, 2), query), grad_value

        own_dq, own_dk, own_dv = through(own, own_g, own_q, keys, values)
        prompt_dq, prompt_dk, prompt_dv = through(prompts, prompt_g, prompt_q, prompt_k, prompt_v)

        def fold(own_grad: Tensor, prompt_grad: Tensor) -> list[Tensor]:
            """The group's copies of a prompt are one row: add their gradients."""
            own_grad = own_grad.view(g * kv, size, p + r, d)
            shared = own_grad[:, :, :p].sum(1).add_(prompt_grad)
            return [shared.view(-1, d), own_grad[:, :, p:].reshape(-1, d)]

        grad_qk = torch.cat([prompt_dq.view(-1, d), own_dq.view(-1, d), *fold(own_dk, prompt_dk)])
        grad_v = torch.cat(fold(own_dv, prompt_dv))
        grad_qk = grad_qk.index_select(0, index.spread_qk_back).view(tokens, heads + kv, d)
        return grad_qk, grad_v.index_select(0, index.spread_v_back).view(tokens, kv, d), None, None
