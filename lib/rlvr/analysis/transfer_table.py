"""Positive backward transfer of several policies as a table (IBPO, 3.4 and D.1; not in the paper)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from rlvr.analysis.backward_transfer import Products, transfer
from rlvr.evaluation import Estimate, seed_interval
from rlvr.reporting.cells import NOT_MEASURED

COLUMNS = {"change": "inner product", "ratio": "share of a base step", "cosine": "cosine"}


def transfer_table(
    base: Products, trained: Mapping[int, Products], base_seed: int, confidence: float
) -> pd.DataFrame:
    """A row for the base model, one per training seed, and the mean over seeds.

    Args:
        base: products of the base model's gradients.
        trained: of the policies after training, by seed.
        base_seed: that of the warm-up.

    The mean over seeds is of those whose gradients' lengths noise does not hide.
    """
    rows = {"base model": _row(base, (base_seed,), confidence)}
    rows |= {f"after IBPO, seed {s}": _row(p, (s,), confidence) for s, p in trained.items()}
    last = {}
    for title in COLUMNS.values():
        known = {s: rows[f"after IBPO, seed {s}"][title] for s in trained}
        known = {s: cell.value for s, cell in known.items() if isinstance(cell, Estimate)}
        last[title] = (
            _over_seeds(known, confidence, cosine=title == COLUMNS["cosine"]) if known else NOT_MEASURED
        )
    rows["after IBPO, mean over seeds"] = last
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")


def _over_seeds(values: Mapping[int, float], confidence: float, cosine: bool) -> Estimate:
    """Mean over seeds, Student's t; the interval of a cosine by Fisher's z, so that it stays within [-1, 1],
    and unknown where a seed's estimate reaches 1."""
    plain = seed_interval(list(values.values()), list(values), confidence=confidence)
    if not cosine:
        return plain
    if max(map(abs, values.values())) >= 1:
        return replace(plain, low=None, high=None, method=f"{plain.method}; unknown: a cosine reaches 1")
    z = seed_interval([math.atanh(v) for v in values.values()], list(values), confidence=confidence)
    low, high = (None if end is None else math.tanh(end) for end in (z.low, z.high))
    return replace(plain, value=math.tanh(z.value), low=low, high=high, method=f"{z.method} of Fisher's z")


def _row(products: Products, seeds: Sequence[int], confidence: float) -> dict[str, object]:
    found = transfer(products, confidence=confidence)
    cells = {title: getattr(found, name) for name, title in COLUMNS.items()}
    return {
        title: NOT_MEASURED if cell is None else replace(cell, seeds=tuple(seeds))
        for title, cell in cells.items()
    }
