"""Checks of tensors that are arguments: a ValueError names the argument, what it is and what is allowed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvr.checks import describe


def usable(value: Tensor, like: Tensor) -> bool:
    """Whether ``value`` is a dense tensor with values, on the device of ``like``."""
    return value.layout == torch.strided and value.device == like.device and value.device.type != "meta"


def check_binary(name: str, mask: Tensor) -> None:
    """ValueError unless ``mask`` holds 0 and 1 only."""
    if mask.dtype != torch.bool and not torch.equal(mask.bool().to(mask.dtype), mask):
        other = mask[(mask != 0) & (mask != 1)][0].item()
        raise ValueError(f"{name} holds {other}: allowed are 0 and 1")


def check_mask(name: str, mask: Any, like: Tensor | None = None) -> None:
    """ValueError unless ``mask`` is a dense tensor [B, T] of 0 and 1, on the device and of the shape of
    ``like`` (if given)."""
    shape = "[B, T]" if like is None else str(list(like.shape))
    if (
        not isinstance(mask, Tensor)
        or mask.ndim != 2
        or mask.is_complex()
        or not usable(mask, mask if like is None else like)
        or (like is not None and mask.shape != like.shape)
    ):
        raise ValueError(f"{name} is {describe(mask)}: allowed is a dense tensor {shape} of 0 and 1")
    check_binary(name, mask)


def check_floating(name: str, value: Any, ndim: int = 2, like: Tensor | None = None) -> None:
    """ValueError unless ``value`` is a dense floating tensor of ``ndim`` dimensions, or of the shape and on
    the device of ``like``."""
    shape = {1: "[B]", 2: "[B, T]"}.get(ndim, "[B, T, K-1]")
    shape = shape if like is None else str(list(like.shape))
    if (
        not isinstance(value, Tensor)
        or not value.is_floating_point()
        or not usable(value, value if like is None else like)
        or (value.ndim != ndim if like is None else value.shape != like.shape)
    ):
        raise ValueError(f"{name} is {describe(value)}: allowed is a dense floating tensor {shape}")
