"""The whole state of a run in one file, written atomically: resuming is exact."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr.engines.local.accounting import Table
from rlvr.storage import atomic_path


@dataclass
class RunState:
    """Everything that the next step depends on. Random streams are functions of (seed, step): none is here.

    Attributes:
        identity: fingerprint of the job and its base model; a checkpoint of another job is refused.
        step: steps done.
        theta: [parameters] current weights.
        optimizer: state dict of the optimiser.
        past: weights of the last ``lag`` steps, oldest first.
        metrics: one row per step done.
        records: columns of per-token records, one array per step and column.
        counts: tokens generated, trained and verified so far.
        method: what the method has beside the policy: weights, optimisers, rows.
        compute: the same by purpose and activity, see :mod:`rlvr.engines.local.accounting`.
        compute_rows: one row of it per step done.
    """

    identity: str
    step: int
    theta: Tensor
    optimizer: dict[str, Any]
    past: list[Tensor]
    metrics: list[dict[str, float]] = field(default_factory=list)
    records: list[dict[str, Tensor]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    compute: Table = field(default_factory=dict)
    compute_rows: list[dict[str, int]] = field(default_factory=list)

    def save(self, path: Path) -> None:
        with atomic_path(path) as partial:
            torch.save(vars(self), partial)

    @classmethod
    def load(cls, path: Path, identity: str) -> RunState | None:
        """The state saved at ``path``, or None if there is none.

        Raises:
            ValueError: the file belongs to another job, or cannot be read.
        """
        if not path.is_file():
            return None
        try:
            state = torch.load(io.BytesIO(path.read_bytes()), weights_only=True)
        except Exception as error:
            raise ValueError(
                f"checkpoint {path} cannot be read ({error}); delete it to start over"
            ) from error
        if state["identity"] != identity:
            raise ValueError(
                f"checkpoint {path} belongs to another run (identity {state['identity']}, "
                f"expected {identity}); "
                "delete it to start over"
            )
        return cls(**state)
