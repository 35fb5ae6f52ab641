"""The second generation pass of IBPO: what was wrong is corrected [text: IBPO Algorithm 1, G, I.2].

    responses -> verdicts -> references -> corrections of the wrong ones -> verdicts -> rewrite test
        -> R' = R + lambda phi -> advantages of the responses
        -> r(y_hat) - penalty  -> advantages of the corrections, a group per correction prompt

Responses and corrections come from the same behaviour policy; a correction's old log-probs are those of the
sampler under its correction prompt [choice].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, repeat

import torch
from torch import Tensor

from rlvr.advantages import group_relative
from rlvr.config_corrections import Counterfactual
from rlvr.counterfactual.operators import Candidate, compare_batch, get_operator
from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.counterfactual.references import choose_references
from rlvr.counterfactual.rewrite import full_rewrites
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import Rollout, derive_seed, grade
from rlvr.engines.local.sampling import Samples, sample
from rlvr.problems import Problem, get_task
from rlvr.problems.tokenizer import Codec
from rlvr.rewards import (
    accepted_corrections,
    best_correction,
    changed_token_mask,
    correction_reward,
    recoverability,
    shaped_reward,
    unchanged_share,
)

CORRECTIONS, _REFERENCES = 4, 5  # purposes of random streams, beside those of training


@dataclass(frozen=True)
class Corrected:
    """Corrections of one rollout: N targets (wrong responses), C corrections of each.

    Attributes:
        rows: [N] row of the rollout that each target is.
        prompts: correction prompts, token ids.
        references: token ids of each target's references.
        reference_right: [N] bool, whether the references are right (of a target, all are or none is).
        samples: the corrections, a target's in adjacent rows; None where there are no targets.
        accuracy: [N, C] verdicts, 0 or 1.
        distance, reference_distance: [N, C] normalised edit distance to the response, to its nearest
            reference (NaN without references).
        unchanged: [N, C, T] bool, tokens of the response that the correction kept.
        share: [N, C] of them among its tokens.
        rewrite, accepted: [N, C] bool.
        advantages: [N * C] of the corrections' own rewards.
    """

    rows: Tensor
    prompts: list[list[int]]
    references: list[list[list[int]]]
    reference_right: Tensor
    samples: Samples | None
    accuracy: Tensor
    distance: Tensor
    reference_distance: Tensor
    unchanged: Tensor
    share: Tensor
    rewrite: Tensor
    accepted: Tensor
    advantages: Tensor


@dataclass(frozen=True)
class CorrectedRollout(Rollout):
    """A rollout whose ``advantages`` are of R'; ``rewards`` stay the raw verdicts."""

    phi: Tensor  # [B]
    token_mask: Tensor | None  # [B, T] bool, for the variant "mask"
    corrected: Corrected


def correct(
    behaviour: Policy,
    codec: Codec,
    problems: list[Problem],
    rollout: Rollout,
    settings: Counterfactual,
    *,
    max_new_tokens: int,
    temperature: float,
    advantage_std: str,
    seed: int,
) -> CorrectedRollout:
    """The second pass over a rollout; a function of its arguments.

    Args:
        behaviour: the policy that sampled the rollout.
        problems: one per group of the rollout.
        settings: see :class:`rlvr.config_corrections.Counterfactual`.
        seed: of references and corrections.
    """
    corrected = _sample_corrections(
        behaviour, codec, problems, rollout, settings, max_new_tokens, temperature, advantage_std, seed
    )
    phi = torch.zeros(len(rollout.rewards))
    phi[corrected.rows] = recoverability(
        rollout.rewards[corrected.rows],
        corrected.accuracy,
        corrected.rewrite,
        corrected.share,
        variant="ratio" if settings.variant == "ratio" else "indicator",
        scale=settings.scale,
        reduce=settings.reduce,
    ).float()
    shaped = shaped_reward(rollout.rewards, phi, settings.shaping_weight)
    groups = torch.arange(len(rollout.prompts)).repeat_interleave(rollout.group_size)
    return CorrectedRollout(
        rollout.prompts,
        rollout.samples,
        rollout.rewards,
        group_relative(shaped, groups, std=advantage_std),
        rollout.group_size,
        phi=phi,
        token_mask=_token_mask(rollout, corrected) if settings.variant == "mask" else None,
        corrected=corrected,
    )


