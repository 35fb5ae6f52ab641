"""The CPU as a platform of verl: ``VERL_PLATFORM=cpu``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _zero(*args: Any, **kwargs: Any) -> int:
    return 0


def _device_module() -> ModuleType:
    """What verl reads of ``torch.cuda``, for a device that is not there. Nothing more: a name that verl
    comes to need shall fail by its name."""
    module = ModuleType("rlvr_no_accelerator")
    memory = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    nothing = ("set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats")
    named: dict[str, Any] = {
        "is_available": lambda: False,  # so that verl leaves a device's memory limits alone
        "device_count": lambda: 1,
        "current_device": _zero,
        "get_device_name": lambda *args: "cpu",
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *args: torch.get_rng_state(),  # of the device `cpu`: written to checkpoints
        "set_rng_state": lambda state, *args: torch.set_rng_state(state),
        "mem_get_info": lambda *args: (1 << 34, 1 << 34),  # (free, total): used for reports only
        "current_stream": torch.cpu.current_stream,
        "stream": torch.cpu.stream,
        "Stream": torch.cpu.Stream,
        **dict.fromkeys(memory, _zero),
        **dict.fromkeys(nothing, _nothing),
    }
    for name, value in named.items():
        setattr(module, name, value)
    return module


_DEVICE = _device_module()


@PlatformRegistry.register(platform="cpu")
class CPUPlatform(PlatformBase):
    """One CPU device per process, gloo between processes."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _DEVICE)

    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:  # type: ignore[override]
        """verl moves tensors to it; an index would name an accelerator."""
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        """verl places workers by this resource; ``ray_init.num_gpus`` gives Ray as many as wanted."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """No handles of device memory: weights travel to vLLM through shared memory."""
        return False
