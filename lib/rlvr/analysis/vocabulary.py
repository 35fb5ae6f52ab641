"""What the tokens of a study's records are: their text, their class, and where a case may begin."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.analysis.study import Study
from rlvr.analysis.token_categories import REASONING, categories, token_text
from rlvr.problems.tokenizer import Codec

REASONING_TOKENS, OTHER_TOKENS = "reasoning tokens", "other tokens"


@dataclass(frozen=True)
class Vocabulary:
    """One entry per token id.

    Attributes:
        tokens: as the vocabulary spells it; empty for an id without a token.
        classes: of the paper's Table 2.
        categories: of its Table D.1.
        of_interest: whether a case study may begin there.
    """

    tokens: tuple[str, ...]
    classes: tuple[str, ...]
    categories: tuple[str, ...]
    of_interest: tuple[bool, ...]

    def text(self, token: int) -> str:
        return token_text(self.tokens[token])


def vocabulary_of(study: Study, largest: int, folder: str | None = None) -> Vocabulary:
    """Of an embedded policy: digits, operators and so on; a case begins with an operator. Of a language
    model: reasoning tokens and others; a case begins with a reasoning token.

    Args:
        largest: token id in the records; a model may write ids that its tokenizer lacks.
        folder: of the model; None or empty: the first of ``study.tokenizers`` that is on this machine.

    Raises:
        FileNotFoundError: no tokenizer there, or anywhere; says where it was looked for.
    """
    if study.embedded:
        return embedded(Codec.load(folder or study.tokenizers[0]))
    return of_tokenizer(_tokenizer((folder,) if folder else study.tokenizers), largest)


def embedded(codec: Codec) -> Vocabulary:
    of_interest = tuple(name == "operator" for name in codec.classes)
    return Vocabulary(codec.tokens, codec.classes, tuple(categories(codec.tokens)), of_interest)


def of_tokenizer(tokenizer: Any, largest: int = 0) -> Vocabulary:
    """Of a Hugging Face tokenizer, with empty tokens up to id ``largest``."""
    size = max(len(tokenizer), largest + 1)
    tokens = tuple(token or "" for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
    tokens += ("",) * (size - len(tokens))
    found = tuple(categories(tokens, byte_level=is_byte_level(tokenizer)))
    reasoning = tuple(name in REASONING for name in found)
    classes = tuple(REASONING_TOKENS if yes else OTHER_TOKENS for yes in reasoning)
    return Vocabulary(tokens, classes, found, reasoning)


def is_byte_level(tokenizer: Any) -> bool:
    """Whether letters above ASCII stand for bytes (GPT-2, Qwen, Llama 3), and not for themselves."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return any(token.startswith("Ġ") for token in tokenizer.get_vocab())
    decoder = json.loads(backend.to_str())["decoder"] or {}
    return "ByteLevel" in {decoder.get("type"), *(d.get("type") for d in decoder.get("decoders", ()))}


def _tokenizer(places: tuple[str, ...]) -> Any:
    """From the first folder that exists, or from what the hub's cache has under a name; never downloaded."""
    from transformers import AutoTokenizer

    for place in places:
        if Path(place).is_dir():
            return AutoTokenizer.from_pretrained(place, local_files_only=True)
        with suppress(OSError, ValueError):  # not in the cache, or no name of a model
            return AutoTokenizer.from_pretrained(place, local_files_only=True)
    raise FileNotFoundError(
        f"{' and '.join(places)}: no tokenizer on this machine; set model_path to the folder of the model "
        "that was trained"
    )
