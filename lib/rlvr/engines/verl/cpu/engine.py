"""verl's FSDP2 engine for the device ``cpu``.

verl registers it for cuda and npu. FSDP1 is not offered: torch refuses it on the CPU ("CPU parameters ...
``sync_module_states=True`` ... on GPU").
"""

from __future__ import annotations

from typing import Any

from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device=["cpu"])
class CPUFSDPEngine(FSDPEngineWithLMHead):
    """As verl's; a forward-only model (the reference policy) stays where it is.

    verl gives such a model ``CPUOffloadPolicy(pin_memory=True)``. On the CPU there is nowhere to offload to,
    and pinning memory needs an accelerator.
    """

    def _build_fsdp_module(self, module: Any) -> Any:
        forward_only = self.engine_config.forward_only
        # the configuration is a frozen dataclass
        object.__setattr__(self.engine_config, "forward_only", False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            object.__setattr__(self.engine_config, "forward_only", forward_only)
