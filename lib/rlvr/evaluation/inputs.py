"""What the functions of this package are given: checked, and refused by name before anything is computed."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rlvr.evaluation.resampling import Floats


def numbers_of(name: str, values: Any) -> Floats:
    """``values`` as float64 of the same shape; None and pandas' NA become NaN.

    Raises:
        ValueError: text (``'True'``, ``'1'``), anything else that is no number, infinite numbers, rows of
            different lengths.
    """
    try:
        raw = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged; a tensor that numpy cannot read
        raise ValueError(f"{name} is no array of numbers: {error}") from None
    if raw.dtype.kind == "O":
        raw = _from_objects(name, raw)
    elif raw.dtype.kind not in "biuf":
        shown = f"{raw.flat[0]!r}" if raw.size else f"{raw.dtype}"
        raise ValueError(f"{name} holds {shown:.80}: allowed are numbers and NaN (missing)")
    out = np.asarray(raw, dtype=np.float64)
    if np.isinf(out).any():
        raise ValueError(
            f"{name} holds {out[np.isinf(out)][0]}: allowed are finite numbers and NaN (missing)"
        )
    return out


def _from_objects(name: str, raw: np.ndarray) -> Floats:
    out = np.empty(raw.shape)
    for index, value in enumerate(raw.flat):
        if value is None or value is pd.NA:
            out.flat[index] = np.nan
        elif isinstance(value, (numbers.Real, np.bool_)):
            out.flat[index] = value
        else:
            kind = type(value).__name__
            raise ValueError(
                f"{name} holds {value!r:.80} ({kind}): allowed are numbers and NaN (missing), in rows of one "
                "length"
            )
    return out


def labels_of(name: str, values: Any) -> np.ndarray:
    """Labels as an array, each one there and all of one kind; ValueError otherwise."""
    labels = np.asarray(values)
    if bool(np.any(pd.isna(labels))):
        raise ValueError(f"{name} holds missing values: every row belongs to one")
    if labels.dtype.kind == "O":
        try:
            np.unique(labels)
        except TypeError:
            kinds = sorted({type(label).__name__ for label in labels.flat})
            raise ValueError(
                f"{name} holds {', '.join(kinds)}: allowed are strings alone, or numbers alone"
            ) from None
    return labels


def whole(name: str, value: Any, least: int = 1) -> int:
    """``value`` as an int; ValueError unless it is an integer >= ``least``. True and False are none."""
    try:
        number = least - 1 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"{name}={value!r:.80}: allowed are integers >= {least}")
    return number


def wholes(name: str, values: Any, one: str = "") -> list[int]:
    """A list of :func:`whole`; ``one`` names a single value."""
    return [whole(one or name, value) for value in items_of(name, values, "integers >= 1")]


def items_of(name: str, values: Any, what: str) -> list[Any]:
    """A list, or anything but text that can be one; ``what`` says of what."""
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes)) and getattr(values, "ndim", 1):
        return list(values)
    raise ValueError(f"{name}={values!r:.80}: allowed is a list of {what}")


def seeds_of(values: Any, name: str = "seeds") -> tuple[int, ...]:
    """Seeds as ints."""
    found = items_of(name, values, "integers")
    try:
        if all(not isinstance(seed, str) and int(seed) == seed for seed in found):
            return tuple(int(seed) for seed in found)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{name}={found!r:.80}: allowed is a list of integers")


def fraction(name: str, value: Any, lowest: float = 0.0, *, closed: bool = False) -> float:
    """``value``, a number between ``lowest`` (itself allowed if ``closed``) and 1."""
    sign = "<=" if closed else "<"
    good = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (good and (lowest < value < 1 or (closed and value == lowest))):
        raise ValueError(f"{name}={value!r:.80}: allowed are {lowest:g} {sign} {name} < 1")
    return value


def check_resampling(resamples: Any, confidence: Any, seed: Any = 0) -> None:
    """Raise ValueError unless ``resamples >= 1``, ``0 < confidence < 1`` and ``seed >= 0``."""
    whole("resamples", resamples)
    fraction("confidence", confidence)
    whole("seed", seed, 0)


def check_function(name: str, value: Any, what: str) -> Callable[..., Any]:
    if not callable(value):
        raise ValueError(f"{name}={value!r:.80}: allowed is a function of {what}")
    return value


def check_frame(name: str, value: Any, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Raise ValueError unless ``value`` is a data frame with these columns."""
    if not isinstance(value, pd.DataFrame):
        raise ValueError(f"{name} is a {type(value).__name__}: allowed is a data frame")
    if absent := [column for column in columns if column not in value]:
        raise ValueError(f"{name} lack the columns {absent}: needed are {list(columns)}")
    return value
