"""A tiny random policy and problems for the tests of the local engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import torch

from rlvr.config import Problems, Train
from rlvr.engines.local.policy import Policy, new_policy
from rlvr.problems import TASKS, get_task
from rlvr.problems.tokenizer import Codec, build_tokenizer

SIZES = SimpleNamespace(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)


def _stream(split, seed, operations=(1, 2)):
    return (dataclasses.replace(p, kind="parity") for p in get_task("word").stream(split, seed, operations))


# A random policy never solves a word problem, and without reward nothing is learnt and nothing tested:
# here a response is right if its text has an even number of characters.
TASKS["parity"] = dataclasses.replace(
    get_task("word"),
    name="parity",
    stream=_stream,
    rewards=lambda texts, golds, finished=None: [float(len(text) % 2 == 0) for text in texts],
)
PROBLEMS = Problems(task="parity", seed=0, operations=(1, 2), validation=8, held_out=8)


def codec() -> Codec:
    return Codec(build_tokenizer(get_task("word").words))


def random_policy(seed: int = 0, spread: float = 0.1) -> Policy:
    """Random weights, wide enough apart that tokens differ in probability."""
    words = codec()
    policy = new_policy(SIZES, len(words), words.eos_id, words.pad_id, seed)
    noise = torch.randn(policy.theta.shape, generator=torch.Generator().manual_seed(seed))
    return policy.with_theta(policy.theta + spread * noise)


def saved_base(folder: Path) -> Path:
    """A base model's folder: a random policy with its tokenizer."""
    random_policy(spread=0.05).save_pretrained(folder)
    codec().save(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of every file below a folder, by its path from there."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def random_prompts(count: int, seed: int = 0, low: int = 3, high: int = 12) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high, (count,), generator=generator).tolist()
    return [torch.randint(2, 60, (n,), generator=generator).tolist() for n in lengths]


def train_config(**changes) -> Train:
    values = dict(
        steps=4, prompts_per_step=4, group_size=4, minibatches=2, lags=(0, 2), lr=1e-3, betas=(0.9, 0.95),
        weight_decay=0.0, grad_clip=1.0, temperature=1.0, max_new_tokens=10, loss_agg_mode="token-mean",
        advantage_std="unbiased", eval_every=2, eval_problems=8, checkpoint_every=1, records_per_step=4,
    )  # fmt: skip
    return Train(**(values | changes))
