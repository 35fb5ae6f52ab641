"""What an answer can be, once read: scalars, and the things built of them.

A scalar is a number, a symbol, or a call of a named operation on scalars (``add``, ``mul``, ``div``, ``pow``,
``neg``, ``sqrt``, ``sin``, ...). The other nodes hold scalars. Nodes are immutable and compare by structure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction


class Unreadable(ValueError):
    """The text is outside the notation that :mod:`rlvr.verifiers.answers.reader` knows."""


class Beyond(Unreadable):
    """Within the notation, but larger or deeper than what is read."""


@dataclass(frozen=True, slots=True)
class Num:
    """A literal. ``decimal``: written with a point or an exponent; ``scientific``: with an exponent."""

    value: Fraction
    decimal: bool = False
    scientific: bool = False


@dataclass(frozen=True, slots=True)
class Sym:
    """A letter, a letter with a subscript, or one of the constants ``pi``, ``e``, ``i``, ``oo``."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Seq:
    """``list``: bare, order-free; ``set``: in braces, order-free, no repeats; ``tuple``: ordered."""

    kind: str
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Interval:
    low: Node
    high: Node
    low_closed: bool
    high_closed: bool


@dataclass(frozen=True, slots=True)
class Union:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """``sides[0] ops[0] sides[1] ops[1] ...``; ops are among ``= < > <= >= != ~ in`` (``~``:
    approximately)."""

    ops: tuple[str, ...]
    sides: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a base that is written as a subscript."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Quantity:
    value: Node
    unit: str


@dataclass(frozen=True, slots=True)
class Text:
    """Words; lower case, except that a single letter keeps its case."""

    words: str


@dataclass(frozen=True, slots=True)
class Dots:
    """An ellipsis, as one element of a list."""


Node = Num | Sym | Call | Seq | Interval | Union | Matrix | Relation | Ratio | Based | Quantity | Text | Dots
SCALAR = (Num, Sym, Call)


def joined(name: str, left: Node, right: Node) -> Call:
    """``add`` or ``mul`` of two scalars, flat: a long sum is wide, not deep."""
    head = left.args if isinstance(left, Call) and left.name == name else (left,)
    return Call(name, (*head, right))


CONSTANTS = frozenset({"pi", "e", "i", "oo"})


def walk(node: Node) -> Iterator[Node]:
    """Every scalar below a scalar, itself included."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        if isinstance(top, Call):
            stack.extend(top.args)


def symbols(node: Node) -> set[str]:
    """The names of the free symbols of a scalar (constants are not free)."""
    return {part.name for part in walk(node) if isinstance(part, Sym)} - CONSTANTS


def rename(node: Node, old: str, new: str) -> Node:
    """A scalar with one symbol renamed."""
    if isinstance(node, Sym):
        return Sym(new) if node.name == old else node
    if isinstance(node, Call):
        return Call(node.name, tuple(rename(part, old, new) for part in node.args))
    return node
