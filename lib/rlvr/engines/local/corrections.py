"""The second generation pass of IBPO: what was wrong is corrected [text: IBPO Algorithm 1, G, I.2].

    responses -> verdicts -> references -> corrections of the wrong ones -> verdicts -> rewrite test
        -> R' = R + lambda phi -> advantages of the responses
        -> r(y_hat) - penalty  -> advantages of the corrections, a group per correction prompt

Responses and corrections come from the same behaviour policy; a correction's old log-probs are those of the
sampler under its correction prompt [choice].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import islice, repeat

import torch
from torch import Tensor

from rlvr.advantages import group_relative
from rlvr.config_corrections import Counterfactual
from rlvr.counterfactual import second_pass
from rlvr.counterfactual.operators import Candidate
from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.counterfactual.second_pass import Judged, judge, shaping, token_mask
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import Rollout, derive_seed, grade
from rlvr.engines.local.sampling import Samples, sample
from rlvr.problems import Problem, get_task
from rlvr.problems.tokenizer import Codec
from rlvr.rewards import shaped_reward

CORRECTIONS, REFERENCES = 4, 5  # purposes of random streams, beside those of training


@dataclass(frozen=True)
class Corrected(Judged):
    """Corrections of one rollout: N targets (wrong responses), C corrections of each.

    Attributes:
        prompts: correction prompts, token ids.
        references: token ids of each target's references.
        samples: the corrections, a target's in adjacent rows; None where there are no targets.
        advantages: [N * C] of the corrections' own rewards.
    """

    prompts: list[list[int]]
    references: list[list[list[int]]]
    samples: Samples | None
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
    phi = shaping(corrected, rollout.rewards, settings)
    shaped = shaped_reward(rollout.rewards, phi, settings.shaping_weight)
    groups = torch.arange(len(rollout.prompts)).repeat_interleave(rollout.group_size)
    mask = rollout.samples.response_mask
    return CorrectedRollout(
        rollout.prompts,
        rollout.samples,
        rollout.rewards,
        group_relative(shaped, groups, std=advantage_std),
        rollout.group_size,
        phi=phi,
        token_mask=token_mask(corrected, mask) if settings.variant == "mask" else None,
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
    lengths, finished = (torch.zeros(len(rows), count, dtype=kind) for kind in (torch.long, torch.bool))
    if prompts:
        stream = derive_seed(CORRECTIONS, seed)
        samples = sample(behaviour, prompts, count, max_new_tokens, stream, temperature)
        graded = grade(codec, samples, [problems[group] for group in groups], count)
        accuracy = torch.tensor(graded).view(-1, count)
        lengths, finished = samples.lengths.view(-1, count), samples.finished.view(-1, count)
        tokens = samples.responses()
        texts = [tokens[n * count : (n + 1) * count] for n in range(len(prompts))]
    asked = [problems[group] for group in groups]
    each = ([responses[row]] for row in rows.tolist())
    targets, known, found = (
        _candidates(codec, asked, of, settings.operator == "failing_tests") for of in (each, shown, texts)
    )
    judged = judge(
        settings,
        rollout.rewards,
        rollout.samples.response_mask,
        rows,
        references,
        problems=asked,
        responses=[target for (target,) in targets],
        shown=known,
        corrected=found,
        accuracy=accuracy,
        lengths=lengths,
        finished=finished,
    )
    own_group = torch.arange(len(rows)).repeat_interleave(count)
    return Corrected(
        **{field.name: getattr(judged, field.name) for field in fields(judged)},
        prompts=prompts,
        references=shown,
        samples=samples,
        advantages=group_relative(judged.reward.flatten(), own_group, std=advantage_std),
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
    """:func:`rlvr.counterfactual.second_pass.choose_targets` of a rollout."""
    accuracy = rollout.rewards.view(-1, rollout.group_size)
    return second_pass.choose_targets(accuracy, settings, derive_seed(REFERENCES, seed))
