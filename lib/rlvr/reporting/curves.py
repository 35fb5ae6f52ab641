"""Curves of a report as wide CSV files, a column per line: what ``dvc plots`` draws and compares.

They repeat data of figures, averaged over seeds, without their intervals, which the figures have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

POINTS = 50  # of a curve whose lines were measured at different places


@dataclass(frozen=True)
class Curves:
    """Which columns of a figure's data.csv are the curves of ``plots/<id>.csv``."""

    x: str
    y: str
    line: str  # its values name the lines
    where: Mapping[str, object] = field(default_factory=dict)
    shared: bool = True  # the lines have the same x; else they are read at POINTS places that all have
    prefix: str = ""  # of a line's column


CURVES = {
    "nfpo-figTrain": Curves("step", "reward", "arm", {"lag": 0}),
    "ibpo-fig3": Curves("compute", "value", "arm", shared=False),
    "mpo-fig4": Curves("step", "variance", "weight", {"ratio": "block"}, prefix="weight_"),
}


def wide(data: pd.DataFrame, curves: Curves) -> pd.DataFrame:
    """A row per x, a column per line: the mean over whatever else the data holds.

    Raises:
        KeyError: a column that the figure's data lacks.
    """
    for name, value in curves.where.items():
        data = data[data[name] == value]
    table = data.pivot_table(index=curves.x, columns=curves.line, values=curves.y, aggfunc="mean")
    if not curves.shared:
        lines = {name: column.dropna() for name, column in table.items()}
        low, high = max(s.index.min() for s in lines.values()), min(s.index.max() for s in lines.values())
        at = np.linspace(low, high, POINTS)
        table = pd.DataFrame({name: np.interp(at, s.index, s) for name, s in lines.items()}, index=at)
    table.columns = [f"{curves.prefix}{name:g}" if curves.prefix else str(name) for name in table.columns]
    return table.rename_axis(curves.x).reset_index()
