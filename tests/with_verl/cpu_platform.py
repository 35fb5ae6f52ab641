"""The CPU as a platform of verl, through its plugin interface; for tests in one process.

Named in ``VERL_USE_EXTERNAL_MODULES`` with ``VERL_PLATFORM=cpu``, and ``VERL_ENGINE_DEVICE=cuda`` so that
verl's own FSDP engine is taken.
"""

import contextlib
import types

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*args, **kwargs):
    return None


class _NoAccelerator(types.ModuleType):
    """What verl reads of ``torch.cuda``: everything not named here does nothing."""

    is_available = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 1)
    get_device_name = staticmethod(lambda *args: "cpu")
    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)
    max_memory_allocated = staticmethod(lambda *args: 0)
    max_memory_reserved = staticmethod(lambda *args: 0)
    memory_allocated = staticmethod(lambda *args: 0)
    memory_reserved = staticmethod(lambda *args: 0)
    mem_get_info = staticmethod(lambda *args: (1 << 34, 1 << 34))

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


_DEVICE = _NoAccelerator("no_accelerator")


@PlatformRegistry.register(platform="cpu")
class CPUPlatform(PlatformBase):
    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _DEVICE)
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")  # verl uses it as the target of `.to`

    def device_count(self):
        return 1

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, message):
        return contextlib.nullcontext()

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False
