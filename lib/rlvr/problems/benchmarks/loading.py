"""Loading: problems to evaluate on, and problems to train on."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from rlvr.problems.benchmarks.catalogue import Benchmark, get_benchmark
from rlvr.problems.benchmarks.duplicates import drop_duplicates
from rlvr.problems.benchmarks.livecodebench import parse_window
from rlvr.problems.benchmarks.problem import BenchmarkProblem
from rlvr.problems.benchmarks.records import read_problems
from rlvr.problems.benchmarks.sources import find_file


class BenchmarkWarning(UserWarning):
    """A file was read whose number of problems is not the benchmark's."""


def load_benchmark(
    name: str,
    data_dir: str | Path | None = None,
    levels: Sequence[int | str] | None = None,
    window: tuple[str, str] | Literal["all"] | None = None,
    limit: int | None = None,
    split: str | None = None,
) -> list[BenchmarkProblem]:
    """The problems of a benchmark, in the published order.

    Args:
        name: as in ``data/benchmarks.yaml``.
        data_dir: folder with ``<name>.jsonl[.gz]``; None looks into ``$RLVR_DATA``, then into what
            ``rlvr data fetch`` downloaded.
        levels: keep these levels only (MATH 1..5; LiveCodeBench easy, medium, hard).
        window: contest dates to keep, ``("2025-02", "2025-05")``, both inclusive; a month means all of it.
            None is the benchmark's default in the catalogue, "all" is no window.
        limit: the first so many, after everything else.
        split: keep one part of a benchmark that is published in parts (MBPP: train, test, ...).

    Raises:
        ValueError: unknown name; an argument of another type, or one the benchmark has no field for; a record
            that is no problem.
        FileNotFoundError: the file is not on this machine; says how to get it.
    """
    benchmark = get_benchmark(name)
    _check_limit(limit)
    if split is not None and not isinstance(split, str):
        raise ValueError(f"split={split!r}: allowed is the name of one")
    if levels is not None:
        levels = _list("levels", levels)
    path = find_file(name, data_dir)
    problems = read_problems(path, benchmark)
    if len(problems) not in (benchmark.count, benchmark.fetched_count):
        text = f"{path} has {len(problems)} problems, {name} has {benchmark.count}: numbers will not compare"
        warnings.warn(text, BenchmarkWarning, stacklevel=2)
    if split is not None:
        problems = _where("split", (split,), [p.metadata.get("split") for p in problems], problems)
    if levels is not None:
        problems = _where("levels", levels, [p.level for p in problems], problems)
    problems = _in_window(problems, benchmark, window)
    return problems if limit is None else problems[:limit]


def load_training_set(
    name: str,
    exclude: Sequence[str] = (),
    duplicates: Literal["drop", "keep"] = "drop",
    data_dir: str | Path | None = None,
    levels: Sequence[int | str] | None = None,
    limit: int | None = None,
    split: str | None = None,
) -> list[BenchmarkProblem]:
    """Problems to train on.

    Args:
        name: a set whose role is ``train``; of an evaluation set only ``split="train"``.
        exclude: evaluation sets; every problem that overlaps one of theirs is left out, see
            :func:`rlvr.problems.benchmarks.contamination`.
        duplicates: "drop" keeps the first of problems whose normalised text is equal, and none of them if
            their gold answers differ, since no reward can then be trusted [choice]; "keep" is the set as
            published.
        data_dir, levels, limit: as in :func:`load_benchmark`.

    Raises:
        ValueError, FileNotFoundError: as in :func:`load_benchmark`, for the sets in ``exclude`` too.
    """
    if get_benchmark(name).role != "train" and split != "train":
        raise ValueError(f"name={name!r}: an evaluation set is not to train on (`split='train'` of MBPP is)")
    if duplicates not in ("drop", "keep"):
        raise ValueError(f"duplicates={duplicates!r}: allowed are 'drop' and 'keep'")
    exclude = _list("exclude", exclude, "names")
    _check_limit(limit)
    problems = load_benchmark(name, data_dir, levels=levels, split=split)
    if exclude:
        from rlvr.problems.benchmarks.overlap import decontaminate

        evaluation: list[BenchmarkProblem] = []
        for other in exclude:
            evaluation += load_benchmark(other, data_dir, window="all")
        problems, _ = decontaminate(problems, evaluation)
    if duplicates == "drop":
        problems = drop_duplicates(problems)
    return problems if limit is None else problems[:limit]


def _list(argument: str, value: Any, of: str = "") -> list[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ValueError(f"{argument}={value!r}: allowed is a list{of and f' of {of}'}")
    return list(value)


def _check_limit(limit: Any) -> None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ValueError(f"limit={limit!r}: allowed are whole numbers from 1")


def _where(
    argument: str, wanted: Sequence[int | str], values: list, problems: list[BenchmarkProblem]
) -> list[BenchmarkProblem]:
    known = sorted({value for value in values if value is not None}, key=str)
    unknown = [value for value in wanted if value not in known]
    if unknown or not wanted:
        allowed = ", ".join(map(repr, known)) or "none, this benchmark has no such field"
        raise ValueError(f"{argument}={list(wanted)!r}: allowed are {allowed}")
    return [problem for problem, value in zip(problems, values, strict=True) if value in wanted]


def _in_window(
    problems: list[BenchmarkProblem], benchmark: Benchmark, window: tuple[str, str] | str | None
) -> list[BenchmarkProblem]:
    if benchmark.form != "livecodebench":
        if window not in (None, "all"):
            raise ValueError(f"window={window!r}: {benchmark.name} has no dates")
        return problems
    window = benchmark.window if window is None else window
    if window is None or window == "all":
        return problems
    start, end = parse_window(window)
    return [p for p in problems if start <= p.metadata["contest_date"][:10] <= end]
