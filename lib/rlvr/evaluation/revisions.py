"""Revisions of a language model's samples at test time: *GSPO with prompt* of IBPO's Table 1.

Every sample is shown to the policy that wrote it beside another one of its problem, in the prompt of
training, and what it answers is its answer. Nobody knows at test time which samples are right, so references
are drawn from all others [choice], as for embedded policies (:mod:`rlvr.evaluation.corrected`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr.checks import check_integer
from rlvr.counterfactual.fitting import LEAST, fitting_prompt
from rlvr.engines.vllm.prompts import read_prompts
from rlvr.evaluation.corrected import choose_others
from rlvr.evaluation.engines import sample
from rlvr.evaluation.inputs import check_frame
from rlvr.evaluation.requests import Evaluation
from rlvr.problems.benchmarks import prompt_for


@dataclass(frozen=True, slots=True)
class Asked:
    """A sample to be revised, as a problem of its own."""

    id: str
    benchmark: str
    prompt: str


def revise(
    evaluation: Evaluation,
    samples: pd.DataFrame,
    scratch: str | Path,
    *,
    references: int,
    longest: int,
    max_tokens: int,
    context: int | None = None,
) -> pd.DataFrame:
    """One revision of every sample, ungraded, with the same problem, sample and seed.

    Args:
        evaluation: that the samples come from, of one policy.
        samples: ``benchmark, problem, sample, seed, text``.
        scratch: as in :func:`rlvr.evaluation.engines.sample`: a run that was killed goes on.
        references: other samples of the same problem and seed that are shown beside each.
        longest: tokens of a prompt; of longer ones less of each response is shown.
        max_tokens: of a revision.
        context: tokens of a prompt and its revision together, as in training; None: no limit. Revisions of
            prompts beside which ``max_tokens`` have no room have what is beside the longest of them.

    Raises:
        ValueError: samples of several seeds, or of problems that the evaluation does not have; a prompt that
            does not fit; and what :func:`rlvr.evaluation.engines.sample` refuses.
    """
    frame = check_frame("samples", samples, ["benchmark", "problem", "sample", "seed", "text"])
    first = frame.reset_index(drop=True)
    (policy,) = evaluation.policies
    if first["seed"].nunique() > 1:
        raise ValueError(
            f"samples are of the seeds {sorted(first['seed'].unique().tolist())}: allowed is one"
        )
    tokenizer = _tokenizer(policy.model)

    def lengths(asked: Sequence[Asked]) -> list[int]:
        return [len(prompt.ids) for prompt in read_prompts(asked, tokenizer, evaluation.sampling)]

    asked = asked_of(evaluation, first, lengths, references=references, longest=longest)
    sizes = lengths(asked)
    parts = []
    for name, (limit, rows) in rooms(sizes, max_tokens, context).items():
        sampling = replace(
            evaluation.sampling, samples=1, max_tokens=limit, seeds=(int(first["seed"].iloc[0]),)
        )
        chosen = tuple(asked[row] for row in rows)
        parts.append(sample(replace(evaluation, problems=chosen, sampling=sampling), Path(scratch, name)))
    found = pd.concat(parts).set_index("problem").loc[[one.id for one in asked]].reset_index(drop=True)
    return found.assign(problem=first["problem"], sample=first["sample"])


def rooms(sizes: Sequence[int], max_tokens: int, context: int | None) -> dict[str, tuple[int, list[int]]]:
    """Name of a part: tokens of its revisions, and its prompts, of these sizes.

    Raises:
        ValueError: a prompt that fills the context.
    """
    check_integer("max_tokens", max_tokens, 1, "whole numbers >= 1")
    if context is not None and max(sizes) >= context:
        raise ValueError(f"context={context}: allowed is more than the longest prompt, {max(sizes)} tokens")
    narrow = [row for row, size in enumerate(sizes) if context is not None and size + max_tokens > context]
    out = {}
    if wide := sorted(set(range(len(sizes))) - set(narrow)):
        out["wide"] = (max_tokens, wide)
    if narrow:
        out["narrow"] = (context - max(sizes[row] for row in narrow), narrow)
    return out


def asked_of(
    evaluation: Evaluation,
    samples: pd.DataFrame,
    lengths: Any,
    *,
    references: int,
    longest: int,
) -> list[Asked]:
    """The prompt of every sample, in their order.

    Args:
        lengths: prompts -> tokens of each, as the model is asked.
    """
    check_integer("references", references, 0, "whole numbers >= 0")
    check_integer("longest", longest, 1, "whole numbers >= 1")
    problems = {(p.benchmark, p.id): p for p in evaluation.problems}
    keys = list(zip(samples["benchmark"], samples["problem"], strict=True))
    if unknown := sorted(set(keys) - set(problems)):
        raise ValueError(f"samples hold the problem {'/'.join(unknown[0])!r}, which is not evaluated")
    names = samples.assign(problem=["/".join(key) for key in keys])
    others = choose_others(names, references, int(samples["seed"].iloc[0]))
    texts = samples["text"].fillna("").tolist()
    worded = {key: prompt_for(p, evaluation.sampling.prompt_style) for key, p in problems.items()}
    asked = []
    for row, key in enumerate(keys):
        name, problem = names["problem"].iloc[row], problems[key]
        ask = partial(Asked, f"{name}#{samples['sample'].iloc[row]}", key[0])
        said = fitting_prompt(
            problem.kind,
            worded[key],
            texts[row],
            [texts[other] for other in others[row]],
            lambda text, ask=ask: lengths([ask(text)])[0] <= longest,
        )
        if said is None:
            raise ValueError(
                f"longest={longest}: the prompt of {name} is longer with {LEAST} characters of each "
                "response; allowed is more"
            )
        asked.append(ask(said))
    return asked


def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, local_files_only=True)
