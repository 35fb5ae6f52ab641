"""Supervised warm-up: random weights become a base model that solves a stated share of problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from rlvr.config import Problems, WarmUp
from rlvr.engines.local.network import packed_logits
from rlvr.engines.local.packing import PackedGroups, pack
from rlvr.engines.local.policy import Policy, unflatten
from rlvr.engines.local.rollout import derive_seed, pass1, training_problems, validation_problems
from rlvr.problems import Problem
from rlvr.problems.tokenizer import Codec

STEEP = 5


@dataclass(frozen=True)
class WarmUpResult:
    policy: Policy
    history: list[dict[str, float]]  # step, loss (mean nats per response token since the last row), pass1
    reached_target: bool


def warm_up(
    policy: Policy,
    codec: Codec,
    problems: Problems,
    config: WarmUp,
    max_new_tokens: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> WarmUpResult:
    """Train on solutions until validation pass@1 reaches ``config.target_pass1``, then cool down.

    The learning rate is constant and falls linearly to zero over the last ``cooldown_steps``. Stopping on
    a measured target rather than a step count is a choice: the curve is steep, from nothing to nearly
    everything within a hundred steps, and RL needs a base model that is neither helpless nor done. So
    checks come ``STEEP`` times as often once a quarter of the target is reached. Every step has fresh
    problems, so no epoch is ever repeated.
    """
    theta = policy.theta.detach().clone().requires_grad_()
    optimizer = torch.optim.AdamW([theta], lr=config.lr, betas=config.betas, weight_decay=0.0, fused=True)
    checks = validation_problems(problems, problems.validation)
    history: list[dict[str, float]] = []
    losses: list[float] = []
    stop_at, reached, check_every = config.max_steps, False, config.check_every
    step = 0
    while step < stop_at:
        remaining = stop_at - step
        cooling = min(1.0, remaining / (config.cooldown_steps + 1))
        optimizer.param_groups[0]["lr"] = config.lr * min(1.0, (step + 1) / 20) * cooling
        losses.append(_supervised_step(theta, policy, codec, problems, config, step, optimizer))
        step += 1
        if on_progress:
            on_progress(step, stop_at)
        if step % check_every == 0 or step == stop_at:
            score = pass1(
                policy.with_theta(theta.detach()), codec, checks, max_new_tokens, derive_seed(config.seed, 1)
            )
            history.append({"step": step, "loss": sum(losses) / len(losses), "pass1": score})
            losses = []
            if score >= config.target_pass1 / 4:
                check_every = max(1, config.check_every // STEEP)
            if score >= config.target_pass1 and not reached:
                reached = True
                stop_at = min(stop_at, step + config.cooldown_steps)
    return WarmUpResult(policy.with_theta(theta.detach()), history, reached)


def pack_solutions(codec: Codec, problems: list[Problem]) -> PackedGroups:
    """Problems with their solutions as responses."""
    prompts = codec.encode_batch(p.prompt for p in problems)
    solutions = codec.encode_batch((p.solution for p in problems), end=True)
    lengths = torch.tensor([len(s) for s in solutions])
    width = int(lengths.max())
    responses = torch.tensor([s + [codec.pad_id] * (width - len(s)) for s in solutions])
    return pack(prompts, responses, lengths, group_size=1)


def _supervised_step(theta, policy, codec, problems, config, step, optimizer) -> float:
    batch = training_problems(problems, config.batch_size, derive_seed(config.seed, 0), step)
    packed = pack_solutions(codec, batch)
    logits = packed_logits(unflatten(theta, policy.shape), policy.shape, packed)
    loss = torch.nn.functional.cross_entropy(logits, packed.targets)
    (theta.grad,) = torch.autograd.grad(loss, theta)
    torch.nn.utils.clip_grad_norm_([theta], 1.0)
    optimizer.step()
    return float(loss.detach())
