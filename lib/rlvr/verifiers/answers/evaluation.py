"""The value of one scalar at one point: exact as long as it is rational, else a number of mpmath's.

All work is bounded: exact numbers by :data:`MAX_BITS` each and :data:`MAX_WORK` together, exponents and
arguments by size. Beyond these a value is approximate (``rough``), or :class:`TooLarge` is raised. A negative
number to a power with an odd denominator is the real root; every other root is the principal one.
"""

from __future__ import annotations

import math
import os
import threading
import zlib
from fractions import Fraction
from typing import Any

from rlvr.verifiers.answers.tree import Call, Node, Num, Sym

MAX_BITS = 400_000  # of one exact number
MAX_WORK = 4_000_000  # bits of all exact numbers of one evaluation
MAX_NODES = 4_000
_EXTENT = 10**12  # largest exponent, and argument of an exponential

lock = threading.Lock()  # mpmath keeps its precision, and constants, in places that threads share
os.register_at_fork(after_in_child=lambda: globals().__setitem__("lock", threading.Lock()))
_context: Any = None


class TooLarge(ArithmeticError):
    """A value beyond the limits."""


class NoValue(ArithmeticError):
    """Undefined at this point: a division by zero, a factorial of -1."""


class Undecidable(ArithmeticError):
    """An operation without a value here (``\\pm``, infinity, ...)."""


def fixed_number(name: str, k: int) -> int:
    return zlib.crc32(f"{name}#{k}".encode())


def mpmath_context(digits: int) -> Any:
    """The module's own context (its precision is a global of mpmath's); call with the lock held."""
    global _context
    if _context is None:
        from mpmath.ctx_mp import MPContext

        _context = MPContext()
        _context.dps = 2_200
        for constant in (_context.pi, _context.e, _context.ln2, _context.ln10):
            _ = +constant  # kept by mpmath, so that nobody computes it again
    _context.dps = digits
    return _context


def inexact(mp: Any, value: Any) -> Any:
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


_PLAIN = frozenset(
    "sin cos tan cot sec csc sinh cosh tanh coth exp arcsin arccos arctan arccot arcsec arccsc arcsinh "
    "arccosh arctanh".split()
)
_MP_NAMES = {f"arc{n}": f"a{n}" for n in "sin cos tan cot sec csc sinh cosh tanh".split()}


