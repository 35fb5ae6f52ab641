"""Right or wrong where the benchmark states expected values and no comparison of its own.

Where the expected number is a float (printed: has a point or an exponent), numbers agree within
``tolerance``, absolute or relative to it. Where it is whole, a whole number must equal it, and a float may be
``tolerance`` beside it, absolutely and whatever its size: 1e9 + 900 is no rounding of 10**9 [choice]. Beyond
2**53, where a float may be whole and still miss its number, the float's own value must equal it. Strings and
everything else agree exactly.
"""

from __future__ import annotations

import decimal
import math
import re
import sys
from typing import Any

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
_WHOLE = re.compile(r"[+-]?\d+")
_EXACT = 1 << 53  # below, every whole number is a float


def close(value: Any, expected: Any, tolerance: float) -> bool:
    """Whether a returned value is the expected one: tuples count as lists, floats agree at any depth."""
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(expected, tuple):
        expected = list(expected)
    if isinstance(expected, list):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(close(a, b, tolerance) for a, b in zip(value, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(value, dict)
            and value.keys() == expected.keys()
            and all(close(value[key], expected[key], tolerance) for key in expected)
        )
    value, expected = _plain(value), _plain(expected)
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (value, expected))
    if numbers and isinstance(expected, float):
        return value == expected or math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    if numbers and isinstance(value, float) and abs(expected) <= _EXACT:
        return abs(value - expected) <= tolerance
    return bool(value == expected)  # of a float and an int, this is exact


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's: theirs compare with a whole number only after rounding it."""
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def same_output(text: str, expected: str, tolerance: float) -> bool:
    """Whether two outputs agree line by line.

    White space around the whole and around each line does not count, blank lines inside do. Lines that
    differ agree if they have the same number of words and each pair is equal or, as numbers, close.
    """
    lines, wanted = text.strip().split("\n"), expected.strip().split("\n")
    if len(lines) != len(wanted):
        return False
    return all(_same_line(a.strip(), b.strip(), tolerance) for a, b in zip(lines, wanted, strict=True))


def _same_line(line: str, expected: str, tolerance: float) -> bool:
    if line == expected:
        return True
    words, wanted = line.split(), expected.split()
    return len(words) == len(wanted) and all(
        a == b or _same_number(a, b, tolerance) for a, b in zip(words, wanted, strict=True)
    )


def _same_number(word: str, expected: str, tolerance: float) -> bool:
    if _NUMBER.fullmatch(word) is None or _NUMBER.fullmatch(expected) is None:
        return False
    try:
        a, b, bound = decimal.Decimal(word), decimal.Decimal(expected), decimal.Decimal(tolerance)
        if _WHOLE.fullmatch(expected) is None:
            return abs(a - b) <= bound * max(1, abs(b))
        if _WHOLE.fullmatch(word) or abs(b) > _EXACT:
            return a == b
        return abs(a - b) <= bound
    except decimal.DecimalException:
        return False
