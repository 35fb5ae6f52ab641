"""What verl's synchronous trainers with a second generation pass have in common.

The second pass goes through the same rollout engine, with the same weights, before it gives its memory back
to the trainer. An update has the responses to whole prompts, and with each what was written from it; rewards
of our own take the place of the verdicts while verl computes advantages. What is asked again, and what that
earns, is the business of :mod:`.correcting` (IBPO) and :mod:`.self_correcting` (SCoRe-style).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from rlvr.config_corrections import Counterfactual, SelfCorrection
from rlvr.engines.local.accounting import Compute
from rlvr.engines.verl.correction_check import unknown_settings, updates_of_step
from rlvr.engines.verl.correction_layout import layout
from rlvr.engines.verl.correction_prompts import SHOWN, CorrectionPrompts
from rlvr.engines.verl.correction_rows import SecondPassBuffer, at_the_end, batch_of, rows_of
from rlvr.engines.verl.recording import RecordingTrainingWorker, RecordingWorker
from rlvr.engines.verl.trainer import RecordingTrainer

RECORDS = ("records_dir", "records_per_step", "records_every", "records_megabytes", "records_updates_dir")


class TwoPassTrainingWorker(RecordingTrainingWorker):
    """As ``RecordingTrainingWorker``; means over responses are over those that have tokens.

    verl takes the number of rows, those that fill an update up included, which would be as many as there
    happened to be too few of the second pass.
    """

    def train_batch(self, data: TensorDict) -> TensorDict:
        mask = data["response_mask"]
        rows = mask.unbind() if mask.is_nested else mask
        (count,) = self._over_ranks([sum(bool(row.any()) for row in rows)])
        tu.assign_non_tensor(data, global_batch_size=max(1, count))
        return super().train_batch(data)

    def _over_ranks(self, counts: Sequence[int]) -> list[int]:
        """Sums over the data-parallel ranks."""
        found = torch.tensor(counts, device=self.device_name)
        if self.engine.get_data_parallel_size() > 1:
            torch.distributed.all_reduce(found, group=self.engine.get_data_parallel_group())
        return found.tolist()


class TwoPassWorker(RecordingWorker):
    actor_worker_cls = TwoPassTrainingWorker


@dataclass
class Step:
    """What the second pass found out, for the rest of its step; by key of a row."""

    update: dict[str, int] = field(default_factory=dict)  # of all rows
    order: dict[str, int] = field(default_factory=dict)
    reward: dict[str, float] = field(default_factory=dict)  # in place of the verdict, for the advantages
    #: The rows that an advantage is relative to, by any name; absent: those that answer the same prompt.
    group: dict[str, str] = field(default_factory=dict)
    mask: dict[str, Tensor] = field(default_factory=dict)  # of responses that are not updated as a whole
    corrections: frozenset[str] = frozenset()  # rows of the second pass
    rows_per_update: int = 0


class TwoPassTrainer(RecordingTrainer):
    """As ``rlvr_sync``, with a second generation pass, which a subclass makes in :meth:`_second_pass`.

    Settings, in ``trainer.v1.<mode>``: those of ``rlvr_sync``; a block of the method; ``shown_characters`` of
    a response in a prompt of the second pass (texts). What the second pass writes is of
    ``rollout.response_length`` tokens at most, its prompts of ``rollout.prompt_length``.

    verl's metrics of data and rewards are those of the responses. Metrics of the loss are of both.
    """

    worker: type = TwoPassWorker
    block: ClassVar[str]  # name of the method's settings
    method: Counterfactual | SelfCorrection
    beside: tuple[str, ...] = ()  # further settings of the trainer that a subclass reads

    def __init__(self, config: Any):
        given = config.trainer.v1.get(config.trainer.v1.trainer_mode)
        known = (self.block, "shown_characters", *RECORDS, *self.beside)
        unknown_settings(dict(given), known, f"trainer.v1.{self.mode}")
        self._asked: dict[str, dict[str, Any]] = {}  # rows of the step's prompts by uid, in order
        self._now = Step()
        super().__init__(config)

    def _build_replay_buffer(self) -> Any:
        return SecondPassBuffer(super()._build_replay_buffer(), self._second_pass)

    def _second_pass(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Ask again about what ``batch`` answered, and say in ``_now`` what each row earns; returns the rows
        to train on."""
        raise NotImplementedError

    @cached_property
    def prompts(self) -> CorrectionPrompts:
        options = dict(self.config.data.get("apply_chat_template_kwargs", None) or {})

        def count(chat: list[dict[str, str]]) -> int:
            text = self.tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=False, **options
            )
            return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

        return CorrectionPrompts(
            self.method,
            self.tokenizer,
            count,
            self.config.actor_rollout_ref.rollout.prompt_length,
            self.settings.get("shown_characters", SHOWN),
        )

    # --- generation ----------------------------------------------------------------------------------------

    def prepare_step(self) -> dict:
        self._asked = {}
        return super().prepare_step()

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        self._asked |= {row["uid"]: row for row in rows_of(batch)}
        return super()._submit_batch_to_rollout(batch)

    def _ask_again(
        self, rows: list[dict], chats: list[list], names: list[str], count: int, partition: str
    ) -> KVBatchMeta:
        """``count`` answers to each chat, whose uid is its name; in a row of the first pass it takes the
        place of the problem. Of a prompt that could not be decided there is none."""
        found = KVBatchMeta(partition_id=partition, keys=[], tags=[])
        if not names:
            return found
        batch = batch_of(
            [
                row | {"raw_prompt": chat, "uid": name, "__rollout_n__": count}
                for row, chat, name in zip(rows, chats, names, strict=True)
            ]
        )
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        super()._submit_batch_to_rollout(batch)
        return self.replay_buffer.wait_for(names, partition)

    @staticmethod
    def _both(first: KVBatchMeta, second: KVBatchMeta) -> KVBatchMeta:
        return KVBatchMeta(
            partition_id=first.partition_id,
            keys=[*first.keys, *second.keys],
            tags=[*first.tags, *second.tags],
            extra_info=first.extra_info,
        )

    def _count_second(self, compute: Compute, rows: KVBatchMeta, trained: bool = True) -> None:
        """What rows of the second pass cost; what the first's cost is counted when they are trained on."""
        self._count(compute, "correction", rows.tags, [_prompt(key) for key in rows.keys], trained=trained)

    # --- the update ----------------------------------------------------------------------------------------

    def _answers(self, batch: KVBatchMeta) -> list[bool]:
        own = zip(batch.keys, super()._answers(batch), strict=True)
        return [answer and key not in self._now.corrections for key, answer in own]

    def _balance_batch(
        self, batch: KVBatchMeta, metrics: dict, logging_prefix: str = "global_seqlen", keep_minibatch=False
    ) -> KVBatchMeta:
        """Rows of an update together, in the order of their prompts, shared out to the ranks by length."""
        ranks, now = self._ranks(), self._now
        batch.reorder(sorted(range(len(batch.keys)), key=lambda row: now.order[batch.keys[row]]))

        def split(lengths: list[int], parts: int) -> list[list[int]]:
            workload = calculate_workload(torch.tensor(lengths))
            return get_seqlen_balanced_partitions(workload, k_partitions=parts, equal_size=True)

        placed = layout(
            [now.update[key] for key in batch.keys],
            updates_of_step(self.config),
            ranks,
            self._multiple(ranks),
            [tag["seq_len"] for tag in batch.tags],
            split,
        )
        now.rows_per_update = placed.rows_per_update
        batch = upsample_batch_to_divisible_size(batch, placed.total, self.tokenizer.eos_token_id)
        batch.reorder(placed.order)
        metrics["rlvr/rows_per_update"] = float(placed.rows_per_update)
        return batch

    def _multiple(self, ranks: int) -> int:
        """What the rows of an update have to be divisible by, for verl's own cuts."""
        config = self.config.actor_rollout_ref
        found = [config.rollout.n]
        if not config.actor.use_dynamic_bsz:
            found.append(ranks * (config.actor.ppo_micro_batch_size_per_gpu or 1))
        if not config.rollout.log_prob_use_dynamic_bsz:
            found.append(ranks * (config.rollout.log_prob_micro_batch_size_per_gpu or 1))
        if self.use_reference_policy and not config.ref.log_prob_use_dynamic_bsz:
            found.append(ranks * (config.ref.log_prob_micro_batch_size_per_gpu or 1))
        return math.lcm(*found)

    def _ranks(self) -> int:
        workers = self.actor_rollout_wg
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        return max(workers._dispatch_info["actor"]) + 1

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """verl's advantages, of our rewards and groups.

        A group of one reward, also of one member, has no advantage; verl's would be its reward, or what
        rounding leaves of it over a deviation of nothing.
        """
        fields = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["rm_scores"]
        )
        raw, uids = list(fields["rm_scores"].unbind()), [_prompt(key) for key in batch.keys]
        groups = [self._now.group.get(key, uid) for key, uid in zip(batch.keys, uids, strict=True)]
        rewards = that_differ([self._now.reward.get(key, 0.0) for key in batch.keys], groups)
        self._put(batch, "rm_scores", [at_the_end(r, row) for r, row in zip(rewards, raw, strict=True)])
        if groups != uids:
            self._put_texts(batch, "uid", groups)
        batch = super()._compute_advantage(batch, metrics)
        self._put(batch, "rm_scores", raw)
        if groups != uids:
            self._put_texts(batch, "uid", uids)
        return batch

    @staticmethod
    def _put(batch: KVBatchMeta, name: str, rows: list[Tensor]) -> KVBatchMeta:
        """The rows with a further field, which workers fetch of the returned batch alone."""
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        values = TensorDict({name: nested}, batch_size=len(rows))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=values)

    @staticmethod
    def _put_texts(batch: KVBatchMeta, name: str, rows: list[str]) -> None:
        values = TensorDict({name: NonTensorStack(*rows)}, batch_size=len(rows))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=values)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        with self._rows_of_an_update(self._now.rows_per_update):
            return super()._update_actor(batch, metrics)

    @contextmanager
    def _rows_of_an_update(self, rows: int) -> Iterator[None]:
        """verl counts a mini-batch in prompts of ``rollout.n`` rows."""
        config = self.config.actor_rollout_ref
        prompts = config.actor.ppo_mini_batch_size
        config.actor.ppo_mini_batch_size = rows // config.rollout.n
        try:
            yield
        finally:
            config.actor.ppo_mini_batch_size = prompts

    def _compute_metrics(self, batch: KVBatchMeta, *args: Any, **kwargs: Any) -> None:
        rows = [row for row, answer in enumerate(self._answers(batch)) if answer]
        own = KVBatchMeta(
            partition_id=batch.partition_id,
            keys=[batch.keys[row] for row in rows],
            tags=[batch.tags[row] for row in rows],
        )
        super()._compute_metrics(own, *args, **kwargs)


def that_differ(rewards: Sequence[float], groups: Sequence[str]) -> list[float]:
    """The rewards, 0 in a group that has one reward alone."""
    found: dict[str, set[float]] = {}
    for group, reward in zip(groups, rewards, strict=True):
        found.setdefault(group, set()).add(reward)
    return [r if len(found[group]) > 1 else 0.0 for group, r in zip(groups, rewards, strict=True)]


def _prompt(key: str) -> str:
    """The prompt that a row of verl's queue answers: its key is ``<uid>_<session>_<turn>``."""
    return key.rsplit("_", 2)[0]
