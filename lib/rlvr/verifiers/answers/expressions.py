"""Sums, products, powers and functions: the scalar part of :mod:`rlvr.verifiers.answers.reader`."""

from __future__ import annotations

from fractions import Fraction

from rlvr.verifiers.answers import units
from rlvr.verifiers.answers.cursor import literal, need_scalars
from rlvr.verifiers.answers.marks import MAX_CHAIN, Marks
from rlvr.verifiers.answers.tree import Based, Beyond, Call, Node, Num, Seq, Sym, Unreadable, joined, symbols

_ACCENTS = frozenset("dot ddot hat bar vec tilde overline widehat overrightarrow check".split())
_FACTORS = frozenset(("num", "mixed", "repeating", "sym", "cmd", "func", "(", "[", "{", "style", "upright"))
_ENDS = {("cmd", name) for name in ("rfloor", "rceil", "circ", "prime")}


class Expressions(Marks):
    """Reads scalars. ``atom`` and ``group``, which know the structures as well, are :class:`Reader`'s."""

    def sum(self) -> Node:
        self.enter()
        node = self.product()
        while self.kind() in ("+", "-", "pm", "mp"):
            op = self.take()
            right = self.product()
            need_scalars(node, right)
            if op in ("pm", "mp"):
                node = Call(op, (node, right))
            else:
                node = joined("add", node, right if op == "+" else Call("neg", (right,)))
        self.depth -= 1
        return node

    def product(self) -> Node:
        signs: list[str] = []
        while self.kind() in ("+", "-", "pm", "mp"):
            signs.append(self.take())
        if len(signs) > MAX_CHAIN:
            raise Beyond("too many signs")
        node, steps = self.power(), 0
        while True:
            kind = self.kind()
            if kind in ("*", "/", "mod"):
                steps += kind != "*"
                if steps > MAX_CHAIN:
                    raise Beyond("too many divisions")
                self.take()
                negative = False
                while self.kind() in ("+", "-"):
                    negative ^= self.take() == "-"
                right = self.power()
                need_scalars(node, right)
                right = Call("neg", (right,)) if negative else right
                node = (
                    joined("mul", node, right)
                    if kind == "*"
                    else Call("div" if kind == "/" else "mod", (node, right))
                )
            elif self.starts_factor(node):
                node = self.juxtapose(node)
            else:
                break
        for sign in reversed(signs):
            if isinstance(node, Based) and len(signs) == 1 and sign == "-":
                node = Based("-" + node.digits, node.base)
            elif sign != "+":
                need_scalars(node)
                node = Call(
                    {"-": "neg"}.get(sign, sign), (node,) if sign == "-" else (Num(Fraction(0)), node)
                )
        return node

    def starts_factor(self, before: Node) -> bool:
        kind = self.kind()
        if kind == "upright":
            letter = self.peek()[1]
            known = letter not in "ie" and units.canonical(letter) is not None
            return not (known and (isinstance(before, Num) or not symbols(before)))
        if kind == "|":
            return not self.bars
        if kind in ("num", "mixed"):
            return self.peek(-1)[0] not in ("num", "mixed")
        return kind in _FACTORS and self.peek() not in _ENDS

    def juxtapose(self, node: Node) -> Node:
        start = self.at
        right = self.atom()
        mixed = self.is_mixed(node, right, start)
        if mixed and self.at_percent_or_degree():
            return self.marks(Call("add", (node, right)))
        after = self.at
        right = self.marks(right)
        need_scalars(node, right)
        if mixed and self.at == after:
            return Call("add", (node, right))
        return joined("mul", node, right)

    def is_mixed(self, node: Node, right: Node, start: int) -> bool:
        """An integer literal directly before a proper numeric fraction."""
        if self.tokens[start] != ("cmd", "frac") or not isinstance(node, Num) or node.decimal:
            return False
        top, bottom = right.args if isinstance(right, Call) and right.name == "div" else (None, None)
        if not isinstance(top, Num) or not isinstance(bottom, Num) or not 0 < top.value < bottom.value:
            return False
        return self.peek(start - 1 - self.at)[0] == "num"

    def symbol(self, name: str) -> Node:
        """A letter; a function if a bracket with one number follows, or any bracket behind f, g, h."""
        if self.kind() != "(" or name in ("pi", "e", "i", "oo"):
            return Sym(name)
        if name in ("f", "g", "h"):
            self.take()
            return Call(f"apply:{name}", (self.scalar(")"),))
        if self.kind(1) == "num" and self.kind(2) == ")":
            argument = self.peek(1)[1]
            self.at += 3
            return Sym(f"{name}({argument})")
        return Sym(name)

    def scalar(self, closing: str) -> Node:
        node = self.sum()
        self.take(closing)
        need_scalars(node)
        return node

    def bar(self) -> Node:
        self.bars += 1
        node = self.sum()
        self.take("|")
        self.bars -= 1
        need_scalars(node)
        return Call("abs", (node,))

    def function(self, name: str) -> Node:
        power = base = None
        for _ in range(2):
            if name == "log" and base is None and self.accept("_"):
                base = self.argument()
            elif power is None and self.kind() == "^":
                self.take()
                power = self.group() if self.kind() == "{" else self.argument()
        if name in ("binom", "gcd", "lcm"):
            self.take("(")
            first = self.sum()
            self.take("sep")
            return Call(name, (first, self.scalar(")")))
        if self.kind() in ("(", "[", "{"):
            argument = self.atom()
        else:
            argument = self.factors()
        need_scalars(argument)
        if isinstance(power, Call) and power == Call("neg", (Num(Fraction(1)),)):
            return Call(f"arc{name}", (argument,))
        node = Call(name, (argument,) if base is None else (argument, base))
        return node if power is None else Call("pow", (node, power))

    def factors(self) -> Node:
        """The argument of a function without brackets: factors up to a sign, a slash or another function."""
        negative = self.accept("-")
        node = self.power()
        while self.starts_factor(node) and self.kind() not in ("func", "(", "["):
            node = self.juxtapose(node)
        return Call("neg", (node,)) if negative else node

    def command(self, name: str) -> Node:
        if name in ("frac", "binom"):
            first, second = self.argument(), self.argument()
            need_scalars(first, second)
            if first == Sym("d") and isinstance(second, Call) and second.args[0] == first:
                raise Unreadable("a derivative")
            return Call("div" if name == "frac" else "binom", (first, second))
        if name == "sqrt":
            index: Node | None = None
            if self.accept("["):
                index = self.scalar("]")
            whole = self.kind() in ("(", "num")  # \\sqrt12 is meant to be the root of 12
            inside = self.atom() if whole else self.argument()
            need_scalars(inside)
            return Call("sqrt", (inside,)) if index is None else Call("root", (inside, index))
        if name in _ACCENTS:
            start = self.at
            self.skip_group() if self.kind() == "{" else self.take()
            return Sym(f"{name}({''.join(v for k, v in self.tokens[start : self.at] if k not in '{}')})")
        if name in ("lfloor", "lceil"):
            node = self.sum()
            if self.take("cmd") != name.replace("l", "r", 1):
                raise Unreadable("floor or ceiling without its end")
            need_scalars(node)
            return Call("floor" if name == "lfloor" else "ceil", (node,))
        if name == "emptyset":
            return Seq("set", ())
        if name in ("boxed", "fbox", "framebox", "underline"):
            return self.group()
        raise Unreadable(f"command \\{name}")

    def argument(self) -> Node:
        """A TeX argument: a group, or a single digit, letter or command."""
        kind, value = self.peek()
        if kind == "{":
            return self.group()
        if kind == "num" and len(value) > 1:
            self.tokens[self.at] = ("num", value[1:])
            if not value[0].isdigit():
                raise Unreadable("an argument that starts with a point")
            return literal(value[0])
        if kind in ("num", "sym", "cmd", "upright", "("):
            return self.atom()
        raise Unreadable(f"{value!r} as an argument")
