"""Corrections and selections at test time: baselines that add a prompt or a verifier to a trained policy.

- *GSPO with prompt*: every sample is revised once, beside other samples of its problem; the revision is the
  answer, whatever it is. Nobody knows at test time which samples are right, so references are drawn from all
  others [choice], and the prompt is that of training.
- *Best-of-N*: :func:`rlvr.evaluation.metrics.best_of_n` of the verdicts here. With the grader of the result
  as the selecting verifier it is pass@N; a task with public tests has another verifier to select by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.engines.config import SamplingConfig
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import derive_seed
from rlvr.engines.local.sampling import sample
from rlvr.evaluation.sampled import check_config
from rlvr.evaluation.samples import finished_of, texts_of
from rlvr.problems import get_task
from rlvr.problems.base import Draws
from rlvr.problems.tokenizer import PAD, Codec

_REFERENCES, _REVISIONS = 11, 12  # purposes of random streams


def revise_samples(
    folder: str | Path,
    problems: Sequence[Any],
    samples: pd.DataFrame,
    config: SamplingConfig,
    *,
    template: str = "compare",
    references: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """One revision of every sample, by the policy that wrote it or by another.

    Args:
        folder: a policy of the local engine with its tokenizer.
        problems: those of the samples, with ``id`` and ``prompt``.
        samples: of :func:`rlvr.evaluation.sampled.sample_policy`, of one policy.
        config: ``max_tokens`` and ``temperature`` count; its seed is that of references and revisions.
        template: name in :data:`rlvr.counterfactual.prompts.TOKEN_TEMPLATES`.
        references: other samples of the same problem and seed beside each, without repetition; 0: none. A
            sample that has fewer neighbours has all of them.
        on_progress: called with (samples done, all).

    Returns:
        ``samples`` with ``text``, ``tokens``, ``prompt_tokens``, ``finished`` and ``finish_reason`` of the
        revisions, ungraded; ``first_text`` is the text that was revised.

    Raises:
        ValueError: samples of several policies, or of problems that are not given; a bad setting.
    """
    check_config(config)
    if samples["model"].nunique() > 1:
        raise ValueError(f"samples are of the models {sorted(samples['model'].unique())}: allowed is one")
    prompts_of = {problem.id: problem.prompt for problem in problems}
    if unknown := sorted(set(samples["problem"]) - set(prompts_of)):
        raise ValueError(f"samples hold the problem {unknown[0]!r}, which is not given")
    if not isinstance(references, int) or references < 0:
        raise ValueError(f"references={references!r}: allowed are whole numbers >= 0")
    policy, codec = Policy.from_pretrained(folder), Codec.load(folder)
    build = TokenPrompts(template, codec.encode, codec.eos_id)
    # a <pad> that was sampled stands visibly in the text; a prompt has no word for it
    ids = codec.encode_batch(text.replace(PAD, " ") for text in samples["text"].fillna(""))
    (seed,) = config.seeds
    known = choose_others(samples, references, seed)
    prompts = [
        build(codec.encode(prompts_of[problem]), ids[row], [ids[other] for other in known[row]])
        for row, problem in enumerate(samples["problem"])
    ]
    done = None if on_progress is None else (lambda count: on_progress(count, len(prompts)))
    found = sample(
        policy, prompts, 1, config.max_tokens, derive_seed(_REVISIONS, seed), config.temperature, done
    )
    finished = found.finished.tolist()
    kept = samples.drop(columns=["correct", "extracted", "reason", "grader"], errors="ignore")
    return kept.assign(
        first_text=samples["text"],
        text=codec.responses(found.responses())[0],
        finish_reason=["stop" if end else "length" for end in finished],
        finished=finished,
        tokens=found.lengths.tolist(),
        prompt_tokens=[len(prompt) for prompt in prompts],
    )


def choose_others(samples: pd.DataFrame, count: int, seed: int) -> list[list[int]]:
    """Positions of ``count`` other samples of the same problem and sampling seed, per sample, uniformly."""
    draws = Draws("held_out", (_REFERENCES, seed))
    positions: dict[tuple, list[int]] = {}
    keys = list(zip(samples["problem"], samples["seed"], strict=True))
    for row, key in enumerate(keys):
        positions.setdefault(key, []).append(row)
    chosen = []
    for row, key in enumerate(keys):
        others = [other for other in positions[key] if other != row]
        chosen.append([others.pop(draws.below(len(others))) for _ in range(min(count, len(others)))])
    return chosen


def passes(samples: pd.DataFrame, problems: Sequence[Any]) -> list[float]:
    """Per sample, whether the verifier that a selection may ask passes it, 1.0 or 0.0.

    That is the task's verifier on public tests where it has some, else the grader itself [text: IBPO 4, "the
    same terminal verifier"].

    Args:
        problems: embedded ones, with ``id``, ``answer`` and ``task``.
    """
    by_id = {problem.id: problem for problem in problems}
    asked = [by_id[name] for name in samples["problem"]]
    task = get_task(asked[0].task)
    verify = task.public_rewards or task.rewards
    return verify([t or "" for t in texts_of(samples)], [p.answer for p in asked], finished_of(samples))
