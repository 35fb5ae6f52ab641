"""What turns a recipe into an objective: checks, masks, aggregation, gradient, metrics, names.

A recipe (see :mod:`rlvr.objectives`) is ``name(batch, *, parameters) -> Terms``: a few lines of tensor
maths on clean inputs. Everything that all objectives share happens here, once.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr.checks import check_choice, describe
from rlvr.indicators import as_bits, as_float, select
from rlvr.losses import TokenLoss, aggregation_scale, attach
from rlvr.ratios import RATIO_BOUND, compute_dtype

Metrics = dict[str, Tensor]
POSITIVE_LOG_PROB = 1e-4  # rounding of a log-softmax may exceed 0 by this much


@dataclass(frozen=True)
class Batch:
    """What a recipe sees: checked, in float32 or float64, 0 where masked, and constant."""

    log_prob: Tensor  # [B, T]
    old_log_prob: Tensor  # [B, T]
    log_ratio: Tensor  # [B, T]
    advantages: Tensor  # [B, 1] or [B, T]
    valid: Tensor  # [B, T] bool
    mask: Tensor  # [B, T] the same as 0.0 and 1.0
    lengths: Tensor  # [B, 1] valid tokens
    live_log_prob: Tensor  # the caller's tensor, with its autograd graph
    check: bool
    grad_enabled: bool  # whether the caller records gradients

    def select(self, log_prob: Tensor, name: str, exists: Tensor | None = None) -> Tensor:
        """A further log-prob argument, checked and cleaned like the others; ``exists`` [B, T, ...] bool says
        where it has values (default: at the valid tokens)."""
        exists = self.valid if exists is None else exists
        bits = exists if exists.dtype in (torch.int32, torch.int64) else as_bits(exists, self.log_prob.dtype)
        return _select(name, log_prob, bits, self.log_prob.dtype, self.check)


@dataclass
class Terms:
    """What a recipe returns; every tensor is [B, T]."""

    loss: TokenLoss
    ratio: Tensor  # rho, 1 where masked
    weight: Tensor  # before trust region and advantage, 1 where masked
    log_ratio: Tensor | None = None  # of rho, 0 where masked; None: that of the batch
    shares: dict[str, Tensor] = field(default_factory=dict)  # metrics: 0.0 and 1.0, 0 where masked
    means: dict[str, Tensor] = field(default_factory=dict)  # metrics: floating, 1 where masked


Recipe = Callable[..., Terms]
_REGISTRY: dict[str, Objective] = {}


class Objective:
    """A registered recipe; calling it is described in :mod:`rlvr.objectives`.

    ``parameters`` are the recipe's own, with their defaults; ``tensors`` names those that take tensors,
    ``needs`` the tensors without which it is another objective, so that a trainer that has none refuses.
    """

    def __init__(self, recipe: Recipe, loss_agg_mode: str, needs: Sequence[str] = ()):
        update_wrapper(self, recipe)
        self.name: str = recipe.__name__
        self.loss_agg_mode = loss_agg_mode
        own = [p for p in inspect.signature(recipe).parameters.values() if p.kind is p.KEYWORD_ONLY]
        self.parameters: dict[str, Any] = {p.name: p.default for p in own}
        self.tensors = tuple(p.name for p in own if "Tensor" in str(p.annotation))
        self.needs = tuple(p.name for p in own if p.name in needs or p.default is p.empty)
        self._recipe = recipe
        call = inspect.signature(self._call).parameters.values()
        shared = [p for p in call if p.kind is not p.VAR_KEYWORD]
        shared = [p.replace(default=loss_agg_mode) if p.name == "loss_agg_mode" else p for p in shared]
        positional = [p for p in shared if p.kind is not p.KEYWORD_ONLY]
        # what help() and inspect.signature show
        self.__signature__ = inspect.Signature(
            positional + own + [p for p in shared if p.kind is p.KEYWORD_ONLY],
            return_annotation="tuple[Tensor, Metrics]",
        )

    def __repr__(self) -> str:
        return f"<objective {self.name}>"

    def __reduce__(self):  # pickles by name, like a function
        return get, (self.name,)

    def __call__(self, *args, **kwargs) -> tuple[Tensor, Metrics]:
        return self._call(*args, **kwargs)

    def _call(
        self,
        log_prob: Tensor,
        old_log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        *,
        loss_agg_mode: str | None = None,
        reduction: Literal["loss", "none"] = "loss",
        batch_num_tokens: int | Tensor | None = None,
        global_batch_size: int | Tensor | None = None,
        loss_scale_factor: int | float | None = None,
        dp_size: int = 1,
        check: bool = True,
        **parameters: Any,
    ) -> tuple[Tensor, Metrics]:
        for name in parameters:
            if name not in self.parameters:
                raise ValueError(
                    f"{self.name} has no parameter {suggest(name, self.__signature__.parameters)}"
                )
        check_choice("reduction", reduction, ("loss", "none"))
        grad_enabled = torch.is_grad_enabled()
        with torch.no_grad():
            batch = _prepare(log_prob, old_log_prob, advantages, response_mask, check, grad_enabled)
            scale = aggregation_scale(
                batch.valid,
                self.loss_agg_mode if loss_agg_mode is None else loss_agg_mode,
                batch_num_tokens=batch_num_tokens,
                global_batch_size=global_batch_size,
                loss_scale_factor=loss_scale_factor,
                dp_size=dp_size,
                dtype=batch.log_prob.dtype,
                lengths=batch.lengths,
            )
            terms = self._recipe(batch, **parameters)
            metrics = _summarise(terms, batch)
        value, slope, share = terms.loss
        if reduction == "loss":
            value = (value.sum(-1, keepdim=True) * scale).sum()
        else:
            scale = None
        return (value if slope is None else attach(log_prob, value, slope, share, scale)), metrics


def register(loss_agg_mode: str, needs: Sequence[str] = ()) -> Callable[[Recipe], Objective]:
    """Decorator: a recipe ``name(batch, *, parameters) -> Terms`` becomes the objective ``name``."""

    def add(recipe: Recipe) -> Objective:
        objective = _REGISTRY[recipe.__name__] = Objective(recipe, loss_agg_mode, needs)
        return objective

    return add


def list_objectives() -> list[str]:
    """Names of all objectives, sorted."""
    return sorted(_REGISTRY)


def get(name: str) -> Objective:
    """The objective of that name; ValueError with the nearest names otherwise."""
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ValueError(f"unknown objective {suggest(name, _REGISTRY)}")
    return _REGISTRY[name]


def merge_metrics(parts: Iterable[Mapping[str, Tensor | float]]) -> dict[str, float]:
    """Metrics of several micro-batches as those of one batch: sums, maxima and token-weighted means."""
    parts = [{name: float(value) for name, value in part.items()} for part in parts]
    if not parts:
        raise ValueError("parts is empty: allowed is at least one dict of metrics")
    if any(part.keys() != parts[0].keys() or "tokens" not in part for part in parts):
        raise ValueError(
            "parts hold different metrics: allowed are the metrics of one objective, with 'tokens'"
        )
    tokens = sum(part["tokens"] for part in parts)
    merged: dict[str, float] = {}
    for name in parts[0]:
        if name == "tokens":
            merged[name] = tokens
        elif name.endswith("_max"):
            merged[name] = max(part[name] for part in parts)
        elif tokens:
            merged[name] = sum(part[name] * part["tokens"] for part in parts) / tokens
        else:
            merged[name] = parts[0][name]
    return merged


def _prepare(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    check: bool,
    grad_enabled: bool,
) -> Batch:
    if check:
        _check_shapes(log_prob, old_log_prob, advantages, response_mask)
    valid = response_mask.bool()
    if valid.is_inference() and not torch.is_inference_mode_enabled():
        valid = valid.clone()  # autograd does not save what inference_mode made
    if check:
        check_binary("response_mask", response_mask)
    dtype = compute_dtype(log_prob, old_log_prob)
    bits = as_bits(valid, dtype)
    lengths = -bits.sum(-1, keepdim=True, dtype=torch.int32)
    new = _select("log_prob", log_prob, bits, dtype, check, finite=True)
    old = _select("old_log_prob", old_log_prob, bits, dtype, check)
    per_row = advantages.ndim == 1 or advantages.shape[1] == 1
    advantages = advantages.detach().to(dtype).reshape(len(valid), -1)
    advantages = select(advantages, as_bits(lengths > 0, dtype) if per_row else bits)
    if check and not torch.stack(torch.aminmax(advantages)).isfinite().all():
        raise ValueError("advantages holds NaN or an infinity at a valid token: allowed are finite numbers")
    return Batch(
        new, old, new - old, advantages, valid, as_float(valid, dtype), lengths, log_prob, check, grad_enabled
    )


def _select(
    name: str, log_prob: Tensor, bits: Tensor, dtype: torch.dtype, check: bool, finite: bool = False
) -> Tensor:
    """``log_prob`` as a constant that is 0 where masked, before any arithmetic: NaN * 0 is NaN.

    ``finite``: -inf is an error too. mu = 0 only meets the ratio's bound, pi = 0 has no gradient.
    """
    if check:
        _check_log_prob_shape(name, log_prob, bits)
    selected = select(log_prob.detach().to(dtype), bits)
    if check and selected.numel():
        lowest, highest = torch.aminmax(selected)  # one pass; NaN propagates and fails the comparison
        if not highest <= POSITIVE_LOG_PROB or (finite and lowest == -torch.inf):
            wrong = ~(selected <= POSITIVE_LOG_PROB) | (selected == -torch.inf)
            raise ValueError(
                f"{name} holds {selected[wrong][0].item()} at a valid token: allowed are log-probabilities "
                f"<= 0{', finite' if finite else ''}"
            )
    return selected


def check_binary(name: str, mask: Tensor) -> None:
    """ValueError unless ``mask`` holds 0 and 1 only."""
    if mask.dtype != torch.bool and not torch.equal(mask.bool().to(mask.dtype), mask):
        other = mask[(mask != 0) & (mask != 1)][0].item()
        raise ValueError(f"{name} holds {other}: allowed are 0 and 1")


def _check_shapes(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, response_mask: Tensor) -> None:
    if (
        not isinstance(response_mask, Tensor)
        or response_mask.ndim != 2
        or not response_mask.numel()
        or response_mask.is_complex()
        or not usable(response_mask, response_mask)
    ):
        raise ValueError(
            f"response_mask is {describe(response_mask)}: allowed is a dense tensor [B, T], not empty"
        )
    _check_log_prob_shape("log_prob", log_prob, response_mask)
    _check_log_prob_shape("old_log_prob", old_log_prob, response_mask)
    rows, width = response_mask.shape
    if (
        not isinstance(advantages, Tensor)
        or not advantages.is_floating_point()
        or advantages.shape not in ((rows,), (rows, 1), (rows, width))
        or not usable(advantages, response_mask)
    ):
        raise ValueError(
            f"advantages is {describe(advantages)}: allowed are floating tensors [{rows}] (one per row) and "
            f"[{rows}, {width}]"
        )


def _check_log_prob_shape(name: str, value: Tensor, mask: Tensor) -> None:
    if (
        not isinstance(value, Tensor)
        or value.shape != mask.shape
        or not value.is_floating_point()
        or not usable(value, mask)
    ):
        source = "response_mask" if mask.ndim == 2 else "mtp_log_prob"
        source = "" if name == "mtp_log_prob" else f", as {source} says"
        raise ValueError(
            f"{name} is {describe(value)}: allowed is a dense floating tensor of shape {list(mask.shape)} "
            f"on {mask.device}{source}"
        )


def usable(value: Tensor, like: Tensor) -> bool:
    """Whether ``value`` is a dense tensor with values, on the device of ``like``."""
    return value.layout == torch.strided and value.device == like.device and value.device.type != "meta"


def _summarise(terms: Terms, batch: Batch) -> Metrics:
    count = batch.lengths.sum()
    tokens = count.clamp_min(1).to(terms.ratio.dtype)

    scratch = torch.empty_like(batch.log_ratio)  # one buffer: writing to fresh memory costs more than the sum

    def mean_around_one(values: Tensor) -> Tensor:
        """Mean of values that are exactly 1 where masked; leaves their distances from 1 in ``scratch``."""
        return 1 + torch.sub(values, 1, out=scratch).sum() / tokens

    def mean_distance() -> Tensor:
        return scratch.abs_().sum() / tokens

    log_ratio = batch.log_ratio if terms.log_ratio is None else terms.log_ratio
    metrics: Metrics = {"tokens": count}
    metrics["kl"] = -(torch.clamp(log_ratio, -RATIO_BOUND, RATIO_BOUND, out=scratch).sum() / tokens)
    metrics["ratio_mean"] = mean_around_one(terms.ratio)
    metrics["ratio_correction_strength"] = mean_distance()
    metrics["ratio_max"] = torch.mul(terms.ratio, batch.mask, out=scratch).amax()
    metrics["correction_strength"] = metrics["ratio_correction_strength"]
    if terms.weight is not terms.ratio:
        mean_around_one(terms.weight)
        metrics["correction_strength"] = mean_distance()
    metrics |= {name: value.sum() / tokens for name, value in terms.shares.items()}
    metrics |= {name: mean_around_one(value) for name, value in terms.means.items()}
    return metrics


def suggest(name: str, known: Iterable[str]) -> str:
    """``'nfop': did you mean 'nfpo'? allowed are ...``, for an error about a name that is not known."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    return f"{name!r}: {hint}allowed are {', '.join(sorted(known))}"
