"""Checking what is on this machine: counts, duplicates, gold answers, contamination."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlvr.problems.benchmarks.catalogue import Benchmark, get_benchmark, load_catalogue
from rlvr.problems.benchmarks.duplicates import conflict, duplicate_groups
from rlvr.problems.benchmarks.livecodebench import all_tests
from rlvr.problems.benchmarks.loading import load_benchmark
from rlvr.problems.benchmarks.overlap import Overlap, contamination_of
from rlvr.problems.benchmarks.problem import BenchmarkProblem
from rlvr.problems.benchmarks.records import INTEGER, content_sha256, examine
from rlvr.problems.benchmarks.sources import MissingData, find_file, search_path

MOST_FAULTS = 20  # of one file that are listed

# golds as (id, text) and the verifier's kind -> (id, text, reason) of those that fail
GoldTest = Callable[[Iterable[tuple[str, str]], str], list[tuple[str, str, str]]]


@dataclass(frozen=True)
class Report:
    """What was found in one problem set."""

    name: str
    path: Path | None = None  # None: not on this machine
    faults: tuple[str, ...] = ()  # records that are no problems, and where; at most MOST_FAULTS
    more_faults: int = 0  # how many beyond these
    count: int = 0
    expected: tuple[int, ...] = ()
    known_copy: bool | None = None  # byte for byte the copy of the catalogue; None: none is recorded
    duplicates: tuple[tuple[str, ...], ...] = ()  # ids of problems that are the same text
    conflicts: tuple[tuple[str, ...], ...] = ()  # those among them with different golds
    empty_golds: tuple[str, ...] = ()
    weak_golds: tuple[tuple[str, str], ...] = ()  # id and why it does not surely equal itself
    golds_tested: int = 0
    bad_tests: tuple[str, ...] = ()  # programs whose tests cannot be decoded
    overlaps: dict[str, tuple[Overlap, ...]] = field(default_factory=dict)  # by training set

    @property
    def problems(self) -> tuple[str, ...]:
        """What makes a number wrong or not comparable; overlaps and duplicates are facts, not faults."""
        if self.path is None:
            return ()
        found = list(self.faults)
        if self.more_faults:
            found.append(f"and {self.more_faults} more faulty records")
        if not self.faults and self.count not in self.expected:
            found.append(f"{self.count} problems, expected {' or '.join(map(str, self.expected))}")
        if self.empty_golds:
            found.append(f"{len(self.empty_golds)} empty golds: {_some(self.empty_golds)}")
        if self.bad_tests:
            found.append(f"{len(self.bad_tests)} without readable tests: {_some(self.bad_tests)}")
        return tuple(found)


def check(
    names: Sequence[str] = (),
    data_dir: str | Path | None = None,
    *,
    gold_test: GoldTest | None = None,
    cache: Path | None = None,
) -> list[Report]:
    """Reports on problem sets, in the catalogue's order; overlaps with every training set that is here.

    Args:
        names: empty is all.
        data_dir: as in :func:`rlvr.problems.benchmarks.load_benchmark`.
        gold_test: which golds are not graded correct against themselves; None tests only that the golds
            of integer benchmarks are integers. See :func:`verifier_gold_test`.
        cache: folder for overlaps; None is the usual one.

    Raises:
        ValueError: an unknown name. FileNotFoundError: a folder that was named does not exist.
    """
    search_path(data_dir)  # a folder that was named must exist
    catalogue = load_catalogue()
    chosen = [get_benchmark(name) for name in names] or list(catalogue.values())
    train = [b for b in catalogue.values() if b.role == "train"]
    loaded: dict[str, list[BenchmarkProblem]] = {}
    reports: dict[str, Report] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the count is in the report
        for benchmark in dict.fromkeys([b.name for b in [*chosen, *train]]):
            try:
                loaded[benchmark] = load_benchmark(benchmark, data_dir, window="all")
            except MissingData:
                reports[benchmark] = Report(benchmark)
            except ValueError:
                reports[benchmark] = _faulty(benchmark, find_file(benchmark, data_dir))
    tests = [b.name for b in chosen if b.role == "evaluation" and b.kind == "math"]
    evaluations = {name: loaded[name] for name in tests if name in loaded}
    overlaps: dict[str, dict[str, tuple[Overlap, ...]]] = {name: {} for name in evaluations}
    for benchmark in train:
        if benchmark.name in loaded and evaluations:
            for name, found in contamination_of(loaded[benchmark.name], evaluations, cache).items():
                overlaps[name][benchmark.name] = tuple(found)
    return [
        reports[b.name]
        if b.name in reports
        else _report(b, loaded[b.name], find_file(b.name, data_dir), gold_test, overlaps.get(b.name, {}))
        for b in chosen
    ]


def _faulty(name: str, path: Path) -> Report:
    """All that is wrong with the records of a file, not only the first."""
    faults, count, good = [], 0, 0
    for found in examine(path, get_benchmark(name)):
        if isinstance(found, BenchmarkProblem):
            good += 1
        else:
            count += 1
            if count <= MOST_FAULTS:
                faults.append(str(found))
    return Report(name, path, tuple(faults), count - len(faults), good)


def _report(
    benchmark: Benchmark,
    problems: list[BenchmarkProblem],
    path: Path,
    gold_test: GoldTest | None,
    overlaps: dict[str, tuple[Overlap, ...]],
) -> Report:
    groups = duplicate_groups(problems)
    golds = [problem for problem in problems if problem.kind == "math"]
    empty = tuple(problem.id for problem in golds if not problem.answer.strip())
    filled = [problem for problem in golds if problem.answer.strip()]
    weak, tested = _weak_golds(filled, gold_test)
    ids = tuple(tuple(problem.id for problem in group) for group in groups)
    return Report(
        name=benchmark.name,
        path=path,
        count=len(problems),
        expected=tuple(dict.fromkeys((benchmark.count, benchmark.fetched_count))),
        known_copy=None if benchmark.sha256 is None else content_sha256(path) == benchmark.sha256,
        duplicates=ids,
        conflicts=tuple(names for names, group in zip(ids, groups, strict=True) if conflict(group)),
        empty_golds=empty,
        weak_golds=tuple(weak),
        golds_tested=tested,
        bad_tests=tuple(problem.id for problem in problems if not _has_tests(problem)),
        overlaps=overlaps,
    )


def _weak_golds(
    problems: list[BenchmarkProblem], gold_test: GoldTest | None
) -> tuple[list[tuple[str, str]], int]:
    """Golds that fail, and how many were tested; without a verifier only integers are."""
    weak, tested = [], 0
    for kind in sorted({problem.grading for problem in problems}):
        golds = [(problem.id, problem.answer) for problem in problems if problem.grading == kind]
        if kind == "integer":
            weak += [(name, "not_an_integer") for name, gold in golds if not INTEGER.fullmatch(gold)]
        elif gold_test is None:
            continue
        else:
            weak += [(name, reason) for name, _, reason in gold_test(golds, kind)]
        tested += len(golds)
    return weak, tested


def _has_tests(problem: BenchmarkProblem) -> bool:
    if problem.tests is None or "public_tests" not in problem.tests:
        return True  # their presence was checked on reading
    try:
        return bool(all_tests(problem.tests))
    except ValueError:
        return False


def verifier_gold_test() -> GoldTest | None:
    """The verifier's own test of golds; None where it, or what it needs, cannot be imported."""
    try:
        from rlvr.verifiers.golds import self_test
    except ImportError:
        return None
    return self_test


