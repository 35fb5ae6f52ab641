"""The reward of a verl job: our verifiers behind ``reward.custom_reward_function``.

    reward.custom_reward_function.path=pkg://rlvr.engines.verl.reward

``SETTINGS`` adds :class:`rlvr.engines.verl.reward_manager.RewardManager`, which also tells the verifiers
whether a response ended by itself; verl's own manager does not.

Rows come from :mod:`rlvr.engines.jobs.rows`: ``extra_info`` names the kind of a problem and its gold answers.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rlvr.engines.jobs.command import REWARD
from rlvr.verifiers.base import Verdict

logger = logging.getLogger(__name__)

SETTINGS = REWARD  # what a job sets to be rewarded by this
POLICIES = ("auto", "drop", "zero")

_counts: Counter[tuple[str, str]] = Counter()  # undecided, by data source and reason, in this process
_lock = threading.Lock()


class Undecided(RuntimeError):
    """Nothing could be said about this response, for a cause outside of it."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | Sequence[str],
    extra_info: Mapping[str, Any] | None = None,
    *,
    finished: bool = True,
    timeout: float = 5.0,
    undecided: str = "auto",
    **_: Any,
) -> dict[str, Any]:
    """Reward of one response: 1.0 if right, 0.0 if wrong, as verl calls it.

    Args:
        data_source, solution_str, ground_truth: as verl passes them.
        extra_info: of the row: ``kind``, ``grading``, ``golds``, ``split``.
        finished: whether the response ended by itself. verl's own reward manager does not pass it, and cuts
            the end token off the text: a response cut off at the length limit is then graded as if it had
            ended. Ours passes it.
        timeout: seconds for the part of a mathematics verdict that runs in a worker process.
        undecided: what becomes of a response about which nothing was decided (a bad gold answer, a verifier
            that died). verl forces a number on every response that it keeps: a NaN would spoil its whole
            group. ``drop`` raises, and verl then leaves the response out of the step, out of its group's
            baseline too; ``zero`` gives 0.0. ``auto``: ``drop`` in rows of the split ``train``, ``zero`` in
            others, where verl would count a dropped response as wrong and forget why.

    Returns:
        ``score``; ``acc``, the same or None if undecided (verl's ``acc_success_only`` leaves it out, its
        ``acc`` counts it 0: nothing to be done about that from here); ``undecided`` 1.0 or 0.0, whose mean
        is the share to look at; ``truncated`` likewise; ``reason``, one word. In validation verl logs the
        means as ``val-aux/<data_source>/<key>/mean@n``.

    Raises:
        Undecided: see ``undecided``. ValueError: a row that :mod:`.data` did not write, an unknown policy.
        IsolationError: programs cannot be isolated on this machine; every response fails and the job stops,
        instead of training on rewards that nobody computed.

    Time limits hold in any thread and in Ray's workers: what may not come back runs in processes that are
    killed (:mod:`rlvr.verifiers.processes`, :mod:`rlvr.verifiers.programs`), never under a signal.
    """
    if undecided not in POLICIES:
        raise ValueError(f"undecided={undecided!r}: allowed are {', '.join(POLICIES)}")
    info = dict(extra_info or {})
    verdict = _verify(info, data_source, solution_str, ground_truth, finished, timeout)
    if verdict.correct is None:
        _count(data_source, verdict.reason, info.get("id"))
        if undecided == "drop" or (undecided == "auto" and info.get("split") == "train"):
            raise Undecided(f"{data_source} {info.get('id')}: {verdict.reason}; the response is left out")
    score = 1.0 if verdict.correct else 0.0
    return {
        "score": score,
        "acc": None if verdict.correct is None else score,
        "undecided": float(verdict.correct is None),
        "truncated": float(not finished),
        "reason": verdict.reason,
    }


def undecided_counts() -> dict[tuple[str, str], int]:
    """How many responses this process could not decide, by (data source, reason)."""
    with _lock:
        return dict(_counts)


def _verify(
    info: Mapping[str, Any],
    data_source: str,
    text: str,
    truth: str | Sequence[str],
    finished: bool,
    timeout: float,
) -> Verdict:
    kind = info.get("kind")
    if kind == "integer":
        from rlvr.verifiers.integer import verify_integer

        return verify_integer(text, truth, finished)
    if kind == "math":
        from rlvr.verifiers.math import verify_math

        golds = list(info.get("golds") or ()) or truth
        grading = info.get("grading") or "auto"
        return verify_math(text, golds, kind=grading, finished=finished, timeout=timeout)
    if kind in ("function", "stdin"):
        from rlvr.verifiers.programs import verify_program

        return verify_program(text, _task(truth), finished=finished).verdict()
    raise ValueError(
        f"extra_info.kind={kind!r} of a row of {data_source!r}: allowed are integer, math, function and "
        "stdin; write the file with rlvr.engines.jobs.rows.write_dataset"
    )


@lru_cache(maxsize=64)  # a group's responses come together; tests of one task can be megabytes
def _task(truth: str) -> Any:
    from rlvr.problems.benchmarks import program_record
    from rlvr.verifiers.programs import ProgramTask

    return ProgramTask.from_record(program_record(json.loads(truth)))


def _count(data_source: str, reason: str, name: Any) -> None:
    """Count, and say so at 1, 2, 4, ... so that no log fills up."""
    with _lock:
        _counts[data_source, reason] += 1
        number = _counts[data_source, reason]
    if number & (number - 1) == 0:
        logger.warning("undecided: %d of %s so far (%s), the last of %s", number, data_source, reason, name)
