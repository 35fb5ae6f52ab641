"""The lines under an accuracy table: what its numbers rest on, and what else they would depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr.evaluation.inputs import check_frame, fraction, items_of
from rlvr.evaluation.intervals import Estimate
from rlvr.evaluation.tables import ROW, coverage_note


def notes_under(
    table: pd.DataFrame,
    samples: pd.DataFrame | None = None,
    problems: Sequence[Any] = (),
    *,
    training_sets: Sequence[str] = (),
    confidence: float = 0.95,
    workers: int = 2,
    data_dir: str | Path | None = None,
) -> list[str]:
    """What must stand under accuracies; a line that cannot be made says why it is not there.

    Args:
        table: from :func:`rlvr.evaluation.accuracy_table`, or :func:`rlvr.evaluation.coverage` alone.
        samples: the frame it was made of, with ``text`` (and ``finished``), for other graders; their verdicts
            stand for the table's own grader.
        problems: the problems: ``id``, ``golds``, ``grading``, and ``kind`` where it is not mathematics.
        training_sets: names in ``data/benchmarks.yaml`` that the benchmarks are compared with.
        confidence, workers, data_dir: of the sensitivity; its processes; where benchmarks lie.

    Returns:
        Sentences, in this order. By row: problems, samples, missing, undecided, truncated; by number:
        problems left out of it, votes drawn at random; by benchmark and model: accuracy under every grader
        and the spread (a difference smaller than it says nothing about models); by benchmark: overlap with
        training sets.

    Raises:
        ValueError: a table without the index; what :func:`rlvr.verifiers.sensitivity` raises.
    """
    check_frame("table", table)
    fraction("confidence", confidence)
    if samples is not None:
        check_frame("samples", samples, ["benchmark", "model", "grader"])
    training_sets = items_of("training_sets", training_sets, "names")
    problems = items_of("problems", problems, "problems")
    if absent := [name for name in ROW if name not in table.index.names]:
        raise ValueError(f"table has the index {list(table.index.names)}: it lacks {absent}")
    return [
        *coverage_note(table).splitlines(),
        *_of_numbers(table),
        *_sensitivity(table, samples, problems, confidence, workers),
        *_contamination(table, training_sets, data_dir),
    ]


def _of_numbers(table: pd.DataFrame) -> Iterator[str]:
    """What an Estimate's ``method`` says behind the name of its interval."""
    for (benchmark, model, grader), row in table.iterrows():
        for name, cell in row.items():
            if isinstance(cell, Estimate) and name != "over seeds":
                for note in cell.method.split("; ")[1:]:
                    yield f"{benchmark}, {model} ({grader}), {name}: {note}."


def _sensitivity(
    table: pd.DataFrame,
    samples: pd.DataFrame | None,
    problems: Sequence[Any],
    confidence: float,
    workers: int,
) -> Iterator[str]:
    if samples is None or "text" not in samples or not len(problems):
        what = "samples with their text and the problems" if samples is None else "the responses' text"
        if samples is not None and "text" in samples:
            what = "the problems"
        yield f"Other graders were not asked: that needs {what}."
        return
    from rlvr.verifiers import GRADERS, sensitivity

    mathematics = [p for p in problems if getattr(p, "kind", "math") == "math"]
    golds = {p.id: p.golds for p in mathematics}
    kinds = {p.id: p.grading for p in mathematics}
    for benchmark, model in dict.fromkeys((b, m) for b, m, _ in table.index):
        rows = samples[(samples["benchmark"] == benchmark) & (samples["model"] == model)]
        stored = [g for b, m, g in table.index if (b, m) == (benchmark, model)]
        for grader in (g for g in stored if g not in GRADERS):
            yield f"{benchmark}, {model}: judged by {grader!r} alone; no other grader can stand in for it."
        if any(g in GRADERS for g in stored):
            part = rows[rows["grader"].isin(list(GRADERS))]
            found = sensitivity(part, golds, kinds=kinds, workers=workers, confidence=confidence)
            yield f"{benchmark}, {model}, by grader: {found.attrs['line']}."


def _contamination(
    table: pd.DataFrame, training_sets: Sequence[str], data_dir: str | Path | None
) -> Iterator[str]:
    if not training_sets:
        yield "Contamination was not looked at: no training set was named."
        return
    from rlvr.problems.benchmarks import contamination_note, get_benchmark, load_catalogue

    for benchmark in dict.fromkeys(table.index.get_level_values("benchmark")):
        others = [name for name in training_sets if name != benchmark]
        titles = ", ".join(get_benchmark(name).title for name in others) or "other sets"
        if benchmark not in load_catalogue():
            yield f"{benchmark} is no public benchmark and was not compared with {titles}."
        elif get_benchmark(benchmark).kind != "math":
            yield f"{benchmark} holds programs, which were not compared with {titles}."
        else:
            note = contamination_note(benchmark, others, data_dir)
            yield note or f"{get_benchmark(benchmark).title}: no overlap with {titles} found."
