"""verl's synchronous trainer that keeps per-token records: ``trainer.v1.trainer_mode=rlvr_sync``.

    VERL_USE_EXTERNAL_MODULES=rlvr.engines.verl.trainer python -m verl.trainer.main_ppo \\
        trainer.v1.trainer_mode=rlvr_sync +trainer.v1.rlvr_sync.records_dir=records ...

(verl imports the named modules in every process of the job.) The updates are those of ``sync``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.utils.fs import copy_to_local

from rlvr.engines.local.accounting import Compute
from rlvr.engines.verl.accounting import as_metrics, count_rows
from rlvr.engines.verl.mtp_stack import OLD, SAID, of_responses
from rlvr.engines.verl.recording import ROW, SETTINGS, RecordingWorker
from rlvr.engines.verl.surroundings import correction_of
from rlvr.engines.verl.updates import FOLDER
from rlvr.engines.vllm.model import end_token_ids

MODE = "rlvr_sync"
ACTORS = (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef)


@register_trainer(MODE)
class RecordingTrainer(PPOTrainerSync):
    """As ``sync``; some responses of every few steps are recorded token by token.

    Settings, in ``trainer.v1.<mode>``: ``records_dir`` (absent: nothing is kept), ``records_per_step``
    responses spread evenly over the mini-batches of a step, in every ``records_every``-th step, until each
    rank has written ``records_megabytes``. ``records_updates_dir`` (absent: none is kept): where a row of
    every update goes (:mod:`.updates`).

    Metrics, for what verl does not log: ``rlvr/groups_with_signal``, the share of prompts whose responses
    were not all rewarded alike; ``rlvr/truncated``, the share of responses that did not end by themselves
    (verl's ``response_length/clip_ratio`` is the share of the batch's longest length);
    ``rlvr/response_tokens`` of the step; ``rlvr/entropy_estimate``, the mean of minus the sampler's log-probs
    in nats; ``rlvr/compute/...``, what the step computed (:mod:`.accounting`).
    """

    mode = MODE
    worker: type = RecordingWorker

    @property
    def trainer_mode(self) -> str:
        """``sync``: verl compares this name to tell synchronous from asynchronous training."""
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, value: str) -> None:
        """verl assigns the name it was started by."""

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.config.trainer.v1.get(self.mode, None) or {})

    @cached_property
    def ends(self) -> frozenset[int]:
        folder = Path(copy_to_local(self.config.actor_rollout_ref.model.path))
        return frozenset(end_token_ids(folder, self.tokenizer))

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            if role in ACTORS:
                self.role_worker_mapping[role] = ray.remote(self.worker)

    def _compute_old_log_prob(self, batch: Any, metrics: dict) -> Any:
        """Also those of the MTP modules. The rollout engine has none, so the trainer computes them, whoever
        computes the policy's."""
        batch = super()._compute_old_log_prob(batch, metrics)
        modules = self.config.actor_rollout_ref.actor.policy_loss.get("mtp", None)
        if not modules or modules["blocks"] == 1:
            return batch
        if correction_of(self.config).get("bypass_mode", False):
            temperature = self.config.actor_rollout_ref.rollout.temperature
            how = {"calculate_entropy": False, "compute_loss": False, "temperature": temperature}
            batch.extra_info.update(how)
            self.actor_rollout_wg.compute_log_prob(batch)
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=[SAID, "response_mask"]
        )
        old = of_responses(data[SAID], data["response_mask"], modules["blocks"])
        fields = TensorDict({OLD: old}, batch_size=len(batch.keys))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _update_actor(self, batch: Any, metrics: dict) -> Any:
        self._describe(batch, metrics)
        settings = self.settings
        folder, every = settings.get("records_dir", None), settings.get("records_every", 1)
        if folder and not (self.global_steps - 1) % every:
            batch = self._marked(batch, settings)
        if where := settings.get("records_updates_dir", None):
            batch.extra_info[FOLDER] = {"folder": str(where), "step": self.global_steps}
        return super()._update_actor(batch, metrics)

    def _marked(self, batch: Any, settings: Mapping[str, Any]) -> Any:
        """The batch with the rows that are recorded; another object, of which the caller's knows nothing."""
        real = self._answers(batch)
        updates = len(real) // self._rows_per_update()
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1  # as verl's own balancing reads it
        if self.config.actor_rollout_ref.actor.shuffle:
            updates = 1  # each rank shuffles its rows before it cuts them
        rows = marked_rows(real, updates, ranks, settings.get("records_per_step", 16), self.global_steps)
        fields = TensorDict({ROW: torch.tensor(rows)}, batch_size=len(rows))
        batch = tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        batch.extra_info[SETTINGS] = {
            "folder": str(settings["records_dir"]),
            "step": self.global_steps,
            "megabytes": float(settings.get("records_megabytes", 200)),
        }
        return batch

    def _rows_per_update(self) -> int:
        config = self.config.actor_rollout_ref
        return config.actor.ppo_mini_batch_size * config.rollout.n

    def _answers(self, batch: Any) -> list[bool]:
        """Which rows are responses to the step's prompts; others fill a mini-batch up."""
        return [not tag.get("is_padding", False) for tag in batch.tags]

    def _count(
        self,
        compute: Compute,
        purpose: str,
        tags: Sequence[Mapping],
        groups: Sequence[str],
        trained: bool = True,
    ) -> None:
        """What rows with these tags were generated, verified and trained for."""
        recomputed = not correction_of(self.config).get("bypass_mode", False)
        count_rows(
            compute,
            purpose,
            groups,
            [tag["prompt_len"] for tag in tags],
            [tag["response_len"] for tag in tags],
            trained=self.config.actor_rollout_ref.actor.ppo_epochs * trained,
            scored=(recomputed + self.use_reference_policy) * trained,
        )

    def _describe(self, batch: Any, metrics: dict) -> None:
        own = self._answers(batch)
        keys = [key for key, answer in zip(batch.keys, own, strict=True) if answer]
        fields = ["uid", "responses", "rm_scores", "response_mask", "rollout_log_probs"]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
        groups = [str(uid) for uid in data["uid"]]
        compute = Compute()
        tags = [tag for tag, answer in zip(batch.tags, own, strict=True) if answer]
        self._count(compute, "base", tags, groups)
        metrics |= as_metrics(compute)
        scores = [float(row.sum()) for row in data["rm_scores"].unbind()]
        masks = [row.bool() for row in data["response_mask"].unbind()]
        metrics["rlvr/groups_with_signal"] = groups_with_signal(groups, scores)
        last = [int(row[-1]) for row in data["responses"].unbind()]
        metrics["rlvr/truncated"] = sum(token not in self.ends for token in last) / len(last)
        metrics["rlvr/response_tokens"] = sum(int(mask.sum()) for mask in masks)
        if "rollout_log_probs" in data.keys():
            rows = zip(data["rollout_log_probs"].unbind(), masks, strict=True)
            metrics["rlvr/entropy_estimate"] = -float(
                torch.cat([row[mask] for row, mask in rows]).double().mean()
            )


