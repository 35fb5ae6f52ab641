"""Checks of single arguments: a ValueError names the argument, its value and what is allowed."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_LARGEST = torch.finfo(torch.float32).max


def describe(value: Any, width: int = 200) -> str:
    """A tensor's dtype, shape and device, or a value as short text."""
    if isinstance(value, Tensor):
        where = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{value.dtype} {list(value.shape)}{where}"
    text = " ".join(repr(value).split())
    return text if len(text) <= width else f"{type(value).__name__} {text[: width - 40]}..."


def refuse(name: str, value: Any, allowed: str) -> ValueError:
    """The error to raise for a value that is not allowed."""
    text = describe(value)
    return ValueError(f"{name}={text}: allowed are {allowed}")


def check_number(name: str, value: Any, test: Callable[[float], bool], allowed: str) -> float:
    """``value`` as a float; booleans and one-element arrays are no numbers. Beyond float32 is infinite."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise refuse(name, value, allowed)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if not test(number):
        raise refuse(name, value, allowed)
    return math.copysign(math.inf, number) if abs(number) > _LARGEST else number


def check_integer(name: str, value: Any, lowest: int, allowed: str) -> int:
    """``value`` as an int >= ``lowest``; numpy's integers are, booleans are not."""
    try:
        number = lowest - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = lowest - 1
    if number < lowest:
        raise refuse(name, value, allowed)
    return number


def check_pair(
    name: str, value: Any, test: Callable[[float, float], bool], allowed: str
) -> tuple[float, float]:
    """An ordered pair of numbers (tuple, list, array)."""
    pair = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise refuse(name, value, allowed)
    try:
        low, high = (check_number(name, bound, lambda x: not math.isnan(x), allowed) for bound in pair)
    except ValueError:
        raise refuse(name, value, allowed) from None
    if not test(low, high):
        raise refuse(name, value, allowed)
    return low, high


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """``value`` if it is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise refuse(name, value, ", ".join(repr(c) for c in choices))
    return value


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
