"""verl's reward manager for our verifiers: as ``naive``, and it says whether a response ended by itself."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.utils.fs import copy_to_local

from rlvr.engines.jobs.rows import EMBEDDED
from rlvr.engines.vllm.model import end_token_ids


class RewardManager(RewardManagerBase):
    """Set by ``rlvr.engines.verl.reward.SETTINGS``.

    verl's own manager decodes a response without special tokens and hands over the text alone. So a response
    cut off at the length limit cannot be told from one that ended; and where an embedded policy wrote
    ``<pad>`` between two digits, they become a number that it never wrote. Here the end token is cut off by
    its id, and ``finished`` says whether there was one.
    """

    def __init__(self, config: DictConfig, tokenizer: Any, compute_score: Any, **_: Any):
        super().__init__(config, tokenizer, compute_score)
        if not config.reward.custom_reward_function.path:
            raise ValueError(
                "reward.custom_reward_function.path is not set: allowed with this reward manager is "
                "pkg://rlvr.engines.verl.reward, or a function that takes `finished`"
            )
        folder = Path(copy_to_local(config.actor_rollout_ref.model.path))
        self.ends = frozenset(end_token_ids(folder, tokenizer))

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        item = data[-1:][0]  # of an agent with several turns, the last
        ids = item.batch["responses"]
        # padding stands after the response; `attention_mask` covers prompt and response
        ids = ids[: int(item.batch["attention_mask"][-len(ids) :].sum())].tolist()
        rest = item.non_tensor_batch
        text, finished = response_text(self.tokenizer, ids, self.ends, rest["data_source"])
        arguments = {
            "data_source": rest["data_source"],
            "solution_str": text,
            "ground_truth": rest["reward_model"]["ground_truth"],
            "extra_info": dict(rest.get("extra_info", None) or {}),
            "finished": finished,
        }
        if inspect.iscoroutinefunction(self.compute_score):
            result = await self.compute_score(**arguments)
        else:  # a verdict may take seconds: not in the event loop
            result = await self.loop.run_in_executor(None, lambda: self.compute_score(**arguments))
        if not isinstance(result, dict):
            result = {"score": result, "acc": result}
        return {"reward_score": result["score"], "reward_extra_info": dict(result)}


def response_text(tokenizer: Any, ids: list[int], ends: frozenset[int], data_source: str) -> tuple[str, bool]:
    """Text of a response without its end token, and whether it had one."""
    finished = bool(ids) and ids[-1] in ends
    text = tokenizer.decode(ids[:-1] if finished else ids, skip_special_tokens=data_source != EMBEDDED)
    return text, finished
