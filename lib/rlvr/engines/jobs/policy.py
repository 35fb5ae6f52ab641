"""The embedded policy as verl and vLLM take it."""

from __future__ import annotations

from pathlib import Path

from rlvr.engines.local.policy import Policy
from rlvr.engines.vllm.embedded import fitting_folder
from rlvr.problems.tokenizer import Codec

# The embedded policies were never trained on a chat: their prompt is the problem's text.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def cluster_folder(model: str | Path, copy: str | Path) -> Path:
    """``model`` if a job can take it as it is; else ``copy``, with the same policy in wider heads.

    Raises:
        ValueError: the vocabulary is larger than the tokenizer. verl then forbids vLLM the tokens beyond the
            tokenizer and not the trainer, so their log-probs differ by ``ln(vocabulary / tokenizer)``
            under a flat policy.
    """
    folder = fitting_folder(model, copy)
    tokens, vocabulary = len(Codec.load(folder)), Policy.from_pretrained(folder).shape.vocab_size
    if tokens != vocabulary:
        raise ValueError(
            f"model={str(model)!r}: its vocabulary has {vocabulary} tokens, its tokenizer {tokens}; allowed "
            "are equal ones"
        )
    return folder
