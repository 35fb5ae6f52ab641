"""What turns a recipe into an objective: checks, masks, aggregation, gradient, metrics, names.

A recipe (see :mod:`rlvr.objectives`) is ``name(batch, *, parameters) -> Terms``: a few lines of tensor
maths on clean inputs. Everything that all objectives share happens here, once.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, update_wrapper
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr.checks import check_binary, check_choice, describe, usable
from rlvr.indicators import as_bits, as_float, select
from rlvr.losses import TokenLoss, aggregation_scale, attach
from rlvr.ratios import RATIO_BOUND, compute_dtype

Metrics = dict[str, Tensor]
#: What a method weighs its tokens with: the reward relative to its group, that without a division by the
#: group's spread, or a critic's advantages.
Advantages = Literal["group", "centred", "critic"]
POSITIVE_LOG_PROB = 1e-4  # rounding of a log-softmax may exceed 0 by this much
ADVANTAGE_LIMIT = 1e6  # times the largest weight, e^60, and 1e6 tokens it still fits float32 [choice]


@dataclass(frozen=True)
class Batch:
    """What a recipe sees: checked, in float32 or float64, constant; not to be written to, since it may be
    the caller's memory. Masked places hold finite numbers without a meaning, the log ratio 0."""

    log_prob: Tensor  # [B, T]
    old_log_prob: Tensor  # [B, T]
    log_ratio: Tensor  # [B, T], 0 where masked
    extent: float  # no log ratio is larger; inf = not known
    advantages: Tensor  # [B, 1] or [B, T]
    valid: Tensor  # [B, T] bool
    partial: Tensor | None  # [B, T] ``valid`` as 0.0 and 1.0; None: known to have no masked token
    lengths: Tensor  # [B, 1] valid tokens
    live_log_prob: Tensor  # the caller's tensor, with its autograd graph
    check: bool
    grad_enabled: bool  # whether the caller records gradients

    @cached_property
    def mask(self) -> Tensor:
        """[B, T] ``valid`` as 0.0 and 1.0."""
        return torch.ones_like(self.log_ratio) if self.partial is None else self.partial

    @property
    def full(self) -> bool:
        """Whether the batch is known to have no masked token."""
        return self.partial is None

    def zero_masked_(self, values: Tensor) -> Tensor:
        """``values`` (finite), in place 0 where masked."""
        return values if self.partial is None else values.mul_(self.partial)

    @cached_property
    def count(self) -> Tensor:
        """Valid tokens."""
        return self.lengths.sum()

    @cached_property
    def _tokens(self) -> Tensor:
        return self.count.clamp_min(1).to(self.log_prob.dtype)

    @cached_property
    def _scratch(self) -> Tensor:
        """One buffer for all metrics: writing to fresh memory costs more than the sum."""
        return torch.empty_like(self.log_ratio)

    def share(self, values: Tensor) -> Tensor:
        """Mean over valid tokens of values [B, T] that are 0 where masked; or of their sum, a scalar."""
        return values.sum() / self._tokens

    def mean(self, values: Tensor) -> Tensor:
        """Mean over valid tokens of values [B, T] that are exactly 1 where masked."""
        return 1 + torch.sub(values, 1, out=self._scratch).sum() / self._tokens

    def mean_distance(self, values: Tensor) -> Tensor:
        """Mean distance from 1 of the same."""
        return torch.sub(values, 1, out=self._scratch).abs_().sum() / self._tokens

    def select(self, log_prob: Tensor, name: str, exists: Tensor | None = None) -> Tensor:
        """A further log-prob argument, checked and cleaned like the others; ``exists`` [B, T, ...] bool says
        where it has values (default: at the valid tokens)."""
        exists = self.valid if exists is None else exists
        if self.check:
            _check_log_prob_shape(name, log_prob, exists)
        dtype = self.log_prob.dtype
        return _existing(name, log_prob.detach().to(dtype), as_bits(exists, dtype), self.check)


