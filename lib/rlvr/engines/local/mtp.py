"""MTP modules of the local engine: one flat vector of weights beside the policy's, over packed groups.

The same modules as :mod:`rlvr.mtp`, computed with the layers of ``network.py``; files are interchangeable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rlvr.engines.local.mtp_layout import MtpLayout, mtp_layout
from rlvr.engines.local.network import States, decoder_layer, head_logits, rms_norm, rotary
from rlvr.engines.local.packing import PackedGroups
from rlvr.engines.local.policy import (
    Block,
    Layer,
    Policy,
    Shape,
    Weights,
    join_blocks,
    layer_parts,
    layer_state,
    split_blocks,
    unflatten,
)
from rlvr.mtp.files import FILE, read_file, write_file
from rlvr.mtp.losses import predicted_rank


class Join(NamedTuple):
    norm_hidden: Tensor  # [hidden]
    norm_embed: Tensor  # [hidden]
    proj: Tensor  # [hidden, 2 * hidden]


class Module(NamedTuple):
    layer: Layer
    norm: Tensor  # [hidden]
    head: Tensor  # [vocab, hidden]
    join: Join | None  # of chained modules


@dataclass(frozen=True)
class MtpShape:
    """Sizes of modules 2..``blocks`` on a policy of sizes ``shape``; kinds as in :mod:`rlvr.mtp`."""

    shape: Shape
    blocks: int
    variant: str
    hidden: str

    @property
    def chained(self) -> bool:
        return self.variant == "chained"

    def matrices(self) -> list[Block]:
        """Names and sizes of the matrices in the flat vector, in order."""
        c, out = self.shape.hidden_size, []
        for k in range(2, self.blocks + 1):
            out += self.shape.layer_blocks(f"{k}.")
            out += [(f"{k}.norm", (c,)), (f"{k}.head", (self.shape.vocab_size, c))]
            if self.chained:
                out += [(f"{k}.norm_hidden", (c,)), (f"{k}.norm_embed", (c,)), (f"{k}.proj", (c, 2 * c))]
        return out

    @property
    def parameters(self) -> int:
        return sum(math.prod(size) for _, size in self.matrices())


def new_modules(policy: Policy, blocks: int, variant: str = "parallel", hidden: str = "last") -> MtpModules:
    """Deep copies of the policy's last layer, final norm and head; a join starts as the normed state."""
    shape = MtpShape(policy.shape, blocks, variant, hidden)
    weights, c = unflatten(policy.theta.detach(), policy.shape), policy.shape.hidden_size
    parts: dict[str, Tensor] = {}
    for k in range(2, blocks + 1):
        parts |= {f"{k}.{name}": value for name, value in weights.layers[-1]._asdict().items()}
        parts |= {f"{k}.norm": weights.norm, f"{k}.head": weights.head}
        if shape.chained:
            ones = torch.ones(c)
            parts |= {f"{k}.norm_hidden": ones, f"{k}.norm_embed": ones, f"{k}.proj": torch.eye(c, 2 * c)}
    return MtpModules(shape, join_blocks(parts, shape.matrices()))


def unflatten_modules(phi: Tensor, shape: MtpShape) -> list[Module]:
    """Views of the flat vector, modules 2..K; differentiable."""
    named = split_blocks(phi, shape.matrices())
    out = []
    for k in range(2, shape.blocks + 1):
        layer = Layer(*(named[f"{k}.{key}"] for key in Layer._fields))
        join = Join(*(named[f"{k}.{key}"] for key in Join._fields)) if shape.chained else None
        out.append(Module(layer, named[f"{k}.norm"], named[f"{k}.head"], join))
    return out


