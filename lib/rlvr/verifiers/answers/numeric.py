"""Values of scalars: rational arithmetic is exact, everything else is computed to many digits.

Two scalars are equal if, at every point tried, their difference is exactly zero or vanishes as the number of
digits grows. Nothing is rounded first: ``1/2004!`` and ``1/2006!`` differ by a number that does not vanish.
Letters take fixed pseudo-random values, so that a verdict repeats:

- positive rational numbers; negative ones as well if an absolute value is written;
- whole numbers if a factorial, a binomial or a power of a negative number holds a letter, or a floor or
  ceiling that a whole letter does not make superfluous (``\\lfloor n/2 \\rfloor``); for
  ``\\lfloor x \\rfloor`` numbers of both signs that are not whole;
- points where the gold answer has no real value are left out, unless ``i`` is written or none is left.

The limits are those of :mod:`rlvr.verifiers.answers.evaluation`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from rlvr.verifiers.answers import evaluation
from rlvr.verifiers.answers.evaluation import (
    Evaluation,
    NoValue,
    TooLarge,
    Undecidable,
    fixed_number,
    inexact,
    mpmath_context,
)
from rlvr.verifiers.answers.tree import CONSTANTS, Call, Node, Num, Sym, symbols, walk

_DIGITS = (40, 100)
_MORE_DIGITS = 2_000
_SCALES = (Fraction(1), Fraction(1, 4), Fraction(6), Fraction(50), Fraction(1, 30), Fraction(300))
_WHOLE = (5, 7, 9, 12, 15, 20, 25, 30, 40, 50, 60, 80)
_WIDE = (5, 7, 9, 300, 12, 15, 20, 5_000, 25, 30, 40, 10**5, 50, 60, 80, 10**7)
_WHOLE_ONLY = frozenset(("mod", "factorial", "binom"))
_ENOUGH = 4


def exact(node: Node) -> Fraction | None:
    """The value of a scalar if only rational arithmetic is needed, else None."""
    try:
        value = Evaluation({}, None).value(node)
    except (ArithmeticError, RecursionError):
        return None
    return value if isinstance(value, Fraction) else None


def number(node: Node) -> Fraction | None:
    """The real value of a scalar without letters, to 40 digits unless it is rational; None if there is
    none."""
    try:
        with evaluation.lock:
            mp = mpmath_context(40)
            value = Evaluation({}, mp).value(node)
            if isinstance(value, Fraction):
                return value
            if abs(mp.im(value)) > abs(value) * mp.mpf(10) ** -30:
                return None
            return Fraction(mp.nstr(mp.re(value), 40))
    except (ArithmeticError, ValueError, RecursionError):
        return None


def has_decimal(node: Node) -> bool:
    return any(isinstance(part, Num) and part.decimal for part in walk(node))


def equal(*, gold: Node, answer: Node, tolerance: Fraction | None = None) -> bool | None:
    """Whether two scalars are equal; with ``tolerance``, up to that share of the gold value.

    None if it cannot be decided (an operation without a value; two numbers so large that only leading digits
    are known, and these agree). Raises TooLarge if the answer has no value within the limits.
    """
    if gold == answer:
        return True
    names = sorted(symbols(gold) | symbols(answer))
    if names:
        points = _points(names, gold, answer)
    else:
        values = exact(gold), exact(answer)
        if values[0] is not None and values[1] is not None:
            off = abs(values[0] - values[1])
            return off == 0 or (tolerance is not None and off <= tolerance * abs(values[0]))
        points = [{}]
    complex_allowed = any(part == Sym("i") for node in (gold, answer) for part in walk(node))
    with evaluation.lock:
        seen, unreal, approximate = 0, [], False
        for point in points:
            result = _at(point, gold, answer, tolerance, complex_allowed)
            if result is None:
                continue
            same, real, rough = result
            if not real and names:
                unreal.append((same, rough))
                continue
            if not same:
                return False
            approximate |= rough
            seen += 1
            if seen >= _ENOUGH and len(points) <= len(_SCALES) * 2:
                break
        if seen < 2 and names:
            if not unreal:
                return None
            if not all(same for same, _ in unreal):
                return False
            approximate |= any(rough for _, rough in unreal)
        elif not seen:
            return None
        return None if approximate else True


def ratio_is_constant(*, gold: Node, answer: Node, positive: bool) -> bool | None:
    """Whether ``gold = c * answer`` with one constant c != 0 (> 0 if ``positive``) for all letters."""
    names = sorted(symbols(gold) | symbols(answer))
    if not names:
        return None
    with evaluation.lock:
        first, ratios = None, 0
        for point in _points(names, gold, answer):
            mp = mpmath_context(60)
            try:
                above = Evaluation(point, mp).value(gold)
                below = Evaluation(point, mp).value(answer)
            except (ArithmeticError, ValueError):
                continue
            if below == 0 or above == 0:
                if below == 0 and above == 0:
                    continue
                return False
            if not isinstance(above, Fraction) or not isinstance(below, Fraction):
                above, below = inexact(mp, above), inexact(mp, below)
            ratio = above / below
            if first is None:
                first = ratio
                if positive and not (mp.im(inexact(mp, ratio)) == 0 and mp.re(inexact(mp, ratio)) > 0):
                    return False
            elif (
                ratio != first
                and abs(inexact(mp, ratio) - inexact(mp, first)) > abs(inexact(mp, first)) * mp.mpf(10) ** -40
            ):
                return False
            ratios += 1
        return True if ratios >= 3 else None


def zeros_differ(*, gold: Node, answer: Node) -> bool:
    """Whether a point is found where ``gold`` is zero and ``answer`` is not (it may exist if none is found).

    Tried are points on which all letters but one have fixed values, for letters in which ``gold`` is linear.
    """
    names = sorted(symbols(gold) | symbols(answer))
    for name in sorted(symbols(gold)):
        for point in _points(names, gold, answer)[:3]:
            with evaluation.lock:
                if _zero_differs(name, point, gold, answer):
                    return True
    return False


def _zero_differs(name: str, point: dict[str, Fraction], gold: Node, answer: Node) -> bool:
    mp = mpmath_context(60)
    small = mp.mpf(10) ** -35
    try:
        values = [Evaluation(point | {name: Fraction(k)}, mp).value(gold) for k in (0, 1, 2)]
        if not all(isinstance(x, Fraction) for x in values):
            values = [inexact(mp, x) for x in values]
        slope = values[1] - values[0]
        bend, size = abs(values[2] - values[0] - 2 * slope), sum(abs(x) for x in values)
        if slope == 0 or inexact(mp, bend) > small * inexact(mp, size):
            return False
        root = -values[0] / slope
        value = Evaluation(point | {name: root}, mp).value(answer)
        nearby = Evaluation(point, mp).value(answer)
        return bool(abs(inexact(mp, value)) > small * (1 + abs(inexact(mp, nearby))))
    except (ArithmeticError, ValueError):
        return False


def _at(
    point: dict[str, Fraction], gold: Node, answer: Node, tolerance: Fraction | None, complex_allowed: bool
) -> tuple[bool, bool, bool] | None:
    """(same, the gold value is real, only leading digits known) at one point; None if gold has no value."""
    differences: list[Any] = []
    digits = _DIGITS[0]
    for last in (False, True):
        mp = mpmath_context(digits)
        left, right = Evaluation(point, mp), Evaluation(point, mp)
        try:
            g = left.value(gold)
        except (NoValue, ValueError):
            return None
        except TooLarge:
            raise Undecidable("the gold answer is too large") from None
        try:
            a = right.value(answer)
        except (NoValue, ValueError):
            return False, True, False
        if isinstance(g, Fraction) and isinstance(a, Fraction):
            close = g == a or (tolerance is not None and abs(g - a) <= tolerance * abs(g))
            return close, True, False
        g, a = inexact(mp, g), inexact(mp, a)
        real = complex_allowed or abs(mp.im(g)) <= abs(g) * mp.mpf(10) ** -20
        difference, size = abs(g - a), max(abs(g), abs(a))
        if tolerance is not None and difference <= abs(g) * tolerance.numerator / tolerance.denominator:
            return True, real, False
        bits = max(left.bits, right.bits)
        plain = bits < 200 or last
        if plain and difference > size * mp.mpf(10) ** -10 and difference > mp.mpf(10) ** -15:
            return False, real, False
        differences.append(difference)
        if not last:  # enough digits to tell an exact part from its neighbours
            digits = _DIGITS[1] + min(_MORE_DIGITS, bits // 3)
    rough = left.rough or right.rough or bits // 3 > _MORE_DIGITS
    if difference <= size * mp.mpf(10) ** (20 - digits):
        return True, real, rough
    return differences[1] <= differences[0] * mp.mpf(10) ** -30, real, rough


def _points(names: list[str], *nodes: Node) -> list[dict[str, Fraction]]:
    signed = whole = real = bounded = False
    for node in nodes:
        for part in walk(node):
            if not isinstance(part, Call):
                continue
            if part.name == "abs":
                signed = True
            elif part.name in ("floor", "ceil") and symbols(part):
                whole, real = True, real or _is_whole_anyway(part.args[0])
            elif part.name == "mod" and symbols(part):
                whole = True
            elif part.name in ("factorial", "binom") and symbols(part):
                whole = bounded = True
            elif part.name == "pow" and symbols(part.args[1]):
                bounded = True
                base = exact(part.args[0])
                whole |= not symbols(part.args[0]) and base is not None and base < 0
    real &= not any(isinstance(x, Call) and x.name in _WHOLE_ONLY for node in nodes for x in walk(node))
    if whole and not real:
        tops = _WHOLE if bounded else _WIDE
        return [{n: Fraction(1 + fixed_number(n, k) % top) for n in names} for k, top in enumerate(tops)]
    signed |= real
    points = []
    for k, scale in enumerate(_SCALES):
        values = {n: scale * (Fraction(1, 2) + Fraction(fixed_number(n, k), 2**32)) for n in names}
        points.append(values)
        if signed:
            points.append({n: v * (1 if fixed_number(n, k + 100) % 2 else -1) for n, v in values.items()})
            points.append({n: -v for n, v in values.items()})
    return points


def _is_whole_anyway(node: Node) -> bool:
    """Whether a scalar is a letter, or a sum of whole multiples of letters: its floor says that the letters
    are no whole numbers."""
    if isinstance(node, Num):
        return True
    if isinstance(node, Sym):
        return node.name not in CONSTANTS
    return (
        isinstance(node, Call)
        and node.name in ("add", "neg", "mul")
        and all((isinstance(x, Num) and x.value.denominator == 1) or _is_whole_anyway(x) for x in node.args)
    )
