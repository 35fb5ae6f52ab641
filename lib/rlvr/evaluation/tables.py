"""From samples to tables: what is there, and accuracy by benchmark and model, every number with its doubt.

Samples are a frame with one row per sample: ``benchmark``, ``model``, ``grader``, ``problem``, ``sample``,
``seed`` (of training, or of sampling where nothing was trained), ``correct`` (True, False, or missing:
undecided), ``finished``, and ``extracted`` for majority votes. A row that is not there is a missing sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd

from rlvr.evaluation.inputs import (
    check_frame,
    check_function,
    fraction,
    numbers_of,
    seeds_of,
    whole,
    wholes,
)
from rlvr.evaluation.intervals import Estimate, seed_interval
from rlvr.evaluation.metrics import avg_at_k, count_correct, pass_at_k
from rlvr.evaluation.proportions import proportion_mean
from rlvr.evaluation.resampling import Floats
from rlvr.evaluation.voting import Grouping, is_exact, label_answers, majority_at_k, same_string

ROW = ["benchmark", "model", "grader"]
NEEDED = [*ROW, "problem", "sample", "seed", "correct", "finished"]
Short = Literal["leave out", "raise"]


def coverage(samples: pd.DataFrame, expected: int | None = None) -> pd.DataFrame:
    """What the numbers rest on, one row per benchmark, model and grader; whole numbers.

    Args:
        samples: see above.
        expected: samples per problem and seed that were asked for; None: the most that any problem has.

    Returns:
        Index ``benchmark, model, grader``; ``problems``, ``seeds`` (text), ``k`` (samples per problem and
        seed, text: ``32``, ``30 to 32``), ``samples`` (present), ``missing`` (expected and absent, of
        problems that occur at all), ``decided``, ``undecided`` (present, no verdict), ``truncated`` (not
        finished), and ``engine`` (text) if the samples name it.

    Wrap the counts in ``rlvr.reporting.cells.Exact`` to save them as a table.
    """
    rows = {}
    for key, part in _parts(samples):
        sizes = part.groupby(["seed", "problem"]).size()
        wanted = int(sizes.max()) if expected is None else whole("expected", expected)
        if sizes.max() > wanted:
            raise ValueError(f"expected={expected}: {key} has {sizes.max()} samples of one problem")
        problems, seeds = part["problem"].nunique(), _seeds(part)
        undecided = int(part["correct"].isna().sum())
        rows[key] = {
            "problems": problems,
            "seeds": " ".join(map(str, seeds)),
            "k": str(sizes.max()) if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}",
            "samples": len(part),
            "missing": problems * len(seeds) * wanted - len(part),
            "decided": len(part) - undecided,
            "undecided": undecided,
            "truncated": int((~part["finished"].astype(bool)).sum()),
        }
        if "engine" in part:
            rows[key]["engine"] = ", ".join(sorted(part["engine"].dropna().astype(str).unique()))
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(ROW)


def coverage_note(found: pd.DataFrame) -> str:
    """:func:`coverage` as one line per row, to print with a table."""
    lines = []
    check_frame("found", found, ["problems", "samples", "missing", "undecided", "truncated"])
    for (benchmark, model, grader), row in found.iterrows():
        lines.append(
            f"{benchmark}, {model} ({grader}): {row['problems']} problems, {row['samples']} samples; "
            f"{row['missing']} missing, {row['undecided']} undecided, {row['truncated']} truncated "
            f"({row['truncated'] / row['samples']:.1%})."
        )
    return "\n".join(lines)


def accuracy_table(
    samples: pd.DataFrame,
    ks: Sequence[int] | None = None,
    *,
    expected: int | None = None,
    group: Grouping | None = None,
    confidence: float = 0.95,
    short: Short = "leave out",
) -> pd.DataFrame:
    """Accuracy by benchmark, model and grader: Estimates, beside the counts they rest on.

    Args:
        samples: see above. expected: as in :func:`coverage`.
        ks: of pass@k and maj@k; None: 2, 4, ... up to half the samples per problem of the benchmark with
            fewest, so that n >= 2k. maj@k needs ``extracted`` and is left out without that column.
        group: which extracted answers are the same (:mod:`rlvr.evaluation.voting`); None:
            :func:`rlvr.verifiers.equality.same_answers` where the grader is ``rlvr``, so that 0.5 and 1/2
            vote together, equal strings elsewhere. A response that did not finish has no answer [choice].
        short: a problem with fewer than k decided samples of a seed has no pass@k there: it is left out of
            that number, whose ``method`` says so, or is an error.

    Returns:
        Index ``benchmark, model, grader``. ``avg@k`` (k in the column of that name) and ``pass@2``...,
        ``maj@2``... with the interval of :func:`rlvr.evaluation.proportion_mean` over problems, seeds and
        samples of a problem together; ``over seeds``: avg@k with Student's t over seeds; and the columns of
        :func:`coverage`. A number without any problem is an Estimate of NaN, not measured.
    """
    if short not in ("leave out", "raise"):
        raise ValueError(f"short={short!r}: allowed are leave out, raise")
    fraction("confidence", confidence)
    if group is not None:
        check_function("group", group, "the answers of a problem")
    found = coverage(samples, expected)
    if ks is None:
        fewest = min(int(part.groupby(["seed", "problem"]).size().max()) for _, part in _parts(samples))
        ks = [2**i for i in range(1, (fewest // 2).bit_length())]
    ks = wholes("ks", ks, "k")
    rows = {}
    for key, part in _parts(samples):
        same = _grouping(key[2]) if group is None else group
        runs = [_matrices(run, same) for _, run in part.groupby("seed")]
        shared = {"confidence": confidence, "seeds": _seeds(part)}
        average = [avg_at_k(correct) for _, correct, _ in runs]
        decided = sum(int(count_correct(correct)[0].sum()) for _, correct, _ in runs)
        row = {"avg@k": _mean(runs, average, decided, **shared), "over seeds": _over_seeds(average, **shared)}
        for k in ks:
            row[f"pass@{k}"] = _at_k(runs, k, None, short, key, **shared)
        for k in ks:
            if k > 1 and "extracted" in samples:
                row[f"maj@{k}"] = _at_k(runs, k, "votes", short, key, **shared)
        rows[key] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(ROW).join(found)


Run = tuple[np.ndarray, Floats, np.ndarray]  # problems, correct and answers [problems, samples]


def _at_k(runs: list[Run], k: int, votes: str | None, short: Short, key: tuple, **shared) -> Estimate:
    name, values, left_out, drawn, used = f"{'maj' if votes else 'pass'}@{k}", [], 0, 0, 0
    for ids, correct, answers in runs:
        n, c = count_correct(correct)
        enough = n >= k
        left_out += int((~enough).sum())
        used += int(n[enough].sum())
        of_run = np.full(len(ids), np.nan)
        if enough.any() and votes:
            of_run[enough] = majority_at_k(correct[enough], answers[enough], k)
            drawn += int((~is_exact(correct[enough], answers[enough], k)).sum())
        elif enough.any():
            of_run[enough] = pass_at_k(n[enough], c[enough], k)
        values.append(of_run)
    if left_out and short == "raise":
        raise ValueError(f"{name} of {key}: {left_out} problems have fewer than {k} decided samples")
    notes = []
    if left_out:
        total = f"{sum(len(ids) for ids, _, _ in runs)} problems" + " of a seed" * (len(runs) > 1)
        notes.append(f"{left_out} of {total}, with fewer than {k} decided samples, left out")
    if drawn:
        notes.append(f"votes drawn at random for {drawn} problems")
    return _mean(runs, values, used // k, *notes, **shared)  # k samples make one trial [choice]


def _mean(runs: list[Run], values: list[Floats], trials: int, *notes: str, **shared) -> Estimate:
    joined = np.concatenate(values)
    problems = np.concatenate([ids for ids, _, _ in runs])
    if np.isnan(joined).all():
        method = "; ".join(["no decided sample", *notes])
        return Estimate(float("nan"), None, None, 0, "problems", shared["seeds"], method)
    found = proportion_mean(joined, problems, samples=trials, **shared)
    method = "; ".join([found.method, *notes])
    return replace(found, method=method)


def _over_seeds(average: list[Floats], confidence: float, seeds: tuple[int, ...]) -> Estimate:
    present = [
        (float(np.nanmean(x)), s) for x, s in zip(average, seeds, strict=True) if not np.isnan(x).all()
    ]
    if not present:
        return Estimate(float("nan"), None, None, 0, "seeds", seeds, "no decided sample")
    return seed_interval([v for v, _ in present], [s for _, s in present], confidence=confidence)


def _grouping(grader: str) -> Grouping:
    if grader != "rlvr":
        return same_string
    from rlvr.verifiers.equality import same_answers  # reads answers as verify_math does

    return same_answers


def _matrices(run: pd.DataFrame, group: Grouping) -> Run:
    wide = outcomes(run)
    answers = np.full(wide.shape, None, dtype=object)
    if "extracted" in run:
        given = run["extracted"].where(run["finished"].astype(bool))
        table = run.assign(extracted=given.astype(object)).pivot(
            index="problem", columns="sample", values="extracted"
        )
        answers = label_answers(table.to_numpy(dtype=object), group)
    return wide.index.to_numpy(), wide.to_numpy(), answers


def outcomes(run: pd.DataFrame) -> pd.DataFrame:
    """Problems x samples of one run in {1.0, 0.0, NaN}; NaN is undecided or missing. Sorted by problem."""
    if run.duplicated(["problem", "sample"]).any():
        raise ValueError(
            "samples repeat a (problem, sample): select one benchmark, model, grader and seed first"
        )
    wide = run.pivot(index="problem", columns="sample", values="correct")
    return wide.astype("boolean").astype("Float64").astype("float64")


def benchmark_scores(samples: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """avg@k of one model and grader by benchmark, seeds x problems, for :mod:`rlvr.evaluation.stratified`."""
    _check(samples)
    if len(samples[["model", "grader"]].drop_duplicates()) > 1:
        raise ValueError("samples hold several models or graders: select one of each first")
    out = {}
    for benchmark, part in samples.groupby("benchmark"):
        rows = {seed: outcomes(run).mean(axis=1) for seed, run in part.groupby("seed")}
        out[str(benchmark)] = pd.DataFrame(rows).T.sort_index(axis=1)
    return out


def _parts(samples: pd.DataFrame) -> Iterator[tuple[tuple[str, str, str], pd.DataFrame]]:
    _check(samples)
    yield from samples.groupby(ROW, sort=True)


def _seeds(part: pd.DataFrame) -> tuple[int, ...]:
    return tuple(sorted(int(s) for s in part["seed"].unique()))


def _check(samples: pd.DataFrame) -> None:
    check_frame("samples", samples, NEEDED)
    if not len(samples):
        raise ValueError("samples has no rows: there is nothing to count")
    if empty := [c for c in NEEDED if c != "correct" and samples[c].isna().any()]:
        raise ValueError(f"columns {empty} hold missing values: only correct (undecided) may")
    for name in ("correct", "finished"):  # the text 'False' would count as True
        values = numbers_of(name, samples[name])
        if (odd := ~np.isin(values, (0.0, 1.0)) & ~np.isnan(values)).any():
            raise ValueError(f"{name} holds {values[odd][0]:g}: allowed are True and False")
    seeds_of(samples["seed"].unique(), "seed")
    if samples.duplicated([*ROW, "seed", "problem", "sample"]).any():
        raise ValueError("samples repeat a (benchmark, model, grader, seed, problem, sample)")
