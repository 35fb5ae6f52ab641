"""Integer answers: the last number of a response against a gold integer, compared as whole numbers.

Rules, each one a choice:

- The *last* number decides, also if the right one came earlier; a comma separates numbers, it does not
  group thousands (the chain of thought ``11+6=17,17-4=13`` is full of such commas).
- A ``-`` is a sign unless a number, a letter or a closing bracket stands directly before it: ``17-4`` ends
  in 4, ``=-4`` in -4.
- Equality is of values: ``007``, ``7.`` and ``7.0`` equal 7, ``-0`` equals 0. Digits are compared as text,
  so there is no rounding and no limit on their number.
- If the last thing that holds a digit is not a whole number (``0.5``, ``1/4``, ``50%``, ``2^3``, ``1e3``,
  ``x7``), the response is wrong. No earlier number takes its place and no part of it is read as the answer.
- A response that reached the length limit without its end token is wrong, whatever it says.
- A gold answer that is not an integer is never a wrong response: the verdict is undecided, and
  :func:`rewards`, which has no value for that, raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlvr.verifiers.base import Verdict

# A candidate is a run of characters that could be one number; the sign is taken only where it is one.
_CANDIDATE = re.compile(r"(?:(?<![0-9A-Za-z_.%)\]}])-)?[0-9A-Za-z_.%^/]+")
_WHOLE = re.compile(r"(-?)0*([0-9]+?)(?:\.0*)?")
_GOLD = re.compile(r"-?[0-9]+")
_DIGIT = re.compile(r"[0-9]")


def _canonical(number: str) -> str | None:
    """``-007.0`` -> ``-7``; None for what is not a whole number."""
    match = _WHOLE.fullmatch(number)
    if match is None:
        return None
    sign, digits = match.groups()
    return digits if digits == "0" else sign + digits


def last_number(text: str) -> str | None:
    """The last run of characters with a digit in it, stripped of a full stop and of underscores around it."""
    for candidate in reversed(_CANDIDATE.findall(text.replace("\N{MINUS SIGN}", "-"))):
        if _DIGIT.search(candidate):
            return candidate.rstrip("._").lstrip("_")
    return None


def verify_integer(prediction: str, gold: str, finished: bool = True) -> Verdict:
    """Grade one response.

    Args:
        prediction: text of the response, without its end token.
        gold: the right answer, an integer in decimal digits.
        finished: whether the response ended by itself within the length limit.

    Returns:
        Verdict whose ``extracted`` is the number as written in the response and whose ``reason`` is one of
        ``correct``, ``wrong``, ``not_an_integer``, ``no_number``, ``truncated`` and, with ``correct=None``,
        ``bad_gold`` or ``no_response``.
    """
    if not isinstance(gold, str) or _GOLD.fullmatch(gold) is None:
        return Verdict(None, None, "bad_gold")
    if not isinstance(prediction, str):
        return Verdict(None, None, "no_response")
    extracted = last_number(prediction)
    if not finished:
        return Verdict(False, extracted, "truncated")
    if extracted is None:
        return Verdict(False, None, "no_number")
    value = _canonical(extracted)
    if value is None:
        return Verdict(False, extracted, "not_an_integer")
    correct = value == _canonical(gold)
    return Verdict(correct, extracted, "correct" if correct else "wrong")


def rewards(
    predictions: Sequence[str], golds: Sequence[str], finished: Sequence[bool] | None = None
) -> list[float]:
    """Exactly one reward per response, in order: 1.0 if correct, else 0.0.

    Raises:
        ValueError: lengths differ, or a gold answer (or a response) that cannot be graded, by index.
    """
    finished = [True] * len(predictions) if finished is None else finished
    if not len(predictions) == len(golds) == len(finished):
        raise ValueError(
            f"predictions, golds and finished must have one entry per response, "
            f"got {len(predictions)}, {len(golds)} and {len(finished)}"
        )
    values = []
    for index, (prediction, gold, done) in enumerate(zip(predictions, golds, finished, strict=True)):
        verdict = verify_integer(prediction, gold, bool(done))
        if verdict.correct is None:
            raise ValueError(
                f"response {index} cannot be graded ({verdict.reason}): gold={gold!r} must be an integer in "
                f"digits and the prediction a string, got {type(prediction).__name__}"
            )
        values.append(1.0 if verdict.correct else 0.0)
    return values