@dataclass(frozen=True)
class MtpModules:
    """Sizes and weights ``phi`` [parameters] float32 of all modules."""

    shape: MtpShape
    phi: Tensor

    def state_dict(self) -> dict[str, Tensor]:
        """The weights under the names of :class:`rlvr.mtp.MtpModules`."""
        state = {}
        for k, module in enumerate(unflatten_modules(self.phi.detach(), self.shape), start=2):
            if module.join is not None:
                state[f"{k}.join.norm_hidden.weight"] = module.join.norm_hidden
                state[f"{k}.join.norm_embed.weight"] = module.join.norm_embed
                state[f"{k}.join.proj.weight"] = module.join.proj
            state |= layer_state(module.layer, self.shape.shape, f"{k}.layer.")
            state |= {f"{k}.norm.weight": module.norm, f"{k}.head.weight": module.head}
        return {name: tensor.clone().contiguous() for name, tensor in state.items()}

    def first(self, blocks: int) -> MtpModules:
        """Modules 2..``blocks`` alone: none of them reads a later one, in either variant.

        Raises:
            ValueError: more blocks than there are.
        """
        if not 2 <= blocks <= self.shape.blocks:
            raise ValueError(f"blocks={blocks}: allowed are 2 to {self.shape.blocks}, those of the modules")
        shape = replace(self.shape, blocks=blocks)
        return MtpModules(shape, self.phi[: shape.parameters])  # the flat vector goes module by module

    def save(self, folder: str | Path) -> Path:
        """Write ``mtp.safetensors``, as :func:`rlvr.mtp.save_modules` does."""
        shape = self.shape
        return write_file(folder, self.state_dict(), shape.blocks, shape.variant, shape.hidden)

    @classmethod
    def load(cls, folder: str | Path, shape: Shape) -> MtpModules:
        """Read ``mtp.safetensors``.

        Raises:
            FileNotFoundError: no such file.
            ValueError: a file of something else, or of another model's sizes.
        """
        path = Path(folder) / FILE
        state, blocks, variant, hidden = read_file(path)
        own = MtpShape(shape, blocks, variant, hidden)
        try:
            return cls(own, _flatten(state, own))
        except ValueError as error:
            raise ValueError(f"{path} does not fit this policy: {error}") from None


def _flatten(state: Mapping[str, Tensor], shape: MtpShape) -> Tensor:
    def take(name: str) -> Tensor:
        if name not in state:
            raise ValueError(f"the saved weights lack {name!r}")
        return state[name].detach().to(torch.float32)

    parts: dict[str, Tensor] = {}
    for k in range(2, shape.blocks + 1):
        parts |= layer_parts(take, f"{k}.layer.", f"{k}.")
        parts |= {f"{k}.norm": take(f"{k}.norm.weight"), f"{k}.head": take(f"{k}.head.weight")}
        if shape.chained:
            parts |= {f"{k}.{name}": take(f"{k}.join.{name}.weight") for name in Join._fields}
    return join_blocks(parts, shape.matrices())


class Predictions(NamedTuple):
    """What the modules say of a batch; log-probs carry their graph."""

    log_prob: Tensor  # [B, T, K-1], entry [i, t, k-2] that of y_{t+k-1} from t, 0 past the end
    logits: list[Tensor]  # per module, [entries, vocab], temperature not applied
    layout: MtpLayout

    def ranks(self, backbone_logits: Tensor) -> list[Tensor]:
        """Per module, [entries]: :func:`rlvr.mtp.predicted_rank`, ``backbone_logits`` [response tokens,
        vocab] being those of the whole batch."""
        return [
            predicted_rank(logits, backbone_logits[entries.place])
            for logits, entries in zip(self.logits, self.layout.entries, strict=True)
        ]


def predict(
    phi: Tensor,
    shape: MtpShape,
    weights: Weights,
    states: States,
    batch: PackedGroups,
    temperature: float = 1.0,
    backbone_gradient: bool = False,
) -> Predictions:
    """Log-probs of the tokens ahead under every module.

    Args: ``weights`` and ``states`` of the policy over ``batch``; detached, as the paper has it, unless
    ``backbone_gradient``. ``temperature`` divides the modules' logits as it does the policy's [choice].
    """
    layout = mtp_layout(batch, shape.blocks, shape.chained)
    rope = rotary(layout.packed.positions, shape.shape)
    index = layout.packed.attention_index(shape.shape)
    first = {"last": states.last, "trunk": states.trunk}[shape.hidden]
    embed = weights.embed
    if not backbone_gradient:
        first, embed = first.detach(), embed.detach()
    hidden = first = first.index_select(0, layout.source)

    columns, every = [], []
    for number, module in enumerate(unflatten_modules(phi, shape)):
        given = first
        if module.join is not None:
            given = _joined(hidden, F.embedding(layout.ahead[number], embed), module.join, shape.shape)
        hidden = decoder_layer(given, module.layer, shape.shape, rope, index)
        entries = layout.entries[number]
        logits = head_logits(hidden.index_select(0, entries.row), module, shape.shape)
        log_probs = (logits if temperature == 1 else logits / temperature).log_softmax(-1)
        chosen = log_probs.gather(1, entries.target[:, None]).squeeze(1)
        column = torch.zeros(layout.size[0] * layout.size[1]).index_copy(0, entries.at, chosen)
        columns.append(column.view(layout.size))
        every.append(logits.detach())
    return Predictions(torch.stack(columns, -1), every, layout)


def _joined(hidden: Tensor, ahead: Tensor, join: Join, shape: Shape) -> Tensor:
    both = torch.cat([rms_norm(hidden, shape), rms_norm(ahead, shape)], -1)
    return F.linear(both, join.proj * torch.cat([join.norm_hidden, join.norm_embed]))
