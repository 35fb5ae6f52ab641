"""Units and words behind a value."""

from __future__ import annotations

from fractions import Fraction

from rlvr.verifiers.answers import numeric, units, words
from rlvr.verifiers.answers.cursor import literal, need_scalars, plain_words
from rlvr.verifiers.answers.expressions import Expressions
from rlvr.verifiers.answers.tree import Call, Node, Num, Quantity, Text, Unreadable


class Quantities(Expressions):
    def unit(self, node: Node) -> Node:
        """A value with the words behind it (:mod:`rlvr.verifiers.answers.words`); text with more text."""
        phrase = ""
        while self.kind() in ("text", "unit", "upright", "cur") or (phrase and self.at_unit_operator()):
            glue = self.take() if self.kind() in ("*", "/") else ""
            word = self.take().strip()
            if isinstance(node, Text):
                node = Text(plain_words(f"{node.words} {word}"))
                continue
            if self.kind() == "^" and self.kind(1) in ("num", "{"):
                self.take()
                power = numeric.exact(self.group() if self.kind() == "{" else literal(self.take()))
                if power is None or power.denominator != 1:
                    raise Unreadable("unit with a power that is no whole number")
                word = f"{word}^{power}"
            phrase += (glue or " ") + word
        if isinstance(node, Text) or not (phrase or self.currency):
            return node
        found = words.role(phrase.strip(), node == Num(Fraction(1)))
        if found is None or (self.currency and units.canonical(found[1]) not in (None, self.currency)):
            raise Unreadable(f"words behind a value: {phrase.strip()!r}")
        factor, unit = found
        if factor != 1:
            need_scalars(node)
            node = Call("mul", (node, Num(Fraction(factor))))
        unit = self.currency or unit
        return Quantity(node, unit) if unit else node

    def at_unit_operator(self) -> bool:
        return self.kind() in ("*", "/") and self.kind(1) in ("text", "unit", "upright")
