"""What a table cell may be: a measurement with its doubt, an exact number, a paper's number, or words.

A bare float is none of these. It is refused, because nobody reading the table could tell what it is worth.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlvr.evaluation.intervals import Estimate

NOT_MEASURED_TEXT = "not measured"
NOT_STATED_TEXT = "not stated"


@dataclass(frozen=True)
class Exact:
    """A number without sampling error: a count, a setting, a value found by enumeration.

    ``digits`` is how many significant digits are printed; the CSV keeps six.
    """

    value: float | int
    digits: int = 4

    def __post_init__(self) -> None:
        if not _is_number(self.value) or not math.isfinite(self.value):
            raise ValueError(f"Exact(value={self.value!r}): must be finite; use NOT_MEASURED for none")
        plain = int(self.value) if isinstance(self.value, numbers.Integral) else float(self.value)
        object.__setattr__(self, "value", plain)  # numpy's numbers are no JSON


@dataclass(frozen=True)
class Stated:
    """A paper's own value: number, text, (mean, half width), or None where the paper's text gives none."""

    value: float | int | str | tuple[float, float] | None = None

    def __post_init__(self) -> None:
        parts = self.value if isinstance(self.value, tuple) else (self.value,)
        if any(_is_number(p) and not math.isfinite(p) for p in parts):
            raise ValueError(f"Stated(value={self.value!r}): must be finite; 'not stated' is Stated(None)")


class _NotMeasured:
    """The one value that says a number was not measured; it never prints as a number."""

    def __repr__(self) -> str:
        return "NOT_MEASURED"


NOT_MEASURED = _NotMeasured()

Cell = Estimate | Exact | Stated | _NotMeasured | str


def check_cell(cell: Any, where: str) -> Cell:
    """Return the cell if it may be shown.

    Raises:
        ValueError: a bare number, NaN or None; an Estimate without n, seeds or method. Names the cell.
    """
    if isinstance(cell, (bool, np.bool_)):
        return "yes" if cell else "no"
    if isinstance(cell, Estimate):
        return _check_estimate(cell, where)
    if isinstance(cell, (Exact, Stated, _NotMeasured, str)):
        return cell
    if cell is None or (_is_number(cell) and math.isnan(cell)):
        raise ValueError(
            f"{where} is {cell!r}: write NOT_MEASURED or Stated(None), which the reader can tell apart"
        )
    if _is_number(cell):
        raise ValueError(
            f"{where} is the bare number {cell!r}: a measurement must be an Estimate (interval, n, seeds);"
            " wrap a count or an enumerated value in Exact, a paper's value in Stated;"
            " row labels go in the index"
        )
    allowed = "Estimate, Exact, Stated, NOT_MEASURED and str"
    raise ValueError(f"{where} is a {type(cell).__name__}; allowed are {allowed}")


def _check_estimate(cell: Estimate, where: str) -> Estimate | _NotMeasured:
    if known(cell.value) is None:
        return NOT_MEASURED
    if not cell.n:
        raise ValueError(f"{where}: Estimate.n is {cell.n!r}; a number needs the count it rests on")
    if not cell.n_unit or not cell.method:
        raise ValueError(f"{where}: Estimate needs n_unit ({cell.n_unit!r}) and method ({cell.method!r})")
    if not cell.seeds:
        raise ValueError(f"{where}: Estimate.seeds is {cell.seeds!r}; name the seeds the number rests on")
    low, high = known(cell.low), known(cell.high)
    if (low is None) != (high is None):
        raise ValueError(
            f"{where}: interval [{cell.low!r}, {cell.high!r}] has one known end; give both or none"
        )
    if low is not None and low > high:
        raise ValueError(f"{where}: interval [{low}, {high}] is upside down")
    return cell


def pretty(cell: Cell) -> str:
    """The cell as a reader sees it: ``0.655 [0.641, 0.669]``, ``not measured``, ``not stated``."""
    if isinstance(cell, Estimate):
        return pretty_interval(cell.value, cell.low, cell.high)
    if isinstance(cell, Exact):
        return significant(cell.value, cell.digits)
    if isinstance(cell, Stated):
        return stated_text(cell.value)
    return NOT_MEASURED_TEXT if isinstance(cell, _NotMeasured) else str(cell)


def pretty_interval(
    value: float | None, low: float | None, high: float | None, threshold: float | None = None
) -> str:
    """``value [low, high]`` to two digits of the interval's half width; says so where a part is unknown.

    To more digits where an end that is not the ``threshold`` would read as if it were, or the other side of
    it.
    """
    value, low, high = known(value), known(low), known(high)
    if value is None:
        return NOT_MEASURED_TEXT
    if low is None or high is None:
        return f"{significant(value, 3)} [interval unknown]"
    half = (high - low) / 2
    if half <= 0:
        return f"{significant(value, 4)} (exact)"
    decimals = min(max(1 - math.floor(math.log10(half)), 0), 12)
    if half < 1e-4 or max(abs(value), abs(low), abs(high)) >= 1e6:
        return f"{value:.3g} [{low:.3g}, {high:.3g}]"
    if threshold is not None:
        while decimals < 12 and any(_moves(v, decimals, threshold) for v in (low, high)):
            decimals += 1
    return f"{_fixed(value, decimals)} [{_fixed(low, decimals)}, {_fixed(high, decimals)}]"


def _moves(value: float, decimals: int, threshold: float) -> bool:
    """Whether rounding changes on which side of the threshold the value is, or puts it there."""
    shown = round(value, decimals)
    return (shown > threshold, shown < threshold) != (value > threshold, value < threshold)


def stated_text(value: Any) -> str:
    """A paper's value as text; None is 'not stated', a pair is mean ± half width."""
    if value is None:
        return NOT_STATED_TEXT
    if isinstance(value, (tuple, list)):
        return f"{value[0]} ± {value[1]}"
    return str(value)  # as the paper writes it: 10.0 stays 10.0


