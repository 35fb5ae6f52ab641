"""Cards and models as numbers for the plan: the makers' data sheets, the models' published configurations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlvr.evaluation.compute import ModelShape

GB = 1e9


@dataclass(frozen=True)
class Card:
    """One GPU.

    Attributes:
        memory: bytes.
        bandwidth: of that memory, bytes per second.
        flops: dense bfloat16, per second.
    """

    memory: float
    bandwidth: float
    flops: float


CARDS = {
    "H200": Card(141 * GB, 4.8e12, 989e12),  # SXM
    "H100": Card(80 * GB, 3.35e12, 989e12),  # SXM
    "A100": Card(80 * GB, 2.04e12, 312e12),  # SXM, 80 GB
    "A800": Card(80 * GB, 2.04e12, 312e12),  # an A100 with less bandwidth between cards
    "RTX4090": Card(24 * GB, 1.01e12, 165e12),
    "L4": Card(24 * GB, 0.30e12, 121e12),
}


@dataclass(frozen=True)
class Model:
    """Shape of a decoder.

    Attributes:
        layers: that have attention with a cache; a Qwen3-Next has others too.
        total: parameters, where they do not follow from the shape (mixtures of experts).
        active: parameters that one token passes, likewise.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    total: float | None = None
    active: float | None = None

    @property
    def parameters(self) -> float:
        if self.total is not None:
            return self.total
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        return self.layers * layer + (1 if self.tied else 2) * self.vocabulary * self.hidden

    @property
    def active_parameters(self) -> float:
        return self.active if self.active is not None else self.parameters

    @property
    def shape(self) -> ModelShape:
        """What an estimate of its FLOPs needs."""
        from rlvr.evaluation.compute import ModelShape

        return ModelShape(self.active_parameters, self.layers, self.heads, self.head_dim)

    @property
    def cache_per_token(self) -> int:
        """Bytes of the key-value cache, bfloat16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


MODELS = {
    "Qwen/Qwen3-0.6B-Base": Model(1024, 28, 16, 8, 128, 3072, 151936, True),
    "Qwen/Qwen3-1.7B-Base": Model(2048, 28, 16, 8, 128, 6144, 151936, True),
    "Qwen/Qwen3-8B-Base": Model(4096, 36, 32, 8, 128, 12288, 151936, False),
    "Qwen/Qwen3-32B": Model(5120, 64, 64, 8, 128, 25600, 151936, False),
    # 12 of its 48 layers have attention with a cache
    "Qwen/Qwen3-Next-80B-A3B-Thinking": Model(2048, 12, 16, 2, 256, 512, 151936, False, 80e9, 3e9),
    "meta-llama/Llama-3.2-1B-Instruct": Model(2048, 16, 32, 8, 64, 8192, 128256, True),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": Model(1536, 28, 12, 2, 128, 8960, 151936, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": Model(3584, 28, 28, 4, 128, 18944, 152064, False),
}
