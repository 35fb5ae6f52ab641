"""Relations: what is only a name (``x =``, ``f(x) =``, ``AB =``), what is an equation, and when two are
equal."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.verifiers.answers import numeric
from rlvr.verifiers.answers.tree import (
    CONSTANTS,
    SCALAR,
    Call,
    Node,
    Num,
    Ratio,
    Relation,
    Seq,
    Sym,
    Text,
    rename,
    symbols,
    walk,
)

Named = tuple[Node | None, Node]  # name (None: a computation such as 10^3 = 1000), value
_FLIP = {">": "<", ">=": "<="}


def signs(node: Node) -> tuple[Node, Node] | None:
    """The two values of a scalar with \\pm; None without one."""
    if not any(isinstance(part, Call) and part.name in ("pm", "mp") for part in walk(node)):
        return None

    def choose(part: Node, upper: bool) -> Node:
        if not isinstance(part, Call):
            return part
        arguments = tuple(choose(x, upper) for x in part.args)
        if part.name in ("pm", "mp"):
            plus = upper == (part.name == "pm")
            return Call("add", arguments if plus else (arguments[0], Call("neg", (arguments[1],))))
        return Call(part.name, arguments)

    return choose(node, True), choose(node, False)


def spread(items: Sequence[Node]) -> tuple[Node, ...]:
    """Elements with every \\pm as two, also behind a name (``x = 1 \\pm \\sqrt{2}``)."""
    result: list[Node] = []
    for item in items:
        both = signs(item) if isinstance(item, SCALAR) else None
        if both is not None:
            result.extend(both)
        elif isinstance(item, Relation) and isinstance(item.sides[-1], SCALAR) and signs(item.sides[-1]):
            result.extend(Relation(item.ops, (*item.sides[:-1], value)) for value in signs(item.sides[-1]))
        else:
            result.append(item)
    return tuple(result)


def ordered_by_name(items: Sequence[Node]) -> bool:
    """Whether every element has a name of its own (``AB=4, CD=5``): then their order has a meaning."""
    names = [assigned(item, gold=False) if isinstance(item, Relation) else None for item in items]
    if any(named is None or named[0] is None for named in names):
        return False
    return len({named[0] for named in names if named}) == len(items) > 1


def assigned(relation: Relation, *, gold: bool) -> Named | None:
    """Name and value of ``name = value``, ``name = .. = value``, ``name = value ~ rounded``; None for an
    equation.

    A computation without letters (``10^3 = 1000``) has a value and no name. On the gold side a product of
    small letters or a sum is an equation (``xy = 1``), in an answer it may be the quantity that was asked
    for.
    """
    ops, sides = relation.ops, relation.sides
    if ops == ("in",):
        return sides[0], sides[1]
    if not set(ops) <= {"=", "~"}:
        return None
    about = ops.index("~") if "~" in ops else len(ops)
    first, value = sides[0], sides[about]
    if about == 0:  # a ~ b: b if a is a name, else a is exact
        return (first, sides[1]) if is_name(first, gold) else (None, first)
    if is_name(first, gold):
        return first, value
    if isinstance(first, SCALAR) and not symbols(first):
        return (value, first) if is_name(value, gold) else (None, value)
    return None


def is_name(node: Node, gold: bool) -> bool:
    if isinstance(node, Text):
        return True
    if isinstance(node, Sym):
        return node.name not in CONSTANTS
    if isinstance(node, Seq):
        return node.kind in ("tuple", "list") and all(isinstance(x, Sym) for x in node.items)
    if isinstance(node, Ratio):
        return all(_letters(x, False) for x in node.parts)
    if not isinstance(node, Call):
        return False
    if node.name.startswith("apply:"):
        return True
    if node.name == "abs":
        return _letters(node.args[0], False)
    if node.name == "div":
        return all(_letters(x, False) for x in node.args)
    return _letters(node, gold) or (not gold and _sum_of_letters(node))


def _letters(node: Node, capitals: bool) -> bool:
    """A product of letters, all different; ``capitals``: points such as AB only."""
    names = [part.name for part in walk(node) if isinstance(part, Sym)]
    if not names or any(
        isinstance(part, Num) or (isinstance(part, Call) and part.name != "mul") for part in walk(node)
    ):
        return False
    if capitals and not all(x[0].isupper() or x in ("angle", "triangle") for x in names):
        return False
    return len(set(names)) == len(names) and not set(names) & {"pi", "oo"}


def _sum_of_letters(node: Node) -> bool:
    if isinstance(node, Call) and node.name == "add":
        return all(_sum_of_letters(x) for x in node.args)
    if isinstance(node, Call) and node.name == "neg":
        return _sum_of_letters(node.args[0])
    return _letters(node, False)


def same_name(gold: Named, answer: Named) -> tuple[Node, Node] | None:
    """The two values if both relations name the same thing; ``f(n) = n``, ``f(x) = x`` and ``y = x`` do."""
    if gold[0] is None or answer[0] is None:
        return gold[1], answer[1]
    if gold[0] == answer[0]:
        return gold[1], answer[1]
    if {Sym("y")} < {gold[0], answer[0]}:
        other = gold[0] if answer[0] == Sym("y") else answer[0]
        if isinstance(other, Call) and other.name.startswith("apply:") and isinstance(other.args[0], Sym):
            return gold[1], answer[1]
    functions = [x for x, _ in (gold, answer) if isinstance(x, Call) and x.name.startswith("apply:")]
    if len(functions) == 2 and functions[0].name == functions[1].name:
        arguments = [f.args[0] for f in functions]
        if all(isinstance(x, Sym) for x in arguments) and isinstance(answer[1], SCALAR):
            if arguments[0].name not in symbols(answer[1]):
                return gold[1], rename(answer[1], arguments[1].name, arguments[0].name)
    return None


def ascending(relation: Relation) -> Relation:
    """The same chain with ``<`` and ``<=`` only, where it runs in one direction."""
    if set(relation.ops) <= {">", ">="}:
        return Relation(tuple(_FLIP[op] for op in reversed(relation.ops)), relation.sides[::-1])
    return relation


def proportional(gold: Relation, answer: Relation) -> bool | None:
    """Whether two equations, or two inequalities, differ by a constant factor (a positive one).

    False if both are linear and do not, or if two equations have different solutions; None if they may still
    have the same ones.
    """
    first, second = ascending(gold), ascending(answer)
    if len(first.ops) != 1 or first.ops != second.ops or first.ops[0] not in ("=", "!=", "<", "<="):
        return None
    if not all(isinstance(x, SCALAR) for x in (*first.sides, *second.sides)):
        return None
    differences = [Call("add", (r.sides[1], Call("neg", (r.sides[0],)))) for r in (first, second)]
    one_way = first.ops[0] in ("<", "<=")
    try:
        if numeric.ratio_is_constant(gold=differences[0], answer=differences[1], positive=one_way):
            return True
    except (ArithmeticError, ValueError):
        return None
    if all(_degree(x) == 1 for x in differences):
        return False
    if first.ops[0] == "=":
        left, right = (_opaque(x) for x in differences)
        if numeric.zeros_differ(gold=left, answer=right) or numeric.zeros_differ(gold=right, answer=left):
            return False
    return None


def _opaque(node: Node) -> Node:
    """A scalar in which ``f(x)`` is a letter."""
    if isinstance(node, Call):
        if node.name.startswith("apply:"):
            return Sym(repr(node))
        return Call(node.name, tuple(_opaque(x) for x in node.args))
    return node


def _degree(node: Node) -> int | None:
    """Degree of a polynomial in the letters, as written; None for anything else."""
    if isinstance(node, Num):
        return 0
    if isinstance(node, Sym):
        return int(node.name not in CONSTANTS)
    degrees = [_degree(x) for x in node.args] if isinstance(node, Call) else [None]
    if None in degrees:
        return None
    if node.name in ("add", "neg"):
        return max(degrees)
    if node.name == "mul":
        return sum(degrees)
    if node.name == "div" and degrees[1] == 0:
        return degrees[0]
    return 0 if max(degrees) == 0 else None


def variable(relation: Relation) -> Node | None:
    """The letter (or ``f(x)``) that a chain bounds, or a membership names."""
    candidates = relation.sides if len(relation.sides) < 3 else relation.sides[1:2]
    for side in candidates:
        if isinstance(side, Sym) and side.name not in CONSTANTS:
            return side
        if isinstance(side, Call) and (side.name.startswith("apply:") or _bar(side)):
            return side
    return None


def letter(relation: Relation) -> Node | None:
    """As :func:`variable`, without the bars of ``|x|``."""
    name = variable(relation)
    return name.args[0] if isinstance(name, Call) and name.name == "abs" else name


def _bar(node: Call) -> bool:
    """|x| of a letter."""
    return node.name == "abs" and isinstance(node.args[0], Sym) and node.args[0].name not in CONSTANTS
