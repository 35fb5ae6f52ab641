"""verl's FSDP2 engines for the device ``cpu``: the actor's and the critic's.

verl registers it for cuda and npu. FSDP1 is not offered: torch refuses it on the CPU ("CPU parameters ...
``sync_module_states=True`` ... on GPU").
"""

from __future__ import annotations

import warnings
from typing import Any

from transformers import AutoModelForTokenClassification
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead


@EngineRegistry.register(model_type="value_model", backend=["fsdp2"], device=["cpu"])
class CPUCritic(FSDPEngineWithValueHead):
    """As verl's; the model is loaded with the attention that its configuration names.

    verl asks for flash attention by name, which needs an accelerator, and then takes the model for one that
    has no value head.
    """

    def _build_module(self) -> Any:
        config = self.model_config.hf_config
        config.num_labels, config.classifier_dropout = 1, 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the value head is new
            module = AutoModelForTokenClassification.from_pretrained(
                self.model_config.local_path,
                config=config,
                dtype=PrecisionType.to_dtype(self.engine_config.model_dtype or "fp32"),
                attn_implementation=config._attn_implementation,
            )
        return module


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
