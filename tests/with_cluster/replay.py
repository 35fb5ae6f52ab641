"""The updates of a verl job, made once more by the local engine from what the job trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from cluster_job import EPS
from torch import Tensor

from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.update import MiniBatch, Updater, response_log_prob
from rlvr.engines.verl.cpu.batches import load_batch


class Step(NamedTuple):
    """One step: means over its updates, as verl logs them, and of each update."""

    loss: float
    grad_norm: float
    updates: list[dict[str, float]]
    gap: float  # largest difference of vLLM's log-probs from the local engine's, before the first update
    moved: float  # largest |log ratio| in the last update: 0 would leave objectives indistinguishable


def padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def mini_batches(path: Path, count: int) -> list[MiniBatch]:
    """The rows of a step in their order, cut into ``count``; every row is a group of its own.

    Rows that verl added to fill a mini-batch have an empty mask and are left out. A mask of tokens, where the
    job made one, is the batch's.
    """
    batch = load_batch(path)
    size = len(batch["responses"]) // count
    out = []
    for first in range(0, size * count, size):
        rows = [i for i in range(first, first + size) if batch["response_mask"][i].any()]
        part = {name: [values[i] for i in rows] for name, values in batch.items()}
        assert all(mask.all() for mask in part["response_mask"])
        lengths = torch.tensor([len(response) for response in part["responses"]])
        packed = pack([p.tolist() for p in part["prompts"]], padded(part["responses"]), lengths, 1)
        advantages = torch.stack([values[0] for values in part["advantages"]])
        marks = padded(part["rollout_is_weights"]).bool() if "rollout_is_weights" in part else None
        out.append(MiniBatch(packed, padded(part["old_log_probs"]), advantages, first, token_mask=marks))
    return out


def replay(updater: Updater, paths: Sequence[Path], count: int) -> list[Step]:
    """Run the updates of all steps through ``updater``."""
    steps = []
    for path in paths:
        batches = mini_batches(path, count)
        with torch.no_grad():
            before = [response_log_prob(updater.theta, updater.shape, b.packed, 1.0)[0] for b in batches]
        # padding is 0 on both sides
        gap = max((new - b.old_log_prob).abs().max().item() for new, b in zip(before, batches, strict=True))
        updates, moved = [], 0.0
        for batch in batches:
            values, log_prob, _ = updater.step(batch)
            updates.append(values)
            moved = (log_prob - batch.old_log_prob).abs().max().item()
        means = [sum(u[name] for u in updates) / count for name in ("loss", "grad_norm")]
        steps.append(Step(*means, updates, gap, moved))
    return steps


def local_updater(
    policy: Policy, loss: Callable, lr: float, betas: tuple[float, float], weight_decay: float, clip: float
) -> Updater:
    updater = Updater(policy.theta, policy.shape, loss, lr, betas, weight_decay, clip, temperature=1.0)
    return with_eps(updater)


def with_eps(updater: Updater) -> Updater:
    """AdamW's, as verl's jobs here have it."""
    for group in updater.optimizer.param_groups:
        group["eps"] = EPS
    return updater
