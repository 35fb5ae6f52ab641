"""What a training run computed: a ledger of tokens by purpose and activity, and the FLOPs they stand for.

Methods are compared at equal estimated compute, never at equal rollouts: base generation, correction
generation, verification, rewrite filtering and updates all count [text: IBPO 5]. The text estimates compute
from GPU runtime and utilisation (its Appendix F is lost); the estimate here counts operations of the model,
so that it is the same on every machine, with wall time beside it:

    forward of a token   2 N + 4 L H d c         trained token   three times that
                         N  weights of matrices that a token passes, output head included, input embedding not
                         c  tokens it attends to, itself included; L layers, H query heads of size d

A backward pass is two forward passes. Verifying and comparing run no model: they have tokens and seconds, and
0 FLOPs. Softmax, norms, the optimiser's step and recomputed activations are left out, of all methods alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlvr.checks import check_choice, check_integer, check_number, refuse

PURPOSES = ("base", "correction", "validation")
#: What a method spends to learn; validation is how we look at it.
TRAINING = ("base", "correction")  # [choice]
#: Forward passes that a token of each activity costs.
PASSES = {"prefill": 1, "decode": 1, "score": 1, "verify": 0, "compare": 0, "train": 3}
ACTIVITIES = tuple(PASSES)


@dataclass(frozen=True)
class ModelShape:
    """What of a model the estimate needs.

    Attributes:
        parameters: N. Of a mixture of experts, those that one token passes.
        layers: those with attention over the context. heads: query heads. head_dim: size of each.
    """

    parameters: float
    layers: int
    heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            check_number(field.name, value, lambda x: 0 < x < float("inf"), "finite numbers > 0")

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """From sizes named as in the HF configuration of a dense decoder, as the local engine's are."""
        hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = getattr(config, "head_dim", None) or hidden // heads
        attention = hidden * head_dim * 2 * (heads + kv_heads)
        layer = attention + 3 * hidden * config.intermediate_size
        return cls(layers * layer + config.vocab_size * hidden, layers, heads, head_dim)

    def flops(self, tokens: float, attended: float) -> float:
        """Of a forward pass of ``tokens`` that attend to ``attended`` tokens together (sum of c) [choice]."""
        return 2.0 * self.parameters * tokens + 4.0 * self.layers * self.heads * self.head_dim * attended


@dataclass
class Entry:
    """One cell of the ledger."""

    tokens: int = 0
    attended: int = 0  # sum over the tokens of how many each attends to
    sequences: int = 0
    seconds: float = 0.0  # wall time


