"""What :mod:`rlvr.verifiers.exact` leaves open, decided by math-verify, in a worker process.

math-verify reads LaTeX through a grammar that stops where it understands no more, replaces an equation by its
right side, and compares values after rounding. So here

- an answer is read to its last token or not at all, and never cut at an equals sign;
- an equation is compared with equations only;
- two values that it calls equal must be so in a proof (their difference simplifies to zero) or to 40 digits,
  relative, at several points; each is called by keyword, since its result depends on the order of its
  arguments.
"""

from __future__ import annotations

import logging
from typing import Any

from rlvr.verifiers.answers.notation import normalize

_ROUNDING = 12  # decimals at which math-verify compares elements of sets


def prepare() -> None:
    """What the first job would otherwise pay for: imports, and the tables of the grammar."""
    decide(("\\frac{x}{2}", "\\int_0^1 \\frac{x}{2} dt"))


def decide(job: tuple[str, str]) -> str:
    """``correct``, ``wrong``, ``unreadable`` (the answer) or ``bad_gold``, for (gold, answer) as LaTeX."""
    from math_verify.grader import is_equation, verify
    from sympy import Expr

    logging.disable(logging.CRITICAL)
    gold = _read(job[0])
    if gold is None:
        return "bad_gold"
    answer = _read(job[1])
    if answer is None:
        return "unreadable"
    if is_equation(gold) != is_equation(answer):
        return "wrong"
    same = verify(
        gold=gold,
        target=answer,
        float_rounding=_ROUNDING,
        numeric_precision=40,
        allow_set_relation_comp=True,
        timeout_seconds=None,  # the pool keeps the time; math-verify's own needs a main thread
    )
    if same and isinstance(gold, Expr) and isinstance(answer, Expr):
        same = _confirmed(gold, answer)
    return "correct" if same else "wrong"


def _read(text: str) -> Any:
    """The sympy object of a whole text; None unless the grammar takes all of it."""
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy, latex2sympy
    from math_verify.grader import should_treat_as_complex
    from math_verify.parser import LatexExtractionConfig, normalize_latex

    text = normalize_latex(normalize(text), LatexExtractionConfig().normalization_config)
    real = not should_treat_as_complex(text)
    try:
        parser = _Latex2Sympy(is_real=real).create_parser(text)
        parser.math()
        if parser.getCurrentToken().type != -1:  # antlr's end of input
            return None
        return latex2sympy(text, is_real=real, convert_degrees=False, normalization_config=None)
    except Exception:
        return None


def _confirmed(gold: Any, answer: Any) -> bool:
    """Equal to 40 digits at three points, or, where there is no number, a difference that simplifies to
    zero."""
    from sympy import Rational, simplify

    gold, answer = gold.doit(), answer.doit()
    difference = gold - answer
    names = sorted(difference.free_symbols, key=str)
    checked = 0
    for k in range(1, 4):
        point = {name: Rational(7 * k + 3 * index + 1, 5 * k + 2) for index, name in enumerate(names)}
        try:
            size, off = (abs(x.subs(point).evalf(60)) for x in (gold, difference))
            if size.is_finite and off.is_finite:
                if off != 0 and off > size * Rational(1, 10**40):
                    break
                checked += 1
        except Exception:
            continue
    else:
        if checked:
            return True
    return bool(simplify(difference) == 0)
