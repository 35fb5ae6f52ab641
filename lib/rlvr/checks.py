"""Checks of single arguments: a ValueError names the argument, its value and what is allowed.

Those of tensors are in :mod:`rlvr.tensor_checks`; this module works without torch.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

_LARGEST = float.fromhex("0x1.fffffep+127")  # of float32


def describe(value: Any, width: int = 200) -> str:
    """A tensor's dtype, shape and device, or a value as short text."""
    if hasattr(value, "dtype") and hasattr(value, "layout"):  # torch's
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
