"""The second generation pass of IBPO without its sampling: which responses are corrected, and what their
corrections earn both [text: IBPO Algorithm 1, G, I.2].

    verdicts -> targets and references -> (corrections and their verdicts, by an engine)
        -> distances, rewrite test -> phi of the responses, token mask, rewards of the corrections

Both engines judge by these functions. B responses in groups of G, N of them targets, C corrections of each;
a response or a correction that is missing has the verdict NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvr.config_corrections import Counterfactual
from rlvr.counterfactual.operators import Candidate, compare_batch, fitting_operator
from rlvr.counterfactual.references import choose_references
from rlvr.counterfactual.rewrite import full_rewrites
from rlvr.problems.base import Seed
from rlvr.rewards import (
    accepted_corrections,
    best_correction,
    changed_token_mask,
    correction_reward,
    recoverability,
    unchanged_share,
)


@dataclass(frozen=True)
class Judged:
    """Corrections of one step.

    Attributes:
        rows: [N] row, of all B, that each target is.
        reference_right: [N] bool, whether the references are right (of a target, all are or none is).
        accuracy: [N, C] verdicts, 0 or 1.
        lengths: [N, C] tokens of a correction.
        finished: [N, C] bool, ended by itself.
        distance, reference_distance: [N, C] normalised edit distance to the response, to its nearest
            reference (NaN without references).
        copied: [N, C] bool, equals one of its references token for token.
        unchanged: [N, C, T] bool, tokens of the response that the correction kept.
        share: [N, C] of them among its tokens.
        rewrite, accepted: [N, C] bool.
        reward: [N, C] of the corrections themselves.
    """

    rows: Tensor
    reference_right: Tensor
    accuracy: Tensor
    lengths: Tensor
    finished: Tensor
    distance: Tensor
    reference_distance: Tensor
    copied: Tensor
    unchanged: Tensor
    share: Tensor
    rewrite: Tensor
    accepted: Tensor
    reward: Tensor


def choose_targets(accuracy: Tensor, settings: Counterfactual, seed: Seed) -> tuple[Tensor, Tensor]:
    """(rows [N] of the wrong responses to correct, rows [N, K-1] of their references, -1 for none).

    ``accuracy``: [groups, G]; rows count through it. Of more wrong responses than ``settings.targets`` in a
    group the first ones: they are exchangeable.
    """
    size = accuracy.shape[1]
    chosen = choose_references(accuracy, settings.references, seed)
    wrong = accuracy == 0
    if not settings.wrong_references:
        wrong &= (accuracy == 1).any(1, keepdim=True)
    if settings.targets is not None:
        wrong &= wrong.cumsum(1) <= settings.targets
    group, member = wrong.nonzero(as_tuple=True)
    references = chosen[group, member]
    return group * size + member, torch.where(references >= 0, references + (group * size)[:, None], -1)


def judge(
    settings: Counterfactual,
    rewards: Tensor,
    response_mask: Tensor,
    rows: Tensor,
    references: Tensor,
    *,
    problems: Sequence[Any],
    responses: Sequence[Candidate],
    shown: Sequence[Sequence[Candidate]],
    corrected: Sequence[Sequence[Candidate | None]],
    accuracy: Tensor,
    lengths: Tensor,
    finished: Tensor,
) -> Judged:
    """What the corrections of a step are worth.

    Args:
        rewards: [B] raw verdicts; ``response_mask``: [B, T].
        rows, references: of :func:`choose_targets`.
        problems, responses, shown, corrected: per target its problem, itself, its references, and its C
            corrections (None: missing).
        accuracy, lengths, finished: [N, C] of the corrections.
    """
    mask = response_mask[rows]
    found = compare_batch(
        fitting_operator(settings.operator, insertions=settings.insertions),
        problems,
        responses,
        shown,
        corrected,
        mask,
    )
    distance, nearest, unchanged = found.distance, found.reference_distance, found.unchanged
    if not len(rows):  # C is not known from no corrections
        distance = nearest = torch.zeros(accuracy.shape, dtype=torch.float64)
        unchanged = torch.zeros(*accuracy.shape, mask.shape[1], dtype=torch.bool)
    rewrite = torch.zeros(accuracy.shape, dtype=torch.bool)
    if settings.alpha is not None and len(rows):
        rewrite = full_rewrites(distance, nearest, settings.alpha)
    first = references[:, 0] if references.shape[1] else torch.full((len(rows),), -1)
    return Judged(
        rows=rows,
        reference_right=(first >= 0) & (rewards[first.clamp_min(0)] == 1),
        accuracy=accuracy,
        lengths=lengths,
        finished=finished,
        distance=distance,
        reference_distance=nearest,
        copied=_copied(corrected, shown, accuracy),
        unchanged=unchanged,
        share=unchanged_share(unchanged, mask),
        rewrite=rewrite,
        accepted=accepted_corrections(rewards[rows], accuracy, rewrite),
        reward=correction_reward(accuracy, rewrite, settings.rewrite_penalty),
    )


def _copied(
    corrected: Sequence[Sequence[Candidate | None]], shown: Sequence[Sequence[Candidate]], like: Tensor
) -> Tensor:
    """[N, C] bool; an operator's distance may be 0 for texts that differ."""
    out = torch.zeros(like.shape, dtype=torch.bool)
    for row, (found, known) in enumerate(zip(corrected, shown, strict=True)):
        for c, one in enumerate(found):
            out[row, c] = one is not None and any(np.array_equal(one.ids, other.ids) for other in known)
    return out


