"""Sample a saved policy with the local engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr.engines.config import SamplingConfig
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import derive_seed
from rlvr.engines.local.sampling import sample
from rlvr.problems.tokenizer import Codec

#: Settings that mean something here; chunk_size is other engines' and changes nothing.
USED = {"max_tokens", "samples", "seeds", "temperature", "skip_special_tokens", "chunk_size"}


def check_config(config: SamplingConfig) -> None:
    """ValueError for a setting that this engine does not have."""
    config.refuse_others(USED, "local")
    if config.skip_special_tokens:
        raise ValueError(
            "skip_special_tokens=True: engine local keeps a sampled <pad> visible; allowed is False"
        )


def sample_policy(
    folder: str | Path,
    problems: Sequence[Any],
    config: SamplingConfig,
    name: str,
    on_progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Sample ``config.samples`` responses per problem and seed.

    Every policy sees the same problems and draws the same uniforms, so two evaluations are paired; which
    uniforms a problem gets depends on its place among the problems.

    Args:
        folder: a policy of the local engine with its tokenizer.
        problems: with ``id``, ``benchmark`` and ``prompt``.
        name: what column ``model`` says.
        on_progress: called with (problems done, all), over all seeds.

    Returns:
        One row per response, ordered by seed, problem, sample, ungraded: the columns of
        :mod:`rlvr.evaluation.samples` but those of grading, ``seed`` being that of sampling.

    Raises:
        FileNotFoundError: no policy there.
        ValueError: a setting that this engine does not have, or a prompt it has no words for.
    """
    check_config(config)
    policy, codec = Policy.from_pretrained(folder), Codec.load(folder)
    prompts = codec.encode_batch(p.prompt for p in problems)
    asked = [problem for problem in problems for _ in range(config.samples)]
    frames: list[pd.DataFrame] = []

    def progress(done: int) -> None:
        if on_progress:
            on_progress(len(frames) * len(prompts) + done, len(config.seeds) * len(prompts))

    for seed in config.seeds:
        samples = sample(
            policy,
            prompts,
            config.samples,
            config.max_tokens,
            derive_seed(seed),
            config.temperature,
            progress,
        )
        finished = samples.finished.tolist()
        rows = {
            "problem": [problem.id for problem in asked],
            "benchmark": [problem.benchmark for problem in asked],
            "sample": [*range(config.samples)] * len(problems),
            "seed": seed,
            "prompt": [problem.prompt for problem in asked],
            "text": codec.responses(samples.responses())[0],
            "finish_reason": ["stop" if done else "length" for done in finished],
            "finished": finished,
            "tokens": samples.lengths.tolist(),
            "prompt_tokens": [len(ids) for ids in prompts for _ in range(config.samples)],
            "engine": "local",
            "model": name,
        }
        frames.append(pd.DataFrame(rows))
    return pd.concat(frames, ignore_index=True)
