"""Pack groups of responses with their prompts so that every token is computed once.

A batch of ``groups`` prompts with ``group_size`` responses each becomes one list of tokens: all
prompts (once per group), then every response without its last token, which predicts nothing. The
masks come from lengths, never from token values, so a pad id equal to an end id could do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rlvr.engines.local.policy import Shape


@dataclass(frozen=True)
class AttentionIndex:
    """Where packed rows go in the padded layout of attention, and back. All [rows] int64.

    Rows of queries and keys are ``token * (heads + kv_heads) + head``; of values ``token * kv_heads +
    head``; of outputs ``token * heads + head``.
    """

    groups: int
    group_size: int
    prompt: int  # longest prompt
    response: int  # longest response less its last token (at least 1)
    spread_qk: (
        Tensor  # -> [g, kv, rep, p] prompt queries | [g, kv, G, rep, r] own queries | [g, kv, G, p+r] keys
    )
    spread_qk_back: Tensor
    spread_v: Tensor  # -> [g, kv, G, p+r]
    spread_v_back: Tensor
    collect: Tensor  # [tokens * heads] from prompt outputs | own outputs
    scatter: Tensor  # inverse of collect, padding pointing at row 0
    prompt_mask: Tensor  # [p, p] additive
    own_mask: Tensor  # [g, 1, 1, 1, r, p+r] additive
    prompt_valid: Tensor  # [g, 1, 1, p, 1] 1.0 at real tokens
    own_valid: Tensor  # [g, 1, G, 1, r, 1]


@dataclass(frozen=True)
class PackedGroups:
    """A packed batch.

    Attributes:
        tokens: [tokens] prompts, then responses without their last token.
        positions: [tokens] position of each token in its own sequence.
        predicts_from: [response tokens] the packed row whose output predicts each response token.
        targets: [response tokens] the response tokens themselves, response by response.
        response_rows, response_cols: [response tokens] place of each in a padded [B, T] matrix.
        size: (B, T) of that matrix, ``B = groups * group_size``.
    """

    tokens: Tensor
    positions: Tensor
    predicts_from: Tensor
    targets: Tensor
    response_rows: Tensor
    response_cols: Tensor
    size: tuple[int, int]
    prompt_rows: Tensor  # [g, p] packed row of each prompt token, padding 0
    prompt_valid: Tensor  # [g, p] bool
    own_rows: Tensor  # [g, G, r] packed row of each response token but the last, padding 0
    own_valid: Tensor  # [g, G, r] bool
    _index: dict = field(default_factory=dict, compare=False)

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """[response tokens] -> [B, T], ``fill`` at padding; differentiable."""
        flat = self.response_rows * self.size[1] + self.response_cols
        out = torch.full((self.size[0] * self.size[1],), fill, dtype=values.dtype)
        return out.index_copy(0, flat, values).view(self.size)

    @cached_property
    def response_mask(self) -> Tensor:
        """[B, T] float, 1 at tokens that the model wrote."""
        return self.pad(torch.ones(len(self.targets)))

    def attention_index(self, shape: Shape) -> AttentionIndex:
        key = (shape.num_attention_heads, shape.num_key_value_heads)
        return self.once(key, lambda: _attention_index(self, *key))

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` returns, made at the first call with this key."""
        if key not in self._index:
            self._index[key] = make()
        return self._index[key]


def pack(prompts: list[list[int]], responses: Tensor, lengths: Tensor, group_size: int) -> PackedGroups:
    """Pack ``prompts`` (one per group) and their ``responses``.

    Args:
        prompts: token ids, at least one each.
        responses: [groups * group_size, width] token ids; a group's responses are adjacent rows.
        lengths: [groups * group_size] tokens of each response, end token included, at least 1.
        group_size: responses per prompt.

    Raises:
        ValueError: sizes that do not fit, an empty prompt or an empty response.
    """
    groups, rows = len(prompts), len(responses)
    if rows != groups * group_size or lengths.shape != (rows,):
        raise ValueError(
            f"{groups} prompts x group_size={group_size} need {groups * group_size} responses and lengths, "
            f"got {rows} and {tuple(lengths.shape)}"
        )
    prompt_lengths = torch.tensor([len(p) for p in prompts])
    if rows == 0 or int(prompt_lengths.min()) < 1 or int(lengths.min()) < 1:
        raise ValueError("every prompt and every response needs at least one token")
    if int(lengths.max()) > responses.shape[1]:
        raise ValueError(
            f"a length of {int(lengths.max())} exceeds the width {responses.shape[1]} of responses"
        )
    width = int(lengths.max())
    p, r = int(prompt_lengths.max()), max(width - 1, 1)

    prompt_valid = torch.arange(p) < prompt_lengths[:, None]
    prompt_starts = prompt_lengths.cumsum(0) - prompt_lengths
    prompt_rows = (prompt_starts[:, None] + torch.arange(p)).where(
        prompt_valid, torch.zeros((), dtype=torch.int64)
    )
    total_prompt = int(prompt_lengths.sum())

    own_lengths = lengths - 1
    own_valid = torch.arange(r) < own_lengths[:, None]
    own_starts = total_prompt + own_lengths.cumsum(0) - own_lengths
    own_rows = (own_starts[:, None] + torch.arange(r)).where(own_valid, torch.zeros((), dtype=torch.int64))

    row_prompt = torch.arange(groups).repeat_interleave(group_size)
    seen = torch.arange(width) < lengths[:, None]
    response_rows, response_cols = seen.nonzero(as_tuple=True)
    last_prompt_row = (prompt_starts + prompt_lengths - 1)[row_prompt]
    predicts_from = torch.cat([last_prompt_row[:, None], own_rows], dim=1)[:, :width][seen]

    own_positions = prompt_lengths[row_prompt][:, None] + torch.arange(r)
    return PackedGroups(
        tokens=torch.cat(
            [
                torch.tensor([t for prompt in prompts for t in prompt]),
                responses[:, :r][own_valid[:, : responses.shape[1]]],
            ]
        ),
        positions=torch.cat([torch.arange(p).expand(groups, p)[prompt_valid], own_positions[own_valid]]),
        predicts_from=predicts_from,
        targets=responses[:, :width][seen],
        response_rows=response_rows,
        response_cols=response_cols,
        size=(rows, width),
        prompt_rows=prompt_rows,
        prompt_valid=prompt_valid,
        own_rows=own_rows.view(groups, group_size, r),
        own_valid=own_valid.view(groups, group_size, r),
    )


