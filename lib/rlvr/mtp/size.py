"""How many parameters and how much memory MTP modules add, by block length K."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import nn

from rlvr.checks import check_choice, check_integer
from rlvr.mtp.modules import MtpModules, Variant

#: Sizes of the paper's backbones [public: their config.json]: name -> (kind, settings).
PAPER_MODELS = {
    "Llama-3.2-1B": (
        "llama",
        {
            "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
        },
    ),
    "DeepSeek-R1-Distill-Qwen-1.5B": (
        "qwen2",
        {
            "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
            "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": False,
        },
    ),
    "DeepSeek-R1-Distill-Qwen-7B": (
        "qwen2",
        {
            "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
            "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
        },
    ),
}  # fmt: skip

TRAINED = 4  # numbers per trained weight: itself, its gradient, AdamW's two moments


def size_by_blocks(
    config, blocks: Sequence[int] = (1, 2, 3, 4, 5), variant: Variant = "parallel", bytes_per_number: int = 4
) -> pd.DataFrame:
    """Parameters and training memory of a model with K-1 modules, one row per K (the index ``K``).

    Args: ``config``: of a Hugging Face causal LM; no weights are made. ``bytes_per_number``: of weights,
    gradients and moments alike (4 = float32). Columns: ``backbone``, ``modules``, ``total`` parameters;
    ``ratio`` total / backbone; ``memory`` bytes of weights, gradients and AdamW's moments, activations and a
    critic not included. A tied embedding counts once in the backbone; every module's head is a copy of it.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    base = _count(model)
    rows = {}
    for k in blocks:
        k = check_integer("blocks", k, 1, "integers >= 1")
        own = _count(MtpModules(model, k, variant)) if k > 1 else 0
        total = base + own
        rows[k] = {
            "backbone": base,
            "modules": own,
            "total": total,
            "ratio": total / base,
            "memory": total * TRAINED * bytes_per_number,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("K")


def paper_config(name: str):
    """Config of one of :data:`PAPER_MODELS`, for :func:`size_by_blocks`; downloads nothing."""
    from transformers import AutoConfig

    kind, settings = PAPER_MODELS[check_choice("name", name, tuple(PAPER_MODELS))]
    return AutoConfig.for_model(kind, **settings)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
