"""Marks behind a factor: powers, factorials, percent and degree signs, primes, subscripts."""

from __future__ import annotations

from rlvr.verifiers.answers.cursor import Cursor, literal, need_scalars
from rlvr.verifiers.answers.tree import Based, Beyond, Call, Node, Num, Sym, Unreadable
from rlvr.verifiers.answers.words import NUMERALS

MAX_CHAIN = 40  # operations of one product, signs before it, marks behind a factor
_OF_THE_WHOLE = {("%", "%"), ("cmd", "circ"), ("unit", "degree"), ("unit", "degrees"), ("unit", "deg")}


class Marks(Cursor):
    """Reads what stands behind an atom. ``atom``, ``group`` and ``argument`` are the readers' above it."""

    def atom(self) -> Node:
        raise NotImplementedError

    def group(self) -> Node:
        raise NotImplementedError

    def argument(self) -> Node:
        raise NotImplementedError

    def at_percent_or_degree(self) -> bool:
        """Whether a mark follows that belongs to a mixed number as a whole: ``2\\frac12\\%``."""
        if self.kind() == "^":
            return self.peek(1) == ("cmd", "circ") or [self.peek(k) for k in (1, 2)] == [
                ("{", "{"),
                ("cmd", "circ"),
            ]
        return self.peek() in _OF_THE_WHOLE

    def power(self) -> Node:
        return self.marks(self.atom())

    def marks(self, node: Node) -> Node:
        steps = 0
        while True:
            kind = self.kind()
            steps += 1
            if steps > MAX_CHAIN:
                raise Beyond("too many marks behind a factor")
            if kind == "^":
                self.take()
                node = self.exponent(node)
            elif kind == "!":
                self.take()
                if self.kind() == "!":
                    raise Unreadable("double factorial")
                need_scalars(node)
                node = Call("factorial", (node,))
            elif kind == "%":
                self.take()
                need_scalars(node)
                node = Call("percent", (node,))
            elif kind == "'":
                node = self.prime(node)
            elif kind == "_":
                node = self.subscript(node)
            elif kind == "cmd" and self.peek()[1] == "circ":
                self.take()
                node = Call("degree", (node,))
            elif kind == "unit" and self.peek()[1] in ("degree", "degrees", "deg"):
                self.take()
                node = Call("degree", (node,))
            else:
                return node

    def exponent(self, base: Node) -> Node:
        if self.peek() == ("cmd", "circ"):
            self.take()
            return self.degree(base)
        if self.peek() == ("cmd", "prime"):
            return self.prime(base)
        if self.kind() == "{":
            inner = [self.peek(k) for k in (1, 2)]
            if inner[1][0] == "}" and inner[0] in (("cmd", "circ"), ("sym", "o")):
                self.at += 3
                return self.degree(base)
            if inner[0] in (("cmd", "prime"), ("'", "'")):
                self.take()
                node = self.prime(base)
                self.take("}")
                return node
            if inner[0][0] == "text" and inner[0][1].strip() in ("th", "st", "nd", "rd"):
                self.at += 3
                return base
            power = self.group()
        else:
            sign = self.take() if self.kind() in ("-", "+") else "+"
            power = literal(self.take()) if self.kind() == "num" else self.argument()
            power = Call("neg", (power,)) if sign == "-" else power
        need_scalars(base, power)
        return Call("pow", (base, power))

    def degree(self, base: Node) -> Node:
        """An angle, or a temperature if C or F follows at the end."""
        if self.peek()[1] in ("C", "F") and self.kind(1) in ("end", "sep", "rel"):
            self.currency = "celsius" if self.take() == "C" else "fahrenheit"
            return base
        need_scalars(base)
        return Call("degree", (base,))

    def prime(self, node: Node) -> Node:
        count = 0
        while self.kind() == "'" or self.peek() == ("cmd", "prime"):
            self.take()
            count += 1
        if isinstance(node, Num) and count <= 2:
            self.currency = "arcminute" if count == 1 else "arcsecond"
            return node
        if not isinstance(node, Sym):
            raise Unreadable("prime behind an expression")
        return Sym(node.name + "'" * count)

    def subscript(self, node: Node) -> Node:
        digits = self.peek(-1)[1]
        self.take("_")
        if self.kind() == "{":
            start = self.at
            self.skip_group()
            inside = self.tokens[start + 1 : self.at - 1]
        else:
            inside = [self.peek()]
            self.take()
        label = "".join(value.strip() for _, value in inside)
        if isinstance(node, Num) and label.lower() in NUMERALS:
            label = str(NUMERALS.index(label.lower()))
        if not label:
            raise Unreadable("empty subscript")
        if isinstance(node, Sym):
            return Sym(f"{node.name}_{label}")
        if isinstance(node, Num) and label.isdigit() and 2 <= int(label[:3]) <= 36:
            return Based(digits, int(label))
        raise Unreadable("subscript behind an expression")
