"""Tokens to a tree (:mod:`rlvr.verifiers.answers.tree`): a recursive-descent reader of answers.

It covers what answers are made of and refuses the rest (:class:`Unreadable`): a text is read to its last
token or not at all, so that no part of an answer is dropped in silence. Choices, where the notation is
ambiguous:

- an integer directly before a proper numeric fraction is a mixed number (``2\\frac{1}{3}``, ``1 1/2``);
- ``^`` takes all digits behind it (``2^10``); ``\\frac12`` takes one digit each, as TeX does,
  ``\\sqrt12`` does not;
- ``1/2x`` is ``(1/2) x``; ``\\sin 2x`` takes the product behind it, ``\\sin x/2`` is ``(\\sin x)/2``;
- ``\\log`` without a base is natural; letters side by side are a product;
- a letter before ``(number)``, and ``f``, ``g``, ``h`` before any bracket, are functions, as is any letter in
  ``p(x) =`` at the start; every other letter before a bracket is a factor;
- ``(a,b)`` is a tuple (and may stand for an open interval), ``[a,b]``, ``(a,b]`` and ``[a,b)`` are intervals,
  ``[a,b,c]`` is a tuple, ``\\{..\\}`` is a set, a bare comma list is a list.
"""

from __future__ import annotations

from fractions import Fraction

from rlvr.verifiers.answers.cursor import literal, need_scalars, plain_words, repeating
from rlvr.verifiers.answers.notation import Token
from rlvr.verifiers.answers.quantities import Quantities
from rlvr.verifiers.answers.tree import (
    Based,
    Call,
    Dots,
    Interval,
    Matrix,
    Node,
    Num,
    Ratio,
    Relation,
    Seq,
    Sym,
    Text,
    Union,
    Unreadable,
)

_MATRICES = frozenset("matrix pmatrix bmatrix array smallmatrix".split())
_INFINITY = Sym("oo")


def read(tokens: list[Token]) -> Node:
    """The tree of a whole answer. Raises Unreadable unless every token has a place in it."""
    if not tokens:
        raise Unreadable("nothing to read")
    reader = Reader(list(tokens))
    node = reader.answer(closing=())
    if reader.kind() != "end":
        raise Unreadable(f"stopped at {reader.peek()!r}")
    return node


