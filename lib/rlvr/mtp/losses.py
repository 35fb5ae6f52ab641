"""What a module's log-probs are trained by and judged by: cross entropy, and ranks in the backbone's eyes."""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr.checks import describe
from rlvr.ratios import block_mask, compute_dtype
from rlvr.tensor_checks import check_floating


def cross_entropy(
    mtp_log_prob: Tensor, response_mask: Tensor, counts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Next-k-token cross entropy of each module, and their mean (the loss).

        CE_k = - mean over the existing (i, t) of log pi^(k)(y_{t+k-1} | t),   loss = mean_k CE_k

    Args: ``mtp_log_prob`` [B, T, K-1] nats, as in :func:`rlvr.objectives.mpo`; ``response_mask`` [B, T];
    ``counts`` [K-1], the existing (i, t) of each module in the whole batch where this is a micro-batch
    (:func:`entry_counts`), so that losses of micro-batches add up; None: of this batch.
    Returns (loss, a scalar with its graph; CE [K-1], detached). A module without any existing target (every
    response shorter than k) has CE 0 and no share in the mean. Equal weights of the modules are a [choice]
    (DeepSeek-V3's); the text's Eq. 5 is lost. Source: [text: MPO A.1].
    """
    check_floating("mtp_log_prob", mtp_log_prob, ndim=3)
    exists = block_mask(response_mask, mtp_log_prob.shape[-1] + 1)
    if exists.shape != mtp_log_prob.shape:
        raise ValueError(
            f"mtp_log_prob is {describe(mtp_log_prob)}: allowed is [B, T, K-1] with [B, T] = "
            f"{list(response_mask.shape)}, response_mask's shape"
        )
    own = exists.sum((0, 1))
    counts = own if counts is None else counts
    if counts.shape != own.shape or (counts < own).any():
        raise ValueError(
            f"counts={counts.tolist()}: allowed are {len(own)} numbers, none below {own.tolist()} here"
        )
    values = torch.where(exists, mtp_log_prob.to(compute_dtype(mtp_log_prob)), 0.0)
    each = -values.sum((0, 1)) / counts.clamp_min(1)
    loss = each.sum() / (counts > 0).sum().clamp_min(1)
    return loss, each.detach()


def entry_counts(response_mask: Tensor, blocks: int) -> Tensor:
    """[K-1]: how many positions of a batch have a target for each module."""
    return block_mask(response_mask, blocks).sum((0, 1))


def predicted_rank(module_logits: Tensor, backbone_logits: Tensor) -> Tensor:
    """Rank (1 = best) that the backbone gives to the token which a module thinks likeliest, [entries] int64.

    Args: two tensors [entries, vocabulary]: a module's logits for y_{t+k-1} from position t, and the
    backbone's for the same token from position t+k-1. Rank = 1 + the number of tokens with a larger logit.
    Source: [text: MPO 5.6, "the position of the predicted token in the backbone's distribution"]; that the
    predicted token is the likeliest one, and the backbone's distribution that of the predicted position, are
    the reading taken here [choice].
    """
    for name, value in (("module_logits", module_logits), ("backbone_logits", backbone_logits)):
        if not isinstance(value, Tensor) or value.ndim != 2 or value.shape != module_logits.shape:
            raise ValueError(
                f"{name} is {describe(value)}: allowed are two tensors [entries, vocabulary] of one shape"
            )
    predicted = module_logits.argmax(-1, keepdim=True)
    return 1 + (backbone_logits > backbone_logits.gather(-1, predicted)).sum(-1)
