"""Sample responses with a key-value cache: each prompt is computed once, finished rows are dropped.

Every row draws its own uniforms before the loop, so a response depends on the seed, its prompt and
its row number, and not on which other rows were in the batch or when they finished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rlvr.engines.local.network import Rotary, feed_forward, head_logits, project_qkv, rotary
from rlvr.engines.local.policy import Policy, Weights, unflatten

ROWS_AT_ONCE = 1024  # keeps the cache of a small model within the processor's own caches


@dataclass(frozen=True)
class Samples:
    """Responses to prompts, a group's responses in adjacent rows.

    Attributes:
        tokens: [B, T] int64, 0 after the end of a response.
        lengths: [B] tokens of each response, its end token included.
        log_prob: [B, T] float32, log-probability of each token under the sampling distribution
            (temperature included), 0 after the end.
        finished: [B] bool, whether an end token came before the limit.
    """

    tokens: Tensor
    lengths: Tensor
    log_prob: Tensor
    finished: Tensor

    @property
    def response_mask(self) -> Tensor:
        """[B, T] float32, from lengths and never from token values."""
        return (torch.arange(self.tokens.shape[1]) < self.lengths[:, None]).to(torch.float32)

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum())

    def responses(self) -> list[list[int]]:
        """The token ids of each response, without padding."""
        return [row[:n] for row, n in zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)]


@torch.no_grad()
def sample(
    policy: Policy,
    prompts: list[list[int]],
    group_size: int,
    max_new_tokens: int,
    seed: int,
    temperature: float = 1.0,
    on_progress: Callable[[int], None] | None = None,
) -> Samples:
    """Sample ``group_size`` responses to each prompt.

    Args:
        policy: whom to ask. A response ends at any of ``policy.eos_ids``.
        prompts: token ids, at least one each.
        group_size: responses per prompt.
        max_new_tokens: limit; a response that reaches it without an end token is not ``finished``.
        seed: the whole result is a function of (weights, prompts, group_size, temperature, seed).
        temperature: divides the logits; 0 takes the most likely token.
        on_progress: called with the number of prompts done after each chunk.

    Raises:
        ValueError: no prompt, an empty prompt, or a parameter out of range.
    """
    if not prompts or not all(prompts):
        raise ValueError("prompts must be a non-empty list of non-empty token lists")
    if group_size < 1 or max_new_tokens < 1 or temperature < 0:
        raise ValueError(
            f"group_size={group_size} and max_new_tokens={max_new_tokens} must be at least 1, "
            f"temperature={temperature} at least 0"
        )
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(len(prompts) * group_size, max_new_tokens, generator=generator)
    weights = unflatten(policy.theta, policy.shape)
    per_chunk = max(1, ROWS_AT_ONCE // group_size)
    chunks = []
    for start in range(0, len(prompts), per_chunk):
        chunk = prompts[start : start + per_chunk]
        draws = uniforms[start * group_size : (start + len(chunk)) * group_size]
        chunks.append(_Decoder(weights, policy, chunk, group_size, max_new_tokens).run(draws, temperature))
        if on_progress:
            on_progress(start + len(chunk))
    joined = Samples(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))
    width = int(joined.lengths.max())
    return Samples(joined.tokens[:, :width], joined.lengths, joined.log_prob[:, :width], joined.finished)


class _Decoder:
    """The state of one chunk: which rows still run, and their cached keys and values."""

    def __init__(
        self, weights: Weights, policy: Policy, prompts: list[list[int]], group_size: int, limit: int
    ):
        self.weights, self.shape, self.limit = weights, policy.shape, limit
        self.eos = torch.tensor(policy.eos_ids)
        lengths = torch.tensor([len(p) for p in prompts])
        self.width = int(lengths.max())
        # Prompts end in the same column, so that every row writes its next token to the same place.
        valid = torch.arange(self.width) >= self.width - lengths[:, None]
        self.cache, last = self._prefill(prompts, lengths, valid, group_size)
        self.logits = head_logits(last, weights, self.shape).repeat_interleave(group_size, 0)
        self.start = lengths.repeat_interleave(group_size)
        self.pad_mask = None
        if not bool(valid.all()):
            mask = torch.zeros(valid.shape).masked_fill_(~valid, float("-inf"))
            self.pad_mask = mask.repeat_interleave(group_size, 0)
        # Angles for every position that can occur, looked up by row at each step.
        self.angles = rotary(torch.arange(self.width + limit), self.shape)

    def _prefill(self, prompts, lengths: Tensor, valid: Tensor, group_size: int):
        """Run the packed prompts once; return the cache repeated per response and the last hidden states."""
        shape, (count, width) = self.shape, valid.shape
        x = F.embedding(torch.tensor([t for p in prompts for t in p]), self.weights.embed)
        positions = (torch.arange(width) - (width - lengths[:, None]))[valid]
        rope = rotary(positions, shape)
        rows = valid.reshape(-1).nonzero().squeeze(-1)
        heads, kv, d, rep = (
            shape.num_attention_heads,
            shape.num_key_value_heads,
            shape.head_dim,
            shape.query_per_kv,
        )
        mask = torch.ones(width, width, dtype=torch.bool).tril_() & valid[:, None, :]
        # A padded query sees nothing; let it see itself, so that its unused output stays finite.
        mask |= torch.eye(width, dtype=torch.bool)
        cache: list[tuple[Tensor, Tensor]] = []
        for layer in self.weights.layers:
            qk, v = project_qkv(x, layer, shape, rope)
            padded = x.new_zeros(count * width, heads + 2 * kv, d)
            padded.index_copy_(0, rows, torch.cat([qk, v], dim=1))
            q, k, v = padded.view(count, width, -1, d).transpose(1, 2).split([heads, kv, kv], dim=1)
            mixed = F.scaled_dot_product_attention(
                q, k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1), attn_mask=mask[:, None]
            )
            mixed = mixed.transpose(1, 2).reshape(count * width, heads * d).index_select(0, rows)
            x = feed_forward(torch.addmm(x, mixed, layer.out.t()), layer, shape)
            room = (count * group_size, kv, width + self.limit, d)
            keys, values = x.new_empty(room), x.new_empty(room)
            keys[:, :, :width] = k.repeat_interleave(group_size, 0)
            values[:, :, :width] = v.repeat_interleave(group_size, 0)
            cache.append((keys, values))
        return cache, x.index_select(0, lengths.cumsum(0) - 1)

    def run(self, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        total = len(uniforms)
        tokens = torch.zeros(total, self.limit, dtype=torch.int64)
        log_probs = torch.zeros(total, self.limit)
        lengths = torch.zeros(total, dtype=torch.int64)
        finished = torch.zeros(total, dtype=torch.bool)
        alive = torch.arange(total)  # original row of each row still computed
        running = torch.ones(total, dtype=torch.bool)  # rows computed but already finished are False
        for step in range(self.limit):
            token, log_prob = _choose(self.logits, uniforms[alive, step], temperature)
            rows = alive[running]
            tokens[rows, step], log_probs[rows, step] = token[running], log_prob[running]
            lengths[rows] += 1
            ended = torch.isin(token, self.eos) & running
            finished[alive[ended]] = True
            running &= ~ended
            left = int(running.sum())
            if left == 0 or step + 1 == self.limit:
                break
            if left <= 0.85 * len(running):
                alive, token = alive[running], token[running]
                self._keep(running, step)
                running = torch.ones(left, dtype=torch.bool)
            self._advance(token, step)
        return tokens, lengths, log_probs, finished

    def _keep(self, rows: Tensor, step: int) -> None:
        """Drop the rows that are finished from the cache; unwritten columns are not copied."""
        keep, used = rows.nonzero().squeeze(-1), self.width + step
        for index, (keys, values) in enumerate(self.cache):
            fresh = []
            for tensor in (keys, values):
                new = tensor.new_empty(len(keep), *tensor.shape[1:])
                new[:, :, :used] = tensor[:, :, :used].index_select(0, keep)
                fresh.append(new)
            self.cache[index] = (fresh[0], fresh[1])
        self.start = self.start.index_select(0, keep)
        if self.pad_mask is not None:
            self.pad_mask = self.pad_mask.index_select(0, keep)

    def _advance(self, token: Tensor, step: int) -> None:
        """Feed one token per row; afterwards ``self.logits`` predicts the next."""
        shape = self.shape
        positions = self.start + step
        rope = Rotary(self.angles.cos.index_select(0, positions), self.angles.sin.index_select(0, positions))
        x = F.embedding(token, self.weights.embed)
        for layer, (keys, values) in zip(self.weights.layers, self.cache, strict=True):
            qk, v = project_qkv(x, layer, shape, rope)
            mixed = self._attend(qk, v, keys, values, self.width + step)
            x = feed_forward(torch.addmm(x, mixed, layer.out.t()), layer, shape)
        self.logits = head_logits(x, self.weights, shape)

    def _attend(self, qk: Tensor, v: Tensor, keys: Tensor, values: Tensor, column: int) -> Tensor:
        shape, rows = self.shape, len(qk)
        heads, kv, d = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        keys[:, :, column] = qk[:, heads:]
        values[:, :, column] = v
        seen = column + 1
        query = qk[:, :heads].reshape(rows * kv, shape.query_per_kv, d)
        k = keys.view(rows * kv, -1, d)[:, :seen]
        scores = torch.bmm(query, k.transpose(1, 2)).mul_(d**-0.5)
        if self.pad_mask is not None:
            scores.view(rows, heads, seen)[:, :, : self.width].add_(self.pad_mask[:, None])
        weights = torch.softmax(scores, -1)
        return torch.bmm(weights, values.view(rows * kv, -1, d)[:, :seen]).view(rows, heads * d)


def _choose(logits: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Inverse-CDF sampling of one token per row; returns tokens [rows] and their log-probabilities [rows]."""
    if temperature == 0:
        log_probs = logits.log_softmax(-1)
        token = log_probs.argmax(-1)
    else:
        log_probs = (logits if temperature == 1 else logits / temperature).log_softmax(-1)
        cumulative = log_probs.exp().cumsum(-1)
        total = cumulative[:, -1:]
        # Rounding of uniform * total may reach total itself: stop at the last token with any mass.
        token = torch.minimum((cumulative <= uniform[:, None] * total).sum(-1), (cumulative < total).sum(-1))
    return token, log_probs.gather(1, token[:, None]).squeeze(1)
