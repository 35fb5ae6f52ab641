"""What single updates of a verl job were: ``updates-<step>-rank<rank>.json`` of its workers as one table.

The workers (:mod:`rlvr.engines.verl.updates`) keep of every update counts, means and squared deviations, and
no token. From these the numbers of the whole mini-batch follow exactly, however it was cut into micro-batches
and over ranks: a mean over its tokens, an unbiased variance over its tokens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr.registry import merge_metrics
from rlvr.storage import read_json

#: Of some values: how many, their mean, the sum of squared deviations from it.
Part = tuple[float, float, float]
NAME = "updates-{step:06d}-rank{rank}.json"
VARIANCE = "_variance"  # ends the names of what a variance is wanted of; of others the mean is


def joined(parts: Iterable[Part]) -> Part:
    """The part of all values of several parts.

        n = sum n_i,   m = sum n_i m_i / n,   q = sum (q_i + n_i (m_i - m)^2)

    Raises:
        ValueError: no values at all.
    """
    parts = [(float(n), float(m), float(q)) for n, m, q in parts]
    count = sum(n for n, _, _ in parts)
    if not count:
        raise ValueError("parts hold no values: allowed is at least one")
    mean = sum(n * m for n, m, _ in parts) / count
    return count, mean, sum(q + n * (m - mean) ** 2 for n, m, q in parts)


def value_of(name: str, part: Part) -> float:
    """Unbiased variance where the name ends in :data:`VARIANCE` (of one value unknown), else the mean."""
    count, mean, squares = part
    if not name.endswith(VARIANCE):
        return mean
    return squares / (count - 1) if count > 1 else math.nan


def merged(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """One update, from its row on every rank: ``metrics`` of the loss, ``parts``, and what all ranks say
    alike (``shared``).

    Metrics are merged as :func:`rlvr.registry.merge_metrics` does: sums, maxima, means weighted by tokens.
    A number that was not finite is missing, and so is what needs it; a rank without tokens says nothing.
    """
    rows = list(rows)
    said = [row["metrics"] for row in rows if row["metrics"].get("tokens")] or [rows[0]["metrics"]]
    known = [name for name in said[0] if all(_finite(metrics.get(name)) for metrics in said)]
    found = merge_metrics([{name: metrics[name] for name in known} for metrics in said])
    by_name: dict[str, list[Part]] = defaultdict(list)
    for row in rows:
        for name, part in row["parts"].items():
            by_name[name].append(part)
    for name, parts in by_name.items():
        if all(map(_finite, (number for part in parts for number in part))):
            found[name] = value_of(name, joined(parts))
    return found | {name: value for name, value in rows[0]["shared"].items() if _finite(value)}


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def read_updates(folder: str | Path, steps: int) -> pd.DataFrame | None:
    """A row per update of all steps up to ``steps``, as the local engine's ``updates.parquet``; None if there
    is none.

    ``step`` counts from 0, ``minibatch`` is the number of the update in its step. ``ratio_variance`` is that
    of the block's ratio, or without modules of the token's. A step that a rank lost is left out as a whole.
    """
    by_step: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for file in sorted(Path(folder).glob("updates-*-rank*.json"), key=lambda file: file.stat().st_mtime_ns):
        found = read_json(file)
        if found["step"] <= steps:
            by_step[found["step"]].append(found)
    rows: list[dict[str, Any]] = []
    for step, files in sorted(by_step.items()):
        ranks = files[-1]["ranks"]  # an attempt on other ranks repeated the step: the latest counts
        files = [file for file in files if file["ranks"] == ranks]
        if {file["rank"] for file in files} != set(range(ranks)):
            continue
        if len({len(file["updates"]) for file in files}) > 1:
            continue
        for number, row in enumerate(zip(*(file["updates"] for file in files), strict=True)):
            rows.append({"step": step - 1, "minibatch": number, **merged(row)})
    if not rows:
        return None
    frame = pd.DataFrame(rows)
    if "ratio_variance" not in frame and "token_ratio_variance" in frame:
        frame["ratio_variance"] = frame["token_ratio_variance"]
    return frame
