"""Which extracted answers are one answer in different writing, for votes.

Only the exact comparison is asked: a vote over many answers makes many pairs, and an answer that this
comparison cannot settle (an integral, a sum) votes with its own string.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction
from functools import lru_cache

from rlvr.verifiers import exact, golds
from rlvr.verifiers.answers import numeric
from rlvr.verifiers.answers.notation import normalize
from rlvr.verifiers.answers.readings import readings
from rlvr.verifiers.answers.tree import SCALAR, Beyond
from rlvr.verifiers.extraction import MAX_ANSWER
from rlvr.verifiers.formulas import clean

NEAR = Fraction(1, 10**6)  # relative; two numbers further apart are not one answer


def same_answers(answers: Sequence[str]) -> Sequence[Hashable]:
    r"""A label each; equal labels are the same answer: ``0.5``, ``1/2`` and ``\frac12`` are one.

    A :data:`rlvr.evaluation.voting.Grouping` for the ``extracted`` of :func:`rlvr.verifiers.verify_math`. An
    answer joins the first class whose first member it equals, classes in the order of the shortest and then
    first string; so the order of samples never matters. Equality is that of docs/verifiers-math.md in both
    directions, without its tolerance for measured values.
    """
    heads: list[str] = []
    label: dict[str, str] = {}
    written: dict[str, str] = {}  # normalised: a spelling that has its class
    for answer in sorted(set(answers), key=lambda text: (len(text), text)):
        bare = normalize(clean(answer))
        if bare in written:
            label[answer] = label[written[bare]]
            continue
        head = next((known for known in heads if same_answer(known, answer)), None)
        if head is None:
            heads.append(answer)
        label[answer] = answer if head is None else head
        written[bare] = answer
    return [label[answer] for answer in answers]


def same_answer(first: str, second: str) -> bool:
    """Whether two answers are certainly equal, whichever of them were the gold answer. Never raises."""
    if max(len(first), len(second)) > MAX_ANSWER:
        return first == second
    values = _value(first), _value(second)
    if None not in values and abs(values[0] - values[1]) > NEAR * abs(values[0]):
        return False  # most pairs; 50 is not 50%, though each may stand for the other as a gold answer
    words = golds.as_words(clean(first))
    if words and words == golds.as_words(clean(second)):
        return True
    return _equals(first, second) and _equals(second, first)


@lru_cache(maxsize=1 << 14)
def _value(answer: str) -> Fraction | None:
    """Of an answer that is a real number, to 40 digits, else None."""
    try:
        nodes = readings(clean(answer))
        return numeric.number(nodes[0]) if len(nodes) == 1 and isinstance(nodes[0], SCALAR) else None
    except (Beyond, numeric.TooLarge, RecursionError):
        return None


def _equals(gold: str, answer: str) -> bool:
    try:
        nodes = readings(clean(gold))
        return bool(nodes) and any(
            exact.compare(gold=nodes[0], answer=node) is True for node in readings(clean(answer))
        )
    except (Beyond, numeric.TooLarge, RecursionError):
        return False
