"""MTP modules in a file of their own beside the backbone, which inference leaves where it lies."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor, nn

from rlvr.mtp.modules import MtpModules
from rlvr.storage import atomic_path

FILE = "mtp.safetensors"
_ENTRY = "mtp"


def save_modules(modules: MtpModules, folder: str | Path) -> Path:
    """Write ``mtp.safetensors`` into ``folder``, with what the modules are in its metadata.

    ``from_pretrained`` of the same folder reads config.json and model.safetensors, and never this file.
    """
    state = {name: tensor.detach().contiguous() for name, tensor in modules.state_dict().items()}
    return write_file(folder, state, modules.blocks, modules.variant, modules.hidden)


def write_file(folder: str | Path, state: dict[str, Tensor], blocks: int, variant: str, hidden: str) -> Path:
    """The file itself, of tensors under the names of :class:`MtpModules`."""
    from safetensors.torch import save_file

    path = Path(folder) / FILE
    # one entry: the library writes several in an order that changes from run to run
    what = json.dumps({"blocks": blocks, "variant": variant, "hidden": hidden})
    with atomic_path(path) as partial:
        save_file(state, partial, metadata={_ENTRY: what})
    return path


def read_file(path: str | Path) -> tuple[dict[str, Tensor], int, str, str]:
    """(tensors by name, blocks, variant, hidden) of a file of modules.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file of something else.
    """
    from safetensors import safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: it is written by save_modules")
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if _ENTRY not in metadata:
            raise ValueError(f"{path} has no entry {_ENTRY!r} in its metadata: no file of MTP modules")
        what = json.loads(metadata[_ENTRY])
        state = {name: file.get_tensor(name) for name in file.keys()}
    return state, what["blocks"], what["variant"], what["hidden"]


def load_modules(model: nn.Module, folder: str | Path) -> MtpModules:
    """The modules saved in ``folder``, on the shapes of ``model``.

    Raises:
        FileNotFoundError, ValueError: as :func:`read_file`, or modules of another model's sizes.
    """
    path = Path(folder) / FILE
    state, blocks, variant, hidden = read_file(path)
    modules = MtpModules(model, blocks, variant, hidden)
    try:
        modules.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit this model: {error}") from None
    return modules
