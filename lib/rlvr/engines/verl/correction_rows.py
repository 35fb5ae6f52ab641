"""Rows of verl's queue: what its replay buffer gives for training, and the same rows as a matrix."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import NonTensorData, TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu


class SecondPassBuffer:
    """verl's replay buffer; what it gives for training goes through ``second_pass``."""

    def __init__(self, buffer: Any, second_pass: Callable[[KVBatchMeta, dict], KVBatchMeta]):
        self._buffer, self._second_pass = buffer, second_pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        batch, metrics = self._buffer.sample(
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        return (self._second_pass(batch, metrics) if partition_id == "train" else batch), metrics

    def wait_for(self, prompts: Sequence[str], partition_id: str = "train") -> KVBatchMeta:
        """The rows of these prompts once all of them ended, of whatever number: a prompt whose responses
        could not be decided has none."""
        buffer, since = self._buffer, time.time()
        while True:
            buffer._sync_metadata_from_transfer_queue()
            if set(prompts) <= buffer.finished_keys[partition_id] | buffer.failure_keys[partition_id]:
                found = dict(buffer.partitions[partition_id])
                return buffer._materialize_batch(partition_id, list(prompts), found)
            since = buffer._wait_for_next_poll(partition_id, since)


@dataclass
class QueueRows:
    """Rows of verl's queue as a matrix: ``width`` rows of each prompt, in the prompts' order."""

    prompts: Sequence[str]
    width: int
    place: dict[str, int] = field(default_factory=dict)  # by key
    scores: Tensor = field(init=False)  # [prompts, width], NaN: missing
    tokens: list[list[int]] = field(init=False)  # [prompts * width], empty: missing

    def __post_init__(self) -> None:
        self.scores = torch.full((len(self.prompts), self.width), math.nan)
        self.tokens = [[] for _ in range(self.scores.numel())]

    def fill(self, batch: KVBatchMeta) -> QueueRows:
        """What ``batch`` has of them.

        Raises:
            ValueError: a prompt that is answered in several turns.
        """
        if not batch.keys:
            return self
        number = {prompt: index for index, prompt in enumerate(self.prompts)}
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["responses", "rm_scores"]
        )
        rows = zip(batch.keys, data["responses"].unbind(), data["rm_scores"].unbind(), strict=True)
        for key, response, scores in rows:
            prompt, session, turn = key.rsplit("_", 2)
            if turn != "0":
                raise ValueError(f"{key}: corrections are of responses in one turn, this is turn {turn}")
            self.place[key] = number[prompt] * self.width + int(session)
            self.tokens[self.place[key]] = response.tolist()
            self.scores.view(-1)[self.place[key]] = float(scores.sum())
        return self

    @property
    def lengths(self) -> Tensor:
        return torch.tensor([len(ids) for ids in self.tokens])


def rows_of(batch: TensorDict) -> list[dict[str, Any]]:
    """Rows of a batch of prompts as verl's agent loops read them; what is of the whole batch is left out."""
    return [
        {
            name: values[row] if isinstance(values, Tensor) else values[row].data
            for name, values in batch.items()
            if not isinstance(values, NonTensorData)
        }
        for row in range(len(batch))
    ]


def batch_of(rows: Sequence[Mapping[str, Any]]) -> TensorDict:
    """The inverse of :func:`rows_of`: tensors are stacked, everything else stays an object a row."""
    columns: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if isinstance(values[0], Tensor):
            columns[name] = torch.stack(values)
        else:
            columns[name] = np.empty(len(rows), dtype=object)
            columns[name][:] = values
    return tu.get_tensordict(columns)


def at_the_end(reward: float, like: Tensor) -> Tensor:
    """A reward where verl looks for it, at the last token of a row as long as ``like``."""
    out = torch.zeros(len(like))
    out[-1:] = reward
    return out


def mask_of(lengths: Tensor) -> Tensor:
    """[B, T] of rows with so many tokens each."""
    return torch.arange(int(lengths.max())) < lengths[:, None]
