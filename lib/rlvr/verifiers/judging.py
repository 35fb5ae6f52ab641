"""The exact verdict on a response, in this process, and what it leaves open.

:mod:`rlvr.verifiers.extraction` finds the answer, :mod:`rlvr.verifiers.answers.readings` reads it,
:mod:`rlvr.verifiers.exact` compares it. What none of them decides is handed back as :class:`Open`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlvr.verifiers import exact, golds
from rlvr.verifiers.answers import numeric
from rlvr.verifiers.answers.notation import normalize
from rlvr.verifiers.answers.readings import readings
from rlvr.verifiers.answers.tree import Beyond, Dots, Node, Seq, Text
from rlvr.verifiers.answers.words import CHANGING
from rlvr.verifiers.base import Verdict
from rlvr.verifiers.extraction import MAX_ANSWER, extract

MAX_OPEN = 500  # characters of an answer that math-verify is asked about
_CHOICE = re.compile(r"\(?([A-J])[).:](?=\s|\\|\$|$)|\(([A-J])\)")
_OTHER = re.compile(r"\b(?:or|and)\b|\([A-J]\)|\b[A-J][).:]|,\s*[A-J]\b")
_UPRIGHT = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|textup|mathrm|mathbf)(?![A-Za-z])\s*|[{}$]")
_DOTS = re.compile(r"\\(?:ldots|dots|cdots|vdots)|\.\.\.|…")
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}|\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{3,}")
_INSIDE = re.compile(r"\\(?:text[a-z]*|mbox|hbox)\s*\{[^{}]*[^{}\s.,;:]|\\mathrm\s*\{[^{}]*[A-Za-z]{2}")


@dataclass(frozen=True, slots=True)
class Open:
    """A pair that is still to be decided by math-verify."""

    gold: str
    answer: str
    gold_readable: bool
    answer_readable: bool


def judge(
    prediction: str, gold: str | Sequence[str], kind: str, finished: bool, fallback: bool
) -> tuple[Verdict, list[Open]]:
    """The verdict as far as it is known without math-verify, and what is open. Never raises."""
    try:
        return _judge(prediction, gold, kind, finished, fallback)
    except Exception:  # a fault of ours must not be a fault of the response
        return Verdict(None, None, "error"), []


def _judge(
    prediction: str, gold: str | Sequence[str], kind: str, finished: bool, fallback: bool
) -> tuple[Verdict, list[Open]]:
    several = gold if isinstance(gold, Sequence) and not isinstance(gold, str) else (gold,)
    accepted = [golds.read_gold(g, kind) for g in several]
    usable = [g for g in accepted if g.problem is None]
    if not usable:
        return Verdict(None, None, "bad_gold"), []
    if not isinstance(prediction, str):
        return Verdict(None, None, "no_response"), []
    found = extract(prediction, fallback=fallback)
    extracted = found.candidates[0] if found is not None and found.candidates else None
    if not finished:
        return Verdict(False, extracted, "truncated"), []
    if extracted is None:
        return Verdict(False, None, "no_answer"), []
    outcomes = [_against(g, found.candidates, kind) for g in usable]
    for verdict, _ in outcomes:
        if verdict.correct:
            return verdict, []
    pending = [item for _, open_ in outcomes for item in open_]
    undecided = [verdict for verdict, open_ in outcomes if verdict.correct is None and not open_]
    return (undecided or [verdict for verdict, _ in outcomes])[0], pending


def _against(gold: golds.Gold, candidates: Sequence[str], kind: str) -> tuple[Verdict, list[Open]]:
    """One gold answer against what was found: the first candidate that can be read is the answer."""
    for answer in candidates:
        if len(answer) > MAX_ANSWER:
            return Verdict(False, answer[:200], "too_long"), []
        if _same_text(gold, answer):
            return Verdict(True, answer, "correct"), []
    for answer in candidates:
        try:
            nodes = readings(answer)
        except Beyond:
            return Verdict(False, answer[:200], "too_large"), []
        prose = nodes and isinstance(nodes[0], Text) and not isinstance(gold.node, Text)
        if nodes and not (prose and answer is not candidates[-1]):
            return _compare(gold, answer, nodes, kind)
    answer = candidates[-1]
    if kind == "integer":
        return Verdict(False, answer, "not_an_integer"), []
    formula = any(c.isdigit() or c == "\\" for c in answer) and not _prose(answer)
    dots = _DOTS.search(answer) or _DOTS.search(gold.text)
    if (
        dots
        or not formula
        or _worded(answer)
        or (gold.node is None and _worded(gold.text))
        or len(answer) > max(MAX_OPEN, 4 * len(gold.text))
    ):
        if gold.node is None:
            return Verdict(None, answer, "bad_gold"), []
        return Verdict(False, answer, "unreadable"), []
    return Verdict(None, answer, "undecided"), [Open(gold.text, answer, gold.node is not None, False)]


def _compare(gold: golds.Gold, answer: str, nodes: Sequence[Node], kind: str) -> tuple[Verdict, list[Open]]:
    if gold.node is None:
        if _worded(gold.text):
            return Verdict(None, answer, "bad_gold"), []
        return Verdict(None, answer, "undecided"), [Open(gold.text, answer, False, True)]
    rules = exact.Rules(whole=kind == "integer", floating=kind == "float")
    results = []
    for node in nodes:
        try:
            results.append(exact.compare(gold=gold.node, answer=node, rules=rules))
        except numeric.TooLarge:
            return Verdict(False, answer, "too_large"), []
        if results[-1]:
            return Verdict(True, answer, "correct"), []
    if None in results and kind != "integer":
        dots = _DOTS.search(answer) or _DOTS.search(gold.text) or any(map(_has_dots, nodes))
        if dots or len(answer) > max(MAX_OPEN, 4 * len(gold.text)):
            return Verdict(False, answer, "wrong"), []
        return Verdict(None, answer, "undecided"), [Open(gold.text, answer, True, True)]
    if kind == "integer" and not _whole(nodes[0]):
        return Verdict(False, answer, "not_an_integer"), []
    return Verdict(False, answer, "wrong"), []


def _same_text(gold: golds.Gold, answer: str) -> bool:
    if gold.words:
        if golds.as_words(answer) == gold.words:
            return True
        if len(gold.words) != 1:
            return False
        bare = _UPRIGHT.sub("", answer).strip()
        choice = _CHOICE.match(bare)
        return choice is not None and gold.words in choice.groups() and not _OTHER.search(bare, choice.end())
    return gold.node is None and normalize(answer).split() == normalize(gold.text).split()


def _prose(text: str) -> bool:
    """Three words or more: math-verify would read them as products of letters."""
    return len(_WORD.findall(_COMMAND.sub(" ", text))) >= 3


def _worded(text: str) -> bool:
    """Prose, or a word that means something: math-verify would drop it (``5 \\text{ squared}``)."""
    if _INSIDE.search(text) is not None or _prose(text):
        return True
    return any(len(word) > 3 or word.lower() in CHANGING for word in _WORD.findall(_COMMAND.sub(" ", text)))


def _has_dots(node: Node) -> bool:
    return isinstance(node, Seq) and any(isinstance(x, Dots) or _has_dots(x) for x in node.items)


def _whole(node: Node) -> bool:
    value = numeric.exact(node)
    return value is not None and value.denominator == 1
