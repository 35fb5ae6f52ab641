"""What a reader is told about the graded samples of an evaluation: tables, and the lines under them."""

from __future__ import annotations

import pandas as pd

from rlvr.evaluation.intervals import Estimate
from rlvr.evaluation.requests import Evaluation
from rlvr.evaluation.tables import accuracy_table, coverage_note

COUNTS = ["k", "problems", "seeds", "samples", "missing", "undecided", "truncated"]


def accuracy(samples: pd.DataFrame, evaluation: Evaluation) -> pd.DataFrame:
    """Accuracy by benchmark, model and grader, as :func:`rlvr.evaluation.tables.accuracy_table` gives it.

    maj@k is for benchmarks of mathematics: that two programs differ in their text says nothing about what
    they answer, and nobody votes over generated problems.
    """
    options = {"expected": evaluation.sampling.samples, "confidence": evaluation.confidence}
    votes = samples["grader"] == "rlvr"
    parts = [samples[votes], samples[~votes].drop(columns="extracted")]
    tables = [accuracy_table(part, evaluation.ks, **options) for part in parts if len(part)]
    return pd.concat(tables).sort_index()


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """:func:`accuracy` as text, for a notebook and ``accuracy.csv``: the numbers, then what they rest on."""
    numbers = [name for name in table if any(isinstance(cell, Estimate) for cell in table[name])]
    if all(" " not in seeds for seeds in table["seeds"]):
        numbers.remove("over seeds")  # of one
    formatted = {
        name: [cell.format() if isinstance(cell, Estimate) else "" for cell in table[name]]
        for name in numbers
    }
    return table.assign(**formatted)[numbers + COUNTS]


def by_steps(samples: pd.DataFrame) -> pd.DataFrame:
    """Share of right answers, models by arithmetic steps; empty where no problem was generated."""
    if "difficulty" not in samples:
        return pd.DataFrame()
    found = samples.groupby(["model", "difficulty"])["correct"].mean()
    return found.astype("float64").unstack().round(3)


def lines_below(table: pd.DataFrame, samples: pd.DataFrame, evaluation: Evaluation) -> list[str]:
    """What the numbers of :func:`accuracy` rest on; for benchmarks as ``rlvr.evaluation.notes`` writes it."""
    if evaluation.benchmarks == ("embedded",):
        return [
            *coverage_note(table).splitlines(),
            "Generated problems: one grader, and no problem that training could have held (disjoint splits).",
        ]
    from rlvr.evaluation.notes import notes_under

    return notes_under(
        table,
        samples,
        evaluation.problems,
        training_sets=evaluation.training_sets,
        confidence=evaluation.confidence,
        workers=evaluation.workers,
    )
