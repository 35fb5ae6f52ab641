"""A small Qwen3 policy as one flat vector of weights, read from and written to the ordinary HF format.

One vector makes a fused optimiser step, gradient clipping, a snapshot for lagged rollouts and a
checkpoint each a single operation. ``unflatten`` gives the matrices back as views of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

Block = tuple[str, tuple[int, ...]]  # name and size of a matrix in a flat vector


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen3 causal language model, named as in its HF configuration."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool

    @property
    def query_per_kv(self) -> int:
        return self.num_attention_heads // self.num_key_value_heads

    def blocks(self) -> list[Block]:
        """Names and sizes of the matrices in the flat vector, in order; q/k/v and gate/up are stacked."""
        c = self.hidden_size
        blocks: list[Block] = [("embed", (self.vocab_size, c))]
        for layer in range(self.num_hidden_layers):
            blocks += self.layer_blocks(f"{layer}.")
        blocks.append(("norm", (c,)))
        if not self.tie_word_embeddings:
            blocks.append(("head", (self.vocab_size, c)))
        return blocks

    def layer_blocks(self, prefix: str) -> list[Block]:
        """Those of one decoder layer, in the order of :class:`Layer`."""
        c, i, d = self.hidden_size, self.intermediate_size, self.head_dim
        heads, kv = self.num_attention_heads, self.num_key_value_heads
        return [
            (f"{prefix}qkv", ((heads + 2 * kv) * d, c)),
            (f"{prefix}out", (c, heads * d)),
            (f"{prefix}gate_up", (2 * i, c)),
            (f"{prefix}down", (c, i)),
            (f"{prefix}norm_in", (c,)),
            (f"{prefix}norm_post", (c,)),
            (f"{prefix}norm_q", (d,)),
            (f"{prefix}norm_k", (d,)),
        ]


class Layer(NamedTuple):
    """Views of one decoder layer's weights."""

    qkv: Tensor  # [(heads + 2 kv_heads) * head_dim, hidden]
    out: Tensor  # [hidden, heads * head_dim]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]
    norm_in: Tensor  # [hidden]
    norm_post: Tensor  # [hidden]
    norm_q: Tensor  # [head_dim]
    norm_k: Tensor  # [head_dim]


class Weights(NamedTuple):
    embed: Tensor  # [vocab, hidden]
    layers: list[Layer]
    norm: Tensor  # [hidden]
    head: Tensor  # [vocab, hidden]


def split_blocks(vector: Tensor, blocks: list[Block]) -> dict[str, Tensor]:
    """Views of a flat vector by name; the inverse of :func:`join_blocks`."""
    parts = vector.split([math.prod(size) for _, size in blocks])
    return {name: part.view(size) for (name, size), part in zip(blocks, parts, strict=True)}


def unflatten(theta: Tensor, shape: Shape) -> Weights:
    """Views of the flat vector ``theta``; differentiable, one split and so one concatenation backward."""
    named = split_blocks(theta, shape.blocks())
    layers = [
        Layer(*(named[f"{layer}.{key}"] for key in Layer._fields)) for layer in range(shape.num_hidden_layers)
    ]
    return Weights(named["embed"], layers, named["norm"], named.get("head", named["embed"]))


