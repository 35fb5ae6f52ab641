"""Sets of reals: intervals, unions, finite sets and inequalities in one letter as intervals in order."""

from __future__ import annotations

import math
from typing import Any

from rlvr.verifiers.answers import labels, numeric
from rlvr.verifiers.answers.tree import SCALAR, Call, Interval, Node, Relation, Seq, Sym, Union, symbols

_INFINITY = Sym("oo")
_MINUS_INFINITY = Call("neg", (_INFINITY,))


def pieces(node: Node) -> list[Interval] | None:
    """The intervals of a set of reals, points as closed intervals; None for anything else."""
    if isinstance(node, Interval):
        return [node]
    if isinstance(node, Union):
        return _together(node.parts, points=True)
    if isinstance(node, Seq):
        if node.kind == "tuple":
            return _pair(node)
        if node.kind == "set":
            return [Interval(x, x, True, True) for x in node.items] if _scalars(node.items) else None
        return _conditions(node) if is_system(node) else _together(node.items, points=False)
    if isinstance(node, Relation):
        return _bounds(node)
    return None


def is_system(node: Node) -> bool:
    """A list of conditions with an inequality among them."""
    return isinstance(node, Seq) and any(
        isinstance(x, Relation) and not set(x.ops) <= {"=", "~", "in"} for x in node.items
    )


def _conditions(node: Seq) -> list[Interval] | None:
    """Conditions on one letter: ``or`` unites them, a comma and ``and`` intersect. None for several letters,
    whose sets are not sets of reals, and for an equation beside an inequality in a list."""
    if not all(isinstance(x, Relation) for x in node.items):
        return None
    names = {labels.letter(x) for x in node.items}
    if len(names) != 1 or None in names:
        return None
    if node.kind == "or":
        return _together(node.items, points=False)
    if any("=" in x.ops for x in node.items):
        return None
    result = [Interval(_MINUS_INFINITY, _INFINITY, False, False)]
    for item in node.items:
        inner = pieces(item)
        met = None if inner is None else _meet(result, inner)
        if met is None:
            return None
        result = met
    return result


def _meet(first: list[Interval], second: list[Interval]) -> list[Interval] | None:
    """The intersection; None if an end has no value."""
    if len(first) * len(second) > 400:
        return None
    result = []
    for a in first:
        for b in second:
            low = _inner_end(a.low, a.low_closed, b.low, b.low_closed, 1)
            high = _inner_end(a.high, a.high_closed, b.high, b.high_closed, -1)
            if low is None or high is None:
                return None
            ends = _end(low[0]), _end(high[0])
            if None not in ends and (ends[0] > ends[1] or (ends[0] == ends[1] and not (low[1] and high[1]))):
                continue
            result.append(Interval(low[0], high[0], low[1], high[1]))
    return result


def _inner_end(a: Node, a_closed: bool, b: Node, b_closed: bool, side: int) -> tuple[Node, bool] | None:
    """The larger of two lower ends (``side`` 1) or the smaller of two upper ones (-1), and its kind."""
    outermost = _MINUS_INFINITY if side == 1 else _INFINITY
    if a == outermost or b == outermost:
        return (b, b_closed) if a == outermost else (a, a_closed)
    values = _end(a), _end(b)
    if None in values:
        return (a, a_closed and b_closed) if a == b else None
    if values[0] == values[1]:
        return a, a_closed and b_closed
    return (a, a_closed) if (values[0] > values[1]) == (side == 1) else (b, b_closed)


def in_order(intervals: list[Interval]) -> list[Interval] | None:
    """Sorted by their lower ends, and those that touch or overlap joined; None if an end has no value."""
    keyed = []
    for interval in intervals:
        low, high = _end(interval.low), _end(interval.high)
        if low is None or high is None:
            return None
        keyed.append((low, not interval.low_closed, high, interval))
    result: list[Interval] = []
    reach = None
    for low, _, high, interval in sorted(keyed, key=lambda x: x[:3]):
        if reach is not None and (
            low < reach or (low == reach and (result[-1].high_closed or interval.low_closed))
        ):
            last = result[-1]
            if high > reach or (high == reach and interval.high_closed):
                result[-1] = Interval(last.low, interval.high, last.low_closed, interval.high_closed)
                reach = high
        else:
            result.append(interval)
            reach = high
    return result


def _scalars(items: tuple[Node, ...]) -> bool:
    return all(isinstance(x, SCALAR) for x in items)


def _pair(node: Seq) -> list[Interval] | None:
    if len(node.items) == 2 and _scalars(node.items):
        return [Interval(node.items[0], node.items[1], False, False)]
    return None


def _together(parts: tuple[Node, ...], points: bool) -> list[Interval] | None:
    result: list[Interval] = []
    for part in parts:
        if isinstance(part, SCALAR) or (isinstance(part, Seq) and part.kind == "set" and not points):
            return None
        inner = pieces(part)
        if inner is None:
            return None
        result.extend(inner)
    return result


def _end(node: Node) -> Any:
    """An end as a number that can be ordered, exact if it is rational; None if it has no value."""
    if node == _INFINITY:
        return math.inf
    if node == _MINUS_INFINITY:
        return -math.inf
    return numeric.number(node)


def _distance(chain: Relation, name: Node) -> list[Interval] | None:
    """``a <= |x| <= b``, ``|x| < b``, ``|x| > a``, with numbers a >= 0 and b > 0."""
    at = chain.sides.index(name)
    if len(chain.sides) != len(chain.ops) + 1 or at > 1 or not set(chain.ops) <= {"<", "<="}:
        return None
    near = chain.sides[0] if at == 1 else None
    far = chain.sides[at + 1] if len(chain.sides) > at + 1 else None
    ends = [_end(x) for x in (near, far) if x is not None]
    if any(end is None or end <= 0 for end in ends):
        return None
    outer, closed = (_INFINITY, False) if far is None else (far, chain.ops[-1] == "<=")
    if near is None:
        return [Interval(Call("neg", (outer,)), outer, closed, closed)]
    touch = chain.ops[0] == "<="
    return [
        Interval(Call("neg", (outer,)), Call("neg", (near,)), closed, touch),
        Interval(near, outer, touch, closed),
    ]


def _bounds(relation: Relation) -> list[Interval] | None:
    """``x < 3``, ``-2 <= x < 7``, ``x != 1``, ``x \\in [0,1]``: where the middle is a letter."""
    if relation.ops == ("in",):
        return pieces(relation.sides[1])
    chain = labels.ascending(relation)
    name = labels.variable(chain)
    if name is None or any(
        symbols(x) & symbols(name) for x in chain.sides if isinstance(x, SCALAR) and x != name
    ):
        return None
    if not _scalars(chain.sides):
        return None
    if isinstance(name, Call) and name.name == "abs":
        return _distance(chain, name)
    low, high = _MINUS_INFINITY, _INFINITY
    if len(chain.ops) == 1:
        (op,), (left, right) = chain.ops, chain.sides
        if op == "!=":
            point = right if left == name else left
            return [Interval(low, point, False, False), Interval(point, high, False, False)]
        if op == "=":
            point = right if left == name else left
            return [Interval(point, point, True, True)]
        if op not in ("<", "<="):
            return None
        closed = op == "<="
        return (
            [Interval(low, right, False, closed)] if left == name else [Interval(left, high, closed, False)]
        )
    if len(chain.ops) == 2 and chain.sides[1] == name and set(chain.ops) <= {"<", "<="}:
        return [Interval(chain.sides[0], chain.sides[2], chain.ops[0] == "<=", chain.ops[1] == "<=")]
    return None
