"""Which rows of a step are trained together: responses, and with them the corrections of each.

verl gives every rank a block of the batch, of which the rank cuts equal pieces, one for an update. A step
with corrections has as many rows as it happened to have wrong responses, and not equally many in each
update; rows without a token fill the pieces up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Layout(NamedTuple):
    """Rows of a step in the order in which verl takes them."""

    rows_per_update: int  # on all ranks
    order: list[int]  # numbers from ``len(rows)`` on are filler

    @property
    def total(self) -> int:
        return len(self.order)


Split = Callable[[list[int], int], list[list[int]]]  # (tokens of rows, ranks) -> places, equally many each


def blocks(tokens: list[int], ranks: int) -> list[list[int]]:
    """The places 0, 1, ... in order, a block for each rank."""
    size = len(tokens) // ranks
    return [list(range(rank * size, (rank + 1) * size)) for rank in range(ranks)]


def updates_of(groups: Sequence[int], count: int, updates: int) -> list[int]:
    """The update of each row: whole groups in order, of the ``count`` prompts of a step.

    ``groups``: number of the prompt, 0..count-1, that a row answers; of a correction, that of its target.

    Raises:
        ValueError: ``updates`` does not divide ``count``.
    """
    if updates < 1 or count % updates:
        raise ValueError(f"updates={updates}: allowed are divisors of the {count} prompts of a step")
    return [group // (count // updates) for group in groups]


def layout(
    update_of: Sequence[int],
    updates: int,
    ranks: int,
    multiple: int,
    tokens: Sequence[int],
    split: Split = blocks,
) -> Layout:
    """Where each row goes.

    Args:
        update_of: [rows] of :func:`updates_of`.
        updates, ranks: pieces of a block, and blocks.
        multiple: an update has a multiple of so many rows, and of ``ranks``.
        tokens: [rows], by which ``split`` shares an update's rows out; a filler row counts 1.
    """
    of = [[row for row, update in enumerate(update_of) if update == number] for number in range(updates)]
    step = math.lcm(multiple, ranks)
    size = max(1, -(-max(map(len, of)) // step)) * step
    filler = iter(range(len(update_of), updates * size))
    of = [rows + [next(filler) for _ in range(size - len(rows))] for rows in of]
    shares = []
    for rows in of:
        lengths = [tokens[row] if row < len(tokens) else 1 for row in rows]
        shares.append([[rows[place] for place in part] for part in split(lengths, ranks)])
    order = [row for rank in range(ranks) for share in shares for row in share[rank]]
    return Layout(size, order)
