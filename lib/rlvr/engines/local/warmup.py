"""Supervised warm-up: random weights become a base model that solves a stated share of problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from rlvr.config import Problems, WarmUp
from rlvr.counterfactual.examples import CorrectionExample, correction_examples, encode_examples
from rlvr.engines.local.network import packed_logits
from rlvr.engines.local.packing import PackedGroups, pack
from rlvr.engines.local.policy import Policy, unflatten
from rlvr.engines.local.rollout import (
    derive_seed,
    grade,
    pass1,
    training_problems,
    validation_problems,
)
from rlvr.engines.local.sampling import sample
from rlvr.problems import Problem
from rlvr.problems.tokenizer import Codec

STEEP = 5
_PROBLEMS, _VALIDATION, _CORRECTED, _SLIPS, _CHECK = 0, 1, 2, 3, 4  # purposes of random streams


@dataclass(frozen=True)
class WarmUpResult:
    policy: Policy
    # step, loss (mean nats per response token since the last row), pass1; with corrections: corrected, the
    # share of validation examples that are corrected
    history: list[dict[str, float]]
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

    With ``config.corrections`` a share of every batch are correction examples, in place of solutions; the
    target is that of plain problems all the same.
    """
    theta = policy.theta.detach().clone().requires_grad_()
    optimizer = torch.optim.AdamW([theta], lr=config.lr, betas=config.betas, weight_decay=0.0, fused=True)
    checks = validation_problems(problems, problems.validation)
    wrong = None
    if config.corrections is not None:
        wrong = correction_examples(
            checks, config.corrections, "validation", derive_seed(config.seed, _SLIPS)
        )
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
                policy.with_theta(theta.detach()), codec, checks, max_new_tokens,
                derive_seed(config.seed, _VALIDATION),
            )  # fmt: skip
            history.append({"step": step, "loss": sum(losses) / len(losses), "pass1": score})
            if wrong is not None:
                history[-1]["corrected"] = corrected_share(
                    policy.with_theta(theta.detach()), codec, wrong, config.corrections.template,
                    max_new_tokens, derive_seed(config.seed, _CHECK),
                )  # fmt: skip
            losses = []
            if score >= config.target_pass1 / 4:
                check_every = max(1, config.check_every // STEEP)
            if score >= config.target_pass1 and not reached:
                reached = True
                stop_at = min(stop_at, step + config.cooldown_steps)
    return WarmUpResult(policy.with_theta(theta.detach()), history, reached)


def corrected_share(
    policy: Policy,
    codec: Codec,
    examples: list[CorrectionExample],
    template: str,
    max_new_tokens: int,
    seed: int,
) -> float:
    """Share of examples that the policy corrects, one sampled response each."""
    prompts, _ = encode_examples(examples, codec, template)
    samples = sample(policy, prompts, 1, max_new_tokens, seed)
    return sum(grade(codec, samples, [e.problem for e in examples], 1)) / len(examples)


def _supervised_step(theta, policy, codec, problems, config, step, optimizer) -> float:
    parts = _parts(codec, problems, config, step)
    total = sum(len(part.targets) for part in parts)
    losses, gradients = [], []
    for part in parts:
        logits = packed_logits(unflatten(theta, policy.shape), policy.shape, part)
        loss = torch.nn.functional.cross_entropy(logits, part.targets)
        if len(parts) > 1:
            loss = loss * (len(part.targets) / total)  # the mean over all tokens of the step
        gradients.append(torch.autograd.grad(loss, theta)[0])
        losses.append(float(loss.detach()))
    theta.grad = gradients[0]
    for gradient in gradients[1:]:
        theta.grad += gradient
    torch.nn.utils.clip_grad_norm_([theta], 1.0)
    optimizer.step()
    return sum(losses)


def _parts(codec: Codec, problems: Problems, config: WarmUp, step: int) -> list[PackedGroups]:
    """The step's solutions, and apart from them its corrections: attention pads to the longest prompt."""
    given = config.corrections
    corrections = round(config.batch_size * given.share) if given else 0
    plain = config.batch_size - corrections
    batch = training_problems(problems, plain, derive_seed(config.seed, _PROBLEMS), step)
    parts = [pack_solutions(codec, batch)]
    if corrections:
        wrong = training_problems(problems, corrections, derive_seed(config.seed, _CORRECTED), step)
        examples = correction_examples(wrong, given, "train", (derive_seed(config.seed, _SLIPS), step))
        parts.append(_pack(codec, *encode_examples(examples, codec, given.template)))
    return parts


def pack_solutions(codec: Codec, problems: list[Problem]) -> PackedGroups:
    """Problems with their solutions as responses."""
    solutions = codec.encode_batch((p.solution for p in problems), end=True)
    return _pack(codec, codec.encode_batch(p.prompt for p in problems), solutions)


def _pack(codec: Codec, prompts: list[list[int]], solutions: list[list[int]]) -> PackedGroups:
    lengths = torch.tensor([len(s) for s in solutions])
    width = int(lengths.max())
    responses = torch.tensor([s + [codec.pad_id] * (width - len(s)) for s in solutions])
    return pack(prompts, responses, lengths, group_size=1)