@dataclass
class Policy:
    """A policy: its sizes, its weights ``theta`` [parameters] float32, and the tokens that end a response."""

    shape: Shape
    theta: Tensor
    eos_ids: tuple[int, ...]
    hf_config: dict = field(repr=False)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Policy:
        """Read a Qwen3 model saved by ``save_pretrained`` (config.json and model.safetensors).

        Raises:
            FileNotFoundError: no such folder or no weights in it.
            ValueError: another architecture, or weights whose names or sizes do not fit the configuration.
        """
        from safetensors.torch import load_file
        from transformers import AutoConfig, GenerationConfig

        path = Path(path)
        if not (path / "config.json").is_file() or not (path / "model.safetensors").is_file():
            raise FileNotFoundError(f"{path} holds no saved model (config.json and model.safetensors)")
        config = AutoConfig.from_pretrained(path)
        eos = config.eos_token_id
        if (path / "generation_config.json").is_file():
            # Chat models end turns with more tokens than the tokenizer's one: take every listed id.
            eos = GenerationConfig.from_pretrained(path).eos_token_id or eos
        if eos is None:
            raise ValueError(f"{path}: neither config.json nor generation_config.json names eos_token_id")
        eos_ids = tuple(eos) if isinstance(eos, (list, tuple)) else (int(eos),)
        shape = shape_of(config)
        theta = flatten(load_file(path / "model.safetensors"), shape)
        return cls(shape, theta, eos_ids, config.to_dict())

    def save_pretrained(self, path: str | Path) -> None:
        """Write config.json, generation_config.json and model.safetensors, as ``transformers`` would."""
        from safetensors.torch import save_file
        from transformers import GenerationConfig, Qwen3Config

        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        config = Qwen3Config(**{k: v for k, v in self.hf_config.items() if k != "model_type"})
        config.save_pretrained(path)
        GenerationConfig(
            eos_token_id=list(self.eos_ids), pad_token_id=config.pad_token_id, do_sample=True
        ).save_pretrained(path)
        save_file(self.state_dict(), path / "model.safetensors", metadata={"format": "pt"})

    def state_dict(self) -> dict[str, Tensor]:
        """The weights under their HF names, each its own contiguous tensor."""
        shape, weights = self.shape, unflatten(self.theta.detach(), self.shape)
        state = {"model.embed_tokens.weight": weights.embed, "model.norm.weight": weights.norm}
        for index, layer in enumerate(weights.layers):
            state |= layer_state(layer, shape, f"model.layers.{index}.")
        if not shape.tie_word_embeddings:
            state["lm_head.weight"] = weights.head
        return {name: tensor.clone().contiguous() for name, tensor in state.items()}

    def to_hf(self) -> torch.nn.Module:
        """The same policy as a ``transformers`` model, for peers and tests."""
        from transformers import Qwen3Config, Qwen3ForCausalLM

        model = Qwen3ForCausalLM(
            Qwen3Config(**{k: v for k, v in self.hf_config.items() if k != "model_type"})
        )
        state = self.state_dict()
        if self.shape.tie_word_embeddings:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model.load_state_dict(state)
        return model.eval()

    def with_theta(self, theta: Tensor) -> Policy:
        return Policy(self.shape, theta, self.eos_ids, self.hf_config)


