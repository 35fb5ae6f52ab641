r"""Answers to mathematics problems, as True, False or None (undecided).

The answer is found by the rules of :mod:`rlvr.verifiers.extraction`, read by
:mod:`rlvr.verifiers.answers.reader`, and compared exactly, in this process, by :mod:`rlvr.verifiers.exact`;
:mod:`rlvr.verifiers.judging` puts the three together. Only what these leave open goes to math-verify
(:mod:`rlvr.verifiers.symbolic`) in worker processes that are killed at the time limit; so a time limit holds
in any thread and inside a Ray worker, and a verdict hardly ever depends on the installed antlr runtime.

``docs/verifiers-math.md`` lists every rule with its choices.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Sequence

from rlvr.verifiers.base import Verdict
from rlvr.verifiers.judging import Open, judge
from rlvr.verifiers.processes import Reply, WorkerPool
from rlvr.verifiers.versions import runtime

__all__ = ["KINDS", "runtime", "verify_math", "verify_math_batch"]

KINDS = ("auto", "integer", "float", "list")
TARGET = "rlvr.verifiers.symbolic:decide"

_pools: dict[int, WorkerPool] = {}
_pools_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().__setitem__("_pools_lock", threading.Lock()))


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
            as the inside of its last box), so the two are not exchangeable. A response that is nothing but an
            expression (``0.5``) is its own answer, with no box and no ``Answer:``; for two such bare answers
            the order makes no difference except where the rules say so (percent, units, names).
        gold: the right answer; a sequence of accepted ones is right if any is.
        kind: ``auto``; ``integer`` (AIME, AMC, DAPO, ...): a whole number, compared as such; ``float``: a
            decimal gold answer is a measured value, with a relative tolerance of 1e-4;
            ``list``: commas in the gold answer always separate (several answers, order-free), never group
            digits.
        finished: whether the response ended by itself within the length limit.
        fallback: whether prose that marks no answer is graded by its last formula or number (``it is 0.5``);
            else it is ``no_answer``.
        timeout: seconds of processor time in a worker process, at most three times as much on the clock.

    Returns:
        Verdict whose ``extracted`` is the text that was compared, as the response writes it
        (:func:`rlvr.verifiers.equality.same_answers` says which texts are one answer). Reasons: ``correct``,
        ``wrong``; with False also ``truncated``, ``no_answer``, ``not_an_integer``, ``unreadable``,
        ``too_long``, ``too_large``; with None ``bad_gold``, ``no_response``, ``undecided``, ``timeout``,
        ``crashed``, ``error``.

    Raises:
        ValueError: an unknown kind or a timeout <= 0. ImportError: math-verify is needed and absent.
    """
    _check(kind, timeout)
    verdict, pending = judge(prediction, gold, kind, finished, fallback)
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
    first = [judge(*sample, fallback) for sample in zip(predictions, golds, kinds, finished, strict=True)]
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


def _second(verdict: Verdict, pending: Sequence[Open], replies: Sequence[Reply]) -> Verdict:
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
