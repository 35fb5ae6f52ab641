"""verl's FSDP2 engine with MTP modules beside the actor, for ``loss_mode=mpo``.

The modules are a model of their own: with their own FSDP2 unit, optimiser, clip of the gradient and files in
a checkpoint. So what verl does with the actor's module (weights to the rollout engine, model in Hugging
Face's format, merging shards, LoRA's or Megatron's names) never meets them, and the rollout engine has no
heads by construction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from verl.utils.device import get_device_name
from verl.utils.fsdp_utils import (
    fsdp2_clip_grad_norm_,
    fsdp2_load_full_state_dict,
    load_fsdp_model_to_gpu,
    load_fsdp_optimizer,
    offload_fsdp_model_to_cpu,
    offload_fsdp_optimizer,
)
from verl.utils.metric import AggregationType, Metric
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.padding import no_padding_2_padding

from rlvr.engines.verl.mtp_stack import (
    COUNTS,
    RANKS,
    SAID,
    MtpStack,
    entries_of,
    joined,
    laid_flat,
    padded_mask,
    ranks,
)
from rlvr.mtp.files import read_file, write_file
from rlvr.mtp.losses import cross_entropy, entry_counts
from rlvr.mtp.modules import MtpModules, parts_of, watch_last_layer
from rlvr.mtp.settings import NAME, ModuleSettings

logger = logging.getLogger(__name__)

MODEL_TYPE = "rlvr_mtp"  # what verl's registry is asked for


@EngineRegistry.register(model_type=MODEL_TYPE, backend=["fsdp2"], device=["cuda", "cpu"])
class MtpEngine(FSDPEngineWithLMHead):
    """As verl's; in a pass over a batch the modules say their part too.

    ``modules`` are set before ``initialize``. A pass adds ``SAID`` to its output, with its graph; one in
    training adds ``RANKS`` and ``COUNTS``, and the modules' cross entropy to what is differentiated, not to
    the loss that is reported. ``modules_grad_norm`` is that of the last update.
    """

    modules: ModuleSettings
    modules_grad_norm: float = 0.0

    # --- building ------------------------------------------------------------------------------------------

    def _build_module(self) -> Any:
        if self.use_ulysses_sp or self.model_config.use_fused_kernels or self._is_lora:
            raise ValueError(
                "modules beside the actor: allowed are ulysses_sequence_parallel_size=1, "
                "use_fused_kernels=False and lora_rank=0"
            )
        kind, self.model_config.model_type = self.model_config.model_type, "language_model"
        try:
            module = super()._build_module()
        finally:
            self.model_config.model_type = kind
        own = self.modules
        self.stack = MtpStack(MtpModules(module, own.blocks, own.variant, own.hidden))
        if own.start is not None:
            self._start_from(own.start)
        return module

    def _start_from(self, folder: str) -> None:
        own = self.modules
        path = Path(folder).expanduser() / "mtp.safetensors"
        state, *what = read_file(path)
        if what != [own.blocks, own.variant, own.hidden]:
            raise ValueError(
                f"{NAME}.start={folder!r}: its modules have blocks, variant, hidden = {what}; allowed are "
                f"{[own.blocks, own.variant, own.hidden]}"
            )
        if self.rank == 0:  # the others may have no storage yet; sharding sends them what rank 0 has
            try:
                self.stack.mtp.load_state_dict(state)
            except RuntimeError as error:
                raise ValueError(f"{path} does not fit this model: {error}") from None

    def _build_fsdp_module(self, module: Any) -> Any:
        given = self.engine_config.mixed_precision or {}
        policy = MixedPrecisionPolicy(
            param_dtype=PrecisionType.to_dtype(given.get("param_dtype", "bf16")),
            reduce_dtype=PrecisionType.to_dtype(given.get("reduce_dtype", "fp32")),
            cast_forward_inputs=True,
        )
        full = self.stack.state_dict()
        again = self.engine_config.reshard_after_forward
        fully_shard(self.stack, mesh=self.device_mesh, mp_policy=policy, reshard_after_forward=again)
        fsdp2_load_full_state_dict(self.stack, full, self.device_mesh, None)
        self.modules_optimizer = torch.optim.AdamW(
            self.stack.parameters(),
            lr=self.modules.lr,
            betas=tuple(self.optimizer_config.betas),
            weight_decay=0.0,
        )
        return super()._build_fsdp_module(module)

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        super().to(device=device, model=model, optimizer=optimizer, grad=grad)
        there = device == get_device_name()
        if model:
            (load_fsdp_model_to_gpu if there else offload_fsdp_model_to_cpu)(self.stack)
        if optimizer and there:
            load_fsdp_optimizer(self.modules_optimizer, device)
        elif optimizer:
            offload_fsdp_optimizer(self.modules_optimizer)

    # --- a pass --------------------------------------------------------------------------------------------

    def forward_backward_batch(self, data: Any, loss_function: Callable, forward_only: bool = False) -> Any:
        if not forward_only:
            counts = entry_counts(padded_mask(data), self.modules.blocks).to(self._device)
            dist.all_reduce(counts, group=self.get_data_parallel_group())
            self._counts = counts
        return super().forward_backward_batch(data, loss_function, forward_only)

    @property
    def _device(self) -> torch.device:
        return next(self.module.parameters()).device

    @contextmanager
    def _gradient_sync_context(self, *, is_last_micro_batch: bool) -> Iterator[None]:
        self.stack.set_requires_gradient_sync(is_last_micro_batch)
        with super()._gradient_sync_context(is_last_micro_batch=is_last_micro_batch):
            yield

    def forward_step(self, micro_batch: Any, loss_function: Callable, forward_only: bool) -> Any:
        with watch_last_layer(parts_of(self.module)) as self._seen:
            loss, output = super().forward_step(micro_batch, loss_function, forward_only)
        self._seen = {}
        if forward_only:
            return loss, output
        values, mask = self._learned
        # verl averages gradients over the ranks
        mean, each = cross_entropy(values, mask, self._counts)
        scale = self.get_data_parallel_size()
        if self.modules.train == "cross_entropy":
            loss = loss + scale * mean
        for k, value in enumerate(each.tolist(), start=2):
            name = f"actor/mtp_loss_{k}"
            output["metrics"][name] = Metric(value=scale * value, aggregation=AggregationType.SUM)
        return loss, output

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Callable
    ) -> dict[str, Any]:
        found = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        training = torch.is_grad_enabled()
        hidden, embedded = self._seen[self.modules.hidden].detach(), self._seen["embedded"].detach()
        packed = "temperature_rmpad" in output_args
        entries = entries_of(micro_batch, self.modules.blocks, None if packed else hidden.shape[1])
        self.stack.train(self.module.training)
        with torch.set_grad_enabled(training and self.modules.learns):
            said, likeliest = self.stack(hidden, embedded, self._seen["arguments"], entries)
        if not (training and self.modules.learns):  # no backward pass will
            self.stack.reshard()
        offsets = micro_batch["input_ids"].offsets()
        tokens = len(micro_batch["input_ids"].values())
        values = joined(said, entries, tokens)
        found[SAID] = laid_flat(values, offsets)
        if training:
            logits = output.logits.detach().flatten(0, 1)
            rank = joined(ranks(likeliest, entries, logits), entries, tokens)
            found[RANKS] = laid_flat(rank, offsets)
            found[COUNTS] = self._counts
            self._learned = no_padding_2_padding(values, micro_batch), padded_mask(micro_batch)
        return found

    # --- an update -----------------------------------------------------------------------------------------

    def optimizer_zero_grad(self) -> None:
        super().optimizer_zero_grad()
        self.modules_optimizer.zero_grad()

    def optimizer_step(self) -> float:
        norm = super().optimizer_step()
        if self.modules.learns:
            own = fsdp2_clip_grad_norm_(self.stack.parameters(), max_norm=self.optimizer_config.clip_grad)
            own = own.full_tensor() if hasattr(own, "full_tensor") else own
            self.modules_grad_norm = float(own)
            if torch.isfinite(own):
                self.modules_optimizer.step()
            else:
                logger.warning("gradient norm of the MTP modules is %s: their update is left out", own.item())
        return norm

    # --- checkpoints ---------------------------------------------------------------------------------------

    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        super().save_checkpoint(local_path, *args, **kwargs)
        state = {"modules": self.stack.state_dict(), "optimizer": self.modules_optimizer.state_dict()}
        torch.save(state, self._file(local_path))
        if self.checkpoint_manager.should_save_hf_model:
            full = {name: _full(tensor) for name, tensor in self.stack.mtp.state_dict().items()}
            if self.rank == 0:
                own = self.modules
                write_file(Path(local_path) / "huggingface", full, own.blocks, own.variant, own.hidden)
        dist.barrier()

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        path = self._file(local_path)
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist: the checkpoint is of an actor without modules")
        super().load_checkpoint(local_path, *args, **kwargs)
        state = torch.load(path, weights_only=False, map_location="cpu")
        self.stack.load_state_dict(state["modules"])
        self.modules_optimizer.load_state_dict(state["optimizer"])
        if self._is_offload_optimizer:
            offload_fsdp_optimizer(self.modules_optimizer)
        dist.barrier()

    def _file(self, folder: str) -> Path:
        return Path(folder) / f"mtp_world_size_{dist.get_world_size()}_rank_{self.rank}.pt"


def _full(tensor: Tensor) -> Tensor:
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().cpu().contiguous()