class Evaluation:
    """One evaluation at one point. ``rough``: some exact number was too large and was approximated."""

    def __init__(self, point: dict[str, Fraction], mp: Any) -> None:
        self.point = point
        self.mp = mp
        self.work = 0
        self.nodes = 0
        self.bits = 0  # of the largest exact number
        self.rough = False

    def value(self, node: Node) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise TooLarge("too many operations")
        if isinstance(node, Num):
            return node.value
        if isinstance(node, Sym):
            return self.symbol(node.name)
        if not isinstance(node, Call):
            raise Undecidable(type(node).__name__)
        arguments = [self.value(part) for part in node.args]
        try:
            return self.call(node.name, arguments)
        except ZeroDivisionError:
            raise NoValue(node.name) from None
        except OverflowError:
            raise TooLarge(node.name) from None

    def symbol(self, name: str) -> Any:
        if name in self.point:
            return self.point[name]
        if name == "oo":
            raise Undecidable("infinity")
        mp = self.need_mp()
        return mp.mpc(0, 1) if name == "i" else +mp.pi if name == "pi" else +mp.e

    def need_mp(self) -> Any:
        if self.mp is None:
            raise Undecidable("not rational")
        return self.mp

    def check(self, value: Any) -> Any:
        """An exact result within the limits, or an approximation of it."""
        if isinstance(value, Fraction):
            bits = value.numerator.bit_length() + value.denominator.bit_length()
            self.work += bits
            self.bits = max(self.bits, bits)
            if self.work > MAX_WORK:
                raise TooLarge("too much exact arithmetic")
            if bits > MAX_BITS:
                self.rough = True
                return inexact(self.need_mp(), value)
        return value

    def call(self, name: str, arguments: list[Any]) -> Any:
        rational = all(isinstance(x, Fraction) for x in arguments)
        first = arguments[0]
        if name == "neg":
            return -first
        if name in ("add", "mul", "div"):
            if not rational:
                arguments = [inexact(self.need_mp(), x) for x in arguments]
            total = arguments[0]
            for other in arguments[1:]:
                total = total + other if name == "add" else total * other if name == "mul" else total / other
                total = self.check(total)
            return total
        if name == "pow":
            return self.power(*arguments)
        if name == "percent":
            return first / 100
        if name == "sqrt":
            return self.power(first, Fraction(1, 2))
        if name == "root":
            if not isinstance(arguments[1], Fraction) or arguments[1] == 0:
                raise Undecidable("root")
            return self.power(first, 1 / arguments[1])
        if name == "abs":
            return abs(first)
        if name in ("floor", "ceil"):
            return self.whole(first, name)
        if name == "factorial":
            return self.factorial(first)
        if name in ("binom", "mod", "gcd", "lcm"):
            return self.integers(name, *arguments)
        return self.transcendental(name, [inexact(self.need_mp(), x) for x in arguments])

    def power(self, base: Any, exponent: Any) -> Any:
        if isinstance(base, Fraction) and isinstance(exponent, Fraction):
            if base == 0:
                if exponent <= 0:
                    raise NoValue("0 to a power that is not positive") if exponent else NoValue("0^0")
                return Fraction(0)
            if exponent.denominator == 1:
                count = abs(exponent.numerator)
                bits = max(base.numerator.bit_length(), base.denominator.bit_length())
                if abs(base) == 1 or (count <= MAX_BITS and count * bits <= MAX_BITS):
                    return self.check(
                        base ** (exponent.numerator if abs(base) != 1 else exponent.numerator % 2)
                    )
                self.rough = True
            elif exponent.denominator <= 64:
                root = _exact_root(base, exponent.denominator)
                if root is not None:
                    return self.power(root, Fraction(exponent.numerator))
        mp = self.need_mp()
        b, x = inexact(mp, base), inexact(mp, exponent)
        if abs(x) > _EXTENT or (b != 0 and abs(x) * (abs(mp.mag(b)) + 1) > _EXTENT):
            raise TooLarge("power")
        if b == 0:
            if mp.re(x) <= 0:
                raise NoValue("0 to a power that is not positive")
            return Fraction(0)
        odd = isinstance(exponent, Fraction) and exponent.denominator % 2 == 1
        if odd and exponent.denominator > 1 and mp.im(b) == 0 and mp.re(b) < 0:
            return (-1) ** (exponent.numerator % 2) * mp.power(-mp.re(b), x)  # the real root
        return mp.power(b, x)

    def whole(self, value: Any, name: str) -> Any:
        if isinstance(value, Fraction):
            return Fraction(math.floor(value) if name == "floor" else math.ceil(value))
        mp = self.need_mp()
        if mp.im(value) != 0 or mp.mag(value) > 200:
            raise TooLarge(name)
        nearest = mp.nint(value)
        if abs(value - nearest) < mp.mpf(10) ** -25:
            return Fraction(int(nearest))
        return Fraction(int(mp.floor(value) if name == "floor" else mp.ceil(value)))

    def factorial(self, value: Any) -> Any:
        if isinstance(value, Fraction) and value.denominator == 1:
            if value < 0:
                raise NoValue("factorial of a negative number")
            if value <= 20_000:
                return self.check(Fraction(math.factorial(int(value))))
            self.rough = True
        mp = self.need_mp()
        value = inexact(mp, value)
        if abs(value) > 10**9:
            raise TooLarge("factorial")
        return mp.gamma(value + 1)

    def integers(self, name: str, a: Any, b: Any) -> Any:
        if not (isinstance(a, Fraction) and isinstance(b, Fraction) and a.denominator == b.denominator == 1):
            if name != "binom":
                raise Undecidable(name)
            mp = self.need_mp()
            a, b = inexact(mp, a), inexact(mp, b)
            if max(abs(a), abs(b)) > 10**6:
                raise TooLarge(name)
            return mp.binomial(a, b)
        n, k = int(a), int(b)
        if name == "mod":
            return Fraction(n % k)
        if name in ("gcd", "lcm"):
            return Fraction(math.gcd(n, k) if name == "gcd" else math.lcm(n, k))
        if n < 0:
            raise NoValue("binomial of a negative number")
        if min(k, n - k) > 5_000 or n > 10**9:
            raise TooLarge("binomial")
        return self.check(Fraction(math.comb(n, k) if k >= 0 else 0))

    def transcendental(self, name: str, arguments: list[Any]) -> Any:
        mp, x = self.mp, arguments[0]
        if mp.mag(x) > (40 if name in ("exp", "sinh", "cosh") else 3000):
            raise TooLarge(name)
        if name in _PLAIN:
            return getattr(mp, _MP_NAMES.get(name, name))(x)
        if name == "degree":
            return x * mp.pi / 180
        if name in ("ln", "lg", "log"):
            if x == 0:
                raise NoValue("log of 0")
            if name == "log" and len(arguments) == 2:
                if arguments[1] in (0, 1):
                    raise NoValue("log to that base")
                return mp.ln(x) / mp.ln(arguments[1])
            return mp.ln(x) / mp.ln(10) if name == "lg" else mp.ln(x)
        if name.startswith("apply:"):  # an unknown function: any fixed one will do
            if mp.mag(x) > 60:
                raise TooLarge(name)
            return (
                mp.sin(x * (1 + fixed_number(name, 1) % 97) / 31 + fixed_number(name, 2) % 89)
                + 2
                + fixed_number(name, 3) % 7
            )
        raise Undecidable(name)


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """The real root if it is rational and unique or positive."""
    if value < 0:
        root = _exact_root(-value, degree) if degree % 2 else None
        return None if root is None else -root
    parts = []
    for part in (value.numerator, value.denominator):
        if part.bit_length() > 20_000:
            return None
        guess = math.isqrt(part) if degree == 2 else _integer_root(part, degree)
        if guess**degree != part:
            return None
        parts.append(guess)
    return Fraction(*parts)


def _integer_root(value: int, degree: int) -> int:
    """floor(value ** (1 / degree)) by Newton's method."""
    if value < 2:
        return value
    guess = 1 << -(-value.bit_length() // degree)
    while True:
        following = ((degree - 1) * guess + value // guess ** (degree - 1)) // degree
        if following >= guess:
            return guess
        guess = following
