"""How many parameters and how much memory MTP modules add, by block length K."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import nn

from rlvr.checks import check_integer
from rlvr.mtp.modules import MtpModules, Variant

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


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
