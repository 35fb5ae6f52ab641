"""Which responses of its group a wrong response is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvr.checks import check_integer, describe
from rlvr.problems.base import Seed, bit_stream
from rlvr.rewards import check_accuracy

_STREAM = 0x5EFE2E9CE5  # keeps these draws apart from those of the problems, whatever the seed


def choose_references(accuracy: Tensor, count: int, seed: Seed) -> Tensor:
    """Indices of the references of every wrong response, int64 [groups, G, count]; -1 is none.

    Uniform over the right responses of the group if it has one, else uniform over its *other* wrong ones,
    so that no response is its own reference [text: IBPO G.1]. Several references of one response are
    distinct; where ``count`` exceeds what there is to choose from (K > G, or few right ones), all of it is
    taken, in random order, and the rest is -1: no pool is topped up from the other [choice].

    Args:
        accuracy: verdicts ``r`` [groups, G] in {0, 1}; NaN is a missing response: never a reference.
        count: references per response, K - 1 >= 0. K = 1 compares with nothing.
        seed: whole number or sequence of such, as (run, step). Equal seeds give equal references on every
            platform; what a group gets depends on its own verdicts and its place in the batch alone.

    Right and missing responses have none, and neither has a wrong one that is alone.
    """
    count = check_integer("count", count, 0, "whole numbers >= 0, K - 1")
    if not isinstance(accuracy, Tensor) or accuracy.ndim != 2:
        raise ValueError(f"accuracy={describe(accuracy)}: allowed is a tensor [groups, G]")
    right, present = (flags.cpu().numpy() for flags in check_accuracy("accuracy", accuracy, 2))
    wrong = present & ~right
    groups, size = wrong.shape
    pool = np.where(right.any(1, keepdims=True), right, wrong)
    eligible = wrong[:, :, None] & pool[:, None, :] & ~np.eye(size, dtype=bool)
    keys = _stream(seed).random_raw(groups * size * size).reshape(groups, size, size)
    order = np.lexsort((keys, ~eligible), axis=-1)[..., :count]  # the eligible ones first, in random order
    there = np.arange(order.shape[-1]) < eligible.sum(-1, keepdims=True)
    chosen = np.full((groups, size, count), -1, dtype=np.int64)
    chosen[..., : order.shape[-1]] = np.where(there, order, -1)
    return torch.from_numpy(chosen).to(accuracy.device)


def _stream(seed: Any) -> np.random.PCG64:
    parts = tuple(seed) if isinstance(seed, (list, tuple)) else (seed,)
    try:
        if parts:
            return bit_stream("train", (_STREAM, *parts))
    except ValueError:
        pass
    raise ValueError(f"seed={seed!r} must be a whole number in 0..2**64-1 or a sequence of such")
