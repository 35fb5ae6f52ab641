"""Prompts of the embedded policy: ``rollout.agent.default_agent_loop=plain_text_agent``."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

NAME = "plain_text_agent"


@register(NAME)
class PlainTextAgentLoop(SingleTurnAgentLoop):
    """As verl's single turn, with its general way from messages to tokens.

    By ``model_type`` verl picks one for Qwen3, which asks the tokenizer for a newline and ``<|im_end|>``
    before anything else. The tokenizer of the embedded problems has neither, and one turn needs neither.
    """

    def __init__(self, *args: Any, hf_model_type: str | None = None, **kwargs: Any):
        super().__init__(*args, hf_model_type=None, **kwargs)
