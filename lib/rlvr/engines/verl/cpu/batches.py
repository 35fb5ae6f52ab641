"""What a step trained on, written from inside the job: token ids, masks, log-probs, advantages, rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr.storage import atomic_path

FIELDS = (
    "prompts",
    "responses",
    "response_mask",
    "old_log_probs",
    "rollout_log_probs",
    "advantages",
    "rm_scores",
    "rollout_is_weights",  # the token mask of a trainer that makes one
    "ref_log_prob",
    "rlvr_turn",  # of a trainer of two turns; rlvr_kl_coef likewise
    "rlvr_kl_coef",
    "old_mtp_log_probs",
    "values",
    "returns",
)


def save_batch(batch: Any, path: str | Path, most_rows: int) -> None:
    """Write the rows of a verl batch, in the order in which the actor is trained on them.

    Args:
        batch: ``KVBatchMeta`` of verl's trainer, after its advantages were computed.
        path: of a safetensors file: per field ``name`` one flat tensor of all rows, and ``name.lengths``
            [rows]. Rows added only to fill a mini-batch are there too, with ``response_mask`` 0.
        most_rows: the first so many rows are kept.
    """
    import transfer_queue as tq
    from safetensors.torch import save_file

    keys = list(batch.keys)[:most_rows]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
    flat: dict[str, Tensor] = {}
    for name in FIELDS:
        if name in data.keys():
            rows = list(data[name].unbind(0))
            flat[name] = torch.cat([row.reshape(-1) for row in rows]).contiguous()
            flat[f"{name}.lengths"] = torch.tensor([row.numel() for row in rows])
    with atomic_path(path) as partial:
        save_file(flat, partial, metadata={"keys": "\n".join(keys)})


def load_batch(path: str | Path) -> dict[str, list[Tensor]]:
    """Fields of a file of :func:`save_batch`, each a list of rows."""
    from safetensors.torch import load_file

    flat = load_file(path)
    return {
        name: list(values.split(flat[f"{name}.lengths"].tolist()))
        for name, values in flat.items()
        if not name.endswith(".lengths")
    }
