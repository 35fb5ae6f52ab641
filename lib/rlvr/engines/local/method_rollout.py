"""Rollouts as DAPO has them: rewards with a length penalty, and only groups that teach something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlvr.advantages import group_relative, informative_groups, plan_sampling
from rlvr.config import Train
from rlvr.config_mtp import Sampling
from rlvr.engines.local.rollout import Rollout
from rlvr.engines.local.sampling import Samples
from rlvr.rewards import overlong_penalty


@dataclass(frozen=True)
class ShapedRollout(Rollout):
    """A rollout whose ``advantages`` are of ``shaped`` rewards, while ``rewards`` stay the verdicts.

    Attributes:
        shaped: [B] rewards with the length penalty.
        generated: every batch that was generated for it, with what was dropped.
    """

    shaped: Tensor
    generated: tuple[Rollout, ...]


def shape_rewards(rollout: Rollout, train: Train, sampling: Sampling | None) -> ShapedRollout:
    """Length penalty [public: DAPO Eq. 13] and the advantages that follow, if there is a penalty."""
    given = {name: getattr(rollout, name) for name in Rollout.__dataclass_fields__}
    if sampling is None or not sampling.overlong_buffer:
        return ShapedRollout(**given, shaped=rollout.rewards, generated=(rollout,))
    penalty = overlong_penalty(
        rollout.samples.lengths, train.max_new_tokens, sampling.overlong_buffer, sampling.overlong_factor
    )
    shaped = rollout.rewards + penalty
    groups = torch.arange(len(rollout.prompts)).repeat_interleave(rollout.group_size)
    given["advantages"] = group_relative(shaped, groups, std=train.advantage_std)
    return ShapedRollout(**given, shaped=shaped, generated=(rollout,))


def sample_until_full(
    generate: Callable[[int], ShapedRollout], target: int, max_batches: int | None
) -> ShapedRollout:
    """Dynamic sampling: the first ``target`` groups with a right and a wrong answer.

    Args: ``generate(number)`` makes the ``number``-th batch of a step, from 0.

    Raises:
        RuntimeError: ``max_batches`` did not give enough of them.
    """
    parts: list[ShapedRollout] = []
    kept: list[list[int]] = []  # of each part
    while True:
        part = generate(len(parts))
        parts.append(part)
        ids = torch.arange(len(part.prompts)).repeat_interleave(part.group_size)
        kept.append(list(informative_groups(part.rewards, ids).group_ids))
        plan = plan_sampling(sum(map(len, kept)), target, len(parts), max_batches)
        if plan.status == "exhausted":
            raise RuntimeError(plan.message)
        if plan.status == "done":
            return _joined([_groups(p, which) for p, which in zip(parts, kept, strict=True)], parts, target)


def _groups(rollout: ShapedRollout, which: list[int]) -> ShapedRollout:
    """Some groups of a rollout, in order."""
    size = rollout.group_size
    rows = (torch.tensor(which, dtype=torch.int64)[:, None] * size + torch.arange(size)).flatten()
    samples = Samples(*(value[rows] for value in vars(rollout.samples).values()))
    return replace(
        rollout,
        prompts=[rollout.prompts[group] for group in which],
        samples=samples,
        **{name: getattr(rollout, name)[rows] for name in ("rewards", "advantages", "shaped")},
    )


def _joined(parts: list[ShapedRollout], generated: list[ShapedRollout], target: int) -> ShapedRollout:
    """The first ``target`` groups of several rollouts."""
    width = max(part.samples.tokens.shape[1] for part in parts)

    def wide(values: Tensor) -> Tensor:
        return pad(values, (0, width - values.shape[1])) if values.ndim == 2 else values

    columns = zip(*(vars(part.samples).values() for part in parts), strict=True)
    samples = Samples(*(torch.cat([wide(value) for value in column]) for column in columns))
    joined = replace(
        parts[0],
        prompts=[prompt for part in parts for prompt in part.prompts],
        samples=samples,
        generated=tuple(one for part in generated for one in part.generated),
        **{
            name: torch.cat([getattr(part, name) for part in parts])
            for name in ("rewards", "advantages", "shaped")
        },
    )
    first = _groups(joined, list(range(target)))
    used = int(first.samples.lengths.max())
    tokens, lengths, log_prob, finished = vars(first.samples).values()
    return replace(first, samples=Samples(tokens[:, :used], lengths, log_prob[:, :used], finished))