class Ledger:
    """Counts by purpose (:data:`PURPOSES`) and activity (:data:`ACTIVITIES`).

    ``prefill``: prompt tokens that were computed, with a shared prompt once. ``decode``: tokens written.
    ``score``: passes without gradient (recomputed log-probs). ``verify``: tokens handed to a
    verifier. ``compare``: handed to the comparison operator, of each correction its response's and its own
    (references are not counted). ``train``: all tokens in a forward and backward pass, prompts too.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}

    def add(
        self,
        purpose: str,
        activity: str,
        lengths: ArrayLike,
        contexts: ArrayLike = 0,
        seconds: float = 0.0,
    ) -> None:
        """Count sequences of ``lengths`` new tokens, each behind ``contexts`` tokens computed before.

        Token i of a sequence (from 1) attends to ``context + i``. A prompt of P tokens with G responses:
        ``add(purpose, "prefill", P)``, then ``add(purpose, "decode", lengths, P)``.

        Args:
            lengths: one whole number or [n]. contexts: likewise; a single one is that of all sequences.
            seconds: wall time that this took, if known.
        """
        new, before = _wholes("lengths", lengths), _wholes("contexts", contexts)
        seconds = _check_seconds(seconds)
        if len(before) not in (1, len(new)):
            raise ValueError(f"contexts has {len(before)} values: allowed is 1, or {len(new)} as lengths has")
        attended = new * before + new * (new + 1) // 2
        entry = self._entry(purpose, activity)
        entry.tokens += int(new.sum())
        entry.attended += int(attended.sum())
        entry.sequences += len(new)
        entry.seconds += seconds

    @contextmanager
    def timed(self, purpose: str, activity: str) -> Iterator[None]:
        """Add the wall time of a block, also if it raises."""
        entry = self._entry(purpose, activity)
        start = time.perf_counter()
        try:
            yield
        finally:
            entry.seconds += time.perf_counter() - start

    def __getitem__(self, key: tuple[str, str]) -> Entry:
        """A copy of the cell (purpose, activity), zeros where nothing was counted."""
        purpose, activity = key
        return Entry(**vars(self._entry(purpose, activity, create=False)))

    def flops(self, model: ModelShape, purposes: Sequence[str] = TRAINING) -> float:
        """Estimated FLOPs of these purposes."""
        for purpose in purposes:
            check_choice("purposes", purpose, PURPOSES)
        return sum(
            PASSES[activity] * model.flops(entry.tokens, entry.attended)
            for (purpose, activity), entry in self._entries.items()
            if purpose in purposes
        )

    def seconds(self, purposes: Sequence[str] = TRAINING) -> float:
        """Wall time of these purposes; activities that ran at the same time are counted each."""
        for purpose in purposes:
            check_choice("purposes", purpose, PURPOSES)
        return sum(entry.seconds for (purpose, _), entry in self._entries.items() if purpose in purposes)

    def table(self, model: ModelShape) -> pd.DataFrame:
        """``purpose, activity, sequences, tokens, flops, seconds`` of every cell, in a fixed order."""
        rows = [
            (*key, entry.sequences, entry.tokens, PASSES[key[1]] * model.flops(entry.tokens, entry.attended),
             entry.seconds)
            for key, entry in self._sorted()
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=["purpose", "activity", "sequences", "tokens", "flops", "seconds"])

    def __add__(self, other: Ledger) -> Ledger:
        """Both together: of several steps, workers or runs."""
        return self._combine(other, 1)

    def __sub__(self, earlier: Ledger) -> Ledger:
        """What came after ``earlier``, a state of the same ledger.

        Raises:
            ValueError: ``earlier`` has more of something.
        """
        return self._combine(earlier, -1)

    def copy(self) -> Ledger:
        """As it is now, for a later difference."""
        return self + Ledger()

    def to_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        """Plain numbers, ``{purpose: {activity: {tokens, attended, sequences, seconds}}}``."""
        out: dict[str, dict[str, dict[str, float]]] = {}
        for (purpose, activity), entry in self._sorted():
            out.setdefault(purpose, {})[activity] = dict(vars(entry))
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Ledger:
        """Inverse of :meth:`to_dict`.

        Raises:
            ValueError: unknown purposes or activities, other fields, counts that are no whole numbers >= 0.
        """
        ledger, names = cls(), {field.name for field in fields(Entry)}
        for purpose, activities in data.items():
            for activity, values in activities.items():
                entry = ledger._entry(purpose, activity)
                if set(values) != names:
                    raise refuse(f"{purpose}.{activity}", values, f"the fields {', '.join(sorted(names))}")
                for name in ("tokens", "attended", "sequences"):
                    setattr(entry, name, check_integer(name, values[name], 0, "whole numbers >= 0"))
                entry.seconds = _check_seconds(values["seconds"])
        return ledger

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        cells = (f"{p} {a}: {e.tokens:,} tokens" for (p, a), e in self._sorted())
        return f"Ledger({'; '.join(cells)})"

    def _entry(self, purpose: str, activity: str, create: bool = True) -> Entry:
        key = check_choice("purpose", purpose, PURPOSES), check_choice("activity", activity, ACTIVITIES)
        return self._entries.setdefault(key, Entry()) if create else self._entries.get(key, Entry())

    def _sorted(self) -> list[tuple[tuple[str, str], Entry]]:
        """Cells that hold something."""
        found = ((key, entry) for key, entry in self._entries.items() if any(vars(entry).values()))
        return sorted(found, key=lambda cell: (PURPOSES.index(cell[0][0]), ACTIVITIES.index(cell[0][1])))

    def _combine(self, other: Ledger, sign: int) -> Ledger:
        if not isinstance(other, Ledger):
            return NotImplemented
        out = Ledger()
        for source, factor in ((self, 1), (other, sign)):
            for key, entry in source._entries.items():
                cell = out._entries.setdefault(key, Entry())
                for name, value in vars(entry).items():
                    setattr(cell, name, getattr(cell, name) + factor * value)
        for (purpose, activity), cell in out._entries.items():
            cell.seconds = 0.0 if -1e-9 < cell.seconds < 0 else cell.seconds  # rounding of sums
            for name, value in vars(cell).items():
                if value < 0:
                    raise ValueError(
                        f"{name} of {purpose}.{activity} would be {value}: allowed is an earlier state of "
                        "the same ledger"
                    )
        return out


def merge(ledgers: Iterable[Ledger]) -> Ledger:
    """Sum of any number of ledgers."""
    return sum(ledgers, start=Ledger())


def _check_seconds(value: float) -> float:
    return check_number("seconds", value, lambda x: 0 <= x < float("inf"), "finite numbers >= 0")


def _wholes(name: str, values: ArrayLike) -> np.ndarray:
    """Python integers, which do not overflow, [n]."""
    array = np.atleast_1d(np.asarray(values))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu") or (array < 0).any():
        raise refuse(name, values, "whole numbers >= 0, one or [n]")
    return array.astype(object)