def shaping(judged: Judged, rewards: Tensor, settings: Counterfactual) -> Tensor:
    """``phi`` [B] of all responses: 0 for those that are no targets."""
    phi = torch.zeros(len(rewards))
    phi[judged.rows] = recoverability(
        rewards[judged.rows],
        judged.accuracy,
        judged.rewrite,
        judged.share,
        variant="ratio" if settings.variant == "ratio" else "indicator",
        scale=settings.scale,
        reduce=settings.reduce,
    ).float()
    return phi


def token_mask(judged: Judged, response_mask: Tensor) -> Tensor:
    """[B, T] bool: of recoverable responses the tokens that the smallest accepted correction changed."""
    best = best_correction(judged.accepted, judged.share)
    recoverable = torch.zeros(len(response_mask), dtype=torch.bool)
    recoverable[judged.rows] = best >= 0
    unchanged = torch.zeros(response_mask.shape, dtype=torch.bool)
    unchanged[judged.rows] = judged.unchanged[torch.arange(len(best)), best.clamp_min(0)]
    return changed_token_mask(unchanged, recoverable, response_mask)


def describe(judged: Judged, rewards: Tensor, phi: Tensor, group_size: int) -> dict[str, float]:
    """What the corrections of a step did; a mean over nothing is left out.

    ``corrections_right`` is the correction success rate, over all corrections; ``recoverable`` the share of
    targets with an accepted one; ``rewrites`` the share of corrections that are full rewrites; ``copies``
    that of corrections equal to a reference, token for token, and ``copies_of_accepted`` that among the
    accepted ones; both among those that have a reference.

    ``reward_spread``, ``phi_spread`` and ``phi_reward_covariance`` are moments within groups, of centred R
    and phi. The variance of the centred advantage is then, for any lambda [text: IBPO E.2, Prop. E.4],
    ``reward_spread + 2 lambda phi_reward_covariance + lambda^2 phi_spread``. They are over the groups in
    which no response is missing.
    """
    phi, rewards = phi.view(-1, group_size).double(), rewards.view(-1, group_size).double()
    there, wrong = ~rewards.isnan(), rewards == 0
    whole = there.all(1)
    centred_phi, centred = (v[whole] - v[whole].mean(1, keepdim=True) for v in (phi, rewards))
    values = {
        "targets": float(len(judged.rows)),
        "phi_mean": _mean(phi[there]),
        "phi_of_wrong": _mean(phi[wrong]),
        "reward_spread": _mean(centred.square()),
        "phi_spread": _mean(centred_phi.square()),
        "phi_reward_covariance": _mean(centred * centred_phi),
    }
    values |= _of_corrections(judged) if len(judged.rows) else {}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _of_corrections(c: Judged) -> dict[str, float]:
    there = ~c.accuracy.isnan()
    right, known = c.accuracy.double(), ~c.reference_distance.isnan()
    compared = c.reference_right[:, None] & known, ~c.reference_right[:, None] & known
    return {
        "corrections_right": _mean(right[there]),
        "corrections_right_of_right_reference": _mean(right[compared[0]]),
        "corrections_right_of_wrong_reference": _mean(right[compared[1]]),
        "right_references": _mean(c.reference_right[known.any(1)].double()),
        "recoverable": float(c.accepted.any(1).double().mean()),
        "rewrites": _mean(c.rewrite[there].double()),
        "copies": _mean(c.copied[known].double()),
        "copies_of_accepted": _mean(c.copied[known & c.accepted].double()),
        "unchanged_of_accepted": _mean(c.share[c.accepted].double()),
        "correction_distance": _mean(c.distance[there]),
        "correction_length": _mean(c.lengths[there].double()),
        "correction_truncated": _mean((~c.finished[there]).double()),
    }


def _mean(values: Tensor) -> float:
    return float(values.mean()) if values.numel() else math.nan
