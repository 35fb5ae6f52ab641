"""What a set of problems looks like: lengths, answers, and the proof that its splits share nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

import pandas as pd

from rlvr.problems import get_task
from rlvr.problems.base import Problem
from rlvr.problems.program import PROBES, values
from rlvr.problems.tokenizer import Codec


def to_frame(problems: Sequence[Problem], codec: Codec) -> pd.DataFrame:
    """One row per problem, with the lengths in tokens; a response counts its end token.

    Raises:
        ValueError: no problems, or one without a solution.
    """
    if not problems:
        raise ValueError("problems is empty, nothing to summarise")
    missing = next((p.id for p in problems if p.solution is None), None)
    if missing is not None:
        raise ValueError(f"problem {missing} has no solution, so its response has no length")
    return pd.DataFrame(
        {
            "id": [p.id for p in problems],
            "split": [p.split for p in problems],
            "difficulty": [p.difficulty for p in problems],
            "answer": [_answer(p) for p in problems],
            "prompt_tokens": [len(codec.encode(p.prompt)) for p in problems],
            "response_tokens": [len(codec.encode(p.solution, end=True)) for p in problems],
        }
    )


def _answer(problem: Problem) -> int | str:
    """The number; where an answer is no number, as text."""
    return int(problem.answer) if get_task(problem.kind).grader == "integer" else problem.answer


def summarise(splits: Mapping[str, Sequence[Problem]], codec: Codec) -> pd.DataFrame:
    """One row per split.

    ``distinct`` counts different contents (wording aside). ``most_common_answer`` and its ``share`` are the
    constant-answer baseline: what a policy gets that says the same to everything. ``answer_min`` and
    ``answer_max`` are of answers that are numbers.
    """
    rows = {}
    for split, problems in splits.items():
        frame = to_frame(problems, codec)
        numbers = frame["answer"]
        numbers = numbers if pd.api.types.is_numeric_dtype(numbers) else pd.Series(dtype=float)
        answer, count = min(Counter(frame["answer"].tolist()).items(), key=lambda item: (-item[1], item[0]))
        rows[split] = {
            "n": len(frame),
            "distinct": len({p.content for p in problems}),
            "fewest_steps": frame["difficulty"].min(),
            "most_steps": frame["difficulty"].max(),
            "prompt_tokens_mean": frame["prompt_tokens"].mean(),
            "prompt_tokens_max": frame["prompt_tokens"].max(),
            "response_tokens_mean": frame["response_tokens"].mean(),
            "response_tokens_max": frame["response_tokens"].max(),
            "answer_min": numbers.min(),
            "answer_max": numbers.max(),
            "most_common_answer": answer,
            "most_common_share": count / len(frame),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("split")


def difficulty_counts(splits: Mapping[str, Sequence[Problem]]) -> pd.DataFrame:
    """Problems per split (row) and difficulty (column)."""
    counts = {split: Counter(p.difficulty for p in problems) for split, problems in splits.items()}
    frame = pd.DataFrame.from_dict(counts, orient="index").fillna(0).astype(int)
    return frame.sort_index(axis="columns").rename_axis("split").rename_axis("steps", axis="columns")


def overlap(splits: Mapping[str, Sequence[Problem]]) -> pd.DataFrame:
    """Problems that two splits share; every entry must be 0.

    Per pair of splits: prompts that are equal; contents that are equal, read back out of the prompts and
    not taken from the generator; and ``contained``, contents of one split that are the beginning of a
    content of the other, whose solution would spell out theirs. Of programs ``contained`` counts functions
    that both ask for: a longer program may well begin like a shorter one, and computes something else.
    """
    prompts = {s: {p.prompt for p in problems} for s, problems in splits.items()}
    contents = {
        s: {get_task(p.kind).content_of(p.prompt) for p in problems} for s, problems in splits.items()
    }
    rows = []
    for a, b in combinations(splits, 2):
        rows.append(
            {
                "splits": f"{a} / {b}",
                "prompts": len(prompts[a] & prompts[b]),
                "contents": len(contents[a] & contents[b]),
                "contained": _related(splits[a], splits[b], contents[a], contents[b]),
            }
        )
    return pd.DataFrame(rows, columns=["splits", "prompts", "contents", "contained"]).set_index("splits")


def _related(a: Sequence[Problem], b: Sequence[Problem], contents_a: set[str], contents_b: set[str]) -> int:
    if all(get_task(p.kind).grader == "integer" for p in (*a, *b)):
        return _contained(contents_a, contents_b) + _contained(contents_b, contents_a)
    functions = [{tuple(values(content, PROBES)) for content in own} for own in (contents_a, contents_b)]
    return len(functions[0] & functions[1])


def _contained(short: set[str], long: set[str]) -> int:
    """How many of ``short`` begin some content of ``long`` (every step is a sign and a digit)."""
    beginnings = {content[:end] for content in long for end in range(2, len(content))}
    return len({c for c in short if c in beginnings})
