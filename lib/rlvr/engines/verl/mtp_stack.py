"""MTP modules over a micro-batch of verl: which hidden states they read, and what they say of which tokens.

Sequences lie one after the other (``input_ids.values()``), as verl keeps them; an engine's hidden states are
of the same tokens in rows of equal length, padded on the right, or packed into one row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlvr.mtp.modules import Backbone, MtpModules
from rlvr.ratios import block_mask, compute_dtype

# Fields of verl's batches and of an engine's output. Nested tensors hold K-1 numbers a token, one token's
# after the other's: verl takes a nested tensor of three dimensions for the positions of an image model.
SAID, RANKS = "mtp_log_probs", "mtp_ranks"  # of whole sequences
COUNTS = "mtp_counts"  # [K-1]: entries of each module in the mini-batch, on all ranks
OLD = "old_mtp_log_probs"  # of responses: the modules' part before the step's first update
CHUNK = 1024  # rows of logits that are compared at once


class Entries(NamedTuple):
    """The entries of one module that have a target, by position in the sequences laid end to end."""

    at: Tensor  # [entries] the token before y_t: where verl keeps what is said of y_t
    target: Tensor  # [entries] token id of y_{t+k-1}
    row: Tensor  # [entries] of the flattened hidden states: where the module reads
    place: Tensor  # [entries] likewise: where the backbone predicts the target
    temperature: Tensor  # [entries]


def padded_mask(micro_batch: Any) -> Tensor:
    """``response_mask`` [B, T] bool of nested responses."""
    mask = micro_batch["response_mask"]
    return torch.nested.to_padded_tensor(mask.to(torch.int8), 0).bool()


def entries_of(micro_batch: Any, blocks: int, width: int | None) -> list[Entries]:
    """The entries of modules 2..``blocks``.

    Args:
        micro_batch: with nested ``input_ids`` (prompt and response), ``responses`` and ``response_mask``, and
            ``temperature``, a number or [B].
        width: of the padded rows of hidden states; None: packed into one row.
    """
    tokens, starts = micro_batch["input_ids"].values(), micro_batch["input_ids"].offsets()
    lengths = micro_batch["responses"].offsets().diff()
    before = starts[1:] - lengths - 1  # the token before y_0
    # of the first token of each sequence, its row less its place in ``tokens``
    moved = 0 if width is None else torch.arange(len(lengths), device=tokens.device) * width - starts[:-1]
    temperature = torch.as_tensor(micro_batch["temperature"], dtype=torch.float32, device=tokens.device)
    temperature = temperature.expand(len(lengths))
    exists = block_mask(padded_mask(micro_batch), blocks)
    out = []
    for k in range(2, blocks + 1):
        sequence, t = exists[..., k - 2].nonzero(as_tuple=True)
        at = before[sequence] + t
        row = at if width is None else at + moved[sequence]
        out.append(Entries(at, tokens[at + k], row, row + k - 1, temperature[sequence]))
    return out


class MtpStack(nn.Module):
    """All modules behind one ``forward``, whose outputs are plain tensors.

    FSDP2 gathers a unit's weights again for the backward pass when a gradient reaches what its ``forward``
    returned: whatever leaves the unit by another way meets weights of size 0.
    """

    def __init__(self, modules: MtpModules):
        super().__init__()
        self.mtp = modules

    def forward(
        self, hidden: Tensor, embedded: Tensor, arguments: dict[str, Any], entries: list[Entries]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """(log-probs of the targets, likeliest tokens): per module [entries], the first with their graph.

        ``hidden``, ``embedded`` [rows, tokens, C]. Logits are computed once more in the backward pass: kept,
        those of all modules would be several times the backbone's.
        """
        states = self.mtp(Backbone(hidden, hidden, embedded, arguments))
        said, likeliest = [], []
        for module, state, found in zip(self.mtp.values(), states, entries, strict=True):
            chosen = state.flatten(0, 1)[found.row]
            values = checkpoint(_say, module, chosen, found.target, found.temperature, use_reentrant=False)
            said.append(values[0])
            likeliest.append(values[1])
        return said, likeliest


def _say(module: Any, state: Tensor, target: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    logits = module.logits(state)
    scaled = logits.to(compute_dtype(logits)) / temperature[:, None]
    said = scaled.log_softmax(-1).gather(-1, target[:, None]).sum(-1)  # no view: FSDP2 warns of those
    likeliest = logits.argmax(-1) if len(logits) else target
    return said, likeliest


def joined(said: list[Tensor], entries: list[Entries], tokens: int) -> Tensor:
    """[tokens, K-1]: what the modules say, at :attr:`Entries.at`; 0 elsewhere."""
    columns = [
        values.new_zeros(tokens).index_put((found.at,), values)
        for values, found in zip(said, entries, strict=True)
    ]
    return torch.stack(columns, -1)


def laid_flat(values: Tensor, offsets: Tensor) -> Tensor:
    """[tokens, K-1] of sequences with these ``offsets``, as a field."""
    return torch.nested.nested_tensor_from_jagged(values.flatten(), offsets * values.shape[-1])


def of_responses(field: Tensor, responses: Tensor, blocks: int) -> Tensor:
    """The part of a field of whole sequences that speaks of the responses, as a field; both nested."""
    rows = zip(field.unbind(), responses.offsets().diff().tolist(), strict=True)
    parts = [row.view(-1, blocks - 1)[-1 - length : -1].flatten() for row, length in rows]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def padded(field: Tensor, blocks: int) -> Tensor:
    """A field of responses as [B, T, K-1], 0 past the end."""
    rows = [row.view(-1, blocks - 1) for row in field.unbind()]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


@torch.no_grad()
def ranks(likeliest: list[Tensor], entries: list[Entries], logits: Tensor) -> list[Tensor]:
    """Per module, [entries] int64: the backbone's rank of the module's likeliest token, as in
    :func:`rlvr.mtp.predicted_rank`. ``logits`` [rows, vocabulary] of the backbone."""
    out = []
    for tokens, found in zip(likeliest, entries, strict=True):
        parts = []
        for token, place in zip(tokens.split(CHUNK), found.place.split(CHUNK), strict=True):
            there = logits[place]
            parts.append(1 + (there > there.gather(-1, token[:, None])).sum(-1))
        out.append(torch.cat(parts))
    return out
