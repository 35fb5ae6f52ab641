"""Tiny random causal LMs of three architectures, and batches of prompts and responses for them."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from rlvr.mtp import MtpModules

VOCABULARY = 41
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None,
)  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SIZES, head_dim=4, tie_word_embeddings=True),
}


def tiny(name="qwen3", dtype=torch.float32, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(CONFIGS[name])
        for parameter in model.parameters():  # wide apart, so that a wrong input shows
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def stirred(model, blocks=3, variant="parallel", hidden="last", seed=1):
    """Modules that no longer are copies, each different."""
    modules = MtpModules(model, blocks, variant, hidden)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in modules.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise.to(parameter.dtype))
    return modules


def sequences(prompts=(4, 2, 5, 3), responses=(6, 1, 4, 8), seed=2):
    """[(prompt ids, response ids)] of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(2, VOCABULARY, (n,), generator=generator).tolist()  # noqa: E731
    return [(draw(p), draw(r)) for p, r in zip(prompts, responses, strict=True)]


def batch(pairs, more_left=0, more_right=0):
    """(input_ids, attention_mask, response_mask): prompts padded on the left, responses on the right."""
    left = max(len(p) for p, _ in pairs) + more_left
    right = max(len(r) for _, r in pairs) + more_right
    ids, mask = torch.zeros(len(pairs), left + right, dtype=torch.long), None
    mask = torch.zeros_like(ids)
    for i, (prompt, response) in enumerate(pairs):
        at = slice(left - len(prompt), left + len(response))
        ids[i, at] = torch.tensor(prompt + response)
        mask[i, at] = 1
    return ids, mask, mask[:, left:].float()
