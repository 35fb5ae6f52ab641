"""One batch of responses: left padding, a key-value cache, and random numbers that each response owns.

A response's random numbers depend on its problem, sample and seed alone. The batch can still move a logit in
its last digits, so the same responses need the same batches: a part of a run is one batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlvr.engines.config import SamplingConfig
from rlvr.engines.vllm.prompts import Request

HEAD = 256  # most likely tokens that are sorted first; the whole vocabulary only if they do not reach top_p


class Response(NamedTuple):
    token_ids: list[int]  # the token that ended it included
    finish_reason: str  # stop | length


@torch.inference_mode()
def generate(
    model: Any,
    requests: list[Request],
    end_ids: tuple[int, ...],
    config: SamplingConfig,
    on_token: Callable[[int], None] | None = None,
) -> list[Response]:
    """Responses to ``requests``, computed together; ``on_token`` hears after each token how many have ended.

    Each prompt is read once, however many of its samples are in the batch. Rows that have ended are dropped
    when they are half of what is computed.
    """
    prompts = list({id(r.prompt): r.prompt for r in requests}.values())
    row_of = {id(p): i for i, p in enumerate(prompts)}
    rows = torch.tensor([row_of[id(r.prompt)] for r in requests])
    ids, mask = left_padded([p.ids for p in prompts])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    out = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    # Newer transformers call it `cache` and refuse the old name from 5.40 on.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache, logits = getattr(out, name), out.logits[rows, -1]
    cache.batch_select_indices(rows)
    mask, position = mask[rows], positions[rows, -1:]
    uniforms = torch.stack([uniforms_of(r, config.max_tokens) for r in requests])
    ends, alive = torch.tensor(end_ids), torch.arange(len(requests))
    running = torch.ones(len(requests), dtype=torch.bool)  # of the rows that are computed
    tokens: list[list[int]] = [[] for _ in requests]
    ended = 0
    for step in range(config.max_tokens):
        chosen = draw(logits, uniforms[alive, step], config.temperature, config.top_p, config.top_k)
        for row in running.nonzero().flatten().tolist():
            tokens[int(alive[row])].append(int(chosen[row]))
        ended += int((running & torch.isin(chosen, ends)).sum())
        running &= ~torch.isin(chosen, ends)
        left = len(requests) - ended
        if on_token:
            on_token(ended)
        if not left or step + 1 == config.max_tokens:
            break
        if 2 * left <= len(running):
            keep = running.nonzero().flatten()
            cache.batch_select_indices(keep)
            alive, mask, position = alive[keep], mask[keep], position[keep]
            chosen, running = chosen[keep], running[keep]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        position = position + 1
        out = model(
            input_ids=chosen[:, None],
            attention_mask=mask,
            position_ids=position,
            use_cache=True,
            **{name: cache},
        )
        logits = out.logits[:, -1]
    return [Response(t, "stop" if t[-1] in end_ids else "length") for t in tokens]


def left_padded(sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Ids and mask ``[batch, longest]``, both int64. The mask comes from the lengths: a prompt may hold the
    id that pads (it often is an end token, which closes the turns of a chat)."""
    longest = max(map(len, sequences))
    ids = torch.zeros(len(sequences), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, longest - len(sequence) :] = torch.tensor(sequence)
        mask[row, longest - len(sequence) :] = 1
    return ids, mask


def uniforms_of(request: Request, number: int) -> Tensor:
    """``[number]`` float64 in [0, 1), the same whatever else is sampled."""
    generator = torch.Generator().manual_seed(request.engine_seed)
    return torch.rand(number, generator=generator, dtype=torch.float64)


def draw(logits: Tensor, uniforms: Tensor, temperature: float, top_p: float, top_k: int) -> Tensor:
    """One token per row, by inverting the distribution function over tokens from the most likely on.

    Args:
        logits: ``[batch, vocabulary]``.
        uniforms: ``[batch]`` in [0, 1), float64.
        temperature: 0 takes the most likely token.
        top_p: the fewest tokens that together reach this probability are kept.
        top_k: at most so many tokens are kept; 0 keeps all.

    Returns:
        Token ids ``[batch]``.
    """
    if temperature == 0:
        return logits.argmax(-1)
    probs = torch.softmax(logits.double() / temperature, dim=-1)
    if top_k:
        kept, ids = probs.topk(min(top_k, probs.shape[-1]), dim=-1)
        kept = kept / kept.sum(-1, keepdim=True)
    else:
        kept, ids = probs.topk(min(HEAD, probs.shape[-1]), dim=-1)
        if bool((kept.sum(-1) < top_p).any()) or top_p >= 1:
            kept, ids = probs.sort(dim=-1, descending=True, stable=True)
    below = kept.cumsum(-1) - kept
    kept = torch.where(below < top_p, kept, 0.0)
    sums = kept.cumsum(-1)
    target = uniforms[:, None] * sums[:, -1:]
    index = (sums <= target).sum(-1, keepdim=True)
    last = (kept > 0).sum(-1, keepdim=True) - 1  # rounding may not lead past the last token that is kept
    return ids.gather(-1, torch.minimum(index, last)).squeeze(-1)
