"""What a set of problems looks like: lengths, answers, and the proof that its splits share nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

import pandas as pd

from rlvr.problems import get_task
from rlvr.problems.base import Problem
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
            "answer": [int(p.answer) for p in problems],
            "prompt_tokens": [len(codec.encode(p.prompt)) for p in problems],
            "response_tokens": [len(codec.encode(p.solution, end=True)) for p in problems],
        }
    )


def summarise(splits: Mapping[str, Sequence[Problem]], codec: Codec) -> pd.DataFrame:
    """One row per split.

    ``distinct`` counts different contents (wording aside). ``most_common_answer`` and its ``share`` are the
    constant-answer baseline: what a policy gets that says the same number to everything.
    """
    rows = {}
    for split, problems in splits.items():
        frame = to_frame(problems, codec)
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
            "answer_min": frame["answer"].min(),
            "answer_max": frame["answer"].max(),
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
    content of the other, whose solution would spell out theirs.
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
                "contained": _contained(contents[a], contents[b]) + _contained(contents[b], contents[a]),
            }
        )
    return pd.DataFrame(rows, columns=["splits", "prompts", "contents", "contained"]).set_index("splits")


def _contained(short: set[str], long: set[str]) -> int:
    """How many of ``short`` begin some content of ``long`` (every step is a sign and a digit)."""
    beginnings = {content[:end] for content in long for end in range(2, len(content))}
    return len({c for c in short if c in beginnings})
