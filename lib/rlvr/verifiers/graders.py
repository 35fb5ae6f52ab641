"""The same stored responses under several graders: how much of an accuracy is the grader's.

``rlvr`` is :func:`rlvr.verifiers.math.verify_math`; ``math_verify`` is math-verify as its README uses it;
``last_number`` compares the last number of the text with the gold answer as strings. Reported accuracies of
one set of responses differ by points between such graders, so that a difference smaller than their spread
says nothing about a method.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.verifiers.base import Verdict
from rlvr.verifiers.math import verify_math, verify_math_batch
from rlvr.verifiers.processes import WorkerPool

_LAST = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_ENVIRONMENT = re.compile(r"\$|\\\(|\\\[|\\boxed")
_TIMEOUT = 30.0  # seconds; math-verify's own limits, five each for two texts and a comparison, come first


def grade_rlvr(prediction: str, gold: str) -> Verdict:
    return verify_math(prediction, gold)


def grade_math_verify(prediction: str, gold: str) -> Verdict:
    """``verify(parse(gold), parse(answer))``, with a gold answer outside of LaTeX delimiters put into
    ``$..$``.

    False where math-verify finds nothing or fails, as in its README; None only if it cannot read the gold
    answer. Its time limits hold in a main thread only: elsewhere there is none.
    """
    from math_verify import parse, verify

    seconds = 5 if threading.current_thread() is threading.main_thread() else None
    delimited = gold if _ENVIRONMENT.search(gold) else f"${gold}$"
    right = parse(delimited, parsing_timeout=seconds)
    if not right:
        return Verdict(None, None, "bad_gold")
    answer = parse(prediction, parsing_timeout=seconds)
    correct = bool(verify(right, answer, timeout_seconds=seconds))
    return Verdict(correct, str(answer[-1]) if answer else None, "correct" if correct else "wrong")


def grade_last_number(prediction: str, gold: str) -> Verdict:
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


def rescore(
    samples: Any,
    golds: Mapping[str, str | Sequence[str]],
    graders: Sequence[str] = tuple(GRADERS),
    *,
    kinds: str | Mapping[str, str] = "auto",
    workers: int = 2,
) -> Any:
    """Every sample under every grader: a frame with ``problem, sample, grader, correct, extracted, reason``.

    Args:
        samples: a data frame, or the path of a parquet file, with the columns ``problem`` (id), ``sample``
            and ``text``; ``finished`` is used by ``rlvr`` if it is there.
        golds: gold answer by problem, or the accepted ones; graders that know one answer only are right if
            any is.
        kinds: of the gold answers, for ``rlvr``; one for all or by problem.
        workers: processes.

    Raises:
        ValueError: an unknown grader, a missing column, a problem without a gold answer.
    """
    import pandas as pd

    frame = pd.read_parquet(samples) if isinstance(samples, str | Path) else samples
    _check(frame, golds, graders)
    predictions = [str(text) for text in frame["text"]]
    accepted = [golds[problem] for problem in frame["problem"]]
    parts = []
    for name in graders:
        if name == "rlvr":
            by_problem = kinds if isinstance(kinds, str) else [kinds.get(p, "auto") for p in frame["problem"]]
            finished = [bool(x) for x in frame["finished"]] if "finished" in frame else None
            verdicts = verify_math_batch(
                predictions, accepted, kind=by_problem, finished=finished, workers=workers
            )
        else:
            verdicts = _each(name, predictions, accepted, workers)
        part = frame[["problem", "sample"]].reset_index(drop=True)
        part["grader"] = name
        part["correct"] = pd.array([v.correct for v in verdicts], dtype="boolean")
        part["extracted"] = [None if v.extracted is None else str(v.extracted) for v in verdicts]
        part["reason"] = [v.reason for v in verdicts]
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def sensitivity(
    samples: Any,
    golds: Mapping[str, str | Sequence[str]],
    graders: Sequence[str] = tuple(GRADERS),
    *,
    kinds: str | Mapping[str, str] = "auto",
    workers: int = 2,
    confidence: float = 0.95,
) -> Any:
    """Accuracy by grader: ``grader, accuracy, low, high, problems, samples, undecided``, one row each.

    The accuracy is avg@k over problems with its clustered interval; an undecided sample is left out of it and
    counted. ``attrs["line"]`` is the table in one line, with the spread. Arguments as in :func:`rescore`; a
    frame that :func:`rescore` returned is taken as it is.
    """
    import pandas as pd

    from rlvr.evaluation import clustered_mean

    scored = samples
    if not (hasattr(samples, "columns") and {"grader", "correct"} <= set(samples.columns)):
        scored = rescore(samples, golds, graders, kinds=kinds, workers=workers)
    rows = []
    for name in graders:
        part = scored[scored["grader"] == name]
        values = part["correct"].astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
        undecided = int(part["correct"].isna().sum())
        row: dict[str, Any] = {
            "grader": name,
            "accuracy": float("nan"),
            "low": None,
            "high": None,
            "problems": 0,
        }
        if undecided < len(part):
            estimate = clustered_mean(values, part["problem"].to_numpy(), confidence=confidence)
            row |= {
                "accuracy": estimate.value,
                "low": estimate.low,
                "high": estimate.high,
                "problems": estimate.n,
            }
        rows.append(row | {"samples": len(part), "undecided": undecided})
    table = pd.DataFrame(rows)
    table.attrs["line"] = _line(rows)
    return table


def _line(rows: Sequence[Mapping[str, Any]]) -> str:
    """``rlvr 0.655 [0.641, 0.669], last_number 0.610 [..]; spread 0.045; undecided: rlvr 2 of 960``."""
    parts = []
    for row in rows:
        interval = "unknown" if row["low"] is None else f"{row['low']:.3f}, {row['high']:.3f}"
        parts.append(f"{row['grader']} {row['accuracy']:.3f} [{interval}]")
    known = [row["accuracy"] for row in rows if row["accuracy"] == row["accuracy"]]
    spread = f"{max(known) - min(known):.3f}" if known else "unknown"
    missing = ", ".join(f"{r['grader']} {r['undecided']} of {r['samples']}" for r in rows if r["undecided"])
    return f"{', '.join(parts)}; spread {spread}" + (f"; undecided: {missing}" if missing else "")


def _each(
    name: str, predictions: Sequence[str], accepted: Sequence[str | Sequence[str]], workers: int
) -> list[Verdict]:
    """One verdict per response of a grader that knows one gold answer: right if any accepted one is."""
    jobs, owner = [], []
    for index, (prediction, golds) in enumerate(zip(predictions, accepted, strict=True)):
        for gold in (golds,) if isinstance(golds, str) else golds:
            jobs.append((name, prediction, gold))
            owner.append(index)
    if name == "math_verify":
        with WorkerPool("rlvr.verifiers.graders:run_job", workers) as pool:
            replies = pool.map(jobs, _TIMEOUT)
        verdicts = [
            Verdict(None, None, "timeout" if reply.problem == "timeout" else "crashed")
            if reply.problem
            else reply.value
            for reply in replies
        ]
    else:
        verdicts = [run_job(job) for job in jobs]
    best: list[Verdict | None] = [None] * len(predictions)
    for index, verdict in zip(owner, verdicts, strict=True):
        if (
            best[index] is None
            or verdict.correct
            or (best[index].correct is False and verdict.correct is None)
        ):
            best[index] = verdict if not (best[index] and best[index].correct) else best[index]
    return [verdict or Verdict(None, None, "bad_gold") for verdict in best]


def prepare() -> None:
    """Before a worker's first job: imports, and the tables of math-verify's grammar."""
    run_job(("math_verify", "$1$", "1"))


def run_job(job: tuple[str, str, str]) -> Verdict:
    """(grader, prediction, gold), in a worker."""
    import logging

    logging.disable(logging.CRITICAL)
    name, prediction, gold = job
    return GRADERS[name](prediction, gold)


def _check(frame: Any, golds: Mapping[str, Any], graders: Sequence[str]) -> None:
    for name in graders:
        if name not in GRADERS:
            raise ValueError(f"graders={name!r}: allowed are {', '.join(map(repr, GRADERS))}")
    for column in ("problem", "sample", "text"):
        if column not in frame:
            raise ValueError(f"samples has no column {column!r}: it has {', '.join(map(str, frame.columns))}")
    missing = sorted(set(frame["problem"]) - set(golds))
    if missing:
        raise ValueError(f"golds has no answer for {len(missing)} problems, among them {missing[0]!r}")
