"""A saved model's folder: is it one, which tokens end a response, and a hash of what is in it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

_FILES = {".json", ".safetensors", ".bin", ".jinja", ".model", ".txt", ".tiktoken"}


def check_model(model: str | Path) -> Path:
    """The folder of a saved model; a name on the hub is refused with the command that downloads it."""
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"model={str(model)!r}: no folder with a saved model (config.json, weights, tokenizer); "
            "`hf download OWNER/NAME --local-dir FOLDER` downloads one"
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise FileNotFoundError(f"model={str(model)!r} has a config.json but no weights (*.safetensors)")
    return folder


def end_token_ids(folder: Path, tokenizer: Any) -> list[int]:
    """Every token that ends a response: those of generation_config.json (config.json where it names none),
    and the tokenizer's."""
    from transformers import AutoConfig, GenerationConfig

    ids = None
    if (folder / "generation_config.json").is_file():
        ids = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    if ids is None:
        ids = getattr(AutoConfig.from_pretrained(folder, local_files_only=True), "eos_token_id", None)
    ids = [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    if not ids:
        raise ValueError(f"model={str(folder)!r}: it names no token that ends a response")
    return sorted(set(ids))


def model_digest(folder: Path) -> str:
    """A hash of the contents of the model's files; where the folder lies does not matter."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in _FILES:
            with path.open("rb") as file:
                total.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:16]