def _attention_index(batch: PackedGroups, heads: int, kv: int) -> AttentionIndex:
    (g, p), (_, size, r) = batch.prompt_rows.shape, batch.own_rows.shape
    rep, tokens = heads // kv, len(batch.tokens)
    head = torch.arange(heads).view(kv, rep)
    key_head = torch.arange(kv)

    prompt_tokens = batch.prompt_rows.view(g, 1, 1, p).expand(g, kv, rep, p)
    own_tokens = batch.own_rows.view(g, 1, size, 1, r).expand(g, kv, size, rep, r)
    prompt_heads = head.view(1, kv, rep, 1).expand_as(prompt_tokens)
    own_heads = head.view(1, kv, 1, rep, 1).expand_as(own_tokens)
    prompt_ok = batch.prompt_valid.view(g, 1, 1, p).expand_as(prompt_tokens).reshape(-1)
    own_ok = batch.own_valid.view(g, 1, size, 1, r).expand_as(own_tokens).reshape(-1)

    # A response's keys: its prompt's, then its own; the prompt's rows are repeated for the group.
    shared_keys = batch.prompt_rows.view(g, 1, 1, p).expand(g, kv, size, p)
    own_keys = batch.own_rows.view(g, 1, size, r).expand(g, kv, size, r)
    key_tokens = torch.cat([shared_keys, own_keys], dim=-1)
    key_heads = key_head.view(1, kv, 1, 1)

    stride = heads + kv
    q_rows = torch.cat(
        [(prompt_tokens * stride + prompt_heads).reshape(-1), (own_tokens * stride + own_heads).reshape(-1)]
    )
    k_rows = (key_tokens * stride + heads + key_heads).reshape(-1)
    out_rows = torch.cat(
        [(prompt_tokens * heads + prompt_heads).reshape(-1), (own_tokens * heads + own_heads).reshape(-1)]
    )
    q_ok = torch.cat([prompt_ok, own_ok])

    # Backward order of keys: [g, kv, p] summed over the group, then [g, kv, size, r].
    folded_tokens = torch.cat(
        [
            batch.prompt_rows.view(g, 1, p).expand(g, kv, p).reshape(-1),
            own_keys.reshape(-1),
        ]
    )
    folded_heads = torch.cat(
        [
            key_head.view(1, kv, 1).expand(g, kv, p).reshape(-1),
            key_head.view(1, kv, 1, 1).expand(g, kv, size, r).reshape(-1),
        ]
    )
    folded_ok = torch.cat(
        [
            batch.prompt_valid.view(g, 1, p).expand(g, kv, p).reshape(-1),
            batch.own_valid.view(g, 1, size, r).expand(g, kv, size, r).reshape(-1),
        ]
    )

    def inverse(rows: Tensor, ok: Tensor, count: int) -> Tensor:
        back = torch.zeros(count, dtype=torch.int64)
        return back.index_copy_(0, rows[ok], ok.nonzero().squeeze(-1))

    neg = torch.tensor(float("-inf"))
    causal = torch.arange(p)[None, :] > torch.arange(p)[:, None]
    own_causal = torch.arange(r)[None, :] > torch.arange(r)[:, None]
    own_mask = torch.cat(
        [(~batch.prompt_valid)[:, None, :].expand(g, r, p), own_causal.expand(g, r, r)], dim=-1
    )
    return AttentionIndex(
        groups=g,
        group_size=size,
        prompt=p,
        response=r,
        spread_qk=torch.cat([q_rows, k_rows]),
        spread_qk_back=inverse(
            torch.cat([q_rows, folded_tokens * stride + heads + folded_heads]),
            torch.cat([q_ok, folded_ok]),
            tokens * stride,
        ),
        spread_v=(key_tokens * kv + key_heads).reshape(-1),
        spread_v_back=inverse(folded_tokens * kv + folded_heads, folded_ok, tokens * kv),
        collect=inverse(out_rows, q_ok, tokens * heads),
        scatter=out_rows,
        prompt_mask=torch.zeros(p, p).masked_fill_(causal, neg),
        own_mask=torch.zeros(g, r, p + r).masked_fill_(own_mask, neg).view(g, 1, 1, 1, r, p + r),
        prompt_valid=batch.prompt_valid.to(torch.float32).view(g, 1, 1, p, 1),
        own_valid=batch.own_valid.to(torch.float32).view(g, 1, size, 1, r, 1),
    )
