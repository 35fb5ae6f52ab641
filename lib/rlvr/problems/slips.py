"""A slip: a chain of thought that is wrong from one step on, and consistent before and after it.

    11+6=17,17-4=13,13*2=26     a wrong value      11+6=17,17-4=12,12*2=24
                                a wrong operand    11+6=17,17-5=12,12*2=24
                                a wrong operator   11+6=17,17+4=21,21*2=42

A correction is learnt from pairs of such a chain and the right one. Of 232 wrong answers of a base model at
pass@1 .42, 71 % had a wrong value as their first fault, 17 % a wrong operand, 5 % an operator, and nearly all
went on from it consistently: hence these three kinds and about these shares [choice].
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rlvr.problems.base import Draws, Problem

KINDS = ("value",) * 14 + ("operand",) * 4 + ("operator",) * 2  # chances out of twenty
VALUE_ERRORS = (-1, 1, -1, 1, -2, 2, -10, 10)  # a unit is the usual slip
LARGEST = 99  # of the task's values: no chain grows beyond the length limit of right ones
ATTEMPTS = 20

_STEP = re.compile(r"(\d+)([+*-])(\d+)=(\d+)")


class Step(NamedTuple):
    before: int
    sign: str
    by: int
    value: int

    def __str__(self) -> str:
        return f"{self.before}{self.sign}{self.by}={self.value}"


def parse(chain: str) -> list[Step]:
    """The steps of ``11+6=17,17-4=13``.

    Raises:
        ValueError: another form.
    """
    steps = []
    for text in chain.split(","):
        match = _STEP.fullmatch(text)
        if match is None:
            raise ValueError(f"step {text!r} of {chain!r}: allowed is a+b=c with +, - or * and whole numbers")
        steps.append(Step(int(match[1]), match[2], int(match[3]), int(match[4])))
    return steps


def corrupt(problem: Problem, draws: Draws) -> str:
    """A wrong solution: the steps of ``problem.solution`` with one slip, carried on to the end.

    The slip's step is uniform, its kind as in :data:`KINDS`. All values stay in 1..99; steps are injective,
    so the last number is always wrong.

    Raises:
        ValueError: the problem has no solution, or one in another form.
    """
    if problem.solution is None:
        raise ValueError(f"problem {problem.id!r} has no solution to corrupt")
    steps = parse(problem.solution)
    for _ in range(ATTEMPTS):
        at = draws.below(len(steps))
        slipped = _slip(steps[at], draws.pick(KINDS), draws)
        if slipped is not None and (chain := _carried_on(steps, at, slipped)) is not None:
            return chain
    last = steps[-1]  # nothing fitted: a wrong last value always does
    wrong = last.value + (1 if last.value < LARGEST else -1)
    return ",".join(map(str, [*steps[:-1], last._replace(value=wrong)]))


def _slip(step: Step, kind: str, draws: Draws) -> Step | None:
    """The step with another value, operand or operator; None where it would be the same value."""
    if kind == "value":
        wrong = step._replace(value=step.value + draws.pick(VALUE_ERRORS))
    elif kind == "operand":
        by = draws.pick([k for k in ((2, 3) if step.sign == "*" else range(1, 10)) if k != step.by])
        wrong = _computed(step._replace(by=by))
    else:
        signs = [s for s in "+-*" if s != step.sign and (s != "*" or step.by in (2, 3))]
        wrong = _computed(step._replace(sign=draws.pick(signs)))
    return wrong if wrong.value != step.value else None


def _computed(step: Step) -> Step:
    a, b = step.before, step.by
    return step._replace(value={"+": a + b, "-": a - b, "*": a * b}[step.sign])


def _carried_on(steps: list[Step], at: int, slipped: Step) -> str | None:
    """The chain with that step in place of its ``at``-th, the rest computed from it; None out of range."""
    chain = [*steps[:at], slipped]
    for step in steps[at + 1 :]:
        chain.append(_computed(step._replace(before=chain[-1].value)))
    in_range = all(1 <= step.value <= LARGEST for step in chain)
    return ",".join(map(str, chain)) if in_range else None
