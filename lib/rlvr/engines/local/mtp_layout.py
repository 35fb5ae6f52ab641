"""Where the rows, inputs and targets of MTP modules lie in a packed batch.

A chained module k at token j joins the token k-1 further on, which for the last tokens of a prompt is one of
the response: those rows differ within a group. So the last ``lead`` = K-1 tokens of each prompt move from the
group's shared part into every response; the rest stays shared. Parallel modules need no such rows (lead = 0).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.engines.local.packing import PackedGroups, pack


@dataclass(frozen=True)
class Entries:
    """The entries of one module that have a target, in the order of the flattened [B, T]."""

    at: Tensor  # [entries] place in the flattened [B, T]
    row: Tensor  # [entries] row of the layout that predicts: the token before y_t
    target: Tensor  # [entries] token id of y_{t+k-1}
    place: Tensor  # [entries] which of the batch's response tokens that is; its backbone row predicts it too


@dataclass(frozen=True)
class MtpLayout:
    """Rows of the modules' own packed batch.

    Attributes:
        packed: the batch with ``lead`` tokens of each prompt moved into the responses.
        source: [rows] row of the backbone's packed batch whose hidden state each row takes.
        ahead: per module, [rows] id of the token to join, 0 past the end, where nothing reads it.
        entries: per module.
        size: (B, T) of the backbone's padded matrices.
    """

    packed: PackedGroups
    source: Tensor
    ahead: tuple[Tensor, ...]
    entries: tuple[Entries, ...]
    size: tuple[int, int]


def mtp_layout(batch: PackedGroups, blocks: int, chained: bool) -> MtpLayout:
    """The layout of modules 2..``blocks`` over ``batch``, made once per batch.

    Raises:
        ValueError: chained modules, and a prompt of fewer than ``blocks`` tokens.
    """
    return batch.once(("mtp", blocks, chained), lambda: _mtp_layout(batch, blocks, chained))


def _mtp_layout(batch: PackedGroups, blocks: int, chained: bool) -> MtpLayout:
    (groups, size, _), (_, width) = batch.own_rows.shape, batch.size
    prompts = batch.prompt_valid.sum(-1)
    lead = blocks - 1 if chained else 0
    if int(prompts.min()) <= lead:
        raise ValueError(
            f"a prompt has {int(prompts.min())} tokens: allowed with chained modules are at least "
            f"blocks={blocks}"
        )
    responses = batch.pad(batch.targets)
    lengths = batch.response_mask.sum(-1).long()

    shared = batch.prompt_valid & (torch.arange(batch.prompt_rows.shape[1]) < (prompts - lead)[:, None])
    moved = batch.prompt_rows.gather(1, (prompts - lead)[:, None] + torch.arange(lead))  # [g, lead] rows
    moved = moved.repeat_interleave(size, 0)
    own = torch.cat([batch.tokens[moved], responses], 1)  # [B, lead + T] token ids
    starts = [batch.tokens[rows[keep]].tolist() for rows, keep in zip(batch.prompt_rows, shared, strict=True)]
    packed = pack(starts, own, lengths + lead, size) if lead else batch

    own_source = torch.cat([moved, batch.own_rows.reshape(groups * size, -1)], 1)
    own_valid = torch.arange(own_source.shape[1]) < (lengths + lead - 1)[:, None]
    prompt_tokens = batch.tokens[batch.prompt_rows]
    by = range(1, blocks) if chained else ()
    return MtpLayout(
        packed=packed,
        source=torch.cat([batch.prompt_rows[shared], own_source[own_valid]]),
        ahead=tuple(
            torch.cat([_shift(prompt_tokens, n)[shared], _shift(own, n)[:, : own_valid.shape[1]][own_valid]])
            for n in by
        ),
        entries=tuple(_entries(batch, packed, responses, lengths, k, lead) for k in range(2, blocks + 1)),
        size=(groups * size, width),
    )


def _shift(tokens: Tensor, by: int) -> Tensor:
    """Column j holds column j + by, 0 past the end."""
    return torch.nn.functional.pad(tokens[:, by:], (0, min(by, tokens.shape[1])))


def _entries(
    batch: PackedGroups, packed: PackedGroups, responses: Tensor, lengths: Tensor, k: int, lead: int
) -> Entries:
    width = responses.shape[1]
    row, t = (torch.arange(width) + k - 1 < lengths[:, None]).nonzero(as_tuple=True)
    predicts_from = packed.pad(packed.predicts_from)[:, lead:]
    place = batch.pad(torch.arange(len(batch.targets)))
    return Entries(
        at=row * width + t,
        row=predicts_from[row, t],
        target=responses[row, t + k - 1],
        place=place[row, t + k - 1],
    )