def new_policy(
    model, vocab_size: int, eos_id: int, pad_id: int, seed: int, max_positions: int = 512
) -> Policy:
    """A randomly initialised Qwen3 policy.

    Args:
        model: sizes, an object with the fields of :class:`rlvr.config.Model`.
        vocab_size: number of tokens, equal to ``len(tokenizer)``.
        eos_id, pad_id: the tokenizer's ids; they must differ, or the policy could not learn to stop.
        seed: for the initial weights (transformers' own initialisation).
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    if eos_id == pad_id:
        raise ValueError(f"eos_id={eos_id} equals pad_id: the end of a response must not look like padding")
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.hidden_size // model.num_attention_heads,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        bos_token_id=None,
        dtype="float32",
    )
    config.architectures = ["Qwen3ForCausalLM"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hf = Qwen3ForCausalLM(config)
    shape = shape_of(config)
    return Policy(shape, flatten(hf.state_dict(), shape), (eos_id,), config.to_dict())


def shape_of(config) -> Shape:
    """Read the sizes from an HF configuration; refuses what this engine does not compute.

    Raises:
        ValueError: not Qwen3, biased attention, scaled rotary embedding, sliding window, or not SiLU.
    """
    if config.model_type != "qwen3":
        raise ValueError(f"model_type={config.model_type!r}: the local engine runs 'qwen3' models")
    rope = dict(getattr(config, "rope_parameters", None) or {})
    theta = rope.get("rope_theta", getattr(config, "rope_theta", None))
    refused = {
        "attention_bias": config.attention_bias,
        "rope_type": rope.get("rope_type", "default") != "default",
        "use_sliding_window": config.use_sliding_window,
        "hidden_act": config.hidden_act != "silu",
    }
    if any(refused.values()):
        wrong = [name for name, bad in refused.items() if bad]
        raise ValueError(f"the local engine does not compute models with a non-default {', '.join(wrong)}")
    return Shape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rope_theta=float(theta),
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=config.tie_word_embeddings,
    )


def flatten(state: Mapping[str, Tensor], shape: Shape) -> Tensor:
    """The flat float32 vector of an HF state dict."""

    def take(name: str) -> Tensor:
        if name not in state:
            raise ValueError(f"the saved weights lack {name!r}")
        return state[name].detach().to(torch.float32)

    parts = {"embed": take("model.embed_tokens.weight"), "norm": take("model.norm.weight")}
    if not shape.tie_word_embeddings:
        parts["head"] = take("lm_head.weight")
    for layer in range(shape.num_hidden_layers):
        parts |= layer_parts(take, f"model.layers.{layer}.", f"{layer}.")
    return join_blocks(parts, shape.blocks())


def join_blocks(parts: Mapping[str, Tensor], blocks: list[Block]) -> Tensor:
    """The flat vector of named matrices, each of the size that ``blocks`` gives."""
    for name, size in blocks:
        if tuple(parts[name].shape) != size:
            raise ValueError(f"weight block {name}: size {tuple(parts[name].shape)}, expected {size}")
    return torch.cat([parts[name].reshape(-1) for name, _ in blocks])


def layer_parts(take: Callable[[str], Tensor], prefix: str, own: str = "") -> dict[str, Tensor]:
    """The matrices of one decoder layer, named as in the flat vector, from those of its HF names."""
    return {
        f"{own}qkv": torch.cat([take(f"{prefix}self_attn.{p}_proj.weight") for p in "qkv"]),
        f"{own}out": take(f"{prefix}self_attn.o_proj.weight"),
        f"{own}gate_up": torch.cat([take(f"{prefix}mlp.{p}_proj.weight") for p in ("gate", "up")]),
        f"{own}down": take(f"{prefix}mlp.down_proj.weight"),
        f"{own}norm_in": take(f"{prefix}input_layernorm.weight"),
        f"{own}norm_post": take(f"{prefix}post_attention_layernorm.weight"),
        f"{own}norm_q": take(f"{prefix}self_attn.q_norm.weight"),
        f"{own}norm_k": take(f"{prefix}self_attn.k_norm.weight"),
    }


def layer_state(layer: Layer, shape: Shape, prefix: str) -> dict[str, Tensor]:
    """The weights of one decoder layer under their HF names."""
    d = shape.head_dim
    sizes = [shape.num_attention_heads * d, shape.num_key_value_heads * d, shape.num_key_value_heads * d]
    q, k, v = layer.qkv.split(sizes)
    gate, up = layer.gate_up.chunk(2)
    return {
        f"{prefix}self_attn.q_proj.weight": q,
        f"{prefix}self_attn.k_proj.weight": k,
        f"{prefix}self_attn.v_proj.weight": v,
        f"{prefix}self_attn.o_proj.weight": layer.out,
        f"{prefix}self_attn.q_norm.weight": layer.norm_q,
        f"{prefix}self_attn.k_norm.weight": layer.norm_k,
        f"{prefix}mlp.gate_proj.weight": gate,
        f"{prefix}mlp.up_proj.weight": up,
        f"{prefix}mlp.down_proj.weight": layer.down,
        f"{prefix}input_layernorm.weight": layer.norm_in,
        f"{prefix}post_attention_layernorm.weight": layer.norm_post,
    }
