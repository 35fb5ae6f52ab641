"""A table whose every cell carries its doubt, and its CSV, Markdown and JSON forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rlvr.reporting.cells import check_cell, flatten, from_json, number, pretty, to_json


@dataclass(frozen=True)
class Table:
    """Columns and rows of cells; the first ``labels`` columns are row labels."""

    columns: tuple[str, ...]
    labels: int
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> Table:
        """Check every cell of a frame. A named or multi-level index becomes the row labels.

        Raises:
            ValueError: a cell that carries no doubt, naming row and column; no rows; columns that repeat.
        """
        if not isinstance(frame, pd.DataFrame):
            raise ValueError(f"frame must be a DataFrame, got {type(frame).__name__}")
        names = list(frame.index.names)
        labels = 0 if names == [None] else len(names)
        columns = tuple(map(str, (*(names if labels else ()), *frame.columns)))
        if frame.empty:
            raise ValueError("frame has no cells; a table without results says NOT_MEASURED in every cell")
        if len(set(columns)) != len(columns):
            raise ValueError(f"columns {list(columns)} repeat a name")
        rows = []
        for index, values in zip(frame.index, frame.itertuples(index=False, name=None), strict=True):
            row_labels = index if isinstance(index, tuple) else (index,)
            shown = [_label(v) for v in row_labels] if labels else []
            name = " / ".join(_label(v) for v in row_labels)
            cells = [
                check_cell(v, f"cell [row {name!r}, column {str(c)!r}]")
                for c, v in zip(frame.columns, values, strict=True)
            ]
            rows.append((*shown, *cells))
        return cls(columns=columns, labels=labels, rows=tuple(rows))

    def markdown(self) -> str:
        """A GitHub table; numbers are aligned right."""
        ruler = ["---" if i < self.labels or self._is_text(i) else "---:" for i in range(len(self.columns))]
        lines = [md_row(self.columns), md_row(ruler), *(md_row(map(pretty, row)) for row in self.rows)]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Every measured column as value, low, high, n, n_unit, seeds, method; six significant digits."""
        flat: dict[str, list[str]] = {}
        for i, column in enumerate(self.columns):
            flat.update(flatten(column, [row[i] for row in self.rows]))
        return pd.DataFrame(flat).to_csv(index=False, lineterminator="\n")

    def to_json(self) -> dict[str, Any]:
        rows = [[to_json(cell) for cell in row] for row in self.rows]
        return {"columns": list(self.columns), "labels": self.labels, "rows": rows}

    @classmethod
    def read(cls, raw: dict[str, Any], where: str) -> Table:
        """Inverse of :meth:`to_json`; raises ValueError on a field or cell that nobody knows."""
        if set(raw) != {"columns", "labels", "rows"}:
            raise ValueError(f"{where}: expected columns, labels, rows; got {sorted(raw)}")
        columns = tuple(raw["columns"])
        rows = tuple(
            tuple(from_json(c, f"{where} row {i} column {columns[j]!r}") for j, c in enumerate(row))
            for i, row in enumerate(raw["rows"])
        )
        return cls(columns=columns, labels=raw["labels"], rows=rows)

    def _is_text(self, column: int) -> bool:
        return all(isinstance(row[column], str) for row in self.rows)


def _label(value: Any) -> str:
    return value if isinstance(value, str) else number(value)


def md_row(cells: Iterable[Any]) -> str:
    """One line of a GitHub table."""
    return "| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in cells) + " |"
