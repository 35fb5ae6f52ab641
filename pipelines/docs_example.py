"""What an objective does to the five tokens of one response: the worked example on its page."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from pipelines.docstrings import literal, table
from rlvr.registry import Objective

#: Log-probs (nats) of the response under the current policy and under the rollout policy.
LOG_PROB = (-1.5, -1.0, -0.2, -0.7, -2.0)
OLD_LOG_PROB = (-1.6, -0.3, -1.6, -0.7, -2.3)
#: Parameters that are tensors, without the batch dimension; optional ones are given if they stand here.
TENSORS: dict[str, tuple] = {
    "token_mask": (0, 1, 1, 0, 1),
    "mtp_log_prob": ((-1.3,), (-0.5,), (-0.8,), (-2.1,), (0.0,)),  # K = 2; the last target is past the end
    "old_mtp_log_prob": ((-0.9,), (-1.2,), (-0.8,), (-2.4,), (0.0,)),
}
SIGNS = (1.0, -1.0)


def extra(objective: Objective) -> dict[str, tuple]:
    """The example's values of the objective's own tensors.

    Raises:
        ValueError: a tensor without a default is not in ``TENSORS``.
    """
    given = {}
    for name in objective.parameters:
        parameter = inspect.signature(objective).parameters[name]
        if name in TENSORS:
            given[name] = TENSORS[name]
        elif "Tensor" in str(parameter.annotation) and parameter.default is parameter.empty:
            raise ValueError(f"objective {objective.name}: the example's TENSORS have no {name!r}")
    return given


def evaluate(objective: Objective, advantage: float) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Per-token loss [5], its Jacobian [5, 5] by ``log_prob`` (row: loss), and the metrics."""
    log_prob = _batch(LOG_PROB).requires_grad_()
    loss, metrics = objective(
        log_prob,
        _batch(OLD_LOG_PROB),
        _batch(advantage),
        torch.ones(1, 5),
        reduction="none",
        **{name: _batch(value) for name, value in extra(objective).items()},
    )
    rows = [torch.autograd.grad(loss[0, t], log_prob, retain_graph=True)[0][0] for t in range(5)]
    return loss.detach()[0], torch.stack(rows), {name: float(value) for name, value in metrics.items()}


def _batch(value: Any) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def show(objective: Objective) -> tuple[str, list[str]]:
    """The example as Markdown, and the names of the objective's metrics."""
    results = [evaluate(objective, sign) for sign in SIGNS]
    rows = []
    for t, (new, old) in enumerate(zip(LOG_PROB, OLD_LOG_PROB, strict=True)):
        row = [str(t + 1), f"{new:.1f}", f"{old:.1f}", number(math.exp(new - old))]
        for loss, jacobian, _ in results:
            row += [number(loss[t]), number(jacobian[:, t].sum())]
        rows.append(row)
    header = ["t", "log pi", "log mu", "rho", "loss (A = 1)", "gradient", "loss (A = -1)", "gradient"]
    metrics = list(results[0][2])  # the first is the count of tokens
    shown = [[f"`{name}`", *(number(values[name]) for _, _, values in results)] for name in metrics[1:]]
    given = "".join(f", `{name}={literal(value)}`" for name, value in extra(objective).items())
    text = (
        f'One response of five tokens, default parameters, `reduction="none"`{given}. '
        "The gradient is that of the losses' sum by the token's `log pi`: a step of descent makes the token "
        "likelier where it is negative."
    )
    return "\n\n".join([text, table(header, rows), table(["metric", "A = 1", "A = -1"], shown)]), metrics


def gradient_through(objective: Objective) -> str:
    """What the gradient runs through, read off the example.

    One token's loss depending on other tokens: one ratio for all of them. Otherwise ``loss = slope * log pi``
    means a constant weight on ``log pi``, and ``loss`` in a fixed proportion to the slope a ratio.
    """
    log_prob = torch.tensor(LOG_PROB, dtype=torch.float64)
    results = [evaluate(objective, sign)[:2] for sign in SIGNS]
    if any((jacobian - jacobian.diag().diag()).any() for _, jacobian in results):
        return "ratio of the response"
    slopes = [(loss, jacobian.diag()) for loss, jacobian in results]
    if all(torch.allclose(loss, slope * log_prob) for loss, slope in slopes):
        return "`log pi`"
    shares = torch.cat([slope[slope != 0] / loss[slope != 0] for loss, slope in slopes])
    return "ratio of the token" if torch.allclose(shares, shares[:1]) else "see its page"


def number(value: float | Tensor) -> str:
    """Four decimals, no negative zero."""
    return f"{round(float(value), 4) + 0.0:.4f}"