def describe(report: Report) -> list[str]:
    """A report in lines of text."""
    if report.path is None:
        return [f"{report.name}: not on this machine"]
    head = f"{report.name}: {report.path}"
    if report.faults:
        total = len(report.faults) + report.more_faults
        lines = [head, f"  {report.count} problems, {total} faulty records"]
        return lines + [f"  FAULT {text}" for text in report.problems]
    copy = {True: ", the recorded copy", False: ", not the recorded copy", None: ""}[report.known_copy]
    lines = [head, f"  {report.count} problems{copy}"]
    lines += [f"  FAULT {text}" for text in report.problems]
    if report.duplicates:
        repeated = sum(len(group) - 1 for group in report.duplicates)
        text = f"  {repeated} repeat an earlier problem: {_some(['='.join(g) for g in report.duplicates])}"
        if report.conflicts:
            text += f"; {len(report.conflicts)} groups disagree about the answer"
        lines.append(text)
    if report.weak_golds:
        text = _some([f"{name} ({reason})" for name, reason in report.weak_golds])
        lines.append(f"  {len(report.weak_golds)} of {report.golds_tested} golds are hard to grade: {text}")
    for train, overlaps in report.overlaps.items():
        if overlaps:
            exact = [overlap.eval_id for overlap in overlaps if overlap.kind == "exact"]
            near = [f"{o.eval_id} {o.share:.2f}" for o in overlaps if o.kind == "near"]
            parts = [f"{len(exact)} verbatim: {_some(exact)}"] if exact else []
            parts += [f"{len(near)} near: {_some(near)}"] if near else []
            lines.append(f"  in {train}: {'; '.join(parts)}")
    return lines


def _some(items: Sequence[str], most: int = 5) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
