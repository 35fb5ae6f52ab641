"""Verdicts per second: verify_math_batch against plain math-verify in a pool of as many processes, in turn.

Both grade the same responses, in the same order, in one run. The responses are those of the tests (right
answers in odd clothes, near misses), each behind a few hundred words of reasoning with numbers of its own;
with RLVR_DATA set, also the gold answers of the mathematics benchmarks in it, right or exchanged. Twice:
workers that run (both have imported what they need; our caches are emptied before every round), and whole
processes, from the start of an interpreter to its end. What is the same in several responses we grade once;
so no response is repeated here. Only how many each side calls right is printed, not who is right: that is
what the tests are for.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import multiprocessing
import os
import platform
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from paired import SIDES, in_turn, new_process, report

from rlvr.verifiers import golds
from rlvr.verifiers import math as ours
from rlvr.verifiers.answers.readings import readings
from rlvr.verifiers.formulas import clean
from tests.verifiers.math_near_misses import NEAR_MISSES
from tests.verifiers.math_odd_clothes import ODD_CLOTHES

REASONING = "We set $x_{%d} = %d$ and note that the sum is %d, so step %d gives \\(\\frac{%d}{7}\\). "
FILES = ("aime24", "aime25", "aime26", "amc23", "math500", "minerva_math", "hmmt_feb_2025", "olympiadbench")
Pair = tuple[str, str, str]  # gold, response, kind


def corpus(rng: random.Random) -> list[Pair]:
    pairs = [(gold, f"\\boxed{{{answer}}}", kind) for gold, answer, kind in NEAR_MISSES]
    pairs += ODD_CLOTHES
    return [(gold, _reasoning(rng) + text, kind) for gold, text, kind in dict.fromkeys(pairs)]


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
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    gold, response = pair
    return bool(verify(parse(gold), parse(response)))


def grade_ours(pairs: list[Pair], workers: int) -> list[bool]:
    golds._read_gold.cache_clear()
    readings.cache_clear()
    verdicts = ours.verify_math_batch(
        [response for _, response, _ in pairs],
        [gold for gold, _, _ in pairs],
        kind=[kind for _, _, kind in pairs],
        workers=workers,
    )
    return [verdict.correct is True for verdict in verdicts]


def grade_theirs(pairs: list[Pair], pool: ProcessPoolExecutor) -> list[bool]:
    # math-verify wants LaTeX in delimiters
    jobs = [(f"${gold.strip('$')}$", response) for gold, response, _ in pairs]
    return list(pool.map(plain, jobs, chunksize=16))


def start_pool(workers: int) -> ProcessPoolExecutor:
    """A pool that has imported math-verify."""
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    list(pool.map(plain, [("$1$", "$1$")] * workers))
    return pool


def corpora() -> dict[str, list[Pair]]:
    rng = random.Random(0)
    found = {"tests' responses": corpus(rng)}
    if folder := os.environ.get("RLVR_DATA"):
        found["benchmarks' golds"] = benchmarks(rng, folder)
    return found


def once(side: str, label: str, workers: int) -> None:
    """All that a process does that grades one corpus, for :func:`paired.new_process`."""
    pairs = corpora()[label]
    if side == "ours":
        grade_ours(pairs, workers)
    else:
        with start_pool(workers) as pool:
            grade_theirs(pairs, pool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        once(options.once, options.corpus, options.workers)
        return
    versions = ", ".join(f"{name} {version}" for name, version in ours.runtime().items())
    print(f"{platform.machine()}, {options.workers} workers on both sides; {versions}")
    with start_pool(options.workers) as pool:
        for label, pairs in corpora().items():
            right: dict[str, int] = {}

            def ours_once(pairs=pairs, right=right) -> None:
                right["ours"] = sum(grade_ours(pairs, options.workers))

            def theirs_once(pairs=pairs, right=right) -> None:
                right["theirs"] = sum(grade_theirs(pairs, pool))

            times = in_turn({"ours": ours_once, "theirs": theirs_once}, options.rounds)
            print(f"{label}: {len(pairs)} responses, right: ours {right['ours']}, theirs {right['theirs']}")
            report(f"{label}, workers running", len(pairs), "verdicts/s", times["wall"])
    for label, pairs in corpora().items():
        arguments = ["--corpus", label, "--workers", str(options.workers)]
        whole = {side: new_process(__file__, side, arguments) for side in SIDES}
        times = in_turn(whole, options.rounds, warm_up=0)
        report(f"{label}, whole processes", len(pairs), "verdicts/s", times["wall"])
        report(f"{label}, whole processes, processor time", len(pairs), "verdicts/s", times["processor"])


if __name__ == "__main__":
    main()