class Reader(Quantities):
    """Reads lists, relations, brackets, sets and matrices, down to the scalars."""

    def answer(self, closing: tuple[str, ...]) -> Node:
        """Items between separators; a single item is itself. ``;`` separates groups."""
        groups, connectives = self.items(closing)
        if len(groups) == 1 and len(groups[0]) == 1:
            return groups[0][0]
        if len(groups) == 1 or all(len(group) == 1 for group in groups):
            flat = tuple(item for group in groups for item in group)
            if "or" not in connectives or not any(isinstance(x, Relation) for x in flat):
                return Seq("list", flat)
            if "and" in connectives:
                raise Unreadable("'and' and 'or' between conditions")
            return Seq("or", flat)
        return Seq("list", tuple(Seq("tuple", tuple(g)) if len(g) > 1 else g[0] for g in groups))

    def items(self, closing: tuple[str, ...]) -> tuple[list[list[Node]], set[str]]:
        self.enter()
        groups: list[list[Node]] = [[]]
        connectives: set[str] = set()
        while True:
            groups[-1].append(self.item())
            if self.kind() != "sep":
                break
            seen = set()
            while self.kind() == "sep":
                seen.add(self.take())
            connectives |= seen
            if self.kind() == "end" or self.kind() in closing:
                break  # a trailing separator
            if ";" in seen:
                groups.append([])
        self.depth -= 1
        return groups, connectives

    def item(self) -> Node:
        if self.kind() == "dots":
            self.take()
            return Dots()
        if self.peek() in (("rel", "~"), ("rel", "=")):
            self.take()
        definition = self.definition()
        sides, ops = [definition or self.side()], []
        while self.kind() == "rel":
            ops.append(self.take())
            sides.append(self.side())
        return Relation(tuple(ops), tuple(sides)) if ops else sides[0]

    def definition(self) -> Node | None:
        """``p(x)`` and ``W(n)`` directly before a relation: a function, whatever the letter."""
        kinds = [self.kind(k) for k in range(5)]
        if kinds[:4] == ["sym", "(", "sym", ")"] and kinds[4] in ("rel",):
            name, variable = self.peek()[1], self.peek(2)[1]
            self.at += 4
            return Call(f"apply:{name}", (Sym(variable),))
        return None

    def side(self) -> Node:
        """One side of a relation: a sum, a ratio of sums or a union of sets, with its unit."""
        currency, self.currency = self.currency, None
        parts = [self.sum()]
        if self.kind() == ":":
            while self.accept(":"):
                parts.append(Dots() if self.accept("dots") else self.sum())
            need_scalars(*(part for part in parts if not isinstance(part, Dots)))
            node: Node = Ratio(tuple(parts))
        elif self.kind() == "cup":
            while self.accept("cup"):
                parts.append(self.sum())
            node = Union(tuple(parts))
        elif self.kind() == "setminus":
            self.take()
            node = _without(parts[0], self.sum())
        else:
            node = parts[0]
        node = self.unit(node)
        self.currency = currency
        return node

    def bracket(self, opening: str) -> Node:
        bars, self.bars = self.bars, 0
        groups, _ = self.items((")", "]"))
        self.bars = bars
        closing = self.take()
        if closing not in (")", "]"):
            raise Unreadable(f"{opening!r} closed by {closing!r}")
        items = [x for group in groups for x in group]
        straight = (opening, closing) in (("(", ")"), ("[", "]"))
        if len(items) == 1:
            if not straight:
                raise Unreadable("an interval with one end")
            return items[0]
        ends = [_infinite(x) for x in items]
        if len(items) == 2 and (not straight or opening == "[" or any(ends)):
            return Interval(*items, opening == "[" and not ends[0], closing == "]" and not ends[1])
        if not straight:
            raise Unreadable("an interval with more than two ends")
        return Seq("tuple", tuple(items))

    def group(self) -> Node:
        """{...}: transparent around one item; around several, a list."""
        self.take("{")
        bars, self.bars = self.bars, 0
        node = self.answer(("}",))
        self.bars = bars
        self.take("}")
        return node

    def set(self) -> Node:
        if self.accept("}}"):
            return Seq("set", ())
        bars, self.bars = self.bars, 1  # a bar here separates
        groups, _ = self.items(("}}", "|"))
        items = [x for group in groups for x in group]
        if self.kind() == "|" or (len(items) == 1 and isinstance(items[0], Ratio)):
            if self.accept("|"):
                condition = self.item()
            else:
                raise Unreadable("set builder")
            self.take("}}")
            self.bars = bars
            if len(items) == 1 and isinstance(items[0], Sym) and isinstance(condition, Relation):
                return condition
            raise Unreadable("set builder")
        self.bars = bars
        self.take("}}")
        return Seq("set", tuple(items))

    def environment(self, name: str) -> Node:
        if name not in _MATRICES and name not in ("cases", "aligned", "align"):
            raise Unreadable(f"environment {name}")
        rows: list[list[Node]] = [[]]
        while self.kind() != "end":
            if self.peek() == ("close", name):
                self.take()
                break
            if self.accept("row"):
                rows.append([])
            elif self.accept("&"):
                continue
            else:
                rows[-1].append(self.item())
                self.accept("sep")
        else:
            raise Unreadable("environment without its end")
        rows = [row for row in rows if row]
        if not rows:
            raise Unreadable("empty environment")
        if name in _MATRICES:
            if len({len(row) for row in rows}) > 1:
                raise Unreadable("matrix with rows of different length")
            return Matrix(tuple(tuple(row) for row in rows))
        return Seq("list", tuple(row[0] if len(row) == 1 else Seq("tuple", tuple(row)) for row in rows))

    def atom(self) -> Node:
        self.enter()
        kind, value = self.peek()
        self.take()
        node = self.atom_of(kind, value)
        self.depth -= 1
        return node

    def atom_of(self, kind: str, value: str) -> Node:
        if kind == "num":
            return literal(value)
        if kind == "mixed":
            whole, rest = value.split(None, 1)
            top, bottom = (int(x) for x in rest.split("/"))
            if not 0 < top < bottom or len(value) > 200:
                raise Unreadable("no mixed number")
            return Num(int(whole) + Fraction(top, bottom))
        if kind == "sym":
            return self.symbol(value)
        if kind == "upright":
            return Sym(value)
        if kind == "cur":
            self.currency = value
            return self.power() if self.kind() not in ("-", "+") else self.product()
        if kind == "repeating":
            return repeating(value)
        if kind == "clock":
            return Text(value)
        if kind == "based":
            digits, _, base = value.rpartition("_")
            return Based(digits, int(base))
        if kind == "text":
            text = value
            while self.kind() == "text":
                text += " " + self.take()
            return Text(plain_words(text))
        if kind == "(" or kind == "[":
            return self.bracket(kind)
        if kind == "{":
            self.at -= 1
            return self.group()
        if kind == "{{":
            return self.set()
        if kind == "|":
            return self.bar()
        if kind == "func":
            return self.function(value)
        if kind == "style":  # \mathbb{R}
            self.take("{")
            letter = self.take()
            self.take("}")
            if letter == "R":
                return Interval(Call("neg", (_INFINITY,)), _INFINITY, False, False)
            return Sym(f"bb{letter}")
        if kind == "begin":
            return self.environment(value)
        if kind == "cmd":
            return self.command(value)
        raise Unreadable(f"{value!r} at the start of a term")


def _infinite(node: Node) -> bool:
    return node == _INFINITY or (isinstance(node, Call) and node.name == "neg" and node.args[0] == _INFINITY)


def _without(whole: Node, removed: Node) -> Node:
    """The reals without finitely many points, as a union of intervals."""
    points = removed.items if isinstance(removed, Seq) and removed.kind == "set" else None
    if not isinstance(whole, Interval) or not _infinite(whole.low) or not points or len(points) != 1:
        raise Unreadable("set difference")
    left = Interval(whole.low, points[0], False, False)
    return Union((left, Interval(points[0], whole.high, False, False)))