def _sample_corrections(
    behaviour, codec, problems, rollout, settings, max_new_tokens, temperature, advantage_std, seed
) -> Corrected:
    size, count = rollout.group_size, settings.corrections
    rows, references = choose_targets(rollout, settings, seed)
    responses = rollout.samples.responses()
    shown = [[responses[r] for r in of if r >= 0] for of in references.tolist()]
    template = TokenPrompts(settings.template, codec.encode, codec.eos_id)
    groups = (rows // size).tolist()
    prompts = [
        template(rollout.prompts[group], responses[row], known)
        for group, row, known in zip(groups, rows.tolist(), shown, strict=True)
    ]
    samples, texts, accuracy = None, [], torch.zeros(len(rows), count)
    if prompts:
        stream = derive_seed(CORRECTIONS, seed)
        samples = sample(behaviour, prompts, count, max_new_tokens, stream, temperature)
        graded = grade(codec, samples, [problems[group] for group in groups], count)
        accuracy = torch.tensor(graded).view(-1, count)
        tokens = samples.responses()
        texts = [tokens[n * count : (n + 1) * count] for n in range(len(prompts))]
    asked = [problems[group] for group in groups]
    mask = rollout.samples.response_mask[rows]
    each = ([responses[row]] for row in rows.tolist())
    targets, known, found = (
        _candidates(codec, asked, of, settings.operator == "failing_tests") for of in (each, shown, texts)
    )
    found = compare_batch(
        get_operator(settings.operator, insertions=settings.insertions),
        asked,
        [target for (target,) in targets],
        known,
        found,
        mask,
    )
    rewrite = torch.zeros(len(rows), count, dtype=torch.bool)
    if settings.alpha is not None and prompts:
        rewrite = full_rewrites(found.distance, found.reference_distance, settings.alpha)
    reward = correction_reward(accuracy, rewrite, settings.rewrite_penalty).flatten()
    own_group = torch.arange(len(rows)).repeat_interleave(count)
    first = references[:, 0] if references.shape[1] else torch.full((len(rows),), -1)
    right = (first >= 0) & (rollout.rewards[first.clamp_min(0)] == 1)
    return Corrected(
        rows,
        prompts,
        shown,
        right,
        samples,
        accuracy,
        found.distance,
        found.reference_distance,
        found.unchanged,
        unchanged_share(found.unchanged, mask),
        rewrite,
        accepted_corrections(rollout.rewards[rows], accuracy, rewrite),
        group_relative(reward, own_group, std=advantage_std),
    )


def _candidates(
    codec: Codec, problems: list[Problem], responses: Iterable[list[list[int]]], tested: bool
) -> list[list[Candidate]]:
    """Of each problem some responses: token ids, end token included [choice], the text, which some operators
    read as a program, and with ``tested`` the verdicts on its tests."""
    responses = list(responses)
    flat = [ids for some in responses for ids in some]
    texts, _ = codec.responses(flat)
    tests: Iterable = repeat(None)
    if tested and problems:
        golds = [problem.answer for problem, some in zip(problems, responses, strict=True) for _ in some]
        tests = get_task(problems[0].kind).outcomes(texts, golds)
    every = (Candidate(ids, text, verdicts) for ids, text, verdicts in zip(flat, texts, tests, strict=False))
    return [list(islice(every, len(some))) for some in responses]


def choose_targets(rollout: Rollout, settings: Counterfactual, seed: int) -> tuple[Tensor, Tensor]:
    """(rows [N] of the wrong responses to correct, rows [N, K-1] of their references, -1 for none).

    Of more wrong responses than ``settings.targets`` in a group the first ones: they are exchangeable.
    """
    size = rollout.group_size
    accuracy = rollout.rewards.view(-1, size)
    chosen = choose_references(accuracy, settings.references, derive_seed(_REFERENCES, seed))
    wrong = accuracy == 0
    if not settings.wrong_references:
        wrong &= (accuracy == 1).any(1, keepdim=True)
    if settings.targets is not None:
        wrong &= wrong.cumsum(1) <= settings.targets
    group, member = wrong.nonzero(as_tuple=True)
    references = chosen[group, member]
    in_rollout = references + (group * size)[:, None]
    return group * size + member, torch.where(references >= 0, in_rollout, -1)


def _token_mask(rollout: Rollout, corrected: Corrected) -> Tensor:
    """[B, T]: of recoverable responses the tokens that the smallest accepted correction changed."""
    mask = rollout.samples.response_mask
    best = best_correction(corrected.accepted, corrected.share)
    recoverable = torch.zeros(len(mask), dtype=torch.bool)
    recoverable[corrected.rows] = best >= 0
    unchanged = torch.zeros(mask.shape, dtype=torch.bool)
    unchanged[corrected.rows] = corrected.unchanged[torch.arange(len(best)), best.clamp_min(0)]
    return changed_token_mask(unchanged, recoverable, mask)
