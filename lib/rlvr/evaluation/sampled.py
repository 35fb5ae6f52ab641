"""Evaluate a saved policy: sample, grade, and keep every response."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from rlvr.config import Evaluate
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import derive_seed
from rlvr.engines.local.sampling import sample
from rlvr.problems import Problem
from rlvr.problems.tokenizer import Codec
from rlvr.verifiers import verify_integer


def evaluate_policy(
    folder: str | Path,
    problems: list[Problem],
    config: Evaluate,
    max_new_tokens: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Sample ``config.samples`` responses to every problem and grade them.

    Returns one row per response: problem (id), difficulty, sample, text, finished, correct (bool, or
    missing where the verifier could not decide), extracted, reason, tokens. Every policy sees the same
    problems and draws the same uniforms, so two evaluations are paired.
    """
    policy, codec = Policy.from_pretrained(folder), Codec.load(folder)
    prompts = codec.encode_batch(p.prompt for p in problems)

    def progress(done: int) -> None:
        if on_progress:
            on_progress(done, len(prompts))

    samples = sample(
        policy,
        prompts,
        config.samples,
        max_new_tokens,
        derive_seed(config.seed),
        config.temperature,
        progress,
    )
    texts, _ = codec.responses(samples.responses())
    rows = []
    finished, lengths = samples.finished.tolist(), samples.lengths.tolist()
    for index, text in enumerate(texts):
        problem = problems[index // config.samples]
        verdict = verify_integer(text, problem.answer, finished[index])
        rows.append(
            {
                "problem": problem.id,
                "difficulty": problem.difficulty,
                "sample": index % config.samples,
                "text": text,
                "finished": finished[index],
                "correct": verdict.correct,
                "extracted": verdict.extracted,
                "reason": verdict.reason,
                "tokens": lengths[index],
            }
        )
    return pd.DataFrame(rows).astype({"correct": "boolean", "extracted": "string"})
