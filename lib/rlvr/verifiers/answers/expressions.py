"""Sums, products, powers and functions: the scalar part of :mod:`rlvr.verifiers.answers.reader`."""

from __future__ import annotations

from fractions import Fraction

from rlvr.verifiers.answers.cursor import Cursor, literal, need_scalars
from rlvr.verifiers.answers.tree import Based, Beyond, Call, Node, Num, Seq, Sym, Unreadable, joined

MAX_CHAIN = 40  # operations of one product, signs before it, marks behind a factor
_ACCENTS = frozenset("dot ddot hat bar vec tilde overline underline widehat overrightarrow check".split())
_FACTORS = frozenset(("num", "mixed", "repeating", "sym", "cmd", "func", "(", "[", "{", "style", "upright"))
_ENDS = {("cmd", name) for name in ("rfloor", "rceil", "circ", "prime")}


class Expressions(Cursor):
    """Reads scalars. ``atom`` and ``group``, which know the structures as well, are :class:`Reader`'s."""

    def atom(self) -> Node:
        raise NotImplementedError

    def group(self) -> Node:
        raise NotImplementedError

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
            return not isinstance(before, Num) or self.peek()[1] in "ie"
        if kind == "|":
            return not self.bars
        if kind in ("num", "mixed"):
            return self.peek(-1)[0] not in ("num", "mixed")
        return kind in _FACTORS and self.peek() not in _ENDS

    def juxtapose(self, node: Node) -> Node:
        start = self.at
        right = self.power()
        need_scalars(node, right)
        if self.tokens[start] == ("cmd", "frac") and isinstance(node, Num) and not node.decimal:
            top, bottom = right.args if isinstance(right, Call) and right.name == "div" else (None, None)
            if isinstance(top, Num) and isinstance(bottom, Num) and 0 < top.value < bottom.value:
                if self.peek(start - 1 - self.at)[0] == "num":
                    return Call("add", (node, right))
        return joined("mul", node, right)

    def power(self) -> Node:
        node, steps = self.atom(), 0
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
        if not label:
            raise Unreadable("empty subscript")
        if isinstance(node, Sym):
            return Sym(f"{node.name}_{label}")
        if isinstance(node, Num) and label.isdigit() and 2 <= int(label[:3]) <= 36:
            return Based(digits, int(label))
        raise Unreadable("subscript behind an expression")

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
        if name in ("boxed", "fbox"):
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
