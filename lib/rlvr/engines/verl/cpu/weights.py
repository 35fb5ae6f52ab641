"""New weights into a running vLLM-CPU server: ``rollout.engine_kwargs.vllm.worker_extension_cls``."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension


class CPUWorkerExtension(vLLMColocateWorkerExtension):
    """As verl's, with two differences.

    - What arrives are views of shared memory that verl closes after the sync. On an accelerator moving them
      to the device copies them; here they are copied.
    - vLLM's linear layers on CPU drop their weight once it is packed for oneDNN, so there is nothing for
      ``model.load_weights`` to write into. vLLM's own reload builds the layers anew.
    """

    def update_weights_from_ipc(
        self, peft_config: dict | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

        if peft_config is not None:
            raise NotImplementedError(
                f"peft_config={peft_config!r}: on the CPU whole weights are synced, no LoRA"
            )
        received: list[tuple[str, Tensor]] = []

        def keep(weights: list[tuple[str, Tensor]], is_last: bool) -> None:
            received.extend((name, tensor.clone()) for name, tensor in weights)

        receiver: Any = BucketedWeightReceiver(self._get_zmq_handle(), device=self.device, use_shm=use_shm)
        receiver.receive_weights(on_bucket_received=keep)
        self.model_runner.reload_weights(weights_iterator=iter(received))
