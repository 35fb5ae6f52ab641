"""What the benchmarks share: the same model, prompts and threads for both sides, and paired ratios."""

from __future__ import annotations

import platform
import statistics
from pathlib import Path

import torch
from measure import seconds as seconds

from rlvr.config import load_scale
from rlvr.engines.local.policy import Policy
from rlvr.problems import get_task
from rlvr.problems.tokenizer import Codec

SCALE = load_scale("params.yaml")
MODEL = Path(f"runs/{SCALE.scale}/base/model")
PROMPTS, GROUP, NEW_TOKENS = 128, 8, SCALE.train.max_new_tokens
THREADS = 2


def setting() -> tuple[Policy, Codec, list]:
    """The laptop's base model, its tokenizer, and 128 training problems."""
    if not MODEL.is_dir():
        raise SystemExit(f"{MODEL} does not exist; `dvc repro base` makes it (about a minute)")
    torch.set_num_threads(THREADS)
    problems = get_task(SCALE.problems.task).generate("train", PROMPTS, 7, SCALE.problems.operations)
    return Policy.from_pretrained(MODEL), Codec.load(MODEL), problems


def compare(name: str, ours: list[float], theirs: list[float], unit: str, higher_is_better: bool) -> None:
    """Print both sides' medians and the median of the paired ratios, with their range."""
    ratios = [a / b if higher_is_better else b / a for a, b in zip(ours, theirs, strict=True)]
    print(
        f"{name}: ours {statistics.median(ours):,.4g} {unit}, theirs {statistics.median(theirs):,.4g}, "
        f"ratio {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}], {len(ratios)} pairs"
    )


def header() -> None:
    import transformers

    print(
        f"{platform.machine()}, {THREADS} threads, torch {torch.__version__}, transformers "
        f"{transformers.__version__}; {PROMPTS} prompts x {GROUP} responses of at most {NEW_TOKENS} tokens"
    )
