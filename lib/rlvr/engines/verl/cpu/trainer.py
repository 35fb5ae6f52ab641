"""verl's synchronous trainers on gloo: ``trainer.v1.trainer_mode`` of ``sync_cpu``, ``ibpo_cpu`` or
``self_correction_cpu``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
from verl.single_controller.base.decorator import Dispatch, register
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import register_trainer
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine_workers import TrainingWorker

from rlvr.engines.jobs.cpu import CORRECTING_MODE, MODE, SELF_CORRECTING_MODE
from rlvr.engines.verl.correcting import CorrectingTrainer
from rlvr.engines.verl.cpu.batches import save_batch
from rlvr.engines.verl.recording import RecordingWorker
from rlvr.engines.verl.self_correcting import SelfCorrectingTrainer, SelfCorrectingTrainingWorker
from rlvr.engines.verl.trainer import RecordingTrainer
from rlvr.engines.verl.two_pass import TwoPassTrainingWorker

BATCHES = ("batches_dir", "batches_steps", "batches_rows")  # settings of OnCPU


class CPUWorker(RecordingWorker):
    """Opens the process group before verl does.

    verl asks for ``cpu:gloo,<device>:<backend>``, which on the CPU is ``cpu:gloo,cpu:gloo``, and torch
    refuses a device named twice. Where a group exists, verl takes it.
    """

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        initialize_global_process_group_ray(backend="gloo")
        super().init_model()


class CPUTwoPassWorker(CPUWorker):
    actor_worker_cls = TwoPassTrainingWorker


class CPUSelfCorrectingWorker(CPUWorker):
    actor_worker_cls = SelfCorrectingTrainingWorker


class CPUCriticWorker(TrainingWorker):
    """Likewise: it opens the group in its constructor, which comes first."""

    def __init__(self, *args: Any, **kwargs: Any):
        initialize_global_process_group_ray(backend="gloo")
        super().__init__(*args, **kwargs)


class OnCPU:
    """What a trainer needs on the CPU, before its class among the bases; what the actor is trained on can be
    kept.

    Settings, in ``trainer.v1.<mode>`` beside the trainer's own: ``batches_dir`` (absent: nothing is kept);
    ``batches_steps`` and ``batches_rows`` bound it to so many first steps of a run, and rows of each
    (:mod:`.batches`).
    """

    config: Any
    settings: dict[str, Any]
    global_steps: int
    role_worker_mapping: dict

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()  # type: ignore[misc]
        if Role.Critic in self.role_worker_mapping:
            self.role_worker_mapping[Role.Critic] = ray.remote(CPUCriticWorker)

    def _update_actor(self, batch: Any, metrics: dict) -> Any:
        settings = self.settings
        folder, steps = settings.get("batches_dir", None), settings.get("batches_steps", 1)
        if folder and self.global_steps <= steps:
            path = Path(folder) / f"step_{self.global_steps}.safetensors"
            save_batch(batch, path, settings.get("batches_rows", 256))
        return super()._update_actor(batch, metrics)  # type: ignore[misc]


@register_trainer(MODE)
class CPUTrainer(OnCPU, RecordingTrainer):
    """As ``rlvr_sync``, with :class:`CPUWorker`."""

    mode = MODE
    worker = CPUWorker


@register_trainer(CORRECTING_MODE)
class CPUCorrectingTrainer(OnCPU, CorrectingTrainer):
    """As ``rlvr_ibpo``, with :class:`CPUTwoPassWorker`."""

    mode = CORRECTING_MODE
    worker = CPUTwoPassWorker
    beside = BATCHES


@register_trainer(SELF_CORRECTING_MODE)
class CPUSelfCorrectingTrainer(OnCPU, SelfCorrectingTrainer):
    """As ``rlvr_self_correction``, with :class:`CPUSelfCorrectingWorker`."""

    mode = SELF_CORRECTING_MODE
    worker = CPUSelfCorrectingWorker
    beside = BATCHES
