"""Per-token records of an update, kept by the workers that make it: ``records-*.parquet`` of a job.

A policy loss sees log-probs and no tokens, and the driver sees tokens and no log-probs of the policy that is
being updated. So the worker keeps the records: :class:`RecordingWorker` trains as verl's, and its loss looks
at the rows that :class:`rlvr.engines.verl.trainer.RecordingTrainer` marked.

One file per step and rank, written as a whole, and again by a job that repeats the step after a resume.
Columns are those of :data:`COLUMNS`; :mod:`rlvr.engines.jobs.collect` makes of them what the local engine
writes. Of every update the worker keeps a row, too (:mod:`.updates`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import Metric
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding

from rlvr.engines.verl.updates import FOLDER, PARTS, UpdateFiles, UpdateRows, parts_of
from rlvr.ratios import RATIO_BOUND
from rlvr.storage import atomic_path

logger = logging.getLogger(__name__)

ROW = "rlvr_row"  # field of a batch: number of a response in its step, -1 if it is not kept
SETTINGS = "rlvr_records"  # of a batch: {"folder", "step", "megabytes"}
COLUMNS: dict[str, pa.DataType] = {
    "step": pa.int32(),
    "minibatch": pa.int16(),
    "response": pa.int32(),
    "position": pa.int32(),
    "token": pa.int32(),
    "log_prob": pa.float32(),
    "old_log_prob": pa.float32(),
    "advantage": pa.float32(),
    "mask": pa.int8(),
}


class RecordingLoss:
    """verl's loss of a micro-batch, records of the marked rows in ``kept``, and ``updates``, what it says of
    whole updates.

    Adds to the metrics ``actor/token_entropy``, the mean over tokens in nats, where the engine gives
    entropies: verl's own ``actor/entropy_loss``, and its ``actor/entropy`` of recomputed log-probs, are
    aggregated as the loss is.
    """

    def __init__(self, loss: Callable):
        self.loss = loss
        self.minibatch = 0
        self.kept: list[dict[str, np.ndarray]] = []
        self.updates = UpdateRows()

    def __call__(
        self, model_output: Mapping[str, Any], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict]:
        loss, metrics = self.loss(model_output=model_output, data=data, dp_group=dp_group)
        parts = metrics.pop(PARTS, {})
        if self.updates.wanted:
            own, tokens = self._parts(model_output, data)
            self.updates.micro_batch(metrics, own | parts, tokens)
        if (entropy := model_output.get("entropy", None)) is not None:
            value = self._mean(no_padding_2_padding(entropy.detach(), data), data)
            how = metrics["actor/pg_loss"].aggregation
            metrics["actor/token_entropy"] = Metric(value=value, aggregation=how)
        rows = data.get(ROW, None)
        if rows is not None and bool((rows >= 0).any()):
            self.kept.append(self._records(loss, model_output["log_probs"], data, rows.reshape(-1).cpu()))
        return loss, metrics

    @staticmethod
    def _parts(model_output: Mapping[str, Any], data: TensorDict) -> tuple[dict, int]:
        """Parts of the token's ratio ``exp(l)``, l bounded as in a block, and of the entropy; token count."""
        padded = data.select("response_mask", "old_log_probs").to_padded_tensor()
        mask = padded["response_mask"].bool()
        log_prob = no_padding_2_padding(model_output["log_probs"].detach(), data)
        token = (log_prob - padded["old_log_probs"])[mask].clamp(-RATIO_BOUND, RATIO_BOUND)
        named = {"token_ratio_variance": token.double().exp()}
        if (entropy := model_output.get("entropy", None)) is not None:
            named["entropy"] = no_padding_2_padding(entropy.detach(), data)[mask]
        return parts_of(named), len(token)

    @staticmethod
    def _mean(values: Tensor, data: TensorDict) -> Tensor:
        mask = data.select("response_mask").to_padded_tensor()["response_mask"].bool()
        return agg_loss(
            loss_mat=values,
            loss_mask=mask,
            loss_agg_mode="token-mean",
            dp_size=data["dp_size"],
            batch_num_tokens=data["batch_num_tokens"],
        )

    def _records(
        self, loss: Tensor, log_probs: Tensor, data: TensorDict, rows: Tensor
    ) -> dict[str, np.ndarray]:
        # of the loss alone, from the log-probs on: no pass through the model
        (slope,) = torch.autograd.grad(loss, log_probs, retain_graph=True)
        padded = data.select("response_mask", "responses", "old_log_probs", "advantages").to_padded_tensor()
        chosen = (rows >= 0).nonzero().squeeze(1)
        columns = {
            "token": padded["responses"],
            "log_prob": no_padding_2_padding(log_probs.detach(), data),
            "old_log_prob": padded["old_log_probs"],
            "advantage": padded["advantages"],
            "slope": no_padding_2_padding(slope, data),
        }
        mask = padded["response_mask"].bool().cpu()[chosen]
        row, position = mask.nonzero(as_tuple=True)
        found = {
            name: values.detach().cpu()[chosen][:, : mask.shape[1]][row, position].float().numpy()
            for name, values in columns.items()
        }
        # 1 where the objective lets the token's gradient through, as the local engine says it
        found["mask"] = (found.pop("slope") != 0) | (found["advantage"] == 0)
        found |= {"response": rows[chosen][row].numpy(), "position": position.numpy()}
        found["minibatch"] = np.full(len(row), self.minibatch)
        return found


