"""Right or wrong where the benchmark states expected values and no comparison of its own.

Numbers with a point or an exponent on either side agree within ``tolerance``, absolute or relative to the
expected one; whole numbers, strings and everything else agree exactly.
"""

from __future__ import annotations

import decimal
import math
import re
from typing import Any

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
_WHOLE = re.compile(r"[+-]?\d+")


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
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (value, expected))
    if numbers and (isinstance(value, float) or isinstance(expected, float)):
        return value == expected or math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    return bool(value == expected)


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
        if _WHOLE.fullmatch(word) and _WHOLE.fullmatch(expected):
            return a == b
        return abs(a - b) <= bound * max(1, abs(b))
    except decimal.DecimalException:
        return False