@dataclass
class Terms:
    """What a recipe returns; tensors are [B, T], metrics scalars."""

    loss: TokenLoss
    ratio: Tensor  # rho, 1 where masked
    log_ratio: Tensor | None = None  # of rho, 0 where masked; None: that of the batch
    averaged: Tensor | None = None  # [B, 1] tokens that a row's mean is taken over; None: all valid ones
    strength: Tensor | None = None  # mean distance of the weight from 1; None: the weight is the ratio
    metrics: Metrics = field(default_factory=dict)  # the objective's own


Recipe = Callable[..., Terms]
_REGISTRY: dict[str, Objective] = {}


class Objective:
    """A registered recipe; calling it is described in :mod:`rlvr.objectives`.

    ``parameters`` are the recipe's own, with their defaults; ``tensors`` names those that take tensors,
    ``needs`` the tensors without which it is another objective, so that a trainer that has none refuses.
    ``loss_agg_mode`` and ``advantages`` are the method's, for the trainer to follow.
    """

    def __init__(
        self, recipe: Recipe, loss_agg_mode: str, needs: Sequence[str] = (), advantages: Advantages = "group"
    ):
        update_wrapper(self, recipe)
        self.name: str = recipe.__name__
        self.loss_agg_mode = loss_agg_mode
        self.advantages: Advantages = advantages
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
            terms = self._recipe(batch, **parameters)
            scale = aggregation_scale(
                batch.valid,
                self.loss_agg_mode if loss_agg_mode is None else loss_agg_mode,
                batch_num_tokens=batch_num_tokens,
                global_batch_size=global_batch_size,
                loss_scale_factor=loss_scale_factor,
                dp_size=dp_size,
                dtype=batch.log_prob.dtype,
                lengths=batch.lengths,
                averaged=terms.averaged,
            )
            metrics = _summarise(terms, batch)
        value, slope, share = terms.loss
        if reduction == "loss":
            value = (value.sum(-1, keepdim=True) * scale).sum()
        else:
            scale = None
        return (value if slope is None else attach(log_prob, value, slope, share, scale)), metrics


def register(
    loss_agg_mode: str, needs: Sequence[str] = (), advantages: Advantages = "group"
) -> Callable[[Recipe], Objective]:
    """Decorator: a recipe ``name(batch, *, parameters) -> Terms`` becomes the objective ``name``."""

    def add(recipe: Recipe) -> Objective:
        objective = _REGISTRY[recipe.__name__] = Objective(recipe, loss_agg_mode, needs, advantages)
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
            merged[name] = sum(part[name] * part["tokens"] for part in parts if part["tokens"]) / tokens
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
    full = valid.device.type == "cpu" and bool(valid.view(torch.uint8).amin())
    mask = None if full else as_float(valid, dtype)
    if full:
        lengths = torch.full((len(valid), 1), valid.shape[1], dtype=torch.int32)
    else:
        lengths = mask.sum(-1, keepdim=True).to(torch.int32)  # exact: no row has 2^24 tokens
    new, old, log_ratio, reach = _log_probs(log_prob, old_log_prob, valid, dtype, check)
    if not full:
        log_ratio.mul_(mask)
    advantages = _advantages(advantages, valid, lengths, dtype, check)
    return Batch(new, old, log_ratio, reach, advantages, valid, mask, lengths, log_prob, check, grad_enabled)


