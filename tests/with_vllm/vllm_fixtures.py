"""A small random policy with its tokenizer on disk, and settings that fit a small machine."""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch
from local_fixtures import codec

from rlvr.engines.local.policy import Policy, new_policy
from rlvr.engines.vllm import SamplingConfig

# Read when vLLM is first imported or starts.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# vLLM's attention on CPU computes heads of 32 channels and more.
SIZES = SimpleNamespace(
    hidden_size=128, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)
ENGINE = {"dtype": "float32", "enforce_eager": True, "kv_cache_gib": 0.125}
PROMPTS = [
    "Dan owns 9 books then triples them. how many books?",
    "Ben holds 23 cups and sells 2 and buys 4. how many cups?",
    "Dan has 3 pens.",
    "how many keys?",
    "Cara",
    "3+4=",
]


def config(**changes) -> SamplingConfig:
    return SamplingConfig(**(ENGINE | {"max_tokens": 24, "skip_special_tokens": False} | changes))


def policy(seed: int = 0, vocabulary: int | None = None, sizes: SimpleNamespace = SIZES) -> Policy:
    """Random weights, wide enough apart that tokens differ in probability."""
    words = codec()
    fresh = new_policy(sizes, vocabulary or len(words), words.eos_id, words.pad_id, seed)
    noise = torch.randn(fresh.theta.shape, generator=torch.Generator().manual_seed(seed))
    return fresh.with_theta(fresh.theta + 0.1 * noise)


def save(policy: Policy, folder):
    """Model and tokenizer in ``folder``, which is returned."""
    policy.save_pretrained(folder)
    codec().save(folder)
    return folder
