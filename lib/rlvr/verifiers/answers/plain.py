"""One form of what can be written in several: before two nodes are compared."""

from __future__ import annotations

from fractions import Fraction

from rlvr.verifiers.answers import labels, units
from rlvr.verifiers.answers.tree import SCALAR, Call, Dots, Node, Num, Quantity, Seq, Text
from rlvr.verifiers.answers.words import NUMERALS

_EMPTY = frozenset(f"no {kind}solution{s}" for kind in ("", "real ", "such ") for s in ("", "s")) | {
    "none",
    "empty set",
    "no real roots",
}


def plain(node: Node) -> Node:
    """Degrees as an operation, \\pm as a list of two, a list of one as its element."""
    if isinstance(node, Quantity) and units.canonical(node.unit) == "deg" and isinstance(node.value, SCALAR):
        return plain(Call("degree", (node.value,)))
    if isinstance(node, Seq) and len(node.items) == 1 and not isinstance(node.items[0], Dots):
        if node.kind == "set" and isinstance(node.items[0], Seq) and node.items[0].kind == "set":
            return node  # a set of one set
        return plain(node.items[0])
    if isinstance(node, Text):
        if node.words in _EMPTY:
            return Seq("set", ())
        return Num(Fraction(NUMERALS.index(node.words))) if node.words in NUMERALS else node
    if isinstance(node, SCALAR):
        both = labels.signs(node)
        return node if both is None else Seq("list", both)
    return node
