"""0/1 in floating point, and selection by bits: what masks cost on a CPU.

torch's CPU kernels for bool results, ``where`` and ``masked_fill`` are not vectorised: 4 to 10 times the
time of a multiplication.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}


def indicator(compare: Callable, a: Tensor, b: Tensor | float) -> Tensor:
    """``compare(a, b)`` (torch.gt, le, eq, ...) as 0 and 1 in ``a``'s dtype; ``a`` has the result's shape."""
    return compare(a, b, out=torch.empty_like(a))


def as_float(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return mask.view(torch.uint8).to(dtype)


def as_bits(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers as wide as ``dtype``: all bits set where ``mask`` is True."""
    return mask.view(torch.uint8).to(_INTEGER[dtype]).neg_()


def select(value: Tensor, bits: Tensor) -> Tensor:
    """``value`` where ``bits`` are set, 0 elsewhere, whatever stands there (NaN too)."""
    return (value.view(bits.dtype) & bits).view(value.dtype)
