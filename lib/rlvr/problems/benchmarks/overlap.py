"""Contamination: evaluation problems that a training set already holds.

*exact*: the normalised texts are equal (:func:`rlvr.problems.benchmarks.duplicates.normalise`). *near*: at
least ``THRESHOLD`` of the evaluation problem's distinct runs of ``N`` words stand in one training problem. A
problem of fewer than ``N`` words can only be exact. Near is a suspicion, not a proof: two problems of one
template with other numbers are near too.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rlvr.problems.benchmarks.catalogue import get_benchmark
from rlvr.problems.benchmarks.duplicates import VERSION, normalise, words
from rlvr.problems.benchmarks.loading import load_benchmark
from rlvr.problems.benchmarks.problem import BenchmarkProblem
from rlvr.problems.benchmarks.sources import MissingData, fetched_dir, ignore_in_git
from rlvr.storage import read_json, write_json

N = 13  # words; the usual length [public: GPT-3 App. C]
THRESHOLD = 0.5  # choice

Ngram = tuple[str, ...]
Pair = tuple[int, int, float]  # index of the evaluation problem, index of the training problem, share


@dataclass(frozen=True, slots=True)
class Overlap:
    """An evaluation problem and the training problem closest to it."""

    eval_id: str
    train_id: str
    kind: Literal["exact", "near"]
    share: float  # of the evaluation problem's n-grams that stand in the training problem; 1 if exact
    train: str = ""  # name of the training set


def _ngrams(text: str) -> set[Ngram]:
    sequence = words(text)
    return set(zip(*(sequence[k:] for k in range(N)), strict=False))


def overlapping_pairs(
    train: Sequence[BenchmarkProblem], evaluations: Mapping[str, Sequence[BenchmarkProblem]]
) -> dict[str, list[tuple[Pair, bool]]]:
    """Per evaluation set every overlapping pair, and whether it is exact; one pass over ``train``."""
    texts: dict[str, list[tuple[str, int]]] = {}
    index: dict[Ngram, list[tuple[str, int]]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for name, problems in evaluations.items():
        for number, problem in enumerate(problems):
            key = (name, number)
            texts.setdefault(normalise(problem.prompt), []).append(key)
            grams = _ngrams(problem.prompt)
            sizes[key] = len(grams)
            for gram in grams:
                index.setdefault(gram, []).append(key)
    pairs: dict[str, list[tuple[Pair, bool]]] = {name: [] for name in evaluations}
    for number, problem in enumerate(train):
        shares = {key: (1.0, True) for key in texts.get(normalise(problem.prompt), ())}
        hits = [gram for gram in _ngrams(problem.prompt) if gram in index]
        for key, count in Counter(key for gram in hits for key in index[gram]).items():
            if count >= THRESHOLD * sizes[key]:
                shares.setdefault(key, (count / sizes[key], False))
        for (name, other), (share, exact) in shares.items():
            pairs[name].append(((other, number, share), exact))
    return pairs


def _closest(
    pairs: Iterable[tuple[Pair, bool]],
    train: Sequence[BenchmarkProblem],
    problems: Sequence[BenchmarkProblem],
) -> list[Overlap]:
    """One overlap per evaluation problem: exact before near, then the largest share, then the first."""
    best: dict[int, tuple[bool, float, int]] = {}
    for (other, number, share), exact in pairs:
        candidate = (exact, share, -number)
        best[other] = max(best.get(other, candidate), candidate)
    overlaps = []
    for other, (exact, share, minus_number) in sorted(best.items()):
        closest, kind = train[-minus_number], "exact" if exact else "near"
        overlaps.append(Overlap(problems[other].id, closest.id, kind, round(share, 4), closest.benchmark))
    return overlaps


def find_overlaps(train: Sequence[BenchmarkProblem], evaluation: Sequence[BenchmarkProblem]) -> list[Overlap]:
    """The evaluation problems that ``train`` holds, each with the closest training problem."""
    return _closest(overlapping_pairs(train, {"": evaluation})[""], train, evaluation)


def decontaminate(
    train: Sequence[BenchmarkProblem], evaluation: Sequence[BenchmarkProblem]
) -> tuple[list[BenchmarkProblem], list[BenchmarkProblem]]:
    """Training problems kept, and those removed because they overlap an evaluation problem."""
    found = {number for (_, number, _), _ in overlapping_pairs(train, {"": evaluation})[""]}
    kept = [problem for number, problem in enumerate(train) if number not in found]
    return kept, [train[number] for number in sorted(found)]


def contamination(
    train_names: str | Sequence[str], eval_name: str, data_dir: str | Path | None = None
) -> list[Overlap]:
    """Problems of a benchmark that training sets hold, each with the closest problem of all the sets.

    Results are kept on disk by the hash of all texts, so a repeated question takes as long as reading them.

    Raises:
        ValueError, FileNotFoundError: as :func:`rlvr.problems.benchmarks.load_benchmark`.
    """
    names = [train_names] if isinstance(train_names, str) else list(train_names)
    evaluation = load_benchmark(eval_name, data_dir, window="all")
    best: dict[str, Overlap] = {}
    for name in names:
        if name == eval_name:
            raise ValueError(f"train_names={names!r} holds {eval_name!r} itself")
        train = load_benchmark(name, data_dir, window="all")
        for overlap in contamination_of(train, {eval_name: evaluation})[eval_name]:
            known = best.setdefault(overlap.eval_id, overlap)
            if (overlap.kind == "exact", overlap.share) > (known.kind == "exact", known.share):
                best[overlap.eval_id] = overlap
    return [best[problem.id] for problem in evaluation if problem.id in best]


def contamination_of(
    train: Sequence[BenchmarkProblem],
    evaluations: Mapping[str, Sequence[BenchmarkProblem]],
    cache: Path | None = None,
) -> dict[str, list[Overlap]]:
    """:func:`find_overlaps` for several evaluation sets, kept in ``cache`` (None: its usual place)."""
    cache = fetched_dir() / ".cache" / "contamination" if cache is None else cache
    train_key = _digest(train)
    files = {
        name: cache / f"{hashlib.sha256(f'{train_key}{_digest(problems)}'.encode()).hexdigest()[:32]}.json"
        for name, problems in evaluations.items()
    }
    found = {name: _read_cached(path) for name, path in files.items()}
    missing = {name: evaluations[name] for name, overlaps in found.items() if overlaps is None}
    if missing:
        for name, pairs in overlapping_pairs(train, missing).items():
            found[name] = _closest(pairs, train, evaluations[name])
            _write_cached(files[name], found[name])
    return {name: found[name] or [] for name in evaluations}


def _digest(problems: Sequence[BenchmarkProblem]) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, N, THRESHOLD]).encode())
    for problem in problems:
        digest.update(json.dumps([problem.benchmark, problem.id, problem.prompt]).encode())
    return digest.hexdigest()


def _read_cached(path: Path) -> list[Overlap] | None:
    try:
        return [Overlap(**overlap) for overlap in read_json(path)]
    except (OSError, ValueError, TypeError):  # absent, or damaged: computed again
        return None


def _write_cached(path: Path, overlaps: list[Overlap]) -> None:
    try:
        ignore_in_git(path.parents[2])
        write_json(path, [asdict(overlap) for overlap in overlaps])
    except OSError:  # a folder that cannot be written only costs time
        pass


def contamination_note(
    eval_name: str, train_names: str | Sequence[str], data_dir: str | Path | None = None
) -> str:
    """One line to print under every number it touches; "" where nothing overlaps.

    Without the files it repeats the counts that ``data/benchmarks.yaml`` records, and says so; where there
    are none either, that nothing was checked.
    """
    names = [train_names] if isinstance(train_names, str) else list(train_names)
    benchmark = get_benchmark(eval_name)
    found, unknown = [], []
    for name in names:
        title, recorded = get_benchmark(name).title, get_benchmark(name).overlaps.get(eval_name)
        try:
            overlaps = contamination(name, eval_name, data_dir)
            exact, source = sum(overlap.kind == "exact" for overlap in overlaps), ""
            near = len(overlaps) - exact
        except MissingData:
            if recorded is None:
                unknown.append(title)
                continue
            exact, near, source = recorded.exact, recorded.near, ", as recorded"
        if exact + near:
            first = f" of {benchmark.count} problems are" if not found else ""
            found.append(f"{exact + near}{first} in {title} ({exact} verbatim, {near} near{source})")
    text = f"{benchmark.title}: {', '.join(found)}." if found else ""
    if unknown:
        text += f"{' ' if text else ''}{benchmark.title} was not compared with {', '.join(unknown)}."
    return text
