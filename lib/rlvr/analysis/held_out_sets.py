"""Held-out problems in sets of several kinds and difficulties: what stands for a paper's seven benchmarks.

A set is a kind (how many of its steps multiply: none, one, several) and a length (short, long). It follows
from the prompt, so that nothing can be sorted by who solved it.
"""

from __future__ import annotations

import pandas as pd

from rlvr.problems import get_task

KINDS = ("plain", "one product", "products")
LENGTHS = ("short", "long")
SETS = tuple(f"{kind}, {length}" for kind in KINDS for length in LENGTHS)


def set_of(content: str, operations: tuple[int, int]) -> str:
    """The set of a problem by its content, ``11+6-4*2``; long is more steps than half of the range."""
    signs = [sign for sign in content if sign in "+-*"]
    kind = KINDS[min(2, signs.count("*"))]
    return f"{kind}, {LENGTHS[len(signs) > sum(operations) // 2]}"


def with_sets(samples: pd.DataFrame, task: str, operations: tuple[int, int]) -> pd.DataFrame:
    """Samples with a column ``set``."""
    content_of = get_task(task).content_of
    by_prompt = {prompt: set_of(content_of(prompt), operations) for prompt in samples["prompt"].unique()}
    return samples.assign(set=samples["prompt"].map(by_prompt))
