"""Whether a read answer equals a read gold answer: structure first, then numbers, nothing rounded.

The rules, each a choice:

- **Numbers** are compared by value (:mod:`rlvr.verifiers.answers.numeric`). A decimal against a number
  without a finite decimal expansion may be off by a share of 1e-9 of it; two finite decimals, and anything
  against an integer, may not. A gold answer in scientific notation (``3.83e35``), and under ``kind="float"``
  one with a decimal point, allows 1e-4 instead.
- **Percent**: ``50%`` is 0.5. A gold answer with the sign may lose it (``50``); against a whole gold answer
  above 1 the sign counts as a unit, against any other it does not (``0.5%`` is not 0.5). Nothing else is ever
  multiplied by 100.
- **Units** and what is counted (:mod:`rlvr.verifiers.answers.words`) may be missing on either side; two known
  units must be the same, without conversion. ``90^\\circ`` is 90 and pi/2.
- **Lists** are order-free, except that bare values answer named ones (``AB = 9, CD = 4``) in their order, and
  named values answer a tuple in the order of the names; repeats count if the gold answer has any (roots with
  multiplicity); sets are order-free without repeats, tuples are ordered. A bare list equals a tuple in the
  same order. A list with an ellipsis is compared element by element, ellipsis included.
- **Intervals**: the ends and their kinds; ``(a,b)`` is both a tuple and an open interval. Inequalities in one
  letter are intervals; several are intersected (a comma, ``and``) or united (``or``), those in different
  letters are compared one by one.
- **Equations**: ``x = 5`` is 5 if the left side only names something; two equations are equal if one is a
  constant multiple of the other, or both name the same thing with equal values. An equation that names
  nothing never equals its right side.
- **Ratios** are compared in proportion; numbers in a base as digits in that base; matrices by entries, and a
  column or row equals a tuple.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rlvr.verifiers.answers import labels, numeric, ranges, units
from rlvr.verifiers.answers.plain import plain
from rlvr.verifiers.answers.scalars import Rules, compare_scalars, equal
from rlvr.verifiers.answers.tree import (
    SCALAR,
    Based,
    Call,
    Dots,
    Interval,
    Matrix,
    Node,
    Quantity,
    Ratio,
    Relation,
    Seq,
    Sym,
    Text,
    Union,
)


def compare(*, gold: Node, answer: Node, rules: Rules = Rules()) -> bool | None:  # noqa: B008
    """True, False, or None where these rules cannot decide. Raises numeric.TooLarge (the answer's value)."""
    if gold == answer:
        return True
    gold, answer = plain(gold), plain(answer)
    if isinstance(gold, Quantity) or isinstance(answer, Quantity):
        return _quantities(gold, answer, rules)
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _relations(gold, answer, rules)
    if ranges.is_system(gold) or ranges.is_system(answer):
        return _systems(gold, answer, rules)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _matrices(gold, answer, rules)
    if isinstance(gold, Interval | Union) or isinstance(answer, Interval | Union):
        return _ranges(gold, answer, rules)
    if isinstance(gold, Seq) or isinstance(answer, Seq):
        return _sequences(_as_seq(gold), _as_seq(answer), rules)
    if isinstance(gold, Ratio) or isinstance(answer, Ratio):
        return _ratios(gold, answer, rules)
    if isinstance(gold, Based) and isinstance(answer, Based):
        same = gold.digits.lstrip("0").lower() == answer.digits.lstrip("0").lower()
        return same and gold.base == answer.base
    if isinstance(gold, Text | Sym) and isinstance(answer, Text | Sym):
        names = [x.words if isinstance(x, Text) else x.name for x in (gold, answer)]
        return names[0] == names[1]
    if isinstance(gold, SCALAR) and isinstance(answer, SCALAR):
        return compare_scalars(gold, answer, rules)
    return False


# numbers


def _quantities(gold: Node, answer: Node, rules: Rules) -> bool | None:
    named = [x.unit for x in (gold, answer) if isinstance(x, Quantity)]
    if len(named) == 2 and units.contradict(*named):
        return False
    values = [x.value if isinstance(x, Quantity) else x for x in (gold, answer)]
    if isinstance(values[0], Text) or isinstance(values[1], Text):
        return False
    return compare(gold=values[0], answer=values[1], rules=rules)


def _ratios(gold: Node, answer: Node, rules: Rules) -> bool | None:
    if isinstance(gold, Ratio) and isinstance(answer, Ratio):
        if len(gold.parts) != len(answer.parts):
            return False
        zero = any(numeric.exact(x) == 0 for ratio in (gold, answer) for x in ratio.parts)
        if zero or any(isinstance(x, Dots) for ratio in (gold, answer) for x in ratio.parts):
            return _each(gold.parts, answer.parts, rules)
        return _all(
            equal(Call("mul", (gold.parts[0], a)), Call("mul", (answer.parts[0], g)), rules)
            for g, a in zip(gold.parts[1:], answer.parts[1:], strict=True)
        )
    sides = [
        Call("div", x.parts) if isinstance(x, Ratio) and len(x.parts) == 2 else x for x in (gold, answer)
    ]
    if all(isinstance(x, SCALAR) for x in sides):
        return equal(*sides, rules)
    return False


# structures


def _all(results: Iterable[bool | None]) -> bool | None:
    """False beats None beats True."""
    verdict: bool | None = True
    for result in results:
        if result is False:
            return False
        if result is None:
            verdict = None
    return verdict


def _each(gold: Sequence[Node], answer: Sequence[Node], rules: Rules) -> bool | None:
    if len(gold) != len(answer):
        return False
    return _all(_element(g, a, rules) for g, a in zip(gold, answer, strict=True))


def _element(gold: Node, answer: Node, rules: Rules) -> bool | None:
    """Two elements of lists or sets: a set as an element equals sets only: ``{1, {2}}`` is not ``{1, 2}``."""
    sets = [isinstance(x, Seq) and x.kind == "set" for x in (gold, answer)]
    return compare(gold=gold, answer=answer, rules=rules) if sets[0] == sets[1] else False


def _as_seq(node: Node) -> Seq:
    return node if isinstance(node, Seq) else Seq("list", (node,))


def _sequences(gold: Seq, answer: Seq, rules: Rules) -> bool | None:
    first, second = labels.spread(gold.items), labels.spread(answer.items)
    if len(second) > 4 * len(first) + 16:
        return False
    if gold.kind == "set":
        first = _distinct(first, rules)
    if answer.kind == "set":
        second = _distinct(second, rules)
    if (
        len(second) > len(first)
        and {gold.kind, answer.kind} <= {"list", "or"}
        and _distinct(first, rules) == first
    ):
        second = _distinct(second, rules)  # an answer that repeats an element
    if len(first) != len(second):
        return False
    kinds = {gold.kind, answer.kind}
    dots = any(isinstance(x, Dots) for x in (*first, *second))
    if "tuple" in kinds and "set" in kinds:
        return False
    named = [labels.ordered_by_name(side) for side in (first, second)]
    if gold.kind == "tuple" and named[1]:
        second = tuple(sorted(second, key=lambda x: str(x.sides[0])))
    if answer.kind == "tuple" and named[0]:
        first = tuple(sorted(first, key=lambda x: str(x.sides[0])))
    if "tuple" in kinds or dots or (named[0] and not named[1]):
        return _each(first, second, rules)
    return _matched(first, second, rules)


def _matched(gold: Sequence[Node], answer: Sequence[Node], rules: Rules) -> bool | None:
    """Whether the elements can be paired off."""
    if all(isinstance(x, SCALAR) for x in (*gold, *answer)):
        values = [[numeric.exact(x) for x in side] for side in (gold, answer)]
        if all(v is not None for side in values for v in side) and Counter(values[0]) == Counter(values[1]):
            return True
    left = list(answer)
    undecided = False
    for g in gold:
        results = [_element(g, a, rules) for a in left]
        if True in results:
            left.pop(results.index(True))
        elif None in results:
            left.pop(results.index(None))
            undecided = True
        else:
            return False
    return None if undecided else True


def _distinct(items: Sequence[Node], rules: Rules) -> tuple[Node, ...]:
    kept: list[Node] = []
    for item in items:
        if not any(_element(other, item, rules) for other in kept):
            kept.append(item)
    return tuple(kept)


def _matrices(gold: Node, answer: Node, rules: Rules) -> bool | None:
    rows = [x.rows if isinstance(x, Matrix) else None for x in (gold, answer)]
    if rows[0] is not None and rows[1] is not None:
        if len(rows[0]) != len(rows[1]) or len(rows[0][0]) != len(rows[1][0]):
            return False
        return _each([x for r in rows[0] for x in r], [x for r in rows[1] for x in r], rules)
    vectors = [_vector(x) for x in (gold, answer)]
    if vectors[0] is None or vectors[1] is None:
        return False
    return _each(*vectors, rules)


def _vector(node: Node) -> Sequence[Node] | None:
    if isinstance(node, Matrix) and (len(node.rows) == 1 or len(node.rows[0]) == 1):
        return [x for row in node.rows for x in row]
    if isinstance(node, Seq) and node.kind == "tuple":
        return node.items
    if isinstance(node, Interval) and node.low_closed == node.high_closed:  # (a,b), [a,b]
        return (node.low, node.high)
    return None


def _ranges(gold: Node, answer: Node, rules: Rules) -> bool | None:
    pieces = [ranges.pieces(x) for x in (gold, answer)]
    if pieces[0] is None or pieces[1] is None:
        other = [x for x, side in zip((gold, answer), pieces, strict=True) if side is None]
        return None if any(isinstance(x, Relation) for x in other) else False
    ordered = [ranges.in_order(side) for side in pieces]
    if ordered[0] is None or ordered[1] is None:
        if len(pieces[0]) != len(pieces[1]):
            return False
        return _same_range(pieces[0][0], pieces[1][0], rules) if len(pieces[0]) == 1 else None
    if len(ordered[0]) != len(ordered[1]):
        return False
    return _all(_same_range(g, a, rules) for g, a in zip(*ordered, strict=True))


def _systems(gold: Node, answer: Node, rules: Rules) -> bool | None:
    """Conditions joined by a comma, ``and`` or ``or``: as sets of reals if both are, else one by one."""
    if ranges.pieces(gold) is not None and ranges.pieces(answer) is not None:
        return _ranges(gold, answer, rules)
    if not ranges.is_system(gold) or not ranges.is_system(answer) or gold.kind != answer.kind:
        return False
    return _sequences(gold, answer, rules)


def _same_range(gold: Interval, answer: Interval, rules: Rules) -> bool | None:
    if (gold.low_closed, gold.high_closed) != (answer.low_closed, answer.high_closed):
        return False
    return _each((gold.low, gold.high), (answer.low, answer.high), rules)


# relations


def _relations(gold: Node, answer: Node, rules: Rules) -> bool | None:
    named = [
        labels.assigned(x, gold=k == 0) if isinstance(x, Relation) else None
        for k, x in enumerate((gold, answer))
    ]
    if not isinstance(gold, Relation) or not isinstance(answer, Relation):
        relation = 0 if isinstance(gold, Relation) else 1
        if named[relation] is not None:
            value = named[relation][1]
            sides = (value, answer) if relation == 0 else (gold, value)
            return compare(gold=sides[0], answer=sides[1], rules=rules)
        other = answer if relation == 0 else gold
        if isinstance(other, Interval | Union | Seq):
            return _ranges(gold, answer, rules)
        return False
    if named[0] is not None and named[1] is not None:
        same = labels.same_name(named[0], named[1])
        if same is not None:
            return compare(gold=same[0], answer=same[1], rules=rules)
    equal_relations = labels.proportional(gold, answer)
    if equal_relations is not None:
        return equal_relations
    if all(x is not None and isinstance(x[0], Call) and x[0].name.startswith("apply:") for x in named):
        return False
    if labels.letter(gold) is not None and labels.letter(gold) == labels.letter(answer):
        verdict = _ranges(gold, answer, rules)
        if verdict is not None:
            return verdict
    first, second = labels.ascending(gold), labels.ascending(answer)
    if len(first.sides) == len(second.sides) and first.ops == second.ops and len(first.ops) > 1:
        return _each(first.sides, second.sides, rules)
    return None
