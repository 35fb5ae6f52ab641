"""The tokenizer of the embedded tasks: words, single digits and single signs.

It is an ordinary Hugging Face tokenizer (``save_pretrained`` / ``AutoTokenizer.from_pretrained``); a
:class:`Codec` on top of it gives the fast paths of the training loop and turns unknown text into an error.

A text has exactly one encoding and ids without special tokens exactly one text, so that
``encode(decode(ids)) == ids`` for whatever a policy samples. Nothing is added to a text: no begin token, and
the end token only where it is asked for. ``<pad>`` and ``<eos>`` differ, but masks belong on lengths anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlvr.storage import read_json, write_json

PAD, EOS = "<pad>", "<eos>"
DIGITS = tuple("0123456789")
OPERATORS = tuple("+-*=")
SEPARATORS = (",", ".", "?")
SIGNS = {"%": "operator", "(": "separator", ")": "separator"}  # those that a task may have besides
TOKEN_CLASSES = ("digit", "operator", "separator", "end", "word")

_PIECE = re.compile(r"[A-Za-z]+|[^A-Za-z\s]")


def build_tokenizer(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """Tokenizer over ``words``, digits, ``+ - * =`` and ``, . ?``; its length is the vocabulary size.

    Raises:
        ValueError: a word that is repeated, or that is neither letters A-Z, a-z nor one of ``% ( )``.
    """
    words = tuple(words)
    for index, word in enumerate(words):
        if not (re.fullmatch(r"[A-Za-z]+", word) or word in SIGNS) or word in words[:index]:
            raise ValueError(
                f"words[{index}]={word!r} must consist of letters (or be one of {' '.join(SIGNS)}) and occur "
                "once"
            )
    vocabulary = [PAD, EOS, *DIGITS, *OPERATORS, *SEPARATORS, *words]
    # No unknown token: text outside the vocabulary is an error, here and in every library that loads this.
    core = Tokenizer(models.WordLevel({token: index for index, token in enumerate(vocabulary)}, unk_token=""))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(r"[A-Za-z]+|[^A-Za-z\s]"), behavior="isolated"),
        ]
    )
    # Back to text: spaces around words, none around digits and signs, none before a separator.
    signs = "".join(re.escape(word) for word in words if word in SIGNS)
    core.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex(r"^(?=[A-Za-z])|(?<=[A-Za-z])$"), " "),
            decoders.Fuse(),
            decoders.Replace(Regex(rf" +(?=[ ,.?{signs}+*=-]|$)"), ""),
            decoders.Replace(Regex(r"(?<=^) "), ""),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def token_class(token: str) -> str:
    """digit, operator (``+ - * = %``), separator (``, . ? ( )``), end (``<eos>``, ``<pad>``) or word."""
    if token in DIGITS:
        return "digit"
    if token in OPERATORS:
        return "operator"
    if token in SEPARATORS:
        return "separator"
    if token in SIGNS:
        return SIGNS[token]
    return "end" if token in (EOS, PAD) else "word"


class Codec:
    """Text <-> ids with dictionary look-ups, equal to the tokenizer it was made from.

    Attributes:
        tokenizer: the Hugging Face tokenizer.
        tokens: token of every id. ``len(codec)`` is the vocabulary size.
        classes: :func:`token_class` of every id.
        pad_id, eos_id: ids of ``<pad>`` and ``<eos>``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        vocabulary = tokenizer.get_vocab()
        if sorted(vocabulary.values()) != list(range(len(tokenizer))):
            raise ValueError(
                f"tokenizer: its {len(vocabulary)} ids must be 0..{len(tokenizer) - 1}, each once"
            )
        if tokenizer.pad_token_id is None or tokenizer.eos_token_id is None:
            raise ValueError("tokenizer: needs a pad token and an end token")
        if tokenizer.pad_token_id == tokenizer.eos_token_id:
            raise ValueError(f"tokenizer: pad and end token must differ, both are {tokenizer.pad_token!r}")
        self.tokenizer = tokenizer
        self.tokens: tuple[str, ...] = tuple(sorted(vocabulary, key=vocabulary.__getitem__))
        self.classes: tuple[str, ...] = tuple(map(token_class, self.tokens))
        self.pad_id: int = tokenizer.pad_token_id
        self.eos_id: int = tokenizer.eos_token_id
        self._special = frozenset(tokenizer.all_special_ids)
        self._ids = {token: index for token, index in vocabulary.items() if index not in self._special}

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def load(cls, folder: str | Path) -> Codec:
        """From a folder written by ``tokenizer.save_pretrained``; never from the network."""
        return cls(AutoTokenizer.from_pretrained(str(folder), local_files_only=True))

    def save(self, folder: str | Path) -> None:
        """``save_pretrained``, under the class name that transformers 4 and 5 both know."""
        self.tokenizer.save_pretrained(str(folder))
        path = Path(folder) / "tokenizer_config.json"
        write_json(path, read_json(path) | {"tokenizer_class": "PreTrainedTokenizerFast"})

    def encode(self, text: str, end: bool = False) -> list[int]:
        """Ids of a text, followed by the end token if ``end``.

        Raises:
            ValueError: names the first symbol that is not in the vocabulary.
        """
        ids = self._ids
        try:
            encoded = [ids[piece] for piece in _PIECE.findall(text)]
        except KeyError as error:
            raise ValueError(f"symbol {error.args[0]!r} of {text!r} is not in the vocabulary") from None
        if end:
            encoded.append(self.eos_id)
        return encoded

    def encode_batch(self, texts: Iterable[str], end: bool = False) -> list[list[int]]:
        return [self.encode(text, end) for text in texts]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of ids: spaces around words, none around digits and signs."""
        pieces: list[str] = []
        after_word = False
        for index in ids:
            if skip_special_tokens and index in self._special:
                continue
            token, kind = self.tokens[index], self.classes[index]
            if pieces and kind != "operator" and kind != "separator" and (after_word or kind == "word"):
                pieces.append(" ")
            pieces.append(token)
            after_word = kind == "word"
        return "".join(pieces)

    def decode_batch(self, rows: Iterable[Sequence[int]]) -> list[str]:
        return [self.decode(row) for row in rows]

    def responses(self, rows: Iterable[Sequence[int]]) -> tuple[list[str], list[bool]]:
        """Texts of sampled responses and whether each one finished.

        A row holds the sampled ids; what follows its first end token is ignored. A ``<pad>`` that was
        sampled before it stays visible in the text, since leaving it out would join the digits around it
        to a number the policy never wrote.
        """
        texts, finished = [], []
        for row in rows:
            row = list(row)
            done = self.eos_id in row
            sampled = row[: row.index(self.eos_id)] if done else row
            texts.append(self.decode(sampled, skip_special_tokens=False))
            finished.append(done)
        return texts, finished
