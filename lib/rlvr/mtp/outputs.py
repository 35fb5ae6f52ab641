"""Log-probs and ranks of MTP modules over responses, in the layout of the block objectives; their warm-up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlvr.checks import check_number, describe
from rlvr.mtp.losses import cross_entropy, predicted_rank
from rlvr.mtp.modules import Backbone, MtpModules, parts_of, run_backbone
from rlvr.ratios import block_mask, compute_dtype
from rlvr.tensor_checks import check_mask


class MtpOutputs(NamedTuple):
    """Of B responses of up to T tokens; 0 wherever there is no token."""

    log_prob: Tensor  # [B, T] nats, the backbone's own, with its graph
    mtp_log_prob: Tensor  # [B, T, K-1] nats: entry [i, t, k-2] is log pi^(k)(y_{t+k-1} | t)
    rank: Tensor | None  # [B, T, K-1] int64, >= 1: the backbone's rank of the module's likeliest token


def mtp_outputs(
    model: nn.Module,
    modules: MtpModules,
    input_ids: Tensor,
    attention_mask: Tensor,
    response_mask: Tensor,
    *,
    temperature: float = 1.0,
    rank: bool = False,
    backbone_gradient: bool = False,
) -> MtpOutputs:
    """Log-probs of the responses under the backbone and under every module.

    Args:
        input_ids, attention_mask: [B, P + T], prompts (padded on the left if at all), then responses.
        response_mask: [B, T], 1 at tokens that the model wrote; the last T columns are the responses.
        temperature: of the sampling distribution; divides the modules' logits too [choice].
        rank: also rank the modules' likeliest tokens, which costs more passes over the backbone's head.
        backbone_gradient: whether what is computed from the modules may reach the backbone's weights. False
            (the paper's: the backbone is frozen against the MTP loss) detaches what the modules are fed.
    """
    prompt = _prompt_columns(input_ids, attention_mask, response_mask)
    temperature = check_number("temperature", temperature, lambda x: 0 < x < torch.inf, "numbers > 0")
    backbone = run_backbone(model, input_ids, attention_mask, modules.hidden, backbone_gradient)
    head, shape = parts_of(model).head, response_mask.shape

    row, t = response_mask.bool().nonzero(as_tuple=True)
    logits = head(backbone.normed[row, prompt - 1 + t])
    log_prob = _scatter(_log_prob(logits, input_ids[row, prompt + t], temperature), row, t, shape)

    columns, ranks = [], []
    for k, row, t, logits in _module_logits(modules, backbone, response_mask, prompt):
        target = prompt + t + k - 1
        columns.append(_scatter(_log_prob(logits, input_ids[row, target], temperature), row, t, shape))
        if rank:
            with torch.no_grad():
                there = head(backbone.normed[row, target - 1])
                ranks.append(_scatter(predicted_rank(logits, there), row, t, shape))
    return MtpOutputs(log_prob, torch.stack(columns, -1), torch.stack(ranks, -1) if rank else None)


def warm_up_loss(
    model: nn.Module,
    modules: MtpModules,
    input_ids: Tensor,
    attention_mask: Tensor,
    response_mask: Tensor,
) -> tuple[Tensor, Tensor]:
    """(loss, cross entropy of each module [K-1]) of :func:`rlvr.mtp.cross_entropy`; arguments as above.

    The backbone runs without recording a graph: nothing but the modules can get a gradient. Only targets in
    the responses count [choice]; to train on prompts too, mark them in ``response_mask``.
    """
    prompt = _prompt_columns(input_ids, attention_mask, response_mask)
    with torch.no_grad():
        backbone = run_backbone(model, input_ids, attention_mask, modules.hidden)
    columns = []
    for k, row, t, logits in _module_logits(modules, backbone, response_mask, prompt):
        values = _log_prob(logits, input_ids[row, prompt + t + k - 1], 1.0)
        columns.append(_scatter(values, row, t, response_mask.shape))
    return cross_entropy(torch.stack(columns, -1), response_mask)


def warm_up(
    model: nn.Module,
    modules: MtpModules,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.98),
    grad_clip: float = 1.0,
    on_step: Callable[[int, float], None] | None = None,
) -> list[dict[str, float]]:
    """Train the modules alone on ``batches`` of (input_ids, attention_mask, response_mask); AdamW.

    Returns one row per batch: ``step``, ``loss``, and ``loss_2`` .. ``loss_K``, nats per token before the
    step. ``on_step(steps done, loss)``.
    """
    optimizer = torch.optim.AdamW(modules.parameters(), lr=lr, betas=betas, weight_decay=0.0)
    history = []
    for step, batch in enumerate(batches, start=1):
        loss, each = warm_up_loss(model, modules, *batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(modules.parameters(), grad_clip)
        optimizer.step()
        row = {f"loss_{k}": float(value) for k, value in enumerate(each, start=2)}
        history.append({"step": step, "loss": float(loss.detach())} | row)
        if on_step:
            on_step(step, history[-1]["loss"])
    return history


def _prompt_columns(input_ids: Tensor, attention_mask: Tensor, response_mask: Tensor) -> int:
    check_mask("response_mask", response_mask)
    prompt = input_ids.shape[-1] - response_mask.shape[-1]
    shapes = (input_ids.shape, attention_mask.shape)
    if len(set(shapes)) > 1 or input_ids.ndim != 2 or len(input_ids) != len(response_mask) or prompt < 1:
        raise ValueError(
            f"input_ids is {describe(input_ids)}, attention_mask {describe(attention_mask)}, response_mask "
            f"{list(response_mask.shape)}: allowed are [B, P + T] twice and [B, T], with P >= 1"
        )
    return prompt


def _module_logits(
    modules: MtpModules, backbone: Backbone, response_mask: Tensor, prompt: int
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """(k, row, t, logits [entries, vocabulary]) of each module's entries that have a target."""
    exists = block_mask(response_mask, modules.blocks)
    for index, (state, module) in enumerate(zip(modules(backbone), modules.values(), strict=True)):
        row, t = exists[..., index].nonzero(as_tuple=True)
        yield index + 2, row, t, module.logits(state[row, prompt - 1 + t])


def _log_prob(logits: Tensor, token: Tensor, temperature: float) -> Tensor:
    log_probs = (logits.to(compute_dtype(logits)) / temperature).log_softmax(-1)
    return log_probs.gather(-1, token[:, None]).squeeze(-1)


def _scatter(values: Tensor, row: Tensor, t: Tensor, shape: torch.Size) -> Tensor:
    return values.new_zeros(shape).index_put((row, t), values)
