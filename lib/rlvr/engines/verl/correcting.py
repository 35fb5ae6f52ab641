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
from typing import Any

import torch
import transfer_queue as tq
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import register_trainer

from rlvr.config_corrections import Counterfactual
from rlvr.counterfactual.operators import Candidate
from rlvr.counterfactual.second_pass import Judged, choose_targets, describe, judge, shaping, token_mask
from rlvr.engines.jobs.command import CORRECTING
from rlvr.engines.local.accounting import Compute, compared
from rlvr.engines.local.corrections import CORRECTIONS, REFERENCES
from rlvr.engines.local.rollout import derive_seed
from rlvr.engines.verl.accounting import as_metrics
from rlvr.engines.verl.correction_check import BLOCK, check_corrections, counterfactual_of, updates_of_step
from rlvr.engines.verl.correction_layout import updates_of
from rlvr.engines.verl.correction_rows import QueueRows, mask_of
from rlvr.engines.verl.two_pass import Step, TwoPassTrainer
from rlvr.rewards import shaped_reward
from rlvr.verifiers.programs import extract_program

PROGRAMS = ("function", "stdin")  # kinds of problems whose responses hold one


@register_trainer(CORRECTING)
class CorrectingTrainer(TwoPassTrainer):
    """As ``rlvr_sync``, with IBPO's second generation pass.

    ``trainer.v1.<mode>.counterfactual`` is a mapping of :class:`rlvr.config_corrections.Counterfactual`; for
    the other settings, and what verl's metrics are of, see :class:`.two_pass.TwoPassTrainer`. ``rlvr/...``
    has the local engine's metrics of corrections.

    Raises:
        Failed: settings that do not go together (:mod:`.correction_check`).
    """

    mode = CORRECTING
    block = BLOCK
    method: Counterfactual

    def __init__(self, config: Any):
        check_corrections(config)
        self.method = counterfactual_of(config)
        super().__init__(config)

    def _second_pass(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Correct what is wrong in ``batch``; returns it with the corrections, if these are trained on."""
        settings, size = self.method, self.config.actor_rollout_ref.rollout.n
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
        chats = [chat for chat in chats if chat is not None]
        corrections = self._ask_again(targets, chats, names, settings.corrections, batch.partition_id)
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
        return self._both(batch, corrections)

    def _judged(
        self, base: QueueRows, rows: Tensor, references: Tensor, found: QueueRows, targets: list[dict]
    ) -> Judged:
        count = self.method.corrections
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
            self.method,
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
        settings, now, size = self.method, Step(), base.width
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
        compute = Compute()
        compute.add("correction", "compare", handed)
        self._count_second(compute, corrections, trained=self.method.joint)
        metrics |= as_metrics(compute)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Of R' for responses and of their own reward for corrections; and the token mask, if any."""
        batch = super()._compute_advantage(batch, metrics)
        if self.method.variant != "mask":
            return batch
        fields = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["rm_scores"]
        )
        masks = [self._now.mask.get(key) for key in batch.keys]
        whole = [torch.ones(len(row)) for row in fields["rm_scores"].unbind()]
        masks = [w if m is None else m.float() for m, w in zip(masks, whole, strict=True)]
        metrics["rlvr/marked"] = float(torch.cat(masks).mean())
        return self._put(batch, "rollout_is_weights", masks)
