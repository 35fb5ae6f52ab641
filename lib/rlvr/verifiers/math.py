r"""Answers to mathematics problems, as True, False or None (undecided).

The answer is found by the rules of :mod:`rlvr.verifiers.extraction`, read by
:mod:`rlvr.verifiers.answers.reader`, and compared exactly, in this process, by :mod:`rlvr.verifiers.exact`.
Only what these leave open goes to math-verify (:mod:`rlvr.verifiers.symbolic`) in worker processes that are
killed at the time limit; so a time limit holds in any thread and inside a Ray worker, and a verdict hardly
ever depends on the installed antlr runtime.

``docs/verifiers-math.md`` lists every rule with its choices.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rlvr.verifiers import exact, golds
from rlvr.verifiers.answers import numeric
from rlvr.verifiers.answers.notation import ambiguous, normalize, tokenize
from rlvr.verifiers.answers.reader import read
from rlvr.verifiers.answers.tree import Beyond, Dots, Node, Seq, Text, Unreadable
from rlvr.verifiers.base import Verdict
from rlvr.verifiers.extraction import MAX_ANSWER, extract
from rlvr.verifiers.processes import Reply, WorkerPool
from rlvr.verifiers.versions import runtime

__all__ = ["KINDS", "runtime", "verify_math", "verify_math_batch"]

KINDS = ("auto", "integer", "float", "list")
MAX_OPEN = 500  # characters of an answer that math-verify is asked about
TARGET = "rlvr.verifiers.symbolic:decide"
_CHOICE = re.compile(r"\(?([A-J])[).:](?=\s|\\|\$|$)|\(([A-J])\)")
_OTHER = re.compile(r"\b(?:or|and)\b|\([A-J]\)|\b[A-J][).:]|,\s*[A-J]\b")
_UPRIGHT = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf)(?![A-Za-z])\s*|[{}$]")
_DOTS = re.compile(r"\\(?:ldots|dots|cdots|vdots)|\.\.\.|…")
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}|\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{3,}")
_NUMBER = re.compile(r"[-+]?\d{1,300}")

_pools: dict[int, WorkerPool] = {}
_pools_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().__setitem__("_pools_lock", threading.Lock()))


@dataclass(frozen=True, slots=True)
class _Open:
    """A pair that is still to be decided by math-verify."""

    gold: str
    answer: str
    gold_readable: bool
    answer_readable: bool


def verify_math(
    prediction: str,
    gold: str | Sequence[str],
    *,
    kind: str = "auto",
    finished: bool = True,
    fallback: bool = True,
    timeout: float = 5.0,
) -> Verdict:
    """Grade one response.

    Args:
        prediction: text of the response. It is searched for its answer; the gold answer is taken as it is (or
            as the inside of its last box), so the two are not exchangeable. For two bare answers the order
            makes no difference except where the rules say so (percent, units, names).
        gold: the right answer; a sequence of accepted ones is right if any is.
        kind: ``auto``; ``integer`` (AIME, AMC, DAPO, ...): a whole number, compared as such; ``float``: a
            decimal gold answer is a measured value, with a relative tolerance of ``exact.FLOAT_TOLERANCE``;
            ``list``: commas in the gold answer always separate (several answers, order-free), never group
            digits.
        finished: whether the response ended by itself within the length limit.
        fallback: whether a response that marks no answer is graded by its last formula or number.
        timeout: seconds for the part that runs in a worker process.

    Returns:
        Verdict whose ``extracted`` is the text that was compared. Reasons: ``correct``, ``wrong``; with False
        also ``truncated``, ``no_answer``, ``not_an_integer``, ``unreadable``, ``too_long``, ``too_large``;
        with None ``bad_gold``, ``no_response``, ``undecided``, ``timeout``, ``crashed``, ``error``.

    Raises:
        ValueError: an unknown kind or a timeout <= 0. ImportError: math-verify is needed and absent.
    """
    _check(kind, timeout)
    verdict, pending = _first(prediction, gold, kind, finished, fallback)
    if pending:
        replies = [_pool(1).run((item.gold, item.answer), timeout) for item in pending]
        return _second(verdict, pending, replies)
    return verdict


def verify_math_batch(
    predictions: Sequence[str],
    golds: Sequence[str | Sequence[str]],
    *,
    kind: str | Sequence[str] = "auto",
    finished: Sequence[bool] | None = None,
    fallback: bool = True,
    timeout: float = 5.0,
    workers: int | None = None,
) -> list[Verdict]:
    """Exactly one verdict per response, in order; as :func:`verify_math` each.

    What is open after the exact comparison runs in ``workers`` processes (default: the number of cores, at
    most 8); ``timeout`` is per response. A worker that dies costs the one response it held (None,
    ``crashed``).
    """
    count = len(predictions)
    kinds = [kind] * count if isinstance(kind, str) else list(kind)
    finished = [True] * count if finished is None else finished
    if not count == len(golds) == len(kinds) == len(finished):
        raise ValueError(
            f"predictions, golds, kind and finished must have one entry per response, "
            f"got {count}, {len(golds)}, {len(kinds)} and {len(finished)}"
        )
    for name in set(kinds) or {"auto"}:
        _check(name, timeout)
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers}: allowed are integers >= 1")
    first = [_first(*sample, fallback) for sample in zip(predictions, golds, kinds, finished, strict=True)]
    pairs = list(dict.fromkeys((item.gold, item.answer) for _, pending in first for item in pending))
    replies: dict[tuple[str, str], Reply] = {}
    if pairs:
        pool = _pool(workers or min(8, os.cpu_count() or 1))
        replies = dict(zip(pairs, pool.map(pairs, timeout), strict=True))
    return [
        _second(verdict, pending, [replies[item.gold, item.answer] for item in pending])
        if pending
        else verdict
        for verdict, pending in first
    ]


def _check(kind: str, timeout: float) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: allowed are {', '.join(map(repr, KINDS))}")
    if not timeout > 0:
        raise ValueError(f"timeout={timeout}: allowed are seconds > 0")


def _pool(workers: int) -> WorkerPool:
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError("math-verify is needed to decide this pair: pip install 'rlvr[evaluation]'")
    with _pools_lock:
        if workers not in _pools:
            _pools[workers] = WorkerPool(TARGET, workers)
        return _pools[workers]


# the exact part, in this process


def _first(
    prediction: str, gold: str | Sequence[str], kind: str, finished: bool, fallback: bool
) -> tuple[Verdict, list[_Open]]:
    """The verdict as far as it is known without math-verify, and what is open. Never raises."""
    try:
        return _judge(prediction, gold, kind, finished, fallback)
    except Exception:  # a fault of ours must not be a fault of the response
        return Verdict(None, None, "error"), []


def _judge(
    prediction: str, gold: str | Sequence[str], kind: str, finished: bool, fallback: bool
) -> tuple[Verdict, list[_Open]]:
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


def _against(gold: golds.Gold, candidates: Sequence[str], kind: str) -> tuple[Verdict, list[_Open]]:
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
        or (gold.node is None and _prose(gold.text))
        or len(answer) > max(MAX_OPEN, 4 * len(gold.text))
    ):
        if gold.node is None:
            return Verdict(None, answer, "bad_gold"), []
        return Verdict(False, answer, "unreadable"), []
    return Verdict(None, answer, "undecided"), [_Open(gold.text, answer, gold.node is not None, False)]


def _compare(gold: golds.Gold, answer: str, nodes: Sequence[Node], kind: str) -> tuple[Verdict, list[_Open]]:
    if gold.node is None:
        if _prose(gold.text):
            return Verdict(None, answer, "bad_gold"), []
        return Verdict(None, answer, "undecided"), [_Open(gold.text, answer, False, True)]
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
        return Verdict(None, answer, "undecided"), [_Open(gold.text, answer, True, True)]
    if kind == "integer" and not _whole(nodes[0]):
        return Verdict(False, answer, "not_an_integer"), []
    return Verdict(False, answer, "wrong"), []


@lru_cache(maxsize=1 << 14)
def readings(text: str) -> tuple[Node, ...]:
    """The trees a text may stand for: two where a comma may group digits or separate; none if unreadable.

    Raises Beyond for a text that is too large or too deep to read.
    """
    if _NUMBER.fullmatch(text):
        return (read([("num", text.lstrip("+-"))] if text[0] != "-" else [("-", "-"), ("num", text[1:])]),)
    result: list[Node] = []
    bare = normalize(text)
    for grouped in (True, False) if ambiguous(bare) else (True,):
        try:
            result.append(read(tokenize(bare, grouped=grouped)))
        except Beyond:
            raise
        except Unreadable:
            continue
    if re.fullmatch(r"[-+]?\d+,(?!\d{3}\Z)\d+", bare):  # a decimal comma
        result.append(read(tokenize(bare.replace(",", "."))))
    return tuple(result)


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


def _has_dots(node: Node) -> bool:
    return isinstance(node, Seq) and any(isinstance(x, Dots) or _has_dots(x) for x in node.items)


def _whole(node: Node) -> bool:
    value = numeric.exact(node)
    return value is not None and value.denominator == 1


# the rest, in workers


def _second(verdict: Verdict, pending: Sequence[_Open], replies: Sequence[Reply]) -> Verdict:
    """The verdict once math-verify has been asked: right for one accepted answer is right."""
    answer = pending[-1].answer
    outcomes = []
    for item, reply in zip(pending, replies, strict=True):
        if reply.problem is not None:
            reason = reply.problem if reply.problem in ("timeout", "crashed") else "error"
            outcomes.append(Verdict(None, item.answer, reason))
        elif reply.value == "correct":
            return Verdict(True, item.answer, "correct")
        elif reply.value == "bad_gold" and not item.gold_readable:
            outcomes.append(Verdict(None, item.answer, "bad_gold"))
        elif reply.value in ("bad_gold", "unreadable") and item.answer_readable:
            outcomes.append(Verdict(None, item.answer, "undecided"))  # beyond both
        elif reply.value == "bad_gold":
            outcomes.append(Verdict(False, item.answer, "unreadable"))
        else:
            outcomes.append(Verdict(False, item.answer, reply.value))
    for outcome in outcomes:
        if outcome.correct is None:
            return outcome
    return outcomes[0] if outcomes else Verdict(False, answer, "wrong")