class RecordingTrainingWorker(TrainingWorker):
    """As verl's; after the updates of a step it writes what its loss kept, and a row of each.

    Adds ``grad_norm_max``, the largest of a step's updates: verl averages ``grad_norm`` over them.
    """

    _recorder: RecordingLoss | None = None

    def set_loss_fn(self, loss_fn: Callable) -> None:
        self._recorder, self._files = RecordingLoss(loss_fn), UpdateFiles()
        super().set_loss_fn(self._recorder)

    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        settings = tu.pop(data, key=SETTINGS, default=None)
        wanted = tu.pop(data, key=FOLDER, default=None)
        if self._recorder is not None:
            self._recorder.minibatch, self._recorder.kept = 0, []
            self._recorder.updates.begin(bool(wanted))
        output = super().train_mini_batch(data)
        # ranks that share a sequence hold the same rows: one of them writes
        writes = self.engine.is_mp_src_rank_with_outputs()
        if settings and writes and self._recorder is not None and self._recorder.kept:
            write_records(self._recorder.kept, self.engine.get_data_parallel_rank(), **settings)
        if wanted and writes and self._recorder is not None:
            ranks = self.engine.get_data_parallel_rank(), self.engine.get_data_parallel_size()
            self._files.write(self._recorder.updates.rows, *ranks, **wanted)
        return output

    def train_batch(self, data: TensorDict) -> TensorDict:
        output = super().train_batch(data)
        if self._recorder is not None:
            self._recorder.minibatch += 1
        if output is not None and "grad_norm" in (metrics := tu.get(output, "metrics")):
            metrics["grad_norm_max"] = metrics["grad_norm"]
        if output is not None and self._recorder is not None:
            self._recorder.updates.update(self._of_update(tu.get(output, "metrics")))
        return output

    def _of_update(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """What all ranks say alike of an update."""
        return {name: metrics[name] for name in ("loss", "grad_norm") if name in metrics}


class RecordingWorker(ActorRolloutRefWorker):
    """As verl's, with an actor that keeps records, and has MTP modules where ``policy_loss.mtp`` says so."""

    actor_worker_cls = RecordingTrainingWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        chosen = self.config.actor.policy_loss
        if self._is_actor and chosen.get("mtp", None):
            from rlvr.engines.verl.mtp_worker import MtpTrainingWorker

            policy_loss = omega_conf_to_dataclass(chosen)
            self.actor_worker_cls = partial(MtpTrainingWorker, policy_loss=policy_loss)
        super().init_model()


def write_records(
    kept: list[dict[str, np.ndarray]], rank: int, folder: str, step: int, megabytes: float
) -> None:
    """One file for a step and rank; nothing once this rank's files hold ``megabytes``.

    A full disk ends the records with a warning, not the job.
    """
    path = Path(folder) / f"records-{step:06d}-rank{rank}.parquet"
    others = [other for other in path.parent.glob(f"records-*-rank{rank}.parquet") if other != path]
    if sum(other.stat().st_size for other in others) >= 1e6 * megabytes:
        logger.warning("records: %s holds %g MB of rank %d; no more are kept", folder, megabytes, rank)
        return
    joined = {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}
    joined["step"] = np.full(len(joined["token"]), step)
    table = pa.table(
        {name: pa.array(joined[name].astype(kind.to_pandas_dtype())) for name, kind in COLUMNS.items()}
    )
    try:
        with atomic_path(path) as partial:
            pq.write_table(table, partial, compression="zstd")
    except OSError as error:
        logger.warning("records of step %d are lost: %s", step, error)
