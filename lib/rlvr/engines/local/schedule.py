"""The learning rate of a step."""

from __future__ import annotations

import math

from rlvr.config import Train


def learning_rate(train: Train, step: int) -> float:
    """Rate at ``step`` = 0, 1, ..., ``train.steps - 1``; the same for all updates of the step.

    ``constant``: ``lr``. ``cosine``: a linear rise over the first ``w = ceil(warmup_ratio * steps)`` steps,
    ``lr (step + 1) / w``, then half a cosine from ``lr`` to ``min_lr_ratio * lr`` [text: IBPO 4, H]. That the
    first step has a rate above 0, and the last step one just above the least [choice]: with 40 steps a
    step at rate 0 would be 2.5 % of the training.
    """
    if train.schedule == "constant":
        return train.lr
    rise = math.ceil(train.warmup_ratio * train.steps)
    if step < rise:
        return train.lr * (step + 1) / rise
    progress = (step - rise) / max(1, train.steps - rise)
    share = 0.5 * (1 + math.cos(math.pi * progress))
    return train.lr * (train.min_lr_ratio + (1 - train.min_lr_ratio) * share)
