"""MTP modules of a Hugging Face causal LM: deep copies of its last layer, final norm and head."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlvr.checks import check_choice, check_integer

Variant = Literal["chained", "parallel"]
Hidden = Literal["last", "trunk"]
VARIANTS: tuple[str, ...] = ("chained", "parallel")
HIDDEN: tuple[str, ...] = ("last", "trunk")


class Parts(NamedTuple):
    """Where a causal LM keeps what the modules are made of."""

    core: nn.Module  # token ids -> hidden states after the final norm
    last: nn.Module  # its last decoder layer
    norm: nn.Module
    embed: nn.Module
    head: nn.Module


def parts_of(model: nn.Module) -> Parts:
    """The parts of a decoder that is a plain list of layers, a final norm and a head (Llama, Qwen2, Qwen3).

    Raises:
        ValueError: the model has other parts, or its head does more than one matrix.
    """
    core = getattr(model, "base_model", model)
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    layers, norm = getattr(core, "layers", None), getattr(core, "norm", None)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(layers, nn.ModuleList) or not len(layers) or norm is None or head is None:
        raise ValueError(
            f"model is {kind!r}: allowed are causal LMs with a list `layers`, a final `norm` and an output "
            "embedding, as Llama, Qwen2 and Qwen3 have them"
        )
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, name, None) not in (None, 1, 1.0):
            raise ValueError(f"model is {kind!r} with {name}={getattr(model.config, name)}: allowed is none")
    return Parts(core, layers[-1], norm, model.get_input_embeddings(), head)


class Backbone(NamedTuple):
    """What one pass over the backbone leaves for its modules; B rows, L tokens, C channels."""

    normed: Tensor  # [B, L, C] after the final norm, with the backbone's graph
    hidden: Tensor  # [B, L, C] what the modules are fed
    embedded: Tensor  # [B, L, C] embeddings of the tokens
    arguments: dict[str, Any]  # of the last layer: mask, positions, rotary angles


def run_backbone(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    hidden: Hidden = "last",
    backbone_gradient: bool = False,
) -> Backbone:
    """One pass over the backbone. Modules get the mask and the positions that its own last layer had.

    Args: ``input_ids``, ``attention_mask`` [B, L], padding on either side; positions count real tokens.
    ``backbone_gradient``: leave the graph on ``hidden`` and ``embedded``, which are detached otherwise.
    """
    parts, attention_mask = parts_of(model), attention_mask.long()
    with watch_last_layer(parts) as seen:
        normed = parts.core(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=(attention_mask.cumsum(-1) - 1).clamp_min(0),
            use_cache=False,
        ).last_hidden_state
    chosen, embedded = seen[hidden], seen["embedded"]
    if not backbone_gradient:
        chosen, embedded = chosen.detach(), embedded.detach()
    return Backbone(normed, chosen, embedded, seen["arguments"])


@contextmanager
def watch_last_layer(parts: Parts) -> Iterator[dict[str, Any]]:
    """A mapping that a pass within fills: the last layer's input ``trunk``, its output ``last`` and its
    further ``arguments``; ``embedded``, the embeddings of the tokens. All with their graph."""
    seen: dict[str, Any] = {}

    def before(_, args, kwargs):
        seen["trunk"] = args[0] if args else kwargs["hidden_states"]
        seen["arguments"] = {k: v for k, v in kwargs.items() if k != "hidden_states"}
        if len(args) > 1:
            raise ValueError(f"{type(parts.last).__name__}: takes more than one input by position")

    def after(_, args, kwargs, output):
        seen["last"] = output[0] if isinstance(output, tuple) else output

    def embedded(_, args, output):
        seen["embedded"] = output

    hooks = [
        parts.embed.register_forward_hook(embedded),
        parts.last.register_forward_pre_hook(before, with_kwargs=True),
        parts.last.register_forward_hook(after, with_kwargs=True),
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


class Join(nn.Module):
    """``x = W [RMSNorm(h); RMSNorm(e)]``, W [C, 2C] without bias; starts as ``RMSNorm(h)``."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        (size,) = norm.weight.shape
        self.norm_hidden, self.norm_embed = copy.deepcopy(norm), copy.deepcopy(norm)
        like = {"dtype": norm.weight.dtype, "device": norm.weight.device}
        self.proj = nn.Linear(2 * size, size, bias=False, **like)
        with torch.no_grad():
            self.norm_hidden.weight.fill_(1.0)
            self.norm_embed.weight.fill_(1.0)
            self.proj.weight.copy_(torch.eye(size, 2 * size, **like))

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        return self.proj(torch.cat([self.norm_hidden(hidden), self.norm_embed(embedded)], -1))


class MtpModule(nn.Module):
    """One module: (join,) layer, norm and head."""

    def __init__(self, parts: Parts, chained: bool):
        super().__init__()
        self.join = Join(parts.norm) if chained else None
        self.layer = copy.deepcopy(parts.last)
        self.norm = copy.deepcopy(parts.norm)
        self.head = copy.deepcopy(parts.head)

    def forward(self, hidden: Tensor, ahead: Tensor, arguments: dict[str, Any]) -> Tensor:
        """``hidden``, ``ahead`` (embeddings of the tokens to join) [B, L, C] -> hidden states [B, L, C]."""
        out = self.layer(hidden if self.join is None else self.join(hidden, ahead), **arguments)
        return out[0] if isinstance(out, tuple) else out

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., C] -> [..., vocabulary]."""
        return self.head(self.norm(hidden))


class MtpModules(nn.ModuleDict):
    """Modules 2..K under the keys "2" .. "K"; they hold no reference to the backbone.

    Args: ``model``: the backbone, a causal LM (:func:`parts_of`). ``blocks`` = K >= 2, the tokens in a block.
    ``variant`` and ``hidden``: see :mod:`rlvr.mtp`.
    """

    def __init__(self, model: nn.Module, blocks: int, variant: Variant = "parallel", hidden: Hidden = "last"):
        blocks = check_integer("blocks", blocks, 2, "integers >= 2 (1 needs no module)")
        self.blocks, self.variant = blocks, check_choice("variant", variant, VARIANTS)
        self.hidden = check_choice("hidden", hidden, HIDDEN)
        parts = parts_of(model)
        super().__init__({str(k): MtpModule(parts, variant == "chained") for k in range(2, blocks + 1)})
        self.requires_grad_()

    def forward(self, backbone: Backbone) -> list[Tensor]:
        """Hidden states h^k of every module, each [B, L, C]."""
        hidden, states = backbone.hidden, []
        for number, module in self.items():
            given = hidden if self.variant == "parallel" else ([hidden] + states)[-1]
            states.append(module(given, _shift(backbone.embedded, int(number) - 1), backbone.arguments))
        return states


def _shift(embedded: Tensor, by: int) -> Tensor:
    """Row j holds the embedding of token j + by, 0 past the end (where nothing reads it)."""
    return nn.functional.pad(embedded[:, by:], (0, 0, 0, min(by, embedded.shape[1])))
