"""What a recipe sees of a batch: checked, finite where masked, in one dtype, constant."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rlvr.checks import describe
from rlvr.indicators import as_bits, as_float, select
from rlvr.ratios import compute_dtype
from rlvr.tensor_checks import check_binary, usable

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


def prepare(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    check: bool,
    grad_enabled: bool,
) -> Batch:
    """The batch of a call of an objective, whose arguments these are.

    Raises:
        ValueError: with ``check``, tensors of other shapes, or values that are not allowed at valid tokens.
    """
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
