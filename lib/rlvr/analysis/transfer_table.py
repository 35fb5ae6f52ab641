"""Positive backward transfer of several policies as a table (IBPO, 3.4 and D.1; not in the paper)."""

from __future__ import annotations

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
            seed_interval(list(known.values()), list(known), confidence=confidence) if known else NOT_MEASURED
        )
    rows["after IBPO, mean over seeds"] = last
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")


def _row(products: Products, seeds: Sequence[int], confidence: float) -> dict[str, object]:
    found = transfer(products, confidence=confidence)
    cells = {title: getattr(found, name) for name, title in COLUMNS.items()}
    return {
        title: NOT_MEASURED if cell is None else replace(cell, seeds=tuple(seeds))
        for title, cell in cells.items()
    }
