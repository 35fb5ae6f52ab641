"""verl's synchronous trainer with a second generation pass: ``trainer.v1.trainer_mode=rlvr_ibpo``.

    VERL_USE_EXTERNAL_MODULES=rlvr.engines.verl.correcting python -m verl.trainer.main_ppo \\
        trainer.v1.trainer_mode=rlvr_ibpo '+trainer.v1.rlvr_ibpo={counterfactual:{corrections:4}}' ...

A step of IBPO [text: IBPO Algorithm 1, I.2 C]: wrong responses become correction prompts, which go through
the same rollout engine, with the same weights, before it gives its memory back to the trainer; R' takes the
place of R while advantages are computed; an update has the responses to its prompts and their corrections.
What is corrected, and what that earns, is decided by :mod:`rlvr.counterfactual.second_pass`.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1 import register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from rlvr.counterfactual.operators import Candidate
from rlvr.counterfactual.second_pass import Judged, choose_targets, describe, judge, shaping, token_mask
from rlvr.engines.jobs.command import CORRECTING
from rlvr.engines.local.accounting import Compute, compared
from rlvr.engines.local.corrections import CORRECTIONS, REFERENCES
from rlvr.engines.local.rollout import derive_seed
from rlvr.engines.verl.accounting import as_metrics
from rlvr.engines.verl.correction_check import (
    BLOCK,
    check_corrections,
    counterfactual_of,
    unknown_settings,
    updates_of_step,
)
from rlvr.engines.verl.correction_layout import layout, updates_of
from rlvr.engines.verl.correction_prompts import SHOWN, CorrectionPrompts
from rlvr.engines.verl.correction_rows import (
    QueueRows,
    SecondPassBuffer,
    at_the_end,
    batch_of,
    mask_of,
    rows_of,
)
from rlvr.engines.verl.recording import RecordingTrainingWorker, RecordingWorker
from rlvr.engines.verl.trainer import RecordingTrainer
from rlvr.rewards import shaped_reward
from rlvr.verifiers.programs import extract_program

RECORDS = ("records_dir", "records_per_step", "records_every", "records_megabytes", "records_updates_dir")
PROGRAMS = ("function", "stdin")  # kinds of problems whose responses hold one
OWN = (BLOCK, "shown_characters", *RECORDS)


class CorrectingTrainingWorker(RecordingTrainingWorker):
    """As ``RecordingTrainingWorker``; means over responses are over those that have tokens.

    verl takes the number of rows, those that fill an update up included, which would be as many as there
    happened to be too few corrections.
    """

    def train_batch(self, data: TensorDict) -> TensorDict:
        mask = data["response_mask"]
        rows = mask.unbind() if mask.is_nested else mask
        count = torch.tensor(sum(bool(row.any()) for row in rows), device=self.device_name)
        if self.engine.get_data_parallel_size() > 1:
            torch.distributed.all_reduce(count, group=self.engine.get_data_parallel_group())
        tu.assign_non_tensor(data, global_batch_size=max(1, int(count)))
        return super().train_batch(data)


class CorrectingWorker(RecordingWorker):
    actor_worker_cls = CorrectingTrainingWorker


@dataclass
class _Step:
    """What the second pass found out, for the rest of its step; by key of a row."""

    update: dict[str, int] = field(default_factory=dict)  # of all rows
    order: dict[str, int] = field(default_factory=dict)
    reward: dict[str, float] = field(default_factory=dict)  # R' of responses, own reward of corrections
    mask: dict[str, Tensor] = field(default_factory=dict)  # of responses that are not updated as a whole
    corrections: frozenset[str] = frozenset()
    rows_per_update: int = 0


@register_trainer(CORRECTING)
class CorrectingTrainer(RecordingTrainer):
    """As ``rlvr_sync``, with IBPO's second generation pass.

    Settings, in ``trainer.v1.<mode>``: those of ``rlvr_sync``; ``counterfactual``, a mapping of
    :class:`rlvr.config_corrections.Counterfactual`; ``shown_characters`` of a response in a correction
    prompt (texts). Corrections are of ``rollout.response_length`` tokens at most, their prompts of
    ``rollout.prompt_length``.

    verl's metrics of data and rewards are those of the responses; ``rlvr/...`` has the local engine's
    metrics of corrections. Metrics of the loss are of both.

    Raises:
        Failed: settings that do not go together (:mod:`.correction_check`).
    """

    mode = CORRECTING
    worker = CorrectingWorker
    known = OWN

    def __init__(self, config: Any):
        check_corrections(config)
        given = config.trainer.v1.get(config.trainer.v1.trainer_mode)
        unknown_settings(dict(given), self.known, f"trainer.v1.{self.mode}")
        self.counterfactual = counterfactual_of(config)
        self._asked: dict[str, dict[str, Any]] = {}  # rows of the step's prompts by uid, in order
        self._now = _Step()
        super().__init__(config)

    def _build_replay_buffer(self) -> Any:
        return SecondPassBuffer(super()._build_replay_buffer(), self._second_pass)

    @cached_property
    def prompts(self) -> CorrectionPrompts:
        options = dict(self.config.data.get("apply_chat_template_kwargs", None) or {})

        def count(chat: list[dict[str, str]]) -> int:
            text = self.tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=False, **options
            )
            return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

        return CorrectionPrompts(
            self.counterfactual,
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

    def _second_pass(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Correct what is wrong in ``batch``; returns it with the corrections, if these are trained on."""
        settings, size = self.counterfactual, self.config.actor_rollout_ref.rollout.n
        asked = list(self._asked.values())
        base = QueueRows(list(self._asked), size).fill(batch)
        seed = derive_seed(CORRECTIONS, self.config.data.get("seed", None) or 0, self.global_steps - 1)
        rows, references = choose_targets(base.scores, settings, derive_seed(REFERENCES, seed))
        chats = [
            self.prompts(asked[row // size], base.tokens[row], [base.tokens[r] for r in of if r >= 0])
            for row, of in zip(rows.tolist(), references.tolist(), strict=True)
        ]
        fits = torch.tensor([chat is not None for chat in chats], dtype=torch.bool)
        metrics["rlvr/targets_too_long"] = float((~fits).sum())
        rows, references = rows[fits], references[fits]
        targets = [asked[row // size] for row in rows.tolist()]
        names = [str(uuid.uuid4()) for _ in targets]
        corrections = KVBatchMeta(partition_id=batch.partition_id, keys=[], tags=[])
        if names:
            chats = [chat for chat in chats if chat is not None]
            self._submit(targets, chats, names)
            corrections = self.replay_buffer.wait_for(names, batch.partition_id)
        found = QueueRows(names, settings.corrections).fill(corrections)
        judged = self._judged(base, rows, references, found, targets)
        self._keep(batch, base, rows, found, judged)
        phi = shaping(judged, base.scores.view(-1), settings)
        described = describe(judged, base.scores.view(-1), phi, size)
        metrics |= {f"rlvr/{name}": value for name, value in described.items()}
        self._account(
            corrections, metrics, compared(base.tokens, rows.tolist(), found.tokens, found.place.values())
        )
        if not settings.joint:
            if corrections.keys:
                tq.kv_clear(keys=corrections.keys, partition_id=corrections.partition_id)
            return batch
        return KVBatchMeta(
            partition_id=batch.partition_id,
            keys=[*batch.keys, *corrections.keys],
            tags=[*batch.tags, *corrections.tags],
            extra_info=batch.extra_info,
        )

    def _submit(self, targets: list[dict], chats: list[list], names: list[str]) -> None:
        rows = [
            row | {"raw_prompt": chat, "uid": name, "__rollout_n__": self.counterfactual.corrections}
            for row, chat, name in zip(targets, chats, names, strict=True)
        ]
        batch = batch_of(rows)
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        super()._submit_batch_to_rollout(batch)

    def _judged(
        self, base: QueueRows, rows: Tensor, references: Tensor, found: QueueRows, targets: list[dict]
    ) -> Judged:
        count = self.counterfactual.corrections
        kinds = [row["extra_info"]["kind"] for row in targets]

        def candidate(ids: list[int], kind: str) -> Candidate:
            if kind not in PROGRAMS:
                return Candidate(ids)
            return Candidate(ids, extract_program(self.tokenizer.decode(ids, skip_special_tokens=True)))

        shown = [[base.tokens[r] for r in of if r >= 0] for of in references.tolist()]
        there = [not math.isnan(score) for score in found.scores.flatten().tolist()]
        cut = [
            [
                candidate(found.tokens[n], kind) if there[n] else None
                for n in range(number * count, (number + 1) * count)
            ]
            for number, kind in enumerate(kinds)
        ]
        ended = torch.tensor([bool(ids) and ids[-1] in self.ends for ids in found.tokens], dtype=torch.bool)
        return judge(
            self.counterfactual,
            base.scores.view(-1),
            mask_of(base.lengths),
            rows,
            references,
            problems=targets,
            responses=[
                candidate(base.tokens[row], kind) for row, kind in zip(rows.tolist(), kinds, strict=True)
            ],
            shown=[[candidate(ids, kind) for ids in of] for of, kind in zip(shown, kinds, strict=True)],
            corrected=cut,
            accuracy=found.scores,
            lengths=found.lengths.view(-1, count),
            finished=ended.view(-1, count),
        )

    def _keep(
        self, batch: KVBatchMeta, base: QueueRows, rows: Tensor, found: QueueRows, judged: Judged
    ) -> None:
        settings, now, size = self.counterfactual, _Step(), base.width
        scores = base.scores.view(-1)
        shaped = shaped_reward(scores, shaping(judged, scores, settings), settings.shaping_weight)
        updates = updates_of(range(len(base.prompts)), len(base.prompts), updates_of_step(self.config))
        masks = token_mask(judged, mask_of(base.lengths)) if settings.variant == "mask" else None
        for key, place in base.place.items():
            now.update[key], now.order[key] = updates[place // size], place
            now.reward[key] = float(shaped[place])
            if masks is not None:
                now.mask[key] = masks[place, : len(base.tokens[place])]
        own = judged.reward.flatten()
        for key, place in found.place.items():
            target = int(rows[place // found.width])
            now.update[key], now.order[key] = updates[target // size], len(scores) + place
            now.reward[key] = float(own[place])
        now.corrections = frozenset(found.place)
        self._now = now

    def _account(self, corrections: KVBatchMeta, metrics: dict, handed: list[int]) -> None:
        """What corrections cost; what responses cost is counted when they are trained on."""
        compute, joint = Compute(), self.counterfactual.joint
        groups = [key.rsplit("_", 2)[0] for key in corrections.keys]
        compute.add("correction", "compare", handed)
        self._count(compute, "correction", corrections.tags, groups, trained=joint)
        metrics |= as_metrics(compute)

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
        return math.lcm(*found)

    def _ranks(self) -> int:
        workers = self.actor_rollout_wg
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        return max(workers._dispatch_info["actor"]) + 1

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """verl's advantages, of R' for responses and of their own reward for corrections.

        A group of which one member is left has no advantage; verl's would be its reward.
        """
        fields = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["rm_scores"]
        )
        raw = list(fields["rm_scores"].unbind())
        members = Counter(key.rsplit("_", 2)[0] for key in batch.keys)
        rewards = [
            self._now.reward.get(key, 0.0) if members[key.rsplit("_", 2)[0]] > 1 else 0.0
            for key in batch.keys
        ]
        self._put(batch, "rm_scores", [at_the_end(r, row) for r, row in zip(rewards, raw, strict=True)])
        batch = super()._compute_advantage(batch, metrics)
        self._put(batch, "rm_scores", raw)
        if self.counterfactual.variant == "mask":
            masks = [self._now.mask.get(key) for key in batch.keys]
            whole = [torch.ones(len(row)) for row in raw]
            masks = [w if m is None else m.float() for m, w in zip(masks, whole, strict=True)]
            batch = self._put(batch, "rollout_is_weights", masks)
            metrics["rlvr/marked"] = float(torch.cat(masks).mean())
        return batch

    @staticmethod
    def _put(batch: KVBatchMeta, name: str, rows: list[Tensor]) -> KVBatchMeta:
        """The rows with a further field, which workers fetch of the returned batch alone."""
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        values = TensorDict({name: nested}, batch_size=len(rows))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=values)

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
