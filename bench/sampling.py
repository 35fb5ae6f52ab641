"""Sampling: tokens per second of the local engine against `model.generate`, in turn, in one process.

Both sides sample at temperature 1 from the same weights and stop at the same end token; only tokens up to
and including the end token count.
"""

from __future__ import annotations

import torch
from common import GROUP, NEW_TOKENS, compare, header, seconds, setting

from rlvr.engines.local.sampling import sample

ROUNDS = 7


def main() -> None:
    policy, codec, problems = setting()
    prompts = codec.encode_batch(p.prompt for p in problems)
    model = policy.to_hf()
    width = max(map(len, prompts))
    ids = torch.tensor([[codec.pad_id] * (width - len(p)) + p for p in prompts]).repeat_interleave(GROUP, 0)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]).repeat_interleave(GROUP, 0)
    tokens = {"ours": 0, "theirs": 0}

    def ours(seed: int = 0) -> None:
        tokens["ours"] = sample(policy, prompts, GROUP, NEW_TOKENS, seed).num_tokens

    def theirs() -> None:
        out = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=NEW_TOKENS, eos_token_id=codec.eos_id, pad_token_id=codec.pad_id,
        )[:, width:]  # fmt: skip
        before_end = (out == codec.eos_id).cumsum(1) == 0
        tokens["theirs"] = int((before_end.sum(1) + 1).clamp(max=out.shape[1]).sum())

    header()
    ours(), theirs()  # warm
    rates = {"ours": [], "theirs": []}
    for _ in range(ROUNDS):
        for name, function in (("ours", ours), ("theirs", theirs)):
            elapsed = seconds(function)
            rates[name].append(tokens[name] / elapsed)
    compare("sampling against model.generate", rates["ours"], rates["theirs"], "tokens/s", True)


if __name__ == "__main__":
    main()
