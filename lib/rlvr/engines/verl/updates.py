"""A row per update, kept by the workers that make it: ``updates-*.json`` of a job.

verl's metrics are means over the updates of a step, and over the micro-batches of an update without regard
to their sizes. What relates updates to each other (MPO's Figures 4 and 7) needs each of them, and a variance
over tokens all of the update's tokens. So the loss keeps counts, means and squared deviations of its
micro-batch, and the worker joins them: about a kilobyte an update, one file per step and rank, written as a
whole, and again by a job that repeats the step after a resume. :mod:`rlvr.engines.jobs.updates` reads them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr.engines.jobs.updates import NAME, VARIANCE, Part, joined
from rlvr.registry import merge_metrics
from rlvr.storage import finite_or_none, write_text

logger = logging.getLogger(__name__)

FOLDER = "rlvr_updates"  # of a batch: {"folder", "step"}, where rows of its updates are wanted
PARTS = "rlvr_parts"  # of a loss's metrics: parts for the update's row, which verl never sees
MEGABYTES = 100  # of one rank's files: some 50,000 updates and more
ACTOR = "actor/"
#: verl's, beside the objective's own: another name of one of them, or of what is kept otherwise.
NOT_KEPT = {"pg_clipfrac", "pg_clipfrac_lower", "ppo_kl", "pg_loss", "entropy_loss", "token_entropy"}


def parts_of(named: Mapping[str, Tensor]) -> dict[str, Part]:
    """The part of each tensor's values, in float64 and one transfer; a tensor without values has none."""
    values = {name: tensor.detach().flatten().double() for name, tensor in named.items() if tensor.numel()}
    if not values:
        return {}
    means = torch.stack([value.mean() for value in values.values()])
    squares = [(value - mean).square().sum() for value, mean in zip(values.values(), means, strict=True)]
    found = torch.stack([means, torch.stack(squares)], 1).tolist()
    return {name: (value.numel(), *pair) for (name, value), pair in zip(values.items(), found, strict=True)}


class UpdateRows:
    """Rows of the updates of one step on one rank; ``wanted`` says whether any are kept."""

    def __init__(self) -> None:
        self.wanted = False
        self.rows: list[dict[str, Any]] = []
        self._metrics: list[dict[str, float]] = []
        self._parts: list[Mapping[str, Part]] = []

    def begin(self, wanted: bool) -> None:
        self.wanted, self.rows, self._metrics, self._parts = wanted, [], [], []

    def micro_batch(self, metrics: Mapping[str, Any], parts: Mapping[str, Part], tokens: int) -> None:
        """What the loss said of a micro-batch: verl's ``Metric`` or numbers under ``actor/``, and parts."""
        own = {name.removeprefix(ACTOR): value for name, value in metrics.items() if name.startswith(ACTOR)}
        numbers = {name: float(getattr(value, "values", [value])[0]) for name, value in own.items()}
        self._metrics.append(
            {name: value for name, value in numbers.items() if not _kept_otherwise(name, parts)}
            | {"tokens": float(tokens)}
        )
        self._parts.append({name: part for name, part in parts.items() if part[0]})

    def update(self, shared: Mapping[str, float]) -> None:
        """The update is made; ``shared``: what every rank says alike, such as the gradient's norm."""
        if not self._metrics:
            return
        names = dict.fromkeys(name for parts in self._parts for name in parts)
        parts = {name: joined(part[name] for part in self._parts if name in part) for name in names}
        self.rows.append(
            {
                "metrics": _finite(merge_metrics(self._metrics, partial=True)),
                "parts": {name: [finite_or_none(number) for number in part] for name, part in parts.items()},
                "shared": _finite(shared),
            }
        )
        self._metrics, self._parts = [], []


def _kept_otherwise(name: str, parts: Mapping[str, Part]) -> bool:
    """Whether a metric is no mean over the micro-batch's tokens: it is a part, or of a module without any."""
    return name in NOT_KEPT or name in parts or name.startswith("mtp_") or name.endswith(VARIANCE)


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(float(value)) for name, value in values.items()}


class UpdateFiles:
    """Writes a file per step of one rank; nothing once these hold :data:`MEGABYTES`.

    A full disk ends the rows with a warning, not the job.
    """

    def __init__(self) -> None:
        self._bytes: int | None = None
        self._told = False

    def write(self, rows: list[dict[str, Any]], rank: int, ranks: int, folder: str, step: int) -> None:
        path = Path(folder) / NAME.format(step=step, rank=rank)
        text = json.dumps({"step": step, "rank": rank, "ranks": ranks, "updates": rows}, allow_nan=False)
        try:
            if self._bytes is None:  # what attempts before this one left
                self._bytes = sum(
                    file.stat().st_size for file in path.parent.glob(f"updates-*-rank{rank}.json")
                )
            if path.is_file():
                self._bytes -= path.stat().st_size
                path.unlink()  # of a step that is repeated: what it was is gone, whatever comes of this one
            if self._bytes + len(text) > 1e6 * MEGABYTES:
                if not self._told:
                    logger.warning(
                        "updates: %s holds %g MB of rank %d; no more are kept", folder, MEGABYTES, rank
                    )
                self._told = True
                return
            write_text(path, text)
            self._bytes += len(text)
        except OSError as error:
            logger.warning("rows of the updates of step %d are lost: %s", step, error)