def _log_probs(
    log_prob: Tensor, old_log_prob: Tensor, valid: Tensor, dtype: torch.dtype, check: bool
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Log-probs and their difference as constants, and its extent; finite where masked.

    A factor 0 silences finite numbers, but NaN * 0 is NaN. So unless every number is in order, masked
    places too, those are set to 0 before any arithmetic.
    """
    if check:
        _check_log_prob_shape("log_prob", log_prob, valid)
        _check_log_prob_shape("old_log_prob", old_log_prob, valid)
    new, old = log_prob.detach().to(dtype), old_log_prob.detach().to(dtype)
    log_ratio = new - old
    reach = extent(log_ratio)
    if reach < torch.inf and new.amax() <= POSITIVE_LOG_PROB and old.amax() <= POSITIVE_LOG_PROB:
        return new, old, log_ratio, reach
    bits = as_bits(valid, dtype)
    new = _existing("log_prob", new, bits, check, finite=True)
    old = _existing("old_log_prob", old, bits, check)
    log_ratio = new - old
    return new, old, log_ratio, extent(log_ratio)


def _existing(name: str, value: Tensor, bits: Tensor, check: bool, finite: bool = False) -> Tensor:
    """``value`` where ``bits`` are set, else 0, checked. ``finite``: -inf is an error too. mu = 0 only
    meets the ratio's bound, pi = 0 has no gradient."""
    value = select(value, bits)
    if check and value.numel():
        lowest, highest = torch.aminmax(value)  # one pass; NaN propagates and fails the comparison
        if not highest <= POSITIVE_LOG_PROB or (finite and lowest == -torch.inf):
            wrong = value[~(value <= POSITIVE_LOG_PROB) | (value == -torch.inf)][0].item()
            raise ValueError(
                f"{name} holds {wrong} at a valid token: allowed are log-probabilities <= 0"
                f"{', finite' if finite else ''}"
            )
    return value


def _advantages(
    advantages: Tensor, valid: Tensor, lengths: Tensor, dtype: torch.dtype, check: bool
) -> Tensor:
    """Advantages [B, 1] or [B, T] as constants, finite where masked."""
    value = advantages.detach().to(dtype).reshape(len(valid), -1)
    look = check or value.device.type == "cpu"
    if look and _largest(value) <= ADVANTAGE_LIMIT:
        return value
    value = select(value, as_bits(valid if value.shape == valid.shape else lengths > 0, dtype))
    if check and not _largest(value) <= ADVANTAGE_LIMIT:
        wrong = value[~(value.abs() <= ADVANTAGE_LIMIT)][0].item()
        raise ValueError(
            f"advantages holds {wrong} at a valid token: allowed are numbers from -{ADVANTAGE_LIMIT:g} to "
            f"{ADVANTAGE_LIMIT:g} (beyond, a large weight would make the loss overflow)"
        )
    return value


def _largest(value: Tensor) -> Tensor:
    return torch.stack(torch.aminmax(value)).abs().amax()  # NaN propagates


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


def extent(log_ratio: Tensor) -> float:
    """Largest magnitude in ``log_ratio`` [B, T]; inf (not known) on an accelerator, where waiting for the
    answer costs more than what it saves."""
    if log_ratio.device.type != "cpu":
        return torch.inf
    lowest, highest = torch.aminmax(log_ratio)
    largest = max(-float(lowest), float(highest))
    return largest if largest == largest else torch.inf


def _summarise(terms: Terms, batch: Batch) -> Metrics:
    log_ratio, reach = terms.log_ratio, torch.inf
    if log_ratio is None:
        log_ratio, reach = batch.log_ratio, batch.extent
    if reach > RATIO_BOUND:
        log_ratio = torch.clamp(log_ratio, -RATIO_BOUND, RATIO_BOUND, out=batch._scratch)
    metrics: Metrics = {"tokens": batch.count, "kl": -batch.share(log_ratio)}
    metrics["ratio_mean"] = batch.mean(terms.ratio)
    metrics["ratio_correction_strength"] = batch.share(batch._scratch.abs_())  # what mean left there
    metrics["ratio_max"] = _largest_ratio(terms.ratio, batch)
    own = terms.strength
    metrics["correction_strength"] = metrics["ratio_correction_strength"] if own is None else own
    return metrics | terms.metrics


def _largest_ratio(ratio: Tensor, batch: Batch) -> Tensor:
    largest = ratio.amax()
    if batch.full or (largest.device.type == "cpu" and largest > 1):  # masked places hold 1
        return largest
    return torch.mul(ratio, batch.mask, out=batch._scratch).amax()


def suggest(name: str, known: Iterable[str]) -> str:
    """``'nfop': did you mean 'nfpo'? allowed are ...``, for an error about a name that is not known."""
    known = list(known)
    lower = {n.lower(): n for n in known}
    near = [lower[n] for n in difflib.get_close_matches(str(name).lower(), lower, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    return f"{name!r}: {hint}allowed are {', '.join(sorted(known))}"
