"""A list of tokens with a place in it, and the literals."""

from __future__ import annotations

from fractions import Fraction

from rlvr.verifiers.answers.notation import Token
from rlvr.verifiers.answers.tree import SCALAR, Beyond, Node, Num, Unreadable

MAX_DEPTH = 100  # three for every bracket, group or fraction


def literal(text: str) -> Num:
    """``12``, ``0.5``, ``4.5e33`` as an exact number. Raises Unreadable if it has too many digits."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > 2000 or len(exponent) > 5:
        raise Beyond("a number with too many digits")
    value = Fraction(mantissa + "0" if mantissa.endswith(".") else mantissa)
    if exponent:
        value *= Fraction(10) ** int(exponent)
    return Num(value, decimal="." in mantissa[:-1] or bool(exponent), scientific=bool(exponent))


def repeating(text: str) -> Num:
    """``0.1\\overline{6}`` as an exact number."""
    digits, _, rest = text.partition("\\")
    whole, _, start = digits.partition(".")
    period = "".join(c for c in rest if c.isdigit())
    before = int((whole or "0") + start)
    all_digits = int((whole or "0") + start + period)
    return Num(Fraction(all_digits - before, (10 ** len(period) - 1) * 10 ** len(start)))


def need_scalars(*nodes: Node) -> None:
    for node in nodes:
        if not isinstance(node, SCALAR):
            raise Unreadable(f"{type(node).__name__.lower()} inside an expression")


def plain_words(text: str) -> str:
    """Words for comparison: no punctuation or article; lower case unless a single letter."""
    letters = "".join(c if c.isalnum() else " " for c in text).split()
    if letters and letters[0].lower() in ("a", "an", "the") and len(letters) > 1:
        letters = letters[1:]
    return letters[0] if letters and len(letters) == 1 and len(letters[0]) == 1 else " ".join(letters).lower()


class Cursor:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0
        self.currency: str | None = None

    def peek(self, ahead: int = 0) -> Token:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else ("end", "")

    def kind(self, ahead: int = 0) -> str:
        return self.peek(ahead)[0]

    def take(self, kind: str | None = None) -> str:
        token = self.peek()
        if token[0] == "end" or (kind is not None and token[0] != kind):
            raise Unreadable(f"expected {kind or 'more'}, found {token[1]!r}")
        self.at += 1
        return token[1]

    def accept(self, kind: str) -> bool:
        if self.kind() == kind:
            self.at += 1
            return True
        return False

    def skip_group(self) -> None:
        depth = 0
        while True:
            kind = self.kind()
            self.take()
            depth += (kind == "{") - (kind == "}")
            if not depth:
                return

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Beyond("nested too deeply")
