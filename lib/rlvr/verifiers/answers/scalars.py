"""Two scalars: percent, degrees, infinities, and how far a decimal may be off."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rlvr.verifiers.answers import numeric
from rlvr.verifiers.answers.tree import Call, Node, Num, Sym, walk

DECIMAL_TOLERANCE = Fraction(1, 10**9)
FLOAT_TOLERANCE = Fraction(1, 10**4)


@dataclass(frozen=True)
class Rules:
    """``whole``: no tolerance at all (integer answers). ``floating``: a gold decimal is a measured value."""

    whole: bool = False
    floating: bool = False


def compare_scalars(gold: Node, answer: Node, rules: Rules) -> bool | None:
    infinite = [_infinity(x) for x in (gold, answer)]
    if any(infinite):
        return infinite[0] == infinite[1]
    for name in ("percent", "degree"):
        in_gold = isinstance(gold, Call) and gold.name == name
        in_answer = isinstance(answer, Call) and answer.name == name
        if not in_gold and not in_answer:
            continue
        if in_gold and in_answer:
            return equal(gold.args[0], answer.args[0], rules)
        bare = equal(gold.args[0] if in_gold else gold, answer.args[0] if in_answer else answer, rules)
        unit = rules.whole or (in_answer and name == "percent" and _whole_above_one(gold))
        if unit or (bare is not False and (in_gold or name == "degree")):
            return bare
    return equal(gold, answer, rules)


def equal(gold: Node, answer: Node, rules: Rules) -> bool | None:
    try:
        return numeric.equal(gold=gold, answer=answer, tolerance=_tolerance(gold, answer, rules))
    except numeric.Undecidable:
        return None


def _tolerance(gold: Node, answer: Node, rules: Rules) -> Fraction | None:
    if rules.whole:
        return None
    if any(isinstance(part, Num) and part.scientific for part in walk(gold)):
        return FLOAT_TOLERANCE
    if not numeric.has_decimal(gold) and not numeric.has_decimal(answer):
        return None
    if rules.floating and numeric.has_decimal(gold):
        return FLOAT_TOLERANCE
    exact = [numeric.exact(node) for node in (gold, answer)]
    if exact[0] is not None and exact[0].denominator == 1:
        return None
    if all(value is not None and _terminates(value) for value in exact):
        return None
    return DECIMAL_TOLERANCE


def _terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _whole_above_one(node: Node) -> bool:
    value = numeric.exact(node)
    return value is not None and value.denominator == 1 and value > 1


def _infinity(node: Node) -> int:
    if node == Sym("oo"):
        return 1
    return -1 if isinstance(node, Call) and node.name == "neg" and node.args[0] == Sym("oo") else 0
