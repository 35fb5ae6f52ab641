"""The same stored responses under several graders: how much of an accuracy is the grader's.

``rlvr`` is :func:`rlvr.verifiers.math.verify_math`; ``math_verify`` is math-verify as its README uses it;
``last_number`` compares the last number of the text with the gold answer as strings. Reported accuracies of
one set of responses differ by points between such graders, so that a difference smaller than their spread
says nothing about a method. Programs have one grader, ``program``: the tests of their benchmark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.verifiers.base import Verdict
from rlvr.verifiers.math import verify_math_batch
from rlvr.verifiers.processes import WorkerPool
from rlvr.verifiers.text_graders import GRADERS, NO_RESPONSE, run_job

PROGRAMS = "program"
_TIMEOUT = 30.0  # seconds; math-verify's own limits, five each for two texts and a comparison, come first


def rescore(
    samples: Any,
    golds: Mapping[str, Any],
    graders: Sequence[str] | None = None,
    *,
    kinds: str | Mapping[str, str] = "auto",
    workers: int = 2,
) -> Any:
    """Every sample under every grader: ``problem, sample, [seed,] grader, correct, extracted, reason``.

    Args:
        samples: a data frame, or the path of a parquet file, with the columns ``problem`` (id), ``sample``
            and ``text``; ``finished`` is used by ``rlvr`` and ``program`` if it is there, ``seed`` is kept.
            A missing ``text`` is no response: undecided under every grader, reason ``no_response``.
        golds: gold answer by problem, or the accepted ones; graders that know one answer only are right if
            any is. Of a program its ``BenchmarkProblem``, or whatever else ``verify_programs`` takes.
        graders: None: all of ``GRADERS``, or ``program`` for programs.
        kinds: of the gold answers, for ``rlvr``; one for all or by problem.
        workers: processes.

    Raises:
        ValueError: an unknown grader; a column that is missing or holds something else; a sample twice; a
            problem without a gold answer or with none in it; programs and mathematics together, or a grader
            that is for the other of the two; workers < 1.
    """
    import pandas as pd

    from rlvr.evaluation.inputs import whole
    from rlvr.evaluation.samples import finished_of, texts_of

    frame, workers = _read(samples), whole("workers", workers)
    programs = _check(frame, golds)
    graders = _graders(graders, programs)
    predictions, finished = texts_of(frame), finished_of(frame)
    accepted = [golds[problem] for problem in frame["problem"]]
    parts = []
    for name in graders:
        if name == PROGRAMS:
            verdicts = _run(predictions, accepted, finished, workers)
        elif name == "rlvr":
            by_problem = kinds if isinstance(kinds, str) else [kinds.get(p, "auto") for p in frame["problem"]]
            verdicts = verify_math_batch(
                predictions, accepted, kind=by_problem, finished=finished, workers=workers
            )
        else:
            verdicts = _each(name, predictions, accepted, workers)
        part = frame[_keys(frame)].reset_index(drop=True)
        part["grader"] = name
        part["correct"] = pd.array([v.correct for v in verdicts], dtype="boolean")
        part["extracted"] = [None if v.extracted is None else str(v.extracted) for v in verdicts]
        part["reason"] = [v.reason for v in verdicts]
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def sensitivity(
    samples: Any,
    golds: Mapping[str, Any],
    graders: Sequence[str] | None = None,
    *,
    kinds: str | Mapping[str, str] = "auto",
    workers: int = 2,
    confidence: float = 0.95,
) -> Any:
    """Accuracy by grader: ``grader, accuracy, low, high, problems, samples, undecided``, one row each.

    The accuracy is avg@k over problems with the interval of :func:`rlvr.evaluation.proportion_mean`; an
    undecided sample is left out of it and counted. ``attrs["line"]`` is the table in one line, with the
    spread. Arguments as in :func:`rescore`. If the samples are graded (columns ``grader`` and ``correct``, as
    :func:`rescore` and the engines write them), those verdicts are taken, under their grader's name, and only
    graders that are missing are run.

    Raises:
        ValueError: as :func:`rescore`; also no sample at all, a grader that is not there and cannot be run
            for want of ``text``, and one that judged fewer samples than another.
    """
    import pandas as pd

    from rlvr.evaluation import proportion_mean

    frame = _read(samples)
    if not len(frame):
        raise ValueError("samples has no rows: there is nothing to grade")
    scored, names = _scored(frame, golds, graders, kinds, workers)
    rows = []
    for name in names:
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
            estimate = proportion_mean(values, part["problem"].to_numpy(), confidence=confidence)
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


def _scored(
    frame: Any, golds: Mapping[str, Any], graders: Sequence[str] | None, kinds: Any, workers: int
) -> tuple[Any, list[str]]:
    """Verdicts of every grader on the same samples, and the graders, stored ones first."""
    import pandas as pd

    keys = _keys(frame)
    if not {"grader", "correct"} <= set(frame.columns):
        scored = rescore(frame, golds, graders, kinds=kinds, workers=workers)
        return scored, list(dict.fromkeys(scored["grader"]))
    _check_keys(frame, [*keys, "grader"])
    stored = list(dict.fromkeys(str(name) for name in frame["grader"]))
    asked = [*stored, *GRADERS] if graders is None else list(graders)
    if graders is None and any(_is_program(golds.get(problem)) for problem in frame["problem"].unique()):
        asked = stored
    asked = list(dict.fromkeys(asked))
    missing = [name for name in asked if name not in stored]
    parts = [frame[frame["grader"] == name] for name in asked if name in stored]
    if missing:
        if "text" not in frame:
            raise ValueError(
                f"graders={missing!r}: the samples were judged by {', '.join(stored)} and have no column "
                "'text', so that no other grader can be run on them"
            )
        texts = frame.drop_duplicates(keys).drop(columns=["grader", "correct"])
        parts.append(rescore(texts, golds, missing, kinds=kinds, workers=workers))
    scored = pd.concat([part[[*keys, "grader", "correct"]] for part in parts], ignore_index=True)
    counts = scored.groupby("grader", sort=False).size()
    if (counts != len(scored.drop_duplicates(keys))).any():
        judged = ", ".join(f"{name} judged {count}" for name, count in counts.items())
        raise ValueError(f"graders must have judged the same samples: {judged}")
    return scored, asked


def _line(rows: Sequence[Mapping[str, Any]]) -> str:
    """``rlvr 0.655 [0.641, 0.669], last_number 0.610 [..]; spread 0.045; undecided: rlvr 2 of 960``."""
    parts = []
    for row in rows:
        interval = "unknown" if row["low"] is None else f"{row['low']:.3f}, {row['high']:.3f}"
        parts.append(f"{row['grader']} {row['accuracy']:.3f} [{interval}]")
    known = [row["accuracy"] for row in rows if row["accuracy"] == row["accuracy"]]
    spread = f"spread {max(known) - min(known):.3f}" if len(known) > 1 else "spread unknown"
    if len(rows) == 1:
        spread = "one grader"
    missing = ", ".join(f"{r['grader']} {r['undecided']} of {r['samples']}" for r in rows if r["undecided"])
    return f"{', '.join(parts)}; {spread}" + (f"; undecided: {missing}" if missing else "")


def _each(
    name: str, predictions: Sequence[str | None], accepted: Sequence[str | Sequence[str]], workers: int
) -> list[Verdict]:
    """One verdict per response of a grader that knows one gold answer: right if any accepted one is."""
    jobs, owner = [], []
    for index, (prediction, golds) in enumerate(zip(predictions, accepted, strict=True)):
        if prediction is None:
            continue
        for gold in (golds,) if isinstance(golds, str) else golds:
            jobs.append((name, prediction, gold))
            owner.append(index)
    if name == "math_verify":
        with WorkerPool("rlvr.verifiers.text_graders:run_job", workers) as pool:
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
    return [verdict or NO_RESPONSE for verdict in best]


def _run(
    predictions: Sequence[str | None], problems: Sequence[Any], finished: Sequence[bool], workers: int
) -> list[Verdict]:
    """Programs against their tests; a response that did not finish is wrong and is not run."""
    from rlvr.verifiers.programs import verify_programs

    run = [index for index, done in enumerate(finished) if done and predictions[index] is not None]
    results = verify_programs([(predictions[i], problems[i]) for i in run], workers) if run else []
    verdicts = [NO_RESPONSE if text is None else Verdict(False, None, "truncated") for text in predictions]
    for index, result in zip(run, results, strict=True):
        verdicts[index] = result.verdict()
    return verdicts


def _read(samples: Any) -> Any:
    import pandas as pd

    return pd.read_parquet(samples) if isinstance(samples, str | Path) else samples


def _keys(frame: Any) -> list[str]:
    return ["problem", "sample", *(["seed"] if "seed" in frame else [])]


def _is_program(gold: Any) -> bool:
    return gold is not None and not isinstance(gold, str) and not isinstance(gold, Sequence)


def _graders(graders: Sequence[str] | None, programs: bool) -> list[str]:
    allowed = [PROGRAMS] if programs else list(GRADERS)
    what = "programs" if programs else "answers of mathematics"
    if graders is not None and (isinstance(graders, str) or not len(graders)):
        raise ValueError(f"graders={graders!r}: allowed is a list of {', '.join(map(repr, allowed))}")
    for name in graders or ():
        if name not in allowed:
            raise ValueError(f"graders={name!r}: allowed for {what} are {', '.join(map(repr, allowed))}")
    return allowed if graders is None else list(dict.fromkeys(graders))


def _check_keys(frame: Any, keys: Sequence[str], *others: str) -> None:
    """Whether the columns are there and tell the samples apart."""
    for column in (*keys, *others):
        if column not in frame:
            raise ValueError(f"samples has no column {column!r}: it has {', '.join(map(str, frame.columns))}")
        if column in keys and frame[column].isna().any():
            raise ValueError(f"samples: column {column!r} holds missing values: only text may")
    if frame.duplicated(list(keys)).any():
        raise ValueError(
            f"samples repeat a ({', '.join(keys)}): allowed is each once; of several models select one first"
        )


def _check(frame: Any, golds: Mapping[str, Any]) -> bool:
    """Whether the samples are of programs."""
    _check_keys(frame, _keys(frame), "text")
    problems = sorted(set(frame["problem"]))
    if missing := [p for p in problems if p not in golds]:
        raise ValueError(f"golds has no answer for {len(missing)} problems, among them {missing[0]!r}")
    if empty := [
        p
        for p in problems
        if golds[p] is None
        or isinstance(golds[p], float)  # NaN
        or (isinstance(golds[p], Sequence) and golds[p] != "" and not len(golds[p]))
    ]:
        raise ValueError(
            f"golds has an empty answer for {len(empty)} problems, among them {empty[0]!r}: allowed are an "
            "answer, several, and for a program its BenchmarkProblem, whose tests grade it"
        )
    for p in problems:
        if isinstance(golds[p], Sequence) and not all(isinstance(gold, str) for gold in golds[p]):
            raise ValueError(f"golds of {p!r} are {golds[p]!r:.80}: allowed are strings")
    programs = [p for p in problems if _is_program(golds[p])]
    if programs and len(programs) < len(problems):
        raise ValueError(
            f"samples hold programs ({programs[0]!r}) and mathematics, which share no grader: allowed are "
            "samples of one kind"
        )
    return bool(programs)
