"""The problems an evaluation file names, and verdicts for their samples; nothing here knows an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rlvr.engines.pretrained.settings import Settings
from rlvr.problems.base import digest
from rlvr.problems.benchmarks import BenchmarkProblem, load_benchmark
from rlvr.problems.files import read_problems
from rlvr.verifiers.integer import verify_integer
from rlvr.verifiers.math import verify_math_batch


@dataclass(frozen=True, slots=True)
class EmbeddedProblem:
    """A generated problem with the fields of a benchmark's that sampling and grading read."""

    id: str
    benchmark: str
    prompt: str
    golds: tuple[str, ...]
    grading: str = "integer"
    grader: str = "integer"  # a chain of thought in signs alone is not for verify_math


def load_problems(settings: Settings) -> list[BenchmarkProblem | EmbeddedProblem]:
    """The subsets, source by source, each in its published order.

    A subset is drawn by a hash of ``subset_seed`` and the problem's id, so that a smaller one is part of a
    larger one; the first problems would not do, since benchmarks are sorted by exam or subject [choice].

    Raises:
        FileNotFoundError: a benchmark or file is not here; says how to get it.
        ValueError: fewer problems than asked for, or an id twice.
    """
    chosen: list[BenchmarkProblem | EmbeddedProblem] = []
    for source in settings.problems:
        if source.benchmark is not None:
            every: list[Any] = load_benchmark(source.benchmark)
        else:
            every = [
                EmbeddedProblem(p.id, "embedded", p.prompt, (p.answer,)) for p in read_problems(source.file)
            ]
        number = len(every) if source.number is None else source.number
        if number > len(every):
            raise ValueError(f"number={number} of {source.benchmark or source.file}: it has {len(every)}")
        rank = {p.id: digest("subset", str(settings.subset_seed), p.id) for p in every}
        kept = set(sorted(rank, key=rank.__getitem__)[:number])
        chosen += [p for p in every if p.id in kept]
    ids = [p.id for p in chosen]
    if len(set(ids)) != len(ids):
        raise ValueError("problems hold an id twice: name each source once")
    return chosen


def grade(samples: pd.DataFrame, problems: Sequence[Any], *, workers: int = 2) -> pd.DataFrame:
    """``samples`` with ``correct``, ``extracted``, ``reason`` and ``grader`` filled in.

    Benchmarks are graded by ``verify_math`` (grader ``rlvr``), generated problems by ``verify_integer``.

    Args:
        samples: from any engine's ``sample``.
        problems: objects with ``id``, ``golds`` and ``grading``.
        workers: processes for what exact comparison leaves open.

    Raises:
        ValueError: a sample of a problem that is not there.
    """
    by_id = {p.id: p for p in problems}
    unknown = sorted(set(samples["problem"]) - set(by_id))
    if unknown:
        raise ValueError(
            f"samples hold {len(unknown)} problems that are not given, among them {unknown[0]!r}"
        )
    asked = [by_id[name] for name in samples["problem"]]
    graders = [getattr(p, "grader", "rlvr") for p in asked]
    texts, finished = samples["text"].tolist(), samples["finished"].tolist()
    verdicts: list[Any] = [None] * len(asked)
    mathematics = [i for i, grader in enumerate(graders) if grader == "rlvr"]
    found = verify_math_batch(
        [texts[i] for i in mathematics],
        [asked[i].golds for i in mathematics],
        kind=[asked[i].grading for i in mathematics],
        finished=[finished[i] for i in mathematics],
        workers=workers,
    )
    for index, verdict in zip(mathematics, found, strict=True):
        verdicts[index] = verdict
    for index, grader in enumerate(graders):
        if grader == "integer":
            verdicts[index] = verify_integer(texts[index], asked[index].golds[0], finished[index])
    return samples.assign(
        correct=pd.array([v.correct for v in verdicts], dtype="boolean"),
        extracted=pd.array(
            [None if v.extracted is None else str(v.extracted) for v in verdicts], dtype="string"
        ),
        reason=pd.array([v.reason for v in verdicts], dtype="string"),
        grader=pd.array(graders, dtype="string"),
    )