def flatten(name: str, cells: list[Cell]) -> dict[str, list[str]]:
    """One column of cells -> the CSV's columns; a measured column becomes value, low, high, n, seeds."""
    if not any(isinstance(c, (Estimate, _NotMeasured)) for c in cells):
        return {name: [_plain(c) for c in cells]}
    parts = ("value", "low", "high", "n", "n_unit", "seeds", "method")
    columns: dict[str, list[str]] = {f"{name}.{p}": [] for p in parts}
    for cell in cells:
        row = [_plain(cell), "", "", "", "", "", ""]
        if isinstance(cell, Estimate):
            ends = (cell.value, cell.low, cell.high)
            row = [
                *(number(v) if known(v) is not None else "unknown" for v in ends),
                str(cell.n),
                cell.n_unit,
                seeds_text(cell.seeds),
                cell.method,
            ]
        for part, text in zip(parts, row, strict=True):
            columns[f"{name}.{part}"].append(text)
    return columns


def _plain(cell: Cell) -> str:
    if isinstance(cell, Exact):
        return number(cell.value)
    if isinstance(cell, Estimate):
        return number(cell.value)
    return pretty(cell)


def to_json(cell: Cell) -> Any:
    """A cell as JSON; :func:`from_json` gives it back."""
    if isinstance(cell, Estimate):
        return {
            "is": "estimate",
            "value": known(cell.value),
            "low": known(cell.low),
            "high": known(cell.high),
            "n": cell.n,
            "n_unit": cell.n_unit,
            "seeds": list(cell.seeds),
            "method": cell.method,
        }
    if isinstance(cell, Exact):
        return {"is": "exact", "value": cell.value, "digits": cell.digits}
    if isinstance(cell, Stated):
        return {"is": "stated", "value": list(cell.value) if isinstance(cell.value, tuple) else cell.value}
    return {"is": "not measured"} if isinstance(cell, _NotMeasured) else str(cell)


def from_json(value: Any, where: str) -> Cell:
    """Inverse of :func:`to_json`; a field nobody knows is an error, never a default."""
    if isinstance(value, str):
        return value
    kinds = {"estimate": Estimate, "exact": Exact, "stated": Stated, "not measured": None}
    if not isinstance(value, dict) or value.get("is") not in kinds:
        raise ValueError(f"{where}: {value!r} is no cell; 'is' must be one of {', '.join(kinds)}")
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items() if k != "is"}
    if value["is"] == "not measured":
        return NOT_MEASURED
    try:
        return check_cell(kinds[value["is"]](**fields), where)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None


def known(value: float | None) -> float | None:
    """The value if it is a finite number, else None."""
    return None if value is None or not math.isfinite(value) else float(value)


def number(value: float | int) -> str:
    """Six significant digits, the same text on every machine; integers in full."""
    if isinstance(value, numbers.Integral):
        return str(int(value))
    return f"{value + 0.0:.6g}"


def significant(value: float | int, digits: int) -> str:
    """``digits`` significant digits; integers in full."""
    return str(int(value)) if isinstance(value, numbers.Integral) else f"{value + 0.0:.{digits}g}"


def seeds_text(seeds: Iterable[int]) -> str:
    """Seeds as text: ``0 1 2``."""
    return " ".join(map(str, seeds))


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text[1:] if text.startswith("-") and float(text) == 0 else text


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