def groups_with_signal(groups: Sequence[str], scores: Sequence[float]) -> float:
    """Share of groups whose scores differ."""
    found: dict[str, Counter] = {}
    for group, score in zip(groups, scores, strict=True):
        found.setdefault(group, Counter())[score] += 1
    return sum(len(counts) > 1 for counts in found.values()) / max(1, len(found))


def marked_rows(real: Sequence[bool], updates: int, ranks: int, count: int, seed: int) -> list[int]:
    """Numbers of the rows that are recorded, -1 for the others.

    ``count // updates`` rows of each mini-batch (one at least, unless ``count`` is 0), drawn from its real
    rows: verl's rows come in the order in which their responses ended, so that the first ones are short.
    ``real`` is False for rows that only fill a mini-batch up. verl gives every rank a block of the batch, and
    each rank cuts its own block into ``updates``.
    """
    draw = random.Random(seed)
    if updates < 1 or ranks < 1 or len(real) % (updates * ranks):
        raise ValueError(f"updates={updates}, ranks={ranks}: allowed are divisors of the {len(real)} rows")
    size, marks = len(real) // (updates * ranks), [-1] * len(real)
    for update in range(updates):
        firsts = [(rank * updates + update) * size for rank in range(ranks)]
        rows = [row for first in firsts for row in range(first, first + size) if real[row]]
        wanted = min(len(rows), max(1, count // updates)) if count else 0
        for row in draw.sample(rows, wanted):
            marks[row] = row
    return marks
