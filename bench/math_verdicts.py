"""Verdicts per second: verify_math_batch against plain math-verify in a pool of as many processes, in turn.

Both grade the same responses, in the same order, in one run; each round starts with our caches empty and with
workers that have already imported what they need. The responses are those of the tests (right answers in odd
clothes, near misses), behind the same few hundred words of reasoning, each repeated with other numbers of the
reasoning; with RLVR_DATA set, the gold answers of the mathematics benchmarks in it as well. Only agreement of
counts is printed, not who is right: that is what the tests are for.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import ratio_of_medians

from rlvr.verifiers import golds
from rlvr.verifiers import math as ours
from rlvr.verifiers.formulas import clean
from tests.verifiers.math_near_misses import NEAR_MISSES
from tests.verifiers.math_odd_clothes import ODD_CLOTHES

REASONING = "We set $x_{%d} = %d$ and note that the sum is %d, so step %d gives \\(\\frac{%d}{7}\\). "
FILES = ("aime24", "aime25", "aime26", "amc23", "math500", "minerva_math", "hmmt_feb_2025", "olympiadbench")
Pair = tuple[str, str, str]  # gold, response, kind


def corpus(rng: random.Random, copies: int) -> list[Pair]:
    pairs = [(gold, f"\\boxed{{{answer}}}", kind) for gold, answer, kind in NEAR_MISSES]
    pairs += ODD_CLOTHES
    return [(gold, _reasoning(rng) + text, kind) for _ in range(copies) for gold, text, kind in pairs]


def benchmarks(rng: random.Random, folder: str) -> list[Pair]:
    pairs = []
    for name in FILES:
        for path in Path(folder).glob(f"{name}.jsonl*"):
            with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
                rows = [json.loads(line) for line in lines]
            kind = (
                "integer"
                if name.startswith(("aime", "amc"))
                else "float"
                if name == "minerva_math"
                else "auto"
            )
            answers = [clean(row["answer"]) for row in rows]
            others = answers[1:] + answers[:1]
            for answer, other in zip(answers, others, strict=True):
                given = answer if rng.random() < 0.5 else other
                pairs.append((answer, f"{_reasoning(rng)}So the answer is $\\boxed{{{given}}}$.", kind))
    return pairs


def _reasoning(rng: random.Random) -> str:
    return "".join(REASONING % tuple(rng.randrange(1000) for _ in range(5)) for _ in range(12))


def plain(pair: tuple[str, str]) -> bool:
    """math-verify as its README has it."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    gold, response = pair
    return bool(verify(parse(gold), parse(response)))


def compare(label: str, pairs: list[Pair], workers: int, rounds: int, pool: ProcessPoolExecutor) -> float:
    predictions = [response for _, response, _ in pairs]
    answers = [gold for gold, _, _ in pairs]
    kinds = [kind for _, _, kind in pairs]
    # math-verify wants LaTeX in delimiters
    jobs = [(f"${gold.strip('$')}$", response) for gold, response, _ in pairs]
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    right: dict[str, int] = {}
    for index in range(rounds + 1):
        for side in ("ours", "theirs") if index % 2 else ("theirs", "ours"):
            golds._read_gold.cache_clear()
            ours.readings.cache_clear()
            start = time.perf_counter()
            if side == "ours":
                verdicts = [
                    v.correct
                    for v in ours.verify_math_batch(predictions, answers, kind=kinds, workers=workers)
                ]
            else:
                verdicts = list(pool.map(plain, jobs, chunksize=16))
            elapsed = time.perf_counter() - start
            assert len(verdicts) == len(pairs)
            if index:  # the first round starts the workers
                times[side].append(elapsed)
            right[side] = sum(v is True for v in verdicts)
    ratio, low, high = ratio_of_medians(times["theirs"], times["ours"])
    rate = {side: len(pairs) / statistics.median(seconds) for side, seconds in times.items()}
    print(
        f"{label}: {len(pairs)} responses, ours {rate['ours']:,.0f} verdicts/s ({right['ours']} right), "
        f"math-verify {rate['theirs']:,.0f} ({right['theirs']} right), "
        f"ratio {ratio:.1f} [{low:.1f}, {high:.1f}], {rounds} pairs"
    )
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--copies", type=int, default=3, help="of the tests' responses")
    options = parser.parse_args()
    rng = random.Random(0)
    versions = ", ".join(f"{name} {version}" for name, version in ours.runtime().items())
    print(f"{platform.machine()}, {options.workers} workers on both sides; {versions}")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        list(pool.map(plain, [("$1$", "$1$")] * options.workers))
        ratios = [
            compare("tests' responses", corpus(rng, options.copies), options.workers, options.rounds, pool)
        ]
        folder = os.environ.get("RLVR_DATA")
        if folder:
            pairs = benchmarks(rng, folder)
            ratios.append(compare("benchmarks' golds", pairs, options.workers, options.rounds, pool))
    return 0 if min(ratios) >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
