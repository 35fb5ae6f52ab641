"""Warm-up of MTP modules on solutions: the policy stays as it is, its modules learn to look ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from rlvr.config import Problems
from rlvr.config_mtp import Mtp
from rlvr.engines.local.mtp import MtpModules, Predictions, new_modules, predict
from rlvr.engines.local.network import head_logits, packed_states
from rlvr.engines.local.packing import PackedGroups
from rlvr.engines.local.policy import Policy, unflatten
from rlvr.engines.local.rollout import derive_seed, training_problems, validation_problems
from rlvr.engines.local.warmup import pack_solutions
from rlvr.mtp.losses import cross_entropy
from rlvr.problems.tokenizer import Codec

_STREAM = 4  # purpose of the random stream of warm-up problems


@dataclass(frozen=True)
class MtpWarmUpResult:
    """Modules, and a row per check: ``step``, ``tokens`` (of solutions, trained on so far), ``loss`` (mean
    since the last row, nats per token and module), and on validation solutions, for k = 2..K,
    ``val_loss_<k>``, ``val_top1_<k>`` (share of targets that the module thinks likeliest) and
    ``val_rank_<k>`` (mean rank of its likeliest token in the policy's eyes)."""

    modules: MtpModules
    history: list[dict[str, float]]


def warm_up_modules(
    policy: Policy,
    codec: Codec,
    problems: Problems,
    config: Mtp,
    on_progress: Callable[[int, int], None] | None = None,
) -> MtpWarmUpResult:
    """Train modules of ``policy`` on the solutions of fresh training problems [text: MPO A.2].

    The learning rate rises over 20 steps and is constant then [choice: as in the policy's own warm-up]; so is
    the clip of the gradient's norm, 1. ``config.blocks`` >= 2. ``on_progress(steps done, steps)``.
    """
    own = config.warmup
    modules = new_modules(policy, config.blocks, config.variant, config.hidden)
    phi = modules.phi.clone().requires_grad_()
    optimizer = torch.optim.AdamW([phi], lr=own.lr, betas=own.betas, weight_decay=0.0, fused=True)
    checks = pack_solutions(codec, validation_problems(problems, problems.validation))
    history, losses, tokens = [{"step": 0, "tokens": 0, **_validate(policy, modules, checks)}], [], 0
    for step in range(own.steps):
        optimizer.param_groups[0]["lr"] = own.lr * min(1.0, (step + 1) / 20)
        batch = training_problems(problems, own.batch_size, derive_seed(_STREAM, own.seed, 0), step)
        packed = pack_solutions(codec, batch)
        losses.append(_step(policy, MtpModules(modules.shape, phi), packed, optimizer))
        tokens += int(packed.response_mask.sum())
        if on_progress:
            on_progress(step + 1, own.steps)
        if (step + 1) % own.check_every == 0 or step + 1 == own.steps:
            now = MtpModules(modules.shape, phi.detach().clone())
            row = {"step": step + 1, "tokens": tokens, "loss": sum(losses) / len(losses)}
            history.append(row | _validate(policy, now, checks))
            losses = []
    return MtpWarmUpResult(MtpModules(modules.shape, phi.detach().clone()), history)


def history_frame(history: list[dict[str, float]]) -> pd.DataFrame:
    """A warm-up's history with a row per check and module: ``step``, ``tokens`` (of all modules alike),
    ``k``, ``loss``, ``top1``, ``rank``."""
    rows = []
    for row in history:
        for k in sorted(int(name.rpartition("_")[2]) for name in row if name.startswith("val_loss_")):
            found = {name: row[f"val_{name}_{k}"] for name in ("loss", "top1", "rank")}
            rows.append({"step": int(row["step"]), "tokens": int(row["tokens"]), "k": k} | found)
    return pd.DataFrame(rows)


def _step(policy: Policy, modules: MtpModules, packed: PackedGroups, optimizer) -> float:
    loss, _ = cross_entropy(_predict(policy, modules, packed)[0].log_prob, packed.response_mask)
    (modules.phi.grad,) = torch.autograd.grad(loss, modules.phi)
    torch.nn.utils.clip_grad_norm_([modules.phi], 1.0)
    optimizer.step()
    return float(loss.detach())


def _predict(policy: Policy, modules: MtpModules, packed: PackedGroups) -> tuple[Predictions, Tensor]:
    """(what the modules say, the policy's logits [response tokens, vocab]); the policy records no graph."""
    with torch.no_grad():
        weights = unflatten(policy.theta, policy.shape)
        states = packed_states(weights, policy.shape, packed)
        logits = head_logits(states.last.index_select(0, packed.predicts_from), weights, policy.shape)
    return predict(modules.phi, modules.shape, weights, states, packed), logits


@torch.no_grad()
def _validate(policy: Policy, modules: MtpModules, packed: PackedGroups) -> dict[str, float]:
    predictions, own = _predict(policy, modules, packed)
    _, losses = cross_entropy(predictions.log_prob, packed.response_mask)
    row = {}
    for index, rank in enumerate(predictions.ranks(own)):
        k, entries = index + 2, predictions.layout.entries[index]
        top = (predictions.logits[index].argmax(-1) == entries.target).double().mean()
        row |= {f"val_loss_{k}": float(losses[index]), f"val_top1_{k}": float(top)}
        row[f"val_rank_{k}"] = float(rank.double().mean())
    return row
