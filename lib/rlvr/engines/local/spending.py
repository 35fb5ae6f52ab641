"""Runs that end with their compute and not after a number of steps: what they have spent, and whether it is
the budget.

Arms are compared at equal estimated compute [text: IBPO 5]; what a step costs differs between them and
changes while they learn (corrections become fewer, responses shorter). So a run ends with the step after
which its FLOPs are nearest to the budget, as far as the cost of the last step foretells the next: within half
a step [choice].
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.engines.local.accounting import table_of
from rlvr.engines.local.policy import Policy, Shape
from rlvr.evaluation.compute import Ledger, ModelShape
from rlvr.problems.tokenizer import Codec

if TYPE_CHECKING:
    from rlvr.engines.local.job import Job

Rows = Sequence[dict[str, int]]  # of Compute.row, cumulative, one per step


def spent(row: dict[str, float], shape: Shape) -> float:
    """FLOPs of training up to a row of counts."""
    return Ledger.from_dict(table_of(row)).flops(ModelShape.of(shape))


def share_spent(rows: Rows, shape: Shape, budget: float) -> float:
    """Of the budget, in parts of it; 0 before the first step."""
    return spent(rows[-1], shape) / budget if rows else 0.0


def is_spent(rows: Rows, shape: Shape, budget: float) -> bool:
    """Whether another step like the last would end farther from the budget than this one does."""
    if not rows:
        return False
    now = spent(rows[-1], shape)
    before = spent(rows[-2], shape) if len(rows) > 1 else 0.0
    return now + (now - before) / 2 >= budget


def processor_seconds(base: str | Path, job: Job, steps: int) -> float:
    """Processor seconds of this process per FLOP, over the first ``steps`` steps of a run from ``base``.

    What wall time would be on a machine that does nothing else; programs that a sandbox runs are not in it,
    and neither is validation, which the FLOPs leave out.
    """
    from rlvr.engines.local.training import run_of  # which imports this module

    class Timed(run_of(job)):
        def _validate(self) -> float:
            return math.nan

    run = Timed(job, Policy.from_pretrained(base), Codec.load(base), "timed")
    begun = time.process_time()
    for _ in range(steps):
        run.step()
    return (time.process_time() - begun) / spent(run.compute_rows[-1], run.policy.shape)
