"""Graders of one text against one gold answer: ours, math-verify's own, and the last number as a string.

What is no text (None, NaN) is no response: None with the reason ``no_response``, whatever the grader.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from rlvr.verifiers.base import Verdict
from rlvr.verifiers.math import verify_math

NO_RESPONSE = Verdict(None, None, "no_response")
_LAST = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_ENVIRONMENT = re.compile(r"\$|\\\(|\\\[|\\boxed")


def grade_rlvr(prediction: str, gold: str) -> Verdict:
    return verify_math(prediction, gold)


def grade_math_verify(prediction: str, gold: str) -> Verdict:
    """``verify(parse(gold), parse(answer))``, with a gold answer outside of LaTeX delimiters put into
    ``$..$``.

    False where math-verify finds nothing or fails, as in its README; None only if it cannot read the gold
    answer. Its time limits hold in a main thread only: elsewhere there is none.
    """
    from math_verify import parse, verify

    if not isinstance(prediction, str):
        return NO_RESPONSE
    seconds = 5 if threading.current_thread() is threading.main_thread() else None
    delimited = gold if _ENVIRONMENT.search(gold) else f"${gold}$"
    right = parse(delimited, parsing_timeout=seconds)
    if not right:
        return Verdict(None, None, "bad_gold")
    answer = parse(prediction, parsing_timeout=seconds)
    correct = bool(verify(right, answer, timeout_seconds=seconds))
    return Verdict(correct, str(answer[-1]) if answer else None, "correct" if correct else "wrong")


def grade_last_number(prediction: str, gold: str) -> Verdict:
    if not isinstance(prediction, str):
        return NO_RESPONSE
    numbers = _LAST.findall(prediction)
    if not numbers:
        return Verdict(False, None, "no_number")
    last = numbers[-1].replace(",", "")
    correct = last == gold.strip().strip("$").replace(",", "")
    return Verdict(correct, last, "correct" if correct else "wrong")


GRADERS: dict[str, Callable[[str, str], Verdict]] = {
    "rlvr": grade_rlvr,
    "math_verify": grade_math_verify,
    "last_number": grade_last_number,
}


def prepare() -> None:
    """Before a worker's first job: imports, and the tables of math-verify's grammar."""
    run_job(("math_verify", "$1$", "1"))


def run_job(job: tuple[str, str, str]) -> Verdict:
    """(grader, prediction, gold), in a worker."""
    import logging

    logging.disable(logging.CRITICAL)
    name, prediction, gold = job
    return GRADERS[name](prediction, gold)
