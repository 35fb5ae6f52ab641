"""Correction prompts as the chats that verl generates from.

A prompt is text here, as any other of verl's: the agent loop makes tokens of it. For embedded tasks it is the
text of :class:`~rlvr.counterfactual.prompts.TokenPrompts`'s tokens, which have exactly one encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlvr.checks import check_choice
from rlvr.config_corrections import Counterfactual, SelfCorrection
from rlvr.counterfactual.fitting import SHOWN, fitting_prompt
from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.engines.jobs.experiments import TEXT_TEMPLATE
from rlvr.engines.jobs.rows import EMBEDDED
from rlvr.problems.tokenizer import Codec

Chat = list[dict[str, str]]


class CorrectionPrompts:
    """``x~`` of a response to the problem of one of verl's rows.

    Args:
        settings: names the template (of text there is one).
        tokenizer: the model's.
        count: tokens of a chat, as the agent loop makes them.
        longest: tokens that a prompt may have.
        shown: characters shown of one response at most; fewer where the prompt would be too long, half as
            many each time. Embedded responses are always shown whole.
    """

    def __init__(
        self,
        settings: Counterfactual | SelfCorrection,
        tokenizer: Any,
        count: Callable[[Chat], int],
        longest: int,
        shown: int = SHOWN,
    ):
        self.settings, self.tokenizer = settings, tokenizer
        self.count, self.longest, self.shown = count, longest, shown

    def __call__(
        self, row: Mapping[str, Any], response: Sequence[int], references: Sequence[Sequence[int]]
    ) -> Chat | None:
        """The chat, or None where no prompt fits. ``response``, ``references``: token ids.

        Raises:
            ValueError: a template that this kind of problem does not have.
        """
        *before, asked = ({"role": turn["role"], "content": turn["content"]} for turn in row["raw_prompt"])
        if row["data_source"] == EMBEDDED:
            chat = [*before, asked | {"content": self._tokens(asked, response, references)}]
            return chat if self._fits(chat) else None
        block = "counterfactual" if isinstance(self.settings, Counterfactual) else "self_correction"
        check_choice(f"{block}.template", self.settings.template, (TEXT_TEMPLATE,))
        kind = row["extra_info"]["kind"]
        texts = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in (response, *references)]
        said = fitting_prompt(
            kind,
            asked["content"],
            texts[0],
            texts[1:],
            lambda text: self._fits([*before, asked | {"content": text}]),
            self.shown,
        )
        return None if said is None else [*before, asked | {"content": said}]

    def _tokens(self, asked: Mapping[str, str], response: Sequence[int], references: Any) -> str:
        codec = Codec(self.tokenizer)
        template = TokenPrompts(self.settings.template, codec.encode, codec.eos_id)
        ids = template(codec.encode(asked["content"]), response, references)
        return codec.decode(ids, skip_special_tokens=False)

    def _fits(self, chat: Chat) -> bool:
        return self.count(chat) <= self.longest
