"""Verdicts for samples, each by the verifier that fits the kind of its problem.

| problem | verifier | column ``grader`` | ``extracted`` |
| --- | --- | --- | --- |
| generated (``integer``) | :func:`rlvr.verifiers.integer.verify_integer` | ``integer`` | the last number |
| generated (``expression``) | ``rewards`` of :mod:`rlvr.problems.program` | ``expression`` | the expression |
| ``math`` | :func:`rlvr.verifiers.math.verify_math` | ``rlvr`` | the answer |
| ``function``, ``stdin`` | :func:`rlvr.verifiers.programs.verify_program` | ``program`` | the program |

Verifiers are imported when a problem needs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from rlvr.evaluation.samples import finished_of, texts_of
from rlvr.notebook import report
from rlvr.verifiers.base import Verdict

GRADER_OF = {"integer": "integer", "expression": "expression", "math": "rlvr"}
GRADER_OF |= {"function": "program", "stdin": "program"}
NOT_ISOLATED = "not_isolated"  # reason of every program where programs cannot be isolated


def grade(samples: pd.DataFrame, problems: Sequence[Any], *, workers: int = 2) -> pd.DataFrame:
    """``samples`` with ``correct``, ``extracted``, ``reason`` and ``grader`` filled in.

    Args:
        samples: ``problem``, ``text``, ``finished``, from any engine. A missing ``text`` is no response: it
            has no verdict, reason ``no_response``.
        problems: with ``id`` and ``kind``, and what their verifier reads.
        workers: processes.

    Returns:
        A new frame. ``attrs["notes"]`` are lines for the reader: why programs were not judged.

    Raises:
        ValueError: a column that is missing or holds something else, a sample of a problem that is not there,
            or a kind of problem without verifier.
    """
    if absent := [name for name in ("problem", "text", "finished") if name not in samples]:
        raise ValueError(f"samples lack the columns {absent}: needed are problem, text, finished")
    by_id = {p.id: p for p in problems}
    if unknown := sorted(set(samples["problem"]) - set(by_id), key=str):
        raise ValueError(
            f"samples hold {len(unknown)} problems that are not given, among them {unknown[0]!r}"
        )
    if odd := sorted({str(p.kind) for p in problems} - set(GRADER_OF)):
        raise ValueError(f"kind={odd[0]!r}: allowed are problems of kind {', '.join(GRADER_OF)}")
    asked = [by_id[name] for name in samples["problem"]]
    graders = [GRADER_OF[p.kind] for p in asked]
    texts, finished = texts_of(samples), finished_of(samples)
    verdicts: list[Any] = [None] * len(asked)
    notes: list[str] = []
    for grader, verify in _VERIFIERS.items():
        rows = [i for i, name in enumerate(graders) if name == grader]
        if not rows:
            continue
        found, said = verify(
            [texts[i] for i in rows], [asked[i] for i in rows], [finished[i] for i in rows], workers
        )
        notes += said
        for index, verdict in zip(rows, found, strict=True):
            verdicts[index] = verdict
    graded = samples.assign(
        correct=pd.array([v.correct for v in verdicts], dtype="boolean"),
        extracted=pd.array(
            [None if v.extracted is None else str(v.extracted) for v in verdicts], dtype="string"
        ),
        reason=pd.array([v.reason for v in verdicts], dtype="string"),
        grader=pd.array(graders, dtype="string"),
    )
    graded.attrs["notes"] = notes
    return graded


Text = str | None  # None: there is no response
Graded = tuple[list[Verdict], list[str]]


def _integers(texts: list[Text], problems: list[Any], finished: list[bool], workers: int) -> Graded:
    from rlvr.verifiers.integer import verify_integer

    pairs = zip(texts, problems, finished, strict=True)
    return [verify_integer(text, problem.answer, done) for text, problem, done in pairs], []


def _expressions(texts: list[Text], problems: list[Any], finished: list[bool], workers: int) -> Graded:
    from rlvr.problems import get_task

    there = [text is not None for text in texts]
    golds, done = [p.answer for p in problems], [a and b for a, b in zip(there, finished, strict=True)]
    rewards = get_task(problems[0].task).rewards([text or "" for text in texts], golds, done)
    verdicts = []
    for text, ended, reward in zip(texts, finished, rewards, strict=True):
        reason = "correct" if reward else "wrong" if ended else "truncated"
        verdicts.append(
            Verdict(None, None, "no_response") if text is None else Verdict(reward == 1.0, text, reason)
        )
    return verdicts, []


def _mathematics(texts: list[Text], problems: list[Any], finished: list[bool], workers: int) -> Graded:
    from rlvr.verifiers.math import verify_math_batch

    golds, kinds = [p.golds for p in problems], [p.grading for p in problems]
    return verify_math_batch(texts, golds, kind=kinds, finished=finished, workers=workers), []


def _programs(texts: list[Text], problems: list[Any], finished: list[bool], workers: int) -> Graded:
    """Isolated as the programs' module decides; where that cannot be had nothing runs, and nothing is judged
    wrong for it."""
    from rlvr.verifiers.programs import IsolationError, ProgramPool

    items = list(zip(texts, problems, strict=True))
    results: list[Any] = [None] * len(items)
    try:
        with ProgramPool(workers) as pool:
            for done in (True, False):  # what was cut off is wrong without being run
                rows = [i for i, whole in enumerate(finished) if whole is done]
                found = pool.verify_many(
                    [items[i] for i in rows],
                    lambda number, total: report(number, total, "programs"),
                    finished=done,
                )
                for index, result in zip(rows, found, strict=True):
                    results[index] = result
    except IsolationError as error:
        note = (
            f"{len(items)} programs were not run and have no verdict: {error} The samples are complete: they "
            "can be graded where programs can be isolated, with rlvr.evaluation.grading.grade."
        )
        return [Verdict(None, None, NOT_ISOLATED)] * len(items), [note]
    undecided = Counter((r.reason, r.first_failure) for r in results if r.correct is None)
    notes = [
        f"{count} programs have no verdict ({reason}{f': {detail}' if detail else ''})."
        for (reason, detail), count in undecided.most_common(3)
    ]
    return [result.verdict() for result in results], notes


_VERIFIERS: dict[str, Callable[[list[Text], list[Any], list[bool], int], Graded]] = {
    "integer": _integers,
    "expression": _expressions,
    "rlvr": _mathematics,
    "program": _programs,
}
