"""What a run computes, counted as it happens: tokens by purpose and activity.

The layout is that of :meth:`rlvr.evaluation.compute.Ledger.to_dict`: ``Ledger.from_dict(table_of(row))`` has
the FLOPs of a row. Wall times are not counted here: what a run leaves must be the same bytes each time.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

from rlvr.engines.local.packing import PackedGroups
from rlvr.engines.local.sampling import Samples

Table = dict[str, dict[str, dict[str, float]]]


class Compute:
    """Cumulative counts; ``table[purpose][activity]`` has ``tokens, attended, sequences, seconds`` (0)."""

    def __init__(self, table: Table | None = None) -> None:
        self.table: Table = copy.deepcopy(table) if table else {}

    def add(self, purpose: str, activity: str, lengths: list[int], contexts: list[int] | None = None) -> None:
        """Sequences of ``lengths`` new tokens, each behind ``contexts`` others (none: behind nothing).

        Token i of a sequence, from 1, attends to ``context + i`` tokens.
        """
        contexts = [0] * len(lengths) if contexts is None else contexts
        attended = sum(n * c + n * (n + 1) // 2 for n, c in zip(lengths, contexts, strict=True))
        entry = self.table.setdefault(purpose, {}).setdefault(
            activity, {"tokens": 0, "attended": 0, "sequences": 0, "seconds": 0.0}
        )
        entry["tokens"] += sum(lengths)
        entry["attended"] += attended
        entry["sequences"] += len(lengths)

    def sampled(self, purpose: str, prompts: list[list[int]], samples: Samples) -> None:
        """Responses, their prompts computed once each, and their verification."""
        lengths, widths = samples.lengths.tolist(), [len(p) for p in prompts]
        size = len(lengths) // len(prompts)
        self.add(purpose, "prefill", widths)
        self.add(purpose, "decode", lengths, [width for width in widths for _ in range(size)])
        self.add(purpose, "verify", lengths)

    def passed(self, purpose: str, activity: str, packed: PackedGroups) -> None:
        """A pass over packed groups: ``train``, or ``score`` without a gradient."""
        prompts = packed.prompt_valid.sum(1).tolist()
        own = packed.own_valid.sum(-1)  # a response's last token predicts nothing
        self.add(purpose, activity, prompts)
        self.add(purpose, activity, own.flatten().tolist(), [p for p in prompts for _ in range(own.shape[1])])

    def row(self, step: int) -> dict[str, int]:
        """The counts after ``step`` steps, flat: ``base_decode_tokens`` and so on."""
        return {"step": step} | {
            f"{purpose}_{activity}_{name}": int(entry[name])
            for purpose, activities in sorted(self.table.items())
            for activity, entry in sorted(activities.items())
            for name in ("tokens", "attended", "sequences")
        }


def compared(
    responses: Sequence[Sequence[int]],
    rows: Sequence[int],
    corrections: Sequence[Sequence[int]],
    there: Collection[int],
) -> list[int]:
    """Tokens that the operator is handed for each correction: those of its response and its own.

    Args:
        responses: token ids; ``rows``: [N] of the corrected ones among them.
        corrections: [N * C] token ids, a response's in adjacent rows; ``there``: which of them are not
            missing.
    """
    count = len(corrections) // max(1, len(rows))
    return [len(responses[rows[place // count]]) + len(corrections[place]) for place in sorted(there)]


def table_of(row: dict[str, float]) -> Table:
    """The inverse of :meth:`Compute.row`, for ``Ledger.from_dict``; missing numbers are 0."""
    table: Table = {}
    for name, value in row.items():
        purpose, _, rest = name.partition("_")
        activity, _, field = rest.partition("_")
        if name == "step" or not field:
            continue
        entry = table.setdefault(purpose, {}).setdefault(
            activity, {"tokens": 0, "attended": 0, "sequences": 0, "seconds": 0.0}
        )
        entry[field] = 0 if value != value else int(value)
    return table
